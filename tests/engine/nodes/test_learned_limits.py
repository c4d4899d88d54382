"""The nodes of a cluster share learned rate limits and unavailable models."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from callboard.adapters import AdapterConfig, RateLimitError, RateLimitWaitError
from callboard.bus import SYSTEM_CLOCK, Bus, ProviderAvailabilityChanged
from callboard.engine import Cluster, Engine
from callboard.engine.models.entries import AdapterEntry
from callboard.engine.nodes import availability
from callboard.engine.nodes.availability import SharedAvailability
from callboard.engine.nodes.rate_limits import TELL_SECONDS, LearnedLimits
from callboard.engine.routing.availability import AvailabilityTable
from callboard.engine.routing.learned_limits import Headers, Reading
from callboard.engine.routing.rate_limits import RateLimits
from callboard.engine.routing.rate_slots import LimitObservation

from ...support.cluster_engines import node_of, until
from ...support.engines import entry, registry, serving
from ...support.nats_server import own_nats_server, why_no_nats
from ...support.scripted import Say, scripted_type
from ...support.virtual_time import FakeClock, run_virtual

# Rate limits that one node learns apply to all nodes.

ENTRY = AdapterEntry(name="s", type="scripted", config=AdapterConfig())


class Wire:
    """A broker that delivers each message immediately to all receivers."""

    def __init__(self) -> None:
        self.receivers: list[Callable[[str, bytes, str], None]] = []
        self.sent = 0

    def publish(self, subject: str, payload: bytes, /) -> bool:
        self.sent += 1
        for receive in self.receivers:
            receive(subject, payload, "")
        return True

    def listen(self, _subject: str, receive: Callable[[str, bytes, str], None], /) -> None:
        self.receivers.append(receive)


class TimedWire(Wire):
    """The same, with the times of the messages."""

    def __init__(self) -> None:
        super().__init__()
        self.sent_at: list[float] = []

    def publish(self, subject: str, payload: bytes, /) -> bool:
        self.sent_at.append(anyio.current_time())
        return super().publish(subject, payload)


class Host:
    """A node, and the rate limits of its engine."""

    def __init__(self, wire: Wire, name: str) -> None:
        self.part = LearnedLimits(name, "c", wire)
        self.limits = RateLimits()
        self.part.share(self.limits)

    def goes(self) -> bool:
        """Whether a request could be sent now. The first request creates the limiter."""
        return self.limits.lease(ENTRY, "", "s:m", 0, (1, 0)).ask()


async def both(wire: Wire, say: Callable[[Host, Host], Awaitable[object]]) -> Host:
    """Run two nodes and call `say` with them. Return the second node."""
    one, other = Host(wire, "one"), Host(wire, "other")
    async with anyio.create_task_group() as group:
        for host in (one, other):
            group.start_soon(host.part.run)
        await anyio.sleep(0.01)
        await say(one, other)
        await anyio.sleep(2 * TELL_SECONDS)
        group.cancel_scope.cancel()
    return other


def refused(seconds: float) -> LimitObservation:
    return LimitObservation("s:m", pause_us=round(seconds * 1e6))


def left(requests: float) -> LimitObservation:
    return LimitObservation("s:m", Headers(Reading(10.0, requests, 60_000_000)), opens=True)


@pytest.mark.parametrize("used", [True, False])
def test_a_refusal_of_one_node_pauses_the_others(used: bool) -> None:
    """A node that has not used the provider yet pauses too. The pause has the length that the provider gave."""

    async def work() -> None:
        async def say(one: Host, other: Host) -> None:
            if used:
                assert other.goes()
            one.part.note("s", "", refused(10.0))

        other = await both(Wire(), say)
        assert not other.goes()
        await anyio.sleep(8)
        assert not other.goes(), "the request that already waits must go first"
        (line,) = other.limits.queues("s")
        assert line.why == "probe"

    run_virtual(work)


def test_the_remaining_requests_are_published_once_a_second_and_a_refusal_immediately() -> None:
    """If several replies report the remaining requests, the last report counts."""

    async def work() -> None:
        wire = TimedWire()

        async def say(one: Host, _: Host) -> None:
            for number in range(20):
                one.part.note("s", "", left(20.0 - number))
                await anyio.sleep(0.1)

        other = await both(wire, say)
        assert [round(at, 1) for at in wire.sent_at] == [0.0, 1.0, 2.0]
        assert [other.goes() for _ in range(2)] == [True, False]

        async def refuse(one: Host, _: Host) -> None:
            for observation in (left(5.0), left(4.0), refused(5.0)):
                one.part.note("s", "", observation)
                await anyio.sleep(0.1)

        wire = TimedWire()
        await both(wire, refuse)
        assert [round(at - wire.sent_at[0], 1) for at in wire.sent_at] == [0.0, 0.2]

    run_virtual(work)


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.skipif(why_no_nats() is not None, reason=str(why_no_nats()))
async def test_an_engine_sends_nothing_to_a_provider_that_refused_another_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CALLBOARD_HOME", str(tmp_path / "home"))
    config = AdapterConfig(max_wait_seconds=0)
    refusal = Say(fails=RateLimitError("slow down", retry_after_seconds=30.0, retryable=True, provider="s"))

    def node(reply: Say, nats: str) -> Engine:
        models = serving(s=entry("s", scripted_type(reply), config))
        return Engine(models=models, trace=False, cluster=Cluster(nats=nats))

    with own_nats_server() as server:
        async with node(refusal, server.url) as a, node(Say("Hello."), server.url) as b:
            await until(lambda: all(node_of(engine).broker.connected for engine in (a, b)))
            with pytest.raises(RateLimitError, match="slow down"):
                await a.generate("s:m", "Hi")
            await until(lambda: b._runtime.rate_limits._early)
            with pytest.raises(RateLimitWaitError) as waits:
                await b.generate("s:m", "Hi")
            assert waits.value.retry_after_seconds is not None
            assert 20 < waits.value.retry_after_seconds <= 30


# The availability that one node finds applies to all nodes. The latest retry time counts.

SECOND = 1_000_000
REASON = "server_error: ServerError"


class ProbeHost:
    """A node with a clock that can be wrong."""

    def __init__(self, wire: Wire, name: str, clock_is_wrong_by: float = 0.0) -> None:
        self.clock = FakeClock()
        self.clock.now_us = lambda: self.now  # type: ignore[method-assign]
        self.now = round((1_000_000 + clock_is_wrong_by) * SECOND)
        self.table = AvailabilityTable()
        self.bus = Bus(run_id=name)
        self.part = SharedAvailability(name, "c", wire, self.table, self.bus, self.clock)

    def finds(self, state: str, seconds: float | None = None, reason: str = REASON) -> None:
        """Publish the state that the node found by its own calls."""
        at = None if seconds is None else self.now + round(seconds * SECOND)
        change = ProviderAvailabilityChanged(
            provider="p", model=None, previous="available", current=state, reason=reason, retry_at_us=at
        )
        self.part._changed(change)
        for known in list(self.part._open.values()):
            self.part._publish(known)

    @property
    def waits(self) -> float | None:
        """The seconds until a call with a choice can use the provider, or 0 if the provider is available."""
        standing = self.table.readiness("p", "p:m", self.now)
        return 0.0 if standing.kind != "closed" else standing.retry_after_seconds


@pytest.mark.parametrize("hours", [0, 1, -1])
def test_a_provider_that_is_unavailable_for_one_node_is_avoided_by_all(hours: int) -> None:
    """The pause has the same length on every node, even with a wrong clock."""
    wire = Wire()
    one, other = ProbeHost(wire, "one"), ProbeHost(wire, "other", hours * 3600.0)
    changes = other.bus.subscribe("provider.availability_changed")
    one.finds("unavailable", 30.0)
    assert other.waits == 30.0
    (change,) = changes.take()
    assert isinstance(change.data, ProviderAvailabilityChanged)
    assert (change.data.current, change.data.node, change.data.reason) == ("unavailable", "one", REASON)


@pytest.mark.parametrize("reason", ["network: NetworkError", "adapter_crashed", "key refused"])
def test_local_reasons_are_not_published(reason: str) -> None:
    """Such reasons are the host's network, its process and its key."""
    wire = Wire()
    one, other = ProbeHost(wire, "one"), ProbeHost(wire, "other")
    one.finds("unavailable", 30.0, reason)
    assert other.waits == 0.0


def test_a_received_state_is_not_published_again() -> None:
    wire = Wire()
    one, other = ProbeHost(wire, "one"), ProbeHost(wire, "other")
    changes = other.bus.subscribe("provider.availability_changed")
    one.finds("unavailable", 30.0)
    sent = wire.sent
    for envelope in changes.take():
        other.part._changed(envelope.data)  # type: ignore[arg-type]
    assert (other.part._open, wire.sent) == ({}, sent)


def test_a_provider_that_is_available_again_for_one_node_is_probed_by_all() -> None:
    """The other node makes one probe call immediately. The state of another node is no proof."""
    wire = Wire()
    one, other = ProbeHost(wire, "one"), ProbeHost(wire, "other")
    one.finds("unavailable", 30.0)
    one.finds("available")
    assert other.waits == 0.0
    assert other.table.state("p") == "unavailable"
    other.table.begin("p", "p:m", "req_1", other.now)
    assert other.table.state("p") == "probing"


def test_a_nodes_own_calls_decide() -> None:
    """A recovery on another node does not open a provider that local calls have closed. A local probe decides."""
    table = AvailabilityTable()
    table.crashed("p", 0)
    assert table.found_elsewhere("p", None, "available", "", None, 0, "other") == ()
    assert table.readiness("p", "p:m", 0).kind == "closed"
    table.begin("p", "p:m", "req_1", 40 * SECOND)
    assert table.found_elsewhere("p", None, "unavailable", REASON, 90 * SECOND, 40 * SECOND, "other") == ()
    assert table.state("p") == "probing"


told = st.tuples(st.sampled_from(["degraded", "unavailable"]), st.integers(1, 100))


@given(st.lists(told, min_size=1, max_size=8), st.data())
def test_the_latest_time_counts_in_any_order(said: list[tuple[str, int]], data: Any) -> None:
    def heard(order: list[tuple[str, int]]) -> float | None:
        table = AvailabilityTable()
        for state, seconds in order:
            table.found_elsewhere("p", None, state, REASON, seconds * SECOND, 0, "other")
        return table.readiness("p", "p:m", 0).retry_after_seconds if table.state("p") == "unavailable" else None

    times = [seconds for state, seconds in said if state == "unavailable"]
    shuffled = data.draw(st.permutations(said)) + data.draw(st.lists(st.sampled_from(said), max_size=3))
    assert heard(said) == heard(shuffled) == max(times, default=None)


@pytest.mark.skipif(why_no_nats() is not None, reason=why_no_nats() or "")
async def test_engines_share_the_state_of_providers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The state goes over the broker. A node that starts later receives it too."""
    monkeypatch.setenv("CALLBOARD_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(availability, "REPEAT_SECONDS", 0.1)
    with own_nats_server() as server:

        def engine(name: str) -> Engine:
            cluster = Cluster(nats=server.url)
            return Engine(models=registry(Say("Hello.")), store=tmp_path / f"{name}.db", cluster=cluster)

        one, other = engine("one"), engine("other")
        changes = other.bus.subscribe("provider.availability_changed")
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
                    change = (await anext(changes)).data
                assert isinstance(change, ProviderAvailabilityChanged)
                assert change.node == one.bus.run_id
                (found,) = other.statistics().availability
                assert (found.provider, found.state) == ("s", "unavailable")
