"""The fields of Chat Completions that are read here. Any field may be missing or null.

Servers disagree about types as well as about fields. A field that comes in several types is declared as plain
JSON, and is examined where it is used. Other fields are not declared, so a surprise there costs nothing. A
streamed delta and a whole message have the same fields, so one struct serves both.
"""

from __future__ import annotations

from typing import Final

import msgspec

from bus.values.json import Json

NO_RAW: Final = msgspec.Raw()
NULL: Final = msgspec.Raw(b"null")


class WireFunction(msgspec.Struct, gc=False):
    """The function of a call. `arguments` is a fragment of JSON text. Some servers send an object, or null."""

    name: Json = None
    arguments: Json = None


class WireToolCall(msgspec.Struct, gc=False):
    """A call, or a fragment of one."""

    index: Json = None
    id: Json = None
    function: WireFunction | None = None
    extra_content: Json = None  # Gemini's signature of the call


class WireMessage(msgspec.Struct, gc=False):
    """A whole message or a delta. `content` is text, or a list of parts (Mistral)."""

    content: str | list[Json] | None = None
    refusal: Json = None
    reasoning_content: Json = None
    reasoning: Json = None
    reasoning_details: Json = None
    tool_calls: list[WireToolCall | None] | None = None
    function_call: WireFunction | None = None
    extra_content: Json = None
    images: Json = None
    audio: Json = None
    annotations: Json = None
    executed_tools: Json = None  # Groq's


class WireChoice(msgspec.Struct, gc=False):
    """A choice, with `delta` in streams and `message` in whole replies. Some servers mix them up. `error` is
    OpenRouter's."""

    index: Json = None
    delta: WireMessage | None = None
    message: WireMessage | None = None
    finish_reason: Json = None
    usage: msgspec.Raw = NO_RAW
    error: Json = None


class WireReply(msgspec.Struct, gc=False):
    """A whole reply or one chunk. `choices` is None if there is no such key. `object` is ``error`` from old
    servers."""

    id: Json = None
    model: Json = None
    object: Json = None
    choices: list[WireChoice | None] | None = None
    usage: msgspec.Raw = NO_RAW
    x_groq: msgspec.Raw = NO_RAW
    service_tier: Json = None
    error: Json = None


class WireUsage(msgspec.Struct, gc=False):
    """Token counts, wherever servers put them. Integers may come as floats; nothing is certain to be there.

    Mistral's `num_cached_tokens` is left out: it counts what its server found in memory, which is billed as ever.
    """

    prompt_tokens: Json = None
    completion_tokens: Json = None
    total_tokens: Json = None
    prompt_tokens_details: Json = None
    completion_tokens_details: Json = None
    prompt_cache_hit_tokens: Json = None  # DeepSeek
    cached_tokens: Json = None  # Moonshot, Together
    reasoning_tokens: Json = None
    cost: Json = None  # OpenRouter's, in US dollars
    cost_details: Json = None
    is_byok: Json = None
    citation_tokens: Json = None  # Perplexity's, as are its searches
    num_search_queries: Json = None
    num_sources_used: Json = None  # xAI's live search
    server_tool_use: Json = None
    server_tool_use_details: Json = None  # OpenRouter's


class WireGroq(msgspec.Struct, gc=False):
    """Groq's own corner of a chunk."""

    usage: msgspec.Raw = NO_RAW


_REPLY = msgspec.json.Decoder(WireReply)
_USAGE = msgspec.json.Decoder(WireUsage)
_GROQ = msgspec.json.Decoder(WireGroq)


def decode_reply(data: bytes) -> WireReply:
    """Decode a reply or a chunk. Raises msgspec's decoding errors, UnicodeError or RecursionError."""
    return _REPLY.decode(data)


def decode_usage(raw: msgspec.Raw) -> WireUsage | None:
    """The counts of a usage object; None if it is missing, null or nothing of the kind."""
    if not raw or raw == NULL:
        return None
    try:
        return _USAGE.decode(raw)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return None


def groq_usage(raw: msgspec.Raw) -> msgspec.Raw:
    """The usage in Groq's corner, if it has one."""
    if not raw or raw == NULL:
        return NO_RAW
    try:
        return _GROQ.decode(raw).usage
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return NO_RAW
