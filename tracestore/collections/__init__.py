"""Collections of vectors with their ids, in a file beside the trace, and the search for what is similar."""
