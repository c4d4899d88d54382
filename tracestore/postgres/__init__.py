"""The trace in PostgreSQL; nothing else imports psycopg, and nothing here does before a connection is made."""
