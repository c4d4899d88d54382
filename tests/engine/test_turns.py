"""What a session does with a turn, however the turn ends."""

from __future__ import annotations

import anyio
import anyio.lowlevel
import pytest

from callboard.adapters import (
    AdapterError,
    CancelledError,
    CapabilityError,
    Message,
    MessageComplete,
    Role,
    ServerError,
    StopReason,
    TextDelta,
    ToolChoice,
    ToolResultBlock,
)
from callboard.bus import LlmCallCompleted, LlmCallFailed, LlmCallStarted, SessionBusy
from callboard.bus.streams.events import TurnComplete, TurnEvent
from tests.support.engines import requests_of, running, talking, topics
from tests.support.present import present
from tests.support.scripted import ADD, Say

pytestmark = pytest.mark.anyio


async def test_a_turn_enters_the_history_with_how_it_came_about() -> None:
    """After a send the history holds both messages, and the assistant's says model, usage and cost."""
    async with talking(Say("Hel", "lo")) as (session, _):
        message = await session.send("Hi")
        assert message.text == "Hello"
        assert [entry.role for entry in session.messages] == [Role.USER, Role.ASSISTANT]
        assert message.metadata is not None
        assert message.metadata.model == "s:m"
        assert message.metadata.usage.output_tokens == 5
        assert message.metadata.cost_usd is None, "unpriced is not zero"
        assert present(message.metadata.routing).requested == "s:m"


async def test_a_stream_has_each_event_once_and_ends_with_the_turn() -> None:
    """A streamed turn yields the message's events, the step's end and one turn.complete, in that order."""
    async with running(Say("Hel", "lo")) as (engine, _), engine.session("s:m").stream("Hi") as turn:
        types = [event.type async for event in turn]
        assert (await turn.message()).text == "Hello"
    assert types == [
        "message.start",
        "text.delta",
        "text.delta",
        "message.complete",
        "step.finish",
        "turn.complete",
    ]


async def test_the_model_is_swapped_between_two_turns_and_the_history_goes_along() -> None:
    """After assigning `model`, the next turn goes to the other provider with everything said before."""
    async with running(Say("from s"), other=[Say("from other")]) as (engine, events):
        session = engine.session("s:m")
        await session.send("one")
        session.model = "other:m"
        message = await session.send("two")
        assert message.text == "from other"
        assert present(message.metadata).provider == "other"
        assert [m.text for m in requests_of(engine, "other")[0].messages] == ["one", "from s", "two"]
        assert topics(events.take(), "session.model_changed") == ["session.model_changed"]


async def test_one_turn_can_go_elsewhere_without_moving_the_session() -> None:
    """`model=` on a send is for that turn alone."""
    async with running(Say("s"), other=[Say("other")]) as (engine, _):
        session = engine.session("s:m")
        assert (await session.send("x", model="other:m")).text == "other"
        assert session.model == "s:m"


async def test_an_unanswered_turn_leaves_the_history_as_it_was() -> None:
    """A call that fails before any content raises, with the turn on the exception, and adds nothing."""
    async with talking(Say(fails=ServerError("down")), Say("up again")) as (session, _):
        with pytest.raises(ServerError) as caught:
            await session.send("Hi")
        assert caught.value.turn is not None  # type: ignore[attr-defined]
        assert session.messages == ()
        assert (await session.send("Hi")).text == "up again"


async def test_what_had_arrived_of_a_broken_reply_is_kept() -> None:
    """A call that fails midway raises, and its partial message stays in the history, marked as an error."""
    async with talking(Say("half ", "way", fails=ServerError("down"))) as (session, _):
        with pytest.raises(ServerError):
            async with session.stream("Hi") as turn:
                await turn.message()
        assert [m.role for m in session.messages] == [Role.USER, Role.ASSISTANT]
        partial = session.messages[-1]
        assert partial.text == "half way"
        assert present(partial.metadata).stop_reason is StopReason.ERROR


async def test_a_crash_inside_an_adapter_fails_that_call_alone() -> None:
    """An adapter's bug is an AdapterError for the caller, closes its stream properly, and the next call works."""
    async with talking(Say("a", "b", fails=ZeroDivisionError("bug")), Say("fine")) as (session, events):
        seen: list[TurnEvent] = []
        with pytest.raises(AdapterError, match=r"crashed.*ZeroDivisionError"):
            async with session.stream("Hi") as turn:
                async for event in turn:
                    seen.append(event)  # noqa: PERF401 (what was seen before the exception counts)
        complete = [event for event in seen if isinstance(event, MessageComplete)]
        assert [event.stop_reason for event in complete] == [StopReason.ERROR]
        assert complete[0].final_content == tuple(Message.assistant("ab").content)
        assert isinstance(seen[-1], TurnComplete)
        assert session.messages[-1].text == "ab", "what had arrived is kept"
        assert present(session.messages[-1].metadata).cost_usd is None
        assert (await session.send("again")).text == "fine"
        calls = topics(events.take(), "llm.")
        assert calls == ["llm.call_started", "llm.call_failed", "llm.call_started", "llm.call_completed"]


async def test_a_cancelled_reply_ends_everywhere_at_once() -> None:
    """Session.cancel ends the stream in message.complete(cancelled), keeps the partial text, frees the session."""
    gate = anyio.Event()
    async with running(Say("one", "two", "three", pause=lambda: _after(2, gate)), Say("next")) as (engine, events):
        session = engine.session("s:m")
        seen: list[TurnEvent] = []
        with pytest.raises(CancelledError):
            async with session.stream("Hi") as turn:
                async for event in turn:
                    seen.append(event)
                    if isinstance(event, TextDelta):
                        assert await session.cancel()
        assert isinstance(seen[-2], MessageComplete)
        assert seen[-2].stop_reason is StopReason.CANCELLED
        assert seen[-1] == TurnComplete("cancelled", "CancelledError: the call was cancelled")
        assert not await session.cancel(), "nothing runs any more"
        assert present(session.messages[-1].metadata).stop_reason is StopReason.CANCELLED
        assert (await session.send("go on")).text == "next"
        failed = [e.data for e in events.take() if isinstance(e.data, LlmCallFailed)]
        assert [(event.error_class, event.will_retry) for event in failed] == [("cancelled", False)]
        assert failed[0].usage is not None, "a cancelled call is priced too"


_steps = 0


async def _after(free_steps: int, gate: anyio.Event) -> None:
    """Let some steps pass, then hang until the gate opens."""
    global _steps
    _steps += 1
    if _steps > free_steps:
        _steps = 0
        await gate.wait()


async def test_turns_of_one_session_run_one_after_the_other_in_the_order_of_asking() -> None:
    """Three sends at once are three turns, and each sees the one before."""
    async with talking(Say("1"), Say("2"), Say("3")) as (session, _):
        async with anyio.create_task_group() as group:
            for text in ("a", "b", "c"):
                group.start_soon(session.send, text)
                await anyio.lowlevel.checkpoint()
        assert [message.text for message in session.messages] == ["a", "1", "b", "2", "c", "3"]


async def test_too_many_waiting_turns_are_refused() -> None:
    """Sixteen turns may wait; the next send raises SessionBusy at once."""
    async with talking(Say("x", pause=anyio.sleep_forever)) as (session, _):
        async with anyio.create_task_group() as group:
            for _ in range(17):
                group.start_soon(session.send, "x")
            await anyio.sleep(1)
            with pytest.raises(SessionBusy):
                await session.send("one too many")
            group.cancel_scope.cancel()


async def test_sessions_run_side_by_side() -> None:
    """A hanging session doesn't hold up another one."""
    async with running(Say("never", pause=anyio.sleep_forever), other=[Say("free")]) as (engine, _):
        async with engine.session("s:m").stream("Hi"):
            assert (await engine.session("other:m").send("Hi")).text == "free"


async def test_tools_run_and_the_model_answers() -> None:
    """A call of a tool is executed, its result sent back, and the second reply is the turn's."""
    async with running(Say(calls=[("add", {"a": 2, "b": 3})]), Say("5")) as (engine, events):
        session = engine.session("s:m", tools=[ADD])
        message = await session.send("2+3?", tool_choice=ToolChoice("required"))
        assert message.text == "5"
        assert [m.role for m in session.messages] == [Role.USER, Role.ASSISTANT, Role.TOOL, Role.ASSISTANT]
        result = session.messages[2].content[0]
        assert isinstance(result, ToolResultBlock)
        assert (result.text, result.is_error) == ("5", False)
        requests = requests_of(engine)
        assert requests[0].tool_choice == ToolChoice("required")
        assert requests[1].tool_choice is None, "forcing a tool again would never end"
        taken = events.take()
        assert topics(taken, "tool.") == ["tool.started", "tool.finished"]
        second = [e for e in taken if isinstance(e.data, LlmCallStarted)][1]
        assert second.caused_by == next(e for e in taken if isinstance(e.data, LlmCallStarted)).request_id


async def test_what_a_model_cannot_do_is_refused_before_anything_is_sent() -> None:
    """Forcing a tool that isn't there raises, and neither call nor history knows of it."""
    async with talking(Say("x"), tools=[ADD]) as (session, events):
        with pytest.raises(CapabilityError, match="nonsense"):
            await session.send("go", tool_choice=ToolChoice("named", "nonsense"))
        assert session.messages == ()
        assert topics(events.take(), "llm.") == []


@pytest.mark.parametrize("step", range(5))
async def test_every_call_that_starts_ends_exactly_once_wherever_it_is_cancelled(step: int) -> None:
    """Cancelled at any point, each attempt has one start and one end."""
    say = Say("a", "b", "c", pause=lambda: anyio.sleep(1))
    async with talking(say, Say("next")) as (session, events):
        with anyio.move_on_after(step + 0.5):
            await session.send("Hi")
        await session.send("again")
        taken = events.take()
    started = [e for e in taken if isinstance(e.data, LlmCallStarted)]
    ended = [e for e in taken if isinstance(e.data, LlmCallCompleted | LlmCallFailed)]
    assert [(e.request_id, e.attempt) for e in started] == [(e.request_id, e.attempt) for e in ended]
    assert len(topics(taken, "session.turn_started")) == len(topics(taken, "session.turn_completed"))
