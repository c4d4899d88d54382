"""Ollama's own protocol, `/api/chat`. (Its `/v1` is served by `openai_compatible`.)"""

from .adapter import OllamaAdapter

__all__ = ["OllamaAdapter"]
