"""Import the recorded calls of other programs into the trace.

Files are read in chunks of up to some hundred calls. Each chunk is written in one transaction, together with the
read positions of its files. A call has an identity in its source, and the trace has a ledger of all identities. So
each call is stored once, even if several files contain it, several importers read it, or an importer is killed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import msgspec

from callboard.bus.clock import SYSTEM_CLOCK, Clock, to_us
from callboard.bus.errors import ConfigurationError, StoreError
from callboard.bus.events import Envelope, Event
from callboard.bus.events.calls import LlmCallImported
from callboard.bus.events.sessions import SessionCreated
from callboard.bus.values.usage import Cost, CostSource
from callboard.tracestore import PriceTable, Store
from callboard.tracestore.rows import Imported, ImportedFile, Revision
from callboard.tracestore.writing.content import CapturedMessage

from ..stores import StoreAddress, is_address
from .reading import Chunk, ImportedModel, ImportFault, ImportReport, Reading, hashed, request_id
from .source import ImportedCall, ImportedLink, ImportedMessage, Item, ServerSource, Source, source_named

__all__ = ["ImportFault", "ImportReport", "ImportedModel", "Importer", "import_calls", "request_id"]

_TRIES = 50
_SERVER_SECONDS = 30.0

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
    """Import the recorded calls of another program. A call that the trace already has is not stored again.

    Args:
        store: The open store to which calls are written. A dry run only reads it, and accepts None for an empty
            store.
        source: The program, by its name or as a `Source`.
        places: Files, folders, or a database's address; None uses the program's default places.
        prices: The prices; None uses those of Callboard's home folder. Each call has the price of its own time.
        since: The time of the earliest call to import: microseconds UTC, or an aware datetime.
        content: Whether to store the messages, too.
        dry_run: Whether to only report, without writing.
        clock: The clock, which is used for the id of the import's run.
        progress: Called after each chunk with the report so far.

    Raises:
        StoreError: The store can't be written.
        ConfigurationError: The source is unknown, it needs a place, or it can't read a database.
        ValueError: There is no store, and `dry_run` is False.
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
    """Imports from one source repeatedly. It has the arguments of `import_calls`.

    Raises:
        ConfigurationError: There is no such source.
        ValueError: There is no store, and `dry_run` is False.
    """

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
        paths = [places] if isinstance(places, str | Path) else places
        self._places = list(self._source.places()) if paths is None else [self._place_of(each) for each in paths]
        self._prices = prices
        self._since = None if since is None else to_us(since)
        self._content = content
        self._dry_run = dry_run
        self._clock = clock
        self._progress = progress
        self._run_id: str | None = None
        self._seq = 0
        self._read: dict[str, ImportedFile] | None = None  # the read position of each file
        self._is_first = False  # whether this source was never imported before this run
        self._sessions: set[str] = set()  # the sessions in the trace
        self._new_entries: dict[str, Imported] = {}  # the ledger's new entries in a dry run

    def _place_of(self, place: Path | str) -> Path | StoreAddress:
        if not isinstance(place, str) or not is_address(place):
            return Path(place).expanduser().absolute()
        if not isinstance(self._source, ServerSource):
            raise ConfigurationError(f"{self._source.name} reads files, and no database on a server")
        return StoreAddress(place)

    async def run(self) -> ImportReport:
        """Import the new calls since the last import. See `import_calls`."""
        report = ImportReport(source=self._source.name, dry_run=self._dry_run)
        if not self._places:
            raise ConfigurationError(f"{self._source.name} has no default place. Name a file or a folder")
        await self._load_prices()
        if self._read is None:
            self._read = {} if self._store is None else await self._store.imported_files(self._source.name)
        self._is_first = not self._read
        reading = Reading(self._source, self._places, self._read, report, content=self._content, since=self._since)
        while True:
            chunk = await anyio.to_thread.run_sync(reading.chunk)
            if chunk is None:
                return report
            await self._write(chunk, report)
            self._read |= chunk.read
            if self._progress is not None:
                self._progress(report)

    async def watch(self, seconds: float = 1.0, changed: OnImport = lambda report: None) -> None:
        """Import new calls until cancelled. `changed` is called with each report of new calls.

        A database is read at most twice a minute.
        """
        if any(isinstance(place, StoreAddress) for place in self._places):
            seconds = max(seconds, _SERVER_SECONDS)
        while True:
            report = await self.run()
            if report.changed:
                changed(report)
            await anyio.sleep(seconds)

    async def take(self, items: Iterable[Item], place: str) -> ImportReport:
        """Import calls that don't come from files, such as the calls of `read_otlp`.

        Args:
            items: The calls, and the parts that could not be read.
            place: A text about the origin of the calls, which is stored in place of a file's path.

        Raises:
            StoreError: The store can't be written.
        """
        report = ImportReport(source=self._source.name, dry_run=self._dry_run)
        await self._load_prices()
        chunk = Chunk()
        for item in items:
            chunk.take(item, self._source.name, place, report, self._since)
            if chunk.is_full:
                await self._write(chunk, report)
                chunk = Chunk()
        await self._write(chunk, report)
        return report

    async def _load_prices(self) -> None:
        if self._prices is None:
            from callboard.tracestore.home import home_folder, price_table

            self._prices = price_table(home_folder())

    # --- Writing ---

    async def _write(self, chunk: Chunk, report: ImportReport) -> None:
        files = [] if self._dry_run else chunk.files
        for _ in range(_TRIES):
            plan = await self._plan(chunk)
            if self._dry_run or self._store is None:
                self._new_entries |= {each.request_id: Imported(each.after, True) for each in plan.revisions}
            elif (plan.revisions or files) and not await self._store.write_import(
                plan.envelopes, plan.revisions, files
            ):
                continue
            self._seq += len(plan.envelopes)
            self._sessions |= plan.sessions
            plan.count(report)
            return
        raise StoreError(f"the import gave up after {_TRIES} conflicts with other writers")

    async def _plan(self, chunk: Chunk) -> _Plan:
        """Determine what to write for a chunk, by the current ledger."""
        links = {link.turn: link for link in chunk.links}
        calls = {name: (_placed(call, links), file) for name, (call, file) in chunk.calls.items()}
        sessions = {
            hashed("ims", self._source.name, call.session): call
            for call, _ in reversed(calls.values())
            if call.session is not None and call.session not in self._sessions
        }
        messages = {hashed("imm", self._source.name, each.session, each.identity): each for each in chunk.messages}
        counts = {each.session: hashed("imn", self._source.name, each.session) for each in chunk.messages}
        named: list[ImportedCall | ImportedMessage | ImportedLink]
        named = [*(call for call, _ in calls.values()), *chunk.messages, *chunk.links]
        deleted = await self._deleted({each.session for each in named})
        late = [each for each in chunk.links if each.late or not self._is_first]
        linked = await self._linked([each for each in late if each.session not in deleted])
        ledger = await self._ledger_of([*calls, *linked, *sessions, *messages, *counts.values()])
        plan = _Plan()
        for name, call in sessions.items():
            if name not in ledger and call.session not in deleted:
                self._add_session(plan, name, call)
        for name, (call, file) in calls.items():
            is_deleted = call.session in deleted
            self._add_call(
                plan, name, _anonymous(call) if is_deleted else call, "" if is_deleted else file, ledger
            )
        for name, envelope in linked.items():
            self._add_link(plan, name, envelope, chunk.links, ledger)
        for session, count in counts.items():
            if session not in deleted:
                new = {
                    name: each for name, each in messages.items() if each.session == session and name not in ledger
                }
                self._add_messages(plan, new, count, ledger.get(count))
        return plan

    async def _ledger_of(self, names: list[str]) -> dict[str, Imported]:
        ledger = await self._store.imported_calls(names) if names and self._store is not None else {}
        if self._dry_run:
            ledger |= {name: self._new_entries[name] for name in names if name in self._new_entries}
        return ledger

    async def _deleted(self, sessions: set[str | None]) -> set[str]:
        names = [name for name in sessions if name is not None]
        return set() if self._store is None or not names else await self._store.deleted_sessions(names)

    async def _linked(self, links: Sequence[ImportedLink]) -> dict[str, Envelope]:
        """The latest events of stored calls whose place in the tree a link provides."""
        found: dict[str, tuple[Envelope, LlmCallImported]] = {}
        turns = {self._turn(link.turn) for link in links}
        for session in {link.session for link in links}:
            if self._store is None or session is None:
                continue
            topic = LlmCallImported.topic_of()
            for envelope in await self._store.events(session_id=session, topic=topic, limit=None):
                event, name = envelope.data, envelope.request_id
                if not isinstance(event, LlmCallImported) or name is None or envelope.turn_id not in turns:
                    continue
                before = found.get(name)
                if before is None or before[1].revision < event.revision:
                    found[name] = envelope, event
        return {name: envelope for name, (envelope, event) in found.items() if event.parent_turn_id is None}

    def _add_session(self, plan: _Plan, name: str, call: ImportedCall) -> None:
        plan.revisions.append(Revision(name, None, 0))
        tags = {"origin": self._source.name, **call.tags}
        created = SessionCreated(model=f"{call.provider}:{call.model}", tags=tags)
        plan.envelopes.append(self._envelope(plan, created, call.started_at, session_id=call.session))

    def _add_call(
        self, plan: _Plan, name: str, call: ImportedCall, file: str, ledger: dict[str, Imported]
    ) -> None:
        before, revision = ledger.get(name), call.revision
        if call.session is not None:
            plan.sessions.add(call.session)
        if before is not None and before.revision >= revision:
            plan.already_imported += 1
            return
        plan.revisions.append(Revision(name, None if before is None else before.revision, revision))
        if before is not None and not before.stored:  # A pruned call is not imported again.
            plan.already_imported += 1
            return
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

    def _add_link(
        self,
        plan: _Plan,
        name: str,
        envelope: Envelope,
        links: Sequence[ImportedLink],
        ledger: dict[str, Imported],
    ) -> None:
        """Plan another event of a call that adds the call's place in the tree, which was unknown before."""
        before = ledger.get(name)
        if before is None or not before.stored or any(each.request_id == name for each in plan.revisions):
            return
        link = next(link for link in links if self._turn(link.turn) == envelope.turn_id)
        event = envelope.data
        assert isinstance(event, LlmCallImported)
        revision = before.revision | 1
        plan.revisions.append(Revision(name, before.revision, revision))
        event = msgspec.structs.replace(event, revision=revision, **self._place(link))
        ids = ("session_id", "turn_id", "request_id", "attempt", "tags")
        ids_of_envelope = {each: getattr(envelope, each) for each in ids}
        plan.envelopes.append(self._envelope(plan, event, envelope.ts_us, **ids_of_envelope))
        plan.corrected += 1

    def _add_messages(
        self, plan: _Plan, new: dict[str, ImportedMessage], count: str, stored_count: Imported | None
    ) -> None:
        """Plan the new messages of a session. Their number in the ledger is the index of the next message."""
        if not new:
            return
        first = 0 if stored_count is None else stored_count.revision
        plan.revisions.append(Revision(count, None if stored_count is None else first, first + len(new)))
        for place, (name, each) in enumerate(new.items(), first):
            plan.revisions.append(Revision(name, None, 0))
            event = CapturedMessage(position=place, message=each.message)
            ids = {"session_id": each.session, "message_id": each.message.id}
            plan.envelopes.append(self._envelope(plan, event, each.at, **ids))

    def _envelope(self, plan: _Plan, event: Event, ts_us: int, **ids: Any) -> Envelope:
        if self._run_id is None:
            self._run_id = self._clock.new_id("run")
            if self._store is not None and not self._dry_run:
                self._store.hold_run(self._run_id)
        seq = self._seq + len(plan.envelopes) + 1
        return Envelope(seq, self._run_id, ts_us, self._clock.monotonic_ns(), event, **ids)

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
            **self._place(call),
        )

    def _place(self, of: ImportedCall | ImportedLink) -> dict[str, Any]:
        """The fields of an event for the call's place in the tree."""
        return {
            "parent_call_id": None if of.parent is None else request_id(self._source.name, of.parent),
            "parent_tool_use_id": of.parent_tool_use_id,
            "parent_turn_id": self._turn(of.parent_turn),
            "root_turn_id": self._turn(of.root_turn),
            "depth": of.depth,
        }

    def _cost(self, call: ImportedCall, model: str) -> Cost | None:
        """The cost at the prices of the call's time. If the price is unknown, the cost in the file."""
        assert self._prices is not None
        cost = None if call.usage is None else self._prices.price(model, call.usage, call.started_at)
        stated = call.stated_cost_nano_usd
        if stated is not None and (cost is None or cost.nano_usd is None):
            return Cost(stated, CostSource.PROVIDER, None, f"stated by {self._source.name}")
        return cost

    def _turn(self, name: str | None) -> str | None:
        return None if name is None else hashed("trn", self._source.name, name)


def _placed(call: ImportedCall, links: dict[str, ImportedLink]) -> ImportedCall:
    """A call with its place in the tree. If the call has none, the place from a link is used."""
    link = links.get(call.turn or "")
    if link is None or call.parent_turn is not None:
        return call
    return msgspec.structs.replace(
        call,
        parent=link.parent,
        parent_tool_use_id=link.parent_tool_use_id,
        parent_turn=link.parent_turn,
        root_turn=link.root_turn,
        depth=link.depth,
    )


def _anonymous(call: ImportedCall) -> ImportedCall:
    """A call with only its numbers. Calls of a deleted session are still counted, but without any reference to the
    session.
    """
    return msgspec.structs.replace(call, session=None, tags={}, line=0)


class _Plan:
    def __init__(self) -> None:
        self.envelopes: list[Envelope] = []
        self.revisions: list[Revision] = []
        self.sessions: set[str] = set()  # the sessions in the trace after the transaction
        self.new: list[LlmCallImported] = []
        self.corrected = 0
        self.already_imported = 0

    def count(self, report: ImportReport) -> None:
        report.new += len(self.new)
        report.corrected += self.corrected
        report.known += self.already_imported
        for event in self.new:
            total = report.models.setdefault(event.model, ImportedModel())
            nano = None if event.cost is None else event.cost.nano_usd
            total.calls += 1
            total.nano_usd += nano or 0
            total.unpriced += nano is None
            if event.usage is not None:
                total.input_tokens += event.usage.total_input_tokens
                total.output_tokens += event.usage.output_tokens
