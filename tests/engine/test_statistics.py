"""`engine.statistics()`: one snapshot of everything that counts, at any time of an engine's life."""

from __future__ import annotations

import anyio
import msgspec
import pytest

from callboard import AuthError, Engine, Limits, ServerError
from tests.support.engines import registry, running
from tests.support.present import present
from tests.support.scripted import Say

pytestmark = pytest.mark.anyio


async def test_an_engine_that_never_started_has_statistics() -> None:
    """Everything is there, and at zero."""
    fresh = Engine(models=registry(), trace=False)
    counted = fresh.statistics()
    assert (counted.state, counted.uptime_seconds, counted.sessions, counted.providers) == ("new", 0.0, 0, ())
    assert counted.supervisor is None
    assert counted.writer is None
    assert counted.prices_version == fresh.prices.version


async def test_a_running_turn_and_those_behind_it_are_counted() -> None:
    """One runs and holds a slot of its provider; the second waits for its session."""
    go = anyio.Event()
    async with running(Say("one", pause=go.wait), Say("two")) as (engine, _):
        session = engine.session("s:m")
        async with anyio.create_task_group() as group:
            group.start_soon(session.send, "first")
            group.start_soon(session.send, "second")
            await anyio.sleep(1)
            counted = engine.statistics()
            go.set()
        assert (counted.state, counted.sessions) == ("running", 1)
        assert (counted.turns_running, counted.turns_waiting) == (1, 1)
        (provider,) = counted.providers
        assert (provider.provider, provider.running, provider.in_flight, provider.waiting) == ("s", True, 1, 0)
        assert present(provider.adapter).calls == 1
        assert counted.streams.open == 2
        after = engine.statistics()
        assert (after.turns_running, after.turns_waiting, after.providers[0].in_flight) == (0, 0, 0)
        assert 0 < counted.uptime_seconds < after.uptime_seconds


async def test_calls_that_wait_for_a_slot_are_counted() -> None:
    """With one slot for a provider, the second session's call waits."""
    go = anyio.Event()
    script = [Say("one", pause=go.wait), Say("two")]
    async with Engine(models=registry(*script), trace=False, limits=Limits(calls_per_provider=1)) as engine:
        async with anyio.create_task_group() as group:
            for _ in range(2):
                group.start_soon(engine.session("s:m").send, "hello")
            await anyio.sleep(1)
            (provider,) = engine.statistics().providers
            go.set()
        assert (provider.in_flight, provider.waiting, provider.slots) == (1, 1, 1)


async def test_the_tree_of_supervision_and_the_availability_of_providers_are_in_it() -> None:
    """A key that is refused shows as an unavailable provider, with the reason."""
    async with running(Say(fails=AuthError("no"))) as (engine, _):
        with pytest.raises(AuthError):
            await engine.session("s:m").send("hello")
        await anyio.sleep(0.1)
        counted = engine.statistics()
        assert counted.supervisor is not None
        names = [child.name for child in counted.supervisor.children]
        assert names == ["availability", "session manager", "adapters"]
        below = counted.supervisor.children[-1].supervisor
        assert [child.name for child in present(below).children] == ["s"]
        (known,) = counted.availability
        assert (known.provider, known.state, known.reason) == ("s", "unavailable", "key refused")
        assert known.retry_at_us is not None


async def test_statistics_outlive_the_engine() -> None:
    """After the end they still tell what was counted, and the uptime stands still."""
    async with running(Say("one")) as (engine, _):
        await engine.session("s:m").send("hello")
        await anyio.sleep(2)
    counted = engine.statistics()
    assert counted.state == "closed"
    assert not present(counted.supervisor).running
    assert not counted.providers[0].running
    await anyio.sleep(5)
    assert engine.statistics().uptime_seconds == counted.uptime_seconds > 0


async def test_statistics_can_be_sent_as_json() -> None:
    """A host's metrics endpoint needs no more than an encoder."""
    async with running(Say(fails=ServerError("no", retryable=False))) as (engine, _):
        with pytest.raises(ServerError):
            await engine.session("s:m").send("hello")
        decoded = msgspec.json.decode(msgspec.json.encode(engine.statistics()))
    assert decoded["bus"]["published"] > 0
    assert decoded["providers"][0]["provider"] == "s"
