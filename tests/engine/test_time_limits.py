"""Time limits of turns, calls and tools, and calls that do not want to end."""

from __future__ import annotations

import anyio
import pytest

from callboard.adapters import (
    CancelledError,
    MessageComplete,
    RequestTimeoutError,
    StopReason,
    StreamEvent,
    TextBlock,
    ToolDefinition,
    UsageSource,
)
from callboard.bus import LlmCallCompleted, LlmCallFailed, Subscription, TurnComplete
from callboard.engine import Engine, Limits, Timeouts, Tool
from callboard.engine.calls.call import CANCEL_GRACE_SECONDS
from tests.support.engines import entry, registry, serving, talking
from tests.support.present import present
from tests.support.scripted import Say, ScriptedAdapter, scripted_type

pytestmark = pytest.mark.anyio

SLOW = anyio.sleep_forever


def terminals(events: Subscription) -> list[LlmCallCompleted | LlmCallFailed]:
    """The events that ended a call."""
    said = [envelope.data for envelope in events.take()]
    return [
        event
        for event in said
        if isinstance(event, LlmCallCompleted) or (isinstance(event, LlmCallFailed) and not event.will_retry)
    ]


async def wait(seconds: float) -> None:
    await anyio.sleep(seconds)


async def test_a_turn_out_of_time_keeps_what_came_and_fails() -> None:
    """The call is cancelled in order, its part of the reply enters the history, the turn ends as failed."""
    async with talking(Say("Well, ", "ever", pause=lambda: wait(2))) as (session, events):
        with pytest.raises(RequestTimeoutError, match="turn took longer than 3 s") as caught:
            async with session.stream("Hello", timeout=3) as turn:
                await turn.message()
        assert anyio.current_time() == pytest.approx(3)
        assert caught.value.content == (TextBlock("Well, "),)
        assert [message.text for message in session.messages] == ["Hello", "Well, "]
        assert present(session.messages[-1].metadata).stop_reason is StopReason.CANCELLED
        log = caught.value.turn.log  # type: ignore[attr-defined]  # documented on Session.send
        assert isinstance(log.since(0)[-1], TurnComplete)
        assert log.since(0)[-1].status == "failed"
        (terminal,) = terminals(events)
        assert isinstance(terminal, LlmCallFailed)
        assert terminal.error_class == "cancelled"  # the host's limit: nothing that a provider did wrong


async def test_the_engine_gives_turns_their_time_unless_a_send_does() -> None:
    """`Timeouts.turn` holds for all; one `send` may have more."""
    models = registry(Say("late", pause=lambda: wait(3)), Say("late", pause=lambda: wait(3)))
    async with Engine(models=models, trace=False, timeouts=Timeouts(turn=4)) as engine:
        session = engine.session("s:m")
        with pytest.raises(RequestTimeoutError):
            await session.send("Hello")
        assert (await session.send("Hello", timeout=20)).text == "late"


async def test_the_time_of_a_turn_includes_its_tools_and_its_waiting() -> None:
    """A tool under way is cancelled, and so is a turn that has not begun."""
    cut: list[str] = []

    async def forever(arguments: object) -> str:
        try:
            await SLOW()
        finally:
            cut.append("cut")

    tool = Tool(ToolDefinition("dig", "Dig."), forever, timeout=1000)
    async with talking(Say(calls=[("dig", {})]), tools=[tool]) as (session, _):
        failures: list[type[Exception]] = []

        async def send(seconds: float) -> None:
            try:
                await session.send("Dig", timeout=seconds)
            except RequestTimeoutError as error:
                failures.append(type(error))

        async with anyio.create_task_group() as group:
            group.start_soon(send, 5)
            await anyio.sleep(0.1)
            group.start_soon(send, 2)
        assert failures == [RequestTimeoutError] * 2
        assert cut == ["cut"]
        assert anyio.current_time() == pytest.approx(5)


@pytest.mark.parametrize("how", ["out of time", "cancelled"])
async def test_a_turn_that_ends_before_it_begins_asks_nobody(how: str) -> None:
    """It says only how it ended, and the turn behind it has its place."""
    async with talking(Say("later")) as (session, events):
        turn = session.stream("Hello", timeout=0 if how == "out of time" else None)
        if how == "out of time":
            with pytest.raises(RequestTimeoutError, match="turn took longer than 0 s"):
                await turn.message()
        else:
            async with turn:
                assert await turn.cancel()
                with pytest.raises(CancelledError):
                    await turn.message()
        said = {envelope.topic for envelope in events.take()}
        assert not said & {"session.turn_started", "llm.call_started"}
        assert "session.turn_completed" in said
        assert (await session.send("Hello")).text == "later"


@pytest.mark.parametrize("how", ["out of time", "cancelled"])
async def test_a_call_that_ends_while_it_waits_for_a_slot_leaves_the_slots_alone(how: str) -> None:
    """It has none to give back; whoever has the slot keeps it, and afterwards there is one, as before."""
    models = registry(Say("one", pause=lambda: wait(10)), *[Say("more", pause=lambda: wait(10))] * 2)
    async with Engine(models=models, trace=False, limits=Limits(calls_per_provider=1)) as engine:

        def slots() -> tuple[int, int]:
            (provider,) = engine.statistics().providers
            return provider.in_flight, provider.waiting

        first, waiting = engine.session("s:m"), engine.session("s:m")
        async with first.stream("Hello") as served, waiting.stream("Hello", timeout=3) as late:
            await anyio.sleep(1)
            assert slots() == (1, 1)
            if how == "cancelled":
                await late.cancel()
            with pytest.raises(RequestTimeoutError if how == "out of time" else CancelledError):
                await late.message()
            assert slots() == (1, 0)
            assert (await served.message()).text == "one"
        assert slots() == (0, 0)
        async with first.stream("Again") as served, waiting.stream("Again") as late:
            await anyio.sleep(1)
            assert slots() == (1, 1)
            await served.message()
            await late.message()


async def test_a_tool_has_the_engines_time_unless_its_own() -> None:
    """Out of time, the model reads so."""

    async def forever(arguments: object) -> str:
        await SLOW()
        return ""

    tools = [
        Tool(ToolDefinition("dig", "Dig."), forever),
        Tool(ToolDefinition("fill", "Fill."), forever, timeout=3),
    ]
    models = registry(Say(calls=[("dig", {}), ("fill", {})]), Say("Tired."))
    async with Engine(models=models, trace=False, timeouts=Timeouts(tool=7)) as engine:
        session = engine.session("s:m", tools=tools)
        await session.send("Work")
        results = session.messages[2].content
        assert [result.text for result in results] == [  # type: ignore[union-attr]
            "The tool took longer than 7 s.",
            "The tool took longer than 3 s.",
        ]


async def test_a_cancel_at_the_last_moment_is_a_cancel() -> None:
    """A turn that its host cancels before its time is up ends as cancelled."""
    async with talking(Say("Well", pause=lambda: wait(2))) as (session, _):
        async with session.stream("Hello", timeout=10) as turn:
            await anyio.sleep(3)
            await turn.cancel()
            with pytest.raises(CancelledError):
                await turn.message()


class Stubborn(ScriptedAdapter):
    """Shields its calls from every cancelling, and talks on."""

    async def cancel(self, request_id: str) -> bool:
        return True

    def stream(self, request, *, on_attempt=None):  # type: ignore[no-untyped-def]
        return _Shielded(super().stream(request, on_attempt=on_attempt))


class _Shielded:
    def __init__(self, inner: object) -> None:
        self.inner = inner

    response = None

    def __aiter__(self) -> _Shielded:
        return self

    async def __anext__(self) -> StreamEvent:
        with anyio.CancelScope(shield=True):
            return await self.inner.__anext__()  # type: ignore[attr-defined,no-any-return]

    async def aclose(self) -> None:
        pass

    async def __aenter__(self) -> _Shielded:
        return self

    async def __aexit__(self, *error: object) -> None:
        pass


async def test_a_call_whose_adapter_ignores_cancelling_ends_after_its_grace() -> None:
    """One terminal event, a stream that ends properly, and nothing of what the adapter still sends."""
    kind = scripted_type(Say("one", "two", "three", "four", pause=lambda: wait(4)), base=Stubborn)
    models = serving(s=entry("s", kind, max_concurrency=1))
    engine = Engine(models=models, trace=False, limits=Limits(calls_per_provider=1))
    events = engine.bus.subscribe("llm.*")
    async with engine:
        session = engine.session("s:m")
        async with session.stream("Hello") as turn:
            await anyio.sleep(5)
            began = anyio.current_time()
            await turn.cancel()
            with pytest.raises(CancelledError):
                await turn.message()
            assert anyio.current_time() - began == pytest.approx(CANCEL_GRACE_SECONDS)
            reader = engine.attach(turn.stream_id)
            await anyio.sleep(20)  # it talks on, to nobody
        seen = [event async for event in reader]
        complete = [event for event in seen if isinstance(event, MessageComplete)]
        assert [event.stop_reason for event in complete] == [StopReason.CANCELLED]
        assert isinstance(seen[-1], TurnComplete)
        assert len(terminals(events)) == 1
        partial = session.messages[-1]
        assert partial.metadata is not None
        assert present(partial.metadata.usage).source is UsageSource.PARTIAL
