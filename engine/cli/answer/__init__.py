"""One question on its way: to a model, and its reply to standard output."""
