"""A conversation with a person: at a terminal, or line by line through a pipe."""
