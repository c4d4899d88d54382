"""Langfuse's observations, from exports or the API: JSON lines, an array, or ``{"data": […]}``.

A usage has one of three forms. The newest, ``usageDetails``, has named disjoint counts. The older ``usage`` and
``promptTokens`` have input and output only. Names are in camel or snake case. Langfuse's costs are stored as
stated costs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

import msgspec

from callboard.bus.values.base import JsonObject
from callboard.bus.values.usage import TokenUsage

from ..source import START, ImportedCall, Item, Mark, SourceFile, UnreadablePart, nano_of, tags_of
from .records import (
    JsonRow,
    amount_of,
    conversation,
    count_of,
    files_below,
    json_rows,
    moment_of,
    object_of,
    text_of,
    vendor_and_model,
)

_READ = (
    "input_cached_tokens",
    "cache_read_input_tokens",
    "input_cache_read",
    "input_cached",
    "cached_input_tokens",
)
_WRITTEN = ("cache_creation_input_tokens", "input_cache_creation", "input_cache_write", "cache_write_input_tokens")
_WRITTEN_5M = ("input_cache_creation_5m", "cache_creation_5m_input_tokens")
_WRITTEN_1H = ("input_cache_creation_1h", "cache_creation_1h_input_tokens")
_REASONING = ("output_reasoning_tokens", "reasoning_tokens", "output_reasoning", "output_thinking")


class Langfuse:
    """The source for Langfuse's observations."""

    name = "langfuse"

    def places(self) -> Sequence[Path]:
        return []

    def files(self, place: Path) -> Iterable[SourceFile]:
        return files_below(place, (".json", ".jsonl", ".ndjson"))

    def read(
        self, file: SourceFile, stream: BinaryIO, start: Mark = START, *, content: bool = False
    ) -> Iterator[Item]:
        for row in json_rows(stream, start):
            if not isinstance(row, JsonRow):
                yield row
                continue
            found = _call({_snake(key): value for key, value in row.fields.items()}, row.line)
            if not content or not isinstance(found, ImportedCall):
                if found is not None:
                    yield found
                continue
            session = found.session or found.turn or found.identity
            yield msgspec.structs.replace(found, session=session)
            yield from conversation(session, found.started_at, row.fields.get("input"), row.fields.get("output"))


def _call(row: JsonObject, line: int) -> ImportedCall | UnreadablePart | None:
    kind = row.get("type")
    if kind not in ("GENERATION", "EMBEDDING", None) or (kind is None and "model" not in row):
        return None
    mine, began = text_of(row.get("id")), moment_of(row.get("start_time"))
    if mine is None or began is None:
        return UnreadablePart(line=line, why="the time or the id is missing or impossible")
    ended, first = moment_of(row.get("end_time")), moment_of(row.get("completion_start_time"))
    provider, model = vendor_and_model(
        None, text_of(row.get("provided_model_name")) or text_of(row.get("model")) or text_of(row.get("model_id"))
    )
    failed = row.get("level") == "ERROR"
    cost = amount_of(row.get("total_cost")) or amount_of(row.get("calculated_total_cost"))
    return ImportedCall(
        identity=mine,
        line=line,
        provider=provider,
        model=model,
        started_at=began,
        usage=_usage(row),
        error_class="other" if failed else None,
        latency_ms=None if ended is None or ended < began else (ended - began) // 1000,
        first_token_ms=None if first is None or first < began else (first - began) // 1000,
        stated_cost_nano_usd=nano_of(cost or amount_of(object_of(row.get("cost_details")).get("total"))) or None,
        session=text_of(row.get("session_id")),
        turn=text_of(row.get("trace_id")),
        tags=tags_of(
            user=text_of(row.get("user_id")),
            environment=text_of(row.get("environment")),
            project=text_of(row.get("project_id")),
        ),
    )


def _usage(row: JsonObject) -> TokenUsage | None:
    details = {_snake(key): value for key, value in object_of(row.get("usage_details")).items()}
    older = {_snake(key): value for key, value in object_of(row.get("usage")).items()}
    if not details:
        fresh = count_of(older.get("input"), older.get("prompt_tokens"), row.get("prompt_tokens"))
        output = count_of(older.get("output"), older.get("completion_tokens"), row.get("completion_tokens"))
        total = count_of(older.get("total"), older.get("total_tokens"), row.get("total_tokens"))
        if not fresh and not output and not total:
            return None
        return TokenUsage(fresh or max(0, total - output), output)

    def of(names: tuple[str, ...]) -> int:
        return count_of(*(details.get(each) for each in names))

    hour, reasoning = of(_WRITTEN_1H), of(_REASONING)
    output = of(("output", "output_tokens", "completion_tokens"))
    return TokenUsage(
        input_tokens=of(("input", "input_tokens", "prompt_tokens")),
        output_tokens=output + reasoning,
        cached_input_tokens=of(_READ),
        cache_creation_input_tokens=of(_WRITTEN) or of(_WRITTEN_5M) + hour,
        cache_creation_1h_input_tokens=hour,
        reasoning_tokens=reasoning or None,
    )


def _snake(key: str) -> str:
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in key)
