"""Structured logging, imported when the first line is written.

Log lines are structlog events with fields; each module logs under its own name. Nothing on the path of a
single delta logs.
"""

from __future__ import annotations

import contextlib
from typing import Any, cast


class Log:
    """A lazy structlog logger: `log = Log("adapters.retry")`, then `log.warning("event", field=1)`."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._logger: Any = None

    def _bound(self) -> Any:
        if self._logger is None:
            import structlog

            self._logger = cast("Any", structlog.get_logger(self._name))
        return self._logger

    def debug(self, event: str, **fields: object) -> None:
        """Of use to who looks for a fault."""
        self._say("debug", event, fields)

    def info(self, event: str, **fields: object) -> None:
        """Of use to who runs it."""
        self._say("info", event, fields)

    def warning(self, event: str, **fields: object) -> None:
        """Something is not as it should be, and was dealt with."""
        self._say("warning", event, fields)

    def error(self, event: str, **fields: object) -> None:
        """Something has failed."""
        self._say("error", event, fields)

    def _say(self, level: str, event: str, fields: dict[str, object]) -> None:
        # a host's logging that fails must not take a supervisor or a call down with it
        with contextlib.suppress(Exception):
            getattr(self._bound(), level)(event, **fields)
