"""A shipper whose target is unreachable, in virtual time: its retries and its reports."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path

import anyio
import pytest

from callboard.bus.errors import StoreUnavailable
from callboard.bus.events import Event
from callboard.bus.events.operation import StoreShippingChanged
from callboard.tracestore import ShippingOptions, TraceShipper, TraceStore
from callboard.tracestore.shipping.shipment import START, Ending, Origin, Position, Shipment
from tests.support.virtual_time import FakeClock, runs_on
from tests.tracestore.shipping.test_shipping import of_run

anyio_backend = runs_on("virtual-asyncio")


class Target:
    """A shared store that is unreachable for a while. It records the time of each attempt.

    Args:
        back_at: The time from which it is reachable.
        times: The number of attempts to wait for.
    """

    name = "postgresql://somewhere/trace"

    def __init__(self, back_at: float, times: int) -> None:
        self.back_at = back_at
        self.tried: list[float] = []
        self.enough = anyio.Event()
        self.taken = START
        self._times = times

    async def open(self) -> None:
        self.tried.append(anyio.current_time())
        if len(self.tried) == self._times:
            self.enough.set()
        if anyio.current_time() < self.back_at:
            raise StoreUnavailable("connection refused", reopen=False)

    async def close(self) -> None:
        pass

    async def position(self, origin: Origin) -> Position:
        return self.taken

    async def take(self, origin: Origin, shipment: Shipment) -> Position:
        self.taken = shipment.last
        return shipment.last

    async def erased(self, origin: Origin) -> int:
        return 0

    async def open_runs(self, origin: Origin) -> Collection[str]:
        return ()

    async def end_runs(self, endings: Mapping[str, Ending]) -> None:
        pass


@pytest.fixture
async def trace(tmp_path: Path) -> Path:
    path = tmp_path / "trace.db"
    async with TraceStore(path, clock=FakeClock()) as store:
        await store.write(of_run("one", 10))
    return path


async def test_the_waits_double_up_to_the_longest_and_all_is_sent_then(trace: Path) -> None:
    told: list[Event] = []
    target = Target(back_at=100.0, times=11)
    shipper = TraceShipper(trace, target, clock=FakeClock(), on_change=told.append)
    async with anyio.create_task_group() as group:
        group.start_soon(shipper.run)
        await target.enough.wait()
        group.cancel_scope.cancel()
    await shipper.close()
    # The shipper asks again if it has sent nothing for a minute.
    assert target.tried == [0.0, 0.5, 1.5, 3.5, 7.5, 15.5, 31.5, 61.5, 91.5, 121.5, 181.5]
    first, last = told
    assert isinstance(first, StoreShippingChanged)
    assert isinstance(last, StoreShippingChanged)
    assert (first.previous, first.current, first.behind) == ("shipping", "retrying", len(of_run("one", 10)))
    assert (last.previous, last.current) == ("retrying", "shipping")
    assert (target.taken.run_id, target.taken.seq) == ("one", len(of_run("one", 10)))


async def test_waiting_for_an_unreachable_target_causes_no_retry(trace: Path) -> None:
    """A turn that must be shipped before its reply gets False immediately, and causes no retry."""
    target = Target(back_at=1e9, times=2)
    failed = anyio.Event()
    shipper = TraceShipper(
        *(trace, target),
        clock=FakeClock(),
        options=ShippingOptions(first_retry=8.0),
        on_change=lambda event: failed.set(),
    )
    async with anyio.create_task_group() as group:
        group.start_soon(shipper.run)
        await failed.wait()
        for _ in range(3):
            assert not await shipper.shipped(5.0)
        await target.enough.wait()
        group.cancel_scope.cancel()
    await shipper.close()
    assert target.tried == [0.0, 8.0]
