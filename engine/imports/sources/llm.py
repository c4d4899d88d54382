"""The logs of simonw/llm: ``logs.db``, with a row for each response and details of its tokens as JSON."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from callboard.bus.values.usage import TokenUsage
from callboard.tracestore.foreign_rows import foreign_rows

from ..source import START, ImportedCall, ImportedMessage, Item, Mark, SourceFile, UnreadablePart, name
from .records import count_of, message_of, moment_of, object_of, tokens, vendor_and_model

_WANTED = (
    *("id", "model", "resolved_model", "conversation_id", "duration_ms", "datetime_utc", "input_tokens"),
    *("output_tokens", "token_details"),
)

_CONTENT = ("prompt", "response")


class Llm:
    """The source for the database of simonw/llm."""

    name = "llm"

    def places(self) -> Sequence[Path]:
        user_path = os.environ.get("LLM_USER_PATH")
        default_folders = [
            Path.home() / ".config" / "io.datasette.llm",
            Path.home() / "Library" / "Application Support" / "io.datasette.llm",
        ]
        folders = [Path(user_path).expanduser()] if user_path else default_folders
        return [folder for folder in folders if (folder / "logs.db").exists()] or folders[:1]

    def files(self, place: Path) -> Iterable[SourceFile]:
        yield SourceFile(path=place if place.is_file() else place / "logs.db")

    def read(
        self, file: SourceFile, stream: BinaryIO, start: Mark = START, *, content: bool = False
    ) -> Iterator[Item]:
        columns = (*_WANTED, *_CONTENT) if content else _WANTED
        for row in foreign_rows(file.path, "responses", columns, ("datetime_utc", "id")):
            call = _call(row)
            if content and isinstance(call, ImportedCall):
                call = msgspec.structs.replace(call, session=call.session or call.identity)
                yield from _messages(call, row)
            yield call


def _call(row: Mapping[str, Any]) -> ImportedCall | UnreadablePart:
    if not row:
        return UnreadablePart(line=0, why="a row is too large")
    began = moment_of(row.get("datetime_utc"))
    if began is None or not row.get("id"):
        return UnreadablePart(line=0, why="the time or the id is missing or impossible")
    provider, model = vendor_and_model(None, name(str(row.get("resolved_model") or row.get("model") or "")))
    latency = row.get("duration_ms")
    session = row.get("conversation_id")
    return ImportedCall(
        identity=str(row["id"]),
        line=0,
        provider=provider,
        model=model,
        started_at=began,
        usage=_usage(row),
        latency_ms=latency if isinstance(latency, int) and latency >= 0 else None,
        session=None if session is None else name(str(session)),
    )


def _messages(call: ImportedCall, row: Mapping[str, Any]) -> Iterator[ImportedMessage]:
    for part, role in zip(_CONTENT, ("user", "assistant"), strict=True):
        message = message_of(row.get(part), role)
        if message is not None and call.session is not None:
            identity = f"{call.identity}/{part}"
            yield ImportedMessage(identity=identity, session=call.session, at=call.started_at, message=message)


def _usage(row: Mapping[str, Any]) -> TokenUsage | None:
    if row.get("input_tokens") is None and row.get("output_tokens") is None:
        return None
    details = object_of(row.get("token_details"))
    prompt = object_of(details.get("prompt_tokens_details")) or object_of(details.get("input_tokens_details"))
    completion = object_of(details.get("completion_tokens_details")) or object_of(
        details.get("output_tokens_details")
    )
    beside = count_of(details.get("thoughtsTokenCount"))  # Gemini's output count excludes thoughts.
    reasoning = count_of(completion.get("reasoning_tokens"), beside)
    fresh, output = count_of(row.get("input_tokens")), count_of(row.get("output_tokens"))
    read = count_of(details.get("cache_read_input_tokens"))
    written = count_of(details.get("cache_creation_input_tokens"))
    if read or written:  # Anthropic's input count excludes cache reads and writes.
        return TokenUsage(fresh, output, read, written, reasoning_tokens=reasoning or None)
    return tokens(
        total_input=fresh,
        output=output + beside,
        read=count_of(prompt.get("cached_tokens"), details.get("cachedContentTokenCount")),
        reasoning=reasoning or None,
    )
