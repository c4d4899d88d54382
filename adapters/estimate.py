"""How many tokens a request has, from its text alone.

Tokenizers differ, and no provider publishes all of theirs. So this counts what a request is made of (`count`):
characters of text, of arguments, of tools' schemas, and how many messages, tools and properties there are. Each
has a rate in tokens, and the estimate is the sum. The rates are data (`estimate_rates`), fitted to requests whose
tokens a provider had counted, for each protocol, server and family of models.

It runs before every call, so it looks at nothing twice: text is measured by its length, and what a tool comes to
is remembered. Pages of documents and seconds of audio are not looked at.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Sequence
from operator import mul

import msgspec

from bus.content import (
    AudioBlock,
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
from bus.json_types import Json
from bus.messages import Message, ToolDefinition

from .estimate_rates import RATES, TokenRates
from .image_size import image_pixels

ESTIMATE_ERROR = 0.25
"""How far an estimate of a prompt's size may be off; only beyond that is anything concluded for sure."""


_FIELDS = len(TokenRates.__struct_fields__)
(_REQUEST, _MESSAGE, _SYSTEM, _TOOLS, _TOOL, _PROPERTY, _TEXT, _WIDE, _DENSE, _JSON, _SCHEMA, _OPAQUE, _CALL,
 _RESULT, _IMAGE, _PIXELS, _AUDIO, _DOCUMENT) = range(_FIELDS)  # fmt: skip

_JSON_STARTS = ("{", "[")
_LONG_WORD = 8
_SAMPLE = 256
_MOST_PIXELS = 1_600_000  # larger images are made smaller by those who read them
_USUAL_PIXELS = 800_000
_SHORTEST_OPAQUE = 64
_MEASURED_TOOLS = 512
_measured: dict[int, tuple[ToolDefinition, tuple[int, int, int, int]]] = {}
"""Tools by identity, with what they count; the tool is kept, so that its identity stays its own."""


def estimate_tokens(text: str, rates: TokenRates) -> int:
    """Tokens of a piece of prose."""
    return math.ceil(len(text) * rates.text + _wide(text) * rates.wide)


def at_most(estimated_tokens: int) -> int:
    """How large a prompt is that was estimated to be so large, if it was underestimated."""
    return math.ceil(estimated_tokens * (1 + ESTIMATE_ERROR))


def estimate_request(
    messages: Sequence[Message], tools: Sequence[ToolDefinition], system_prompt: str | None, rates: TokenRates
) -> int:
    """Input tokens of a request."""
    counts = count(messages, tools, system_prompt)
    values: tuple[float, ...] = msgspec.structs.astuple(rates)
    return math.ceil(math.fsum(map(mul, values, counts)))


@functools.lru_cache(maxsize=256)
def rates_for(protocol: str, host: str, model: str) -> TokenRates:
    """The rates of the first row that fits. protocol: an adapter's type. host: or a whole address. model: with or
    without its provider."""
    for row in RATES:
        if row.protocol == protocol and re.search(row.host, host) and re.search(row.model, model, re.IGNORECASE):
            return row.rates
    return TokenRates()


def count(messages: Sequence[Message], tools: Sequence[ToolDefinition], system_prompt: str | None) -> list[int]:
    """What a request is made of, in the order of the fields of TokenRates."""
    counts = [0] * _FIELDS
    counts[_REQUEST], counts[_MESSAGE] = 1, len(messages)
    if system_prompt:
        counts[_SYSTEM] = 1
        _add_text(counts, system_prompt)
    for message in messages:
        for block in message.content:
            match block:
                case TextBlock():
                    _add_text(counts, block.text)
                case ToolUseBlock():
                    counts[_CALL] += 1
                    counts[_JSON] += len(block.name) + len(msgspec.json.encode(block.input))
                    _add_opaque(counts, block.provider_raw)
                case ToolResultBlock():
                    counts[_RESULT] += 1
                    _add_result(counts, block)
                case ThinkingBlock():
                    _add_text(counts, block.text)
                    counts[_OPAQUE] += len(block.signature or "")
                    if block.signature is None:
                        _add_opaque(counts, block.provider_raw)
                case ImageBlock():
                    _add_image(counts, block)
                case AudioBlock():
                    counts[_AUDIO] += 1
                case DocumentBlock():
                    _add_document(counts, block)
                case RedactedThinkingBlock():
                    counts[_OPAQUE] += len(block.data)
                case OpaqueBlock():
                    _add_opaque(counts, block.provider_raw)
    if tools:
        counts[_TOOLS], counts[_TOOL] = 1, len(tools)
        for tool in tools:
            properties, schema, text, wide = _measure(tool)
            counts[_PROPERTY] += properties
            counts[_SCHEMA] += schema
            counts[_TEXT] += text
            counts[_WIDE] += wide
    return counts


def _wide(text: str) -> int:
    return 0 if text.isascii() else len(text.encode("utf-8", "replace")) - len(text)


def _add_text(counts: list[int], text: str) -> None:
    size = len(text)
    if text.startswith(_JSON_STARTS):
        counts[_JSON] += size
    else:
        counts[_TEXT] += size
        if size <= _SAMPLE:
            dense = size - _LONG_WORD * (text.count(" ") + 1)
        else:  # the beginning stands for the rest
            dense = (_SAMPLE - _LONG_WORD * (text.count(" ", 0, _SAMPLE) + 1)) * size // _SAMPLE
        if dense > 0:
            counts[_DENSE] += dense
    if not text.isascii():
        counts[_WIDE] += _wide(text)


def _add_result(counts: list[int], block: ToolResultBlock) -> None:
    if isinstance(block.content, str):
        _add_text(counts, block.content)
        return
    for part in block.content:
        if isinstance(part, TextBlock):
            _add_text(counts, part.text)
        elif isinstance(part, ImageBlock):
            _add_image(counts, part)
        else:
            _add_document(counts, part)


def _add_image(counts: list[int], block: ImageBlock) -> None:
    pixels = image_pixels(block.data) if block.data is not None else None
    counts[_IMAGE] += 1
    counts[_PIXELS] += min(pixels or _USUAL_PIXELS, _MOST_PIXELS) // 1000


def _add_document(counts: list[int], block: DocumentBlock) -> None:
    if block.data is not None and block.media_type is not None and block.media_type.startswith("text/"):
        counts[_TEXT] += len(block.data)
    else:
        counts[_DOCUMENT] += 1


def _add_opaque(counts: list[int], raw: ProviderRaw | None) -> None:
    """What a provider wants back is counted by its size: long strings, wherever they stand."""
    if raw is not None:
        counts[_OPAQUE] += sum(
            len(value) for value in raw.data.values() if isinstance(value, str) and len(value) >= _SHORTEST_OPAQUE
        )


def _measure(tool: ToolDefinition) -> tuple[int, int, int, int]:
    """A tool's properties, characters of schema, characters of description and the bytes beyond them."""
    known = _measured.get(id(tool))
    if known is not None and known[0] is tool:
        return known[1]
    schema = msgspec.json.encode(tool.input_schema)
    text = tool.description
    sums = (_properties(tool.input_schema), len(tool.name) + len(schema), len(text), _wide(text))
    if len(_measured) >= _MEASURED_TOOLS:
        _measured.clear()
    _measured[id(tool)] = (tool, sums)
    return sums


def _properties(schema: Json) -> int:
    """How many properties are described, at any depth."""
    match schema:
        case dict():
            own = schema.get("properties")
            here = len(own) if isinstance(own, dict) else 0
            return here + sum(_properties(value) for value in schema.values() if isinstance(value, dict | list))
        case list():
            return sum(_properties(value) for value in schema)
        case _:
            return 0
