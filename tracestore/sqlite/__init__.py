"""The trace in a SQLite file: connection, file and locks, reading, upkeep, and the store."""
