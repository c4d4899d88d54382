"""Events on their way to other processes: what is committed here goes out over the broker, in order."""
