"""Field notes of kind D on the replies of servers: each is played as a plain reply and as a stream."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import pytest

from callboard.adapters import AdapterConfig, create_adapter
from callboard.adapters.contract import CanonicalRequest
from callboard.adapters.operations.openai_wires import read_reply as read_vectors
from callboard.adapters.providers.openai_compatible.quirks import QUIRKS
from callboard.adapters.servers import Note, notes
from callboard.adapters.transport.transport import HttpReply, HttpRequest
from callboard.bus.errors import CallboardError
from callboard.bus.values.base import Json
from callboard.bus.values.content import (
    ContentBlock,
    ImageBlock,
    ProviderRaw,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from callboard.bus.values.messages import Message, Role, ToolDefinition
from callboard.bus.values.usage import TokenUsage
from callboard.engine.generation.objects import read_json
from labs.servers.rules import RULES, Asked
from tests.support.depth import is_quick

from ..support.fake_http import FakeReply
from ..support.virtual_time import FakeClock, run_virtual
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
    """The bodies of a note with their content types. Each body also comes with the other content type."""
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
    """Read a note in every way: plain and streamed, in one piece and in many. A deep run also reads byte by
    byte.
    """
    wire = wire_of(note)
    for label, body in bodies(note, wire):
        for streamed in (False, True):
            size = 40 if is_quick() else 1
            for steps in ([body], [body[at : at + size] for at in range(0, len(body), size)] if streamed else []):
                if steps:
                    reply = FakeReply(*steps, headers={"content-type": label})
                    yield read_reply(wire, reply, streamed=streamed)


def counts(usage: TokenUsage) -> dict[str, Any]:
    """A usage under the names that the notes use."""
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
    """The content of a reading under the names that the notes use."""
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
    """Compare every value that a note names."""
    for name, value in expect.items():
        if name == "usage":
            assert {key: found["usage"][key] for key in value} == value
        elif name == "json":
            assert read_json(found["text"]) == value
        else:
            assert found.get(name) == value, name


@pytest.mark.more("byte by byte")
@pytest.mark.parametrize("note", [note for note in NOTES if note.wire != "embeddings"], ids=lambda note: note.id)
def test_a_reply_is_read_as_its_note_expects(note: Note) -> None:
    """The reply is read plain, streamed, in pieces, and with the other content type."""
    for reading in readings(note):
        compare(found_in(reading), note.expect)
        if reading.events and reading.error is None:
            assert reading.last.final_content == reading.reply.content


@pytest.mark.parametrize("note", [note for note in NOTES if note.wire == "embeddings"], ids=lambda note: note.id)
def test_vectors_are_read_as_their_note_expects(note: Note) -> None:
    """Numbers and base64 of float32 are vectors. All other values are refused."""
    body = msgspec.json.encode(note.input["body"])
    if "error" in note.expect:
        with pytest.raises(CallboardError) as caught:
            read_vectors(body)
        assert type(caught.value).__name__ == note.expect["error"]
    else:
        assert [list(vector) for vector in read_vectors(body).vectors] == note.expect["vectors"]


@pytest.mark.parametrize("answer", ["", "no object"])
def test_an_object_inside_reasoning_is_not_read(answer: str) -> None:
    """An object inside reasoning is not read, even if the reasoning has no end mark. A mark inside a string is
    text.
    """
    for text in ('<think>{"a": 1}' + answer, '<think>{"a": 1}</think>' + answer):
        with pytest.raises(ValueError):
            read_json(text)
    assert read_json('Here: {"a": "</think>{"}') == {"a": "</think>{"}


# -- Every field note on history that must be sent back, played through the adapter.
#
# A step of `input.conversation` is one of these:
#
# * {"user": text} is a message of the user.
# * {"reply": object} is the server's reply on its wire, which the adapter reads.
# * {"other": object} is another provider's reply with `thinks`, `says`, and `calls`, a list of tool names.
# * {"results": [text]} has the results of the last calls, in their order.
#
# After the last step, the adapter writes the request that the test compares. Earlier requests obey the rule, too.


HISTORY_NOTES = list(notes("A"))
TYPES = {
    "chat": "openai_compatible", "messages": "anthropic", "responses": "openai", "gemini": "gemini",
    "ollama": "ollama",
}  # fmt: skip
HISTORY = {"responses": "input", "gemini": "contents"}
TOOLS = tuple(ToolDefinition(name, "", {"type": "object", "properties": {}}) for name in ("look", "find"))
USAGE = {"prompt_tokens": 9, "completion_tokens": 9, "total_tokens": 18}


class HistoryWire:
    """A transport that records the requests and sends the reply of each step."""

    def __init__(self) -> None:
        self.requests: list[dict[str, Any]] = []
        self.paths: list[str] = []
        self.reply: Json = None

    async def send(self, request: HttpRequest) -> HttpReply:
        if not request.body:  # a request for information about the model
            return FakeReply(b"{}", headers={"content-type": "application/json"})
        self.requests.append(msgspec.json.decode(request.body))
        self.paths.append(request.url)
        return FakeReply(msgspec.json.encode(self.reply), headers={"content-type": "application/json"})

    async def aclose(self) -> None:
        pass


def whole(wire: str, model: str, said: dict[str, Any]) -> Json:
    """A complete reply with that content."""
    match wire:
        case "chat":
            stop = "tool_calls" if said.get("tool_calls") else "stop"
            choice = {"index": 0, "message": {"role": "assistant", **said}, "finish_reason": stop}
            return {"id": "c", "object": "chat.completion", "model": model, "choices": [choice], "usage": USAGE}
        case "messages":
            called = any(block["type"] == "tool_use" for block in said["content"])
            usage = {"input_tokens": 9, "output_tokens": 9}
            head = {"id": "msg_1", "type": "message", "role": "assistant", "model": model, "stop_sequence": None}
            return {**head, **said, "stop_reason": "tool_use" if called else "end_turn", "usage": usage}
        case "responses":
            usage = {"input_tokens": 9, "output_tokens": 9, "total_tokens": 18}
            return {"id": "r", "object": "response", "status": "completed", "model": model, **said, "usage": usage}
        case "gemini":
            candidate = {"index": 0, "content": {"role": "model", **said}, "finishReason": "STOP"}
            counts = {"promptTokenCount": 9, "candidatesTokenCount": 9, "totalTokenCount": 18}
            return {"candidates": [candidate], "modelVersion": model, "usageMetadata": counts}
        case "ollama":
            message = {"role": "assistant", "content": "", **said}
            return {"model": model, "message": message, "done": True, "done_reason": "stop", "eval_count": 9}
    raise AssertionError(f"{wire} is not played")


def foreign(said: dict[str, Any], number: int) -> Message:
    """A message of another provider's model."""
    blocks: list[ContentBlock] = []
    if "thinks" in said:
        blocks.append(ThinkingBlock(said["thinks"], "Zm9yZWlnbg==", ProviderRaw("elsewhere", {}, "other")))
    if "says" in said:
        blocks.append(TextBlock(said["says"]))
    for at, name in enumerate(said.get("calls", ())):
        raw = ProviderRaw("elsewhere", {"id": f"call-from-elsewhere:{number}:{at}"})
        blocks.append(ToolUseBlock(f"tu_{number}_{at}", name, {}, provider_raw=raw))
    return Message(Role.ASSISTANT, tuple(blocks), id=f"msg_{number}")


def play(note: Note) -> HistoryWire:
    """Play the conversation. The last request is the one that the note describes."""
    given, wire = note.input, HistoryWire()
    name = "gemini" if note.server == "gemini-compatible" else note.server
    options: dict[str, Any] = dict(given.get("options", {}))
    if note.wire == "chat" and name in QUIRKS:
        options.setdefault("quirks", name)
    if note.wire == "ollama":
        options.setdefault("num_ctx", 4096)
    adapter = create_adapter(
        TYPES[note.wire],
        AdapterConfig(api_key="key-of-a-note", base_url="https://server.test", options=options, max_retries=0),
        name="home",
        clock=FakeClock(),
        transport=wire,
    )
    history: list[Message] = []

    async def ask(reply: dict[str, Any]) -> tuple[ContentBlock, ...]:
        wire.reply = whole(note.wire, given["model"], reply)
        request = CanonicalRequest(
            request_id="req_1",
            messages=tuple(history),
            model=f"home:{given['model']}",
            max_output_tokens=4096,
            tools=TOOLS if given.get("tools", True) else (),
            session_id="ses_1",
            provider_options=given.get("provider_options", {}),
        )
        return (await adapter.complete(request)).content

    async def go() -> None:
        for number, step in enumerate(given["conversation"]):
            ((kind, said),) = step.items()
            match kind:
                case "user":
                    history.append(Message(Role.USER, (TextBlock(said),), id=f"msg_{number}"))
                case "reply":
                    history.append(Message(Role.ASSISTANT, await ask(said), id=f"msg_{number}"))
                case "other":
                    history.append(foreign(said, number))
                case "results":
                    calls = history[-1].tool_uses
                    results = [ToolResultBlock(call.id, text) for call, text in zip(calls, said, strict=True)]
                    history.append(Message(Role.TOOL, tuple(results), id=f"msg_{number}"))
        await ask(LAST[note.wire])

    run_virtual(go)
    return wire


LAST: dict[str, dict[str, Any]] = {
    "chat": {"content": "Done."},
    "messages": {"content": [{"type": "text", "text": "Done."}]},
    "responses": {"output": [{
        "type": "message", "id": "msg_9", "role": "assistant", "status": "completed",
        "content": [{"type": "output_text", "text": "Done.", "annotations": []}],
    }]},
    "gemini": {"parts": [{"text": "Done."}]},
    "ollama": {"content": "Done."},
}  # fmt: skip


def lacks(fragment: Json, found: Json, place: str = "") -> list[str]:
    """Return the places that differ from the fragment. Keys that the fragment does not name may have any value."""
    if isinstance(fragment, dict) and isinstance(found, dict):
        faults = []
        for key, value in fragment.items():
            faults += (
                lacks(value, found[key], f"{place}.{key}") if key in found else [f"{place}.{key} is not there"]
            )
        return faults
    if isinstance(fragment, list) and isinstance(found, list) and len(fragment) == len(found):
        return [
            fault
            for at, pair in enumerate(zip(fragment, found, strict=True))
            for fault in lacks(*pair, f"{place}.{at}")
        ]
    return [] if fragment == found else [f"{place} is {found!r} and not {fragment!r}"]


def faults(note: Note, history: Sequence[Json]) -> list[str]:
    """Return the differences between the written history and the note's expectation."""
    expect, found = note.expect, []
    if "roles" in expect:
        roles = [entry.get("role", entry.get("type")) for entry in history if isinstance(entry, dict)]
        found += lacks(expect["roles"], roles, "roles")
    for at, fragment in expect.get("entries", {}).items():
        found += lacks(fragment, history[int(at)], at)
    text = msgspec.json.encode(history).decode()
    found += [f"{word!r} is there" for word in expect.get("absent", ()) if word in text]
    return found


@pytest.mark.parametrize("note", HISTORY_NOTES, ids=lambda note: note.id)
def test_a_history_is_written_as_its_note_expects(note: Note) -> None:
    """The last request has the expected parts, and every request obeys the note's rule."""
    wire = play(note)
    history = wire.requests[-1][HISTORY.get(note.wire, "messages")]
    system = [entry for entry in history if entry.get("role") in ("system", "developer")]
    assert faults(note, history[len(system) :]) == []
    if "rule" in note.input:
        rule = RULES[note.input["rule"]]
        for path, body in zip(wire.paths, wire.requests, strict=True):
            assert rule(Asked(note.wire, path, body, note.input)) is None
