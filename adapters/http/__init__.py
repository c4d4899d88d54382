"""Driving one call over HTTP: attempts, time limits, retries, streams."""
