"""Chat Completions: OpenAI's older protocol, and what nearly every other server speaks, differences as data."""

from __future__ import annotations

from .adapter import OpenAICompatibleAdapter
from .quirks.servers import QUIRKS, Quirks

__all__ = ["QUIRKS", "OpenAICompatibleAdapter", "Quirks"]
