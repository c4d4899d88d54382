"""The models of an engine, their names, and the adapter that serves each."""
