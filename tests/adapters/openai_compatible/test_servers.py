"""Each server of the quirk table: its request bodies and its form of replies, which are read alike."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from callboard.adapters.config import AdapterConfig
from callboard.adapters.contract import CanonicalResponse
from callboard.adapters.providers.openai_compatible.adapter import OpenAICompatibleAdapter
from callboard.adapters.providers.openai_compatible.quirks import QUIRKS
from callboard.bus.errors import CapabilityError
from callboard.bus.values.base import JsonObject
from callboard.bus.values.content import AudioBlock, DocumentBlock, ImageBlock, TextBlock
from callboard.bus.values.messages import Message
from callboard.bus.values.usage import StopReason, TokenUsage

from ...support.fake_http import FakeReply, FakeTransport
from ...support.invariants import check_stream
from ...support.virtual_time import FakeClock
from ...support.wires.chat import ask
from .servers import ALL_SENT, SCHEMA, SERVERS, SIGNED, Server, everything

pytestmark = pytest.mark.anyio
each_server = pytest.mark.parametrize("server", SERVERS, ids=lambda server: server.name)
PDF = b"%PDF-1.4"


def made(server: Server, *replies: FakeReply) -> OpenAICompatibleAdapter:
    return OpenAICompatibleAdapter(
        AdapterConfig(api_key="k", base_url=server.base_url, options=server.options),
        name=server.name,
        transport=FakeTransport(*replies),
        clock=FakeClock(),
    )


async def streamed(server: Server) -> tuple[CanonicalResponse, str, JsonObject]:
    """Run a streamed call. Returns the response, and the address and body of the request."""
    adapter = made(server, FakeReply(server.reply))
    stream = adapter.stream(everything(server.name))
    check_stream([event async for event in stream])
    assert stream.response is not None
    assert isinstance(adapter.client.transport, FakeTransport)
    (request,) = adapter.client.transport.requests
    return stream.response, request.url, msgspec.json.decode(request.body)


def test_every_row_of_the_table_is_shown_here() -> None:
    assert {server.name for server in SERVERS} == set(QUIRKS)


@each_server
async def test_a_server_gets_only_supported_fields(server: Server) -> None:
    response, url, body = await streamed(server)
    assert url == (server.url or f"{server.base_url}/chat/completions")
    assert body.pop("model") == "m"
    call: dict[str, Any] = {
        "id": "abcdefgh9",
        "type": "function",
        "function": {"name": "look", "arguments": '{"at":1}'},
    }
    if server.name == "gemini":
        call["extra_content"] = SIGNED
    assert body.pop("messages") == [
        *server.system,
        {"role": "user", "content": "Look at it"},
        {"role": "assistant", "content": None, "tool_calls": [call], **server.call},
        {"role": "tool", "tool_call_id": "abcdefgh9", "content": "seen", **server.result},
    ]
    function = {"name": "look", "description": "Look at it", "parameters": SCHEMA, **server.tool}
    assert body.pop("tools") == [{"type": "function", "function": function}]
    assert body == {name: value for name, value in ALL_SENT.items() if name not in server.lacks} | server.has
    said = " ".join(warning.message for warning in response.warnings)
    for name in {*ALL_SENT} - {"max_tokens", "stream_options", "seed", "user", "reasoning_effort"}:
        assert (f"{name} was not sent" in said) == (name in server.lacks), name


@each_server
async def test_its_manner_of_replying_is_understood(server: Server) -> None:
    response, _, _ = await streamed(server)
    assert (response.text, response.thinking) == (server.text, server.thinking)
    (call,) = response.tool_uses
    assert (call.name, call.input, call.incomplete) == ("look", {"at": 1}, False)
    assert call.provider_raw is not None
    assert call.provider_raw.data["id"] == server.call_id
    assert response.stop_reason is StopReason.TOOL_USE
    assert counts(response.usage) == server.usage
    assert response.usage.reported_cost_nano_usd == server.cost_nano_usd


def counts(usage: TokenUsage) -> tuple[int, int, int, int | None]:
    return usage.input_tokens, usage.cached_input_tokens, usage.output_tokens, usage.reasoning_tokens


# -- content


def sent(name: str, *blocks: TextBlock | ImageBlock | AudioBlock | DocumentBlock, model: str = "m") -> object:
    """The user's content in the form of that server."""
    adapter = OpenAICompatibleAdapter(
        AdapterConfig(base_url="http://x.test", options={"quirks": name}), name=name, transport=FakeTransport()
    )
    wire = adapter.write_request(ask(Message.user([*blocks]), model=f"{name}:{model}"), stream=False)
    (message,) = msgspec.json.decode(wire.body)["messages"]
    return message["content"]


@pytest.mark.parametrize(("name", "model"), [
    ("openai", "gpt-4o-audio-preview"),
    ("openai", "gpt-audio-mini"),
    ("openrouter", "google/gemini-3-flash"),
    ("mistral", "voxtral-small-latest"),
    ("gemini", "gemini-2.5-flash"),
])  # fmt: skip
def test_audio_goes_to_models_that_hear(name: str, model: str) -> None:
    sound = b"RIFF\0\0\0\0WAVE"
    part = {"type": "input_audio", "input_audio": {"data": "UklGRgAAAABXQVZF", "format": "wav"}}
    assert sent(name, AudioBlock(data=sound), model=model) == [part]
    url = "data:audio/mpeg;base64,SUQz"
    part = {"type": "input_audio", "input_audio": {"data": "SUQz", "format": "mp3"}}
    assert sent(name, AudioBlock(url=url), model=model) == [part]


@pytest.mark.parametrize(("name", "model", "block", "why"), [
    ("openai", "gpt-4o", AudioBlock(data=b"ID3"), "does not accept audio"),
    ("vllm", "m", AudioBlock(data=b"ID3"), "does not accept audio"),
    ("gemini", "gemini-3", AudioBlock(data=b"OggS"), "audio/ogg"),
    ("gemini", "gemini-3", AudioBlock(url="https://x.test/a.mp3"), "only as data"),
    ("gemini", "gemini-3", AudioBlock(url="data:audio/ogg;base64,T2dn"), "audio/ogg"),
    ("groq", "m", DocumentBlock(data=PDF), "application/pdf"),
    ("openai", "m", DocumentBlock(url="https://x.test/a.pdf"), "only as data"),
    ("openai", "m", DocumentBlock(data=b"PK", media_type="application/zip"), "application/zip"),
    ("ollama", "m", ImageBlock(url="https://x.test/a.png"), "only as data"),
])  # fmt: skip
def test_media_that_a_server_does_not_take_are_refused_before_the_network(
    name: str, model: str, block: ImageBlock | AudioBlock | DocumentBlock, why: str
) -> None:
    with pytest.raises(CapabilityError, match=why):
        sent(name, block, model=model)


def test_a_pdf_is_a_file_or_a_document_by_the_server() -> None:
    data = "data:application/pdf;base64,JVBERi0xLjQ="
    block = DocumentBlock(data=PDF, name="plan.pdf")
    assert sent("openai", block) == [{"type": "file", "file": {"filename": "plan.pdf", "file_data": data}}]
    assert sent("mistral", block) == [{"type": "document_url", "document_url": data, "document_name": "plan.pdf"}]
    remote = DocumentBlock(url="https://x.test/a.pdf")
    assert sent("openrouter", remote) == [
        {"type": "file", "file": {"filename": "document.pdf", "file_data": "https://x.test/a.pdf"}}
    ]
    assert sent("mistral", remote) == [{"type": "document_url", "document_url": "https://x.test/a.pdf"}]


def test_a_text_document_is_text_everywhere() -> None:
    block = DocumentBlock(data=b"Sp\xc3\xa4t", media_type="text/plain", name="note.txt")
    assert sent("groq", TextBlock("Read:"), block) == "Read:\n\nnote.txt:\n\nSpät"
    assert sent("openai", DocumentBlock(url="data:text/plain,late")) == "late"


def test_what_older_turns_hold_and_the_server_does_not_take_is_lost_with_a_warning() -> None:
    adapter = OpenAICompatibleAdapter(AdapterConfig(base_url="http://x.test"), transport=FakeTransport())
    old = Message.user([TextBlock("See"), AudioBlock(data=b"ID3"), DocumentBlock(url="https://x.test/a.pdf")])
    wire = adapter.write_request(ask(old, Message.assistant("Yes."), Message.user("And?")), stream=False)
    assert msgspec.json.decode(wire.body)["messages"][0] == {"role": "user", "content": "See"}
    assert [warning.code for warning in wire.warnings] == ["content_dropped"] * 2
