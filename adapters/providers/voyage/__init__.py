"""Voyage AI's embedding models."""

from .adapter import VoyageAdapter

__all__ = ["VoyageAdapter"]
