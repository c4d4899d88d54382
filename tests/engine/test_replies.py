"""What a turn gives back: a message that says how it came about, and that is a message in all else."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from callboard.adapters import CallWarning, Message, Role, ToolDefinition, ToolUseBlock
from callboard.bus.values.base import Json
from callboard.engine import Engine, Reply, Tool
from callboard.tracestore import PriceRow, PriceTable
from tests.support.engines import keeping, registry
from tests.support.scripted import Say
from tests.support.virtual_time import runs_on

pytestmark = pytest.mark.anyio

ASKING = Say("Who?", calls=[("ask", {})])
PASSIVE = Tool(ToolDefinition("ask"))
DEAR = PriceTable([PriceRow(model="s:*", input=7_000_000, output=7_000_000)])

anyio_backend = runs_on("asyncio")


def on(*replies: Say) -> Engine:
    return Engine(models=registry(*replies), trace=False)


async def test_every_way_to_ask_gives_a_reply_with_metadata() -> None:
    """Sent, streamed, submitted, submitted in a stream, and asked without a session."""
    async with on(Say("1"), Say("2"), ASKING, Say("3"), Say("4"), Say("5")) as engine:
        session = engine.session("s:m")
        replies = [await session.send("Hi")]
        async with session.stream("Hi") as turn:
            replies.append(await turn.message())
        session.tools = [PASSIVE]
        replies.append(await session.send("Hi"))
        answers = {call.id: "42" for call in session.pending_calls}
        async with session.submit_stream(answers) as turn:
            replies.append(await turn.message())
        replies.append((await engine.generate("s:m", "Hi")).message)
        async with engine.stream("s:m", "Hi") as stream:
            replies.append((await stream.result()).steps[0].message)
    assert [type(reply) for reply in replies] == [Reply] * 6
    assert [reply.text for reply in replies] == ["1", "2", "Who?", "3", "4", "5"]
    assert [reply.status for reply in replies] == ["completed"] * 2 + ["awaiting_tools"] + ["completed"] * 3
    for reply in replies:
        told = (reply.model, reply.usage, reply.cost, reply.routing, reply.warnings)
        metadata = reply.metadata
        assert told == (metadata.model, metadata.usage, metadata.cost, metadata.routing, metadata.warnings)
        assert (reply.model, reply.usage.output_tokens > 0) == ("s:m", True)


async def test_a_turn_that_leaves_calls_open_gives_the_reply_that_asked() -> None:
    """Also where nothing is known of its call, as in a session whose messages were written by hand."""
    calls = [("ask", {"n": 1}), ("ask", {"n": 2})]
    async with on(Say("Who?", calls=calls)) as engine:
        session = engine.session("s:m", tools=[PASSIVE])
        asked = await session.send("Hi")
        exported = msgspec.json.decode(session.export())
        first = session.pending_calls[0].id
        assert await session.submit({first: "42"}) == asked
        del exported["messages"][1]["metadata"]
        document = msgspec.json.encode(exported)
        by_hand = await engine.import_session(document, session_id="other", tools=[PASSIVE])
        again = await by_hand.submit({first: "43"})
    assert (again.content, again.id) == (asked.content, asked.id)
    assert (again.model, again.cost.nano_usd) == ("unknown", None)


async def test_a_reply_equals_the_message_with_the_same_fields() -> None:
    """From both sides, as an element and as a key; and no other."""
    async with on(Say("Hello")) as engine:
        reply = await engine.session("s:m").send("Hi")
    message = Message(Role.ASSISTANT, reply.content, reply.id, None, reply.metadata)
    assert type(message) is not type(reply)
    assert (reply == message, message == reply, [message] == [reply]) == (True, True, True)
    assert (reply != message, message != reply) == (False, False)
    assert len({reply, message}) == 1
    other = msgspec.structs.replace(reply, id="msg_other")
    assert (reply == other, message == other, other == message) == (False, False, False)
    assert reply != "Hello"


async def test_a_reply_is_written_as_its_message_is() -> None:
    """The JSON of both is the same, and is read as a Message."""
    async with on(Say("Hello")) as engine:
        reply = await engine.session("s:m").send("Hi")
    message = Message(reply.role, reply.content, reply.id, reply.name, reply.metadata)
    assert msgspec.json.encode(reply) == msgspec.json.encode(message)
    assert isinstance(msgspec.structs.replace(reply, name="Ann"), Reply)


async def test_a_stored_history_has_messages_that_equal_the_replies(tmp_path: Path) -> None:
    """Resumed from the trace, and imported from a document."""
    store = tmp_path / "trace.db"
    async with keeping(store, Say("Hello")) as engine:
        session = engine.session("s:m")
        reply = await session.send("Hi")
        document, was = session.export(), session.messages
    async with keeping(store, Say("Again")) as engine:
        resumed = await engine.resume(session.id)
        assert (resumed.messages, resumed.messages[1] == reply) == (was, True)
        assert (await engine.import_session(document, session_id="other")).messages == was
        assert type(await resumed.send("And?")) is Reply


async def test_a_repriced_reply_is_still_one(tmp_path: Path) -> None:
    """The history has the new cost; what was handed out is as it was."""
    async with Engine(models=registry(Say("Hello")), store=tmp_path / "trace.db") as engine:
        session = engine.session("s:m")
        reply = await session.send("Hi")
        await engine.reprice(DEAR)
        repriced = session.messages[1]
    assert isinstance(repriced, Reply)
    assert (repriced.cost.pricing_version, reply.cost.usd) == (DEAR.version, None)


async def test_a_cut_turn_warns_in_its_reply() -> None:
    """The warning is where the reply's others are."""

    def answer(arguments: dict[str, Json]) -> str:
        return "42"

    async with on(ASKING, ASKING) as engine:
        session = engine.session("s:m", tools=[Tool(ToolDefinition("ask"), answer)])
        reply = await session.send("Hi", max_tool_rounds=1)
    assert isinstance(reply.tool_uses[0], ToolUseBlock)
    assert [type(warning) for warning in reply.warnings] == [CallWarning]
    assert reply.warnings[0].code == "max_tool_rounds"
