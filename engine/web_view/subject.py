"""What a live view shows: an engine, a trace that another process writes, or both.

Questions about the past go to a store of our own that only reads, opened for the question and closed behind it, so
that no question waits in the queue of the engine's writer. What changes the trace goes through the engine, which
then shows it in its sessions and on its bus; without an engine, through a store that is opened for the change.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio

from callboard.bus import SYSTEM_CLOCK, CallboardError, Clock, StoreError
from callboard.tracestore import Store

from ..engine import Engine
from ..opening import existing_store, place_to_read, store_to_read
from ..store_address import StoreAddress, TracePlace
from .tail import Tail

LOOK_SECONDS = 1.0
"""The time between two looks at a trace that others write."""


class Subject:
    """What is shown.

    Args:
        engine: The engine; None for a trace alone.
        trace: The trace: where it is, or a host's own store. None is the engine's.
        show_content: Whether to show what is said. None shows it if the engine captures it as it is.
        shared: Whether other processes write to the trace, too.
    """

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
        """Whether what is said now may be shown. What is stored was captured, and may."""

    @property
    def name(self) -> str:
        """The trace, without any password; or what there is instead."""
        match self._trace:
            case None:
                return "no trace"
            case Path() | StoreAddress():
                return str(self._trace)
            case _:
                return "a store of the host"

    @property
    def has_trace(self) -> bool:
        """Whether there is a trace to ask."""
        return self._trace is not None

    @property
    def state(self) -> str:
        """The state of the engine, or that there is none."""
        return "trace" if self.engine is None else self.engine.statistics().state

    async def started(self) -> Engine:
        """The engine, running.

        Raises:
            CallboardError: There is none, or it is closed.
        """
        if self.engine is None:
            raise CallboardError("this shows a trace; the engine that writes it is in another process")
        if not self.engine.closed:
            await self.engine.start()
        return self.engine

    @asynccontextmanager
    async def reading(self) -> AsyncIterator[Store]:
        """The trace, for questions.

        Raises:
            StoreError: There is no trace, or it can't be read.
        """
        trace = self._trace
        if trace is None:
            raise StoreError("this engine keeps no trace (trace=False), so there is no past to look at")
        if isinstance(trace, Path) and self.engine is not None:
            await self.started()  # which makes the file
        if isinstance(trace, Path | StoreAddress):
            async with store_to_read(trace) as store:
                yield store
        else:
            yield trace

    @asynccontextmanager
    async def writing(self) -> AsyncIterator[Store]:
        """The trace, for a change, where there is no engine.

        Raises:
            StoreError: The trace can't be used.
        """
        trace = self._trace
        if isinstance(trace, Path | StoreAddress):
            async with await existing_store(trace) as store:
                yield store
        else:
            async with self.reading() as store:
                yield store

    async def flush(self) -> None:
        """Have what was published so far in the trace."""
        if self.engine is not None and not self.engine.closed and self.has_trace:
            await self.engine.flush()

    async def changes(self, min_interval: float = 0.5) -> AsyncIterator[None]:
        """One item at once, and then whenever something may have changed."""
        if self.engine is not None and not self.shared:
            await self.started()
            async for _ in self.engine.changes(min_interval=min_interval):
                yield
            return
        if self.engine is not None:
            await self.started()
        async with self.reading() as store:
            known: object = None
            while self.engine is None or not self.engine.closed:
                found = (await store.last_event_id(), await store.current_prices(), self._pulse())
                if found != known or self._busy():
                    known = found
                    yield
                await anyio.sleep(LOOK_SECONDS)

    def _pulse(self) -> int:
        return 0 if self.engine is None else self.engine.bus.last_seq

    def _busy(self) -> bool:
        return self.engine is not None and self.engine.under_way(limit=0).total > 0
