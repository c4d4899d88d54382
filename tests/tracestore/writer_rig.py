"""A writer between a source that tests fill and a store that fails on demand."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import anyio.lowlevel

from callboard.bus.errors import StoreError
from callboard.bus.events import Envelope
from callboard.bus.events.operation import ActorStarted, StoreStateChanged
from callboard.tracestore import Capture, WriterCore, WriterOptions

from .trace_making import Maker

QUICK = WriterOptions(first_retry=0.01, longest_retry=0.02, spill_after=2, memory_events=4)


async def until(condition: Callable[[], object]) -> None:
    """Wait for a condition that has no event."""
    with anyio.fail_after(10):
        while not condition():  # noqa: ASYNC110 - see above
            await anyio.sleep(0.002)


class FakeSource:
    """A lossless subscription, filled by hand."""

    def __init__(self) -> None:
        self._waiting: list[Envelope] = []
        self._arrived = anyio.Event()
        self.closed = False

    @property
    def depth(self) -> int:
        return len(self._waiting)

    def put(self, *envelopes: Envelope) -> None:
        self._waiting += envelopes
        self._arrived.set()

    def close(self) -> None:
        self.closed = True
        self._arrived.set()

    def take(self, limit: int | None = None, /) -> list[Envelope]:
        taken, self._waiting = self._waiting[:limit], [] if limit is None else self._waiting[limit:]
        return taken

    async def wait(self) -> None:
        if not self._waiting and not self.closed:
            self._arrived = anyio.Event()
            await self._arrived.wait()


class FakeSink:
    """A store that fails on request."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.failure: Exception | None = None
        self.attempts = 0

    @property
    def seqs(self) -> list[int]:
        return [seq for batch in self.batches for seq in batch]

    async def write(self, envelopes: Sequence[Envelope], /) -> None:
        self.attempts += 1
        await anyio.lowlevel.checkpoint()
        if self.failure is not None:
            raise self.failure
        self.batches.append([envelope.seq for envelope in envelopes])


DISK_FULL = StoreError("trace.db: database or disk is full")


class Rig:
    """A writer between a fake source and a fake sink."""

    def __init__(self, folder: Path, options: WriterOptions = QUICK, capture: Capture | None = None) -> None:
        self.source, self.sink, self.make = FakeSource(), FakeSink(), Maker()
        self.states: list[StoreStateChanged] = []
        self.spill = folder / "trace.db.spill-run_test.jsonl"
        told = {"on_state": self.states.append, "options": options, "capture": capture}
        self.core = WriterCore(self.sink, self.source, spill_path=self.spill, **told)

    def publish(self, count: int = 1) -> None:
        self.source.put(*(self.make(ActorStarted(actor=f"a{n}")) for n in range(count)))

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Run the pump during the block."""
        async with anyio.create_task_group() as group:
            group.start_soon(self.core.run)
            yield
            group.cancel_scope.cancel()

    async def until(self, state: str) -> None:
        await until(lambda: self.core.state == state)

    @property
    def path(self) -> list[str]:
        return [change.current for change in self.states]
