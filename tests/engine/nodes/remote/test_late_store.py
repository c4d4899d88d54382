"""A reader from now on whose store can't be asked at the beginning."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from datetime import datetime
from pathlib import Path

import anyio
import pytest

from callboard.bus import Envelope, StoreUnavailable
from callboard.bus.events.sessions import SessionCreated
from callboard.engine.nodes import remote_source
from callboard.engine.nodes.broker_streams import KeptMessage, StreamPosition
from callboard.engine.nodes.remote_source import RemoteEvents
from callboard.tracestore import TraceStore
from tests.support.virtual_time import FakeClock

pytestmark = pytest.mark.anyio


class Nothing:
    """A broker that keeps nothing and hears nothing."""

    async def heads(self) -> tuple[StreamPosition | None, list[str]]:
        return None, []

    async def read(self, after: StreamPosition | datetime | None) -> AsyncIterator[KeptMessage]:
        await anyio.sleep_forever()
        yield KeptMessage(StreamPosition("", 0), b"")


class LateStore(TraceStore):
    """A store that can't be asked for a while."""

    gone = True

    async def run_positions(self, since_us: int) -> Mapping[str, int]:  # type: ignore[override]
        if self.gone:
            raise StoreUnavailable("gone")
        return await super().run_positions(since_us)


async def test_what_happened_before_the_store_could_be_asked_is_not_missed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though the broker has nothing of it. What happened before the reader came isn't given."""
    monkeypatch.setattr(remote_source, "GRACE_SECONDS", 0.01)
    clock = FakeClock()
    now_us = clock.now_us()

    def event(seq: int, at_us: int, run: str = "run_a") -> Envelope:
        return Envelope(seq, run, at_us, at_us * 1000, SessionCreated(model="s:m"), session_id="s")

    async with LateStore(tmp_path / "t.db") as store:
        await store.write([event(1, now_us - 9), event(2, now_us - 5), event(1, now_us - 7, "run_quiet")])
        events = RemoteEvents(Nothing(), store, clock, since=None, patience=9.0, sweep_seconds=0.05)
        await events.begin()
        await store.write([event(3, now_us + 10**9), event(4, now_us + 10**9 + 1)])
        store.gone = False
        with anyio.fail_after(10):
            assert [((found := await anext(events)).run_id, found.seq) for _ in range(2)] == [
                ("run_a", 3),
                ("run_a", 4),
            ]
            await store.write([event(2, now_us + 10**9, "run_quiet")])
            assert (await anext(events)).run_id == "run_quiet"
