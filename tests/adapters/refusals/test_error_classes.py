"""Each known error body becomes the most specific exception."""

from __future__ import annotations

import json
import re

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from callboard.adapters.http.errors import ErrorBody, ErrorType, build_error, read_error, word_rows
from callboard.bus.errors import (
    AccessDeniedError,
    AdapterError,
    AuthError,
    ContentFilterError,
    ContextOverflowError,
    ErrorClass,
    InvalidRequestError,
    NotFoundError,
    OverloadedError,
    QuotaExceededError,
    RateLimitError,
    RequestTimeoutError,
    ServerError,
)


def classify(status: int | None, body: object, headers: dict[str, str] | None = None) -> AdapterError:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return build_error(read_error(raw), status=status, headers=headers or {}, provider="toy")


SHAPES: dict[str, tuple[object, ErrorBody]] = {
    "object": ({"error": {"type": "t", "code": "c", "message": "m", "param": "p"}},
        ErrorBody(type="t", code="c", message="m", param="p")),
    "string": ({"error": "m"}, ErrorBody(message="m")),
    "anthropic": ({"type": "error", "error": {"type": "t", "message": "m"}, "request_id": "r"},
        ErrorBody(type="t", message="m", request_id="r")),
    "anthropic details": ({"type": "error", "error": {"type": "t", "message": "m",
        "details": {"error_code": "d"}}}, ErrorBody(type="t", message="m", detail_code="d")),
    "list": ([{"error": {"code": 429, "message": "m", "status": "X_Y"}}], ErrorBody("X_Y", message="m")),
    "google": ({"error": {"code": 429, "message": "m", "status": "RESOURCE_EXHAUSTED",
        "details": [{"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": "RATE_LIMIT_EXCEEDED"},
        {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "34.4s"}, {"@type": 7}, "odd"]}},
        ErrorBody("RESOURCE_EXHAUSTED", message="m", detail_code="RATE_LIMIT_EXCEEDED", retry_after=34.4)),
    "flat": ({"object": "error", "message": "m", "type": "t", "code": 400},
        ErrorBody(type="t", code="400", message="m")),
    "message only": ({"message": "m"}, ErrorBody(message="m")),
    "detail": ({"detail": "m"}, ErrorBody(message="m")),
    "detail list": ({"detail": [{"msg": "x"}]}, ErrorBody(message='[{"msg":"x"}]')),
    "tgi": ({"error": "m", "error_type": "t"}, ErrorBody(type="t", message="m")),
    "nulls": ({"error": {"type": None, "code": None, "message": None, "param": None}}, ErrorBody()),
    "null error": ({"error": None, "message": "m"}, ErrorBody(message="m")),
    "object message": ({"error": {"message": {"a": 1}}}, ErrorBody(message='{"a":1}')),
    "upstream": ({"error": {"message": "Provider returned error", "code": 400, "metadata": {"raw": '{"e": 1}'}}},
        ErrorBody(code="400", message='Provider returned error: {"e": 1}')),
    "html": (b"<html><h1>502 Bad\n Gateway</h1></html>", ErrorBody(message="502 Bad Gateway")),
    "text": (b"upstream\tconnect  error", ErrorBody(message="upstream connect error")),
    "event": (b'data: {"error": {"message": "m", "type": "t", "param": null, "code": "500"}}\n\ndata: [DONE]\n\n',
        ErrorBody(type="t", code="500", message="m")),
    "named event": (b'event: error\r\ndata: {"type": "error", "error": {"type": "t", "message": "m"}}\r\n\r\n',
        ErrorBody(type="t", message="m")),
    "empty": (b"", ErrorBody()),
    "string body": (b'"broken"', ErrorBody(message="broken")),
    "number": (b"1", ErrorBody(message="1")),
    "empty list": (b"[]", ErrorBody(message="[]")),
    "latin-1": (b"d\xe9sol\xe9", ErrorBody(message="d\ufffdsol\ufffd")),
}  # fmt: skip


@pytest.mark.parametrize("shape", SHAPES)
def test_the_error_is_found_at_any_place_of_a_body(shape: str) -> None:
    """Providers and proxies have it at different places."""
    body, expected = SHAPES[shape]
    found = read_error(body if isinstance(body, bytes) else json.dumps(body).encode())
    assert msgspec.structs.replace(found, details={}) == expected


@given(st.binary() | st.recursive(st.none() | st.integers() | st.text(), lambda x: st.lists(x) | st.dictionaries(
    st.sampled_from(["error", "message", "detail", "type", "code", "metadata", "raw", "details"]), x)).map(
    lambda value: json.dumps(value).encode()), st.none() | st.integers(100, 599))  # fmt: skip
def test_any_body_gives_an_error_and_never_fails(body: bytes, status: int | None) -> None:
    error = build_error(read_error(body), status=status, provider="toy")
    assert isinstance(error, AdapterError)
    assert str(error)


def test_a_body_nested_without_end_is_only_a_text() -> None:
    """A hundred thousand brackets are read as a text and cause no crash."""
    assert read_error(b"[" * 100_000).message.startswith("[[[")


STATUS: list[tuple[int, ErrorType, bool]] = [
    (301, InvalidRequestError, False),
    (400, InvalidRequestError, False),
    (401, AuthError, False),
    (402, QuotaExceededError, False),
    (403, AccessDeniedError, False),
    (404, NotFoundError, False),
    (405, InvalidRequestError, False),
    (408, RequestTimeoutError, True),
    (409, InvalidRequestError, True),
    (413, InvalidRequestError, False),
    (422, InvalidRequestError, False),
    (424, ServerError, True),
    (429, RateLimitError, True),
    (498, OverloadedError, True),
    (500, ServerError, True),
    (502, ServerError, True),
    (503, ServerError, True),
    (504, ServerError, True),
    (520, ServerError, True),
    (529, OverloadedError, True),
]


@pytest.mark.parametrize(("status", "kind", "retryable"), STATUS)
def test_a_status_alone_is_enough(status: int, kind: ErrorType, retryable: bool) -> None:
    """An empty body only leaves the status."""
    error = classify(status, b"")
    assert type(error) is kind
    assert error.retryable is retryable
    assert error.provider_status == status


SPENT = "You exceeded your current quota, please check your plan and billing details."
CODES: list[tuple[int | None, object, ErrorType]] = [
    (429, {"error": {"code": "insufficient_quota", "type": "insufficient_quota"}}, QuotaExceededError),
    (429, {"error": {"code": "rate_limit_exceeded", "type": "tokens"}}, RateLimitError),
    (400, {"error": {"type": "invalid_request_error", "message": "Your credit balance is too low to access"}},
     QuotaExceededError),
    (400, {"type": "error", "error": {"type": "invalid_request_error", "message": "x", "details": {
        "error_code": "enforced_spend_limit_reached"}}}, QuotaExceededError),
    (400, {"type": "error", "error": {"type": "x", "details": {"error_code": "contract_spend_limit_reached"}}},
     QuotaExceededError),
    (403, {"error": {"type": "billing_error", "message": "x"}}, QuotaExceededError),
    (429, {"error": {"code": "billing_hard_limit_reached"}}, QuotaExceededError),
    (429, {"error": {"code": "credit_balance_exhausted"}}, QuotaExceededError),
    (429, {"error": {"code": "monthly_spend_limit_exceeded"}}, QuotaExceededError),
    (429, {"error": {"type": "exceeded_current_quota_error", "message": "x"}}, QuotaExceededError),
    (402, {"error": {"message": "Insufficient Balance"}}, QuotaExceededError),
    (429, {"error": {"message": "Rate limit reached for TPM: too many tokens per day"}}, RateLimitError),
    (529, {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}, OverloadedError),
    (500, {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}, OverloadedError),
    (503, {"error": {"code": "server_is_overloaded"}}, OverloadedError),
    (400, {"error": {"code": "invalid_api_key"}}, AuthError),
    (401, {"type": "error", "error": {"type": "authentication_error"}}, AuthError),
    (403, {"type": "error", "error": {"type": "permission_error"}}, AccessDeniedError),
    (404, {"type": "error", "error": {"type": "not_found_error"}}, NotFoundError),
    (400, {"error": {"code": "model_not_found"}}, NotFoundError),
    (400, {"error": {"code": "content_filter"}}, ContentFilterError),
    (400, {"error": {"code": "content_policy_violation"}}, ContentFilterError),
    (500, {"type": "error", "error": {"type": "api_error", "message": "Internal server error"}}, ServerError),
    (400, {"error": {"message": "No tool output found for function call call_1."}}, InvalidRequestError),
    (400, {"error": {"message": "The parameter does not exist"}}, InvalidRequestError),
    (None, {"type": "error", "error": {"type": "overloaded_error"}}, OverloadedError),
    (None, {"type": "error", "error": {"type": "rate_limit_error"}}, RateLimitError),
    (None, {"error": {"code": "rate_limit_exceeded"}}, RateLimitError),
    (None, {"type": "error", "error": {"type": "api_error"}}, ServerError),
    (None, {"error": {"type": "server_error"}}, ServerError),
    (None, {"error": {"type": "invalid_request_error", "message": "x"}}, InvalidRequestError),
    (None, {"error": {"code": 429, "message": "x"}}, RateLimitError),
    (None, {"error": {"code": 502, "message": "x"}}, ServerError),
    (None, {"error": {"code": 400, "message": "Token limit reached"}}, InvalidRequestError),
    (None, {"error": {"message": "something"}}, AdapterError),
    # LiteLLM's proxy, in the form of version 1.106
    (400, {"error": {"message": "No connected db.", "type": "no_db_connection", "param": None, "code": "400"}},
     AuthError),
    (400, {"error": {"message": "litellm.ContextWindowExceededError: litellm.BadRequestError: too much\n\n"
        "LiteLLM: model group 'x' failed with the error above.", "type": "invalid_request_error", "code": "400"}},
     ContextOverflowError),
    (400, {"type": "error", "error": {"type": "invalid_request_error", "message":
        "litellm.ContentPolicyViolationError: AzureException - no"}}, ContentFilterError),
    (400, {"error": {"message": "You wrote litellm.ContextWindowExceededError: x", "code": "400"}},
     InvalidRequestError),
    (500, {"error": {"message": "litellm.InternalServerError: InternalServerError: x", "code": "500"}},
     ServerError),
    (400, {"error": {"message": "/responses: Invalid model name passed in model=no. Call `/v1/models`",
        "type": "invalid_request_error", "code": "400"}}, NotFoundError),
    (400, {"error": {"message": "Budget has been exceeded! Current cost: 2", "type": "budget_exceeded"}},
     QuotaExceededError),
    # llama.cpp for a model without image support, alone and behind LiteLLM: a retry is useless
    (500, {"error": {"code": 500, "type": "server_error", "message": "image input is not supported - hint: if "
        "this is unexpected, you may need to provide the mmproj"}}, InvalidRequestError),
    (500, {"error": {"code": "500", "message": "litellm.InternalServerError: InternalServerError: "
        "OpenAIException - image input is not supported - hint: x"}}, InvalidRequestError),
    # an overflow that is marked only by its code or its parameter
    (400, {"error": {"code": "context_length_exceeded", "message": "x"}}, ContextOverflowError),
    (400, {"error": {"type": "exceed_context_size_error", "code": 400, "n_prompt_tokens": 9, "n_ctx": 8}},
     ContextOverflowError),
    (400, {"error": {"message": "Param Incorrect", "param": "the prompt is longer than the max context length"}},
     ContextOverflowError),
    # similar errors: limits on ids, bytes, rates and outputs, and texts that name a parameter
    (400, {"error": {"code": "string_above_max_length", "message":
        "Invalid 'messages[1].tool_calls[0].id': string too long. Expected a string with maximum length 40"}},
     InvalidRequestError),
    (429, {"error": {"code": "rate_limit_exceeded", "type": "tokens", "message":
        "Request too large for model on tokens per min (TPM): Limit 6000, Requested 9000. Please reduce the "
        "length of the messages"}}, RateLimitError),
    (429, {"error": {"message": "Rate limit reached: too many tokens per day"}}, RateLimitError),
    (413, {"type": "error", "error": {"type": "request_too_large", "message":
        "Request exceeds the maximum size"}}, InvalidRequestError),
    (429, {"message": "Too many tokens, please wait before trying again."}, RateLimitError),
    (400, {"error": {"message": "'max_tokens' or 'max_completion_tokens' is too large: 99999"}},
     InvalidRequestError),
    *[(400, {"error": {"message": words}}, InvalidRequestError) for words in (
        "max_tokens must be at most 8192", "unknown parameter: context_length", "balance must be a number")],
    *[(status, {"error": {"message": "prompt is too long"}}, kind) for status, kind in (
        (401, AuthError), (403, AccessDeniedError), (404, NotFoundError), (429, RateLimitError),
        (503, ServerError))],
    # billing: its texts are final with any status, and status 402 with any code; Google's code comes before its
    # text
    *[(status, {"error": {"message": "Insufficient balance (1008)", "type": "rate_limit_error"}},
       QuotaExceededError) for status in (None, 400, 401, 403, 404, 412, 422, 429, 500, 502)],
    *[(402, {"error": {"message": "no", "type": kind}}, QuotaExceededError) for kind in (
        "invalid_request_error", "rate_limit_error", "permission_error", "")],
    (429, {"error": {"message": SPENT, "status": "RESOURCE_EXHAUSTED"}}, RateLimitError),
    (429, {"error": {"message": SPENT}}, QuotaExceededError),
]  # fmt: skip


@pytest.mark.parametrize(("status", "body", "kind"), CODES)
def test_codes_come_before_the_status(status: int | None, body: object, kind: ErrorType) -> None:
    """Type and code come first, then the status, and the text last. Billing errors are final."""
    error = classify(status, body)
    assert type(error) is kind
    assert not (error.retryable and kind is QuotaExceededError)


OVERFLOWS = [
    "prompt is too long: 213462 tokens > 200000 maximum",
    "input length and `max_tokens` exceed context limit: 199211 + 20000 > 200000",
    "Input is too long for requested model.",
    "Your input exceeds the context window of this model. Please adjust your input and try again.",
    "This model's maximum context length is 8192 tokens. However, your messages resulted in 10001 tokens.",
    "This endpoint's maximum context length is 131,072 tokens. However, you requested about 200,000 tokens",
    "maximum context length of 4096 tokens",
    "The input token count (1200000) exceeds the maximum number of tokens allowed (1048576).",
    "This model's maximum prompt length is 131072 but the request contains 537812 tokens.",
    "Please reduce the length of the messages or completion.",
    "Please reduce the length of the prompt",
    "prompt token count of 130000 exceeds the limit of 128000",
    "the request exceeds the available context size. try increasing the context size",
    "The number of tokens to keep from the initial prompt is greater than the context length.",
    "invalid params, context window exceeds limit",
    "Invalid request: Your request exceeded model token limit: 8192 (requested: 9000)",
    "Prompt contains 40000 tokens, too large for model with 32768 maximum context length",
    "Please reduce the length of the input. Current length is 9000 while limit is 8192",
    "Current length is 9000 while limit is 8192",
    "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 4096. Given: 4000 `inputs` tokens",
    "Input validation error: `inputs` must have less than 4095 tokens. Given: 5000",
    "prompt is longer than the context length",
    "input length (9000) exceeds the model's maximum context length (8192)",
    "the input length exceeds the context length",
    "The prompt is longer than the model's context length",
    "This prompt of 9000 tokens is longer than the model's context length",
    "input tokens exceed the configured limit",
    "token limit exceeded",
    "input tokens exceeded",
    "messages exceed context limit",
]


@pytest.mark.parametrize("message", OVERFLOWS)
def test_each_providers_overflow_is_recognised(message: str) -> None:
    """The status may be any that providers use for an overflow, also in a stream. A 429 is never an overflow."""
    for status in (400, 413, 422, 424, 500, None):
        error = classify(status, {"error": {"message": message.upper(), "type": "invalid_request_error"}})
        assert type(error) is ContextOverflowError, status
        assert not error.retryable
    assert type(classify(429, {"error": {"message": message}})) is RateLimitError


def test_the_providers_own_codes_come_first() -> None:
    """A provider's own table comes before the common one."""
    body, codes = ErrorBody(code="1113", message="x"), {"1113": QuotaExceededError}
    assert type(build_error(body, status=429, codes=codes, provider="zai")) is QuotaExceededError


def test_a_header_of_the_provider_can_forbid_a_retry() -> None:
    """`x-should-retry` can make an error final, but it cannot make a final error retryable."""
    assert classify(500, b"", {"x-should-retry": "false"}).retryable is False
    assert classify(400, b"", {"x-should-retry": "true"}).retryable is False
    assert classify(402, b"", {"x-should-retry": "true"}).retryable is False
    assert classify(None, {"error": {"message": "?"}}).retryable is True
    assert classify(None, {"error": {"message": "?"}}, {"x-should-retry": "false"}).retryable is False


def test_an_error_has_the_data_for_support() -> None:
    """Status, code, message, parameter, ids and hint."""
    error = classify(
        429,
        {"error": {"type": "rate_limit_error", "code": None, "message": "slow", "param": "n"}},
        {"retry-after": "3", "request-id": "req_theirs"},
    )
    assert error.error_class is ErrorClass.RATE_LIMIT
    assert (error.provider, error.provider_status, error.provider_code) == ("toy", 429, "rate_limit_error")
    assert (error.provider_message, error.provider_param) == ("slow", "n")
    assert (error.provider_request_id, error.retry_after_seconds) == ("req_theirs", 3.0)


TOO_LARGE = (
    "Request too large for gpt-4o in organization org-x on tokens per min (TPM): Limit 30000, Requested 31000. "
    "The input or output tokens must be reduced in order to run successfully."
)
REACHED = (
    "Rate limit reached for gpt-4o in organization org-x on tokens per min (TPM): Limit 30,000, Used 29,500, "
    "Requested 800. Please try again in 600ms."
)


@pytest.mark.parametrize("status", [429, 413, None])
def test_a_request_larger_than_its_limit_is_not_retried(status: int | None) -> None:
    """The request never fits, after any delay, also in a stream."""
    error = classify(status, {"error": {"message": TOO_LARGE, "type": "tokens", "code": "rate_limit_exceeded"}})
    assert type(error) is RateLimitError
    assert not error.retryable


def test_a_request_waits_for_a_used_up_limit() -> None:
    """The request itself would fit."""
    error = classify(429, {"error": {"message": REACHED, "type": "tokens", "code": "rate_limit_exceeded"}})
    assert (error.retryable, error.retry_after_seconds) == (True, 0.6)


def test_without_another_hint_the_reset_of_a_limit_is_used() -> None:
    """A limit's reset counts only for a rate limit. A delay in the text and `retry-after` come first. A
    bad request has no delay.
    """
    headers = {"x-ratelimit-reset-tokens": "6m0s", "x-ratelimit-remaining-tokens": "0"}
    assert classify(429, b"", headers).retry_after_seconds == 360.0
    assert classify(429, b"", {**headers, "retry-after": "2"}).retry_after_seconds == 2.0
    assert classify(429, {"error": {"message": "try again in 3s"}}, headers).retry_after_seconds == 3.0
    assert classify(500, b"", headers).retry_after_seconds is None
    assert classify(400, b"", {"retry-after": "3"}).retry_after_seconds is None


# -- The table of texts and codes that identify errors.


def test_each_row_of_the_table_has_words_or_a_code_of_its_own() -> None:
    """The words are a regular expression."""
    rows = word_rows()
    assert [row for row in rows if bool(row.words) == bool(row.code) or not row.servers] == []
    assert [row for row in rows if row.certain and row.means != "money"] == []
    for row in rows:
        re.compile(row.words)
    codes = [row.code for row in rows if row.code]
    assert len(codes) == len(set(codes))
