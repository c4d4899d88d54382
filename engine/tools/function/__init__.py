"""Tools made of functions."""
