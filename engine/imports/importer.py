"""Calls that other programs recorded, in the trace of this one.

Files are read in chunks of some hundred calls. Each is written in one transaction, together with how far its files
were read. A call has an identity in its source, and the trace keeps a ledger of identities. So a call is stored
once, from whichever file comes first, and no matter how often, by how many importers, or after which kill.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple

import anyio
import anyio.to_thread
import msgspec

from callboard.bus.clock import SYSTEM_CLOCK, Clock, to_us
from callboard.bus.errors import StoreError
from callboard.bus.events.calls import LlmCallImported
from callboard.bus.events.envelope import Envelope, Event
from callboard.bus.events.sessions import SessionCreated
from callboard.bus.values.usage import Cost, CostSource
from callboard.tracestore import PriceTable, Store
from callboard.tracestore.rows import Imported, ImportedFile, Revision

from .source import EARLIEST_US, LATEST_US, START, ImportedCall, Mark, Source, SourceFile, Unread, source_named

CALLS_AT_ONCE: Final = 500
"""Calls that are written in one transaction."""
FILES_AT_ONCE: Final = 500
"""Marks that are written in one transaction."""
MOST_FAULTS: Final = 100
"""Unread parts that a report lists. All of them are counted."""
_EDGE = 4096
_MOMENT = re.compile(rb'"timestamp"\s*:\s*"([0-9T:.+Z-]{10,40})"')
_BUFFER = 1024 * 1024
_TRIES = 50


class ImportFault(msgspec.Struct, frozen=True):
    """A part of a file that could not be read."""

    path: str
    """The file."""
    line: int
    """The line, from 1; 0 for the whole file."""
    why: str
    """The reason, without any content of the file."""


class ImportedModel(msgspec.Struct, kw_only=True):
    """What an import found of one model."""

    calls: int = 0
    """New calls."""
    input_tokens: int = 0
    """Their input tokens, cached ones included."""
    output_tokens: int = 0
    """Their output tokens."""
    nano_usd: int = 0
    """Their cost at call time in nano-USD, of the calls that have one."""
    unpriced: int = 0
    """The calls without a cost."""


class ImportReport(msgspec.Struct, kw_only=True):
    """What an import did."""

    source: str
    """The name of the source."""
    dry_run: bool = False
    """Whether nothing was written."""
    files: int = 0
    """The files that were looked at."""
    unchanged: int = 0
    """The files that had not changed since the last import, and were not read."""
    bytes_read: int = 0
    """The bytes that were read."""
    new: int = 0
    """The calls that the trace did not have."""
    known: int = 0
    """The calls that it had."""
    corrected: int = 0
    """The calls that it had with fewer tokens."""
    skipped: int = 0
    """The calls from before the requested time."""
    unread: int = 0
    """The parts of files that could not be read."""
    faults: list[ImportFault] = msgspec.field(default_factory=list)
    """The first of these parts."""
    models: dict[str, ImportedModel] = msgspec.field(default_factory=dict)
    """The new calls by model."""

    @property
    def changed(self) -> bool:
        """Whether the import changed the trace."""
        return bool(self.new or self.corrected)


OnImport = Callable[[ImportReport], object]


async def import_calls(
    store: Store | None,
    source: Source | str,
    places: Sequence[Path | str] | Path | str | None = None,
    *,
    prices: PriceTable | None = None,
    since: int | datetime | None = None,
    content: bool = False,
    dry_run: bool = False,
    clock: Clock = SYSTEM_CLOCK,
    progress: OnImport | None = None,
) -> ImportReport:
    """Import the calls that another program recorded. A call that the trace has already is not stored again.

    Args:
        store: The open store to write to. A dry run only reads it, and None stands for an empty one.
        source: The program, by its name or as a `Source`.
        places: Files or folders; None takes the places where the program keeps them.
        prices: The prices of the calls, each at its own time; None takes those of Callboard's home folder.
        since: The time before which calls are left out: microseconds UTC, or an aware datetime.
        content: Whether to store the messages, too.
        dry_run: Whether only to report.
        clock: The clock for the name of the import's run.
        progress: Called after each chunk with the report so far.

    Raises:
        StoreError: The store can't be written.
        ConfigurationError: There is no such source.
    """
    importer = Importer(
        store,
        source,
        places,
        prices=prices,
        since=since,
        content=content,
        dry_run=dry_run,
        clock=clock,
        progress=progress,
    )
    return await importer.run()


class Importer:
    """Imports from one source, again and again. The arguments are those of `import_calls`."""

    def __init__(
        self,
        store: Store | None,
        source: Source | str,
        places: Sequence[Path | str] | Path | str | None = None,
        *,
        prices: PriceTable | None = None,
        since: int | datetime | None = None,
        content: bool = False,
        dry_run: bool = False,
        clock: Clock = SYSTEM_CLOCK,
        progress: OnImport | None = None,
    ) -> None:
        if store is None and not dry_run:
            raise ValueError("an import without dry_run=True needs a store")
        self._store = store
        self._source = source_named(source) if isinstance(source, str) else source
        given = [places] if isinstance(places, str | Path) else places
        self._places = self._source.places() if given is None else [Path(place) for place in given]
        self._prices = prices
        self._since = None if since is None else to_us(since)
        self._content = content
        self._dry_run = dry_run
        self._clock = clock
        self._progress = progress
        self._run_id: str | None = None
        self._seq = 0
        self._read: dict[str, ImportedFile] | None = None  # how far each file was read
        self._sessions: set[str] = set()  # that are in the trace
        self._seen: dict[str, Imported] = {}  # in a dry run, what would be in the ledger

    async def run(self) -> ImportReport:
        """Import what is new since the last time. See `import_calls`."""
        report = ImportReport(source=self._source.name, dry_run=self._dry_run)
        if self._prices is None:
            from callboard.tracestore.home import home_folder, price_table

            self._prices = price_table(home_folder())
        if self._read is None:
            self._read = {} if self._store is None else await self._store.imported_files(self._source.name)
        reading = _Reading(
            self._source, self._places, self._read, report, content=self._content, since=self._since
        )
        while True:
            chunk = await anyio.to_thread.run_sync(reading.chunk)
            if chunk is None:
                return report
            await self._write(chunk, report)
            if self._progress is not None:
                self._progress(report)

    async def watch(self, seconds: float = 1.0, changed: OnImport = lambda report: None) -> None:
        """Import for ever, what is new and as it comes. `changed` is called with each report of new calls."""
        while True:
            report = await self.run()
            if report.changed:
                changed(report)
            await anyio.sleep(seconds)

    # --- Writing ---

    async def _write(self, chunk: _Chunk, report: ImportReport) -> None:
        files = [] if self._dry_run else chunk.files
        for _ in range(_TRIES):
            sessions = {
                _hash("ims", self._source.name, call.session): call
                for call, _ in reversed(chunk.calls.values())
                if call.session is not None and call.session not in self._sessions
            }
            known = await self._known([*chunk.calls, *sessions])
            plan = self._plan(chunk, sessions, known)
            if self._dry_run or self._store is None:
                self._seen |= {each.request_id: Imported(each.after, True) for each in plan.revisions}
            elif (plan.revisions or files) and not await self._store.write_import(
                plan.envelopes, plan.revisions, files
            ):
                continue
            self._seq += len(plan.envelopes)
            self._sessions.update(call.session for call in sessions.values() if call.session is not None)
            plan.count(report)
            return
        raise StoreError("other importers write the same calls all the time")

    async def _known(self, names: list[str]) -> dict[str, Imported]:
        known = await self._store.imported_calls(names) if names and self._store is not None else {}
        if self._dry_run:
            known |= {name: self._seen[name] for name in names if name in self._seen}
        return known

    def _plan(self, chunk: _Chunk, sessions: dict[str, ImportedCall], known: dict[str, Imported]) -> _Plan:
        plan = _Plan()
        for name, call in sessions.items():
            if name not in known:
                plan.revisions.append(Revision(name, None, 0))
                tags = {"origin": self._source.name, **call.tags}
                created = SessionCreated(model=f"{call.provider}:{call.model}", tags=tags)
                plan.envelopes.append(self._envelope(plan, created, call.started_at, session_id=call.session))
        for name, (call, file) in chunk.calls.items():
            before, revision = known.get(name), call.revision
            if before is not None and before.revision >= revision:
                plan.known += 1
                continue
            plan.revisions.append(Revision(name, None if before is None else before.revision, revision))
            if before is not None and not before.stored:  # A pruned call does not come back.
                plan.known += 1
                continue
            event = self._event(call, file)
            plan.envelopes.append(
                self._envelope(
                    plan,
                    event,
                    call.started_at,
                    session_id=call.session,
                    turn_id=self._turn(call.turn),
                    request_id=name,
                    attempt=1,
                    tags=dict(call.tags) or None,
                )
            )
            if before is None:
                plan.new.append(event)
            else:
                plan.corrected += 1
        return plan

    def _envelope(self, plan: _Plan, event: Event, ts_us: int, **ids: object) -> Envelope:
        if self._run_id is None:
            self._run_id = self._clock.new_id("run")
            if self._store is not None and not self._dry_run:
                self._store.hold_run(self._run_id)
        seq = self._seq + len(plan.envelopes) + 1
        return Envelope(seq, self._run_id, ts_us, self._clock.monotonic_ns(), event, **ids)  # type: ignore[arg-type]

    def _event(self, call: ImportedCall, file: str) -> LlmCallImported:
        model = f"{call.provider}:{call.model}"
        return LlmCallImported(
            provider=call.provider,
            model=model,
            origin=self._source.name,
            origin_file=file,
            origin_line=call.line,
            revision=call.revision,
            stop_reason=call.stop_reason,
            usage=call.usage,
            cost=self._cost(call, model),
            stated_nano_usd=call.stated_cost_nano_usd,
            error_class=call.error_class,
            error_type=call.error_type,
            latency_ms=call.latency_ms,
            first_token_ms=call.first_token_ms,
            response_id=call.response_id,
            provider_request_id=call.request_id,
            parent_call_id=None if call.parent is None else request_id(self._source.name, call.parent),
            parent_tool_use_id=call.parent_tool_use_id,
            parent_turn_id=self._turn(call.parent_turn),
            root_turn_id=self._turn(call.root_turn),
            depth=call.depth,
        )

    def _cost(self, call: ImportedCall, model: str) -> Cost | None:
        """The cost at the prices of the call's time. The stated cost counts only where these are unknown."""
        assert self._prices is not None
        cost = None if call.usage is None else self._prices.price(model, call.usage, call.started_at)
        stated = call.stated_cost_nano_usd
        if stated is not None and (cost is None or cost.nano_usd is None):
            return Cost(stated, CostSource.PROVIDER, None, f"stated by {self._source.name}")
        return cost

    def _turn(self, name: str | None) -> str | None:
        return None if name is None else _hash("trn", self._source.name, name)


class _Plan:
    """What one transaction writes."""

    def __init__(self) -> None:
        self.envelopes: list[Envelope] = []
        self.revisions: list[Revision] = []
        self.new: list[LlmCallImported] = []
        self.corrected = 0
        self.known = 0

    def count(self, report: ImportReport) -> None:
        report.new += len(self.new)
        report.corrected += self.corrected
        report.known += self.known
        for event in self.new:
            total = report.models.setdefault(event.model, ImportedModel())
            nano = None if event.cost is None else event.cost.nano_usd
            total.calls += 1
            total.nano_usd += nano or 0
            total.unpriced += nano is None
            if event.usage is not None:
                total.input_tokens += event.usage.total_input_tokens
                total.output_tokens += event.usage.output_tokens


def request_id(source: str, identity: str) -> str:
    """The request of an imported call. It is the same in every trace."""
    return _hash("imp", source, identity)


def _hash(prefix: str, *parts: str | None) -> str:
    digest = hashlib.blake2b("\0".join(map(str, parts)).encode("utf-8", "replace"), digest_size=15)
    return f"{prefix}_{digest.hexdigest()}"


# --- Reading ---


class _Chunk:
    """Some calls by their requests, each with its file, and how far files were read."""

    def __init__(self) -> None:
        self.calls: dict[str, tuple[ImportedCall, str]] = {}
        self._files: dict[str, ImportedFile] = {}

    @property
    def files(self) -> list[ImportedFile]:
        return list(self._files.values())

    @property
    def is_full(self) -> bool:
        return len(self.calls) >= CALLS_AT_ONCE or len(self._files) >= FILES_AT_ONCE

    def add(self, name: str, call: ImportedCall, file: str) -> bool:
        """Add a call. Returns whether it was here already."""
        before = self.calls.get(name)
        if before is None or before[0].revision < call.revision:
            self.calls[name] = call, file
        return before is not None

    def mark(self, file: ImportedFile) -> None:
        self._files[file.path] = file


class _Reading:
    """One pass over the files of a source, in chunks. It runs in a worker thread, one chunk at a time."""

    def __init__(
        self,
        source: Source,
        places: Iterable[Path],
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
        self._chunk = _Chunk()
        self._steps = self._all()

    def chunk(self) -> _Chunk | None:
        """The next chunk; None at the end."""
        for _ in self._steps:
            if self._chunk.is_full:
                break
        chunk, self._chunk = self._chunk, _Chunk()
        return chunk if chunk.calls or chunk.files else None

    def _all(self) -> Iterator[None]:
        changed: list[tuple[str, int, str, SourceFile, _Status]] = []
        for file in self._found():
            self._report.files += 1
            try:
                status = _status(file.path)
            except OSError as error:
                self._note(str(file.path), Unread(line=0, why=error.strerror or "can't be read"))
                continue
            if status is None:
                self._note(str(file.path), Unread(line=0, why="not a regular file"))
                continue
            known = self._read.get(str(file.path))
            if known is not None and status == (known.size, known.mtime_ns, known.inode):
                self._report.unchanged += 1
                continue
            path = str(file.path)
            changed.append((_first_moment(path), status.mtime_ns, path, file, status))
        # The oldest first: a call that forks and copies repeat belongs to the session that made it.
        for _, _, path, file, status in sorted(changed, key=lambda each: each[:3]):
            yield from self._file(path, file, status)

    def _found(self) -> Iterator[SourceFile]:
        for place in self._places:
            if not place.exists():
                self._note(str(place), Unread(line=0, why="no such file or folder"))
                continue
            try:
                yield from self._source.files(place)
            except OSError as error:
                self._note(str(place), Unread(line=0, why=error.strerror or "can't be read"))

    def _file(self, path: str, file: SourceFile, status: _Status) -> Iterator[None]:
        known = self._read.get(path)
        skipped = self._report.skipped
        try:
            with open(path, "rb", buffering=_BUFFER) as stream, open(path, "rb", buffering=0) as edges:
                start = _start(edges, known, status)
                last = start
                stream.seek(start.read_to)
                for item in self._source.read(file, stream, start, content=self._content):
                    if isinstance(item, ImportedCall):
                        self._add(item, path)
                        yield
                    elif isinstance(item, Unread):
                        self._note(path, item)
                    else:
                        last = item
                        if skipped == self._report.skipped:
                            self._chunk.mark(self._position(path, status, item, edges, whole=False))
                            yield
                position = self._position(path, status, last, edges, whole=True)
                self._report.bytes_read += max(0, stream.tell() - start.read_to)
        except OSError as error:
            self._note(path, Unread(line=0, why=error.strerror or "can't be read"))
            return
        except Exception as error:  # A source of a plugin, or a file made to break one, must not end the import.
            self._note(path, Unread(line=0, why=f"the source failed with {type(error).__name__}"))
            return
        self._read[path] = position
        if skipped == self._report.skipped:  # Otherwise an import without `since` must read the file again.
            self._chunk.mark(position)
            yield

    def _position(self, path: str, status: _Status, mark: Mark, edges: BinaryIO, *, whole: bool) -> ImportedFile:
        """How far a file was read. Only the end of a whole reading has the file's size and time."""
        return ImportedFile(
            source=self._source.name,
            path=path,
            size=status.size if whole else -1,
            mtime_ns=status.mtime_ns,
            inode=status.inode,
            read_to=mark.read_to,
            line=mark.line,
            digest=_digest(edges, mark.read_to),
            state=mark.state,
        )

    def _add(self, call: ImportedCall, path: str) -> None:
        if not EARLIEST_US <= call.started_at < LATEST_US:
            self._note(path, Unread(line=call.line, why="the time is impossible"))
        elif call.usage is not None and call.usage.total_tokens >= 2**40:
            self._note(path, Unread(line=call.line, why="the number of tokens is impossible"))
        elif self._since is not None and call.started_at < self._since:
            self._report.skipped += 1
        else:
            again = self._chunk.add(request_id(self._source.name, call.identity), call, path)
            self._report.known += again

    def _note(self, path: str, unread: Unread) -> None:
        self._report.unread += 1
        if len(self._report.faults) < MOST_FAULTS:
            self._report.faults.append(ImportFault(path, unread.line, unread.why))


class _Status(NamedTuple):
    """What changes when a file changes. A database in use changes in the log beside it."""

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
    """The first time in a file, as far as its first bytes show one. It only orders files."""
    try:
        with open(path, "rb", buffering=0) as stream:
            found = _MOMENT.search(stream.read(_EDGE))
    except OSError:
        return ""
    return "" if found is None else found[1].decode()


def _start(edges: BinaryIO, known: ImportedFile | None, status: _Status) -> Mark:
    """Where to read on: where the last reading ended, or at the start of a file that was rewritten."""
    if known is None or not known.read_to or known.inode != status.inode or status.size < known.read_to:
        return START
    if _digest(edges, known.read_to) != known.digest:
        return START
    return Mark(read_to=known.read_to, line=known.line, state=known.state)


def _digest(edges: BinaryIO, read_to: int) -> str:
    """A hash of the first and the last bytes of a part of a file."""
    found = hashlib.blake2b(digest_size=16)
    size = min(_EDGE, read_to)
    for place in (0, read_to - size):
        edges.seek(place)
        found.update(edges.read(size))
    return found.hexdigest()
