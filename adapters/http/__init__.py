"""Calls over HTTP: attempts, time limits, retries, streams."""
