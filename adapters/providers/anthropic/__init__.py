"""Anthropic's Messages API."""

from .adapter import AnthropicAdapter

__all__ = ["AnthropicAdapter"]
