"""Shared code of several sources: JSON records, counts, times, and vendor names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import BinaryIO, Final, NamedTuple

import msgspec

from callboard.bus.clock import to_us
from callboard.bus.values.base import Json, JsonObject
from callboard.bus.values.usage import StopReason, TokenUsage, UsageSource

from ..source import START, Mark, UnreadablePart, lines, name

LARGEST_FILE: Final = 64 * 1024 * 1024
"""The largest size in bytes of a file with a single JSON value, which must fit into memory."""

_records = msgspec.json.Decoder(list[msgspec.Raw]).decode


class Record(NamedTuple):
    """One JSON value of a file."""

    line: int
    """The line, from 1; 0 in a file with one value."""
    data: msgspec.Raw | bytes


def read_whole(stream: BinaryIO) -> bytes | None:
    """All bytes of a file; None if there are too many."""
    data = stream.read(LARGEST_FILE + 1)
    return None if len(data) > LARGEST_FILE else data


def json_records(stream: BinaryIO, start: Mark = START) -> Iterator[Record | UnreadablePart | Mark]:
    """The records of a file: JSON lines, an array, or an object with an array in ``data``.

    Lines are read one at a time, with a mark after each hundred lines.
    """
    head = stream.peek(64).lstrip() if hasattr(stream, "peek") else b""
    if not start.read_to and (head[:1] == b"[" or head[:8] == b'{"data":'):
        yield from _array(stream)
        return
    mark = start
    for line in lines(stream, start):
        text = line.data.strip()
        if line.too_long:
            yield UnreadablePart(line=line.number, why="the line is too long")
        elif text:
            yield Record(line.number, text)
        if line.whole:
            mark = Mark(read_to=line.end, line=line.number)
            if not line.number % 100:
                yield mark
    yield mark


def _array(stream: BinaryIO) -> Iterator[Record | UnreadablePart | Mark]:
    data = read_whole(stream)
    if data is None:
        yield UnreadablePart(line=0, why="a JSON array of this size can't be read. Export JSON lines")
        return
    try:
        inner = msgspec.json.decode(data, type=dict[str, msgspec.Raw])["data"] if data[:1] == b"{" else data
        found = _records(inner)
    except (msgspec.MsgspecError, UnicodeError, RecursionError, KeyError):
        yield UnreadablePart(line=0, why="not valid JSON")
        return
    for record in found:
        yield Record(0, record)


# --- Values of records, which may be anything ---


def text_of(value: Json) -> str | None:
    """A text from a record; None for any other value."""
    return name(value) if isinstance(value, str) else None


def object_of(value: Json) -> JsonObject:
    """An object of a record, also from a JSON text; empty for any other value."""
    if isinstance(value, str) and value[:1] == "{":
        try:
            value = msgspec.json.decode(value)
        except (msgspec.MsgspecError, RecursionError):
            return {}
    return value if isinstance(value, dict) else {}


def count_of(*values: Json) -> int:
    """The first count above zero, or 0. A count may be a text, as in CSV."""
    for value in values:
        if isinstance(value, str):
            try:
                value = float(value)
            except ValueError:
                continue
        if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < 2**53:
            return int(value)
    return 0


def amount_of(value: Json) -> float | str | None:
    """An amount of money from a file; None for any other value."""
    return value if isinstance(value, str | float | int) else None


def moment_of(value: Json) -> int | None:
    """A time in microseconds, from the formats of PostgreSQL, Prisma or Python; None for any other value."""
    if not isinstance(value, str):
        return None
    text = value.strip().replace(" ", "T", 1)
    if text[-3:-2] == "+" or text[-3:-2] == "-":
        text += ":00"  # psql writes +00
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return None
    return to_us(found if found.tzinfo is not None else found.replace(tzinfo=UTC))


def tokens(
    *, total_input: int, output: int, read: int = 0, written: int = 0, hour: int = 0, reasoning: int | None = None
) -> TokenUsage:
    """The usage for an input count that includes cache reads and cache writes.

    If these exceed the input, the input is taken to exclude them.
    """
    fresh = total_input - read - written
    if fresh < 0:
        fresh = total_input
    source = UsageSource.REPORTED if (reasoning or 0) <= output and hour <= written else UsageSource.INCONSISTENT
    return TokenUsage(
        input_tokens=fresh,
        output_tokens=output,
        cached_input_tokens=read,
        cache_creation_input_tokens=written,
        cache_creation_1h_input_tokens=min(hour, written),
        reasoning_tokens=None if reasoning is None else min(reasoning, output),
        source=source,
    )


STOP_REASONS: Final[Mapping[str, StopReason]] = {
    "stop": StopReason.END_TURN,
    "end_turn": StopReason.END_TURN,
    "length": StopReason.MAX_TOKENS,
    "max_tokens": StopReason.MAX_TOKENS,
    "tool_calls": StopReason.TOOL_USE,
    "tool-calls": StopReason.TOOL_USE,
    "tool_use": StopReason.TOOL_USE,
    "content_filter": StopReason.CONTENT_FILTER,
    "content-filter": StopReason.CONTENT_FILTER,
}
"""The stop reasons of gateways and tracers."""


def stop_reason(word: Json) -> StopReason | None:
    """Callboard's stop reason for a word; None for an unknown word."""
    return STOP_REASONS.get(word.lower()) if isinstance(word, str) else None


# --- Vendors ---

_VENDORS: Final[Mapping[str, str]] = {
    "google": "gemini",
    "gcp.gemini": "gemini",
    "gcp.gen_ai": "gemini",
    "gcp.vertex_ai": "gemini",
    "google-vertex": "gemini",
    "vertex_ai": "gemini",
    "vertexai": "gemini",
    "az.ai.openai": "azure",
    "az.ai.inference": "azure",
    "azure.ai.openai": "azure",
    "azure.ai.inference": "azure",
    "azure_ai": "azure",
    "aws.bedrock": "aws",
    "bedrock": "aws",
    "bedrock_converse": "aws",
    "amazon-bedrock": "aws",
    "mistral_ai": "mistral",
    "mistralai": "mistral",
    "x_ai": "xai",
    "x-ai": "xai",
    "fireworks_ai": "fireworks",
    "together_ai": "together",
    "togetherai": "together",
    "moonshotai": "moonshot",
    "text-completion-openai": "openai",
}
"""The vendor names in price tables for the names in other programs."""

_FAMILIES: Final = (
    ("claude", "anthropic"),
    ("gemini", "gemini"),
    ("gpt", "openai"),
    ("chatgpt", "openai"),
    ("o1", "openai"),
    ("o3", "openai"),
    ("o4", "openai"),
    ("codex", "openai"),
    ("text-embedding", "openai"),
    ("grok", "xai"),
    ("mistral", "mistral"),
    ("codestral", "mistral"),
    ("deepseek", "deepseek"),
    ("command", "cohere"),
    ("sonar", "perplexity"),
    ("glm", "zai"),
    ("kimi", "moonshot"),
)


def vendor_and_model(vendor: str | None, model: str | None) -> tuple[str, str]:
    """The provider and the model, by their names in price tables.

    A model's name may begin with the vendor, as in ``anthropic/claude-opus-4-6``. Without a vendor, the vendor of
    a well-known model family is used. Anything else is ``unknown``, and has no price.
    """
    model = model or "unknown"
    if vendor is None and "/" in model:
        vendor, _, model = model.partition("/")
    elif vendor is not None and model.startswith(f"{vendor}/"):
        model = model.removeprefix(f"{vendor}/")
    if vendor is None:
        vendor = next((maker for start, maker in _FAMILIES if model.startswith(start)), "unknown")
    vendor = vendor.lower()
    return _VENDORS.get(vendor, vendor), model
