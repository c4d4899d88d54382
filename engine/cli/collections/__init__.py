"""Collections of vectors on the command line: what is read into them, and what is looked for."""
