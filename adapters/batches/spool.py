"""The replies of a batch as they were downloaded: in memory as long as they are few, then in a temporary file."""

from __future__ import annotations

import tempfile
import weakref
from typing import NamedTuple

from .wire import BatchLine

MOST_IN_MEMORY = 32 * 1024 * 1024
"""So many bytes of replies stay in memory."""


class _Place(NamedTuple):
    start: int
    size: int


class Spool:
    """The lines of results, by the ids of their requests. The first line of a request stands."""

    def __init__(self) -> None:
        self._file = tempfile.SpooledTemporaryFile(max_size=MOST_IN_MEMORY)  # noqa: SIM115 (closed with the spool)
        weakref.finalize(self, self._file.close)
        self._lines: dict[str, BatchLine | _Place] = {}
        self._end = 0
        self.replies = 0
        """The number of lines that are no errors."""

    def __len__(self) -> int:
        return len(self._lines)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._lines

    def add(self, line: BatchLine) -> None:
        """Keep a line, unless there is one of its request."""
        if line.id in self._lines:
            return
        self.replies += line.error is None
        if line.reply is None:
            self._lines[line.id] = line
            return
        self._file.seek(self._end)
        self._file.write(line.reply)
        self._lines[line.id] = _Place(self._end, len(line.reply))
        self._end += len(line.reply)

    def get(self, request_id: str) -> BatchLine | None:
        """The line of a request; None if none came."""
        kept = self._lines.get(request_id)
        if not isinstance(kept, _Place):
            return kept
        self._file.seek(kept.start)
        return BatchLine(request_id, self._file.read(kept.size))
