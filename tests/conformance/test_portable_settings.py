"""Settings, tool choices, efforts and addresses of each wire."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import anyio
import msgspec
import pytest

from callboard.adapters.config import AdapterConfig
from callboard.adapters.conformance import Says
from callboard.adapters.contract import ProviderAdapter, RateLimitInfo
from callboard.adapters.health import AdapterHealth, ChecksHealth
from callboard.adapters.http.adapter import HttpAdapter
from callboard.adapters.provider import create_adapter, model_table, tabled_vendors
from callboard.adapters.requests.settings import EFFORTS, PORTABLE
from callboard.bus.errors import InvalidRequestError
from callboard.bus.values.base import Json, JsonObject
from callboard.bus.values.messages import CallWarning, ToolChoice, ToolDefinition

from ..support.fake_http import FakeReply, FakeTransport, request
from ..support.virtual_time import FakeClock
from ..support.wires import QUIRKY, WIRES, ChatWire, Wire

EVERYWHERE = (*WIRES, *QUIRKY)
SETTINGS: dict[str, object] = {
    "temperature": 0.5, "top_p": 0.5, "frequency_penalty": 0.5, "presence_penalty": -0.5, "seed": 7,
    "user": "u_1", "verbosity": "low", "background": True,
}  # fmt: skip
AT_THE_EDGE: dict[str, object] = {
    "temperature": 0.0, "top_p": 0.0, "frequency_penalty": 0.0, "presence_penalty": 0.0, "seed": 0,
}  # fmt: skip


def named(wire: Wire) -> str:
    return f"{wire.name}-{wire.quirks}" if hasattr(wire, "quirks") else type(wire).__name__


def sent(wire: Wire, **changes: object) -> tuple[JsonObject, tuple[CallWarning, ...]]:
    """The body of a request on a wire, and its warnings."""
    return written_body(wire, "some-model", max_output_tokens=4096, **changes)


def about(name: str, warnings: tuple[CallWarning, ...]) -> list[CallWarning]:
    return [warning for warning in warnings if name in warning.message]


@pytest.mark.parametrize("wire", EVERYWHERE, ids=named)
def test_a_setting_is_either_sent_or_named_in_one_warning(wire: Wire) -> None:
    assert set(SETTINGS) == set(PORTABLE)
    plain, _ = sent(wire)
    for name, value in (*SETTINGS.items(), *AT_THE_EDGE.items()):
        body, warnings = sent(wire, **{name: value})
        assert (body != plain, len(about(name, warnings))) in ((True, 0), (False, 1)), (name, value)


@pytest.mark.parametrize("wire", EVERYWHERE, ids=named)
def test_an_effort_is_sent_or_named_in_a_warning(wire: Wire) -> None:
    """The sent value differs from that of no effort or of ``none``, if the model has a default or a least
    effort.
    """
    plain, none = sent(wire)[0], sent(wire, reasoning_effort="none")[0]
    for effort in EFFORTS[1:]:
        body, warnings = sent(wire, reasoning_effort=effort)
        assert body != plain or body != none or about("effort", warnings), effort


# -- every known model


def known() -> Iterator[tuple[str, str]]:
    for provider in tabled_vendors():
        table = model_table(provider)
        assert table is not None
        for row in table.rows:
            yield provider, row.id


def written(adapter: HttpAdapter, model: str, **changes: object) -> tuple[JsonObject, tuple[CallWarning, ...]]:
    wire = adapter.write_request(request(model=model, max_output_tokens=4096, **changes), stream=False)
    return msgspec.json.decode(wire.body), wire.warnings


@pytest.mark.parametrize(("provider", "model"), tuple(known()))
def test_each_known_model_gets_only_supported_settings(provider: str, model: str) -> None:
    """The model's table decides. A setting or an effort is never dropped silently."""
    adapter = create_adapter(provider, AdapterConfig(api_key="k", base_url="https://provider.test"), name=provider)
    assert isinstance(adapter, HttpAdapter)
    can, name = adapter.get_capabilities(model), f"{provider}:{model}"
    plain, _ = written(adapter, name)
    for setting, value in SETTINGS.items():
        body, warnings = written(adapter, name, **{setting: value})
        assert (body != plain, len(about(setting, warnings))) in ((True, 0), (False, 1)), setting
    for effort in EFFORTS:
        body, warnings = written(adapter, name, reasoning_effort=effort)
        if can.supports_thinking:
            assert body != plain or effort == "none"
        else:
            assert body == plain
            assert about("effort", warnings) or effort == "none"


# -- The tool choice and the effort in the form of each wire.


CLAUDE, RESPONSES, CHAT, GEMINI, OLLAMA, *_ = WIRES
LOOK = ToolDefinition("look", "Look.", {"type": "object", "properties": {"at": {"type": "string"}}})
AUTO, NONE, REQUIRED = ToolChoice("auto"), ToolChoice("none"), ToolChoice("required")
NAMED = ToolChoice("named", "look")
ALONE = {"parallel_tool_calls": False}


def written_body(wire: Wire, model: str = "m", **changes: object) -> tuple[JsonObject, tuple[CallWarning, ...]]:
    """The body of a request to a model, and its warnings."""
    adapter = wire.make(FakeTransport(), FakeClock())
    assert isinstance(adapter, HttpAdapter)
    call = adapter.write_request(request(model=f"{wire.name}:{model}", **changes), stream=False)
    return msgspec.json.decode(call.body), call.warnings


def at(body: JsonObject, path: str) -> Json:
    """The value at a path of keys. None if it is missing."""
    value: Json = body
    for key in path.split("."):
        value = value.get(key) if isinstance(value, dict) else None
    return value


GOOGLE = "toolConfig.functionCallingConfig"
CHOICES: list[tuple[Wire, str, dict[str, object], Json]] = [
    *[(CLAUDE, "tool_choice", {"tool_choice": choice, **more}, expected) for choice, more, expected in [
        (None, {}, None),
        (None, {"parallel_tool_calls": True}, None),
        (None, ALONE, {"type": "auto", "disable_parallel_tool_use": True}),
        (AUTO, {}, {"type": "auto"}),
        (NONE, ALONE, {"type": "none"}),
        (REQUIRED, {"parallel_tool_calls": True}, {"type": "any"}),
        (REQUIRED, ALONE, {"type": "any", "disable_parallel_tool_use": True}),
        (NAMED, {}, {"type": "tool", "name": "look"}),
        (NAMED, ALONE, {"type": "tool", "name": "look", "disable_parallel_tool_use": True}),
    ]],
    *[(wire, "tool_choice", {"tool_choice": choice}, expected) for wire, named in [
        (RESPONSES, {"type": "function", "name": "look"}),
        (CHAT, {"type": "function", "function": {"name": "look"}}),
    ] for choice, expected in [(None, None), (AUTO, "auto"), (NONE, "none"), (REQUIRED, "required"), (NAMED,
    named)]],
    *[(wire, "parallel_tool_calls", ALONE, False) for wire in (RESPONSES, CHAT)],
    (ChatWire("mistral"), "tool_choice", {"tool_choice": REQUIRED}, "any"),
    *[(GEMINI, GOOGLE, {"tool_choice": choice}, expected) for choice, expected in [
        (None, None), (AUTO, {"mode": "AUTO"}), (NONE, {"mode": "NONE"}), (REQUIRED, {"mode": "ANY"}),
        (NAMED, {"mode": "ANY", "allowedFunctionNames": ["look"]})]],
    (ChatWire("default"), "tools", {}, [{"type": "function", "function": {
        "name": "look", "description": "Look.", "parameters": LOOK.input_schema}}]),
    (OLLAMA, "tools", {"tool_choice": NONE}, None),
]  # fmt: skip


@pytest.mark.parametrize(("wire", "path", "asked", "expected"), CHOICES,
                         ids=[f"{row[0].name}-{number}" for number, row in enumerate(CHOICES)])  # fmt: skip
def test_a_tool_choice_in_all_its_modes(wire: Wire, path: str, asked: dict[str, object], expected: Json) -> None:
    """The mode includes parallel calls. Without a choice, no field is sent."""
    assert at(written_body(wire, tools=(LOOK,), **asked)[0], path) == expected


@pytest.mark.parametrize("wire", WIRES[:5], ids=lambda wire: wire.name)
def test_an_unsupported_tool_choice(wire: Wire) -> None:
    """A choice without an effect is not sent. A choice that the wire does not support is an error before any
    network access.
    """
    for choice in (AUTO, NONE):
        assert not {"tool_choice", "toolConfig"} & written_body(wire, tool_choice=choice)[0].keys()
    for choice, tools in ((REQUIRED, ()), (NAMED, ()), (ToolChoice("named", "x"), (LOOK,))):
        with pytest.raises(InvalidRequestError):
            written_body(wire, tool_choice=choice, tools=tools)


def google(**thinking: Json) -> JsonObject:
    return {**thinking, "includeThoughts": True}


CLAUDES = "output_config.effort"
THINKING = "generationConfig.thinkingConfig"
SIX = "gpt-5.6"
REFUSED_EFFORTS: list[tuple[Wire, str, str, str, Json]] = [
    *[(CLAUDE, "claude-test", CLAUDES, asked, sent) for asked, sent in [
        ("none", "low"), ("minimal", "low"), *[(same, same) for same in ("low", "medium", "high", "xhigh",
        "max")]]],
    *[(RESPONSES, model, "reasoning", asked, {"effort": sent, "summary": "auto"}) for model, asked, sent in [
        ("gpt-5", "none", "minimal"), (SIX, "max", "max"), ("o3", "xhigh", "high")]],
    (RESPONSES, "unknown", "reasoning", "max", {"effort": "max"}), (RESPONSES, "gpt-4o", "reasoning", "low", None),
    *[(ChatWire(quirks), "m", path, asked, sent) for quirks, path, asked, sent in [
        ("openai", "reasoning_effort", "minimal", "minimal"), ("xai", "reasoning_effort", "max", "high"),
        ("openrouter", "reasoning", "low", {"effort": "low"}), ("zai", "thinking", "none", {"type": "disabled"}),
        ("deepseek", "thinking", "high", {"type": "enabled"})]],
    *[(GEMINI, f"gemini-{model}", THINKING, asked, sent) for model, asked, sent in [
        ("2.5-flash", "none", {"thinkingBudget": 0}),
        ("2.5-flash", "low", google(thinkingBudget=1024)),
        ("2.5-flash", "max", google(thinkingBudget=24576)),
        ("2.5-flash-lite-preview-06-17", "minimal", google(thinkingBudget=512)),
        ("2.5-pro", "none", google(thinkingBudget=128)),
        ("2.5-pro", "max", google(thinkingBudget=32768)),
        ("3-flash-preview", "minimal", google(thinkingLevel="MINIMAL")),
        ("3-pro-preview", "medium", google(thinkingLevel="LOW")),
        ("3.1-pro-preview", "medium", google(thinkingLevel="MEDIUM")),
        ("3.8-flash", "minimal", google(thinkingLevel="LOW")),
        ("flash-latest", "high", google(thinkingLevel="HIGH")),
        ("unheard-of", "xhigh", google(thinkingLevel="HIGH")),
        ("2.0-flash", "high", None)]],
    (OLLAMA, "m", "think", "high", True), (OLLAMA, "m", "think", "none", False),
    (OLLAMA, "gpt-oss:20b", "think", "high", "high"), (OLLAMA, "gpt-oss:20b", "think", "xhigh", "high"),
]  # fmt: skip


@pytest.mark.parametrize(("wire", "model", "path", "effort", "expected"), REFUSED_EFFORTS,
                         ids=[f"{row[0].name}-{row[1]}-{row[3]}" for row in REFUSED_EFFORTS])  # fmt: skip
def test_an_effort_becomes_the_nearest_effort_of_the_model(
    wire: Wire, model: str, path: str, effort: str, expected: Json
) -> None:
    """A changed or dropped effort causes a warning."""
    body, warnings = written_body(wire, model, reasoning_effort=effort)
    assert at(body, path) == expected
    level = str(expected).lower()
    same = effort in level or "budget" in level or isinstance(expected, bool) or "type" in level
    codes = [warning.code for warning in warnings]
    if expected is None:
        assert codes == ["parameter_dropped"]
    elif (model, effort) == ("gemini-2.5-pro", "none"):
        assert codes == ["parameter_changed"]
    else:
        assert codes == ([] if same else ["parameter_changed"])


# -- The address and the key of a request on each wire, and the limits in the reply's headers.


AT_CLAUDE, AT_RESPONSES, _, AT_GEMINI, AT_OLLAMA, TGI, *_ = WIRES
AT_CHAT = ChatWire()
AT_GOOGLE = "https://generativelanguage.googleapis.com/v1beta"
VERTEX = "projects/p/locations/l/publishers/google/models/gemini-9"

Sent = tuple[str, Mapping[str, str]]


def sent_to(
    wire: Wire, *, streamed: bool = False, model: str = "m", **config: object
) -> tuple[str, Mapping[str, str]]:
    """The address and the headers of a request. Without a configuration, `api_key` is "k"."""

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
    (AT_CLAUDE, {"base_url": None}, "https://api.anthropic.com/v1/messages"),
    (AT_CLAUDE, {"base_url": "https://proxy.test/v1/"}, "https://proxy.test/v1/messages"),
    (AT_RESPONSES, {"base_url": None}, "https://api.openai.com/v1/responses"),
    (AT_CHAT, {"base_url": "https://api.openai.com/v1/"}, "https://api.openai.com/v1/chat/completions"),
    (AT_GEMINI, {"base_url": None}, f"{AT_GOOGLE}/models/m:generateContent"),
    (AT_GEMINI, {"base_url": "http://h/case/x/v1beta/"}, "http://h/case/x/v1beta/models/m:generateContent"),
    (AT_GEMINI, {"base_url": "http://h", "model": "tunedModels/m"}, "http://h/v1beta/tunedModels/m:generateContent"),
    (AT_GEMINI, {"base_url": "http://h", "model": "a b?c"}, "http://h/v1beta/models/a%20b%3Fc:generateContent"),
    (AT_GEMINI, {"base_url": "http://h", "model": VERTEX, "options": {"api_version": "v1beta1"}},
     f"http://h/v1beta1/{VERTEX}:generateContent"),
    (AT_GEMINI, {"streamed": True}, f"{AT_GOOGLE}/models/m:streamGenerateContent?alt=sse"),
    *[(AT_OLLAMA, {"base_url": url}, "http://localhost:11434/api/chat") for url in (
        None, "http://localhost:11434", "http://localhost:11434/api", "http://localhost:11434/v1/")],
    (TGI, {"base_url": None}, "http://localhost:8080/generate"),
    (TGI, {"streamed": True}, "http://localhost:8080/generate_stream"),
]  # fmt: skip


@pytest.mark.parametrize(("wire", "how", "url"), ADDRESSES,
                         ids=[f"{wire.name}-{url}" for wire, _, url in ADDRESSES])  # fmt: skip
def test_a_request_goes_to_the_address_of_its_protocol(wire: Wire, how: dict[str, object], url: str) -> None:
    """A base URL may have a version or not. The model's name never changes the rest of the address."""
    assert sent_to(wire, **how)[0] == url  # type: ignore[arg-type]


BEARER = {"authorization": "Bearer k"}
HEADERS: list[tuple[Wire, dict[str, object], dict[str, str | None]]] = [
    (AT_CLAUDE, {}, {"x-api-key": "k", "anthropic-version": "2023-06-01"}),
    (AT_RESPONSES, {}, BEARER),
    (AT_RESPONSES, {"options": {"organization": "o", "project": "p"}},
     {**BEARER, "openai-organization": "o", "openai-project": "p"}),
    (AT_CHAT, {}, BEARER),
    (AT_CHAT, {"base_url": "https://x.openai.azure.com"}, {"api-key": "k", "authorization": None}),
    (AT_CHAT, {"api_key": None, "base_url": "http://127.0.0.1:9"}, {"authorization": None}),
    (AT_GEMINI, {}, {"x-goog-api-key": "k"}),
    (AT_GEMINI, {"api_key": None, "extra_headers": {"authorization": "Bearer t"}},
     {"authorization": "Bearer t", "x-goog-api-key": None}),
    (AT_OLLAMA, {}, BEARER),
    (TGI, {}, BEARER),
]  # fmt: skip


@pytest.mark.parametrize(("wire", "config", "headers"), HEADERS,
                         ids=[f"{wire.name}-{'+'.join(config)}" for wire, config, _ in HEADERS])  # fmt: skip
def test_the_key_is_in_the_header_of_its_protocol(
    wire: Wire, config: dict[str, object], headers: dict[str, str | None]
) -> None:
    """Without a key, no header has one."""
    found = sent_to(wire, **config)[1]  # type: ignore[arg-type]
    assert {name: found.get(name) for name in headers} == headers


OF_ANTHROPIC = {
    f"anthropic-ratelimit-{what}-{kind}": value
    for what, values in (("requests", ("50", "49", "2026-01-01T00:00:01Z")),
                         ("tokens", ("80000", "79000", "2026-01-01T00:00:02Z")))
    for kind, value in zip(("limit", "remaining", "reset"), values, strict=True)
}  # fmt: skip
LIMITS: list[tuple[Wire, dict[str, str], RateLimitInfo | None]] = [
    (AT_CLAUDE, {**OF_ANTHROPIC, "retry-after": "9"}, RateLimitInfo(requests_limit=50,
     requests_remaining=49, tokens_limit=80000, tokens_remaining=79000, reset_at="2026-01-01T00:00:02Z",
     requests_reset="2026-01-01T00:00:01Z", tokens_reset="2026-01-01T00:00:02Z")),
    (AT_CLAUDE, {"anthropic-ratelimit-input-tokens-limit": "7", "anthropic-ratelimit-requests-limit": "²"},
     RateLimitInfo(tokens_limit=7, counts_output=False)),
    (AT_CLAUDE, {"x": "y"}, None),
    *[(wire, headers, found) for wire in (AT_RESPONSES, AT_CHAT) for headers, found in [
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
def test_limits_are_read_from_the_headers_of_a_good_reply(
    wire: Wire, headers: dict[str, str], limits: RateLimitInfo | None
) -> None:
    """Limits of input tokens are read, too. Invalid values, and -1 of some gateways, are no limits."""

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
    "gemini": f"{AT_GOOGLE}/models?pageSize=1",
    "interactions": f"{AT_GOOGLE}/models?pageSize=1",
    "ollama": "http://localhost:11434/api/tags",
    "tgi": "http://localhost:8080/info",
}


@pytest.mark.parametrize("wire", WIRES, ids=lambda wire: wire.name)
def test_health_is_one_request_with_the_key(wire: Wire) -> None:
    """The request is a GET that costs nothing, for the list of models or for the server's information."""

    transport = FakeTransport(FakeReply(b"{}", headers={"content-type": "application/json"}))
    adapter = create_adapter(
        wire.type_name, AdapterConfig(api_key="key-1", base_url=wire.base_url), name="x", transport=transport
    )
    assert isinstance(adapter, wire.adapter)
    assert isinstance(adapter, ProviderAdapter)
    assert isinstance(adapter, ChecksHealth)
    assert (adapter.name, adapter.get_capabilities("model-of-tomorrow").max_context_tokens > 0) == ("x", True)
    health = anyio.run(adapter.health_check)
    assert isinstance(health, AdapterHealth)
    assert health.ok
    (question,) = transport.requests
    assert (question.method, question.url) == ("GET", HEALTH[wire.name])
    assert any("key-1" in value for value in question.headers.values())
