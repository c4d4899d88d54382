"""An engine that is used where or when it can't be: every way in says what is wrong, and harms nothing."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from callboard import CallboardError, CancelledError, Engine, Session, WrongLoop
from tests.support.virtual_time import runs_on

from .slow_engines import WAYS, an_engine, drained

pytestmark = pytest.mark.anyio

OTHERS: dict[str, Callable[[Engine], Awaitable[object]]] = {
    "submit": lambda engine: engine.session("s:m").submit({}),
    "submit_stream": lambda engine: drained(engine.session("s:m").submit_stream({})),
    "resume": lambda engine: engine.resume("ses_1"),
    "sessions": lambda engine: engine.sessions(),
    "delete_session": lambda engine: engine.delete_session("ses_1"),
    "import_session": lambda engine: engine.import_session(b"{}"),
    "reload": lambda engine: engine.reload(),
    "reprice": lambda engine: engine.reprice("first"),
    "undo_reprice": lambda engine: engine.undo_reprice(),
    "flush": lambda engine: engine.flush(),
    "resume_video": lambda engine: engine.resume_video("video_1", "s:m"),
    "start": lambda engine: engine.start(),
}
EVERY_WAY = {**WAYS, **OTHERS}

anyio_backend = runs_on("asyncio")


async def elsewhere(use: Callable[[], Any]) -> BaseException | None:
    """What it raises in another thread, on a loop of its own."""

    async def there() -> BaseException | None:
        try:
            async with asyncio.timeout(20):
                found = use()
                if inspect.isawaitable(found):
                    await found
        except Exception as error:
            return error
        return None

    return await asyncio.to_thread(asyncio.run, there())


@pytest.mark.parametrize("way", EVERY_WAY)
async def test_a_closed_engine_says_so(way: str) -> None:
    """Whatever is asked of it."""
    engine = an_engine()
    await engine.start()
    await engine.aclose()
    with pytest.raises(CallboardError, match="this engine is closed; make a new one"):
        await EVERY_WAY[way](engine)


@pytest.mark.parametrize("way", [*EVERY_WAY, "aclose", "attach"])
async def test_another_loop_is_told_where_the_engine_is(way: str) -> None:
    """It is refused before anything is waited for that would never come there."""
    ways = {**EVERY_WAY, "aclose": Engine.aclose, "attach": lambda engine: engine.attach("trn_1")}
    async with an_engine() as engine:
        error = await elsewhere(lambda: ways[way](engine))
        assert isinstance(error, WrongLoop)
        assert "its own loop" in str(error)


USES: dict[str, Callable[[Session, Any], Any]] = {
    "Session.cancel": lambda session, turn: session.cancel(),
    "cancel": lambda session, turn: turn.cancel(),
    "message": lambda session, turn: turn.message(),
    "iterate": lambda session, turn: drained_here(turn),
    "text_stream": lambda session, turn: drained_here(turn.text_stream),
    "exit": lambda session, turn: turn.__aexit__(None, None, None),
}


async def drained_here(events: Any) -> None:
    async for _ in events:
        pass


@pytest.mark.parametrize("use", USES)
async def test_a_turn_is_left_alone_by_another_loop(use: str) -> None:
    """It can't be awaited, cancelled or left there, and goes on where it is; the error says what can be done."""
    async with an_engine() as engine:
        session = engine.session("s:m")
        async with session.stream("Hi") as turn:
            assert await anext(aiter(turn))
            error = await elsewhere(lambda: USES[use](session, turn))
            assert isinstance(error, WrongLoop)
            assert ("AbortController" in str(error)) is use.lower().endswith("cancel")
            assert await turn.cancel()
            with pytest.raises(CancelledError):
                await turn.message()


@pytest.mark.parametrize("use", ["cancel", "aclose", "result", "response"])
@pytest.mark.parametrize("kind", ["stream", "stream_object"])
async def test_a_stream_is_left_alone_by_another_loop(kind: str, use: str) -> None:
    """The same of the streams without a session."""
    async with an_engine() as engine:
        made: Any = (
            engine.stream("s:m", "Hi") if kind == "stream" else engine.stream_object("s:m", "Hi", schema=int)
        )
        async with made as stream:
            use = "object" if (kind, use) == ("stream_object", "response") else use
            error = await elsewhere(lambda: getattr(stream, use)())
            assert isinstance(error, WrongLoop)
            assert await stream.cancel()


def test_without_a_loop_a_turn_is_refused_with_what_to_call_instead() -> None:
    """Where a plain program forgets that it has none."""
    engine = an_engine()
    with pytest.raises(CallboardError, match=r"no event loop.*stream_sync\(\)"):
        engine.stream("s:m", "Hi")
    with pytest.raises(CallboardError, match=r"no event loop.*run_sync\(\)"):
        engine.session("s:m").stream("Hi")


async def test_an_engine_that_was_closed_can_be_closed_from_anywhere() -> None:
    """There is nothing left to do, and the report is the same."""
    engine = an_engine()
    await engine.start()
    report = await engine.aclose()
    assert await asyncio.to_thread(asyncio.run, engine.aclose()) == report
