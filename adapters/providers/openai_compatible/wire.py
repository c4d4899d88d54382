"""Fields of Chat Completions, usage, and error codes. Any field may be missing or null.

A field with several types is declared as plain JSON, and checked where it is used. Other fields are not declared,
so unexpected values in them have no effect. One struct serves streamed deltas and whole messages.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import Annotated, Final, Literal, TypeAlias

import msgspec

from callboard.bus.errors import (
    AccessDeniedError,
    AdapterError,
    AuthError,
    ContentFilterError,
    ContextOverflowError,
    InvalidRequestError,
    NotFoundError,
    OverloadedError,
    QuotaExceededError,
    RateLimitError,
    ServerError,
)
from callboard.bus.values.base import Json, JsonObject
from callboard.bus.values.usage import TokenUsage, details_of

from ...http.errors import ErrorType, error_without_status, read_error, read_error_value
from ...replies.usage import (
    cache_writes,
    decode_usage,
    first_count,
    only_written,
    reported_cost,
    reported_count,
    reported_detail,
    source_of,
)

NO_RAW: Final = msgspec.Raw()
NULL: Final = msgspec.Raw(b"null")


class WireFunction(msgspec.Struct, gc=False):
    """The function of a call. `arguments` is a fragment of JSON text; some servers send an object or null."""

    name: Json = None
    arguments: Json = None


class WireFreeForm(msgspec.Struct, gc=False):
    name: Json = None
    input: Json = None


class WireToolCall(msgspec.Struct, gc=False):
    index: Json = None
    id: Json = None
    function: WireFunction | None = None
    custom: WireFreeForm | None = None
    extra_content: Json = None  # Gemini's signature of the call


class WireMessage(msgspec.Struct, gc=False):
    """A whole message or a delta. `content` is text or a list of parts (Mistral)."""

    content: str | list[Json] | None = None
    refusal: Json = None
    reasoning_content: Json = None
    reasoning: Json = None
    reasoning_details: Json = None
    tool_calls: list[WireToolCall | None] | WireToolCall | None = None  # TGI sends a single call
    function_call: WireFunction | None = None
    extra_content: Json = None
    images: Json = None
    audio: Json = None
    annotations: Json = None
    executed_tools: Json = None  # Groq's


class WireChoice(msgspec.Struct, gc=False):
    """A choice, with `delta` in streams and `message` in whole replies. Some servers mix them up.

    `error` is OpenRouter's.
    """

    index: Json = None
    delta: WireMessage | None = None
    message: WireMessage | None = None
    finish_reason: Json = None
    logprobs: Json = None
    usage: msgspec.Raw = NO_RAW
    error: Json = None


class WireReply(msgspec.Struct, gc=False):
    """A whole reply or one chunk. `choices` is None if missing. `object` is ``error`` from old servers."""

    id: Json = None
    model: Json = None
    object: Json = None
    choices: list[WireChoice | None] | None = None
    usage: msgspec.Raw = NO_RAW
    x_groq: msgspec.Raw = NO_RAW
    service_tier: Json = None
    error: Json = None


class _Usage(msgspec.Struct, gc=False):
    choices: list[msgspec.Raw] | None = None
    usage: dict[str, msgspec.Raw] | None = None


_decode_usage = msgspec.json.Decoder(_Usage).decode


def is_usage_alone(data: bytes) -> bool:
    """Whether a chunk has only the usage of the whole stream, which is sent only on request."""
    if b'"usage"' not in data:
        return False
    try:
        chunk = _decode_usage(data)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return False
    return not chunk.choices and chunk.usage is not None


def asks_for_usage(body: JsonObject) -> bool:
    options = body.get("stream_options")
    return isinstance(options, dict) and options.get("include_usage") is True


class TextDelta(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    content: str
    role: Json = None
    refusal: None = None
    reasoning: None = None
    reasoning_content: None = None
    tool_calls: None = None
    function_call: None = None


class TextChoice(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    delta: TextDelta
    index: Literal[0] = 0
    finish_reason: None = None
    logprobs: None = None
    native_finish_reason: None = None
    stop_reason: None = None
    matched_stop: None = None
    content_filter_results: Json = None


class TextChunk(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    """The most common chunk of a stream: a piece of text. Other data in it is ignored."""

    choices: tuple[TextChoice]
    id: str = ""
    service_tier: Json = None
    usage: None = None
    object: Json = None
    created: Json = None
    model: Json = None
    provider: Json = None
    system_fingerprint: Json = None
    obfuscation: Json = None


class WireChoiceDetails(msgspec.Struct, gc=False):
    index: Json = None
    stop_reason: Json = None  # vLLM: the matched stop sequence
    matched_stop: Json = None  # SGLang's
    native_finish_reason: Json = None  # OpenRouter: the word of the provider behind it
    content_filter_results: Json = None  # Azure's
    content_filter_result: Json = None


class WireDetails(msgspec.Struct, gc=False):
    """A reply's data other than content and usage. Read in few chunks, see `ReplyReader.chunk`."""

    choices: list[WireChoiceDetails | None] | None = None
    system_fingerprint: Json = None
    moderation: Json = None
    provider: Json = None  # OpenRouter: the provider that made the reply
    prompt_filter_results: Json = None  # Azure's
    citations: Json = None  # Perplexity and xAI: the addresses of the numbered citations in the text
    search_results: Json = None
    related_questions: Json = None
    videos: Json = None
    web_search: Json = None  # Zhipu's
    input_sensitive: Json = None  # MiniMax's
    output_sensitive: Json = None
    timings: Json = None  # llama.cpp's
    stats: Json = None  # LM Studio's
    usage_breakdown: Json = None  # Groq's
    prompt_logprobs: Json = None  # vLLM's


Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0)]


class PlainPromptDetails(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    cached_tokens: Count | None = None
    audio_tokens: Literal[0] = 0


class PlainCompletionDetails(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    reasoning_tokens: Count | None = None
    audio_tokens: Literal[0] = 0
    accepted_prediction_tokens: Count = 0
    rejected_prediction_tokens: Count = 0


class PlainUsage(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    prompt_tokens: Count
    completion_tokens: Count
    total_tokens: Count | None = None
    prompt_tokens_details: PlainPromptDetails | None = None
    completion_tokens_details: PlainCompletionDetails | None = None


class WireGroq(msgspec.Struct, gc=False):
    usage: msgspec.Raw = NO_RAW


decode_text_chunk = msgspec.json.Decoder(TextChunk).decode
_REPLY = msgspec.json.Decoder(WireReply)
_DETAILS = msgspec.json.Decoder(WireDetails)
_OF_REPLY = tuple(name for name in WireDetails.__struct_fields__ if name != "choices")
_OF_CHOICE = tuple(name for name in WireChoiceDetails.__struct_fields__ if name != "index")
_in_reply: Callable[[WireDetails], tuple[Json, ...]] = attrgetter(*_OF_REPLY)
_in_choice: Callable[[WireChoiceDetails], tuple[Json, ...]] = attrgetter(*_OF_CHOICE)
_PLAIN_USAGE = msgspec.json.Decoder(PlainUsage)
_GROQ = msgspec.json.Decoder(WireGroq)


def decode_reply(data: bytes) -> WireReply:
    """Decode a reply or a chunk. Raises msgspec's decoding errors, UnicodeError or RecursionError."""
    return _REPLY.decode(data)


def read_details(data: bytes, choice: Json) -> JsonObject:
    """The other data of a reply or chunk, by the server's names, without empty values."""
    try:
        found = _DETAILS.decode(data)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return {}
    details = _present(_OF_REPLY, _in_reply(found))
    for each in found.choices or ():
        if each is not None and each.index == choice:
            details |= _present(_OF_CHOICE, _in_choice(each))
    return details


def _present(names: Sequence[str], values: Sequence[Json]) -> JsonObject:
    if values.count(None) == len(values):  # the usual case
        return {}
    named = zip(names, values, strict=True)
    return {name: value for name, value in named if value is not None and value not in ("", [], {})}


def groq_usage(raw: msgspec.Raw) -> msgspec.Raw:
    if not raw or raw == NULL:
        return NO_RAW
    try:
        return _GROQ.decode(raw).usage
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return NO_RAW


# --- Usage ---


def read_usage(raw: msgspec.Raw, service_tier: str | None = None) -> TokenUsage | None:
    if not raw or raw == NULL:
        return None
    return _read_plain_usage(raw, service_tier) or _read_any_usage(raw, service_tier)


def _read_plain_usage(raw: msgspec.Raw, service_tier: str | None) -> TokenUsage | None:
    """The counts of a consistent `PlainUsage`, as `_read_any_usage` returns them; None if the usage is not
    consistent.
    """
    try:
        wire = _PLAIN_USAGE.decode(raw)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return None
    prompt, output = wire.prompt_tokens, wire.completion_tokens
    of_prompt, of_output = wire.prompt_tokens_details, wire.completion_tokens_details
    cached = 0 if of_prompt is None else of_prompt.cached_tokens or 0
    reasoning = None if of_output is None else of_output.reasoning_tokens
    if wire.total_tokens not in (None, prompt + output) or cached > prompt or (reasoning or 0) > output:
        return None
    return TokenUsage(
        prompt - cached,
        output,
        cached,
        reasoning_tokens=reasoning,
        raw=msgspec.Raw(bytes(raw)),  # a copy, because the raw value would keep the whole chunk alive
        service_tier=service_tier,
    )


def _read_any_usage(raw: msgspec.Raw, service_tier: str | None) -> TokenUsage | None:
    """The counts of any usage object.

    The prompt's count includes cache reads and writes. Tokens in the total beyond prompt and completion are
    reasoning. If no field names it, the figures are partial. Perplexity counts reasoning outside of all others.
    Gateways for Claude report cache reads and writes outside of the prompt's details, under Anthropic's names.
    Mistral counts audio input outside of the prompt. Grok on Azure counts cached tokens outside of it. Mistral's
    `num_cached_tokens` is ignored: it counts the server's internal cache, which is billed as usual.
    """
    try:
        usage = decode_usage(raw)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return None
    get = usage.get
    of_prompt, of_completion = get("prompt_tokens_details"), get("completion_tokens_details")
    prompt, completion = reported_count(get("prompt_tokens")), reported_count(get("completion_tokens"))
    total = reported_count(get("total_tokens"))
    if prompt is None and completion is None:
        return None
    derived = prompt is None or (completion is None and total is not None)
    if prompt is None:
        prompt = max(0, (total or 0) - (completion or 0))
    prompt_audio = reported_detail(of_prompt, "audio_tokens") or 0
    if (
        prompt_audio
        and (prompt_audio > prompt or get("prompt_audio_seconds"))
        and total == prompt + prompt_audio + (completion or 0)
    ):
        prompt += prompt_audio
    hidden = max(0, (total or 0) - prompt - (completion or 0))
    cached = first_count(
        reported_detail(of_prompt, "cached_tokens"),
        reported_detail(get("prompt_token_details"), "cached_tokens"),  # Mistral, at times
        reported_count(get("prompt_cache_hit_tokens")),  # DeepSeek
        reported_count(get("cached_tokens")),  # Moonshot, Together
        reported_count(get("cache_read_input_tokens")),  # gateways in front of Claude: LiteLLM, Databricks
    )
    if cached and cached > prompt and _parts_of_prompt(of_prompt) == prompt:
        prompt += cached
        derived = True
    written, written_1h = cache_writes(of_prompt, get("cache_creation_input_tokens"), get("cache_creation"))
    written = only_written(cached or 0, written, prompt)
    named = first_count(
        reported_detail(of_completion, "reasoning_tokens"), reported_count(get("reasoning_tokens"))
    )
    is_perplexity = get("citation_tokens") is not None or get("num_search_queries") is not None
    beside = (named or 0) if is_perplexity else hidden
    output = (completion or 0) + beside
    reasoning = hidden if not named and hidden and completion is not None else named
    derived = derived or completion is None or (hidden > 0 and named != hidden)
    spoken = reported_detail(of_completion, "audio_tokens") or 0
    source = source_of(
        *(((cached or 0) + written, prompt), (reasoning, output), (prompt_audio, prompt), (spoken, output)),
        raw=raw,
        complete=not derived,
    )
    fresh = max(0, prompt - (cached or 0) - written)
    # OpenRouter's cost is in US dollars, xAI's in ticks.
    stated = reported_cost(get("cost"), get("is_byok"), get("cost_details"), get("cost_in_usd_ticks"))
    return TokenUsage(
        input_tokens=fresh,
        output_tokens=output,
        cached_input_tokens=cached or 0,
        cache_creation_input_tokens=written,
        cache_creation_1h_input_tokens=min(written_1h, written),
        reasoning_tokens=None if reasoning is None else min(reasoning, output),
        source=source,
        reported_cost_nano_usd=stated.total,
        upstream_cost_nano_usd=stated.upstream,
        details=details_of(
            audio_input=min(fresh, prompt_audio),
            audio_output=min(output - min(reasoning or 0, output), spoken),
            **_fees(usage),
        ),
        service_tier=service_tier,
        raw=msgspec.Raw(bytes(raw)),  # a copy, because the raw value would keep the whole chunk alive
    )


def _fees(usage: JsonObject) -> dict[str, int | None]:
    return {
        "web_search": first_count(
            reported_detail(usage.get("server_tool_use"), "web_search_requests"),
            reported_detail(usage.get("server_tool_use_details"), "web_search_requests"),  # OpenRouter's
            reported_count(usage.get("num_search_queries")),  # Perplexity's, as are its citations
        ),
        "citation_tokens": reported_count(usage.get("citation_tokens")),
        "live_search_source": reported_count(usage.get("num_sources_used")),  # xAI's
    }


def _parts_of_prompt(details: Json) -> int | None:
    """The sum of the kinds of input in the prompt's details; None if text is not among them."""
    text = reported_detail(details, "text_tokens")
    if text is None:
        return None
    return text + sum(reported_detail(details, name) or 0 for name in ("image_tokens", "audio_tokens"))


# --- Error codes ---

ERROR_CODES: Mapping[str, ErrorType] = {
    # OpenAI and Azure
    "insufficient_permissions": AccessDeniedError,
    "unsupported_country_region_territory": AccessDeniedError,
    "DeploymentNotFound": NotFoundError,
    "responsible_ai_policy_violation": ContentFilterError,
    # Groq
    "tool_use_failed": InvalidRequestError,
    "json_validate_failed": InvalidRequestError,
    "model_decommissioned": NotFoundError,
    # vLLM, TGI. vLLM's BadRequestError adds nothing to the status: overflows have that name too.
    "NotFoundError": NotFoundError,
    "generation": ServerError,
    "overloaded": OverloadedError,
    "incomplete_generation": ServerError,
    # Moonshot
    "engine_overloaded_error": OverloadedError,
    "rate_limit_reached_error": RateLimitError,
    "invalid_authentication_error": AuthError,
    "resource_not_found_error": NotFoundError,
    # Together, Fireworks
    "model_not_available": NotFoundError,
    # Z.ai
    "1000": AuthError,
    "1001": AuthError,
    "1002": AuthError,
    "1003": AuthError,
    "1113": QuotaExceededError,
    "1210": InvalidRequestError,
    "1211": NotFoundError,
    "1220": AccessDeniedError,
    "1234": ServerError,
    "1261": ContextOverflowError,
    "1301": ContentFilterError,
    "1302": RateLimitError,
    "1303": RateLimitError,
    "1304": QuotaExceededError,
    "1305": OverloadedError,
    "1308": QuotaExceededError,
    "1309": QuotaExceededError,
    "1310": QuotaExceededError,
    # Cerebras
    "wrong_api_key": AuthError,
    "queue_exceeded": OverloadedError,
    "too_many_requests_error": RateLimitError,
}
"""The error codes. They take precedence over `adapters.http.errors.COMMON_CODES`."""


def error_in_reply(value: Json, provider: str) -> AdapterError:
    return error_without_status(read_error_value(value), ERROR_CODES, provider)


def error_in_body(body: bytes, provider: str) -> AdapterError:
    """Like `error_in_reply`, for a body or an event that is only the error, in any shape."""
    return error_without_status(read_error(body), ERROR_CODES, provider)
