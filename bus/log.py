"""Log lines with fields for the standard library's `logging`, and warnings about renamed names.

Every module logs under its own name below `callboard`. structlog formats the lines. It is imported when the first
line is logged. The host's configuration of structlog has no effect. If the host has no log handler, lines are
dropped. Code that runs for each delta does not log. An old public name still works, with a DeprecationWarning at
the caller's line.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import sys
import warnings
from collections.abc import Callable, Mapping, MutableMapping
from typing import TYPE_CHECKING, Any, ParamSpec, TypeAlias, TypeVar

if TYPE_CHECKING:
    from structlog.stdlib import BoundLogger


P = ParamSpec("P")
R = TypeVar("R")

TIME_LIMITS = {"timeout_seconds": "timeout", "timeout_s": "timeout", "call_timeout_seconds": "call_timeout"}
"""The old names of time-limit arguments, each with its new name. The arguments are in seconds."""


def with_new_names(arguments: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """Replace old argument names by the new ones, with a warning. Raises TypeError if both are given."""
    found = {name: value for name, value in arguments.items() if name not in names}
    for old in arguments.keys() & names.keys():
        new = names[old]
        if new in arguments:
            raise TypeError(f"{old}= and {new}= are the same argument: pass {new}= only")
        warn_of_old_name(f"{old}= is deprecated: use {new}=")
        found[new] = arguments[old]
    return found


def warn_of_old_name(text: str) -> None:
    """Issue a DeprecationWarning at the caller's line outside this library."""
    room = (__package__ or "engine").partition(".")[0]
    level, frame = 1, sys._getframe(0)
    while frame.f_back is not None and str(frame.f_globals.get("__name__", "")).partition(".")[0] == room:
        level, frame = level + 1, frame.f_back
    warnings.warn(text, DeprecationWarning, stacklevel=level)


def takes_old_names(**names: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorator: accept keyword arguments under their old names, with a warning."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(function)
        def renaming(*args: P.args, **kwargs: P.kwargs) -> R:
            if names.keys() & kwargs.keys():
                return function(*args, **with_new_names(kwargs, names))
            return function(*args, **kwargs)

        return renaming

    return decorate


ROOT = "callboard"
"""The name of the root logger, and the attribute of a `logging.LogRecord` with a line's event and fields."""

LoggerCall: TypeAlias = tuple[tuple[object, ...], dict[str, object]]

# the stack level of the caller's frame; the frames above it are three of structlog and two of this module
_CALLER = 6

logging.getLogger(ROOT).addHandler(logging.NullHandler())  # prevents Python's default output to stderr


class Log:
    """A lazy logger: `log = Log("adapters.retry")`, then `log.warning("event", field=1)`.

    The argument `raised` takes an exception and adds its traceback.

    Args:
        name: The logger's name below ``callboard``.
    """

    def __init__(self, name: str) -> None:
        self._logger = logging.getLogger(f"{ROOT}.{name}")
        self._bound: BoundLogger | None = None

    def debug(self, event: str, /, **fields: object) -> None:
        """Log a detail for debugging."""
        self._say(logging.DEBUG, event, fields)

    def info(self, event: str, /, **fields: object) -> None:
        """Log an event for the operator."""
        self._say(logging.INFO, event, fields)

    def warning(self, event: str, raised: BaseException | None = None, /, **fields: object) -> None:
        """Log a problem that was handled."""
        self._say(logging.WARNING, event, fields, raised)

    def error(self, event: str, raised: BaseException | None = None, /, **fields: object) -> None:
        """Log a failure."""
        self._say(logging.ERROR, event, fields, raised)

    def _say(
        self, level: int, event: str, fields: Mapping[str, object], raised: BaseException | None = None
    ) -> None:
        # A host's logging that fails must not end a supervisor or a call.
        with contextlib.suppress(Exception):
            if self._logger.isEnabledFor(level):
                if self._bound is None:
                    self._bound = _bind(self._logger)
                self._bound.bind(**fields, exc_info=raised).log(level, event)


def _bind(logger: logging.Logger) -> BoundLogger:
    """Bind structlog to a standard logger, independent of structlog's global configuration."""
    from structlog.stdlib import BoundLogger

    return BoundLogger(logger, processors=[_for_logging], context={})


def _for_logging(logger: logging.Logger, method: str, line: MutableMapping[str, Any]) -> LoggerCall:
    """Convert a line for the standard library: a message for people, and fields for programs."""
    exc_info = line.pop("exc_info", None)
    event = line["event"]
    words = " ".join([str(event), *(f"{name}={value!r}" for name, value in line.items() if name != "event")])
    return (words,), {"exc_info": exc_info, "stacklevel": _CALLER, "extra": {ROOT: dict(line)}}
