"""A bar on stderr that shows how far something is."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from .screen import color_system, make_console

if TYPE_CHECKING:
    from rich.progress import Progress


@contextmanager
def progress_bar() -> Iterator[Progress | None]:
    """A bar for as long as the context lasts; None if stderr is no terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    make_console()  # says what is missing, if rich is
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True, color_system=color_system()), transient=True) as bar:
        yield bar
