"""Error replies of each provider, by status, code and text: one table for all wires."""

from __future__ import annotations

from typing import TypeAlias

import msgspec
import pytest

from callboard.adapters.conformance.kit import KEY
from callboard.bus.errors import (
    AccessDeniedError,
    AdapterError,
    AuthError,
    CapabilityError,
    ContentFilterError,
    ContextOverflowError,
    InvalidRequestError,
    NotFoundError,
    OverloadedError,
    QuotaExceededError,
    RateLimitError,
    RequestTimeoutError,
    ServerError,
)
from callboard.bus.values.base import Json, JsonObject

from ..support.fake_http import FakeReply
from ..support.wires import WIRES, ChatWire, Wire
from ..support.wires.reading import read_reply

CLAUDE, RESPONSES, _, GEMINI, OLLAMA, TGI, *_ = WIRES
CHAT = ChatWire("default")
GOOGLE = "type.googleapis.com/google.rpc."
USED_UP = "You exceeded your current quota, please check your plan and billing details."
TOO_LONG = "The input token count (1200000) exceeds the maximum number of tokens allowed (1048576)."
Kind: TypeAlias = type[AdapterError]


def anthropic(status: int, kind: str, message: str, **details: Json) -> tuple[int, Json]:
    error: JsonObject = {"type": kind, "message": message, **({"details": details} if details else {})}
    return status, {"type": "error", "error": error, "request_id": "req_wire"}


def google(status: int, canonical: str, message: str = "No.", *details: JsonObject) -> tuple[int, Json]:
    return status, {"error": {"code": status, "message": message, "status": canonical, "details": list(details)}}


def quota(quota_id: str, **fields: Json) -> JsonObject:
    return {"@type": GOOGLE + "QuotaFailure", "violations": [{"quotaId": quota_id, **fields}]}


def info(reason: str) -> JsonObject:
    return {"@type": GOOGLE + "ErrorInfo", "reason": reason, "domain": "googleapis.com"}


INVALID = "invalid_request_error"
_CLAUDE: list[tuple[tuple[int, Json], Kind]] = [
    (anthropic(400, INVALID, "messages.0: bad"), InvalidRequestError),
    (anthropic(400, INVALID, "prompt is too long: 213462 tokens > 200000 maximum"), ContextOverflowError),
    (anthropic(400, INVALID, "input length and `max_tokens` exceed context limit: 9 + 9 > 10"),
    ContextOverflowError),
    (anthropic(400, INVALID, "max_tokens: 200000 > 64000, which is the maximum"), InvalidRequestError),
    (anthropic(400, INVALID, "Your credit balance is too low to access"), QuotaExceededError),
    (anthropic(400, INVALID, "You have reached your specified API usage limits."), QuotaExceededError),
    (anthropic(402, "billing_error", "pay"), QuotaExceededError),
    (anthropic(408, "", "timeout"), RequestTimeoutError),
    (anthropic(413, "request_too_large", "Request exceeds the maximum size"), InvalidRequestError),
    (anthropic(503, "api_error", "down"), ServerError),
    (anthropic(504, "timeout_error", "late"), ServerError),
    (anthropic(500, "overloaded_error", "Overloaded"), OverloadedError),
    *[(anthropic(429, "rate_limit_error", "no", error_code=code), kind) for code, kind in [
        ("enforced_spend_limit_reached", QuotaExceededError), ("contract_spend_limit_reached", QuotaExceededError),
        ("ramp_limit_exceeded", RateLimitError), ("something_new", RateLimitError)]],
]  # fmt: skip
_RESPONSES: list[tuple[int, JsonObject, Kind]] = [
    (400, {"type": INVALID, "code": None, "param": "input", "message": "Item 'rs_1' …"}, InvalidRequestError),
    (400, {"code": "context_length_exceeded", "message": "m"}, ContextOverflowError),
    (400, {"message": "Your input exceeds the context window of this model."}, ContextOverflowError),
    (400, {"code": "string_above_max_length", "message": "string too long"}, InvalidRequestError),
    (400, {"code": "invalid_encrypted_content", "message": "m"}, InvalidRequestError),
    (400, {"code": "content_filter", "message": "m"}, ContentFilterError),
    (400, {"code": "bio_policy", "message": "m"}, ContentFilterError),
    (401, {"code": "invalid_api_key", "message": f"Incorrect API key provided: {KEY}"}, AuthError),
    (503, {"code": "slow_down", "message": "m"}, OverloadedError),
]
_CHAT: list[tuple[int, Json | bytes, Kind]] = [
    (400, {"error": {"code": 400, "message": "too large", "type": "exceed_context_size_error", "n_ctx": 512}},
        ContextOverflowError),
    (400, {"object": "error", "message": "bad", "type": "BadRequestError", "code": 400}, InvalidRequestError),
    (400, {"error": {"message": "x", "code": "tool_use_failed", "failed_generation": "y"}}, InvalidRequestError),
    (400, {"error": {"message": "filtered", "code": "content_filter"}}, ContentFilterError),
    (400, {"error": {"message": "string too long. maximum length 40", "code": "string_above_max_length"}},
        InvalidRequestError),
    (400, {"error": {"message": "maximum context length is 8 tokens", "type": "BadRequestError", "code": 400}},
        ContextOverflowError),
    (400, {"code": "Client specified an invalid argument", "error": "Incorrect API key provided: x"}, AuthError),
    (400, {"code": "Client specified an invalid argument", "error": "no such parameter"}, InvalidRequestError),
    (400, {"error": {"code": "1261", "message": "prompt too long"}}, ContextOverflowError),
    (403, {"error": {"code": 403, "message": "flagged", "metadata": {"reasons": ["x"]}}}, ContentFilterError),
    (402, {"error": {"message": "Insufficient Balance"}}, QuotaExceededError),
    (413, b"<html>413</html>", InvalidRequestError),
    (422, {"detail": [{"msg": "field required"}]}, InvalidRequestError),
    (422, {"object": "error", "message": {"detail": []}, "type": "invalid", "code": None}, InvalidRequestError),
    (429, {"error": {"code": 429, "message": "Provider returned error", "metadata": {"raw": "y"}}},
        RateLimitError),
    (429, [{"error": {"code": 429, "message": "x", "status": "RESOURCE_EXHAUSTED"}}], RateLimitError),
    (429, {"error": {"code": "1113", "message": "balance"}}, QuotaExceededError),
    (498, {"error": {"message": "capacity"}}, OverloadedError),
    (502, b"<html><body>Bad gateway</body></html>", ServerError),
    (503, {"error": {"code": 503, "message": "Loading model", "type": "unavailable_error"}}, ServerError),
    (529, b"", OverloadedError),
]  # fmt: skip
EXHAUSTED = "RESOURCE_EXHAUSTED"
_GEMINI: list[tuple[tuple[int, Json], Kind]] = [
    (google(400, "INVALID_ARGUMENT", "API key not valid. Please pass a valid API key."), AuthError),
    (google(400, "INVALID_ARGUMENT", "Other words.", info("API_KEY_INVALID")), AuthError),
    (google(400, "INVALID_ARGUMENT", TOO_LONG), ContextOverflowError),
    (google(400, "INVALID_ARGUMENT", "Function call is missing a thought_signature"), InvalidRequestError),
    (google(400, "FAILED_PRECONDITION", "User location is not supported."), InvalidRequestError),
    (google(401, "UNAUTHENTICATED"), AuthError),
    (google(403, "PERMISSION_DENIED", "Enable it.", info("SERVICE_DISABLED")), AccessDeniedError),
    (google(429, EXHAUSTED, USED_UP, quota("GenerateRequestsPerMinutePerProject")), RateLimitError),
    (google(429, EXHAUSTED, USED_UP, quota("GenerateRequestsPerDayPerProject")), QuotaExceededError),
    (google(429, EXHAUSTED, USED_UP, quota("PerMinute", quotaValue="0")), QuotaExceededError),
    (google(429, EXHAUSTED, "limit: 0, model: x", quota("PerMinute")), QuotaExceededError),
    (google(429, EXHAUSTED, "limit: 05", quota("PerMinute")), RateLimitError),
    (google(499, "CANCELLED"), ServerError),
    (google(504, "DEADLINE_EXCEEDED"), RequestTimeoutError),
    (google(418, "TEAPOT"), InvalidRequestError),
]
_OLLAMA: list[tuple[int, str, Kind]] = [
    (400, '"qwen" does not support tools', CapabilityError),
    (400, '"qwen" does not support thinking', CapabilityError),
    (400, 'think value "low" is not supported for this model', CapabilityError),
    (400, 'invalid think value: "x"', InvalidRequestError),
    (400, "json: cannot unmarshal array into Go struct field", InvalidRequestError),
    (400, "the prompt is longer than the context length currently available; shorten it", ContextOverflowError),
    (400, "input length (9000 tokens) exceeds the model's maximum context length (8192 tokens)",
        ContextOverflowError),
    (404, 'model "x" not found, try pulling it first', NotFoundError),
    (429, "you've reached your weekly usage limit, please upgrade", QuotaExceededError),
    (499, "request canceled", ServerError),
    (500, "model requires more system memory (9.0 GiB) than is available (3.1 GiB)", ServerError),
    (502, "upstream is gone", ServerError),
]  # fmt: skip
_TGI: list[tuple[int, str, str | None, Kind]] = [
    (422, "`inputs` must have less than 1000 tokens. Given: 1500", "validation", ContextOverflowError),
    (422, "`top_p` must be > 0.0 and < 1.0", "validation", InvalidRequestError),
    (429, "Model is overloaded", "overloaded", OverloadedError),
    (500, "Incomplete generation", "incomplete_generation", ServerError),
]
ERRORS: list[tuple[Wire, int, Json | bytes, Kind]] = [
    *[(CLAUDE, status, body, kind) for (status, body), kind in _CLAUDE],
    *[(RESPONSES, status, {"error": error}, kind) for status, error, kind in _RESPONSES],
    *[(CHAT, status, body, kind) for status, body, kind in _CHAT],
    *[(GEMINI, status, body, kind) for (status, body), kind in _GEMINI],
    *[(OLLAMA, status, {"error": said}, kind) for status, said, kind in _OLLAMA],
    *[(TGI, status, {"error": said, "error_type": code}, kind) for status, said, code, kind in _TGI],
]
"""Error replies other than those that the conformance kit checks on each wire."""

LASTING = ("model requires more system memory",)
"""Words of permanent failures in a class of failures that is usually temporary."""


def failure(wire: Wire, status: int, body: Json | bytes, *, streamed: bool, **headers: str) -> AdapterError:
    data = body if isinstance(body, bytes) else msgspec.json.encode(body)
    named = {"content-type": "application/json", **headers}
    error = read_reply(wire, FakeReply(data, status=status, headers=named), streamed=streamed).error
    assert error is not None
    return error


@pytest.mark.parametrize(("wire", "status", "body", "kind"), ERRORS,
                         ids=[f"{row[0].name}-{row[1]}-{row[2]!s:.90}" for row in ERRORS])  # fmt: skip
def test_an_error_reply_has_its_class(wire: Wire, status: int, body: Json | bytes, kind: Kind) -> None:
    """Type and code decide first, then the status, and the text last, for plain and streamed requests."""
    for streamed in (False, True):
        error = failure(wire, status, body, streamed=streamed)
        assert type(error) is kind
        assert (error.provider_status, error.request_id, error.provider) == (status, "req_1", wire.name)
        said = error.provider_message or ""
        assert error.retryable is (kind.default_retryable and not said.startswith(LASTING))
        assert KEY not in f"{error} {said}"
        if wire is GEMINI:
            assert error.provider_code
            assert error.provider_code.isupper()
        if wire in (OLLAMA, TGI):
            assert isinstance(body, dict)
            assert said == body["error"]


def test_a_conflict_can_be_retried() -> None:
    """A conflict of Anthropic can be retried, although it is no failure of the server."""
    error = failure(CLAUDE, *anthropic(409, "conflict_error", "again"), streamed=False)
    assert (type(error), error.retryable) == (InvalidRequestError, True)
    assert (error.provider_message, error.provider_request_id) == ("again", "req_wire")


@pytest.mark.parametrize("quirks", ["cerebras", "default"])
def test_an_empty_400_of_cerebras_is_an_overflow(quirks: str) -> None:
    """The reply is empty if the prompt is too long. On other servers, an empty reply has no meaning."""
    error = failure(ChatWire(quirks), 400, b"", streamed=False)
    assert type(error) is (ContextOverflowError if quirks == "cerebras" else InvalidRequestError)


@pytest.mark.parametrize("wire", WIRES, ids=lambda wire: wire.name)
def test_error_replies_of_any_shape(wire: Wire) -> None:
    """A proxy's page is an error like any other."""
    for body in (b"", b"<html>502</html>", b'"x"', b"[]", b"null", b'{"error":"x"}', b"\xff"):
        assert type(failure(wire, 502, body, streamed=False)) is ServerError, body


HINTS: list[tuple[Wire, int, Json, dict[str, str], float | None]] = [
    *[(GEMINI, 429, [google(429, EXHAUSTED, message, *details)[1]], {}, seconds) for message, details, seconds in [
        ("No.", [{"@type": GOOGLE + "RetryInfo", "retryDelay": "34.4s"}], 34.4),
        ("No.", [{"@type": GOOGLE + "RetryInfo", "retryDelay": "soon"}], None),
        ("Please retry in 1m2.5s.", [], 62.5),
        ("No.", [None, {"@type": 3}, {}], None),
    ]],
    (CLAUDE, *anthropic(429, "rate_limit_error", "no"), {"retry-after": "7"}, 7),
    (TGI, 503, {"error": "Model x is currently loading", "estimated_time": 20.5}, {}, 20.5),
]  # type: ignore[list-item]  # fmt: skip


@pytest.mark.parametrize(("wire", "status", "body", "headers", "seconds"), HINTS,
                         ids=[f"{row[0].name}-{row[4]}" for row in HINTS])  # fmt: skip
def test_the_delay_is_found_in_headers_details_or_text(
    wire: Wire, status: int, body: Json, headers: dict[str, str], seconds: float | None
) -> None:
    """The delay is in a header, in the body's details, or in its text."""
    assert failure(wire, status, body, streamed=False, **headers).retry_after_seconds == seconds
