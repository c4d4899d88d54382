"""The pricing of a million stored calls at once, in temporary tables of PostgreSQL."""
