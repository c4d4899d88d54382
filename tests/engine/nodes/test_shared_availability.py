"""What one node finds of a provider, all nodes act by: closed until the latest time that any of them has said."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from callboard.bus import SYSTEM_CLOCK, Bus, ProviderAvailabilityChanged
from callboard.engine import Cluster, Engine
from callboard.engine.nodes import availability
from callboard.engine.nodes.availability import SharedAvailability
from callboard.engine.routing.availability import AvailabilityTable
from tests.support.engines import registry
from tests.support.nats_server import own_nats_server, why_no_nats
from tests.support.scripted import Say
from tests.support.virtual_time import FakeClock

SECOND = 1_000_000
REASON = "server_error: ServerError"


class Wire:
    """A broker whose messages arrive at once, at everybody."""

    def __init__(self) -> None:
        self.receivers: list[Callable[[str, bytes, str], None]] = []
        self.sent = 0

    def publish(self, subject: str, payload: bytes, /) -> bool:
        self.sent += 1
        for receive in self.receivers:
            receive(subject, payload, "")
        return True

    async def subscribe(self, _subject: str, receive: Callable[[str, bytes, str], None], /) -> object:
        self.receivers.append(receive)
        return self


class Host:
    """A node, whose clock may be wrong."""

    def __init__(self, wire: Wire, name: str, clock_is_wrong_by: float = 0.0) -> None:
        self.clock = FakeClock()
        self.clock.now_us = lambda: self.now  # type: ignore[method-assign]
        self.now = round((1_000_000 + clock_is_wrong_by) * SECOND)
        self.table = AvailabilityTable()
        self.bus = Bus(run_id=name)
        self.part = SharedAvailability(name, "c", wire, self.table, self.bus, self.clock)
        wire.receivers.append(self.part.receive)

    def finds(self, state: str, seconds: float | None = None, reason: str = REASON) -> None:
        """What its own calls have shown."""
        at = None if seconds is None else self.now + round(seconds * SECOND)
        change = ProviderAvailabilityChanged(
            provider="p", model=None, previous="available", current=state, reason=reason, retry_at_us=at
        )
        self.part._changed(change)
        for known in list(self.part._open.values()):
            self.part._tell(known)

    @property
    def waits(self) -> float | None:
        """Seconds until a call with a choice may go there; 0 if it may now."""
        standing = self.table.standing("p", "p:m", self.now)
        return 0.0 if standing.kind != "closed" else standing.retry_after_seconds


@pytest.mark.parametrize("hours", [0, 1, -1])
def test_a_provider_that_one_node_leaves_alone_is_left_alone_by_all(hours: int) -> None:
    """For the seconds that it said, by whatever clock the others have."""
    wire = Wire()
    one, other = Host(wire, "one"), Host(wire, "other", hours * 3600.0)
    heard = other.bus.subscribe("provider.availability_changed")
    one.finds("unavailable", 30.0)
    assert other.waits == 30.0
    (change,) = heard.take()
    assert isinstance(change.data, ProviderAvailabilityChanged)
    assert (change.data.current, change.data.node, change.data.reason) == ("unavailable", "one", REASON)


@pytest.mark.parametrize("reason", ["network: NetworkError", "adapter_crashed", "key refused"])
def test_what_only_one_host_can_know_is_not_told(reason: str) -> None:
    """Its network, its process and its key."""
    wire = Wire()
    one, other = Host(wire, "one"), Host(wire, "other")
    one.finds("unavailable", 30.0, reason)
    assert other.waits == 0.0


def test_what_others_have_found_is_not_passed_on() -> None:
    """Or it would go round for ever."""
    wire = Wire()
    one, other = Host(wire, "one"), Host(wire, "other")
    heard = other.bus.subscribe("provider.availability_changed")
    one.finds("unavailable", 30.0)
    sent = wire.sent
    for envelope in heard.take():
        other.part._changed(envelope.data)  # type: ignore[arg-type]
    assert (other.part._open, wire.sent) == ({}, sent)


def test_a_provider_that_is_back_at_one_node_is_tried_by_all() -> None:
    """At once, and with one call: what others have found is no proof."""
    wire = Wire()
    one, other = Host(wire, "one"), Host(wire, "other")
    one.finds("unavailable", 30.0)
    one.finds("available")
    assert other.waits == 0.0
    assert other.table.state("p") == "unavailable"
    other.table.begin("p", "p:m", "req_1", other.now)
    assert other.table.state("p") == "probing"


def test_a_node_goes_by_what_it_found_itself() -> None:
    """That it is well elsewhere opens nothing here that was closed by calls from here; and a call that probes here
    decides.
    """
    table = AvailabilityTable()
    table.crashed("p", 0)
    assert table.found_elsewhere("p", None, "available", "", None, 0, "other") == ()
    assert table.standing("p", "p:m", 0).kind == "closed"
    table.begin("p", "p:m", "req_1", 40 * SECOND)
    assert table.found_elsewhere("p", None, "unavailable", REASON, 90 * SECOND, 40 * SECOND, "other") == ()
    assert table.state("p") == "probing"


told = st.tuples(st.sampled_from(["degraded", "unavailable"]), st.integers(1, 100))


@given(st.lists(told, min_size=1, max_size=8), st.data())
def test_the_latest_time_counts_in_whatever_order(said: list[tuple[str, int]], data: Any) -> None:
    """Messages may come in any order, and more than once."""

    def heard(order: list[tuple[str, int]]) -> float | None:
        table = AvailabilityTable()
        for state, seconds in order:
            table.found_elsewhere("p", None, state, REASON, seconds * SECOND, 0, "other")
        return table.standing("p", "p:m", 0).retry_after_seconds if table.state("p") == "unavailable" else None

    times = [seconds for state, seconds in said if state == "unavailable"]
    shuffled = data.draw(st.permutations(said)) + data.draw(st.lists(st.sampled_from(said), max_size=3))
    assert heard(said) == heard(shuffled) == max(times, default=None)


@pytest.mark.anyio
@pytest.mark.skipif(why_no_nats() is not None, reason=why_no_nats() or "")
async def test_engines_of_a_cluster_tell_each_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over the broker; a node that comes later is told, too."""
    monkeypatch.setenv("CALLBOARD_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(availability, "REPEAT_SECONDS", 0.1)
    with own_nats_server() as server:

        def engine(name: str) -> Engine:
            cluster = Cluster(nats=server.url)
            return Engine(models=registry(Say("Hello.")), store=tmp_path / f"{name}.db", cluster=cluster)

        one, other = engine("one"), engine("other")
        heard = other.bus.subscribe("provider.availability_changed")
        async with one:
            at = SYSTEM_CLOCK.now_us() + 60 * SECOND
            one.bus.publish(
                ProviderAvailabilityChanged(
                    provider="s",
                    model=None,
                    previous="available",
                    current="unavailable",
                    reason=REASON,
                    retry_at_us=at,
                )
            )
            async with other:
                with anyio.fail_after(20):
                    change = (await anext(heard)).data
                assert isinstance(change, ProviderAvailabilityChanged)
                assert change.node == one.bus.run_id
                (found,) = other.statistics().availability
                assert (found.provider, found.state) == ("s", "unavailable")
