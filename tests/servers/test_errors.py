"""Every field note on refused replies and requests, played through the adapter, plain and streamed."""

from __future__ import annotations

from collections import Counter
from typing import Any

import msgspec
import pytest

from callboard.adapters.conformance.http_kit import FakeReply
from callboard.adapters.contract import CanonicalRequest, CanonicalResponse
from callboard.adapters.providers.openai_compatible.quirks import QUIRKS
from callboard.adapters.servers import Note, notes
from callboard.adapters.transport.transport import HttpReply, HttpRequest
from callboard.bus import errors as bus_errors
from callboard.bus.errors import AdapterError, QuotaExceededError
from callboard.bus.values.base import Json, JsonObject
from callboard.bus.values.content import ContentBlock
from callboard.bus.values.messages import Message, ToolChoice, ToolDefinition
from callboard.engine.routing.candidates import may_fall_back
from docs.book.generated import servers
from labs.servers.rules import RULES, Asked

from ..support.virtual_time import FakeClock, run_virtual
from ..support.wires import anthropic, chat, gemini, ollama, responses, tgi
from ..support.wires.chat import ChatWire
from ..support.wires.reading import asked
from ..support.wires.wire import Wire

NOTES = list(notes("C"))
SERVERS = {
    "openai", "azure", "anthropic", "bedrock", "vertex", "gemini", "gemini-compatible", "openrouter", "deepseek",
    "moonshot", "zai", "dashscope", "minimax", "mistral", "xai", "groq", "together", "fireworks", "cerebras",
    "perplexity", "databricks", "huggingface", "github", "cloudflare", "vllm", "sglang", "llama.cpp", "ollama",
    "lmstudio", "tgi", "litellm",
}  # fmt: skip


class Repeating:
    """A transport that gives the same reply to every request."""

    def __init__(self, note: Note) -> None:
        given = note.input
        body = given.get("body")
        self.status = given.get("status", 200)
        self.headers = {"content-type": "application/json", **given.get("headers", {})}
        self.body = body.encode() if isinstance(body, str) else msgspec.json.encode(body)
        if isinstance(body, str):
            self.headers["content-type"] = "text/html"
        if "events" in given:
            kind = "application/x-ndjson" if note.wire == "ollama" else "text/event-stream"
            self.headers["content-type"] = kind
            self.body = "".join(given["events"]).encode()

    async def send(self, request: HttpRequest) -> HttpReply:
        return FakeReply(self.body, status=self.status, headers=self.headers)

    async def aclose(self) -> None:
        pass


def wire_of(note: Note) -> Wire:
    """The wire of a note. It has the server's quirks if the table has them."""
    name = "gemini" if note.server == "gemini-compatible" else note.server
    match note.wire:
        case "chat":
            return chat.ChatWire(name if name in QUIRKS else None)
        case "messages":
            return anthropic.AnthropicWire()
        case "responses":
            return responses.ResponsesWire()
        case "gemini":
            return gemini.GeminiWire()
        case "ollama":
            return ollama.OllamaWire()
        case "tgi":
            return tgi.TGIWire()
    raise AssertionError(f"{note.id}: errors of {note.wire} are not played")


def play(note: Note, *, streamed: bool) -> AdapterError:
    """Return the error of the call."""

    async def call() -> AdapterError:
        wire = wire_of(note)
        adapter = wire.make(wire.through(Repeating(note)), FakeClock())
        request = asked(wire)
        try:
            if streamed:
                async for _ in adapter.stream(request):
                    pass
            else:
                await adapter.complete(request)
        except AdapterError as error:
            return error
        raise AssertionError(f"{note.id}: the call did not fail")

    return run_virtual(call)


def faults(note: Note, error: AdapterError) -> list[str]:
    """The differences from the note's expectation."""
    expect: dict[str, Any] = note.expect
    found = []
    if type(error) is not getattr(bus_errors, expect["error"]):
        found.append(f"{type(error).__name__}: {error}")
    if bool(error.retryable) is not expect["retry"]:
        found.append(f"retryable is {error.retryable}")
    if may_fall_back(error) is not expect["fallback"]:
        found.append(f"may_fall_back is {may_fall_back(error)}")
    if "seconds" in expect and error.retry_after_seconds != (
        None if expect["seconds"] is None else pytest.approx(expect["seconds"])
    ):
        found.append(f"retry_after_seconds is {error.retry_after_seconds}")
    return found


@pytest.mark.parametrize("note", NOTES, ids=lambda note: note.id)
def test_an_error_is_read_as_its_note_expects(note: Note) -> None:
    """Compare the class, whether a retry and a fallback are allowed, and the delay."""
    ways = [True] if "events" in note.input else [False, True]
    for streamed in ways:
        assert faults(note, play(note, streamed=streamed)) == [], f"streamed: {streamed}"


LEAST = {"A": 60, "B": 50, "C": 200, "D": 60, "E": 15}


@pytest.mark.parametrize("kind", LEAST)
def test_every_note_has_a_source_and_an_id_of_its_own(kind: str) -> None:
    """A source is a repository with a number, or the address of a page. A note without an expectation, without an
    existing rule or without a refusal would prove nothing. Each server has notes.
    """
    found = list(notes(kind))
    assert len(found) >= LEAST[kind]
    assert len({note.id for note in found}) == len(found)
    for note in found:
        repository, _, number = note.source.partition("#")
        assert note.source.startswith("https://") or (repository.count("/") == 1 and number.isdigit()), note.id
        assert note.id.startswith(f"{kind}-")
        assert note.fact.endswith(".")
        assert note.right.endswith(".")
        assert note.expect or kind == "B", note.id
        assert note.expect.get("error") != QuotaExceededError.__name__ or note.expect["fallback"], note.id
        assert "rule" not in note.input or note.input["rule"] in RULES, note.id
        if kind == "A":
            assert note.expect.keys() <= {"roles", "entries", "absent"}, note.id
        if kind == "B":
            assert note.input["refusal"]["status"] >= 400, note.id
    counts = Counter(note.server for note in found)
    assert counts.keys() <= SERVERS or kind not in "ABC"
    if kind in "AC":
        assert SERVERS - counts.keys() == ({"github", "tgi"} if kind == "A" else set())
        assert min(counts.values()) >= (5 if kind == "C" else 1)


def test_the_book_shows_every_note() -> None:
    """The page has a table for each server, with a link to each source."""
    page = servers()
    for note in notes():
        assert f"## {note.server}\n" in page
        assert note.right in page
        assert note.source in page


# -- Every field note on refused requests, played through the adapter, plain and streamed.
#
# A transport acts as the server. It refuses the requests that break the note's rule, with the note's refusal. So a
# note passes if Callboard writes a request that the server accepts, immediately or after one repair.


REQUEST_NOTES = list(notes("B"))
PAIRS = [(note, streamed) for note in REQUEST_NOTES for streamed in (False, True)]


class Refusing:
    """A transport that refuses requests as a note describes, and replies to all others."""

    def __init__(self, note: Note, wire: Wire) -> None:
        self.note = note
        self.wire = wire
        self.bodies: list[JsonObject] = []
        self.whys: list[str | None] = []

    async def send(self, request: HttpRequest) -> HttpReply:
        path = request.url.partition("://")[2].partition("/")[2]
        body: JsonObject = msgspec.json.decode(request.body)
        why = RULES[self.note.input["rule"]](Asked(self.note.wire, f"/{path}", body, self.note.input))
        self.bodies.append(body)
        self.whys.append(why)
        if why is not None:
            refusal = self.note.input["refusal"]
            data = msgspec.json.encode(refusal["body"])
            return FakeReply(data, status=refusal["status"], headers={"content-type": "application/json"})
        streamed = body.get("stream") is True or "stream" in path
        return self.wire.streamed("Well.") if streamed else self.wire.whole("Well.")

    async def aclose(self) -> None:
        pass


def wire_to(note: Note) -> Wire:
    """The wire to the note's server. It has the quirks of an unknown server if the table has none."""
    if note.wire == "chat" and note.server not in QUIRKS and note.server != "gemini-compatible":
        return ChatWire("default")
    return wire_of(note)


def request_of(note: Note, wire: Wire) -> CanonicalRequest:
    """The request that the note describes."""
    given: dict[str, Any] = dict(note.input["request"])
    given["messages"] = tuple(
        Message(each["role"], _content(each["content"])) for each in given.get("messages", ())
    )
    given["tools"] = tuple(
        ToolDefinition(f"tool_{n}", "", schema) for n, schema in enumerate(given.pop("tools", ()))
    )
    if "tool_choice" in given:
        given["tool_choice"] = msgspec.convert(given["tool_choice"], ToolChoice)
    given["stop_sequences"] = tuple(given.get("stop_sequences", ()))
    if "model" in note.input:
        given["model"] = f"{wire.name}:{note.input['model']}"
    request = asked(wire, **given)
    capabilities = note.input.get("can")
    if capabilities is None:
        return request
    usual = wire.make(Refusing(note, wire), FakeClock()).get_capabilities(request.wire_model)
    return msgspec.structs.replace(request, capabilities=msgspec.structs.replace(usual, **capabilities))


def _content(given: Json) -> Any:
    return given if isinstance(given, str) else msgspec.convert(given, tuple[ContentBlock, ...])


def play_requests_of(note: Note, *, streamed: bool) -> tuple[Refusing, CanonicalResponse]:
    """Return the transport with the received requests, and the reply."""

    async def call() -> tuple[Refusing, CanonicalResponse]:
        wire = wire_to(note)
        server = Refusing(note, wire)
        adapter = wire.make(wire.through(server), FakeClock())
        request = request_of(note, wire)
        if not streamed:
            return server, await adapter.complete(request)
        async with adapter.stream(request) as stream:
            async for _ in stream:
                pass
        assert stream.response is not None
        return server, stream.response

    return run_virtual(call)


def differences(expected: Json, found: Json, path: str = "body") -> list[str]:
    """Return the places where a fragment differs from a body. An object may have more keys than the fragment. A
    list must not be longer.
    """
    if isinstance(expected, dict) and isinstance(found, dict):
        inner = []
        for name, value in expected.items():
            inner += differences(value, found.get(name), f"{path}.{name}")
        return inner
    if isinstance(expected, list) and isinstance(found, list) and len(expected) == len(found):
        return [fault for n, value in enumerate(expected) for fault in differences(value, found[n], f"{path}.{n}")]
    return [] if expected == found else [f"{path} is {found!r} and not {expected!r}"]


@pytest.mark.parametrize(("note", "streamed"), PAIRS, ids=lambda value: getattr(value, "id", value))
def test_the_server_accepts_the_request(note: Note, streamed: bool) -> None:
    """Only the requests that the note describes as repaired are refused. The last request is the expected one."""
    server, reply = play_requests_of(note, streamed=streamed)
    assert reply.text == "Well."
    assert server.whys[-1] is None
    assert len(server.bodies) == note.expect.get("requests", 1), server.whys
    body = server.bodies[-1]
    assert differences(note.expect.get("has", {}), body) == []
    assert [name for name in note.expect.get("lacks", ()) if name in body] == []
    codes = {warning.code for warning in reply.warnings}
    assert codes >= set(note.expect.get("warnings", ())), reply.warnings
