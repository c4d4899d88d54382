"""The SQL that all databases of a trace share, and the few parts that differ."""
