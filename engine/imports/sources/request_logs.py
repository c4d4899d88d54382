"""Logs of gateways and tools with a row for each request: LiteLLM, Langfuse, and simonw/llm.

* LiteLLM's spend logs are the table ``LiteLLM_SpendLogs`` on a server, or exports of it as CSV, JSON or JSON
  lines. The prompt's tokens include cache reads and cache writes. In versions since 2025, the metadata has the
  provider's whole usage. A spend of zero means an unknown cost, not a free call. A hit in LiteLLM's own cache has
  no tokens at the provider. The prompt tokens of a failed request are LiteLLM's estimate, unless it had a spend.
* Langfuse's observations come from exports or the API: JSON lines, an array, or ``{"data": […]}``. A usage has one
  of three forms. The newest, ``usageDetails``, has named disjoint counts. The older ``usage`` and ``promptTokens``
  have input and output only. Names are in camel or snake case. Langfuse's costs are stored as stated costs.
* The logs of simonw/llm are ``logs.db``, with a row for each response and details of its tokens as JSON.
"""

from __future__ import annotations

import csv
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Final

import msgspec

from callboard.bus.values.base import Json, JsonObject
from callboard.bus.values.usage import TokenUsage, details_of, tier_in, unusual_tier
from callboard.tracestore.foreign_rows import foreign_rows
from callboard.tracestore.postgres.connection import server_rows

from ..source import (
    LONGEST_LINE,
    START,
    ImportedCall,
    ImportedMessage,
    Item,
    Mark,
    SourceFile,
    UnreadablePart,
    lines,
    name,
    nano_of,
    tags_of,
)
from .records import (
    JsonRow,
    amount_of,
    conversation,
    count_of,
    files_below,
    json_rows,
    message_of,
    milliseconds,
    moment_of,
    object_of,
    text_of,
    tokens,
    vendor_and_model,
)

# --- LiteLLM ---

_ERRORS = {
    "AuthenticationError": "auth",
    "PermissionDeniedError": "auth",
    "BadRequestError": "invalid_request",
    "NotFoundError": "invalid_request",
    "ProxyModelNotFoundError": "invalid_request",
    "ContentPolicyViolationError": "invalid_request",
    "ContextWindowExceededError": "context_overflow",
    "RateLimitError": "rate_limit",
    "InternalServerError": "server_error",
    "ServiceUnavailableError": "server_error",
    "Timeout": "network",
    "APIConnectionError": "network",
}
"""Callboard's error classes for LiteLLM's exceptions."""


class LiteLlm:
    name = "litellm"

    def places(self) -> Sequence[Path]:
        return []

    def files(self, place: Path) -> Iterable[SourceFile]:
        return files_below(place, (".csv", ".json", ".jsonl", ".ndjson"))

    def read(
        self, file: SourceFile, stream: BinaryIO, start: Mark = START, *, content: bool = False
    ) -> Iterator[Item]:
        if file.path.suffix == ".csv":
            yield from _csv(stream, content=content)
            return
        for row in json_rows(stream, start):
            if isinstance(row, JsonRow):
                yield from _spend_items(row.fields, row.line, content=content)
            else:
                yield row

    def read_server(self, dsn: str, start: Mark = START, *, content: bool = False) -> Iterator[Item]:
        last, count = start.state, start.line
        columns = (*_SPEND_COLUMNS, *_SPEND_CONTENT) if content else _SPEND_COLUMNS
        for row in server_rows(dsn, "LiteLLM_SpendLogs", columns, _ORDER, after=last, overlap=_OVERLAP):
            yield from _spend_items(row, 0, content=content)
            last, count = row[_ORDER] or last, count + 1
            if not count % _ROWS_BETWEEN_MARKS:
                yield Mark(line=count, state=last)
        yield Mark(line=count, state=last)


_SPEND_COLUMNS = (
    *("request_id", "model", "model_group", "custom_llm_provider", "startTime", "endTime", "completionStartTime"),
    *("prompt_tokens", "completion_tokens", "spend", "cache_hit", "status", "session_id", "end_user", "user"),
    *("team_id", "metadata", "call_type"),
)
_SPEND_CONTENT = ("messages", "response", "proxy_server_request")
_ORDER = "endTime"
_OVERLAP = "1 hour"
"""The time span before the last position that is read again, because LiteLLM writes rows in batches some minutes
after a request.
"""
_ROWS_BETWEEN_MARKS = 1000


def _csv(stream: BinaryIO, *, content: bool) -> Iterator[Item]:
    csv.field_size_limit(LONGEST_LINE)
    too_long: list[UnreadablePart] = []

    def texts() -> Iterator[str]:
        for line in lines(stream):
            if line.too_long:
                too_long.append(UnreadablePart(line=line.number, why="the line is too long"))
            yield line.data.decode("utf-8-sig" if line.number == 1 else "utf-8", "replace")

    rows = csv.DictReader(texts(), restkey="")
    while True:
        try:
            row = next(rows)
        except StopIteration:
            break
        except csv.Error:
            yield UnreadablePart(line=rows.line_num, why="not valid CSV")
            continue
        yield from _spend_items(dict(row), rows.line_num, content=content)
    yield from too_long


def _spend_items(row: Mapping[str, Json], line: int, *, content: bool) -> Iterator[Item]:
    """Convert a row of the table to a call, and to messages if LiteLLM stored them."""
    if row.get("call_type") in _TOOLS and not nano_of(amount_of(row.get("spend"))):
        return
    call = _spend(row, line)
    if content and isinstance(call, ImportedCall):
        call = msgspec.structs.replace(call, session=call.session or call.identity)
    yield call
    if content and isinstance(call, ImportedCall):
        sent = _stored(row.get("messages")) or object_of(row.get("proxy_server_request")).get("messages")
        yield from conversation(call, sent, _stored(row.get("response")))


_TOOLS: Final = ("call_mcp_tool", "list_mcp_tools")
"""The call types of requests to MCP servers, which no model answered."""


def _stored(value: Json) -> Json:
    """The value of a column with content. LiteLLM writes an empty object if it stores no content."""
    return None if value in ("", "{}", "[]", {}, []) else value


def _spend(row: Mapping[str, Json], line: int) -> ImportedCall | UnreadablePart:
    """Convert a row of the table to a call. Its times are UTC."""
    mine = text_of(row.get("request_id"))
    began = moment_of(row.get("startTime"))
    if mine is None or began is None:
        return UnreadablePart(line=line, why="the time or the request_id is missing or impossible")
    ended, first = moment_of(row.get("endTime")), moment_of(row.get("completionStartTime"))
    metadata, stated = object_of(row.get("metadata")), nano_of(amount_of(row.get("spend"))) or None
    provider, model = vendor_and_model(
        text_of(row.get("custom_llm_provider")), text_of(row.get("model")) or text_of(row.get("model_group"))
    )
    failed = "failure" in (row.get("status"), metadata.get("status"))
    error = text_of(object_of(metadata.get("error_information")).get("error_class"))
    return ImportedCall(
        identity=mine,
        line=line,
        provider=provider,
        model=model,
        started_at=began,
        usage=None if failed and not stated else _spend_usage(row, metadata),
        error_class=_ERRORS.get(error or "", "other") if failed else None,
        error_type=error if failed else None,
        latency_ms=milliseconds(began, ended),
        first_token_ms=None if first == ended else milliseconds(began, first),
        stated_cost_nano_usd=stated,
        session=text_of(row.get("session_id")),
        request_id=mine,
        tags=tags_of(
            user=text_of(row.get("end_user")) or text_of(row.get("user")),
            team=text_of(metadata.get("user_api_key_team_alias")) or text_of(row.get("team_id")),
            key=text_of(metadata.get("user_api_key_alias")),
        ),
    )


def _spend_usage(row: Mapping[str, Json], metadata: JsonObject) -> TokenUsage:
    if row.get("cache_hit") in ("True", "true", True):
        return TokenUsage()
    usage_object = object_of(metadata.get("usage_object"))
    more = object_of(metadata.get("additional_usage_values"))
    prompt, completion = (
        object_of(usage_object.get("prompt_tokens_details")),
        object_of(usage_object.get("completion_tokens_details")),
    )
    written = object_of(usage_object.get("cache_creation")) or object_of(
        prompt.get("cache_creation_token_details")
    )
    read = count_of(
        usage_object.get("cache_read_input_tokens"),
        prompt.get("cached_tokens"),
        more.get("cache_read_input_tokens"),
    )
    reasoning = count_of(completion.get("reasoning_tokens"))
    tools = object_of(usage_object.get("server_tool_use"))
    usage = tokens(
        total_input=count_of(row.get("prompt_tokens"), usage_object.get("prompt_tokens")),
        output=count_of(row.get("completion_tokens"), usage_object.get("completion_tokens")),
        read=read,
        written=count_of(
            usage_object.get("cache_creation_input_tokens"),
            prompt.get("cache_write_tokens"),
            prompt.get("cache_creation_tokens"),
            more.get("cache_creation_input_tokens"),
        ),
        hour=count_of(written.get("ephemeral_1h_input_tokens")),
        reasoning=reasoning or None,
    )
    tier = object_of(metadata.get("cost_breakdown")).get("service_tier") or usage_object.get("service_tier")
    return msgspec.structs.replace(
        usage,
        details=details_of(web_search=count_of(tools.get("web_search_requests"))),
        service_tier=tier_in(
            "fast" if usage_object.get("speed") == "fast" else unusual_tier(text_of(tier)),
            usage_object.get("inference_geo"),
        ),
    )


# --- Langfuse ---

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
            found = _observation({_snake(key): value for key, value in row.fields.items()}, row.line)
            if found is None:
                continue
            if content and isinstance(found, ImportedCall):
                found = msgspec.structs.replace(found, session=found.session or found.turn or found.identity)
                yield found
                yield from conversation(found, row.fields.get("input"), row.fields.get("output"))
            else:
                yield found


def _observation(row: JsonObject, line: int) -> ImportedCall | UnreadablePart | None:
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
        usage=_observation_usage(row),
        error_class="other" if failed else None,
        latency_ms=milliseconds(began, ended),
        first_token_ms=milliseconds(began, first),
        stated_cost_nano_usd=nano_of(cost or amount_of(object_of(row.get("cost_details")).get("total"))) or None,
        session=text_of(row.get("session_id")),
        turn=text_of(row.get("trace_id")),
        tags=tags_of(
            user=text_of(row.get("user_id")),
            environment=text_of(row.get("environment")),
            project=text_of(row.get("project_id")),
        ),
    )


def _observation_usage(row: JsonObject) -> TokenUsage | None:
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


# --- llm ---

_LLM_COLUMNS = (
    *("id", "model", "resolved_model", "conversation_id", "duration_ms", "datetime_utc", "input_tokens"),
    *("output_tokens", "token_details"),
)

_LLM_CONTENT = ("prompt", "response")


class Llm:
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
        columns = (*_LLM_COLUMNS, *_LLM_CONTENT) if content else _LLM_COLUMNS
        for row in foreign_rows(file.path, "responses", columns, ("datetime_utc", "id")):
            call = _response(row)
            if content and isinstance(call, ImportedCall):
                call = msgspec.structs.replace(call, session=call.session or call.identity)
                yield from _response_messages(call, row)
            yield call


def _response(row: Mapping[str, Any]) -> ImportedCall | UnreadablePart:
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
        usage=_response_usage(row),
        latency_ms=latency if isinstance(latency, int) and latency >= 0 else None,
        session=None if session is None else name(str(session)),
    )


def _response_messages(call: ImportedCall, row: Mapping[str, Any]) -> Iterator[ImportedMessage]:
    for part, role in zip(_LLM_CONTENT, ("user", "assistant"), strict=True):
        message = message_of(row.get(part), role)
        if message is not None and call.session is not None:
            identity = f"{call.identity}/{part}"
            yield ImportedMessage(identity=identity, session=call.session, at=call.started_at, message=message)


def _response_usage(row: Mapping[str, Any]) -> TokenUsage | None:
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
