"""What servers send: each note of kind D is played whole and as a stream, and read as the note says."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from callboard.adapters.protocols.embeddings import read_reply as read_vectors
from callboard.adapters.servers import Note, notes
from callboard.bus.errors import CallboardError
from callboard.bus.values.content import ImageBlock, TextBlock, ThinkingBlock, ToolUseBlock
from callboard.bus.values.usage import TokenUsage
from callboard.engine.objects.generate import read_json

from ..support.fake_http import FakeReply
from ..support.wires import WIRES as ALL_WIRES
from ..support.wires import ChatWire, Wire
from ..support.wires.reading import Reading, read_reply

NOTES = list(notes("D"))
_OF_WIRE = dict(zip(("messages", "responses", "chat", "gemini", "ollama", "tgi"), ALL_WIRES, strict=False))
_LABEL = {"ollama": "application/x-ndjson"}


def wire_of(note: Note) -> Wire:
    """The wire on which a note is played."""
    return ChatWire(note.input.get("quirks", "default")) if note.wire == "chat" else _OF_WIRE[note.wire]


def bodies(note: Note, wire: Wire) -> Iterator[tuple[str, bytes]]:
    """The bodies of a note, with their content types. The same JSON also comes under the label of a stream."""
    body, events, text = (note.input.get(name) for name in ("body", "events", "text"))
    stream = _LABEL.get(note.wire, "text/event-stream")
    if body is not None:
        yield "application/json", msgspec.json.encode(body)
        yield stream, msgspec.json.encode(body)
    if events is not None:
        yield stream, wire.stream(*events)
        yield "application/json", wire.stream(*events)
    if text is not None:
        yield note.input["content_type"], text.encode()


def readings(note: Note) -> Iterator[Reading]:
    """Every way to read a note: whole and streamed, in one piece and byte by byte."""
    wire = wire_of(note)
    for label, body in bodies(note, wire):
        for streamed in (False, True):
            for steps in ([body], [body[at : at + 1] for at in range(len(body))] if streamed else []):
                if steps:
                    reply = FakeReply(*steps, headers={"content-type": label})
                    yield read_reply(wire, reply, streamed=streamed)


def counts(usage: TokenUsage) -> dict[str, Any]:
    """A usage by the names of the notes."""
    return {
        "input": usage.input_tokens,
        "cached": usage.cached_input_tokens,
        "written": usage.cache_creation_input_tokens,
        "output": usage.output_tokens,
        "reasoning": usage.reasoning_tokens,
        "audio_input": (usage.details or {}).get("audio_input"),
        "source": str(usage.source),
        "cost": usage.reported_cost_nano_usd,
    }


def found_in(reading: Reading) -> dict[str, Any]:
    """What a reading says, by the names of the notes."""
    if reading.error is not None:
        return {"error": type(reading.error).__name__}
    reply = reading.reply
    text = "".join(block.text for block in reply.content if isinstance(block, TextBlock))
    runs = [block for block in reply.content if isinstance(block, ToolUseBlock) and not block.incomplete]
    return {
        "text": text,
        "thinking": "".join(block.text for block in reply.content if isinstance(block, ThinkingBlock)),
        "calls": [[block.name, block.input] for block in runs],
        "images": [block.media_type for block in reply.content if isinstance(block, ImageBlock)],
        "stop": str(reply.stop_reason),
        "warnings": reading.warnings,
        "usage": counts(reply.usage),
    }


def compare(found: dict[str, Any], expect: dict[str, Any]) -> None:
    """Compare all that a note names."""
    for name, value in expect.items():
        if name == "usage":
            assert {key: found["usage"][key] for key in value} == value
        elif name == "json":
            assert read_json(found["text"]) == value
        else:
            assert found.get(name) == value, name


@pytest.mark.parametrize("note", [note for note in NOTES if note.wire != "embeddings"], ids=lambda note: note.id)
def test_a_reply_is_read_as_its_note_says(note: Note) -> None:
    """Whole, streamed, byte by byte, and under the other content type."""
    for reading in readings(note):
        compare(found_in(reading), note.expect)
        if reading.events and reading.error is None:
            assert reading.last.final_content == reading.reply.content


@pytest.mark.parametrize("note", [note for note in NOTES if note.wire == "embeddings"], ids=lambda note: note.id)
def test_vectors_are_read_as_their_note_says(note: Note) -> None:
    """Numbers and base64 of float32 are vectors, and anything else is refused."""
    body = msgspec.json.encode(note.input["body"])
    if "error" in note.expect:
        with pytest.raises(CallboardError) as caught:
            read_vectors(body)
        assert type(caught.value).__name__ == note.expect["error"]
    else:
        assert [list(vector) for vector in read_vectors(body).vectors] == note.expect["vectors"]


def test_notes_of_replies_are_whole() -> None:
    """At least sixty, each with an id of its own, a source, something to play and something to expect."""
    assert len(NOTES) >= 60
    assert len({note.id for note in NOTES}) == len(NOTES)
    for note in NOTES:
        assert note.id.startswith(f"D-{note.server}-")
        assert note.source.startswith("https://") or note.source.partition("#")[2].isdigit()
        assert note.input.keys() & {"body", "events", "text"}
        assert note.expect


@pytest.mark.parametrize("answer", ["", "no object"])
def test_reasoning_alone_holds_no_object(answer: str) -> None:
    """Whether it ended or not; and a mark within a string of an object is the string's."""
    for text in ('<think>{"a": 1}' + answer, '<think>{"a": 1}</think>' + answer):
        with pytest.raises(ValueError):
            read_json(text)
    assert read_json('Here: {"a": "</think>{"}') == {"a": "</think>{"}
