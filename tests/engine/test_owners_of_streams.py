"""A stream with an owner can be attached to by that owner only."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping

import anyio
import pytest

from callboard.bus import TurnComplete, UnknownStream
from callboard.bus.errors import CancelledError
from callboard.engine import Engine
from tests.support.engines import registry
from tests.support.scripted import Say

pytestmark = pytest.mark.anyio

OWNED = {"owner": "ada"}


async def of_a_session(engine: Engine, tags: Mapping[str, str]) -> str:
    async with engine.session("s:m", tags=tags).stream("Hi") as turn:
        await turn.message()
    return turn.stream_id


async def of_a_whole_reply(engine: Engine, tags: Mapping[str, str]) -> str:
    session = engine.session("s:m", tags=tags)
    await session.send("Hi")
    return engine.streams.streams()[-1].stream_id


async def of_a_fork(engine: Engine, tags: Mapping[str, str]) -> str:
    async with engine.session("s:m", tags=tags).fork().stream("Hi") as turn:
        await turn.message()
    return turn.stream_id


async def of_a_call(engine: Engine, tags: Mapping[str, str]) -> str:
    async with engine.stream("s:m", "Hi", tags=tags) as result:
        assert [event async for event in result]
    return result.stream_id


Makes = Callable[[Engine, Mapping[str, str]], object]


@pytest.fixture
async def engine() -> AsyncIterator[Engine]:
    async with Engine(models=registry(*[Say("Hello.")] * 9), trace=False) as engine:
        yield engine


@pytest.mark.parametrize("make", [of_a_session, of_a_whole_reply, of_a_fork, of_a_call])
async def test_a_stream_is_read_by_its_owner_only(engine: Engine, make: Makes) -> None:
    """For another owner, and for none, it is an unknown stream, in the same words."""
    owned, free = await make(engine, OWNED), await make(engine, {})  # type: ignore[misc]
    with anyio.fail_after(5):
        for stream_id, options in ((owned, {"owner": "ada"}), (owned, {"any_owner": True}), (free, {})):
            events = [event async for event in engine.attach(stream_id, **options)]
            assert events[-1] == TurnComplete("completed")
            view = engine.attach(stream_id, view=True, **options)
            assert "".join([text async for text in view.text_stream]) == "Hello."
    for stream_id, other in ((owned, None), (owned, "bob"), (owned, ""), (free, "ada"), (free, "")):
        for as_view in (False, True):
            with pytest.raises(UnknownStream) as refused:
                engine.attach(stream_id, owner=other, view=as_view)  # type: ignore[call-overload]
            unknown = "trn_01ARZ3NDEKTSV4RRFFQ69G5FAV"
            with pytest.raises(UnknownStream) as missing:
                engine.attach(unknown, owner=other, view=as_view)  # type: ignore[call-overload]
            assert str(refused.value) == str(missing.value).replace(unknown, stream_id)


async def test_the_engine_s_own_channel_refuses_others_too(engine: Engine) -> None:
    """`engine.streams` is no way around the owner."""
    stream_id = await of_a_session(engine, OWNED)
    with pytest.raises(UnknownStream):
        engine.streams.attach(stream_id)
    assert engine.streams.attach(stream_id, owner="ada").stream_id == stream_id


async def test_a_turn_is_cancelled_for_its_owner_only(engine: Engine) -> None:
    """The operator names none, and cancels any."""
    for owner, cancels in (("bob", False), ("ada", True), (None, True)):
        async with engine.session("s:m", tags=OWNED).stream("Hi") as turn:
            assert await engine.cancel(turn.stream_id, owner=owner) is cancels
            if cancels:
                with pytest.raises(CancelledError):
                    await turn.message()
            else:
                await turn.message()
