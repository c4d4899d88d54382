"""Replies as their providers sent them, by every way to ask, and where they may be kept."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from callboard.adapters import CanonicalRequest, Message
from callboard.bus import RawReply
from callboard.engine import Engine
from callboard.engine.middleware import Cache, Guardrail, Held, MiddlewareLike
from tests.support.engines import keeping, registry, running
from tests.support.scripted import ADD, CALLS_ADD, Say
from tests.support.virtual_time import runs_on

pytestmark = pytest.mark.anyio

# A real loop: the store works in threads, and virtual time would run ahead of them
anyio_backend = runs_on("asyncio")

SECRET = "the tide at half past four"


def said_in(raw: RawReply | None) -> str:
    """The text that the lines of a scripted reply have."""
    assert raw is not None
    steps = raw.events or [json.loads(line) for line in str(raw.body).splitlines()]
    return "".join(step["piece"] for step in steps if isinstance(step, dict) and step["type"] == "said")


def written_to(folder: Path) -> bytes:
    """Everything in a folder's files."""
    return b"".join(file.read_bytes() for file in folder.iterdir() if file.is_file())


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("asked", [True, False, None])
async def test_a_session_is_given_what_it_asks_for(streamed: bool, asked: bool | None) -> None:
    """With each reply of a turn, and with none where nobody asked."""
    async with running(CALLS_ADD, Say("It is ", "3.")) as (engine, _):
        session = engine.session("s:m", tools=[ADD])
        if streamed:
            async with session.stream("1 + 2?", include_raw=asked) as turn:
                reply = await turn.message()
        else:
            reply = await session.send("1 + 2?", include_raw=asked)
        raws = [message.metadata.raw for message in session.messages if message.metadata is not None]
        assert len(raws) == 2
        if not asked:
            assert raws == [None, None]
            assert reply.raw is None
            assert "raw" not in reply.to_dict()
            return
        assert [said_in(raw) for raw in raws] == ["Let me see.", "It is 3."]
        assert reply.raw == raws[-1]
        assert bool(reply.raw and reply.raw.events) is streamed
        assert "piece" in str(reply.to_dict()["raw"])


async def test_every_other_way_to_ask_has_it() -> None:
    """One reply, a stream, a request as it is, whole and streamed."""
    async with running(*[Say("Blue.")] * 4) as (engine, _):
        request = CanonicalRequest(
            request_id="r", model="s:m", messages=(Message.user("?"),), max_output_tokens=9, include_raw=True
        )
        whole = await engine.generate("s:m", "?", include_raw=True)
        streamed = await engine.stream("s:m", "?", include_raw=True).response()
        as_it_is = await engine.complete(request)
        as_it_is_streamed = await engine.stream(request).response()
        for response in (whole.response, streamed, as_it_is, as_it_is_streamed):
            assert said_in(response.raw) == "Blue."


async def test_it_is_in_the_trace_where_content_is(tmp_path: Path) -> None:
    """Another process resumes the session with it."""
    async with keeping(tmp_path / "t.db", Say(SECRET)) as engine:
        session = await engine.open_session("ses", model="s:m")
        reply = await session.send("?", include_raw=True)
    async with keeping(tmp_path / "t.db") as other:
        resumed = await other.open_session("ses", model="s:m")
        metadata = resumed.messages[-1].metadata
        assert metadata is not None
        assert metadata.raw == reply.raw
        assert said_in(metadata.raw) == SECRET


@pytest.mark.parametrize("streamed", [False, True])
async def test_it_is_nowhere_where_content_is_not(tmp_path: Path, streamed: bool) -> None:
    async with Engine(models=registry(Say(SECRET)), store=tmp_path / "t.db") as engine:
        session = engine.session("s:m")
        if streamed:
            await session.stream("?", include_raw=True).message()
        else:
            await session.send("?", include_raw=True)
        assert said_in(session.messages[-1].metadata.raw) == SECRET  # type: ignore[union-attr]
    assert SECRET.encode() not in written_to(tmp_path)


@pytest.mark.parametrize("kept", ["changed", "same", "nothing"])
async def test_a_hook_that_redacts_lets_none_pass(tmp_path: Path, kept: str) -> None:
    """It would have what the hook takes out; the message is stored as the hook says."""

    def redact(message: Message) -> Message | None:
        if kept == "nothing":
            return None
        return message if kept == "same" else Message(message.role, "…", metadata=message.metadata)

    async with keeping(tmp_path / "t.db", Say("the tide"), redact=redact) as engine:
        session = await engine.open_session("ses", model="s:m")
        reply = await session.send("?", include_raw=True)
        assert said_in(reply.raw) == "the tide"
    written = written_to(tmp_path)
    assert b"piece" not in written
    assert (b"the tide" in written) is (kept == "same")


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_reply_that_a_guardrail_changed_has_none(streamed: bool) -> None:
    """It would say what did not pass. A reply that passed as it was has it."""

    def hide(held: Held) -> str:
        return held.text.replace(SECRET, "…")

    middleware: list[MiddlewareLike] = [Guardrail(hide)]
    async with running(Say(SECRET), Say("nothing"), middleware=middleware) as (engine, _):
        for text, found in (("…", None), ("nothing", "nothing")):
            if streamed:
                response = await engine.stream("s:m", "?", include_raw=True).response()
            else:
                response = (await engine.generate("s:m", "?", include_raw=True)).response
            assert response.text == text
            assert (response.raw and said_in(response.raw)) == found


async def test_a_cache_answers_with_it_only_who_asks_for_it() -> None:
    """A reply that was kept without it is asked for anew."""
    async with running(Say("one"), Say("two"), middleware=[Cache()]) as (engine, _):
        first = await engine.generate("s:m", "?")
        second = await engine.generate("s:m", "?", include_raw=True)
        again = await engine.generate("s:m", "?", include_raw=True)
        assert (first.text, first.response.raw) == ("one", None)
        assert second.text == again.text == "two"
        assert second.response.raw == again.response.raw is not None
