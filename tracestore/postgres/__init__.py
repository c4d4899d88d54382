"""The trace in PostgreSQL. Only this room imports psycopg, and only when a connection is made."""
