"""Estimates of a request's tokens, from its text alone.

Not all providers publish their tokenizers. So `count` measures a request: tokens of text by the nearest published
vocabulary, and the numbers of messages, tools, properties, images and pixels. Each has a rate, and the estimate is
the sum. For each protocol, server and family of models, the rates are fitted to token counts from providers. An
estimate is made before every call, so results for texts and tools are cached. Pages of documents and seconds of
audio are ignored.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Sequence
from functools import cache, cached_property
from operator import mul
from typing import TypeAlias

import msgspec

from callboard.bus.values.base import Json, JsonObject
from callboard.bus.values.content import (
    AudioBlock,
    ContentBlock,
    DocumentBlock,
    ImageBlock,
    OpaqueBlock,
    ProviderRaw,
    RedactedThinkingBlock,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from callboard.bus.values.messages import Message, ToolDefinition, beginning_of, plain_texts

from ..provider import provider_named
from .content import image_pixels, repair_object
from .text_traits import text_tokens, tokens_of_all, vocabulary_of

# --- Rates ---


class TokenRates(msgspec.Struct, frozen=True, dict=True):
    """Tokens for each part of a request. The fields up to `document` are in the order of `count`."""

    request: float = 3.0
    """Tokens that each request has in addition to its content."""
    message: float = 4.0
    """Tokens that each message has in addition to its content."""
    system: float = 2.0
    """Tokens of a system prompt without its text."""
    tools: float = 10.0
    """Tokens added once if there are tools, because providers then add a prompt."""
    tool: float = 8.0
    """Tokens of a tool without its text."""
    property: float = 2.0
    """Tokens of a property in a tool's schema."""
    text: float = 1.0
    """The factor on the estimated tokens of a text."""
    json: float = 1.0
    """The factor for text in a call's arguments."""
    schema: float = 0.7
    """The factor for text in a tool's name and schema, which providers rewrite."""
    opaque: float = 0.1
    """Tokens of a character of signatures and the like."""
    call: float = 3.0
    """Tokens of a tool call without its name and arguments."""
    result: float = 3.0
    """Tokens of a tool's result without its text."""
    image: float = 30.0
    """Tokens of an image without its pixels."""
    pixels: float = 1.33
    """Tokens of a thousand pixels."""
    audio: float = 500.0
    """Tokens of an audio block."""
    document: float = 1500.0
    """Tokens of a document that is not text."""
    vocabulary: str = "o200k"
    """The vocabulary for counting text."""

    @cached_property
    def numbers(self) -> tuple[float, ...]:
        """The rates in the order of `count`."""
        rates: tuple[float, ...] = msgspec.structs.astuple(self)[:-1]
        return rates


class RateRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Rates for some hosts and models of a protocol."""

    host: str
    """A regular expression for the host in an address."""
    model: str
    """A regular expression for the model's name."""
    samples: int
    """The number of requests that the rates were fitted to."""
    rates: TokenRates


@cache
def rate_rows(protocol: str) -> tuple[RateRow, ...]:
    """The rows of a protocol; the first match counts. Empty without fitted rates."""
    provider = provider_named(protocol)
    if provider is None or provider.rates is None:
        return ()
    return msgspec.json.decode(provider.data(provider.rates), type=tuple[RateRow, ...])


ESTIMATE_ERROR = 0.25
"""The largest relative error of an estimate of a prompt. Decisions must use a larger margin."""


UPPER_FACTOR = 1.5
UPPER_TOKENS = 50

_FIELDS = len(TokenRates.__struct_fields__) - 1
(_REQUEST, _MESSAGE, _SYSTEM, _TOOLS, _TOOL, _PROPERTY, _TEXT, _JSON, _SCHEMA, _OPAQUE, _CALL, _RESULT, _IMAGE,
 _PIXELS, _AUDIO, _DOCUMENT) = range(_FIELDS)  # fmt: skip

_MOST_PIXELS = 1_600_000  # providers scale larger images down
_USUAL_PIXELS = 800_000
_SHORTEST_OPAQUE = 64
_MOST_MEASURED = 512
_Measured: TypeAlias = tuple[object, int, float, float]
"""A tool, or all tools of a request, with the number of properties and the tokens of descriptions and schemas."""
_measured: dict[str, dict[int, _Measured]] = {}
"""The measurements by vocabulary and identity.

Each entry contains a reference to the measured object, so that the object's id is not reused.
"""


def estimate_tokens(text: str, rates: TokenRates) -> int:
    """The estimated tokens of a text, at least one if it isn't empty."""
    return max(round(text_tokens(text, rates.vocabulary) * rates.text), 1 if text else 0)


def at_most(estimated_tokens: int) -> int:
    """The estimate plus its largest relative error."""
    return math.ceil(estimated_tokens * (1 + ESTIMATE_ERROR))


def upper_end(estimated_tokens: int) -> int:
    """The upper bound of the tokens for an estimate.

    When the rates were fitted, this bound exceeded all 6,528 counts of generated text by eight tokenizers, and 368
    of 371 recorded counts. In the other three, the server had added text.
    """
    return math.ceil(estimated_tokens * UPPER_FACTOR) + UPPER_TOKENS


def estimate_request(
    messages: Sequence[Message], tools: Sequence[ToolDefinition], system_prompt: str | None, rates: TokenRates
) -> int:
    counts = count(messages, tools, system_prompt, rates.vocabulary)
    return math.ceil(math.fsum(map(mul, rates.numbers, counts)))


@functools.lru_cache(maxsize=256)
def rates_for(protocol: str, host: str, model: str) -> TokenRates:
    """The rates of the first matching row."""
    vocabulary = vocabulary_of(protocol, model)
    for row in rate_rows(protocol):
        if re.search(row.host, host) and re.search(row.model, model, re.IGNORECASE):
            return msgspec.structs.replace(row.rates, vocabulary=vocabulary)
    return TokenRates(vocabulary=vocabulary)


def count(
    messages: Sequence[Message], tools: Sequence[ToolDefinition], system_prompt: str | None, vocabulary: str
) -> list[float]:
    """Measure a request, in the order of the fields of TokenRates."""
    counts = [0.0] * _FIELDS
    counts[_REQUEST], counts[_MESSAGE] = 1, len(messages)
    if system_prompt:
        counts[_SYSTEM] = 1
        counts[_TEXT] += text_tokens(system_prompt, vocabulary)
    beginning = beginning_of(messages)
    if beginning is not None:
        made = beginning.form(f"{vocabulary}_tokens", lambda text, _: text_tokens(text, vocabulary))
        counts[_TEXT] += sum(made)
        messages = messages[len(made) :]
    texts = plain_texts(messages)
    counts[_TEXT] += tokens_of_all(filter(None, texts), vocabulary)
    if None in texts:
        for message in messages:
            if message.plain_text is None:
                for block in message.content:
                    _add_block(counts, block, vocabulary)
    if tools:
        counts[_TOOLS], counts[_TOOL] = 1, len(tools)
        _, counts[_PROPERTY], described, counts[_SCHEMA] = _measured_tools(tools, vocabulary)
        counts[_TEXT] += described
    return counts


def _add_block(counts: list[float], block: ContentBlock, vocabulary: str) -> None:
    match block:
        case TextBlock():
            counts[_TEXT] += text_tokens(block.text, vocabulary)
        case ToolUseBlock():
            counts[_CALL] += 1
            arguments = _json_text(block.input)
            counts[_JSON] += text_tokens(block.name, vocabulary) + text_tokens(arguments, vocabulary)
            _add_opaque(counts, block.provider_raw)
        case ToolResultBlock():
            counts[_RESULT] += 1
            _add_result(counts, block, vocabulary)
        case ThinkingBlock():
            counts[_TEXT] += text_tokens(block.text, vocabulary)
            counts[_OPAQUE] += len(block.signature or "")
            if block.signature is None:
                _add_opaque(counts, block.provider_raw)
        case ImageBlock():
            _add_image(counts, block)
        case AudioBlock():
            counts[_AUDIO] += 1
        case DocumentBlock():
            _add_document(counts, block, vocabulary)
        case RedactedThinkingBlock():
            counts[_OPAQUE] += len(block.data)
        case OpaqueBlock():
            _add_opaque(counts, block.provider_raw)


def _add_result(counts: list[float], block: ToolResultBlock, vocabulary: str) -> None:
    if isinstance(block.content, str):
        counts[_TEXT] += text_tokens(block.content, vocabulary)
        return
    for part in block.content:
        if isinstance(part, TextBlock):
            counts[_TEXT] += text_tokens(part.text, vocabulary)
        elif isinstance(part, ImageBlock):
            _add_image(counts, part)
        elif isinstance(part, OpaqueBlock):
            _add_opaque(counts, part.provider_raw)
        else:
            _add_document(counts, part, vocabulary)


def _add_image(counts: list[float], block: ImageBlock) -> None:
    pixels = image_pixels(block.data) if block.data is not None else None
    counts[_IMAGE] += 1
    counts[_PIXELS] += min(pixels or _USUAL_PIXELS, _MOST_PIXELS) // 1000


def _add_document(counts: list[float], block: DocumentBlock, vocabulary: str) -> None:
    if block.data is not None and block.media_type is not None and block.media_type.startswith("text/"):
        counts[_TEXT] += text_tokens(block.data.decode("utf-8", "replace"), vocabulary)
    else:
        counts[_DOCUMENT] += 1


def _add_opaque(counts: list[float], raw: ProviderRaw | None) -> None:
    """Count long strings in provider data by their size."""
    if raw is not None:
        counts[_OPAQUE] += sum(
            len(value) for value in raw.data.values() if isinstance(value, str) and len(value) >= _SHORTEST_OPAQUE
        )


def _measured_tools(tools: Sequence[ToolDefinition], vocabulary: str) -> _Measured:
    """Measure the tools of a request.

    A session passes the same tuple each time, so the result is in the cache.
    """
    measured = _measured.setdefault(vocabulary, {})
    measurement = measured.get(id(tools))
    if measurement is not None and measurement[0] is tools:
        return measurement
    properties, described, schemas = zip(
        *(_measure(tool, vocabulary, measured)[1:] for tool in tools), strict=True
    )
    together = tools, sum(properties), sum(described), sum(schemas)
    return _remembered(measured, together) if isinstance(tools, tuple) else together


def _measure(tool: ToolDefinition, vocabulary: str, measured: dict[int, _Measured]) -> _Measured:
    measurement = measured.get(id(tool))
    if measurement is not None and measurement[0] is tool:
        return measurement
    schema = text_tokens(tool.name + _json_text(tool.input_schema), vocabulary)
    described = text_tokens(tool.description, vocabulary)
    return _remembered(measured, (tool, _properties(tool.input_schema), described, schema))


def _remembered(measured: dict[int, _Measured], made: _Measured) -> _Measured:
    if len(measured) >= _MOST_MEASURED:
        measured.clear()
    measured[id(made[0])] = made
    return made


def _json_text(value: JsonObject) -> str:
    """An object as JSON, even with half a surrogate pair."""
    try:
        return msgspec.json.encode(value).decode()
    except UnicodeEncodeError:
        return msgspec.json.encode(repair_object(value)).decode()


def _properties(schema: Json) -> int:
    """The number of described properties, at any depth."""
    match schema:
        case dict():
            properties = schema.get("properties")
            count = len(properties) if isinstance(properties, dict) else 0
            return count + sum(_properties(value) for value in schema.values() if isinstance(value, dict | list))
        case list():
            return sum(_properties(value) for value in schema)
        case _:
            return 0
