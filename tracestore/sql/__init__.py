"""The statements that every database of a trace understands, and the little in which those databases differ."""
