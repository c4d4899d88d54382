"""OpenAI's Responses API."""

from .adapter import OpenAIAdapter

__all__ = ["OpenAIAdapter"]
