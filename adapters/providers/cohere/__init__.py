"""Cohere's embedding models."""

from .adapter import CohereAdapter

__all__ = ["CohereAdapter"]
