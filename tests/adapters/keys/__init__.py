"""Keys of adapters: from functions, by name, in pools, and in files."""
