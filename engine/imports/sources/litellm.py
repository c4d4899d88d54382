"""LiteLLM's spend logs: the table ``LiteLLM_SpendLogs`` on a server, or exports of it as CSV, JSON or JSON lines.

The prompt's tokens include cache reads and cache writes. In versions since 2025, the metadata has the provider's
whole usage. A spend of zero means an unknown cost, not a free call. A hit in LiteLLM's own cache has no tokens at
the provider. The prompt tokens of a failed request are LiteLLM's own estimate, unless it had a spend.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO, Final

import msgspec

from callboard.bus.values.base import Json, JsonObject
from callboard.bus.values.usage import TokenUsage, details_of, tier_in, unusual_tier
from callboard.tracestore.postgres.connection import server_rows

from ..source import (
    LONGEST_LINE,
    START,
    ImportedCall,
    Item,
    Mark,
    SourceFile,
    UnreadablePart,
    lines,
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
    moment_of,
    object_of,
    text_of,
    tokens,
    vendor_and_model,
)

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
    """The source for LiteLLM's spend logs."""

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
                yield from items_of(row.fields, row.line, content=content)
            else:
                yield row

    def read_server(self, dsn: str, start: Mark = START, *, content: bool = False) -> Iterator[Item]:
        last, count = start.state, start.line
        columns = (*_COLUMNS, *_CONTENT) if content else _COLUMNS
        for row in server_rows(dsn, "LiteLLM_SpendLogs", columns, _ORDER, after=last, overlap=_OVERLAP):
            yield from items_of(row, 0, content=content)
            last, count = row[_ORDER] or last, count + 1
            if not count % _ROWS_BETWEEN_MARKS:
                yield Mark(line=count, state=last)
        yield Mark(line=count, state=last)


_COLUMNS = (
    *("request_id", "model", "model_group", "custom_llm_provider", "startTime", "endTime", "completionStartTime"),
    *("prompt_tokens", "completion_tokens", "spend", "cache_hit", "status", "session_id", "end_user", "user"),
    *("team_id", "metadata", "call_type"),
)
_CONTENT = ("messages", "response", "proxy_server_request")
_ORDER = "endTime"
_OVERLAP = "1 hour"
"""The time span before the last position that is read again, because LiteLLM writes rows in batches some minutes
after a request.
"""
_ROWS_BETWEEN_MARKS = 1000


def _csv(stream: BinaryIO, *, content: bool) -> Iterator[Item]:
    """The rows of a CSV file with a heading."""
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
        yield from items_of(dict(row), rows.line_num, content=content)
    yield from too_long


def items_of(row: Mapping[str, Json], line: int, *, content: bool) -> Iterator[Item]:
    """Convert a row of the table to a call, and to messages if LiteLLM stored them."""
    if row.get("call_type") in _TOOLS and not nano_of(amount_of(row.get("spend"))):
        return
    call = _call(row, line)
    if not content or isinstance(call, UnreadablePart):
        yield call
        return
    session = call.session or call.identity
    yield msgspec.structs.replace(call, session=session)
    sent = _stored(row.get("messages")) or object_of(row.get("proxy_server_request")).get("messages")
    yield from conversation(session, call.started_at, sent, _stored(row.get("response")))


_TOOLS: Final = ("call_mcp_tool", "list_mcp_tools")
"""The call types of requests to MCP servers, which no model answered."""


def _stored(value: Json) -> Json:
    """The value of a column with content. LiteLLM writes an empty object if it stores no content."""
    return None if value in ("", "{}", "[]", {}, []) else value


def _call(row: Mapping[str, Json], line: int) -> ImportedCall | UnreadablePart:
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
        usage=None if failed and not stated else _usage(row, metadata),
        error_class=_ERRORS.get(error or "", "other") if failed else None,
        error_type=error if failed else None,
        latency_ms=None if ended is None or ended < began else (ended - began) // 1000,
        first_token_ms=None if first is None or first < began or first == ended else (first - began) // 1000,
        stated_cost_nano_usd=stated,
        session=text_of(row.get("session_id")),
        request_id=mine,
        tags=tags_of(
            user=text_of(row.get("end_user")) or text_of(row.get("user")),
            team=text_of(metadata.get("user_api_key_team_alias")) or text_of(row.get("team_id")),
            key=text_of(metadata.get("user_api_key_alias")),
        ),
    )


def _usage(row: Mapping[str, Json], metadata: JsonObject) -> TokenUsage:
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
