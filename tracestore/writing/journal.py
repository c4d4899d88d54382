"""Events that wait in memory for the store, and the journal that contains copies of them."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

import anyio

from callboard.bus.events import Envelope
from callboard.bus.events.sessions import SessionMessageAppended
from callboard.bus.log import Log
from callboard.bus.streams.events import weigh_content

from ..codec import encode_lines
from .overflow import LineFile

EVENT_BYTES = 1024
"""The approximate size of an event without its content, in bytes."""


class Waiting:
    """Events that wait to be stored, first in, first out.

    `size` is the approximate memory of the events in bytes, including the messages that they refer to.
    """

    def __init__(self) -> None:
        self.size = 0
        self._events: deque[Envelope] = deque()

    def __len__(self) -> int:
        return len(self._events)

    def exceeds(self, events: int, size: int) -> bool:
        """Whether the waiting events exceed a number or a size in bytes. An empty queue never does."""
        return bool(self._events) and (len(self._events) > events or self.size > size)

    def add(self, envelopes: Sequence[Envelope]) -> None:
        self._events.extend(envelopes)
        self.size += _weigh(envelopes)

    def first(self, limit: int | None = None) -> list[Envelope]:
        """Return the oldest events without removing them."""
        return list(islice(self._events, limit))

    def after(self, oldest: int, limit: int) -> list[Envelope]:
        """Return waiting events after the first `oldest` events, without removing them."""
        # indexing a deque is fast near its ends; islice would iterate over the oldest events
        events = self._events
        return [events[at] for at in range(oldest, min(len(events), oldest + limit))]

    def remove(self, oldest: Sequence[Envelope]) -> None:
        """Remove the oldest events, all or some of the result of `first`."""
        for _ in oldest:
            self._events.popleft()
        self.size = self.size - _weigh(oldest) if self._events else 0

    def drop_newest(self) -> Envelope:
        newest = self._events.pop()
        self.size -= _weigh([newest])
        return newest


def _weigh(envelopes: Sequence[Envelope]) -> int:
    size = EVENT_BYTES * len(envelopes)
    for envelope in envelopes:
        if isinstance(event := envelope.data, SessionMessageAppended):
            size += weigh_content(event.message.content)
    return size


# --- The journal ---
#
# The journal contains copies of the events that wait in memory, so that they survive the end of the process.
# Events of a tenth of a second share a commit, but a reply must be returned immediately. So the events up to a
# reply are first written to a file of JSON lines next to the database. The system keeps such a write in its page
# cache. The write is cheap, and survives the end of the process, but not a crash of the machine. When a file is
# adopted, some of its events may already be stored, which is harmless.
#
# Two files are used alternately. While a batch is committed, copies of later events are written to the other file,
# and the first file is emptied after the commit. So the journal does not keep events that may later be deleted
# from the store.


_log = Log("tracestore.journal")

_COPIED_AT_ONCE = 64
"""The number of events that are copied before other tasks run: about half a millisecond."""

_RETRY_SECONDS = 1.0
"""Seconds before a file that couldn't be written is tried again. Calls continue in the meantime."""


class JournalFull(OSError):
    """The journal has no room, because too many of its events were never committed."""


class _Part:
    def __init__(self, path: Path) -> None:
        self.file = LineFile(path)
        self.events = 0
        """The number of events in the file that still wait for the store."""


class Journal:
    """The copies of one writer's events. Each operation blocks for one small write."""

    def __init__(self, paths: tuple[Path, Path], limit_bytes: int) -> None:
        self.error: str | None = None
        """The reason why the journal can't be written now; None if it can."""
        self._older, self._newer = _Part(paths[0]), _Part(paths[1])
        self._limit = limit_bytes
        self._retry_at = 0.0

    @property
    def copied(self) -> int:
        """The number of waiting events, counted from the oldest, that are in the journal."""
        return self._older.events + self._newer.events

    def copy(self, waiting: Waiting) -> None:
        """Copy waiting events that aren't copied yet. If that fails, `error` is set."""
        if self.error is not None and anyio.current_time() < self._retry_at:
            return
        try:
            self._append(waiting.after(self.copied, _COPIED_AT_ONCE))
        except OSError as error:
            self._fail(error)
        else:
            self.error = None

    def _append(self, envelopes: Sequence[Envelope]) -> None:
        data = encode_lines(envelopes)
        if self._older.file.size + self._newer.file.size + len(data) > self._limit:
            raise JournalFull(f"{self._limit:,} bytes in it are not committed yet")
        if data:
            self._newer.file.append(data)
            self._newer.events += len(envelopes)

    def _fail(self, error: OSError) -> None:
        self._retry_at = anyio.current_time() + _RETRY_SECONDS
        if self.error is None:
            _log.warning("journal_not_written", file=str(self._newer.file.path), error=str(error))
        self.error = f"{self._newer.file.path} can't be written: {error.strerror or error}"

    def turn(self) -> None:
        """Write new events to the other file, if no waiting event is in that file."""
        if not self._older.events and self._newer.events:
            self._older, self._newer = self._newer, self._older

    def forget(self, events: int) -> None:
        """Remove the oldest waiting events, because they are committed or spilled."""
        for part in (self._older, self._newer):
            gone = min(events, part.events)
            part.events -= gone
            events -= gone
            if not part.events and part.file.size:
                # On failure, the events are later stored twice, which is harmless.
                with contextlib.suppress(OSError):
                    part.file.empty()

    def keep(self, events: int) -> None:
        """Keep only this number of events, because newer events were dropped."""
        self._newer.events = max(0, min(self._newer.events, events - self._older.events))
        self._older.events = min(self._older.events, events)

    def close(self) -> None:
        """Close both files. A file without waiting events is deleted."""
        for part in (self._older, self._newer):
            if not part.events:
                part.file.size = 0
            part.file.close()
