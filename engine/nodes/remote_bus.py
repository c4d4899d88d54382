"""A bus with the events of engines in other processes.

    async with RemoteBus("nats://bus.example", store="postgresql://…") as bus:
        async with bus.subscribe("llm.*") as events:
            async for envelope in events:
                ...

Subscriptions have the same patterns and policies as on an engine's own bus, and receive the same envelopes. Each
run's events are in order. There is no order across runs. Events that the broker has lost or dropped are read from
the shared store.
"""

from __future__ import annotations

import math
import os
import socket
from collections import deque
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from types import TracebackType
from typing import Self

import anyio
import msgspec

from callboard.bus import SYSTEM_CLOCK, Clock, Envelope, Log, ReplayBus, StoreError
from callboard.bus.clock import from_us, to_us
from callboard.tracestore import Store

from ..stores import StoreAddress, store_to_read
from .bridge import Page, decode_page
from .broker import Broker
from .broker_streams import BrokerEvents, RetainedMessage, StreamPosition

_log = Log("engine.remote")

# --- One incoming run ---

MOST_HELD = 64
"""The maximum number of pages that wait for earlier pages."""

FIRST_WAIT = 0.05
"""Seconds before missing events are requested from the store. The time doubles with each answer without new
events.
"""

LONGEST_WAIT = 1.0
"""The maximum wait for a page in seconds."""

GRACE_SECONDS = 1.0
"""Seconds to wait for a page whose events are already in the store."""


class Arrived(msgspec.Struct, frozen=True):
    after: int
    """The `seq` of the event before the page."""
    last: int
    """The `seq` of the page's last event."""
    envelopes: Sequence[Envelope] | None
    """The events of the page; None if they are only in the store."""


class Incoming:
    """Puts the events of one run in order. Times are seconds of any monotonic clock.

    `first` is the `seq` of the last event that the reader does not need. With None, the first page determines it.
    Missing events are skipped after `patience` seconds without any progress.
    """

    def __init__(self, first: int | None, patience: float) -> None:
        self.up_to = first
        """The `seq` up to which all events were delivered."""
        self.needed_up_to = first or 0
        """The `seq` of the last announced event."""
        self.passed_over = 0
        """The number of gaps that were skipped."""
        self._patience = patience
        self._early_pages: dict[int, Arrived] = {}  # by `Arrived.after`
        self._wait = FIRST_WAIT
        self._ask_at = 0.0
        self._give_up_at = 0.0
        self._stuck_since = 0.0

    @property
    def stuck_since(self) -> float | None:
        """The time since when events are missing without progress; None if none are missing."""
        return self._stuck_since if self.lacking else None

    @property
    def lacking(self) -> bool:
        return self.up_to is not None and self.up_to < self.needed_up_to

    @property
    def ask_at(self) -> float | None:
        """The time of the next query for the events after `known`; None if none are missing."""
        return self._ask_at if self.lacking else None

    def receive(self, page: Arrived, now: float) -> list[Envelope]:
        """Process a page. Returns the events to deliver now, in order."""
        if self.up_to is None:
            self.up_to = self.needed_up_to = page.after
        if page.last <= self.up_to:
            return []
        self._expect(page.last, now, FIRST_WAIT)
        if page.envelopes is None:
            self._ask_at = min(self._ask_at, now + FIRST_WAIT)
            return []
        if len(self._early_pages) < MOST_HELD or page.after <= self.up_to:
            other = self._early_pages.get(page.after)
            if other is None or other.last < page.last:
                self._early_pages[page.after] = page
        return self._take_ready(now)

    def stored(self, last: int, now: float) -> None:
        """Record that the store has all events up to this number. Pages with these events may still arrive."""
        if self.up_to is None:
            self.up_to = self.needed_up_to = last
        elif last > self.needed_up_to:
            self._expect(last, now, GRACE_SECONDS)

    def answered(self, envelopes: Sequence[Envelope], through: int, now: float) -> list[Envelope]:
        """Process the store's answer with the events after `known`."""
        assert self.up_to is not None
        new_envelopes = [envelope for envelope in envelopes if envelope.seq > self.up_to]
        reached = max(self.up_to, through, new_envelopes[-1].seq if new_envelopes else 0)
        self.needed_up_to = max(self.needed_up_to, reached)
        if reached > self.up_to:
            self.up_to = reached
            self._progressed(now)
            return new_envelopes + self._take_ready(now)
        self._wait = min(self._wait * 2, LONGEST_WAIT)
        self._ask_at = now + self._wait
        return self._passed_over(now) if now >= self._give_up_at else []

    def unanswered(self, now: float) -> None:
        """Record that the store can't be reached. This never makes the reader skip events."""
        self._ask_at = now + LONGEST_WAIT
        self._give_up_at = max(self._give_up_at, now + self._patience)

    def without_store(self, now: float) -> list[Envelope]:
        """Skip missing events, because there is no store. Returns the events to deliver now."""
        return self._passed_over(now) if self.lacking else []

    def _expect(self, last: int, now: float, wait: float) -> None:
        if not self.lacking:
            self._progressed(now)
            self._ask_at = now + wait
        self.needed_up_to = max(self.needed_up_to, last)

    def _progressed(self, now: float) -> None:
        self._wait = FIRST_WAIT
        self._ask_at = now
        self._stuck_since = now
        self._give_up_at = now + self._patience

    def _take_ready(self, now: float) -> list[Envelope]:
        """The events of held pages that directly follow the last known one."""
        assert self.up_to is not None
        ready: list[Envelope] = []
        while True:
            page = next((each for each in self._early_pages.values() if each.after <= self.up_to), None)
            if page is None:
                return ready
            del self._early_pages[page.after]
            if page.last <= self.up_to:
                continue
            assert page.envelopes is not None
            ready += [envelope for envelope in page.envelopes if envelope.seq > self.up_to]
            self.up_to = page.last
            self._progressed(now)
        return ready

    def _passed_over(self, now: float) -> list[Envelope]:
        assert self.up_to is not None
        self.passed_over += 1
        self.up_to = min(self._early_pages, default=self.needed_up_to)
        self._progressed(now)
        return self._take_ready(now)


# --- The events of all runs ---

ASKED_EVENTS = 500
"""The maximum number of events in one answer of the store."""

PAGES_AHEAD = 16
"""The number of pages that are read from the broker before they are needed."""

AWAY_SECONDS = 0.25
"""Seconds between attempts to reach the broker."""

PAST_SECONDS = 0.5
"""Seconds until a failing store is queried again for past events."""

REPORT_SECONDS = 30.0
"""Seconds after which the log reports missing events."""

DAY_US = 24 * 3600 * 1_000_000
"""Runs are ignored if they ended more than this many microseconds before the start of reading."""

MARGIN = timedelta(hours=1)
"""The maximum difference between the clocks of hosts."""


class RemoteStatistics(msgspec.Struct, frozen=True):
    """A snapshot of the events from other processes."""

    runs: int
    """The number of known runs."""
    lacking: int
    """The number of runs with missing events that were requested from the store."""
    waits_seconds: float
    """The longest time that one of these runs has waited for the store without progress."""
    passed_over: int
    """The number of gaps that were skipped."""


class RemoteEvents:
    """An async iterator over the envelopes. One task iterates, and another runs `pump`.

    The arguments are those of `RemoteBus`. A patience of infinity waits without limit.
    """

    def __init__(
        self,
        broker: BrokerEvents,
        store: Store | None,
        clock: Clock,
        *,
        since: int | None,
        patience: float,
        sweep_seconds: float,
    ) -> None:
        self._broker = broker
        self._store = store
        self._clock = clock
        self._since = since
        self._patience = patience
        self._sweep_seconds = sweep_seconds
        self._sweep_at = 0.0
        self._began_us = clock.now_us()
        self._position: StreamPosition | datetime | None = None
        self._runs: dict[str, Incoming] = {}
        self._lacking: set[str] = set()
        self._reported: set[str] = set()  # runs whose gaps were reported
        self._new_run_from: int | None = None  # the first `seq` to read of a new run
        self._ready: deque[Envelope] = deque()
        self._pages: deque[Page] = deque()
        self._page_came = anyio.Event()
        self._room = anyio.Event()
        self._past_id: int | None = None
        """The number of the last past event that was read from the store; None if none is to be read now."""

    def statistics(self) -> RemoteStatistics:
        passed_over = sum(run.passed_over for run in self._runs.values())
        now = anyio.current_time()
        waits = [now - (self._runs[name].stuck_since or now) for name in self._lacking]
        return RemoteStatistics(len(self._runs), len(self._lacking), max(waits, default=0.0), passed_over)

    async def begin(self) -> None:
        """Determine the current positions in the broker and the store, so that later events are not missed."""
        self._sweep_at = anyio.current_time() + self._sweep_seconds
        if self._since is not None:
            self._position = from_us(self._since) - MARGIN
            self._past_id = None if self._store is None else 0
            return
        position, heads = await self._broker.heads()
        self._position = position or from_us(self._began_us)
        for head in heads:
            run_id, _, span = head.rpartition(":")
            self._run(run_id).stored(int(span.rpartition("-")[2]), 0.0)
        positions = await self._positions()
        if positions is not None:
            self._starts_at(positions)

    def _starts_at(self, positions: Mapping[str, int]) -> None:
        """Skip the events up to a position. Runs that start later are read completely."""
        self._new_run_from = 0
        for name, last in positions.items():
            run = self._run(name)
            if run.up_to is None or run.up_to < last:
                self._runs[name] = Incoming(last, self._patience)

    async def pump(self) -> None:
        """Read pages from the broker without end, but only as fast as the reader needs them."""
        while True:
            try:
                async for message in self._broker.read(self._position):
                    self._position = message.position
                    await self._take(message)
            except OSError as error:
                _log.debug("remote_events_stopped", error=str(error))
            await anyio.sleep(AWAY_SECONDS)

    def __aiter__(self) -> RemoteEvents:
        return self

    async def __anext__(self) -> Envelope:
        while not self._ready:
            await self._work()
        return self._ready.popleft()

    async def _take(self, message: RetainedMessage) -> None:
        try:
            page = decode_page(message.data)
        except ValueError as error:  # a page of another version, whose events are in the store
            _log.warning("page_not_read", error=str(error))
            return
        while len(self._pages) >= PAGES_AHEAD:
            self._room = anyio.Event()
            await self._room.wait()
        self._pages.append(page)
        self._page_came.set()

    async def _work(self) -> None:
        if self._past_id is not None:
            await self._read_past(self._past_id)
            return
        if self._pages:
            self._receive(self._pages.popleft())
            self._room.set()
            if self._ready:
                return
        now = anyio.current_time()
        for name in [name for name in self._lacking if (self._runs[name].ask_at or 0.0) <= now]:
            await self._ask(name)
        if self._store is not None and now >= self._sweep_at:
            await self._sweep()
        if self._ready or self._pages:
            return
        moments = [self._runs[name].ask_at or 0.0 for name in self._lacking]
        if self._store is not None:
            moments.append(self._sweep_at)
        self._page_came = anyio.Event()
        with anyio.move_on_after(min(moments) - anyio.current_time() if moments else None):
            await self._page_came.wait()

    def _receive(self, page: Page) -> None:
        try:
            envelopes = page.envelopes()
        except ValueError as error:
            _log.warning("page_not_read", run=page.run_id, error=str(error))
            envelopes = None
        run = self._run(page.run_id, self._new_run_from)
        self._give(run.receive(Arrived(page.after, page.last, envelopes), anyio.current_time()))
        self._note(page.run_id)

    async def _ask(self, name: str) -> None:
        run, store = self._runs[name], self._store
        if store is None or run.up_to is None:
            self._give(run.without_store(anyio.current_time()))
            self._note(name)
            return
        try:
            await _open(store)
            # The position is read first, so that all events up to it are in the store.
            through = await store.committed_seq(name)
            found = await store.run_events(name, run.up_to, ASKED_EVENTS)
        except (StoreError, OSError) as error:
            _log.debug("gap_not_asked", run=name, error=str(error))
            run.unanswered(anyio.current_time())
            return
        through = found[-1].seq if len(found) == ASKED_EVENTS else through
        passed_over = run.passed_over
        self._give(run.answered(found, through, anyio.current_time()))
        if run.passed_over > passed_over:
            _log.warning("events_missing", run=name, known=run.up_to)
        self._note(name)
        if run.stuck_since is None:
            self._reported.discard(name)
        elif name not in self._reported and anyio.current_time() > run.stuck_since + REPORT_SECONDS:
            self._reported.add(name)
            _log.warning("events_not_in_store", run=name, known=run.up_to, wanted=run.needed_up_to)

    async def _sweep(self) -> None:
        """Check the last stored event of all runs, because the broker may not have sent some runs."""
        self._sweep_at = anyio.current_time() + self._sweep_seconds
        positions = await self._positions()
        if positions is None or not await self._has_beginnings(positions):
            return
        for name, last in positions.items():
            self._run(name, 0).stored(last, anyio.current_time())
            self._note(name)

    async def _has_beginnings(self, positions: Mapping[str, int]) -> bool:
        """Whether the start positions of runs without pages from the broker are known.

        If the store could not be queried at the start, this queries the positions at that time, by the hosts'
        clocks.
        """
        if self._new_run_from is not None:
            return True
        assert self._store is not None
        begins: dict[str, int] = {}
        try:
            for name in positions.keys() - self._runs.keys():
                first = await self._store.events(run_id=name, since=self._began_us, limit=1)
                begins[name] = first[0].seq - 1 if first else positions[name]
        except (StoreError, OSError) as error:
            _log.debug("runs_not_asked", error=str(error))
            return False
        self._new_run_from = 0
        for name, position in begins.items():
            self._run(name, position)
        return True

    async def _positions(self) -> dict[str, int] | None:
        if self._store is None:
            return None
        try:
            await _open(self._store)
            return await self._store.run_positions(self._began_us - DAY_US)
        except (StoreError, OSError) as error:
            _log.debug("runs_not_asked", error=str(error))
            return None

    async def _read_past(self, after_id: int) -> None:
        """Continue to read past events, in the order in which they were stored. While the store can't be reached,
        nothing is delivered, to keep the order.
        """
        assert self._store is not None
        try:
            if self._new_run_from is None:
                await _open(self._store)
                self._starts_at(await self._store.run_positions(self._began_us - DAY_US))
            numbered = await self._store.numbered_events(since=self._since, after_id=after_id, limit=ASKED_EVENTS)
        except (StoreError, OSError) as error:
            _log.debug("past_not_read", error=str(error))
            await anyio.sleep(PAST_SECONDS)
            return
        self._past_id = numbered[-1][0] if numbered else None
        found = [envelope for _, envelope in numbered]
        for envelope in found:
            run = self._run(envelope.run_id, 0)
            if run.up_to is None or run.up_to < envelope.seq:
                self._runs[envelope.run_id] = Incoming(envelope.seq, self._patience)
        self._give(found)

    def _run(self, name: str, first: int | None = None) -> Incoming:
        run = self._runs.get(name)
        if run is None:
            run = self._runs[name] = Incoming(first, self._patience)
        return run

    def _note(self, name: str) -> None:
        if self._runs[name].lacking:
            self._lacking.add(name)
        else:
            self._lacking.discard(name)

    def _give(self, envelopes: Sequence[Envelope]) -> None:
        since = self._since
        self._ready.extend(each for each in envelopes if since is None or each.ts_us >= since)


async def _open(store: Store) -> None:
    if not store.is_open:
        await store.open()


# --- The bus ---

CONNECT_SECONDS = 3.0
"""Seconds to wait for the broker at the start."""


class RemoteBus(ReplayBus):
    """The events of all engines of a cluster, from now on or from an earlier time. Use it once, on asyncio.

    A slow lossless reader delays other readers, as in a replay (see `bus.replay`). The number of waiting
    events is limited. While the broker is unreachable, events are read from the store, some seconds late. Messages
    have content only if the cluster sends it, and never if they are read from the store.

    Args:
        nats_url: The address of the broker, or several with commas between them.
        store: The address of the shared store, or a store. Without a store, a gap can't be filled: it is skipped
            and counted in `remote_statistics`.
        cluster: The name of the cluster.
        since: The time of the first event, in microseconds since the epoch or as an aware datetime; None means
            now. With a time and a store, no event is delivered before the store can be reached.
        patience: Seconds to wait for an announced event that is not in the store. Later events of its run wait,
            too. After that time, the gap is skipped and counted. None waits without limit; `remote_statistics` and
            the log report the wait.
        sweep_seconds: Seconds between queries of the store for events that the broker didn't send, such as the
            last events of a process that died.
        clock: The clock.

    Raises:
        ConfigurationError: The address of the store can't be read.
    """

    def __init__(
        self,
        nats_url: str,
        *,
        store: Store | str | None = None,
        cluster: str = "callboard",
        since: int | datetime | None = None,
        patience: float | None = None,
        sweep_seconds: float = 10.0,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._broker = Broker(nats_url, f"{socket.gethostname()}:{os.getpid()} reader")
        self._own_store = store_to_read(StoreAddress(store)) if isinstance(store, str) else None
        shared = self._own_store if isinstance(store, str) else store
        self._events = RemoteEvents(
            BrokerEvents(self._broker, cluster),
            shared,
            clock,
            since=None if since is None else to_us(since),
            patience=math.inf if patience is None else patience,
            sweep_seconds=sweep_seconds,
        )
        super().__init__(self._events, speed=None, longest_pause=None, clock=clock)
        self.run_id = "remote"
        self._now_ns = clock.monotonic_ns

    @property
    def connected(self) -> bool:
        """Whether the broker can be reached."""
        return self._broker.connected

    def remote_statistics(self) -> RemoteStatistics:
        """A snapshot of the runs that are followed."""
        return self._events.statistics()

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        assert self._group is not None
        try:
            connected = anyio.Event()
            self._broker.on_reconnect(connected.set)
            self._group.start_soon(self._broker.run)
            with anyio.move_on_after(CONNECT_SECONDS):
                await connected.wait()
            await self._events.begin()
            self._group.start_soon(self._events.pump)
        except BaseException as error:  # otherwise the parts that have started would never be stopped
            await self.__aexit__(type(error), error, error.__traceback__)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            await super().__aexit__(kind, error, traceback)
        finally:
            with anyio.CancelScope(shield=True):
                await self._broker.close()
                if self._own_store is not None:
                    await self._own_store.close()
