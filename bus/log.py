"""Log lines with fields, for the standard library's `logging`.

Every module logs under its own name below `callboard`. structlog puts the lines together; it is imported when the
first line is written, and the host's own configuration of it neither has an effect here nor is changed. Nothing is
written to a stream: without a handler of the host's, a line goes nowhere. Nothing on the path of a single delta
logs.
"""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Mapping, MutableMapping
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from structlog.stdlib import BoundLogger


ROOT = "callboard"
"""The logger above all of ours, and the attribute of a `logging.LogRecord` with a line's event and fields."""

LoggerCall: TypeAlias = tuple[tuple[object, ...], dict[str, object]]

_CALLER = 6  # the frame that logs, as `logging` counts: behind three of structlog and two of this module

logging.getLogger(ROOT).addHandler(logging.NullHandler())  # else a warning that nobody wants goes to stderr


class Log:
    """A lazy logger: `log = Log("adapters.retry")`, then `log.warning("event", field=1)`.

    An exception given as `raised` adds its traceback to the line.

    Args:
        name: The logger's name below ``callboard``.
    """

    def __init__(self, name: str) -> None:
        self._logger = logging.getLogger(f"{ROOT}.{name}")
        self._bound: BoundLogger | None = None

    def debug(self, event: str, /, **fields: object) -> None:
        """Log a line for somebody who looks for a fault."""
        self._say(logging.DEBUG, event, fields)

    def info(self, event: str, /, **fields: object) -> None:
        """Log a line for somebody who runs the program."""
        self._say(logging.INFO, event, fields)

    def warning(self, event: str, raised: BaseException | None = None, /, **fields: object) -> None:
        """Log that something is not as it should be, and was dealt with."""
        self._say(logging.WARNING, event, fields, raised)

    def error(self, event: str, raised: BaseException | None = None, /, **fields: object) -> None:
        """Log that something has failed."""
        self._say(logging.ERROR, event, fields, raised)

    def _say(
        self, level: int, event: str, fields: Mapping[str, object], raised: BaseException | None = None
    ) -> None:
        # a host's logging that fails must not take a supervisor or a call down with it
        with contextlib.suppress(Exception):
            if self._logger.isEnabledFor(level):
                if self._bound is None:
                    self._bound = _bind(self._logger)
                self._bound.bind(**fields, exc_info=raised).log(level, event)


def _bind(logger: logging.Logger) -> BoundLogger:
    """structlog over one logger of the standard library, whatever structlog is configured to do elsewhere."""
    from structlog.stdlib import BoundLogger

    return BoundLogger(logger, processors=[_for_logging], context={})


def _for_logging(logger: logging.Logger, method: str, line: MutableMapping[str, Any]) -> LoggerCall:
    """A line as the standard library takes it: words for people, and the fields beside them for programs."""
    exc_info = line.pop("exc_info", None)
    event = line["event"]
    words = " ".join([str(event), *(f"{name}={value!r}" for name, value in line.items() if name != "event")])
    return (words,), {"exc_info": exc_info, "stacklevel": _CALLER, "extra": {ROOT: dict(line)}}


def current_trace() -> str | None:
    """The host's current span; None if there is none, or if the host doesn't use OpenTelemetry."""
    trace = sys.modules.get("opentelemetry.trace")  # never imported by us: without it there is no current span
    if trace is None:
        return None
    context = trace.get_current_span().get_span_context()
    if not context.is_valid:
        return None
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"
