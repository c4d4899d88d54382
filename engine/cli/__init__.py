"""The command `callboard`: a demo, a plain chat, and commands that show the calls and the costs of a trace
file."""

from __future__ import annotations

from .command_line import main

__all__ = ["main"]
