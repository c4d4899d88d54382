"""Where a request goes on each wire, with which key, and what the reply's headers say of limits."""

from __future__ import annotations

from collections.abc import Mapping

import anyio
import pytest

from callboard.adapters import create_adapter
from callboard.adapters.config import AdapterConfig
from callboard.adapters.conformance import Says
from callboard.adapters.contract import ProviderAdapter, RateLimitInfo
from callboard.adapters.health import AdapterHealth, ChecksHealth

from ..support.fake_http import FakeReply, FakeTransport, request
from ..support.wires import WIRES, ChatWire, Wire

CLAUDE, RESPONSES, _, GEMINI, OLLAMA, TGI, *_ = WIRES
CHAT = ChatWire()
GOOGLE = "https://generativelanguage.googleapis.com/v1beta"
VERTEX = "projects/p/locations/l/publishers/google/models/gemini-9"

Sent = tuple[str, Mapping[str, str]]


def sent(
    wire: Wire, *, streamed: bool = False, model: str = "m", **config: object
) -> tuple[str, Mapping[str, str]]:
    """The address and the headers of a request; `api_key` is "k" unless the configuration says otherwise."""

    async def ask() -> Sent:
        async with wire.stage(Says("Hi", streamed=streamed), **{"api_key": "k", **config}) as stage:
            asked = request(model=f"{wire.name}:{model}")
            if streamed:
                assert [event async for event in stage.adapter.stream(asked)]
            else:
                await stage.adapter.complete(asked)
            assert stage.requests[-1].method == "POST"
            return stage.requests[-1].url, stage.requests[-1].headers

    return anyio.run(ask)


ADDRESSES: list[tuple[Wire, dict[str, object], str]] = [
    (CLAUDE, {"base_url": None}, "https://api.anthropic.com/v1/messages"),
    (CLAUDE, {"base_url": "https://proxy.test/v1/"}, "https://proxy.test/v1/messages"),
    (RESPONSES, {"base_url": None}, "https://api.openai.com/v1/responses"),
    (CHAT, {"base_url": "https://api.openai.com/v1/"}, "https://api.openai.com/v1/chat/completions"),
    (GEMINI, {"base_url": None}, f"{GOOGLE}/models/m:generateContent"),
    (GEMINI, {"base_url": "http://h/case/x/v1beta/"}, "http://h/case/x/v1beta/models/m:generateContent"),
    (GEMINI, {"base_url": "http://h", "model": "tunedModels/m"}, "http://h/v1beta/tunedModels/m:generateContent"),
    (GEMINI, {"base_url": "http://h", "model": "a b?c"}, "http://h/v1beta/models/a%20b%3Fc:generateContent"),
    (GEMINI, {"base_url": "http://h", "model": VERTEX, "options": {"api_version": "v1beta1"}},
     f"http://h/v1beta1/{VERTEX}:generateContent"),
    (GEMINI, {"streamed": True}, f"{GOOGLE}/models/m:streamGenerateContent?alt=sse"),
    *[(OLLAMA, {"base_url": url}, "http://localhost:11434/api/chat") for url in (
        None, "http://localhost:11434", "http://localhost:11434/api", "http://localhost:11434/v1/")],
    (TGI, {"base_url": None}, "http://localhost:8080/generate"),
    (TGI, {"streamed": True}, "http://localhost:8080/generate_stream"),
]  # fmt: skip


@pytest.mark.parametrize(("wire", "how", "url"), ADDRESSES,
                         ids=[f"{wire.name}-{url}" for wire, _, url in ADDRESSES])  # fmt: skip
def test_a_request_goes_where_its_protocol_wants_it(wire: Wire, how: dict[str, object], url: str) -> None:
    """A base URL comes with or without its version; a model's name never changes the address."""
    assert sent(wire, **how)[0] == url  # type: ignore[arg-type]


BEARER = {"authorization": "Bearer k"}
HEADERS: list[tuple[Wire, dict[str, object], dict[str, str | None]]] = [
    (CLAUDE, {}, {"x-api-key": "k", "anthropic-version": "2023-06-01"}),
    (RESPONSES, {}, BEARER),
    (RESPONSES, {"options": {"organization": "o", "project": "p"}},
     {**BEARER, "openai-organization": "o", "openai-project": "p"}),
    (CHAT, {}, BEARER),
    (CHAT, {"base_url": "https://x.openai.azure.com"}, {"api-key": "k", "authorization": None}),
    (CHAT, {"api_key": None, "base_url": "http://127.0.0.1:9"}, {"authorization": None}),
    (GEMINI, {}, {"x-goog-api-key": "k"}),
    (GEMINI, {"api_key": None, "extra_headers": {"authorization": "Bearer t"}},
     {"authorization": "Bearer t", "x-goog-api-key": None}),
    (OLLAMA, {}, BEARER),
    (TGI, {}, BEARER),
]  # fmt: skip


@pytest.mark.parametrize(("wire", "config", "headers"), HEADERS,
                         ids=[f"{wire.name}-{'+'.join(config)}" for wire, config, _ in HEADERS])  # fmt: skip
def test_the_key_goes_in_the_header_of_its_protocol(
    wire: Wire, config: dict[str, object], headers: dict[str, str | None]
) -> None:
    """Or in none, if there is no key."""
    found = sent(wire, **config)[1]  # type: ignore[arg-type]
    assert {name: found.get(name) for name in headers} == headers


OF_ANTHROPIC = {
    f"anthropic-ratelimit-{what}-{kind}": value
    for what, values in (("requests", ("50", "49", "2026-01-01T00:00:01Z")),
                         ("tokens", ("80000", "79000", "2026-01-01T00:00:02Z")))
    for kind, value in zip(("limit", "remaining", "reset"), values, strict=True)
}  # fmt: skip
LIMITS: list[tuple[Wire, dict[str, str], RateLimitInfo | None]] = [
    (CLAUDE, {**OF_ANTHROPIC, "retry-after": "9"}, RateLimitInfo(requests_limit=50,
     requests_remaining=49, tokens_limit=80000, tokens_remaining=79000, reset_at="2026-01-01T00:00:02Z",
     requests_reset="2026-01-01T00:00:01Z", tokens_reset="2026-01-01T00:00:02Z")),
    (CLAUDE, {"anthropic-ratelimit-input-tokens-limit": "7", "anthropic-ratelimit-requests-limit": "²"},
     RateLimitInfo(tokens_limit=7, counts_output=False)),
    (CLAUDE, {"x": "y"}, None),
    *[(wire, headers, found) for wire in (RESPONSES, CHAT) for headers, found in [
        ({"x-ratelimit-remaining-tokens": "99", "x-ratelimit-reset-requests": "6m0s"},
         RateLimitInfo(tokens_remaining=99, reset_at="6m0s", requests_reset="6m0s")),
        ({"x-ratelimit-limit-requests": "-1", "x-ratelimit-remaining": "5"},
         RateLimitInfo(requests_remaining=5, fixed_window=True)),
        ({}, None),
    ]],
]  # fmt: skip


@pytest.mark.parametrize(
    ("wire", "headers", "limits"), LIMITS, ids=lambda value: getattr(value, "name", None) or ""
)
def test_limits_are_read_from_a_good_replys_headers(
    wire: Wire, headers: dict[str, str], limits: RateLimitInfo | None
) -> None:
    """Also those of input tokens alone; nonsense, and -1 of some gateways, are no limits."""

    async def ask() -> RateLimitInfo | None:
        reply = wire.whole("Hi")
        reply.headers = {**reply.headers, **headers}
        async with wire.stage_of(reply) as stage:
            return (await stage.adapter.complete(stage.request())).rate_limit

    assert anyio.run(ask) == limits


HEALTH = {
    "anthropic": "https://api.anthropic.com/v1/models",
    "openai": "https://api.openai.com/v1/models",
    "openai_compatible": "https://api.openai.com/v1/models",
    "gemini": f"{GOOGLE}/models?pageSize=1",
    "interactions": f"{GOOGLE}/models?pageSize=1",
    "ollama": "http://localhost:11434/api/tags",
    "tgi": "http://localhost:8080/info",
}


@pytest.mark.parametrize("wire", WIRES, ids=lambda wire: wire.name)
def test_health_is_one_question_with_the_key(wire: Wire) -> None:
    """A GET that costs nothing: the list of models, or what the server is."""

    transport = FakeTransport(FakeReply(b"{}", headers={"content-type": "application/json"}))
    adapter = create_adapter(
        wire.type_name, AdapterConfig(api_key="key-1", base_url=wire.base_url), name="x", transport=transport
    )
    assert isinstance(adapter, ChecksHealth)
    health = anyio.run(adapter.health_check)
    assert isinstance(health, AdapterHealth)
    assert health.ok
    (question,) = transport.requests
    assert (question.method, question.url) == ("GET", HEALTH[wire.name])
    assert any("key-1" in value for value in question.headers.values())


@pytest.mark.parametrize("wire", WIRES, ids=lambda wire: wire.name)
def test_the_registry_knows_it(wire: Wire) -> None:
    """A `type` in models.yaml makes one, under the name given there."""
    made = create_adapter(wire.type_name, AdapterConfig(), name="proxy")
    assert isinstance(made, wire.adapter)
    assert isinstance(made, ProviderAdapter)
    assert made.name == "proxy"
    assert made.get_capabilities("model-of-tomorrow").max_context_tokens > 0
