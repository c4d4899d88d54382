"""What the library logs, for someone at a terminal: warnings only, one short line each, on stderr.

While a screen is being drawn the lines go to it instead, so that none lands in the middle of a reply.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeAlias

from .harmless import note

Sink: TypeAlias = Callable[[str], None]

_sinks: list[Sink] = [note]


def configure() -> None:
    """Set up the logging of this process, which is the command's own."""
    root = logging.getLogger()
    if not any(isinstance(there, _Lines) for there in root.handlers):
        root.addHandler(_Lines(logging.WARNING))


@contextmanager
def shown_by(sink: Sink) -> Iterator[None]:
    """Send log lines to `sink` for a while. It may be called from any thread."""
    _sinks.append(sink)
    try:
        yield
    finally:
        _sinks.remove(sink)


class _Lines(logging.Handler):
    """Shows each record in one line, without its traceback."""

    def emit(self, record: logging.LogRecord) -> None:
        if _is_wrong_configuration(record):
            return
        try:
            text = f"{record.levelname.lower()}: {record.name.removeprefix('callboard.')}: {record.getMessage()}"
            _sinks[-1](text)
        except Exception:  # a closed stderr, or arguments that don't fit; the command goes on
            self.handleError(record)


def _is_wrong_configuration(record: logging.LogRecord) -> bool:
    """Whether an actor could not start as it is configured. The command fails by the same error, and says it."""
    fields = getattr(record, "callboard", {})
    return fields.get("event") == "actor.crashed" and fields.get("error", "").startswith("ConfigurationError: ")
