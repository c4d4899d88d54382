"""Ships a trace file while the server is stopped, disconnected or full, and while shippers are killed."""
