"""The trace writer: from the bus to the store, in batches.

Events wait in a lossless subscription until they are committed, always in order: spilled events first.

    ok          commits at most 100 ms after an event, 1,024 events at a time
    retrying    a commit failed: events wait in memory, with new tries after 1, 2, 4 ... 30 s
    spilling    three attempts failed, or memory is full: events are written to a file of JSON lines
    dropping    that file is full or can't be written: newer events than fit in memory are lost and counted

After a successful commit, the state is ``ok`` again. Each change is published as `StoreStateChanged`. A failing
store never delays a call. `WriterCore.secure` runs before a reply is returned: it copies waiting events to the
journal, so that they survive the process. `WriterCore` outlives the actor: the engine passes the same core to each
new `TraceWriter`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Protocol

import anyio
import anyio.lowlevel
import anyio.to_thread
import msgspec

from callboard.bus.actor import WorkActor
from callboard.bus.bus import Bus
from callboard.bus.errors import StoreError, StoreUnavailable
from callboard.bus.events import Envelope
from callboard.bus.events.operation import BudgetReserved, BudgetSettled, PricingProgress, StoreStateChanged
from callboard.bus.log import Log
from callboard.bus.subscription import Lossless

from ..prices.table import PriceTable
from ..reports import Delivered, StoreState, WriterOptions, WriterStatistics, after_failure, retry_delay
from ..store import Store
from .content import Capture
from .journal import EVENT_BYTES, Journal, Waiting
from .overflow import SpillFile, adopt_leftovers, journal_paths, spill_path

_log = Log("tracestore.writer")

_SECURED_AT_ONCE = 64
_TAKEN_AT_ONCE = 256
"""The number of events that are processed before other tasks run, including the host's redaction."""


class Sink(Protocol):
    """The destination of events: a `TraceStore`. It raises StoreError or OSError while it can't store them."""

    async def write(self, envelopes: Sequence[Envelope], /) -> None: ...


class Source(Protocol):
    """The source of events: a lossless subscription."""

    @property
    def closed(self) -> bool: ...
    @property
    def depth(self) -> int: ...
    def take(self, limit: int | None = None, /) -> list[Envelope]: ...
    async def wait(self) -> None: ...


NOT_STORED = (BudgetReserved.topic_of(), BudgetSettled.topic_of(), PricingProgress.topic_of())
"""Topics that the trace leaves out, because other events contain the same facts."""


class WriterCore:
    """The writer without its actor. A core belongs to one event loop.

    Args:
        sink: The store of the events, such as a TraceStore.
        source: The source of the events, such as a subscription.
        spill_path: The path of the spill file, with the journal next to it; None keeps everything in memory.
        database_path: The path of the trace file. Files that earlier processes left next to it are adopted.
        on_state: Called with each change of state. It must not raise.
        close_lost: Ends the runs of dead processes, after their spilled events are written.
        capture: Prepares the content of incoming messages for the store; None stores no content.
    """

    def __init__(
        self,
        sink: Sink,
        source: Source,
        *,
        spill_path: Path | None = None,
        database_path: Path | None = None,
        close_lost: Callable[[], Awaitable[object]] | None = None,
        on_state: Callable[[StoreStateChanged], object] = lambda event: None,
        options: WriterOptions | None = None,
        capture: Capture | None = None,
    ) -> None:
        self._sink = sink
        self._source = source
        self._options = options or WriterOptions()
        self._capture = capture
        limit = self._options.spill_bytes
        self._spill = None if spill_path is None else SpillFile(spill_path, limit)
        self._journal = None if spill_path is None else Journal(journal_paths(spill_path), limit)
        self._database_path = database_path
        self._close_lost = close_lost
        self._on_state = on_state
        self._watchers: list[Callable[[Sequence[Envelope]], object]] = []
        self._pending = Waiting()
        self._entered = 0  # the number of events that entered memory or the spill file
        self._stored_count = 0  # the number of these events that were stored, in the same order
        self._state: StoreState = "ok"
        self._failures = 0
        self._retry_at = 0.0
        self._reason: str | None = None
        self._lost = 0
        self._lost_logged = 0
        self._logged_at_close = 0  # the lost events that a `close` reported; a second one reports later losses
        self._lost_seqs: tuple[int, int] | None = None
        self._work = anyio.Lock()
        self._wake = anyio.Event()
        self._adopted = anyio.Event()
        self._taken_over = False
        self._take_over_after: int | None = None
        """After this number of committed events, `run` looks for leftovers again."""

    @classmethod
    def for_bus(
        cls,
        store: Store,
        bus: Bus,
        *,
        options: WriterOptions | None = None,
        capture: Capture | None = None,
        prices: PriceTable | None = None,
        delivered: Delivered | None = None,
    ) -> WriterCore:
        """The writer of one bus and one store.

        The writer subscribes immediately, so it gets every event from now on.

        The run is in progress until the store is closed.

        Args:
            store: The store.
            bus: The bus. Its `run_id` must be unique, because it is part of the name of the spill file.
            options: The sizes and time limits of the writer.
            capture: As for the class.
            prices: The prices for calls of processes that died, see `TraceStore.close_lost_runs`.
            delivered: The output that readers have of such calls.

        Raises:
            StoreError: Another writer already writes this run.
        """
        try:
            store.hold_run(bus.run_id)
        except StoreUnavailable as error:
            _log.warning("run_not_held", error=str(error))  # done before any event of the run is written
        source = bus.subscribe(">", policy=Lossless(), name="trace writer", without=NOT_STORED)
        return cls(
            store,
            source,
            spill_path=spill_path(store.path, bus.run_id),
            database_path=store.path,
            close_lost=partial(store.close_lost_runs, prices, delivered),
            on_state=bus.publish,
            options=options,
            capture=capture,
        )

    @property
    def state(self) -> StoreState:
        """The state: ``ok``, or ``retrying``, ``spilling`` or ``dropping`` while the store fails."""
        return self._state

    def statistics(self) -> WriterStatistics:
        """A snapshot. Admission checks `waiting`."""
        first, last = self._lost_seqs or (None, None)
        spilled = 0 if self._spill is None else self._spill.waiting
        if self._work.locked():
            # `_take` counts the size of the events; the task that holds the lock commits them, too
            self._take(_TAKEN_AT_ONCE)
        return WriterStatistics(
            state=self._state,
            waiting=self._entered - self._stored_count + self._source.depth,
            spilled=spilled,
            committed=self._stored_count,
            lost=self._lost,
            lost_first_seq=first,
            lost_last_seq=last,
            failures=self._failures,
            reason=self._reason,
            waiting_bytes=self._pending.size + EVENT_BYTES * self._source.depth,
            unsecured=None if self._journal is None else self._journal.error,
        )

    def watch_commits(self, callback: Callable[[Sequence[Envelope]], object]) -> None:
        """Call a function with the events of each commit, right after the commit. It must not raise.

        Messages have their content as stored, or their whole content if no content is stored. Events of dead
        processes are included when they are committed here.
        """
        self._watchers.append(callback)

    async def run(self) -> None:
        """Write until cancelled, or until the subscription is closed and all its events are committed."""
        try:
            self._taken_over = await self._take_over()
        finally:
            self._adopted.set()
        if not self._taken_over:
            self._take_over_after = self._stored_count
        while not (self._source.closed and not self._source.depth and not self._pending and self._state == "ok"):
            await self._wait()
            async with self._work:
                await self._take_in()
                if self._state == "ok" or anyio.current_time() >= self._retry_at:
                    await self._attempt()
                await self._park()
            after = self._take_over_after
            if after is not None and self._state == "ok" and self._stored_count > after:
                self._take_over_after = None
                self._taken_over = await self._take_over()

    async def flush(self) -> None:
        """Wait until everything that was published before the call is committed. Committed events survive the
        death of the process.

        Raises:
            StoreError: The store can't store the events now, or events were lost since the last flush. Events that
                could be kept are written when the store recovers.
        """
        mark = self._entered + self._source.depth
        self._wake.set()
        async with self._work:
            await self._take_in()
            if self._stored_count < mark:
                await self._attempt()
                await self._park()
        if self._stored_count < mark:
            raise StoreError(
                f"{mark - self._stored_count} events are not committed ({self._state}): {self._reason}; "
                "they will be written when the store works again"
            )
        if self._lost > self._lost_logged:
            lost, self._lost_logged = self._lost - self._lost_logged, self._lost
            raise StoreError(f"{lost} events were lost while the store could not be written: {self._reason}")

    async def secure(self) -> None:
        """Wait until everything published before the call survives the end of this process.

        By then each event is committed, spilled, or in the journal. This takes one small write. The method yields
        to other tasks only if very many events arrived together. It never raises. If the journal can't be written,
        `WriterStatistics.unsecured` has the reason, and the events are safe only after a commit.
        """
        mark = self._entered + self._source.depth
        while not self._secured_to(mark):
            await anyio.lowlevel.checkpoint()

    def secure_now(self) -> None:
        """Like `secure`, without letting other tasks run.

        Use this before actions that must not happen before they are recorded.
        """
        mark = self._entered + self._source.depth
        while not self._secured_to(mark):
            pass

    def _secured_to(self, mark: int) -> bool:
        """Copy some waiting events. Return whether those up to a mark are copied, or can't be copied."""
        journal = self._journal
        if journal is None:
            return True
        self._take(_SECURED_AT_ONCE)
        journal.copy(self._pending)
        return journal.error is not None or self._entered - len(self._pending) + journal.copied >= mark

    async def adopted(self) -> bool:
        """Wait until `run` has handled the events of earlier processes. Return whether they are written."""
        await self._adopted.wait()
        return self._taken_over

    async def close(self) -> None:
        """Commit the remaining events, or spill them for the next start. May be called again after more events."""
        async with self._work:
            self._take()
            if self._entered > self._stored_count:
                await self._attempt()
            if self._pending and self._state == "ok":
                await self._attempt()  # count the size of events that arrived meanwhile
            if self._pending and self._spill is not None:
                await self._spill_pending("closing")
            copied = 0 if self._journal is None else self._journal.copied
            if len(self._pending) - copied > self._logged_at_close:
                more = len(self._pending) - copied - self._logged_at_close
                _log.error("lost_at_close", events=more, reason=self._reason)
                self._logged_at_close += more
            if self._spill is not None:
                await anyio.to_thread.run_sync(self._spill.close)
            if self._journal is not None:
                self._journal.close()

    async def _wait(self) -> None:
        """Wait for events to commit, and then a little longer, so that more events share the commit."""
        if self._wake.is_set():
            self._wake = anyio.Event()
        options = self._options
        if self._state != "ok":
            # New events are spilled or dropped in between; a flush tries immediately.
            await self._pause(min(0.1, max(0.0, self._retry_at - anyio.current_time())))
            return
        if not self._pending:
            await self._source.wait()
        if len(self._pending) + self._source.depth < options.batch_events and not self._source.closed:
            await self._pause(options.batch_seconds)

    async def _pause(self, seconds: float) -> None:
        with anyio.move_on_after(seconds):
            await self._wake.wait()

    async def _take_in(self) -> None:
        """Process the waiting events in parts, so that a burst does not block the event loop."""
        mark = self._entered + self._source.depth
        while self._entered < mark and self._source.depth:
            self._take(_TAKEN_AT_ONCE)
            await anyio.lowlevel.checkpoint()

    def _take(self, limit: int | None = None) -> None:
        envelopes = self._source.take(limit)
        if self._capture is not None:
            envelopes = [self._capture.apply(envelope) for envelope in envelopes]
        self._pending.add(envelopes)
        self._entered += len(envelopes)

    # --- Writing ---

    async def _attempt(self) -> None:
        """Commit all events that wait now, in order, and record the result.

        Events that arrive later wait for the next attempt. Otherwise neither an attempt nor a flush would end
        under steady load.
        """
        mark = self._entered
        if self._journal is not None:
            self._journal.turn()
        try:
            await self._commit_spilled()
            while self._pending and self._stored_count < mark:
                batch = self._pending.first(self._options.batch_events)
                await self._write(batch)
                self._release(batch)
                self._stored_count += len(batch)
        except (StoreError, OSError) as error:
            self._note_failure(str(error))
        else:
            self._failures = 0
            self._become("ok", "the store can be written")

    def _release(self, batch: Sequence[Envelope]) -> None:
        self._pending.remove(batch)
        if self._journal is not None:
            self._journal.forget(len(batch))

    async def _commit_spilled(self) -> None:
        spill = self._spill
        while spill is not None and spill.waiting:
            batch, size = await anyio.to_thread.run_sync(spill.peek, self._options.batch_events)
            if not size:
                await self._give_up_spilled(spill)
                return
            await self._write(batch)
            waiting = spill.waiting
            await anyio.to_thread.run_sync(spill.discard, len(batch), size)
            self._stored_count += waiting - spill.waiting

    async def _give_up_spilled(self, spill: SpillFile) -> None:
        """Handle a spill file that another process has removed or cut short."""
        self._reason = f"{spill.path} was deleted"
        _log.error("spill_file_gone", file=str(spill.path), events=spill.waiting)
        self._stored_count += spill.waiting
        self._lost += spill.waiting
        spill.waiting = 0
        await anyio.to_thread.run_sync(spill.remove)

    async def _write(self, batch: Sequence[Envelope]) -> None:
        try:
            await self._sink.write(batch)
        except (StoreError, OSError):
            raise
        except Exception as error:
            # One event causes the error, not the store. The other events must not wait forever behind it.
            if len(batch) == 1:
                _log.error("event_unstorable", seq=batch[0].seq, topic=batch[0].topic, error=repr(error))
                self._reason = repr(error)
                self._count_lost(batch)
            else:
                for envelope in batch:
                    await self._write([envelope])
        else:
            for watcher in self._watchers:
                watcher(batch)

    async def _take_over(self) -> bool:
        """Write the events that earlier processes left, and end their runs.

        Return False if the store can't be written now.
        """
        own_path = None if self._spill is None else self._spill.path
        if self._database_path is not None and not await adopt_leftovers(
            self._database_path, self._write, own_path=own_path, batch_events=self._options.batch_events
        ):
            return False
        try:
            if self._close_lost is not None:
                await self._close_lost()
        except (StoreError, OSError) as error:
            _log.warning("lost_runs_not_ended", error=str(error))
            return False
        return True

    # --- Failures ---

    def _note_failure(self, reason: str) -> None:
        self._failures += 1
        self._reason = reason
        self._retry_at = anyio.current_time() + retry_delay(self._failures, self._options)
        may_spill = self._spill is not None
        self._become(after_failure(self._state, self._failures, self._options, may_spill=may_spill), reason)

    async def _park(self) -> None:
        """While the store fails, spill or drop events so that the waiting events stay within the limits."""
        waiting = self._pending
        if self._state == "retrying" and self._too_much:
            self._become("spilling", f"{len(waiting)} events of about {waiting.size} bytes are waiting in memory")
        if self._state == "spilling" and waiting:
            await self._spill_pending(self._reason or "")
        if self._state == "dropping" and self._too_much:
            lost: list[Envelope] = []
            while self._too_much:
                lost.append(waiting.drop_newest())
            self._entered -= len(lost)
            if self._journal is not None:
                self._journal.keep(len(waiting))
            self._count_lost(lost)

    @property
    def _too_much(self) -> bool:
        return self._pending.exceeds(self._options.memory_events, self._options.memory_bytes)

    async def _spill_pending(self, reason: str) -> None:
        spill = self._spill
        if spill is None:
            self._become("dropping", f"{reason}; there is no spill file")
            return
        batch = self._pending.first()
        try:
            fitted = await anyio.to_thread.run_sync(spill.append, batch)
        except OSError as error:
            fitted = 0
            why = f"the spill file {spill.path} can't be written: {error.strerror or error}"
        else:
            why = f"the spill file {spill.path} is full"
        self._release(batch[:fitted])
        if fitted < len(batch):
            self._become("dropping", f"{reason}; {why}")

    def _count_lost(self, lost: Sequence[Envelope]) -> None:
        seqs = [envelope.seq for envelope in lost]
        first, last = self._lost_seqs or (min(seqs), max(seqs))
        self._lost_seqs = (min(first, *seqs), max(last, *seqs))
        if not self._lost:
            _log.error("events_lost", first_seq=self._lost_seqs[0], reason=self._reason)
        self._lost += len(seqs)

    def _become(self, state: StoreState, reason: str) -> None:
        previous, self._state = self._state, state
        if previous != state:
            if state == "ok" and not self._taken_over:
                self._take_over_after = -1
            level = _log.info if state == "ok" else _log.warning
            level("store_state", previous=previous, current=state, reason=reason, lost=self._lost)
            self._on_state(StoreStateChanged(previous=previous, current=state, reason=reason, lost=self._lost))


class Flush(msgspec.Struct, frozen=True):
    """A request to a `TraceWriter`. The answer, None, is sent when all earlier events are committed."""


class TraceWriter(WorkActor):
    """The actor around a `WriterCore`. It detects and counts crashes of the writer, and restarts the writer.

    Args:
        core: The core that `WriterCore.for_bus` made once. Every restart of the actor gets the same core, which
            has the uncommitted events.
    """

    def __init__(self, core: WriterCore) -> None:
        super().__init__(core.run, "trace writer")
        self.core = core

    async def receive(self, message: object) -> object:
        """Accept `Flush`. Raises TypeError for anything else."""
        if isinstance(message, Flush):
            await self.core.flush()
            return None
        return await super().receive(message)

    async def flush(self) -> None:
        """The same as `WriterCore.flush`."""
        await self.core.flush()

    async def stopping(self) -> None:
        await self.core.close()
