"""A package with plugins of all three kinds, some of which are broken."""
