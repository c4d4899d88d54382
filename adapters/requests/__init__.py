"""What every wire needs to write a request: fitted history, settings, media, text."""
