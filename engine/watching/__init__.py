"""Reports about a working engine: calls in progress, changes, health, and request previews."""
