"""The command `callboard`: questions and chats, a demo, and reports about recorded calls."""

from __future__ import annotations

from .command_line import main

__all__ = ["main"]
