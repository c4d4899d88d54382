"""Captures the library's log lines for tests."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from callboard.bus.log import ROOT


@contextmanager
def captured_logs() -> Iterator[list[dict[str, Any]]]:
    """The log lines of Callboard within the block: event, fields and `log_level`."""
    lines: list[dict[str, Any]] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append({**getattr(record, ROOT), "log_level": record.levelname.lower()})

    logger, keep = logging.getLogger(ROOT), Keep()
    level = logger.level
    logger.addHandler(keep)
    logger.setLevel(logging.DEBUG)
    try:
        yield lines
    finally:
        logger.setLevel(level)
        logger.removeHandler(keep)
