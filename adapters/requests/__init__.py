"""Writing requests: fitted history, settings, media, text."""
