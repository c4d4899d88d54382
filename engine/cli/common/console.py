"""rich's console, for text that comes from anywhere."""

from __future__ import annotations

from typing import Any

from rich.console import Console

from .harmless import harmless


class HarmlessConsole(Console):
    """A console that writes lines without harmful characters. Tables clean their own cells."""

    def print(self, *objects: Any, **how: Any) -> None:
        super().print(*(harmless(what) if isinstance(what, str) else what for what in objects), **how)

    def on_broken_pipe(self) -> None:
        """Raise BrokenPipeError, which ends the command. rich itself would exit with code 1."""
        raise
