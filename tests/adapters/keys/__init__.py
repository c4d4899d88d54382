"""Keys of adapters: asked for, named, shared, at rest."""
