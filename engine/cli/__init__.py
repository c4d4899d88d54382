"""The command `callboard`: a demo, a plain chat, and a look at what a trace file holds and what it cost."""

from __future__ import annotations

from .main import main

__all__ = ["main"]
