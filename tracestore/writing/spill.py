"""The place where events wait while the database can't take them: a file of JSON lines beside it.

Each writer has a file of its own, which it locks while it lives. So the file of a dead process can be told from
the file of a running one. The next start adopts the file of a dead process and writes its events into the store.
Lines are read back in their order. A torn last line, in which the process died, is skipped. It does no harm to
write the same event twice. So a file is removed only after all its events are committed.
"""

from __future__ import annotations

import errno
import math
import os
import time
from collections.abc import Sequence
from pathlib import Path

from callboard.bus.events.envelope import Envelope
from callboard.bus.log import Log

from ..codec import decode_line, encode_line
from ..sqlite.files import HeldFile, escaped, remove_quietly

_log = Log("tracestore.spill")

_READ_BYTES = 256 * 1024
_PEEK_BYTES = 4 * 1024 * 1024

_LOCK_ATTEMPTS = 20
_LOCK_PAUSE_SECONDS = 0.001
"""The time between two attempts to lock a file of one's own. A probe by a reader is shorter."""


class LineFile:
    """A private, locked file of lines, which is made with its first line. Its methods block, and raise OSError.

    `size` is the number of bytes in whole lines.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.size = 0
        self._file: HeldFile | None = None

    def append(self, data: bytes) -> None:
        """Append lines, all of them or none: by one write, as long as the disk takes it."""
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
        """Forget what was appended. One that somebody has taken away is made anew when the next lines come."""
        self.size = 0
        if self._file is not None:
            os.ftruncate(self._file.descriptor, 0)
            if not os.fstat(self._file.descriptor).st_nlink:
                self.close()

    def open(self) -> int:
        """Its descriptor."""
        if self._file is None:
            self._file = _locked(self.path)
            # Whatever isn't ours to read any more is cut off: an interrupted write, or a file of the same name.
            self.size = min(self.size, os.fstat(self._file.descriptor).st_size)
            os.ftruncate(self._file.descriptor, self.size)
        return self._file.descriptor

    def remove(self) -> None:
        """Delete the file, with whatever is in it."""
        self.size = 0
        self.close()
        remove_quietly(self.path)

    def close(self) -> None:
        """Close it, which gives up its lock. A file with something in it stays."""
        if self._file is not None:
            self._file.close()
            self._file = None
            if not self.size:
                remove_quietly(self.path)


def _locked(path: Path) -> HeldFile:
    """The file at a path with its lock on it, made if it is missing.

    A reader that looks for files of dead processes holds the lock for some microseconds, and may have removed the
    empty file before it was locked.
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

    `waiting` is the number of events that were appended and not taken off yet.
    """

    def __init__(self, path: Path, limit_bytes: int) -> None:
        self.path = path
        self.waiting = 0
        self._limit = limit_bytes
        self._file = LineFile(path)
        self._read_to = 0

    def append(self, envelopes: Sequence[Envelope]) -> int:
        """Append events and return how many fitted: all, or those up to the limit. Raises OSError."""
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
        """The next events, at most `limit`, and the number of bytes they take, for `discard`. Raises OSError.

        Of events with much content, fewer come at once.
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
        """Take off what `peek` returned. The file goes when nothing is left in it."""
        self._read_to += size
        self.waiting -= events
        if self._read_to >= self._file.size:
            self.waiting = 0
            self.remove()

    def remove(self) -> None:
        """Delete the file, with whatever is in it."""
        self._read_to = 0
        self._file.remove()

    def close(self) -> None:
        """Close the file, which gives up its lock. What is in it stays."""
        self._file.close()


def spill_path(database: Path, run_id: str) -> Path:
    """Where a run's writer keeps what the database can't take."""
    return database.with_name(f"{database.name}.spill-{run_id}.jsonl")


def journal_paths(spill: Path) -> tuple[Path, Path]:
    """The files in which a writer keeps copies of the events in its memory; see `tracestore.writing.journal`.

    Args:
        spill: The spill file of the writer.
    """
    first, second = (spill.with_name(f"{spill.name.removesuffix('.jsonl')}.{part}.jsonl") for part in "ab")
    return first, second


def is_unwritten(database: Path, run_id: str) -> bool:
    """Whether something of a run waits in its files to be written into the database."""
    spill = spill_path(database, run_id)
    return any(_size(path) for path in (spill, *journal_paths(spill)))


def leftovers(database: Path) -> list[Path]:
    """The files of writers that don't live any more, the oldest writer's first, and each one's in their order."""
    found = [path for path in waiting_files(database) if not _is_held(path)]
    oldest: dict[str, float] = {}
    for path in found:
        oldest[_run_of(path)] = min(_modified(path), oldest.get(_run_of(path), math.inf))
    return sorted(found, key=lambda path: (oldest[_run_of(path)], _run_of(path), _first_seq(path), path.name))


def waiting_files(database: Path) -> list[Path]:
    """The spill files and journals beside a database, of living and dead writers."""
    return list(database.parent.glob(f"{escaped(database.name)}.spill-*.jsonl"))


def sealed_files(database: Path) -> list[Path]:
    """The files with something in them that this process may not open. Their writers may live."""
    return [path for path in waiting_files(database) if _size(path) and not _may_open(path)]


def _may_open(path: Path) -> bool:
    try:
        _opened(path).close()
    except OSError:
        return not path.exists()
    return True


def _is_held(path: Path) -> bool:
    """Whether a process writes a file, or it can't be opened."""
    try:
        file = _opened(path)
    except OSError:
        return True
    try:
        return not file.try_lock(shared=True)
    finally:
        file.close()


def _opened(path: Path) -> HeldFile:
    """An existing file. On read-only media it can be locked as well. Raises OSError."""
    try:
        return HeldFile(path, os.O_RDWR)
    except FileNotFoundError:
        raise
    except OSError:
        return HeldFile(path, os.O_RDONLY)


def remove_leftover(path: Path) -> None:
    """Remove a file of a dead writer, after all that is in it was committed.

    Raises:
        OSError: The folder can't be written.
    """
    try:
        file = _opened(path)
    except FileNotFoundError:
        return
    try:
        # A writer that has just made the file holds no lock yet. It makes another if this one is gone.
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
    """Some events of a file.

    Args:
        path: The file.
        offset: The place in the file to begin at, in bytes.
        limit: The largest number of events.

    Returns:
        The events, and the offset behind them. At the end of the file the offset stays the same.
    """
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
