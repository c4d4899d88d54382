"""What keeps a trace in PostgreSQL in order, and says how it does."""
