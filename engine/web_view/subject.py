"""The subject of a live view: its engine or trace, and the latest events."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Literal, NamedTuple, TypeAlias, get_args

import anyio

from callboard.bus import (
    SYSTEM_CLOCK,
    Bus,
    CallboardError,
    Clock,
    DropOldest,
    Envelope,
    Gap,
    StoreError,
    Subscription,
)
from callboard.tracestore import Store

from ..engine import Engine
from ..stores import StoreAddress, TracePlace, existing_store, place_to_read, store_to_read

Scope: TypeAlias = Literal["view", "content", "change"]
"""``view``: all data but message content. ``content``: message content, if the engine captures it. ``change``:
cancel, reprice, undo."""

SCOPES: frozenset[Scope] = frozenset(get_args(Scope))


# --- The subject: an engine, a trace that another process writes, or both ---
# Queries about the past use a read-only store, which is opened for the query and closed after it. So a query does
# not block the engine's writer. Changes of the trace go through the engine, which updates its sessions and
# publishes on its bus. Without an engine, a store is opened for the change.


LOOK_SECONDS = 1.0
"""Seconds between two checks of a trace that other processes write."""


class Subject:
    """The engine or trace that is shown."""

    def __init__(
        self,
        engine: Engine | None,
        trace: TracePlace | Store | None = None,
        *,
        show_content: bool | None = None,
        shared: bool = False,
    ) -> None:
        self.engine = engine
        self.clock: Clock = engine.clock if engine is not None else SYSTEM_CLOCK
        self._trace = trace if trace is not None or engine is None else place_to_read(engine.store)
        self.shared = shared or engine is None
        self.tail = Tail(engine.bus) if engine is not None else None
        captured = engine is not None and engine.shows_content
        self.shows_live_content = captured if show_content is None else show_content
        """Whether live content may be shown. Stored content was captured, so it may be."""

    @property
    def name(self) -> str:
        """The name of the trace, without a password. Without a trace, a text that states this."""
        match self._trace:
            case None:
                return "no trace"
            case Path() | StoreAddress():
                return str(self._trace)
            case _:
                return "a store of the host"

    @property
    def has_trace(self) -> bool:
        return self._trace is not None

    async def started(self) -> Engine:
        if self.engine is None:
            raise CallboardError("this view shows a trace. Its engine runs in another process")
        if not self.engine.closed:
            await self.engine.start()
        return self.engine

    @asynccontextmanager
    async def reading(self) -> AsyncIterator[Store]:
        trace = self._trace
        if trace is None:
            raise StoreError("this engine keeps no trace (trace=False), so there are no recorded calls")
        if isinstance(trace, Path) and self.engine is not None:
            await self.started()  # opening the store creates the file
        if isinstance(trace, Path | StoreAddress):
            async with store_to_read(trace) as store:
                yield store
        else:
            yield trace

    @asynccontextmanager
    async def writing(self) -> AsyncIterator[Store]:
        """The trace, opened for a change. Used without an engine."""
        trace = self._trace
        if isinstance(trace, Path | StoreAddress):
            async with await existing_store(trace) as store:
                yield store
        else:
            async with self.reading() as store:
                yield store

    async def flush(self) -> None:
        """Commit all published events to the trace."""
        if self.engine is not None and not self.engine.closed and self.has_trace:
            await self.engine.flush()

    async def changes(self, min_interval: float = 0.5) -> AsyncIterator[None]:
        """Yield one item now, then one after each possible change."""
        if self.engine is not None:
            await self.started()
            if not self.shared:
                async for _ in self.engine.changes(min_interval=min_interval):
                    yield
                return
        async with self.reading() as store:
            former: object = None
            while self.engine is None or not self.engine.closed:
                seq = 0 if self.engine is None else self.engine.bus.last_seq
                found = (await store.last_event_id(), await store.current_prices(), seq)
                if found != former or (self.engine is not None and self.engine.in_progress(limit=0).total > 0):
                    former = found
                    yield
                await anyio.sleep(LOOK_SECONDS)


# --- The latest events ---
# While a page listens, one task reads events from one subscription into a ring buffer, for any number of pages. A
# page that reconnects sends the id of its last event. So the ring buffer is kept for some seconds after the last
# page has closed.


RING = 2000
"""The size of the ring buffer in events."""

LINGER_SECONDS = 30.0
"""Seconds for which the ring buffer is kept after the last page has closed."""


AT_MOST_EVERY = 0.1
"""The minimum number of seconds between two batches of events for one page."""


class EventBatch(NamedTuple):
    """A batch of events for a page."""

    missed: int  # the number of lost events before or among these events
    events: list[Envelope]  # the events that match its filter, the oldest first


class Tail:
    def __init__(self, bus: Bus, *, linger: float = LINGER_SECONDS) -> None:
        self._bus = bus
        self._linger = linger
        # the latest events, the oldest first; a `Gap` among them represents events that arrived too fast
        self.events: deque[Envelope] = deque(maxlen=RING)
        self._task: asyncio.Task[None] | None = None
        self._pages = 0
        self._last_reader_left: asyncio.Event = asyncio.Event()
        self._news: asyncio.Event = asyncio.Event()

    @property
    def running(self) -> bool:
        return self._task is not None and not self._task.done()

    @contextmanager
    def listening(self) -> Iterator[None]:
        self._pages += 1
        self._last_reader_left.set()
        if not self.running:
            self.events.clear()
            self._task = asyncio.create_task(self._run(), name="callboard live view")
        try:
            yield
        finally:
            self._pages -= 1
            self._last_reader_left.set()

    async def after(self, seq: int | None, matches: Callable[[Envelope], bool]) -> AsyncIterator[EventBatch]:
        """The events after a given event as they arrive, in order, until the bus closes."""
        position = self._bus.last_seq if seq is None else seq
        while True:
            found = [each for each in self.events if each.seq > position]
            if found:
                missed = max(_first_of(found[0]) - position - 1, 0)
                position = found[-1].seq
                missed += sum(each.data.count for each in found if isinstance(each.data, Gap))
                events = [each for each in found if not isinstance(each.data, Gap) and matches(each)]
                if missed or events:
                    yield EventBatch(missed, events)
                    await asyncio.sleep(AT_MOST_EVERY)
                continue
            if not self.running:
                return
            await self._news.wait()

    async def _run(self) -> None:
        with self._bus.subscribe(">", policy=DropOldest(RING), name="live view") as events:
            idle = asyncio.create_task(self._close_when_idle(events))
            try:
                while not events.closed or events.depth:
                    await events.wait()
                    self.events.extend(events.take())
                    self._report()
            finally:
                idle.cancel()
                self._task = None
                self._report()

    def _report(self) -> None:
        news, self._news = self._news, asyncio.Event()
        news.set()

    async def _close_when_idle(self, events: Subscription) -> None:
        """Close the subscription when no page has listened for `LINGER_SECONDS`."""
        while True:
            self._last_reader_left.clear()
            if self._pages:
                await self._last_reader_left.wait()
                continue
            with anyio.move_on_after(self._linger):
                await self._last_reader_left.wait()
                continue
            events.close()
            return


def _first_of(envelope: Envelope) -> int:
    """The number of the first event that an envelope represents."""
    return envelope.data.first if isinstance(envelope.data, Gap) else envelope.seq
