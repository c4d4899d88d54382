"""Handoffs: conversations that one agent passes to another within a turn."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest

from callboard import (
    Approved,
    Denied,
    Session,
    ToolChoice,
    ToolResultBlock,
    TurnLimitError,
    TurnLimits,
    agent_tool,
    handoff,
    tool,
)
from callboard.bus import SessionModelChanged
from tests.support.engines import keeping, registry, running
from tests.support.scripted import Say

pytestmark = pytest.mark.anyio


def asks(*names: str) -> Say:
    """A reply that calls tools without arguments."""
    return Say(calls=[(name, {}) for name in names])


def result_of(session: Session) -> list[tuple[bool, str]]:
    """The results of all tools in a session's history, each as (is_error, text)."""
    blocks = (each for message in session.messages for each in message.content)
    return [(each.is_error, each.text) for each in blocks if isinstance(each, ToolResultBlock)]


to_a = functools.partial(handoff, "a", model="a:m", system_prompt="You are a.")
to_b = functools.partial(handoff, "b", model="b:m")


@tool
def look() -> str:
    """Look."""
    return "seen"


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
async def test_the_turn_continues_with_the_other_agent(streamed: bool) -> None:
    """The next turn is also with that agent. An event reports the change of the model."""
    script = [Say("Wait. ", calls=[("transfer_to_a", {})])]
    async with running(*script, a=[Say("Here."), Say("Still here.")]) as (engine, events):
        session = engine.session("s:m", tools=[to_a()])
        if streamed:
            async with session.stream("Hi.") as turn:
                assert "".join([text async for text in turn.text_stream]) == "Wait. Here."
                reply = await turn.message()
        else:
            reply = await session.send("Hi.")
        assert (reply.text, reply.model) == ("Here.", "a:m")
        assert reply.tree_cost.calls == 2
        assert (await session.send("And now?")).text == "Still here."
        assert (session.model, session.system_prompt, session.tools) == ("a:m", "You are a.", ())
        changed = [each.data for each in events.take() if isinstance(each.data, SessionModelChanged)]
        assert [(each.previous, each.current) for each in changed] == [("s:m", "a:m")]


async def test_agents_that_hand_over_to_each_other_stop_at_the_limit_of_the_turn() -> None:
    """The rounds and the calls of all agents count together."""
    back = handoff("s", model="s:m")
    there = to_a(tools=[back])
    object.__setattr__(back, "tools", [there])
    script = {"a": [asks("transfer_to_s") for _ in range(9)]}
    async with running(*[asks("transfer_to_a") for _ in range(9)], **script) as (engine, _):
        session = engine.session("s:m", tools=[there])
        await session.send("Go.", max_tool_rounds=5)
        assert len([each for each in result_of(session) if not each[0]]) == 5
        with pytest.raises(TurnLimitError, match="max_calls=3"):
            await engine.generate("s:m", "Go.", tools=[there], limits=TurnLimits(max_calls=3), max_tool_rounds=9)


async def test_of_several_handoffs_in_one_reply_the_first_counts() -> None:
    async with running(asks("look", "transfer_to_a", "transfer_to_b"), a=[Say("Here.")]) as (engine, _):
        session = engine.session("s:m", tools=[look, to_a(), to_b()])
        assert (await session.send("Hi.")).model == "a:m"
        assert result_of(session) == [
            (False, "seen"),
            (False, "The conversation is with a now."),
            (True, "The conversation goes to a, so it can't go to b."),
        ]


async def test_a_model_that_does_not_exist_is_the_tools_error() -> None:
    """The conversation stays with the first agent."""
    async with running(asks("transfer_to_x"), Say("Then I do it.")) as (engine, _):
        session = engine.session("s:m", tools=[handoff("x", model="nothing:m")])
        assert (await session.send("Hi.")).text == "Then I do it."
        assert session.model == "s:m"
        ((is_error, text),) = result_of(session)
    assert is_error
    assert "nothing" in text


async def test_a_choice_of_tools_does_not_bind_the_other_agent() -> None:
    forced = ToolChoice("named", tool_name="transfer_to_a")
    async with running(asks("transfer_to_a"), a=[Say("Here.")]) as (engine, _):
        assert (await engine.generate("s:m", "Hi.", tools=[to_a()], tool_choice=forced)).text == "Here."
    async with running(asks("transfer_to_a"), a=[Say("Here.")]) as (engine, _):
        options = {"tools": [to_a(tools=[look])], "tool_choice": ToolChoice("required")}
        assert (await engine.generate("s:m", "Hi.", **options)).text == "Here."


# -- Approval and other open calls.


async def test_a_handoff_waits_until_all_calls_of_its_reply_are_answered() -> None:
    """The approved tool belongs to the first agent."""
    careful = tool(look.function, name="careful", needs_approval=True)
    async with running(asks("transfer_to_a", "careful"), a=[Say("Here.")]) as (engine, _):
        session = engine.session("s:m", tools=[to_a(), careful])
        await session.send("Hi.")
        (call,) = session.pending_calls
        assert session.model == "s:m"
        assert (await session.submit({call.id: Approved()})).text == "Here."
        assert session.model == "a:m"


@pytest.mark.parametrize("answer", [Approved(), Denied("no")], ids=["approved", "denied"])
async def test_a_handoff_can_need_an_approval(answer: object) -> None:
    careful = to_a()
    object.__setattr__(careful, "needs_approval", True)
    async with running(asks("transfer_to_a"), Say("I stay."), a=[Say("Here.")]) as (engine, _):
        session = engine.session("s:m", tools=[careful])
        await session.send("Hi.")
        (call,) = session.pending_calls
        reply = await session.submit({call.id: answer})
        assert reply.text == ("Here." if isinstance(answer, Approved) else "I stay.")
        assert session.model == ("a:m" if isinstance(answer, Approved) else "s:m")


# -- Stored sessions.


async def test_a_stored_session_continues_with_its_current_agent(tmp_path: Path) -> None:
    """The host opens the session with the first agent's settings, whose handoffs lead to the other agents."""
    script = {"a": [asks("transfer_to_b")], "b": [Say("B here."), Say("B again."), Say("B at last.")]}
    models = registry(asks("transfer_to_a"), **script)
    tools = [to_a(tools=[to_b(tools=[look])])]
    first = {"model": "s:m", "system_prompt": "You are s.", "tools": tools}
    async with keeping(tmp_path / "t.db", models=models) as engine:
        session = await engine.open_session("one", **first)
        assert (await session.send("Hi.", max_tool_rounds=2)).text == "B here."
        session = await engine.open_session("one", **first)
        assert (await session.send("And now?")).text == "B again."
    async with keeping(tmp_path / "t.db", models=registry(b=[Say("B at last."), Say("B?")])) as engine:
        session = await engine.resume("one", tools=tools)
        assert (session.model, [each.name for each in session.tools]) == ("b:m", ["look"])
        assert (await session.send("Hi.")).text == "B at last."


async def test_an_agent_that_is_a_tool_can_hand_over_its_task() -> None:
    """The tool's result is the reply of the last agent. The parent keeps its agent."""
    agent = agent_tool("agent", model="a:m", tools=[to_b()])
    script = {"a": [asks("transfer_to_b")], "b": [Say("Found by b.")]}
    async with running(Say(calls=[("agent", {"task": "Find."})]), Say("Done."), **script) as (engine, _):
        session = engine.session("s:m", tools=[agent])
        reply = await session.send("Go.")
        assert result_of(session) == [(False, "Found by b.")]
        assert (reply.text, session.model, reply.tree_cost.calls) == ("Done.", "s:m", 4)
