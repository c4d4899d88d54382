"""The gateway's client body reaches a provider of the same protocol unchanged, and so does the reply."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from callboard.adapters import (
    AdapterConfig,
    AdapterError,
    CanonicalRequest,
    CanonicalResponse,
    Message,
    ProviderAdapter,
    TextDelta,
    ToolDefinition,
)
from callboard.adapters.conformance.http_kit import FakeReply
from callboard.adapters.conformance.kit import Stage
from callboard.adapters.contract import WireRequest
from callboard.adapters.providers.openai.adapter import OpenAIAdapter
from callboard.adapters.replies.server_sent_events import SseDecoder
from callboard.adapters.transport.transport import HttpReply, HttpRequest
from callboard.bus.errors import StreamError
from callboard.bus.streams.events import MessageStart
from callboard.bus.values.base import Json, JsonObject
from tests.support.background_server import Books, BooksTransport
from tests.support.depth import is_quick
from tests.support.recordings import FOLDER, PROTOCOLS, fragments, make_adapter, needs_recordings
from tests.support.virtual_time import FakeClock, run_virtual, runs_on
from tests.support.wires import AnthropicWire, ChatWire, ResponsesWire, Wire
from tests.support.wires.gemini import GeminiWire
from tests.support.wires.ollama import OllamaWire

pytestmark = pytest.mark.anyio

anyio_backend = runs_on("virtual-asyncio")

CACHED: JsonObject = {"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral", "ttl": "1h"}}
NEW: JsonObject = {"of_tomorrow": [1, 2.0, {"deep": None}], "é": "ü"}
BODIES: Mapping[str, JsonObject] = {
    "anthropic": {
        "max_tokens": 5, "system": [CACHED], "model": "claude-9", "metadata": {"user_id": "u"},
        "messages": [{"role": "user", "content": [{"type": "of_tomorrow", "cache_control": None}]}], **NEW,
    },
    "openai": {
        "input": [{"type": "additional_tools", "tools": []}, {"type": "reasoning", "encrypted_content": "x"}],
        "model": "gpt-9", "store": True, "previous_response_id": "resp_1", **NEW,
    },
    "openai_compatible": {
        "messages": [{"role": "user", "content": "Hi", "name": "n"}], "model": "gpt-9", "logit_bias": {"1": -100},
        **NEW,
    },
    "gemini": {
        "contents": [{"role": "user", "parts": [{"text": "Hi", "thoughtSignature": "eA=="}]}],
        "generationConfig": {"ofTomorrow": True}, **NEW,
    },
}  # fmt: skip
WIRES: tuple[Wire, ...] = (AnthropicWire(), ResponsesWire(), ChatWire(), GeminiWire())
every_wire = pytest.mark.parametrize("wire", WIRES, ids=lambda wire: wire.name)
both_ways = pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])


class Heard:
    """The parts of the provider's reply that a client gets, and the canonical events."""

    def __init__(self) -> None:
        self.raw: list[tuple[str, bytes]] = []
        self.order: list[str] = []
        self.response: CanonicalResponse | None = None
        self.error: AdapterError | None = None

    def on_event(self, name: str, data: bytes) -> None:
        self.raw.append((name, data))
        self.order.append("raw")

    async def run(self, adapter: ProviderAdapter, request: CanonicalRequest, *, streamed: bool) -> None:
        """Run the call."""
        try:
            if not streamed:
                self.response = await adapter.complete(request)
                return
            async with adapter.stream(request) as stream:
                async for _ in stream:
                    self.order.append("canonical")
                self.response = stream.response
        except AdapterError as error:
            self.error = error

    @property
    def data(self) -> list[bytes]:
        return [data for _, data in self.raw]


def asked(stage: Stage, wire: Wire, heard: Heard, **more: Any) -> CanonicalRequest:
    words: dict[str, Any] = {"protocol": wire.name, "body": BODIES[wire.name], "on_event": heard.on_event}
    words |= more.pop("sent", {})
    return stage.request(**{"tools": (), "max_output_tokens": 7, "wire": WireRequest(**words), **more})


def requests_to(stage: Stage) -> Sequence[HttpRequest]:
    assert stage.requests is not None
    return stage.requests


def body_of(stage: Stage, number: int = -1) -> JsonObject:
    return msgspec.json.decode(requests_to(stage)[number].body, type=dict[str, Json])


def events_of(*chunks: bytes) -> list[tuple[str, bytes]]:
    decoder = SseDecoder()
    return [(name.decode(), data) for name, data in [*decoder.feed(b"".join(chunks)), *decoder.close()]]


def added(wire: Wire, *, streamed: bool) -> JsonObject:
    """The fields that the adapter adds to a body or changes in it."""
    found: JsonObject = {} if wire.name == "gemini" else {"model": wire.model}
    if streamed and wire.name != "gemini":
        found["stream"] = True
    if streamed and wire.name == "openai_compatible":
        found["stream_options"] = {"include_usage": True}
    return found


# --- Requests ---


@every_wire
@both_ways
async def test_a_body_is_sent_with_only_its_models_name_changed(wire: Wire, streamed: bool) -> None:
    """Unknown fields, cache marks and the order stay. The canonical request adds nothing."""
    reply = wire.streamed("Hello") if streamed else wire.whole("Hello")
    async with wire.stage_of(reply) as stage:
        heard = Heard()
        await heard.run(stage.adapter, asked(stage, wire, heard), streamed=streamed)
        sent = body_of(stage)
        assert sent == {**BODIES[wire.name], **added(wire, streamed=streamed)}
        assert [name for name in sent if name in BODIES[wire.name]] == list(BODIES[wire.name])
        assert requests_to(stage)[0].url.endswith(":streamGenerateContent?alt=sse") is (
            wire.name == "gemini" and streamed
        )
        assert heard.response is not None
        assert heard.response.text == "Hello"
        assert heard.response.usage.output_tokens == 7
        assert streamed or heard.raw == [("", msgspec.json.encode(wire.body("Hello", 0, "end")))]


async def test_a_gemini_body_with_a_model_gets_the_providers_name() -> None:
    """The field is optional, because the path has the name."""
    wire = GeminiWire()
    async with wire.stage_of(wire.whole("Hello")) as stage:
        body = {"model": "models/mine", **BODIES["gemini"]}
        await stage.adapter.complete(asked(stage, wire, Heard(), sent={"body": body}))
        assert body_of(stage)["model"] == f"models/{wire.model}"
        assert f"/models/{wire.model}:generateContent" in requests_to(stage)[0].url


async def test_the_body_of_a_stream_is_sent_as_plain_if_the_call_is_plain() -> None:
    """The flag follows the call, and the options of a stream are removed."""
    wire = ChatWire()
    async with wire.stage_of(wire.whole("Hello")) as stage:
        body = {**BODIES[wire.name], "stream": True, "stream_options": {"include_usage": True}}
        await stage.adapter.complete(asked(stage, wire, Heard(), sent={"body": body}))
        assert body_of(stage) == {**BODIES[wire.name], "model": wire.model, "stream": False}


@every_wire
async def test_key_and_version_are_the_adapters_and_other_headers_the_clients(wire: Wire) -> None:
    """A client's key never reaches the provider."""
    given = {
        "Authorization": "Bearer theirs", "x-api-key": "theirs", "x-goog-api-key": "theirs", "api-key": "theirs",
        "Host": "theirs", "content-length": "7", "cookie": "theirs", "x-forwarded-for": "theirs",
        "USER-AGENT": "theirs", "openai-beta": "responses=v9", "anthropic-beta": "files, mine", "session_id": "s1",
    }  # fmt: skip
    async with wire.stage_of(wire.whole("Hello")) as stage:
        await stage.adapter.complete(asked(stage, wire, Heard(), sent={"headers": given}))
        sent = requests_to(stage)[0].headers
        assert "theirs" not in " ".join(sent.values())
        assert sent["openai-beta"] == "responses=v9"
        assert sent["session_id"] == "s1"
        assert {name: value for name, value in sent.items() if name == "anthropic-version"} == (
            {"anthropic-version": "2023-06-01"} if wire.name == "anthropic" else {}
        )


async def test_betas_of_client_and_configuration_are_sent_once() -> None:
    """The client's own version of the API is sent."""
    wire = AnthropicWire()
    async with wire.stage_of(wire.whole("Hello"), options={"beta_headers": "mine,ours"}) as stage:
        headers = {"Anthropic-Beta": "files, mine", "anthropic-version": "2030-01-01"}
        await stage.adapter.complete(asked(stage, wire, Heard(), sent={"headers": headers}))
        assert requests_to(stage)[0].headers["anthropic-beta"] == "files,mine,ours"
        assert requests_to(stage)[0].headers["anthropic-version"] == "2030-01-01"


@pytest.mark.parametrize("wire", [*WIRES, OllamaWire()], ids=lambda wire: wire.name)
async def test_a_body_of_another_protocol_is_ignored(wire: Wire) -> None:
    """The canonical request is sent, and the client gets no bytes of the provider's reply."""
    other = "gemini" if wire.name != "gemini" else "openai"
    async with wire.stage_of(wire.whole("Hello")) as stage:
        heard = Heard()
        sent = WireRequest(protocol=other, body={"of_tomorrow": 1}, on_event=heard.on_event)
        await heard.run(stage.adapter, stage.request(wire=sent), streamed=False)
        assert "of_tomorrow" not in body_of(stage)
        assert wire.history in body_of(stage)
        assert heard.raw == []


async def test_emulated_tools_are_sent_in_the_canonical_form() -> None:
    """A model without tools would ignore them. Without tools, the client's own body is sent."""
    wire = ChatWire()
    tool = ToolDefinition("read", "Reads.", {"type": "object"})
    reply = wire.whole('{"answer": "Hello"}')
    async with wire.stage_of(reply, wire.whole("Hello"), options={"tools": "emulate"}) as stage:
        heard = Heard()
        await stage.adapter.complete(asked(stage, wire, heard, tools=(tool,)))
        assert "logit_bias" not in body_of(stage)
        assert heard.raw == []
        await stage.adapter.complete(asked(stage, wire, heard))
        assert "logit_bias" in body_of(stage)
        assert len(heard.raw) == 1


# --- Replies ---


@every_wire
async def test_the_events_of_a_stream_are_passed_on_before_the_canonical_ones(wire: Wire) -> None:
    """Events keep their order and their names, for any pieces in which they arrive."""
    chunks = wire.chunks("Hello", 1, "tools")
    for mode in ("whole", "byte", "random-1"):
        async with wire.stage_of(wire.stream_of(*fragments(b"".join(chunks), mode))) as stage:
            heard = Heard()
            options = {**BODIES[wire.name], "stream_options": {"include_usage": True}}
            await heard.run(stage.adapter, asked(stage, wire, heard, sent={"body": options}), streamed=True)
            assert heard.raw == events_of(*chunks)
            assert heard.order[0] == "raw"
            assert heard.order.count("canonical") > 3


async def test_a_client_of_chat_gets_no_usage_that_it_did_not_request() -> None:
    """The adapter requested the usage, so that the call has a price."""
    wire = ChatWire()
    chunks = wire.chunks("Hello")
    for asks in (False, True):
        body = {**BODIES[wire.name], "stream_options": {"include_usage": asks, "include_obfuscation": False}}
        async with wire.stage_of(wire.stream_of(*chunks)) as stage:
            heard = Heard()
            await heard.run(stage.adapter, asked(stage, wire, heard, sent={"body": body}), streamed=True)
            assert body_of(stage)["stream_options"] == {"include_usage": True, "include_obfuscation": False}
            alone = [data for data in heard.data if b'"choices":[]' in data]
            assert len(alone) == (1 if asks else 0)
            assert len(heard.raw) == len(events_of(*chunks)) - (0 if asks else 1)
            assert heard.response is not None
            assert heard.response.usage.output_tokens == 7


@every_wire
async def test_only_the_attempt_that_delivers_is_passed_on(wire: Wire) -> None:
    """An attempt that breaks off before its first content, and a refused one, pass on nothing."""
    chunks = wire.chunks("Hello")
    broken = wire.stream_of(b": sign of life\n\n", *([chunks[0]] if wire.names_events else []))
    replies = [wire.failing("overload"), broken, wire.stream_of(*chunks)]
    async with wire.stage_of(*replies, max_retries=3) as stage:
        heard = Heard()
        body = {**BODIES[wire.name], "stream_options": {"include_usage": True}}
        await heard.run(stage.adapter, asked(stage, wire, heard, sent={"body": body}), streamed=True)
        assert len(requests_to(stage)) == 3
        assert [body_of(stage, number) for number in (0, 1)] == [body_of(stage)] * 2
        assert heard.raw == events_of(*chunks)


@every_wire
async def test_a_reply_that_breaks_off_is_passed_on_and_never_continued(wire: Wire) -> None:
    """The client has the received bytes. A continuation would have another form."""
    chunks = wire.chunks("Hello")[:-1]
    cut = [chunk for chunk in chunks if b"stop" not in chunk.lower() and b"completed" not in chunk]
    async with wire.stage_of(wire.stream_of(*cut), max_retries=3) as stage:
        heard = Heard()
        body = {**BODIES[wire.name], "stream_options": {"include_usage": True}}
        model = f"{wire.name}:claude-sonnet-4-5"
        request = asked(stage, wire, heard, sent={"body": body}, continue_broken=True, model=model)
        await heard.run(stage.adapter, request, streamed=True)
        assert isinstance(heard.error, StreamError)
        assert heard.raw == events_of(*cut)
        assert len(requests_to(stage)) == 1


@pytest.mark.parametrize("wire", [AnthropicWire(), ResponsesWire()], ids=lambda wire: wire.name)
async def test_an_error_during_a_stream_is_passed_on_and_raised(wire: Wire) -> None:
    """The error is the provider's own event for the client."""
    chunks = wire.chunks("Hello")[:-2]
    name, data = wire.error_event()
    chunks = [chunk for chunk in chunks if b"completed" not in chunk]
    async with wire.stage_of(wire.stream_of(*chunks, wire.write_event(name, data))) as stage:
        heard = Heard()
        await heard.run(stage.adapter, asked(stage, wire, heard), streamed=True)
        assert heard.error is not None
        assert json.loads(heard.data[-1]) == data


@every_wire
@both_ways
async def test_a_reply_of_the_other_form_is_not_passed_on(wire: Wire, streamed: bool) -> None:
    """A client that expects events gets no body, and a client that expects a body gets no events."""
    reply = wire.whole("Hello") if streamed else wire.streamed("Hello")
    async with wire.stage_of(reply) as stage:
        heard = Heard()
        await heard.run(stage.adapter, asked(stage, wire, heard), streamed=streamed)
        assert heard.response is not None
        assert heard.response.text == "Hello"
        assert heard.raw == []


async def test_a_server_that_cannot_stream_sends_no_body_in_place_of_events() -> None:
    """The call is plain, with the client's own body."""
    wire = ChatWire()
    async with wire.stage_of(wire.whole("Hello"), options={"quirks": {"streams": "never"}}) as stage:
        heard = Heard()
        await heard.run(stage.adapter, asked(stage, wire, heard), streamed=True)
        assert "logit_bias" in body_of(stage)
        assert heard.raw == []


async def test_a_key_that_a_server_repeats_is_masked() -> None:
    """Keys of providers never reach a client."""
    wire = AnthropicWire()
    body = wire.body("Hello", 0, "end") | {"debug": "key the-key"}
    reply = FakeReply(msgspec.json.encode(body), headers={"content-type": "application/json"})
    async with wire.stage_of(reply, api_key="the-key") as stage:
        heard = Heard()
        await heard.run(stage.adapter, asked(stage, wire, heard), streamed=False)
        assert heard.raw[0][1] == msgspec.json.encode(body).replace(b"the-key", b"***")


async def test_a_cancelled_call_is_no_longer_passed_on() -> None:
    """The adapter still reads the stream for its usage, and passes no event on."""
    wire = AnthropicWire()
    first, *rest = wire.chunks("Hello")
    async with wire.stage_of(wire.stream_of(first, rest[0], rest[1], 0.1, *rest[2:])) as stage:
        heard = Heard()
        async with stage.adapter.stream(asked(stage, wire, heard, drain_for_usage=5.0)) as stream:
            async for event in stream:
                if isinstance(event, TextDelta):
                    break
            so_far = list(heard.raw)
            await stage.adapter.cancel("req_1")
            assert [event async for event in stream]
        assert heard.raw == so_far


# --- Repairs ---


def refusal(message: str, **more: Json) -> FakeReply:
    error = {"type": "invalid_request_error", "message": message, **more}
    body = msgspec.json.encode({"type": "error", "error": error})
    return FakeReply(body, status=400, headers={"content-type": "application/json"})


async def test_a_refused_field_is_left_out_of_the_clients_own_body() -> None:
    """The rest of the body stays, and the reply is passed on."""
    wire = ChatWire("openai")
    refused = refusal("Unknown parameter: 'of_tomorrow'.", code="unknown_parameter", param="of_tomorrow")
    async with wire.stage_of(refused, wire.whole("Hello")) as stage:
        heard = Heard()
        request = asked(
            stage, wire, heard, sent={"protocol": "openai_compatible", "body": BODIES["openai_compatible"]}
        )
        await heard.run(stage.adapter, request, streamed=False)
        first, second = body_of(stage, 0), body_of(stage, 1)
        assert first.pop("of_tomorrow")
        assert first == second
        assert len(heard.raw) == 1


async def test_a_repair_of_the_canonical_request_sends_the_canonical_request() -> None:
    """The repair does not change the client's body, so the client gets the canonical reply."""
    wire = AnthropicWire()
    refused = refusal(
        "max_tokens: 9000 > 4096, which is the maximum allowed number of output tokens for claude-3-haiku"
    )
    async with wire.stage_of(refused, wire.whole("Hello")) as stage:
        heard = Heard()
        await heard.run(stage.adapter, asked(stage, wire, heard, max_output_tokens=9000), streamed=False)
        assert "of_tomorrow" in body_of(stage, 0)
        assert body_of(stage, 1)["max_tokens"] == 4096
        assert "of_tomorrow" not in body_of(stage, 1)
        assert heard.response is not None
        assert heard.raw == []


# --- Background replies ---


@pytest.mark.parametrize("faults", [(), ("", "cut 777"), ("", "cut 1500", "refuse", "cut 300")], ids=str)
def test_a_background_reply_is_passed_on_once_over_all_connections(faults: Sequence[str]) -> None:
    """Events that another connection repeats are not passed on again."""
    books, heard = Books(), Heard()
    config = AdapterConfig(api_key="sk-1", base_url="https://api.openai.com")
    adapter = OpenAIAdapter(config, transport=BooksTransport(books, list(faults)), clock=FakeClock())
    body: JsonObject = {
        "model": "x",
        "input": [{"role": "user", "content": "the moon?"}],
        "background": True,
        "stream": True,
    }

    async def main() -> None:
        request = CanonicalRequest(
            request_id="req_1",
            model="openai:gpt-5.2",
            messages=(Message.user("the moon?"),),
            max_output_tokens=1000,
            wire=WireRequest(protocol="openai", body=body, on_event=heard.on_event),
        )
        async with adapter.stream(request) as stream:
            events = [event async for event in stream]
            assert isinstance(events[0], MessageStart)

    run_virtual(main)
    numbers = [json.loads(data)["sequence_number"] for data in heard.data]
    assert numbers == sorted(set(numbers))
    assert json.loads(heard.data[-1])["type"] == "response.completed"


# --- Recorded traffic ---


def recorded(protocol: str) -> list[dict[str, Any]]:
    path = Path(FOLDER / f"{protocol}.jsonl")
    cases = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return [case for case in cases if isinstance(case["request_body"], dict) and case["response_status"] < 300]


@pytest.mark.more("each recording")
@needs_recordings
@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_recorded_bodies_and_replies_are_passed_on(protocol: str) -> None:
    """Every request equals the recorded one, except for the adapter's additions. Every reply equals the recorded
    one.
    """
    heard_of = 0
    for case in recorded(protocol)[:: 5 if is_quick() else 1]:
        body, raw, kind = case["request_body"], case["response_body"].encode(), PROTOCOLS[protocol]
        adapter = make_adapter(kind, case, fragments(raw, "random-1"))
        recording, requests = adapter.client.transport, list[HttpRequest]()

        async def send(request: HttpRequest, _answer: Any = recording.send, _to: Any = requests) -> HttpReply:
            _to.append(request)
            reply: HttpReply = await _answer(request)
            return reply

        recording.send = send  # type: ignore[method-assign]
        heard, streamed = Heard(), bool(case["streamed"])
        request = CanonicalRequest(
            request_id="req_1",
            model=f"{kind}:{body.get('model', 'gemini-3')}",
            messages=(Message.user("Hi"),),
            max_output_tokens=100,
            wire=WireRequest(protocol=kind, body=body, on_event=heard.on_event),
        )
        await heard.run(adapter, request, streamed=streamed)
        sent: JsonObject = msgspec.json.decode(requests[0].body)
        expected = dict(body)
        wants_usage = (
            not streamed or protocol != "openai_chat" or body.get("stream_options", {}).get("include_usage")
        )
        if not wants_usage:
            expected["stream_options"] = {**body.get("stream_options", {}), "include_usage": True}
        if not streamed and body.get("stream"):
            expected["stream"] = False
        assert sent == expected, case["id"]
        events = events_of(raw) if streamed else [("", raw)]
        if not wants_usage:
            events = [event for event in events if b'"choices":[]' not in event[1]]
        if heard.error is not None:  # the rest is not read
            events = events[: len(heard.raw)]
        assert heard.raw == events, case["id"]
        heard_of += bool(heard.raw)
    assert heard_of >= (30 if is_quick() else 150)
