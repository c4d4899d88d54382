"""rich's console, for text that comes from anywhere."""

from __future__ import annotations

from typing import Any, NoReturn

from rich.console import Console

from .harmless import harmless


class HarmlessConsole(Console):
    """A console that writes lines without harmful characters. Tables clean their own cells."""

    def print(self, *objects: Any, **how: Any) -> None:
        super().print(*(harmless(what) if isinstance(what, str) else what for what in objects), **how)

    def on_broken_pipe(self) -> NoReturn:
        """Raise the BrokenPipeError that rich caught.

        rich itself exits with 1. The command line exits with 141, as for output that is no table.
        """
        raise  # rich calls this while it handles the BrokenPipeError
