"""Operations on whole sessions: rename, fork, list, export and import, and the turns of a session."""

from __future__ import annotations

import asyncio
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest

from callboard.adapters import (
    AdapterError,
    CancelledError,
    CapabilityError,
    ImageBlock,
    Message,
    MessageComplete,
    Role,
    ServerError,
    StopReason,
    TextBlock,
    TextDelta,
    ThinkingBlock,
    ToolChoice,
    ToolDefinition,
)
from callboard.bus import (
    CallboardError,
    ConfigurationError,
    LlmCallCompleted,
    LlmCallFailed,
    LlmCallStarted,
    SessionBusy,
)
from callboard.bus.streams.events import TurnComplete, TurnEvent
from callboard.engine import Requirements, Tool
from callboard.engine.conversation.context import Context, LastTurns

from ..support.engines import keeping, requests_of, running, talking, topics
from ..support.present import present
from ..support.scripted import ADD, Say

PIXEL = b"\x89PNG\r\n\x1a\n" + bytes(8)


def all_bytes(folder: Path) -> bytes:
    return b"".join(file.read_bytes() for file in folder.iterdir())


async def test_a_fork_is_independent() -> None:
    """The fork starts with the same history. Later messages are only in their own session."""
    async with running(Say("one"), Say("two"), Say("three")) as (engine, _):
        session = engine.session("s:m", system_prompt="Brief.", tags={"team": "red"}, name="Talk")
        await session.send("a")
        fork = session.fork()
        await fork.send("b")
        await session.send("c")
    assert [message.text for message in session.messages] == ["a", "one", "c", "three"]
    assert [message.text for message in fork.messages] == ["a", "one", "b", "two"]
    assert fork.id != session.id
    assert (fork.system_prompt, fork.name, dict(fork.tags)) == ("Brief.", "Talk", {"team": "red"})


async def test_a_fork_can_start_earlier_and_has_the_context_of_its_origin() -> None:
    async with talking(Say("one"), Say("two"), Say("three"), context=LastTurns(1)) as (session, events):
        await session.send("a")
        await session.send("b")
        whole, early = session.fork(), session.fork(at=2)
        assert [message.text for message in early.messages] == ["a", "one"]
        assert (whole._state.context, early._state.context) == (Context(2), Context(0))
        with pytest.raises(CallboardError, match="has 4 messages; it can't be forked at 5"):
            session.fork(at=5)
        await whole.send("c")
        created = [each.data for each in events.take() if each.topic == "session.created"]
    assert [each.forked_from for each in created] == [None, session.id]


async def test_a_fork_can_be_resumed_and_has_its_name(tmp_path: Path) -> None:
    store = tmp_path / "t.db"
    async with keeping(store, Say("one"), Say("two")) as engine:
        session = engine.session("s:m", name="Draft")
        await session.send("a")
        fork = session.fork()
        await fork.send("b")
    async with keeping(store) as engine:
        again = await engine.resume(fork.id)
        assert (again.messages, again.name) == (fork.messages, "Draft")


async def test_a_session_has_a_name_that_can_change(tmp_path: Path) -> None:
    """The list shows the current name."""
    async with running(Say("one"), store=tmp_path / "t.db") as (engine, events):
        session = engine.session("s:m", name="Draft")
        await session.send("a")
        session.rename("Plan")
        (info,) = await engine.sessions()
        assert (info.name, info.open) == ("Plan", True)
        assert (info.stored.name, info.stored.calls) == ("Plan", 1)
        assert topics(events.take(), "session.renamed") == ["session.renamed"]
        with pytest.raises(ValueError, match="empty"):
            session.rename("")


async def test_open_and_stored_sessions_are_listed_once(tmp_path: Path) -> None:
    """Open sessions come first, even unused ones. A filter by tags matches sessions that have all of its tags."""
    async with running(Say("one"), store=tmp_path / "t.db") as (engine, _):
        old = engine.session("s:m", tags={"tenant": "red", "plan": "free"})
        await old.send("a")
    async with running(Say("two"), store=tmp_path / "t.db") as (engine, _):
        used, fresh = engine.session("s:m"), engine.session("s:m", tags={"tenant": "red"})
        await used.send("b")
        found = {info.session_id: info for info in await engine.sessions()}
        assert set(found) == {old.id, used.id, fresh.id}
        assert [info.open for info in found.values()] == [True, True, False]
        assert found[fresh.id].stored is None
        assert len(await engine.sessions(limit=2)) == 2
        assert {each.session_id for each in await engine.sessions(tags={"tenant": "red"})} == {old.id, fresh.id}
        (tagged,) = await engine.sessions(tags={"tenant": "red", "plan": "free"})
        assert tagged.session_id == old.id
    async with running() as (engine, _):
        session = engine.session("s:m")
        assert [info.session_id for info in await engine.sessions()] == [session.id], (
            "open sessions are listed without a trace"
        )


async def test_an_exported_session_can_be_imported_by_another_engine() -> None:
    """The imported session has the messages with signatures and metadata, the settings, tags and name, and
    continues.
    """
    lookup = Tool(ToolDefinition("lookup", "Finds"))
    brief = {"system_prompt": "Brief.", "tags": {"team": "red"}, "name": "Talk"}
    async with running(Say("one")) as (engine, _):
        session = engine.session(["s:m"], tools=[lookup], requires=Requirements(("tools",)), **brief)  # type: ignore[arg-type]
        await session.send([TextBlock("look"), ImageBlock(data=PIXEL, media_type="image/png")])
        signed = Message(Role.ASSISTANT, (ThinkingBlock("hm", "sig"), TextBlock("b")), id="msg_1")
        session._state.messages.append(signed)
        document = session.export()
    async with running(Say("two")) as (engine, _):
        again = await engine.import_session(document)
        assert (again.id, again.messages) == (session.id, session.messages)
        assert {"system_prompt": again.system_prompt, "tags": dict(again.tags), "name": again.name} == brief
        assert [tool.name for tool in again.tools] == ["lookup"]
        assert present(again.messages[1].metadata).model == "s:m"
        assert (await again.send("more")).text == "two"
        assert (await engine.import_session(document, session_id="ses_new")).id == "ses_new"


async def test_a_document_in_another_format_is_refused() -> None:
    """The error names the expected format."""
    async with running() as (engine, _):
        for document in (b"{}", b"no json", '{"format": "callboard.session.9"}'):
            with pytest.raises(CallboardError, match=r"callboard\.session\.1"):
                await engine.import_session(document)


async def test_importing_a_session_with_an_unknown_model_is_an_error_with_advice() -> None:
    async with running(Say("one"), b=[Say("two")]) as (engine, _):
        document = engine.session("b:m").export()
    async with running(Say("one")) as (engine, _):
        with pytest.raises(ConfigurationError, match="model="):
            await engine.import_session(document)
        again = await engine.import_session(document, model="s:m")
        assert (await again.send("x")).text == "one"


async def test_an_imported_session_is_stored_immediately(tmp_path: Path) -> None:
    """The session can be resumed before its first turn."""
    async with talking(Say("one")) as (session, _):
        await session.send("a")
        document = session.export()
    async with keeping(tmp_path / "t.db") as engine:
        await engine.import_session(document)
    async with keeping(tmp_path / "t.db") as engine:
        assert (await engine.resume(session.id)).messages == session.messages


async def test_a_changed_system_prompt_is_used_from_the_next_turn_on() -> None:
    async with running(Say("one"), Say("two")) as (engine, _):
        session = engine.session("s:m", system_prompt="Brief.")
        await session.send("a")
        session.system_prompt, session.tools = "Long.", [Tool(ToolDefinition("lookup"))]
        assert (session.system_prompt, session.tools[0].name) == ("Long.", "lookup")
        await session.send("b")
        sent = [(each.system_prompt, [tool.name for tool in each.tools]) for each in requests_of(engine)]
        assert sent == [("Brief.", []), ("Long.", ["lookup"])]


async def test_a_deleted_session_leaves_its_costs_and_no_content(tmp_path: Path) -> None:
    async with keeping(tmp_path / "t.db", Say("the answer is xylophone"), Say("same"), Say("same")) as engine:
        session, other = engine.session("s:m"), engine.session("s:m")
        await session.send("my secret is marmalade")
        await session.send("alike")
        await other.send("alike")
        assert await engine.delete_session(session.id)
        assert [info.session_id for info in await engine.sessions()] == [other.id]
        store = present(engine.store)
        assert len(await store.calls()) == 3
        with pytest.raises(CallboardError, match="no stored messages"):
            await engine.resume(session.id)
        assert tuple(await store.messages(other.id)) == other.messages
        assert not await engine.delete_session(session.id)
    everything = all_bytes(tmp_path)
    assert [word in everything for word in (b"alike", b"marmalade", b"xylophone")] == [True, False, False]


async def test_a_session_with_a_running_turn_is_not_deleted() -> None:
    """The error advises to cancel the turn first."""
    waiting = anyio.Event()

    async def forever() -> None:
        waiting.set()
        await anyio.sleep_forever()

    async with running(Say("never", pause=forever), Say("again")) as (engine, _):
        session = engine.session("s:m")
        async with session.stream("a"):
            await waiting.wait()
            with pytest.raises(SessionBusy, match="Cancel it first"):
                await engine.delete_session(session.id)
        assert await engine.delete_session(session.id)
        assert session.messages == ()
        await session.send("b")
        assert [message.text for message in session.messages] == ["b", "again"]


# A session's turn, for every kind of end.


async def test_a_turn_is_added_to_the_history_with_its_metadata() -> None:
    """The history has both messages. The assistant's message has the model, the usage and the cost."""
    async with talking(Say("Hel", "lo")) as (session, _):
        message = await session.send("Hi")
        assert message.text == "Hello"
        assert [entry.role for entry in session.messages] == [Role.USER, Role.ASSISTANT]
        assert (message.metadata.model, message.metadata.usage.output_tokens) == ("s:m", 5)
        assert message.metadata.cost_usd is None, "an unpriced cost is not zero"
        assert present(message.metadata.routing).requested == "s:m"


async def test_a_stream_has_each_event_once_and_ends_with_turn_complete() -> None:
    async with running(Say("Hel", "lo")) as (engine, _), engine.session("s:m").stream("Hi") as turn:
        types = [event.type async for event in turn]
        assert (await turn.message()).text == "Hello"
    message = ["message.start", "text.delta", "text.delta", "message.complete"]
    assert types == [*message, "step.finish", "turn.complete"]


async def test_the_model_is_changed_between_two_turns_with_the_same_history() -> None:
    async with running(Say("from s"), Say("back"), other=[Say("from other")]) as (engine, events):
        session = engine.session("s:m")
        await session.send("one")
        session.model = "other:m"
        message = await session.send("two")
        assert message.text == "from other"
        assert present(message.metadata).provider == "other"
        assert [m.text for m in requests_of(engine, "other")[0].messages] == ["one", "from s", "two"]
        assert (await session.send("x", model="s:m")).text == "back"
        assert session.model == "other:m"
        assert topics(events.take(), "session.model_changed") == ["session.model_changed"]


async def test_a_turn_without_a_reply_does_not_change_the_history() -> None:
    async with talking(Say(fails=ServerError("down")), Say("up again")) as (session, _):
        with pytest.raises(ServerError) as caught:
            await session.send("Hi")
        assert caught.value.turn is not None  # type: ignore[attr-defined]
        assert session.messages == ()
        assert (await session.send("Hi")).text == "up again"


async def test_a_crash_in_an_adapter_fails_only_that_call() -> None:
    """The caller gets an AdapterError, the stream ends properly, and the next call works."""
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
        assert session.messages[-1].text == "ab", "the part that arrived is kept"
        assert present(session.messages[-1].metadata).cost_usd is None
        assert (await session.send("again")).text == "fine"
        calls = topics(events.take(), "llm.")
        assert calls == ["llm.call_started", "llm.call_failed", "llm.call_started", "llm.call_completed"]


async def test_cancelling_ends_the_stream_and_frees_the_session() -> None:
    pauses = iter([anyio.lowlevel.checkpoint, anyio.lowlevel.checkpoint, anyio.sleep_forever])
    say = Say("one", "two", "three", pause=lambda: next(pauses)())
    async with talking(say, Say("next")) as (session, events):
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
        assert not await session.cancel(), "no turn is in progress"
        assert present(session.messages[-1].metadata).stop_reason is StopReason.CANCELLED
        assert (await session.send("go on")).text == "next"
        failed = [e.data for e in events.take() if isinstance(e.data, LlmCallFailed)]
        assert [(event.error_class, event.will_retry) for event in failed] == [("cancelled", False)]
        assert failed[0].usage is not None, "a cancelled call has usage"


async def test_turns_of_one_session_run_in_the_order_of_their_requests() -> None:
    """Three concurrent sends are three turns, and each has the history of the previous ones."""
    async with talking(Say("1"), Say("2"), Say("3")) as (session, _):
        await asyncio.gather(*(session.send(text) for text in "abc"))
        assert [message.text for message in session.messages] == ["a", "1", "b", "2", "c", "3"]


async def test_too_many_waiting_turns_are_refused() -> None:
    """Sixteen turns can wait. The next send raises SessionBusy immediately."""
    async with talking(Say("x", pause=anyio.sleep_forever)) as (session, _):
        waiting = [asyncio.ensure_future(session.send("x")) for _ in range(17)]
        await anyio.sleep(1)
        with pytest.raises(SessionBusy):
            await session.send("one too many")
        assert all(each.cancel() for each in waiting)
        await asyncio.gather(*waiting, return_exceptions=True)


async def test_sessions_run_concurrently() -> None:
    """A session that hangs does not delay another session."""
    async with running(Say("never", pause=anyio.sleep_forever), other=[Say("free")]) as (engine, _):
        async with engine.session("s:m").stream("Hi"):
            assert (await engine.session("other:m").send("Hi")).text == "free"


async def test_tools_run_and_the_model_gets_their_results() -> None:
    """The second reply is the turn's reply."""
    async with running(Say(calls=[("add", {"a": 2, "b": 3})]), Say("5")) as (engine, events):
        session = engine.session("s:m", tools=[ADD])
        message = await session.send("2+3?", tool_choice=ToolChoice("required"))
        assert message.text == "5"
        assert [m.role for m in session.messages] == [Role.USER, Role.ASSISTANT, Role.TOOL, Role.ASSISTANT]
        result = session.messages[2].content[0]
        assert (result.text, result.is_error) == ("5", False)
        requests = requests_of(engine)
        assert requests[0].tool_choice == ToolChoice("required")
        assert requests[1].tool_choice is None, "if every call were forced, the turn would never end"
        taken = events.take()
        assert topics(taken, "tool.") == ["tool.started", "tool.finished"]
        second = [e for e in taken if isinstance(e.data, LlmCallStarted)][1]
        assert second.caused_by == next(e for e in taken if isinstance(e.data, LlmCallStarted)).request_id


async def test_a_forced_tool_that_does_not_exist_is_refused_before_a_request() -> None:
    """No call is made, and the history does not change."""
    async with talking(Say("x"), tools=[ADD]) as (session, events):
        with pytest.raises(CapabilityError, match="nonsense"):
            await session.send("go", tool_choice=ToolChoice("named", "nonsense"))
        assert session.messages == ()
        assert topics(events.take(), "llm.") == []


@pytest.mark.parametrize("step", range(5))
async def test_every_call_ends_exactly_once_for_any_time_of_a_cancellation(step: int) -> None:
    async with talking(Say("a", "b", "c", pause=lambda: anyio.sleep(1)), Say("next")) as (session, events):
        with anyio.move_on_after(step + 0.5):
            await session.send("Hi")
        await session.send("again")
        taken = events.take()
    started = [e for e in taken if isinstance(e.data, LlmCallStarted)]
    ended = [e for e in taken if isinstance(e.data, LlmCallCompleted | LlmCallFailed)]
    assert [(e.request_id, e.attempt) for e in started] == [(e.request_id, e.attempt) for e in ended]
    assert len(topics(taken, "session.turn_started")) == len(topics(taken, "session.turn_completed"))
