"""Google's Gemini API."""

from .adapter import GeminiAdapter

__all__ = ["GeminiAdapter"]
