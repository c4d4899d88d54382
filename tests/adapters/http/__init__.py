"""Driving one call over HTTP: tries, time limits, health, addresses and keys."""
