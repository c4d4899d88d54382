"""What every wire needs to write: history, settings, schemas, media."""
