"""What the local model said when it was recorded, through all three protocols, from the files alone."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from callboard.adapters.cassettes import load_cassette
from callboard.adapters.contract import CanonicalResponse
from callboard.bus.errors import ContextOverflowError
from callboard.bus.streams.events import MessageComplete
from callboard.bus.values.usage import StopReason
from cassettes.record import CONVERSATIONS, FOLDER, Replies, replaying_adapter

from ...support.invariants import check_stream

pytestmark = pytest.mark.anyio

PROTOCOLS = ("chat", "messages", "responses")


async def replay(name: str) -> Replies:
    _, options, talk = CONVERSATIONS[name]
    adapter, transport = replaying_adapter(FOLDER / f"{name}.json", options)
    replies = await talk(adapter)
    assert transport.unplayed == 0, "the cassette holds more than the conversation asks for: record again"
    await adapter.close()
    return replies


def response(replies: Replies, step: str) -> CanonicalResponse:
    reply = replies[step]
    assert isinstance(reply, CanonicalResponse)
    return reply


@pytest.mark.parametrize("name", CONVERSATIONS)
async def test_every_conversation_replays(name: str) -> None:
    """Each request still is the recorded one, and each stream keeps the invariants."""
    replies = await replay(name)
    for step, events in replies.events.items():
        last = check_stream(events)
        assert last.final_content == response(replies, step).content


@pytest.mark.parametrize("name", PROTOCOLS)
async def test_streamed_is_plain(name: str) -> None:
    """Text, stop reason and usage."""
    replies = await replay(name)
    for step, streamed in (
        ("plain", "streamed"),
        ("second turn", "second turn streamed"),
        ("limit", "limit streamed"),
    ):
        one, other = response(replies, step), response(replies, streamed)
        assert one.text == other.text
        assert one.stop_reason is other.stop_reason
        assert one.usage.total_input_tokens == other.usage.total_input_tokens
        assert one.usage.output_tokens == other.usage.output_tokens


async def test_the_protocols_agree() -> None:
    """One model behind three wires, at temperature 0: the same text, stop reason and input tokens."""
    played = [await replay(name) for name in PROTOCOLS]
    for step in ("plain", "second turn", "system prompt", "limit"):
        said = {(reply.text, reply.stop_reason, reply.usage.total_input_tokens) for reply in
                (response(replies, step) for replies in played)}  # fmt: skip
        assert len(said) == 1, said
    assert "Paris" in response(played[0], "plain").text
    assert response(played[0], "limit").stop_reason is StopReason.MAX_TOKENS
    for replies in played:
        assert isinstance(replies["too long"], ContextOverflowError)


async def test_a_schema_gives_an_object() -> None:
    """Over Chat Completions, where llama.cpp enforces it; streamed too."""
    replies = await replay("chat")
    for step in ("object", "object streamed"):
        assert set(msgspec.json.decode(response(replies, step).text)) == {"city", "country"}


async def test_an_emulated_tool_is_called() -> None:
    """As a call with our id, streamed as one, and the stop reason says so."""
    replies = await replay("tools")
    for step in ("call", "call streamed"):
        reply = response(replies, step)
        assert [(call.name, call.input) for call in reply.tool_uses] == [("get_weather", {"city": "Paris"})]
        assert reply.stop_reason is StopReason.TOOL_USE
    assert isinstance(replies.events["call streamed"][-1], MessageComplete)
    assert response(replies, "answer").stop_reason is StopReason.END_TURN


@pytest.mark.parametrize("path", sorted(FOLDER.parent.rglob("*.json")), ids=lambda path: path.name)
def test_no_cassette_holds_a_secret(path: Path) -> None:
    """Every file reads, says what it is for, and has no header that could carry a key."""
    cassette = load_cassette(path)
    assert cassette.scenario
    assert cassette.exchanges
    text = path.read_text()
    for word in ("Bearer", "x-api-key", "authorization", "cookie", "sk-"):
        assert word not in text
