"""Section 8.2, provider adapters: for each of the three providers."""

from __future__ import annotations

from typing import get_args

import pytest

from callboard import (
    AdapterError,
    CanonicalRequest,
    Json,
    Message,
    Role,
    StopReason,
    StreamAccumulator,
    TextBlock,
    ViewEvent,
)
from callboard.adapters.conformance import CALLS, CONDITIONS

from ..support import fake_http
from ..support.wires.wire import Wire
from .providers import ANTHROPIC, asking, counted, each_provider, holds
from .rows import row

pytestmark = pytest.mark.anyio

HOSTS = {
    "openai": "https://api.openai.com",
    "anthropic": "https://api.anthropic.com",
    "gemini": "https://generativelanguage.googleapis.com",
}
PATHS = {
    "openai": ("/v1/responses", "/v1/responses"),
    "anthropic": ("/v1/messages", "/v1/messages"),
    "gemini": ("/v1beta/models/gemini-2.5-flash:generateContent",
        "/v1beta/models/gemini-2.5-flash:streamGenerateContent?alt=sse"),
}  # fmt: skip


def canonical(model: str, **more: object) -> CanonicalRequest:
    return fake_http.ask(Message.user("Hi"), model=model, max_output_tokens=1024, **more)


@each_provider
@row("8.2.1")
async def test_the_providers_own_protocol_is_spoken(wire: Wire) -> None:
    """Plain and streamed requests go to the provider's own addresses.

    `test_vendor_types` checks the requests with the vendor's own types.
    """
    async with asking(wire, wire.whole("Hi"), wire.streamed("Hi"), base_url=None) as at:
        await at.engine.generate(at.model, "Hi", system_prompt="Be brief.", temperature=0.5)
        await at.engine.stream(at.model, "Hi").result()
        urls = [request.url for request in at.transport.requests]
        assert urls == [HOSTS[wire.name] + path for path in PATHS[wire.name]]


@each_provider
@row("8.2.2")
async def test_a_key_is_sent_and_never_shown(wire: Wire) -> None:
    """The key is in one header of the request. It is not in the address, the body or the repr."""
    async with asking(wire, wire.whole("Hi"), api_key="sk-given") as at:
        await at.engine.generate(at.model, "Hi")
        (request,) = at.transport.requests
        assert [value for value in request.headers.values() if "sk-given" in value] in (
            ["Bearer sk-given"],
            ["sk-given"],
        )
        assert "sk-given" not in request.url
        assert b"sk-given" not in request.body
        assert "sk-given" not in repr(request)


@each_provider
@row("8.2.3")
async def test_complete_returns_a_full_response(wire: Wire) -> None:
    """The response has text, calls with ids and arguments, both stop reasons, usage and ids."""
    async with asking(wire, wire.whole("Let me see.", 2, "tools"), wire.whole("Hi")) as at:
        response = await at.engine.complete(canonical(at.model))
        plain = await at.engine.complete(canonical(at.model))
    assert (response.text, response.provider, response.request_id) == ("Let me see.", wire.name, "req_1")
    assert [(call.name, call.input) for call in response.tool_uses] == list(CALLS)
    assert len({call.id for call in response.tool_uses}) == 2
    assert (response.stop_reason, plain.stop_reason) == (StopReason.TOOL_USE, StopReason.END_TURN)
    stops = {"openai": "completed", "anthropic": "tool_use", "gemini": "STOP"}
    assert response.raw_stop_reason == stops[wire.name]
    usage = response.usage
    assert (usage.input_tokens, usage.cached_input_tokens, usage.output_tokens) == (8, 4, 7)
    assert response.response_id == {"openai": "resp_1", "anthropic": "msg_01", "gemini": "reply-1"}[wire.name]
    assert response.provider_request_id == "their_1"
    assert response.model.startswith(f"{wire.name}:")


@each_provider
@row("8.2.4")
async def test_stream_yields_typed_events_that_add_up(wire: Wire) -> None:
    """Every event is a ViewEvent. Together, the events equal the result of `complete`."""
    streamed = wire.stream_of(*[wire.write_event(*event) for event in wire.events("Hello, ☃!", 2, "tools", "Hm")])
    async with asking(wire, streamed, wire._reply_with(wire.body("Hello, ☃!", 2, "tools", "Hm"))) as at:
        events = [event async for event in at.engine.stream(canonical(at.model))]
        whole = await at.engine.complete(canonical(at.model))
    assert all(isinstance(event, get_args(ViewEvent)) for event in events)
    assert [event.type for event in events if not event.type.endswith(("delta", "step.finish"))] == [
        *("message.start", "thinking.start", "thinking.end", "text.start", "text.end"),
        *("tool.use_start", "tool.use_end", "tool.use_start", "tool.use_end", "message.complete", "finish"),
    ]
    accumulator = StreamAccumulator()
    for event in events:
        accumulator.process(event)
    got = accumulator.response()
    assert (got.text, got.thinking, got.stop_reason) == (whole.text, whole.thinking, whole.stop_reason)
    assert [(call.name, call.input) for call in got.tool_uses] == [
        (call.name, call.input) for call in whole.tool_uses
    ]
    assert counted(got.usage) == counted(whole.usage)


SYSTEM: dict[str, Json] = {
    "openai": {"instructions": "Be brief."},
    "anthropic": {"system": "Be brief."},
    "gemini": {"systemInstruction": {"parts": [{"text": "Be brief."}]}},
}


@each_provider
@row("8.2.5")
async def test_the_system_prompt_is_in_the_providers_field(wire: Wire) -> None:
    """The place is the same for a system prompt and for a system message."""
    async with asking(wire, wire.whole("Hi"), wire.whole("Hi")) as at:
        await at.engine.generate(at.model, "Hello", system_prompt="Be brief.")
        said = [Message(Role.SYSTEM, (TextBlock("Be brief."),)), Message.user("Hello")]
        await at.engine.generate(at.model, messages=said)
        for number in (0, 1):
            assert holds(at.body(number), SYSTEM[wire.name])
            assert "Be brief." not in str(at.body(number)[wire.history])


FIVE_ROLES: dict[str, list[Json]] = {
    "openai": [{"instructions": "S"}, {"role": "developer", "content": "D"}, {"role": "user", "content": "U"},
        {"type": "message", "role": "assistant"}, {"type": "function_call", "call_id": "call_0"},
        {"type": "function_call_output", "call_id": "call_0", "output": "R"}],
    "anthropic": [{"system": "S\n\nD"}, {"role": "user", "content": [{"type": "text", "text": "U"}]},
        {"role": "assistant", "content": [{"type": "text", "text": "A"}, {"type": "tool_use", "id": "toolu_00"}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_00"}]}],
    "gemini": [{"systemInstruction": {"parts": [{"text": "S\n\nD"}]}}, {"role": "user", "parts": [{"text": "U"}]},
        {"role": "model", "parts": [{"text": "A"}, {"functionCall": {"id": "call_0", "name": "read_file"}}]},
        {"role": "user", "parts": [{"functionResponse": {"id": "call_0", "response": {"output": "R"}}}]}],
}  # fmt: skip


@each_provider
@row("8.2.6")
async def test_all_five_roles_are_translated(wire: Wire) -> None:
    """The roles are system, developer, user, assistant and tool. The call keeps the provider's id."""
    async with asking(wire, wire.whole("A", 1, "tools"), wire.whole("Done")) as at:
        called = await at.engine.generate(at.model, "U", max_tool_rounds=0)
        (call,) = called.tool_uses
        conversation = [
            Message(Role.SYSTEM, (TextBlock("S"),)), Message(Role.DEVELOPER, (TextBlock("D"),)), *called.messages,
            Message.tool_result(call.id, "R"),
        ]  # fmt: skip
        await at.engine.generate(at.model, messages=conversation)
        for part in FIVE_ROLES[wire.name]:
            assert holds(at.body(), part), (part, at.body())
        assert wire.faults(at.transport.requests[-1].body) == []


OPTIONS: dict[str, dict[str, Json]] = {
    "openai": {"truncation": "auto", "reasoning": {"summary": "auto"}},
    "anthropic": {"top_k": 7, "metadata": {"user_id": "u1"}},
    "gemini": {"safetySettings": [{"category": "HARM_CATEGORY_HARASSMENT", "threshold": "BLOCK_NONE"}]},
}


@each_provider
@row("8.2.7")
@row("8.9.15")
async def test_a_providers_own_options_are_sent_as_they_are(wire: Wire) -> None:
    """The options of another provider are not sent."""
    others = {name: {"not_for_you": True} for name in OPTIONS if name != wire.name}
    async with asking(wire, wire.whole("Hi"), wire.streamed("Hi")) as at:
        options = {wire.name: OPTIONS[wire.name], **others}
        await at.engine.generate(at.model, "Hi", provider_options=options)
        await at.engine.stream(at.model, "Hi", provider_options=options).result()
        for number in (0, 1):
            assert holds(at.body(number), OPTIONS[wire.name])
            assert b"not_for_you" not in at.transport.requests[number].body


@each_provider
@row("8.2.8")
async def test_headers_of_a_beta_are_sent(wire: Wire) -> None:
    """Any header of the configuration is sent to every provider."""
    async with asking(wire, wire.whole("Hi"), extra_headers={"x-beta": "tomorrow"}) as at:
        await at.engine.generate(at.model, "Hi")
        assert at.headers()["x-beta"] == "tomorrow"


@row("8.2.8", of="anthropic")
async def test_anthropics_betas_are_joined_in_one_header() -> None:
    """The header joins the betas of the configuration and of the request. Without betas, there is no header."""
    wire = ANTHROPIC
    replies = [wire.whole("Hi"), wire.whole("Hi")]
    async with asking(wire, *replies, options={"beta_headers": ["one"]}) as at:
        options: dict[str, Json] = {"anthropic": {"beta_headers": ["two", "one"]}}
        await at.engine.generate(at.model, "Hi", provider_options=options)
        assert at.headers()["anthropic-beta"] == "one,two"
        assert "beta_headers" not in at.body()
    async with asking(wire, wire.whole("Hi")) as at:
        await at.engine.generate(at.model, "Hi")
        assert "anthropic-beta" not in at.headers()


@each_provider
@pytest.mark.parametrize("condition", CONDITIONS)
@row("8.2.9")
async def test_a_refusal_becomes_the_right_exception(wire: Wire, condition: str) -> None:
    """The error has the provider's name and status, for plain and streamed calls."""
    async with asking(wire, wire.failing(condition), wire.failing(condition)) as at:
        for ask in (at.engine.generate, lambda *arguments: at.engine.stream(*arguments).result()):
            with pytest.raises(AdapterError) as raised:
                await ask(at.model, "Hi")  # type: ignore[operator]
            error = raised.value
            status, _ = wire.error_body(condition)
            assert type(error) is CONDITIONS[condition]
            assert (error.provider, error.provider_status) == (wire.name, status)
            assert error.turn.status == "failed"  # type: ignore[attr-defined]


@each_provider
@pytest.mark.parametrize("condition", ["rate limit", "overload"])
@row("8.2.10")
async def test_the_error_has_the_providers_hint(wire: Wire, condition: str) -> None:
    """The hint is in seconds."""
    refused = wire.failing(condition)
    refused.headers = {**refused.headers, "retry-after": "7"}
    async with asking(wire, refused) as at:
        with pytest.raises(AdapterError) as raised:
            await at.engine.generate(at.model, "Hi")
        assert raised.value.retry_after_seconds == 7.0
