"""If client and provider use the same protocol, the provider's bytes reach the client unchanged."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from callboard.adapters import AdapterConfig, CanonicalRequest, ProviderAdapter
from callboard.adapters.conformance.http_kit import FakeReply, FakeTransport
from callboard.bus import Clock
from callboard.bus.values.base import Json
from callboard.engine import Budget, Engine
from callboard.engine.gateway import gateway
from callboard.engine.gateway.application import Gateway
from callboard.engine.gateway.streams import MOST_WAITING_BYTES, ClientTooSlow, PassedReply, replaced
from callboard.engine.gateway.wire import ClientRequest
from tests.gateway.asking import post
from tests.support.engines import model, serving
from tests.support.scripted import adapter_type
from tests.support.wires import WIRES, Wire

PATHS = {
    "anthropic": "/v1/messages",
    "openai": "/v1/responses",
    "openai_compatible": "/v1/chat/completions",
    "gemini": "/v1beta/models/mine:generateContent",
}
BODIES: Mapping[str, Any] = {
    "anthropic": {"max_tokens": 9, "messages": [{"role": "user", "content": "Hi"}], "of_tomorrow": [1]},
    "openai": {"input": "Hi", "of_tomorrow": [1], "store": False},
    "openai_compatible": {"messages": [{"role": "user", "content": "Hi"}], "of_tomorrow": [1]},
    "gemini": {"contents": [{"role": "user", "parts": [{"text": "Hi"}]}], "ofTomorrow": [1]},
}
each_wire = pytest.mark.parametrize("wire", WIRES[:4], ids=lambda wire: wire.name)


class Provider:
    """A gateway with one provider and the model `mine`, and the requests of the provider."""

    def __init__(self, wire: Wire, *replies: FakeReply) -> None:
        self.wire = wire
        self.transport = FakeTransport(*replies)
        self.key = "sk-of-the-provider"
        self.history: Mapping[str, Any] = {}
        """Fields of the request."""

    @asynccontextmanager
    async def gateway(self, **more: Any) -> AsyncIterator[Gateway]:
        def make(config: AdapterConfig, *, name: str, clock: Clock) -> ProviderAdapter:
            options: dict[str, Json] = {"quirks": "openrouter"} if self.wire.name == "openai_compatible" else {}
            config = AdapterConfig(api_key=self.key, base_url=self.wire.base_url, max_retries=0, options=options)
            return self.wire.adapter(config, name=name, transport=self.transport, clock=clock)

        models = serving(model("a:m"), a=adapter_type(make)).with_client_names({"mine": ["a:m"]})
        async with Engine(models=models, trace=False, **more) as engine:
            yield gateway(engine, keyless=True)

    @property
    def sent(self) -> Any:
        return msgspec.json.decode(self.transport.requests[-1].body)

    async def ask(self, app: Gateway, *, streamed: bool) -> bytes:
        kind, body = self.wire.type_name, {**BODIES[self.wire.type_name], **self.history}
        path, query = PATHS[kind], ""
        if kind != "gemini":
            body |= {"model": "mine"} | ({"stream": True} if streamed else {})
        elif streamed:
            path, query = path.replace("generateContent", "streamGenerateContent"), "alt=sse"
        answer = await post(app, body, path=path, query=query)
        assert answer.status == 200, answer.data
        return answer.data


def with_client_name(value: Any, at: int = 0) -> Any:
    """A reply in which the model has the client's name."""
    match value:
        case dict():
            names = {"model", "modelVersion"} if at < 2 else ()
            return {
                key: "mine" if key in names and isinstance(each, str) else with_client_name(each, at + 1)
                for key, each in value.items()
            }
        case _:
            return value


def datas(body: bytes) -> list[Any]:
    """The data of each event of a stream."""
    lines = [line[6:].strip() for line in body.splitlines() if line.startswith(b"data: ")]
    return [line if line == b"[DONE]" else msgspec.json.decode(line) for line in lines]


@each_wire
async def test_a_body_and_its_whole_reply_go_through_with_only_the_name_of_the_model_changed(wire: Wire) -> None:
    provider = Provider(wire, wire.whole("Hello"))
    async with provider.gateway() as app:
        got = msgspec.json.decode(await provider.ask(app, streamed=False))
    assert provider.sent == BODIES[wire.type_name] | ({} if wire.type_name == "gemini" else {"model": "m"})
    assert got == with_client_name(wire.body("Hello", 0, "end"))


@pytest.mark.parametrize(("wire", "more", "needed"), [
    (WIRES[2], {"max_tokens": 40, "n": 3}, 120), (WIRES[2], {"max_tokens": -1}, 16_384),
    (WIRES[2], {"max_tokens": 40, "max_completion_tokens": 20}, 40),
    (WIRES[3], {"generationConfig": {"maxOutputTokens": 40, "candidateCount": 2}}, 80),
])  # fmt: skip
async def test_a_budget_reserves_the_highest_cost_of_the_clients_body(
    wire: Wire, more: dict[str, Any], needed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The provider gets the client's body, and bills each choice up to the highest limit in the body."""
    monkeypatch.setitem(BODIES, wire.type_name, BODIES[wire.type_name] | more)
    for room, admitted in ((needed, False), (needed + 1_000, True)):
        provider = Provider(wire, wire.whole("Hello"))
        async with provider.gateway(budgets=[Budget(max_tokens=room, unpriced="allow")]) as app:
            if admitted:
                await provider.ask(app, streamed=False)
            else:  # the input does not fit into the budget
                with pytest.raises(AssertionError, match="tokens left"):
                    await provider.ask(app, streamed=False)


SOUND: Any = {"type": "input_audio", "input_audio": {"data": "UklGRg==", "format": "wav"}}
DEMANDS: Mapping[str, Any] = {
    "anthropic": {"tools": [{"type": "web_search_20250305", "name": "web_search"}],
        "tool_choice": {"type": "any"}},
    "openai": {"tools": [{"type": "web_search"}], "tool_choice": "required"},
    "openai_compatible": {"messages": [{"role": "user", "content": [SOUND]}]},
    "gemini": {"tools": [{"googleSearch": {}}], "toolConfig": {"functionCallingConfig": {"mode": "ANY"}}},
}  # fmt: skip
"""Demands outside of the canonical form and the tables: a forced call of a provider's own tool, and audio."""


@each_wire
async def test_the_provider_judges_what_a_body_asks_for(wire: Wire) -> None:
    provider = Provider(wire, wire.whole("Hello"))
    asked = {**BODIES[wire.type_name], **DEMANDS[wire.type_name]}
    async with provider.gateway() as app:
        answer = await post(app, {"model": "mine", **asked}, path=PATHS[wire.type_name])
    assert answer.status == 200, answer.data
    assert provider.sent.items() >= DEMANDS[wire.type_name].items()


@each_wire
async def test_a_stream_has_the_providers_own_events(wire: Wire) -> None:
    provider = Provider(wire, wire.streamed("Hello"))
    async with provider.gateway() as app:
        got = await provider.ask(app, streamed=True)
    said = wire.streamed("Hello")
    original = b"".join(step for step in said.steps if isinstance(step, bytes))
    asked_for = [each for each in datas(original) if each == b"[DONE]" or each.get("choices") != []]
    # without the usage that only the gateway requested
    assert datas(got) == [with_client_name(each) for each in asked_for]


async def test_middleware_that_may_change_a_reply_takes_the_providers_bytes_away() -> None:
    wire = WIRES[0]

    async def shouting(request: CanonicalRequest, next: Any) -> Any:
        outcome = await next(request)
        content = tuple(msgspec.structs.replace(block, text="HELLO") for block in outcome.response.content)
        return type(outcome)(
            response=msgspec.structs.replace(outcome.response, content=content), cost=outcome.cost
        )

    provider = Provider(wire, wire.whole("Hello"))
    async with provider.gateway(middleware=[shouting]) as app:
        got = await provider.ask(app, streamed=False)
    assert b"HELLO" in got
    assert b"Hello" not in got


SECRET = "c2VjcmV0IG9mIHRoZSBwcm92aWRlcg=="
HI, GO_ON = {"role": "user", "content": "Hi"}, {"role": "user", "content": "Go on"}
THOUGHT = {"type": "thinking", "thinking": "Hm.", "signature": SECRET}
YES = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Yes."}]}
REASONING = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": SECRET}
DETAIL = {"type": "reasoning.encrypted", "data": SECRET, "format": "of-tomorrow"}
SIGNED = {"role": "model", "parts": [{"text": "Yes.", "thoughtSignature": SECRET}]}
HISTORIES: Mapping[str, Any] = {
    "anthropic": {
        "messages": [HI, {"role": "assistant", "content": [THOUGHT, {"type": "text", "text": "Yes."}]}, GO_ON]
    },
    "openai": {"input": [HI, REASONING, YES, GO_ON]},
    "openai_compatible": {
        "messages": [HI, {"role": "assistant", "content": "Yes.", "reasoning_details": [DETAIL]}, GO_ON]
    },
    "gemini": {
        "generationConfig": {"thinkingConfig": {"includeThoughts": True}},
        "contents": [{"role": "user", "parts": [{"text": text}]} for text in ("Hi", "Go on")],
    },
}
HISTORIES["gemini"]["contents"].insert(1, SIGNED)
"""Conversations with data that only the provider can read."""


async def brief(request: CanonicalRequest, next: Any) -> Any:
    """Middleware that changes a request, so that the gateway sends the canonical form."""
    return await next(msgspec.structs.replace(request, system_prompt="Be brief."))


@each_wire
@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
async def test_opaque_data_survives_if_the_adapter_has_another_name(wire: Wire, streamed: bool) -> None:
    """The adapter has the name `a`, and middleware changes the request, so that both directions use the canonical
    form.
    """
    reply = [event for _, event in wire.events("Yes.", 0, "end", "Let me think.")]
    whole = wire.body("Yes.", 0, "end", "Let me think.")
    said = FakeReply(wire.stream(*reply)) if streamed else FakeReply(msgspec.json.encode(whole))
    said.headers["content-type"] = "text/event-stream" if streamed else "application/json"
    provider = Provider(wire, said)
    provider.history = HISTORIES[wire.type_name]
    async with provider.gateway(middleware=[brief]) as app:
        got = await provider.ask(app, streamed=streamed)
    assert "Be brief." in str(provider.sent)
    assert SECRET in str(provider.sent)
    # in a stream of Responses, tokens replace the data that the gateway stores
    if not streamed or wire.name != "openai":
        assert all(secret in got.decode() for secret in wire.secrets[:1])


@each_wire
async def test_the_key_of_the_provider_is_in_no_answer(wire: Wire) -> None:
    said = {"error": {"message": "Incorrect API key provided: sk-of-the-provider", "type": "authentication"}}
    reply = FakeReply(
        msgspec.json.encode(said), status=401, headers={"content-type": "application/json", "x-key": "sk-of-the"}
    )
    provider = Provider(wire, reply)
    path = PATHS[wire.type_name]
    async with provider.gateway() as app:
        answer = await post(app, {"model": "mine", **BODIES[wire.type_name]}, path=path)
    assert answer.status == 403
    assert b"sk-of" not in answer.data
    assert "sk-of" not in str(answer.headers)


@each_wire
@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("status", [400, 200])
async def test_further_fields_of_the_providers_error_reach_a_client_of_the_same_wire(
    wire: Wire, streamed: bool, status: int
) -> None:
    """An example is Groq's text of an invalid call. Gemini's details are written by the gateway."""
    error = {
        "message": "Failed", "type": "invalid_request_error", "code": "tool_use_failed",
        "failed_generation": "<function=f>",
    }  # fmt: skip
    body = msgspec.json.encode({"type": "error", "error": error})
    provider = Provider(wire, FakeReply(body, status=status, headers={"content-type": "application/json"}))
    path = PATHS[wire.type_name]
    if streamed:
        path = path.replace("generateContent", "streamGenerateContent")
    async with provider.gateway() as app:
        answer = await post(app, {"model": "mine", **BODIES[wire.type_name], "stream": streamed}, path=path)
    assert answer.status == 400
    assert answer.json["error"]["message"] == "Failed"
    assert answer.json["error"].get("failed_generation") == (None if wire.name == "gemini" else "<function=f>")


# --- Limits ---

LIMITS = {
    "anthropic": {"anthropic-ratelimit-requests-limit": "50", "anthropic-ratelimit-requests-remaining": "49",
        "anthropic-ratelimit-requests-reset": "2020-01-01T00:00:00Z",
        "anthropic-ratelimit-input-tokens-limit": "9000", "anthropic-ratelimit-input-tokens-remaining": "8000"},
    "openai_compatible": {"x-ratelimit-limit-requests": "50", "x-ratelimit-remaining-requests": "49",
        "x-ratelimit-reset-requests": "1m0s", "x-ratelimit-limit-tokens": "9000"},
}  # fmt: skip
"""The limits of a provider, in the headers of its replies."""


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("status", [200, 429])
@pytest.mark.parametrize(
    ("kind", "asked", "expected"),
    [
        ("anthropic", "anthropic", LIMITS["anthropic"]),
        ("openai_compatible", "openai_compatible", LIMITS["openai_compatible"]),
        # OpenAI has no header for a limit of input tokens only.
        ("anthropic", "openai_compatible", {
            "x-ratelimit-limit-requests": "50", "x-ratelimit-remaining-requests": "49",
            "x-ratelimit-reset-requests": "0.000s",
        }),
        ("openai_compatible", "anthropic", {
            "anthropic-ratelimit-requests-limit": "50", "anthropic-ratelimit-requests-remaining": "49",
            "anthropic-ratelimit-requests-reset": "…", "anthropic-ratelimit-tokens-limit": "9000",
        }),
        ("openai_compatible", "gemini", {}),
    ],
)  # fmt: skip
async def test_the_providers_limits_have_the_clients_header_names(
    kind: str, asked: str, expected: Mapping[str, str], streamed: bool, status: int
) -> None:
    """A failed reply has the same headers as a good one, and the delay before a retry."""
    wire = next(each for each in WIRES if each.type_name == kind)
    provider = Provider(wire, wire.streamed("Hello") if streamed else wire.whole("Hello"))
    (reply,) = provider.transport.replies
    reply.headers = {**reply.headers, **LIMITS[kind], "x-ratelimit-key": provider.key, "retry-after": "7"}
    reply.status = status
    body = {"model": "mine", **BODIES[asked], "stream": streamed}
    path = PATHS[asked].replace("generateContent", "streamGenerateContent") if streamed else PATHS[asked]
    async with provider.gateway() as app:
        answer = await post(app, body, path=path)
    assert answer.status == status
    assert answer.headers.get("retry-after") == ("7" if status == 429 else None)
    told = {name: value for name, value in answer.headers.items() if "ratelimit" in name}
    assert provider.key not in str(told)
    told.pop("x-ratelimit-key", None)
    assert {name: (expected.get(name) == "…" and "…") or value for name, value in told.items()} == expected


# --- The bytes themselves ---


def passed(protocol: str, model: str = "mine", served: str = "m", *, stream: bool = True) -> PassedReply:
    request = CanonicalRequest(request_id="", model=model, messages=(), max_output_tokens=1)
    return PassedReply(protocol, ClientRequest(model=model, request=request, stream=stream), lambda: served)


def test_only_the_model_changes_in_an_event() -> None:
    reply = passed("openai_compatible")
    reply.take_in("", b'{"id": 1.0, "model" : "m-2026", "choices":[{"delta":{"content":"\\"model\\":\\"m\\""}}]}')
    reply.take_in("", b'{"id":1e0,"model":"m-2026","choices":[{"model":"m"}]}')
    reply.take_in("", b"[DONE]")
    assert reply.take() == (
        b'data: {"id":1.0,"model":"mine","choices":[{"delta":{"content":"\\"model\\":\\"m\\""}}]}\n\n'
        b'data: {"id":1e0,"model":"mine","choices":[{"model":"m"}]}\n\n'
        b"data: [DONE]\n\n"
    )
    assert reply.take() == b""


def test_an_event_stays_where_the_client_named_the_providers_model() -> None:
    data = b'{"model" : "m-2026"}'
    reply = passed("openai_compatible", served="mine")
    reply.take_in("", data)
    assert reply.take() == b"data: " + data + b"\n\n"


def test_data_of_several_lines_stays_one_event() -> None:
    reply = passed("anthropic")
    reply.take_in("message_start", b'{"message":\n{"model":"m"}}')
    reply.take_in("ping", b'{\n"type":"ping"}')
    assert reply.take() == (
        b'event: message_start\ndata: {"message":{"model":"mine"}}\n\n'
        b'event: ping\ndata: {\ndata: "type":"ping"}\n\n'
    )


@pytest.mark.parametrize("data", [b"[DONE]", b"", b'{"a":1}', b'{"model":', b"[]", b'"model"'])
def test_data_without_a_model_is_left_alone(data: bytes) -> None:
    assert replaced(data, ("model",), "mine") == data


def test_a_client_far_behind_costs_bounded_memory() -> None:
    reply = passed("anthropic")
    for _ in range(2 * MOST_WAITING_BYTES // 100_000):
        reply.take_in("content_block_delta", b"x" * 100_000)
    with pytest.raises(ClientTooSlow):
        reply.take()


@pytest.mark.parametrize(("protocol", "name", "data"), [
    ("openai_compatible", "", b'{"error": {"message": "overloaded"}}'),
    ("gemini", "", b'{"error":{"code":503}}'),
    ("anthropic", "error", b'{"type":"error","error":{"type":"overloaded_error"}}'),
])  # fmt: skip
def test_a_provider_s_own_error_in_a_stream_is_the_last_one(protocol: str, name: str, data: bytes) -> None:
    """The client gets no second error. A text that contains the word is no error."""
    reply = passed(protocol)
    reply.take_in(name and "content_block_delta", b'{"choices":[{"delta":{"content":"an \\"error\\""}}]}')
    assert not reply.failed
    reply.take_in(name, data)
    assert reply.failed
