"""What is asked of the tables: calls, costs, sessions, events, statistics."""
