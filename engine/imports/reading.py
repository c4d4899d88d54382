"""Reads a source's files in chunks: finds the changed files, and reads their calls from the last position.

The reading runs in a worker thread, one chunk at a time, and writes nothing. A report counts calls and problems.

If the size, time or inode of a file has changed, the file is read from the last position. Before that, a hash
checks that all earlier bytes are unchanged. The hash covers the bytes that were actually read, so concurrent
writes do no harm.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import re
import stat
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple, cast

import msgspec

from callboard.tracestore.rows import ImportedFile

from ..stores import StoreAddress
from .source import (
    EARLIEST_US,
    LATEST_US,
    START,
    ImportedCall,
    ImportedLink,
    ImportedMessage,
    Item,
    Mark,
    ServerSource,
    Source,
    SourceFile,
    UnreadablePart,
)

CALLS_AT_ONCE: Final = 500
"""The maximum number of calls in one transaction."""
MESSAGES_AT_ONCE: Final = 50
"""The maximum number of messages in one transaction. A message may have some megabytes."""
FILES_AT_ONCE: Final = 500
"""The maximum number of read positions in one transaction."""
MOST_FAULTS: Final = 100
"""The maximum number of unreadable parts that a report lists. All of them are counted."""
_HEAD = 4096
WITH_CONTENT: Final = "+"
"""The prefix of a file's digest if its messages were read, too."""
_MOST_TOKENS = 2**40
_MOMENT = re.compile(rb'"timestamp"\s*:\s*"([0-9T:.+Z-]{10,40})"')
_BUFFER = 1024 * 1024
_HELD = 10
"""The number of buffers that are not yet in the hash. They cover the longest line and the next read."""


class ImportFault(msgspec.Struct, frozen=True):
    """A part of a file that could not be read."""

    path: str
    """The file."""
    line: int
    """The line, from 1; 0 for the whole file."""
    why: str
    """The reason, without any content of the file."""


class ImportedModel(msgspec.Struct, kw_only=True):
    """The calls of one model in an import."""

    calls: int = 0
    """The number of new calls."""
    input_tokens: int = 0
    """The input tokens of the imported calls, including cached tokens."""
    output_tokens: int = 0
    """The output tokens of the imported calls."""
    nano_usd: int = 0
    """The cost of the priced calls in nano-USD, at the prices of their time."""
    unpriced: int = 0
    """The calls without a cost."""


class ImportReport(msgspec.Struct, kw_only=True):
    """The result of an import."""

    source: str
    """The name of the source."""
    dry_run: bool = False
    """Whether nothing was written."""
    files: int = 0
    """The number of checked files."""
    unchanged: int = 0
    """The number of files that were not read, because they have not changed since the last import."""
    bytes_read: int = 0
    """The number of bytes read."""
    new: int = 0
    """The number of calls that are new to the trace."""
    known: int = 0
    """The number of calls that were already in the trace."""
    corrected: int = 0
    """The number of known calls for which the import found more tokens, or the tool call that started them."""
    skipped: int = 0
    """The number of calls before the `since` time."""
    unread: int = 0
    """The number of unreadable parts of files."""
    faults: list[ImportFault] = msgspec.field(default_factory=list)
    """The first unreadable parts, at most `MOST_FAULTS`."""
    models: dict[str, ImportedModel] = msgspec.field(default_factory=dict)
    """The new calls, by model."""

    @property
    def changed(self) -> bool:
        """Whether the import changed the trace."""
        return bool(self.new or self.corrected)

    def note(self, path: str, unread: UnreadablePart) -> None:
        """Count a part that could not be read."""
        self.unread += 1
        if len(self.faults) < MOST_FAULTS:
            self.faults.append(ImportFault(path, unread.line, unread.why))


def request_id(source: str, identity: str) -> str:
    """The request id of an imported call. It is the same in every trace."""
    return hashed("imp", source, identity)


def hashed(prefix: str, *parts: str | None) -> str:
    digest = hashlib.blake2b("\0".join(map(str, parts)).encode("utf-8", "replace"), digest_size=15)
    return f"{prefix}_{digest.hexdigest()}"


class Chunk:
    """Some calls by their request ids, each with its file, and the read positions of files."""

    def __init__(self) -> None:
        self.calls: dict[str, tuple[ImportedCall, str]] = {}
        self.messages: list[ImportedMessage] = []
        self.links: list[ImportedLink] = []
        self.read: dict[str, ImportedFile] = {}  # files that were read completely; only this process uses this
        self._files: dict[str, ImportedFile] = {}

    @property
    def files(self) -> list[ImportedFile]:
        return list(self._files.values())

    @property
    def is_full(self) -> bool:
        return (
            len(self.calls) >= CALLS_AT_ONCE
            or len(self._files) >= FILES_AT_ONCE
            or len(self.messages) >= MESSAGES_AT_ONCE
            or len(self.links) >= FILES_AT_ONCE
        )

    @property
    def is_empty(self) -> bool:
        return not (self.calls or self.messages or self.links or self.read or self._files)

    def take(self, item: Item, source: str, place: str, report: ImportReport, since: int | None) -> None:
        """Add an item of a file, or count it in the report. Marks are handled separately."""
        if isinstance(item, ImportedMessage):
            if since is None or item.at >= since:
                self.messages.append(item)
        elif isinstance(item, ImportedLink):
            self.links.append(item)
        elif isinstance(item, UnreadablePart):
            report.note(place, item)
        elif isinstance(item, ImportedCall):
            if not EARLIEST_US <= item.started_at < LATEST_US:
                report.note(place, UnreadablePart(line=item.line, why="the time is impossible"))
            elif item.usage is not None and item.usage.total_tokens >= _MOST_TOKENS:
                report.note(place, UnreadablePart(line=item.line, why="the number of tokens is impossible"))
            elif since is not None and item.started_at < since:
                report.skipped += 1
            else:
                report.known += self._add(request_id(source, item.identity), item, place)

    def _add(self, name: str, call: ImportedCall, place: str) -> bool:
        """Add a call. Returns whether the chunk already contained it."""
        before = self.calls.get(name)
        if before is None:
            self.calls[name] = call, place
        # The call's start is that of its first line, in any order of lines.
        elif before[0].revision < call.revision:
            began = min(before[0].started_at, call.started_at)
            self.calls[name] = msgspec.structs.replace(call, started_at=began), place
        return before is not None

    def mark(self, file: ImportedFile) -> None:
        self._files[file.path] = file


class Reading:
    """One pass over the files of a source, in chunks. It runs in a worker thread, one chunk at a time."""

    def __init__(
        self,
        source: Source,
        places: Iterable[Path | StoreAddress],
        read: dict[str, ImportedFile],
        report: ImportReport,
        *,
        content: bool,
        since: int | None,
    ) -> None:
        self._source = source
        self._places = places
        self._read = read
        self._report = report
        self._content = content
        self._since = since
        self._chunk = Chunk()
        self._steps = self._all()

    def chunk(self) -> Chunk | None:
        """The next chunk; None at the end."""
        for _ in self._steps:
            if self._chunk.is_full:
                break
        chunk, self._chunk = self._chunk, Chunk()
        return None if chunk.is_empty else chunk

    def _all(self) -> Iterator[None]:
        changed: list[tuple[str, int, str, SourceFile, _Status]] = []
        for file in self._found():
            self._report.files += 1
            try:
                status = _status(file.path)
            except OSError as error:
                self._report.note(str(file.path), UnreadablePart(line=0, why=error.strerror or "can't be read"))
                continue
            if status is None:
                self._report.note(str(file.path), UnreadablePart(line=0, why="not a regular file"))
                continue
            earlier = self._read.get(str(file.path))
            if self._has(earlier, status):
                self._report.unchanged += 1
                continue
            path = str(file.path)
            changed.append((_first_moment(path), status.mtime_ns, path, file, status))
        # The oldest file is read first: if a fork or a copy repeats a call, the call belongs to the session that
        # made it.
        for _, _, path, file, status in sorted(changed, key=lambda each: each[:3]):
            yield from self._file(path, file, status)
        for place in self._places:
            if isinstance(place, StoreAddress):
                yield from self._server(place)

    def _has(self, earlier: ImportedFile | None, status: _Status | None = None) -> bool:
        """Whether an earlier import has read the same data, perhaps without the content."""
        if earlier is None or (self._content and not earlier.digest.startswith(WITH_CONTENT)):
            return False
        return status is None or status == (earlier.size, earlier.mtime_ns, earlier.inode)

    def _found(self) -> Iterator[SourceFile]:
        for place in self._places:
            if isinstance(place, StoreAddress):
                continue
            if not place.exists():
                self._report.note(str(place), UnreadablePart(line=0, why="no such file or folder"))
                continue
            try:
                yield from self._source.files(place)
            except OSError as error:
                self._report.note(str(place), UnreadablePart(line=0, why=error.strerror or "can't be read"))

    def _file(self, path: str, file: SourceFile, status: _Status) -> Iterator[None]:
        earlier = self._read.get(path)
        skipped = self._report.skipped
        try:
            with _Hashed(path) as hashed, io.BufferedReader(hashed, _BUFFER) as stream:
                last = start = hashed.start(earlier if self._has(earlier) else None)
                for item in self._source.read(file, cast("BinaryIO", stream), start, content=self._content):
                    if isinstance(item, Mark):
                        last = item
                        if skipped == self._report.skipped:
                            self._chunk.mark(self._position(path, status, item, hashed, complete=False))
                    else:
                        self._chunk.take(item, self._source.name, path, self._report, self._since)
                    yield
                position = self._position(path, status, last, hashed, complete=True)
                self._report.bytes_read += max(0, stream.tell() - start.read_to)
        except OSError as error:
            self._report.note(path, UnreadablePart(line=0, why=error.strerror or "can't be read"))
            return
        except Exception as error:  # A faulty plugin or a malicious file must not end the import.
            self._report.note(path, UnreadablePart(line=0, why=f"the source failed with {type(error).__name__}"))
            return
        self._chunk.read[path] = position
        # If calls were skipped, a later import without `since` must read the file again.
        if skipped == self._report.skipped:
            self._chunk.mark(position)
            yield

    def _server(self, address: StoreAddress) -> Iterator[None]:
        """Read a database. Its name is the address without the password."""
        assert isinstance(self._source, ServerSource)
        path, skipped = str(address), self._report.skipped
        earlier = self._read.get(path)
        start = (
            Mark(state=earlier.state, line=earlier.line) if earlier is not None and self._has(earlier) else START
        )
        self._report.files += 1
        try:
            for item in self._source.read_server(address.dsn, start, content=self._content):
                if not isinstance(item, Mark):
                    self._chunk.take(item, self._source.name, path, self._report, self._since)
                elif skipped == self._report.skipped:
                    position = self._position(path, _Status(-1, 0, 0), item, None, complete=False)
                    self._chunk.mark(position)
                    self._chunk.read[path] = position
                yield
        except OSError as error:
            self._report.note(path, UnreadablePart(line=0, why=error.strerror or "can't be read"))

    def _position(
        self, path: str, status: _Status, mark: Mark, hashed: _Hashed | None, *, complete: bool
    ) -> ImportedFile:
        """The read position of a file. It includes the file's size and time only if the file was read
        completely.
        """
        prefix = WITH_CONTENT if self._content else ""
        return ImportedFile(
            source=self._source.name,
            path=path,
            size=status.size if complete else -1,
            mtime_ns=status.mtime_ns,
            inode=status.inode,
            read_to=mark.read_to,
            line=mark.line,
            digest=prefix if hashed is None else hashed.digest(mark.read_to, prefix),
            state=mark.state,
        )


class _Status(NamedTuple):
    """The properties that change when a file changes. In a database that is in use, only its log file changes."""

    size: int
    mtime_ns: int
    inode: int


def _status(path: Path) -> _Status | None:
    """The status of a file; None for anything but a regular file. Raises OSError."""
    found = os.stat(path)
    if not stat.S_ISREG(found.st_mode):
        return None
    size, changed = found.st_size, found.st_mtime_ns
    if path.suffix == ".db":
        with contextlib.suppress(OSError):
            log = os.stat(f"{path}-wal")
            size, changed = size + log.st_size, max(changed, log.st_mtime_ns)
    return _Status(size, changed, found.st_ino)


def _first_moment(path: str) -> str:
    """The first time in the first bytes of a file, used to sort files."""
    try:
        with open(path, "rb", buffering=0) as stream:
            found = _MOMENT.search(stream.read(_HEAD))
    except OSError:
        return ""
    return "" if found is None else found[1].decode()


class _Hashed(io.RawIOBase):
    """An open file with a hash of the bytes that were read from it."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self._file = io.FileIO(path)
        self._begin()

    def _begin(self) -> None:
        self._file.seek(0)
        self._hash = hashlib.sha256()
        self._to = 0  # the number of bytes that are in the hash
        self._unhashed: list[bytes] = []  # the bytes that are not in the hash yet

    def start(self, earlier: ImportedFile | None) -> Mark:
        """The position to read from: the end of the last reading, or the start of a rewritten file."""
        if earlier is None or not earlier.read_to or earlier.digest in ("", WITH_CONTENT):
            return START
        buffer = bytearray(_BUFFER)
        while (remaining := earlier.read_to - self._to) and (
            size := self._file.readinto(memoryview(buffer)[:remaining])
        ):
            self._hash.update(memoryview(buffer)[:size])
            self._to += size
        if self.digest(earlier.read_to) == earlier.digest.removeprefix(WITH_CONTENT):
            return Mark(read_to=earlier.read_to, line=earlier.line, state=earlier.state)
        self._begin()
        return START

    def digest(self, read_to: int, prefix: str = "") -> str:
        """The hash of the bytes up to a position. If the source did not read in order, only the prefix."""
        while self._unhashed and self._to + len(self._unhashed[0]) <= read_to:
            self._fold()
        rest = read_to - self._to
        if not 0 <= rest <= sum(map(len, self._unhashed)):
            return prefix
        found = self._hash.copy()
        if rest:
            found.update(memoryview(self._unhashed[0])[:rest])
        return prefix + found.hexdigest()[:32]

    def _fold(self) -> None:
        data = self._unhashed.pop(0)
        self._hash.update(data)
        self._to += len(data)

    def readinto(self, buffer: Any) -> int | None:
        size = self._file.readinto(buffer)
        if size:
            self._unhashed.append(bytes(memoryview(buffer)[:size]))
            if len(self._unhashed) > _HELD:
                self._fold()
        return size

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        place = self._file.tell()
        found = self._file.seek(offset, whence)
        if found != place:  # parts that are read out of order are not in the hash
            self._to, self._unhashed = sys.maxsize, []
        return found

    def tell(self) -> int:
        return self._file.tell()

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def close(self) -> None:
        self._file.close()
        super().close()
