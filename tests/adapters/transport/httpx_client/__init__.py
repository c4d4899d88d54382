"""Requests over httpx and httpcore."""
