"""The sources of imports: one module for each program, as `..source.Source` describes it."""
