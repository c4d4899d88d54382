"""rich's console, for text that comes from anywhere."""

from __future__ import annotations

from typing import Any

from rich.console import Console

from .harmless import harmless


class HarmlessConsole(Console):
    """A console whose lines are harmless; tables and the like see to their cells."""

    def print(self, *objects: Any, **how: Any) -> None:
        super().print(*(harmless(what) if isinstance(what, str) else what for what in objects), **how)
