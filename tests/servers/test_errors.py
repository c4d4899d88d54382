"""Every field note on what servers say when they refuse, played through the adapter: whole and streamed."""

from __future__ import annotations

from collections import Counter
from typing import Any

import msgspec
import pytest

from callboard.adapters.conformance.http_kit import FakeReply
from callboard.adapters.providers.openai_compatible.quirks import QUIRKS
from callboard.adapters.servers import Note, notes
from callboard.adapters.transport.transport import HttpReply, HttpRequest
from callboard.bus import errors as bus_errors
from callboard.bus.errors import AdapterError, InvalidRequestError, QuotaExceededError
from callboard.engine.routing.candidates import may_fall_back
from docs.book.generated import servers

from ..support.virtual_time import FakeClock, run_virtual
from ..support.wires import anthropic, chat, gemini, ollama, responses, tgi
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
    """The wire, with the server's quirks if the table has them."""
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
    """The error that the call ends in."""

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
    """What differs from what the note expects."""
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
def test_an_error_means_what_the_note_says(note: Note) -> None:
    """The class, whether it is retried, whether the fallback is asked, and for how long to wait."""
    ways = [True] if "events" in note.input else [False, True]
    for streamed in ways:
        assert faults(note, play(note, streamed=streamed)) == [], f"streamed: {streamed}"


def test_a_payment_error_is_never_the_callers_fault() -> None:
    """Each note about money ends in an error of the key, which the fallback can heal."""
    for note in NOTES:
        if note.expect["error"] == QuotaExceededError.__name__:
            error = play(note, streamed=True)
            assert not isinstance(error, InvalidRequestError), note.id
            assert may_fall_back(error), note.id


def test_every_server_has_notes() -> None:
    """At least five each, and two hundred in all."""
    counts = Counter(note.server for note in NOTES)
    assert counts.keys() == SERVERS
    assert min(counts.values()) >= 5
    assert len(NOTES) >= 200


def test_every_note_has_a_source_and_an_id_of_its_own() -> None:
    """A report's repository and number, or the address of a page."""
    assert len({note.id for note in NOTES}) == len(NOTES)
    for note in NOTES:
        repository, _, number = note.source.partition("#")
        assert note.source.startswith("https://") or (repository.count("/") == 1 and number.isdigit()), note.id
        assert note.id.startswith(f"C-{note.server}-")
        assert note.fact.endswith(".")
        assert note.right.endswith(".")


def test_the_book_shows_every_note() -> None:
    """The page has a table for each server, with a link to each source."""
    page = servers()
    for note in notes():
        assert f"## {note.server}\n" in page
        assert note.right in page
        assert note.source in page
