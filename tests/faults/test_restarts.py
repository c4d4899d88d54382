"""What a turn meets while something it needs is being restarted."""

from __future__ import annotations

import asyncio

import anyio
import pytest

from callboard import ActorStopped, AdapterError, CancelledError, Session
from tests.support.engines import running
from tests.support.scripted import Say

from .toy_engines import check_ends

pytestmark = pytest.mark.anyio


async def test_the_next_turn_finds_a_fresh_adapter() -> None:
    """A crash of the actor fails the calls under way; a turn that comes meanwhile waits for the restart."""
    async with running(Say("never", pause=anyio.sleep_forever), Say("fresh")) as (engine, events):
        first, second = engine.session("s:m"), engine.session("s:m")
        sending = asyncio.create_task(first.send("Hi"))
        await anyio.sleep(1)
        engine._runtime.adapters.running["s"].ref.tell("no adapter understands this")
        with pytest.raises(AdapterError, match="actor stopped"):
            await sending
        assert not engine._runtime.adapters.running["s"].ref.running
        assert (await second.send("Hi")).text == "fresh"
        assert check_ends(events.take()) == 2


async def test_the_next_turn_finds_a_fresh_session_manager() -> None:
    """A crash of the manager ends its turns; histories survive, and a turn that comes meanwhile waits."""
    async with running(Say("one"), Say("never", pause=anyio.sleep_forever), Say("two")) as (engine, events):
        session = engine.session("s:m")
        await session.send("Hi")
        sending = asyncio.create_task(session.send("Hi"))
        await anyio.sleep(1)
        manager = (await engine._host.living()).manager
        manager.tell("no manager understands this")
        with pytest.raises(CancelledError, match="session manager stopped"):
            await sending
        assert not manager.running
        assert (await session.send("Hi")).text == "two"
        assert [message.text for message in session.messages] == ["Hi", "one", "Hi", "two"]
        assert check_ends(events.take()) == 3


async def test_a_turn_that_nobody_can_run_gives_its_place_back() -> None:
    """A turn that finds the manager stopped for good fails, and leaves no waiting turn and no open stream."""
    async with running(Say("one")) as (engine, _):
        session = engine.session("s:m")
        await session.send("Hi")
        manager = (await engine._host.living()).manager
        manager._close()  # as its supervisor does at the end
        assert manager._life is not None
        manager._life.phase = "ended"
        with pytest.raises(ActorStopped):
            await session.send("Hi")
        assert _waiting(session) == 0
        assert engine.streams.statistics().open == 0
        manager._life.phase = "running"


def _waiting(session: Session) -> int:
    return session._state.waiting
