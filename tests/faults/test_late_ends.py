"""Adapters that don't do as they are told, and what still holds."""

from __future__ import annotations

import anyio
import pytest

from callboard.adapters import (
    AdapterError,
    AttemptFailed,
    AttemptObserver,
    AttemptStarted,
    CancelledError,
    CanonicalRequest,
    MessageComplete,
    MessageStart,
    NetworkError,
    StopReason,
    ToolDefinition,
    ToolUseBlock,
)
from callboard.adapters.http.stream import HttpStream
from callboard.adapters.requests.history import NOT_EXECUTED
from callboard.bus import Json, Lossless, StreamReset, TurnComplete
from callboard.engine import Engine, Tool
from tests.support.engines import running, said, serving
from tests.support.scripted import Say, ScriptedAdapter

from .toy_engines import check_ends

pytestmark = pytest.mark.anyio


class Deaf(ScriptedAdapter):
    """Hears no cancel; and when its task is killed, says that it tries again."""

    def stream(self, request: CanonicalRequest, *, on_attempt: AttemptObserver | None = None) -> HttpStream:
        assert on_attempt is not None
        self.tell = on_attempt
        return super().stream(request, on_attempt=on_attempt)

    async def cancel(self, request_id: str) -> bool:
        return False

    async def close(self) -> None:
        deaf.remove(self)


deaf: list[Deaf] = []


class DeafOnce(Deaf):
    """Its first reply never comes."""

    def say(self, request: CanonicalRequest) -> Say:
        deaf.append(self)

        async def stubborn() -> None:
            try:
                await anyio.sleep_forever()
            finally:
                self.tell(AttemptFailed(1, NetworkError("said too late"), 0.1))
                self.tell(AttemptStarted(2, "retry"))

        return Say("never", pause=stubborn)


class DeafWithTool(Deaf):
    """Its reply comes after a second and asks for a tool, whoever has cancelled it."""

    def say(self, request: CanonicalRequest) -> Say:
        deaf.append(self)
        return Say("let me", calls=[("act", {})], pause=lambda: anyio.sleep(0.5))


def engine_of(kind: type[Deaf]) -> Engine:
    return Engine(models=serving(deaf=f"{__name__}:{kind.__name__}"), trace=False)


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
async def test_what_a_killed_call_says_after_its_end_is_not_published(streamed: bool) -> None:
    """A call that does not obey is killed after its grace; its attempt has one end, and no other begins."""
    engine = engine_of(DeafOnce)
    events = engine.bus.subscribe("llm.*", policy=Lossless())
    async with engine:
        session = engine.session("deaf:m")
        with anyio.move_on_after(1) as limit:
            await said(session, "Hi", streamed=streamed)
        assert limit.cancelled_caught
        await anyio.sleep(1)
        taken = events.take()
        assert [envelope.topic for envelope in taken] == ["llm.call_started", "llm.call_failed"]
        assert check_ends(taken) == 1


async def test_a_cancel_that_comes_too_late_for_the_call_still_stops_its_tools() -> None:
    """When the reply comes although the turn is cancelled, it is kept, and its tool calls are not executed."""
    ran: list[Json] = []

    async def act(arguments: Json) -> Json:
        ran.append(arguments)
        return "done"

    async with engine_of(DeafWithTool) as engine:
        session = engine.session("deaf:m", tools=[Tool(ToolDefinition("act"), act)])

        async def cancel() -> None:
            await anyio.sleep(0.7)
            await session.cancel()

        async with anyio.create_task_group() as group:
            group.start_soon(cancel)
            with pytest.raises(CancelledError, match="tools were not run"):
                await session.send("Hi")
        assert not ran
        assert isinstance(session.messages[-2].content[-1], ToolUseBlock)
        assert session.messages[-1].content[0].text == NOT_EXECUTED  # type: ignore[union-attr]
        assert session.pending_calls == ()


async def test_a_huge_stream_that_breaks_off_has_its_end() -> None:
    """Also when the first part of its log is folded, a crashed stream ends in a message with all that came."""
    piece = "x" * 20_000
    async with running(Say(*[piece] * 700, fails=ZeroDivisionError("bug"))) as (engine, _):
        session = engine.session("s:m")
        with pytest.raises(AdapterError, match="crashed"):
            async with session.stream("Hi") as turn:
                await turn.message()
        assert len(session.messages[-1].text) == 700 * len(piece)
        events = [event async for event in engine.attach(turn.stream_id)]
        flat = [
            inner for event in events for inner in (event.snapshot if isinstance(event, StreamReset) else [event])
        ]
        assert isinstance(flat[0], MessageStart)
        assert isinstance(flat[-2], MessageComplete)
        assert flat[-2].stop_reason is StopReason.ERROR
        assert isinstance(flat[-1], TurnComplete)
