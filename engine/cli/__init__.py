"""The command `callboard`: a demo, chats and questions, and reports about recorded calls."""

from __future__ import annotations

from .command_line import main

__all__ = ["main"]
