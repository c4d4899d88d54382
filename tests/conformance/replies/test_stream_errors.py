"""Errors that come inside a stream, after status 200."""

from __future__ import annotations

import pytest

from callboard.bus.errors import (
    AdapterError,
    CapabilityError,
    ContextOverflowError,
    InvalidRequestError,
    NotFoundError,
    OverloadedError,
    QuotaExceededError,
    RateLimitError,
    ServerError,
)
from callboard.bus.values.base import JsonObject
from callboard.bus.values.usage import UsageSource

from ...support.wires import Wire
from ...support.wires import anthropic as a
from ...support.wires import chat as c
from ...support.wires import gemini as g
from ...support.wires import responses as r
from ...support.wires.reading import read, read_pieces, read_whole
from .cases import CHAT, CLAUDE, GEMINI, HI, OLLAMA, OVER, RESPONSES, TGI

OVERLOADED: JsonObject = {"type": "overloaded_error", "message": "busy"}
SPENT: JsonObject = {"type": "rate_limit_error", "details": {"error_code": "enforced_spend_limit_reached"}}
NO_QUOTA: JsonObject = {"@type": "type.googleapis.com/google.rpc.QuotaFailure", "violations": [{}]}
ERRORS: list[tuple[Wire, JsonObject, type[AdapterError]]] = [
    *[(CLAUDE, a.event("error", error=said, request_id="req_9"), kind) for said, kind in [
        (OVERLOADED, OverloadedError),
        ({"type": "api_error", "message": "Internal server error"}, ServerError),
        ({"type": "rate_limit_error", "message": "slow down"}, RateLimitError),
        ({"type": "invalid_request_error", "message": "prompt is too long: 9 tokens > 8"}, ContextOverflowError),
        ({"type": "invalid_request_error", "message": "messages.0: no"}, InvalidRequestError),
        (SPENT, QuotaExceededError),
        ({"type": "brand_new_error", "message": "?"}, AdapterError),
        ("just words", AdapterError),
    ]],
    (CLAUDE, a.event("", error=OVERLOADED), OverloadedError),
    (RESPONSES, {"type": "error", "error": {"code": "rate_limit_exceeded", "message": "m"}}, RateLimitError),
    (RESPONSES, {"type": "error", "code": "server_is_overloaded", "message": "m", "param": None}, OverloadedError),
    (RESPONSES, {"type": "error", "error": {"code": "insufficient_quota", "message": "m"}}, QuotaExceededError),
    (RESPONSES, {"type": "error", "code": None, "message": "Your input exceeds the context window"},
     ContextOverflowError),
    (RESPONSES, {"error": {"message": "boom", "code": 502}}, ServerError),
    (RESPONSES, r.ending("failed", error={"code": "invalid_prompt", "message": "m"}), InvalidRequestError),
    (RESPONSES, r.ending("failed", error=None), ServerError),
    (RESPONSES, r.ending("failed", error="odd"), AdapterError),
    (CHAT, {"error": {"message": "no", "type": "server_error", "code": None}}, ServerError),
    (CHAT, {"error": "it broke"}, AdapterError),
    (CHAT, {"error": OVERLOADED}, OverloadedError),
    (CHAT, {"error": {"message": "This model's maximum context length is 10 tokens"}}, ContextOverflowError),
    (CHAT, {"object": "error", "message": "bad", "type": "BadRequestError", "code": 400}, InvalidRequestError),
    (CHAT, {"choices": [{"index": 0, "error": {"code": 502, "message": "upstream"}}]}, ServerError),
    (CHAT, c.chunk("error") | {"error": {"code": 503, "message": "gone"}}, ServerError),
    (GEMINI, {"error": {"code": 503, "message": "overloaded.", "status": "UNAVAILABLE"}}, OverloadedError),
    (GEMINI, {"error": {"code": 400, "message": "No.", "status": "INVALID_ARGUMENT"}}, InvalidRequestError),
    (GEMINI, {"error": {"code": 429, "message": "limit: 0", "status": "RESOURCE_EXHAUSTED",
     "details": [NO_QUOTA]}}, QuotaExceededError),
    *[(OLLAMA, {"error": said}, kind) for said, kind in [
        ("server busy, please try again.  maximum pending requests exceeded", OverloadedError),
        ("an error was encountered while running the model: CUDA error", AdapterError),
        ("llama runner process has terminated: exit status 2", ServerError),
        ("the prompt is longer than the context length currently available", ContextOverflowError),
        ('"qwen" does not support tools', CapabilityError),
        ("model 'x' not found", NotFoundError),
    ]],
    *[(TGI, {"error": said, "error_type": code}, kind) for said, code, kind in [
        ("Input validation error: `temperature` must be strictly positive", "validation", InvalidRequestError),
        ("`inputs` tokens + `max_new_tokens` must be <= 2048. Given: 9000", "validation", ContextOverflowError),
        ("`inputs` must have less than 1000 tokens. Given: 1500", "validation", ContextOverflowError),
        ("Model is overloaded", "overloaded", OverloadedError),
        ("Request failed during generation: Server error: CUDA", "generation", ServerError),
        ("Incomplete generation", "incomplete_generation", ServerError),
        ("Incomplete generation stream", "incomplete_generation_stream", ServerError),
        ("Template error: x", "template_error", InvalidRequestError),
        ("Tool error: x", "tool_error", InvalidRequestError),
        ("something else", None, AdapterError),
    ]],
]  # fmt: skip


@pytest.mark.parametrize(("wire", "event", "kind"), ERRORS,
                         ids=[f"{wire.name}-{str(event)[:60]}" for wire, event, _ in ERRORS])  # fmt: skip
def test_an_error_in_a_stream_has_its_class(wire: Wire, event: JsonObject, kind: type[AdapterError]) -> None:
    """Without a status, at once or after what came, and once: what follows it changes nothing."""
    for before in ([], HI[wire.name]):
        reading = read(wire, *before, event, *OVER[wire.name])
        assert type(reading.error) is kind
        assert (reading.error.content != ()) is bool(before)
        assert reading.error.provider_status is None
        if wire is CLAUDE and "request_id" in event:
            assert reading.error.provider_request_id == "req_9"
        if wire in (OLLAMA, TGI):
            assert reading.error.provider_message == event["error"]
            assert wire is OLLAMA or reading.error.provider_code == event.get("error_type")
    if wire in (OLLAMA, TGI):
        assert type(read_whole(wire, event).error) is kind


def test_an_error_as_plain_json_in_a_stream() -> None:
    """Gemini's indented JSON, which is no event at all; Groq's named event, with the status in the body."""
    error: JsonObject = {"error": {"code": 503, "message": "The model is overloaded.", "status": "UNAVAILABLE"}}
    body = GEMINI.stream(g.chunk(g.text("A"))) + b'{\n  "error": {"code": 503, "status": "UNAVAILABLE"}\n}'
    for chunks in ([body], [body[at : at + 1] for at in range(len(body))]):
        assert type(read_pieces(GEMINI, chunks).error) is OverloadedError
    assert type(read_whole(GEMINI, [error]).error) is OverloadedError
    groq = b'event: error\ndata: {"error":{"message":"no tool","code":"tool_use_failed","status_code":400}}\n\n'
    failed = read_pieces(CHAT, [CHAT.stream(*HI["openai_compatible"]) + groq]).error
    assert isinstance(failed, InvalidRequestError)
    assert failed.provider_code == "tool_use_failed"


def test_a_token_limit_is_an_overflow_only_before_a_reply() -> None:
    """In the middle of one it is the reply that was too long."""
    event: JsonObject = {"error": {"message": "Token limit reached", "code": 400}}
    assert type(read(CHAT, event, c.DONE).error) is ContextOverflowError
    assert type(read(CHAT, *HI["openai_compatible"], event, c.DONE).error) is InvalidRequestError


@pytest.mark.parametrize(
    ("wire", "failure", "output"),
    [
        (CHAT, c.chunk() | {"error": {"code": 400, "message": "no"}, "usage": c.USAGE}, 20),
        (RESPONSES, r.ending("failed", error={"code": "server_error", "message": "Oops"}), 20),
        (CLAUDE, a.event("error", error=OVERLOADED), None),
    ],
    ids=["chat", "responses", "messages"],
)
def test_what_a_failed_reply_cost_stays_known(wire: Wire, failure: JsonObject, output: int | None) -> None:
    """As it was reported with the failure, or before it."""
    error = read(wire, *HI[wire.name], failure).error
    assert error is not None
    assert error.usage is not None
    assert error.usage.source is UsageSource.PARTIAL
    assert error.usage.output_tokens == output or output is None
    assert error.usage.total_input_tokens in (20, 100)
