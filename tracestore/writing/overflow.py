"""The spill file: events as JSON lines next to the database, while the database can't store them.

Each writer has its own file, and holds a lock on it. A file without a lock belongs to a dead process. The next
writer adopts it when it starts: it writes the events into the store. Lines are read back in order. If the process
died during a write, the torn last line is skipped. Writing an event twice is harmless, so a file is removed only
after all its events are committed.
"""

from __future__ import annotations

import contextlib
import errno
import math
import os
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import anyio.to_thread
import msgspec

from callboard.bus.errors import StoreError
from callboard.bus.events import Envelope
from callboard.bus.log import Log

from ..codec import decode_line, encode_line
from ..sqlite.files import HeldFile, escaped, remove_quietly

_log = Log("tracestore.spill")

_READ_BYTES = 256 * 1024
_PEEK_BYTES = 4 * 1024 * 1024

_LOCK_ATTEMPTS = 20
_LOCK_PAUSE_SECONDS = 0.001
"""Seconds between two attempts to lock the writer's own file. A reader holds the lock for a shorter time."""


class LineFile:
    """A private, locked file of lines, created with the first line. The methods block, and raise OSError.

    `size` is the number of bytes in whole lines.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.size = 0
        self._file: HeldFile | None = None

    def append(self, data: bytes) -> None:
        """Append all lines with one write. If the disk is full, append none."""
        descriptor, at, end = self.open(), self.size, self.size + len(data)
        try:
            at += os.pwrite(descriptor, data, at)
            while at < end:
                at += os.pwrite(descriptor, memoryview(data)[at - end :], at)
        except OSError:
            os.ftruncate(descriptor, self.size)
            raise
        self.size = end

    def empty(self) -> None:
        """Drop all lines. If another process has removed the file, the next lines create it again."""
        self.size = 0
        if self._file is not None:
            os.ftruncate(self._file.descriptor, 0)
            if not os.fstat(self._file.descriptor).st_nlink:
                self.close()

    def open(self) -> int:
        if self._file is None:
            self._file = _locked(self.path)
            # Remove data that this writer did not write completely: an interrupted write, or an older file of the
            # same name.
            self.size = min(self.size, os.fstat(self._file.descriptor).st_size)
            os.ftruncate(self._file.descriptor, self.size)
        return self._file.descriptor

    def remove(self) -> None:
        self.size = 0
        self.close()
        remove_quietly(self.path)

    def close(self) -> None:
        """Close the file, which releases its lock. A non-empty file is kept."""
        if self._file is not None:
            self._file.close()
            self._file = None
            if not self.size:
                remove_quietly(self.path)


def _locked(path: Path) -> HeldFile:
    """Create the file at a path if it is missing, and lock it.

    A reader that searches for files of dead processes holds the lock for some microseconds. Then the reader may
    remove the empty file before this function locks the file.
    """
    for attempt in range(_LOCK_ATTEMPTS):
        file = HeldFile(path, os.O_RDWR | os.O_CREAT)
        locked = file.try_lock()
        if locked and file.is_at(path):
            return file
        file.close()
        if attempt and not locked:
            time.sleep(_LOCK_PAUSE_SECONDS)
    raise OSError(errno.EBUSY, "another process holds its lock", str(path))


class SpillFile:
    """A first-in, first-out queue of events on disk, of at most `limit_bytes`. Its methods block; call them in a
    thread.

    `waiting` is the number of events that were appended and not yet discarded.
    """

    def __init__(self, path: Path, limit_bytes: int) -> None:
        self.path = path
        self.waiting = 0
        self._limit = limit_bytes
        self._file = LineFile(path)
        self._read_to = 0

    def append(self, envelopes: Sequence[Envelope]) -> int:
        """Append events up to the limit, and return their number. Raises OSError."""
        self._file.open()
        lines: list[bytes] = []
        size = self._file.size
        for envelope in envelopes:
            line = encode_line(envelope)
            if size + len(line) > self._limit:
                break
            size += len(line)
            lines.append(line)
        self._file.append(b"".join(lines))
        self.waiting += len(lines)
        return len(lines)

    def peek(self, limit: int) -> tuple[list[Envelope], int]:
        """Return the next events and their size in bytes, for `discard`. Raises OSError. The number of events is
        at most `limit`, and lower if they have much content.
        """
        descriptor = self._file.open()
        parts: list[bytes] = []
        lines_read, at, size = 0, self._read_to, self._file.size
        while ((lines_read < limit and at - self._read_to < _PEEK_BYTES) or not lines_read) and at < size:
            part = os.pread(descriptor, min(_READ_BYTES, size - at), at)
            if not part:
                break
            parts.append(part)
            lines_read += part.count(b"\n")
            at += len(part)
        lines = [line + b"\n" for line in b"".join(parts).split(b"\n")[:-1]][:limit]
        return _decoded(lines, self.path), sum(map(len, lines))

    def discard(self, events: int, size: int) -> None:
        """Remove the events that `peek` returned. An empty file is deleted."""
        self._read_to += size
        self.waiting -= events
        if self._read_to >= self._file.size:
            self.waiting = 0
            self.remove()

    def remove(self) -> None:
        self._read_to = 0
        self._file.remove()

    def close(self) -> None:
        """Close the file and release its lock, but keep its lines."""
        self._file.close()


def spill_path(database: Path, run_id: str) -> Path:
    return database.with_name(f"{database.name}.spill-{run_id}.jsonl")


def journal_paths(spill: Path) -> tuple[Path, Path]:
    """The paths of a writer's two journal files; see `tracestore.writing.journal`."""
    first, second = (spill.with_name(f"{spill.name.removesuffix('.jsonl')}.{part}.jsonl") for part in "ab")
    return first, second


def is_unwritten(database: Path, run_id: str) -> bool:
    """Whether files of a run contain events that are not in the database."""
    spill = spill_path(database, run_id)
    return any(_size(path) for path in (spill, *journal_paths(spill)))


def leftovers(database: Path) -> list[Path]:
    """The files of stopped writers, the oldest writer's first, and each writer's files in order."""
    found = [path for path in waiting_files(database) if not _is_held(path)]
    oldest: dict[str, float] = {}
    for path in found:
        oldest[_run_of(path)] = min(_modified(path), oldest.get(_run_of(path), math.inf))
    return sorted(found, key=lambda path: (oldest[_run_of(path)], _run_of(path), _first_seq(path), path.name))


def waiting_files(database: Path) -> list[Path]:
    """The spill files and journals next to a database, of running and dead writers."""
    return list(database.parent.glob(f"{escaped(database.name)}.spill-*.jsonl"))


def sealed_files(database: Path) -> list[Path]:
    """Non-empty files that this process may not open. Their writers may be running."""
    return [path for path in waiting_files(database) if _size(path) and not _may_open(path)]


def _may_open(path: Path) -> bool:
    try:
        _opened(path).close()
    except OSError:
        return not path.exists()
    return True


def _is_held(path: Path) -> bool:
    """Whether another process has locked a file, or the file can't be opened."""
    try:
        file = _opened(path)
    except OSError:
        return True
    try:
        return not file.try_lock(shared=True)
    finally:
        file.close()


def _opened(path: Path) -> HeldFile:
    """Open an existing file. Even a file on read-only media can be locked. Raises OSError."""
    try:
        return HeldFile(path, os.O_RDWR)
    except FileNotFoundError:
        raise
    except OSError:
        return HeldFile(path, os.O_RDONLY)


def remove_leftover(path: Path) -> None:
    """Remove a file of a dead writer, after all its events were committed."""
    try:
        file = _opened(path)
    except FileNotFoundError:
        return
    try:
        # A writer may have just created the file and not locked it yet. If the file is removed, the writer creates
        # another one.
        if file.try_lock():
            path.unlink(missing_ok=True)
    finally:
        file.close()


def _run_of(path: Path) -> str:
    return path.name.rpartition(".spill-")[2].split(".")[0]


def _first_seq(path: Path) -> int:
    try:
        envelopes, _ = read_leftover(path, 0, 1)
    except OSError:
        return 0
    return envelopes[0].seq if envelopes else 0


def read_leftover(path: Path, offset: int, limit: int) -> tuple[list[Envelope], int]:
    """Read some events of a file, starting at a byte offset."""
    lines, size = [], 0
    with open(path, "rb") as file:
        file.seek(offset)
        for _ in range(limit):
            line = file.readline()
            if not line:
                break
            lines.append(line)
            size += len(line)
            if size >= _PEEK_BYTES:
                break
    return _decoded(lines, path), offset + size


def _decoded(lines: Sequence[bytes], path: Path) -> list[Envelope]:
    envelopes = []
    for line in lines:
        try:
            envelopes.append(decode_line(line))
        except ValueError as error:
            _log.warning("torn_line", file=str(path), error=str(error))
    return envelopes


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _modified(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


# --- Adopting leftover files ---


_writer_log = Log("tracestore.writer")

BATCH_EVENTS = 256
"""The number of events that a reader or a command stores in one transaction."""


async def adopt_leftovers(
    database: Path,
    write: Callable[[Sequence[Envelope]], Awaitable[None]],
    *,
    own_path: Path | None,
    batch_events: int,
) -> bool:
    """Write the events of spill files that dead processes left next to a database. Remove each file after that."""
    for path in await anyio.to_thread.run_sync(leftovers, database):
        if path == own_path:
            continue
        try:
            offset = events = 0
            while True:
                try:
                    batch, end = await anyio.to_thread.run_sync(read_leftover, path, offset, batch_events)
                except FileNotFoundError:
                    break  # another process is adopting the file and removes it when all events are written
                if end == offset:
                    break
                await write(batch)
                offset, events = end, events + len(batch)
            await anyio.to_thread.run_sync(remove_leftover, path)
            _writer_log.info("spill_adopted", file=str(path), events=events)
        except (StoreError, OSError) as error:
            _writer_log.warning("spill_not_adopted", file=str(path), error=str(error))
            return False
    return True


class LateEvents(msgspec.Struct, frozen=True):
    """The events of dead processes that a reader could not show."""

    events: int = 0
    """The number of events that could be counted."""
    files: tuple[Path, ...] = ()
    """The files of the events. The events of a file that may not be opened are not counted."""

    def __bool__(self) -> bool:
        return bool(self.files)


NOTHING_WAITS = LateEvents()


async def waiting_events(database: Path) -> LateEvents:
    """The events of dead processes that wait next to a trace, and their files."""

    def count() -> LateEvents:
        files = leftovers(database)
        return LateEvents(sum(map(_events_in, files)), (*files, *sealed_files(database)))

    return await anyio.to_thread.run_sync(count)


def _events_in(path: Path) -> int:
    with contextlib.suppress(OSError), path.open("rb") as lines:
        return sum(line.endswith(b"\n") for line in lines)
    return 0


def warn_of(waiting: LateEvents, why: str) -> None:
    """Log the number of events that a reader doesn't show, and their files."""
    _writer_log.warning(
        "late_events_not_shown",
        events=waiting.events,
        files=[str(path) for path in waiting.files],
        why=why,
        note="the next engine that starts on this trace stores them",
    )


def left_over(waiting: LateEvents) -> StoreError:
    """The error for a deletion that would miss events in files next to a trace."""
    files = ", ".join(str(path) for path in waiting.files)
    return StoreError(
        f"nothing was deleted: {files} may have content of crashed processes and can't be stored now. "
        f"Make the files and the trace writable, and try again"
    )
