"""The five layers that are included: logging, budget, rate, other models, cache."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from callboard.adapters import CanonicalRequest, Message, ServerError, StopReason, ToolDefinition
from callboard.bus import Cost, CostSource, StoreError
from callboard.engine.middleware import (
    Cache,
    CallOutcome,
    LogCalls,
    MemoryReplies,
    TryModels,
)
from callboard.engine.middleware.ready_made import key_of
from callboard.tracestore import SavedReplies, TraceStore
from tests.support.logs import captured_logs
from tests.support.present import present
from tests.support.scripted import Say

from .layered_engines import around, calls_made

pytestmark = pytest.mark.anyio


async def test_a_log_line_tells_of_each_call_and_never_what_was_said() -> None:
    """Model, tokens and cost stand in it; a failure is a warning."""
    with captured_logs() as lines:
        async with around(LogCalls(), replies=[Say("secret"), Say(fails=ServerError("down"))]) as (engine, _):
            session = engine.session("s:m")
            await session.send("private")
            with pytest.raises(ServerError):
                await session.send("private")
    done, failed = (line for line in lines if "call_" in line["event"])
    assert (done["log_level"], done["model"], done["output_tokens"]) == ("info", "s:m", 5)
    assert (failed["log_level"], failed["error"]) == ("warning", "ServerError")
    assert "secret" not in str(lines)
    assert "private" not in str(lines)


async def test_another_model_answers_what_the_first_one_refused() -> None:
    """Both calls are made and paid; the session's message is the other model's."""

    def refused(outcome: CallOutcome) -> bool:
        return outcome.text == "No."

    async with around(TryModels(["b:m"], unwanted=refused), replies=[Say("No.")], b=[Say("Yes")]) as (
        engine,
        events,
    ):
        reply = await engine.session("s:m").send("x")
        assert calls_made(events) == ["s:m", "b:m"]
    assert reply.text == "Yes"
    assert reply.metadata is not None
    assert reply.metadata.model == "b:m"
    assert present(reply.metadata.routing).model == "b:m"


async def test_another_model_answers_when_the_first_one_fails() -> None:
    """Of two that fail, the first error is raised."""
    down, late = ServerError("first"), ServerError("second")
    async with around(
        TryModels(["b:m"]),
        replies=[Say(fails=down), Say(fails=down)],
        b=[Say("up"), Say(fails=late)],
    ) as (engine, _):
        session = engine.session("s:m")
        assert (await session.send("x")).text == "up"
        with pytest.raises(ServerError, match="first"):
            await session.send("x")


async def test_a_streamed_reply_that_has_begun_is_not_asked_for_again() -> None:
    """Readers would get two replies in one; the failure is raised instead."""
    async with around(TryModels(["b:m"]), replies=[Say("Half", fails=ServerError("gone"))], b=[Say("up")]) as (
        engine,
        events,
    ):
        with pytest.raises(ServerError, match="gone"):
            async with engine.session("s:m").stream("x") as turn:
                await turn.message()
        assert calls_made(events) == ["s:m"]


ASKED = CanonicalRequest(request_id="r", messages=(Message.user("Hi"),), model="s:m", max_output_tokens=9)


async def test_the_same_question_is_answered_from_the_cache() -> None:
    """A second session that asks the same gets the same text, for nothing, without a call."""
    cache = Cache()
    async with around(cache, replies=[Say("Hi"), Say("other")]) as (engine, events):
        first = await engine.session("s:m").send("x")
        async with engine.session("s:m").stream("x") as turn:
            again = await turn.message()
        assert (await engine.session("s:m").send("y")).text == "other"
        assert len(calls_made(events)) == 2
    assert (first.text, again.text) == ("Hi", "Hi")
    assert again.metadata is not None
    assert again.metadata.cost == Cost(0, CostSource.COMPUTED, reason="from the cache")
    assert again.metadata.usage.total_tokens == 0
    assert (cache.hits, cache.misses) == (1, 2)


@pytest.mark.parametrize(
    "change",
    [
        {"model": "s:other"},
        {"temperature": 0.1},
        {"system_prompt": "x"},
        {"messages": (Message.user("Ho"),)},
        {"tools": (ToolDefinition("t"),)},
        {"output_schema": {"type": "object"}},
        {"provider_options": {"a": 1}},
    ],
    ids=lambda change: next(iter(change)),
)
def test_what_changes_the_reply_changes_the_key(change: dict[str, object]) -> None:
    """Any setting that the model sees makes it another question."""
    assert key_of(msgspec.structs.replace(ASKED, **change)) != key_of(ASKED)


def test_what_is_only_about_the_call_does_not_change_the_key() -> None:
    """Ids, streaming, time limits and messages' ids are not part of the question."""
    same = msgspec.structs.replace(
        ASKED,
        request_id="other",
        session_id="ses",
        stream=True,
        timeout_seconds=3.0,
        messages=(msgspec.structs.replace(Message.user("Hi"), id="msg_1"),),
    )
    assert key_of(same) == key_of(ASKED)


async def test_a_reply_that_was_cut_off_is_not_kept() -> None:
    """Who asks again may get the whole of it."""
    short = Say("Hal")
    short.reply = msgspec.structs.replace(short.reply, stop=StopReason.MAX_TOKENS)
    async with around(Cache(), replies=[short, Say("Whole")]) as (engine, _):
        await engine.session("s:m").send("x")
        assert (await engine.session("s:m").send("x")).text == "Whole"


async def test_memory_keeps_what_was_used_last_and_is_still_good() -> None:
    """The least used goes first, and nothing outlives its time."""
    kept = MemoryReplies(most=2)
    await kept.put("a", b"1", 0, 100)
    await kept.put("b", b"2", 0, 100)
    assert await kept.get("a", 1) == b"1"
    await kept.put("c", b"3", 0, 100)
    assert [await kept.get(key, 99) for key in "abc"] == [b"1", None, b"3"]
    assert await kept.get("a", 100) is None


async def test_saved_replies_outlive_the_engine(tmp_path: Path) -> None:
    """Another engine on the same file answers without a call; with tools, blocks and all."""
    path = tmp_path / "replies.db"
    reply = Say("Hi", calls=[("t", {"a": [1, None]})])
    async with around(Cache(SavedReplies(path)), replies=[reply]) as (
        engine,
        _,
    ):
        first = await engine.complete(msgspec.structs.replace(ASKED, tools=(ToolDefinition("t"),)))
    async with around(Cache(SavedReplies(path))) as (engine, events):
        again = await engine.complete(msgspec.structs.replace(ASKED, tools=(ToolDefinition("t"),)))
        assert calls_made(events) == []
    assert again.content == first.content
    assert path.stat().st_mode & 0o777 == 0o600


async def test_saved_replies_expire_and_make_room(tmp_path: Path) -> None:
    """What is past its time is not given out; above `most`, what expires first goes."""
    saved = SavedReplies(tmp_path / "r.db", most=1)
    await saved.put("a", b"1", 0, 10)
    assert (await saved.get("a", 9), await saved.get("a", 10)) == (b"1", None)
    await saved.aclose()
    saved = SavedReplies(tmp_path / "r.db", most=1)
    await saved.put("b", b"2", 0, 20)
    assert [await saved.get(key, 0) for key in "ab"] == [None, b"2"]
    await saved.aclose()


async def test_a_trace_file_is_no_place_for_replies(tmp_path: Path) -> None:
    """It is refused and left as it is; the calls go on without a cache."""
    path = tmp_path / "trace.db"
    async with TraceStore(path):
        pass
    before = path.read_bytes()
    saved = SavedReplies(path)
    with pytest.raises(StoreError, match="something else"):
        await saved.get("a", 0)
    async with around(Cache(saved), replies=[Say("Hi")]) as (engine, _):
        assert (await engine.session("s:m").send("x")).text == "Hi"
    assert path.read_bytes() == before
