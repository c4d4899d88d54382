"""Results that are looked at: in a console, in a notebook, as JSON."""

from __future__ import annotations

import json
from dataclasses import dataclass

import pytest

from callboard.adapters import ImageBlock, Message, TextBlock
from callboard.bus.values.base import ITEMS, TEXT
from callboard.engine.presented import plain
from tests.support.engines import running
from tests.support.scripted import ADD, Say

pytestmark = pytest.mark.anyio


@dataclass
class Person:
    name: str
    age: int


async def test_the_repr_of_a_result_fits_a_screen() -> None:
    """Whatever its length: the text's beginning, how it ended, what it used and cost."""
    async with running(Say("Hello " * 5000)) as (engine, _):
        result = await engine.generate("s:m", "Hi " * 5000)
    shown = repr(result)
    assert len(shown) < 1000
    assert shown.startswith("GenerateResult(text='Hello Hello")
    for part in ("29,880 more", "status='completed'", "model='s:m'", "steps=<1>", "messages=<2>"):
        assert part in shown
    assert max(len(repr(each)) for each in (result.message, result.response, result.steps[0])) < 3000


TOTALS = ("total_usage", "total_cost")
SHARED = ("text", "content", "thinking", "tool_uses", "stop_reason", "raw_stop_reason", *TOTALS)


async def test_a_reply_a_result_and_a_step_share_their_names() -> None:
    """Code that reads one reads the others, as attributes and as a dict. Totals are those of the whole turn."""
    replies = [Say("Adding.", calls=[("add", {"a": 1, "b": 2})], thinking="Hm"), Say("Three.", thinking="So")]
    async with running(*replies, *replies) as (engine, _):
        result = await engine.generate("s:m", "1 + 2?", tools=[ADD])
        reply = await engine.session("s:m", tools=[ADD]).send("1 + 2?")
    for name in SHARED:
        assert getattr(reply, name) == getattr(result, name), name
    assert {name: getattr(result.steps[-1], name) for name in SHARED[:6]} == {
        name: getattr(result, name) for name in SHARED[:6]
    }
    assert (result.thinking, [call.name for call in result.steps[0].tool_uses]) == ("So", ["add"])
    assert reply.total_usage == result.steps[0].usage + result.steps[1].usage != reply.usage
    ours, theirs = reply.to_dict(), result.to_dict()
    assert set(theirs) - {"messages"} == set(ours)
    assert {name: ours[name] for name in SHARED} == {name: theirs[name] for name in SHARED}


async def test_the_earlier_names_of_a_result_work_and_warn() -> None:
    """`reasoning` and `tool_calls` of a result and a step are aliases."""
    async with running(Say("Hello", thinking="Hm")) as (engine, _):
        result = await engine.generate("s:m", "Hi")
    for each in (result, result.steps[0]):
        with pytest.warns(DeprecationWarning, match="use thinking"):
            assert each.reasoning == "Hm"
        with pytest.warns(DeprecationWarning, match="use tool_uses"):
            assert each.tool_calls == ()


def test_content_with_half_a_surrogate_pair_becomes_plain_values() -> None:
    """A broken tokenizer may send one, and a log must still get its dict."""
    assert plain(TextBlock("a\ud83d")) == {"type": "text", "text": "a\ud83d", "provider_raw": None}


async def test_what_is_under_way_says_which_it_is() -> None:
    """An engine, a session and a stream in a console, and no address of an object."""
    async with running(Say("Hello")) as (engine, _):
        session = engine.session("s:m", session_id="notes")
        assert repr(session) == "Session(id='notes', model='s:m', messages=<0>)"
        async with session.stream("Hi") as turn:
            assert repr(turn) == f"TurnStream(stream_id='{turn.stream_id}', model=None, status=None)"
            await turn.message()
        assert repr(turn) == f"TurnStream(stream_id='{turn.stream_id}', model='s:m', status='completed')"
        assert repr(session) == "Session(id='notes', model='s:m', messages=<2>)"
        assert repr(engine) == "Engine(providers=['s'])"
    assert repr(engine) == "Engine(providers=['s'], closed)"


def test_values_that_may_be_large_are_shown_in_short() -> None:
    """Text, bytes, lists and objects are cut, defaults left out, and what is small is shown whole."""
    assert repr(TextBlock("Hi")) == "TextBlock(text='Hi')"
    assert repr(TextBlock("a" * TEXT + "bc")) == f"TextBlock(text='{'a' * TEXT}'… 2 more)"
    picture = ImageBlock(data=b"\x89PNG\r\n\x1a\n" + bytes(4992))
    assert repr(picture) == "ImageBlock(data=<5,000 bytes>, media_type='image/png')"
    many = Message.user([TextBlock(str(number)) for number in range(ITEMS + 6)])
    assert repr(many).endswith("TextBlock(text='3'), … 6 more))")
    assert repr(Message.user("Hi")) == "Message(role='user', content=(TextBlock(text='Hi'),))"


async def test_a_result_becomes_plain_values() -> None:
    """Which any JSON library writes; money is exact text, and an object is there as such."""
    async with running(Say("Hello"), Say('{"name": "Ann", "age": 3}')) as (engine, _):
        result = await engine.generate("s:m", [TextBlock("Hi"), ImageBlock(data=b"GIF89a")])
        found = await engine.generate_object("s:m", "Who?", schema=Person)
    told = json.loads(json.dumps(result.to_dict()))
    assert (told["text"], told["status"], told["stop_reason"], told["model"]) == (
        *("Hello", "completed"),
        *("end_turn", "s:m"),
    )
    assert told["usage"]["input_tokens"] == 10
    assert told["cost"] == {"usd": None, "source": "unpriced"}
    assert [message["role"] for message in told["messages"]] == ["user", "assistant"]
    assert told["messages"][0]["content"][1]["data"] == "R0lGODlh"
    assert found.to_dict()["output"] == {"name": "Ann", "age": 3}
    reply = result.message.to_dict()
    assert (reply["text"], "messages" in reply) == ("Hello", False)


async def test_a_notebook_shows_the_text_and_what_it_cost() -> None:
    """As Markdown, of a result and of a session's reply."""
    async with running(Say("**Hello**"), Say("**Hello**")) as (engine, _):
        result = await engine.generate("s:m", "Hi")
        reply = await engine.session("s:m").send("Hi")
    wanted = f"**Hello**\n\n---\n*s:m, {result.total_usage.total_tokens} tokens, unpriced*"
    assert result._repr_markdown_() == wanted
    assert reply._repr_markdown_() == wanted
