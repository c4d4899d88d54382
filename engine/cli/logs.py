"""What the library logs, for someone at a terminal: warnings only, one short line each, on stderr.

While a screen is being drawn the lines go to it instead, so that none lands in the middle of a reply.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import contextmanager
from typing import Any, TypeAlias

Sink: TypeAlias = Callable[[str], None]


def _to_stderr(line: str) -> None:
    print(line, file=sys.stderr)


_sinks: list[Sink] = [_to_stderr]


def configure() -> None:
    """Set up structlog and the standard library's logging for this process."""
    import structlog

    structlog.configure(
        processors=[structlog.processors.format_exc_info, _one_line],
        wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING),
        logger_factory=_Logger,
    )
    handler = logging.StreamHandler(_Stream())
    handler.setFormatter(logging.Formatter("%(levelname)s: %(name)s: %(message)s"))
    handler.setLevel(logging.WARNING)
    logging.getLogger().handlers[:] = [handler]


@contextmanager
def shown_by(sink: Sink) -> Iterator[None]:
    """Send log lines to `sink` for a while. It may be called from any thread."""
    _sinks.append(sink)
    try:
        yield
    finally:
        _sinks.remove(sink)


def _one_line(logger: Any, method: str, fields: MutableMapping[str, Any]) -> str:
    event = fields.pop("event", "")
    said = " ".join(f"{name}={value}" for name, value in fields.items())
    return f"{method}: {logger.name}: {event} {said}".rstrip()


class _Logger:
    """What structlog hands its finished lines to."""

    def __init__(self, name: str = "callboard", *rest: object) -> None:
        self.name = name

    def msg(self, line: str) -> None:
        _sinks[-1](line)

    debug = info = warning = error = critical = exception = msg


class _Stream:
    def write(self, text: str) -> None:
        if text.strip():
            _sinks[-1](text.rstrip())

    def flush(self) -> None:
        pass
