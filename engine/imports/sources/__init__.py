"""The sources of imports, one module for each program. Each has the methods of `..source.Source`."""
