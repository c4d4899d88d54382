"""OpenTelemetry spans, from the collector's OTLP/JSON files and from bodies of ``POST /v1/traces``.

A span is a model call if it has a model and token counts, and doesn't contain other calls. The names of its
attributes have changed several times, and OpenInference (Phoenix) has its own names. All of them are supported. By
convention, the input includes cache reads and cache writes. If these exceed the input, it excludes them.
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple, TypeAlias

import anyio
import anyio.to_thread
import msgspec

from callboard.bus import Clock
from callboard.bus.values.base import Json, JsonObject
from callboard.tracestore import Store

from ..importer import Importer
from ..source import START, ImportedCall, Item, Mark, SourceFile, UnreadablePart, nano_of, tags_of, why_not
from .records import (
    Record,
    amount_of,
    conversation,
    count_of,
    files_below,
    json_records,
    object_of,
    read_whole,
    stop_reason,
    text_of,
    tokens,
    vendor_and_model,
)

Attributes: TypeAlias = Mapping[str, Json]

_MODEL = ("gen_ai.response.model", "gen_ai.request.model", "llm.model_name", "ai.model.id", "embedding.model_name")
_VENDOR = ("gen_ai.provider.name", "gen_ai.system", "llm.provider", "llm.system", "ai.model.provider")
_INPUT = (
    *("gen_ai.usage.input_tokens", "gen_ai.usage.prompt_tokens", "llm.token_count.prompt"),
    *("llm.usage.prompt_tokens", "ai.usage.promptTokens"),
)
_OUTPUT = (
    *("gen_ai.usage.output_tokens", "gen_ai.usage.completion_tokens", "llm.token_count.completion"),
    *("llm.usage.completion_tokens", "ai.usage.completionTokens"),
)
_READ = (
    *("gen_ai.usage.cache_read.input_tokens", "gen_ai.usage.cache_read_input_tokens"),
    *("gen_ai.usage.input_tokens.cached", "gen_ai.usage.cached_tokens"),
    *("llm.token_count.prompt_details.cache_read", "gen_ai.usage.details.cache_read_tokens"),
    "ai.usage.cachedInputTokens",
)
_WRITTEN = (
    *("gen_ai.usage.cache_write.input_tokens", "gen_ai.usage.cache_creation.input_tokens"),
    *("gen_ai.usage.cache_creation_input_tokens", "llm.token_count.prompt_details.cache_write"),
    "gen_ai.usage.details.cache_write_tokens",
)
_REASONING = (
    *("gen_ai.usage.reasoning.output_tokens", "gen_ai.usage.reasoning_tokens"),
    *("gen_ai.usage.output_tokens.reasoning", "llm.token_count.completion_details.reasoning"),
    *("gen_ai.usage.details.reasoning_tokens", "ai.usage.reasoningTokens"),
)
_COST = ("gen_ai.usage.cost.amount", "gen_ai.usage.cost", "llm.cost.total", "operation.cost")
_SESSION = ("gen_ai.conversation.id", "session.id", "langfuse.session.id", "thread.id")
_ASKED = (
    *("gen_ai.input.messages", "llm.input_messages", "gen_ai.prompt", "ai.prompt.messages", "ai.prompt"),
    "input.value",
)
_SAID = (
    *("gen_ai.output.messages", "llm.output_messages", "gen_ai.completion", "ai.response.text", "output.value"),
)
_AROUND: Final = frozenset(
    {
        *("invoke_agent", "create_agent", "execute_tool", "invoke_workflow", "plan", "retrieval"),
        *("agent", "tool", "chain"),
    }
)
"""Operations that contain model calls. Their counts are sums over those calls."""


class Otlp:
    """The source for files of OTLP/JSON, with one request or one span on each line."""

    name = "otlp"

    def places(self) -> Sequence[Path]:
        return []

    def files(self, place: Path) -> Iterable[SourceFile]:
        return files_below(place, (".json", ".jsonl", ".ndjson", ".pb", ".binpb"))

    def read(
        self, file: SourceFile, stream: BinaryIO, start: Mark = START, *, content: bool = False
    ) -> Iterator[Item]:
        if file.path.suffix in (".pb", ".binpb"):
            data = read_whole(stream)
            if data is None:
                yield UnreadablePart(line=0, why="the file is too large")
            else:
                yield from read_otlp(data, "application/x-protobuf", content=content)
            return
        for record in json_records(stream, start):
            if isinstance(record, Record):
                yield from _of_json(bytes(record.data), record.line, content=content)
            else:
                yield record


class SpanImports:
    """Imports the calls in spans that arrive at ``/v1/traces``."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._importer = Importer(store, "otlp", clock=clock)
        self._importing = anyio.Lock()

    async def take(self, body: bytes, kind: str, tags: Mapping[str, str]) -> bytes:
        """Import the calls of one request, with these tags. Returns the body of its answer. Raises ValueError.

        The body is an ``ExportTraceServiceRequest``. Its content type is ``application/json`` or
        ``application/x-protobuf``.
        """
        found = await anyio.to_thread.run_sync(lambda: list(read_otlp(body, kind)))
        unread = [item for item in found if isinstance(item, UnreadablePart)]
        if unread and len(unread) == len(found):
            raise ValueError(unread[0].why)
        tagged = (
            msgspec.structs.replace(item, tags={**item.tags, **tags}) if isinstance(item, ImportedCall) else item
            for item in found
        )
        async with self._importing:
            await self._importer.take(tagged, "POST /v1/traces")
        if kind.partition(";")[0].strip() != "application/json":
            return b""  # an empty message of Protobuf
        partial = {"rejectedSpans": str(len(unread)), "errorMessage": unread[0].why} if unread else None
        return msgspec.json.encode({} if partial is None else {"partialSuccess": partial})


def read_otlp(body: bytes, content_type: str, *, content: bool = False) -> Iterator[Item]:
    """The calls in the body of a request to ``/v1/traces``, and their messages if `content` is set."""
    if content_type.partition(";")[0].strip() == "application/json":
        yield from _of_json(body, 0, content=content)
        return
    try:
        spans = list(_spans_of_protobuf(body))
    except (ValueError, IndexError, struct.error):
        yield UnreadablePart(line=0, why="not valid Protobuf")
        return
    yield from _calls(spans, 0, content=content)


# --- Spans ---


class Span(NamedTuple):
    trace_id: str
    span_id: str
    started_ns: int
    ended_ns: int
    failed: bool
    attributes: Attributes
    resource: Attributes


def _calls(spans: Iterable[Span], line: int, *, content: bool) -> Iterator[Item]:
    for span in spans:
        found = _call(span, line)
        if found is None:
            continue
        if content and isinstance(found, ImportedCall):
            found = msgspec.structs.replace(found, session=found.session or found.turn or found.identity)
            yield from conversation(found, _content_of(span, _ASKED), _content_of(span, _SAID))
        yield found


def _content_of(span: Span, names: Sequence[str]) -> Json:
    """The messages in attributes: one value, or parts with numbered names."""
    named = span.attributes
    content = next((named[each] for each in names if each in named), None)
    if content is not None:
        return content
    found: dict[int, JsonObject] = {}
    for key, value in named.items():
        start = next((each for each in names if key.startswith(f"{each}.")), None)
        number, _, field = key[len(start or "") + 1 :].removesuffix(".message").partition(".")
        if start is not None and number.isdecimal():
            found.setdefault(int(number), {})[field.removeprefix("message.")] = value
    return [found[number] for number in sorted(found)] or None


def _call(span: Span, line: int) -> ImportedCall | UnreadablePart | None:
    named = span.attributes
    model, vendor, session = (
        next((text for each in names if (text := text_of(named.get(each)))), None)
        for names in (_MODEL, _VENDOR, _SESSION)
    )
    kind = named.get("gen_ai.operation.name") or named.get("openinference.span.kind")
    counted = any(each in named for each in (*_INPUT, *_OUTPUT))
    if model is None or (isinstance(kind, str) and kind.lower() in _AROUND) or not (counted or span.failed):
        return None
    if not span.span_id or not span.started_ns:
        return UnreadablePart(line=line, why="the time or the id of a span is missing")

    def count(names: Sequence[str]) -> int:
        return count_of(*(named.get(each) for each in names))

    provider, model = vendor_and_model(vendor, model)
    reasoning = count(_REASONING)
    reasons = named.get("gen_ai.response.finish_reasons")
    latency = (span.ended_ns - span.started_ns) // 1_000_000
    first = named.get("gen_ai.response.time_to_first_chunk")
    cost = next((amount for each in _COST if (amount := amount_of(named.get(each)))), None)
    return ImportedCall(
        identity=f"{span.trace_id}/{span.span_id}",
        line=line,
        provider=provider,
        model=model,
        started_at=span.started_ns // 1000,
        usage=tokens(
            total_input=count(_INPUT),
            output=max(count(_OUTPUT), reasoning),
            read=count(_READ),
            written=count(_WRITTEN),
            reasoning=reasoning or None,
        )
        if counted
        else None,
        stop_reason=stop_reason(reasons[0]) if isinstance(reasons, list) and reasons else None,
        error_class="other" if span.failed else None,
        error_type=text_of(named.get("error.type")) if span.failed else None,
        latency_ms=latency if latency >= 0 else None,
        first_token_ms=int(first * 1000) if isinstance(first, int | float) and 0 <= first < 1e6 else None,
        stated_cost_nano_usd=nano_of(cost) or None,
        session=session,
        turn=span.trace_id or None,
        response_id=text_of(named.get("gen_ai.response.id")),
        tags=tags_of(
            service=text_of(span.resource.get("service.name")),
            environment=text_of(span.resource.get("deployment.environment.name")),
            user=text_of(named.get("user.id")) or text_of(named.get("enduser.id")),
        ),
    )


# --- JSON ---

_decode = msgspec.json.Decoder(Json).decode


def _of_json(data: bytes, line: int, *, content: bool) -> Iterator[Item]:
    try:
        value = _decode(data)
        spans = list(_spans_of_json(value))
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        yield UnreadablePart(line=line, why=why_not(error))
        return
    except (ValueError, TypeError, AttributeError):
        yield UnreadablePart(line=line, why="unexpected form")
        return
    yield from _calls(spans, line, content=content)


def _spans_of_json(value: Json) -> Iterator[Span]:
    request = object_of(value)
    for group in _list(request, "resourceSpans", "resource_spans"):
        resource = _attributes(_list(object_of(object_of(group).get("resource")), "attributes"))
        for scope in _list(object_of(group), "scopeSpans", "scope_spans", "instrumentationLibrarySpans"):
            for span in _list(object_of(scope), "spans"):
                yield _span_of_json(object_of(span), resource)
    if "attributes" in request and ("spanId" in request or "span_id" in request or "context" in request):
        yield _span_of_json(request, {})


def _span_of_json(span: JsonObject, resource: Attributes) -> Span:
    context = object_of(span.get("context"))
    attributes_json = span.get("attributes")
    attributes = attributes_json if isinstance(attributes_json, dict) else _attributes(_list(span, "attributes"))
    code = object_of(span.get("status")).get("code")
    return Span(
        trace_id=str(span.get("traceId") or span.get("trace_id") or context.get("trace_id") or ""),
        span_id=str(span.get("spanId") or span.get("span_id") or context.get("span_id") or ""),
        started_ns=_nanoseconds(span.get("startTimeUnixNano") or span.get("start_time_unix_nano")),
        ended_ns=_nanoseconds(span.get("endTimeUnixNano") or span.get("end_time_unix_nano")),
        failed=code in (2, "STATUS_CODE_ERROR", "ERROR"),
        attributes=attributes,
        resource=resource,
    )


def _nanoseconds(value: Json) -> int:
    """A time in nanoseconds, which is a string in JSON; 0 if it is missing."""
    text = str(value)
    return int(text) if text.isdecimal() and len(text) < 20 else 0


def _list(value: JsonObject, *names: str) -> list[Json]:
    found = next((value[each] for each in names if each in value), [])
    return found if isinstance(found, list) else []


def _attributes(pairs: Iterable[Json]) -> dict[str, Json]:
    found = (object_of(pair) for pair in pairs)
    return {str(pair.get("key")): _value(object_of(pair.get("value"))) for pair in found}


def _value(value: JsonObject) -> Json:
    for kind, inner in value.items():
        if kind in ("intValue", "int_value"):
            return int(str(inner))
        if kind in ("arrayValue", "array_value"):
            return [_value(object_of(each)) for each in _list(object_of(inner), "values")]
        return inner
    return None


# --- Protobuf: the subset that spans need ---


def _fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """The fields of a Protobuf message: numbers as int, everything else as bytes. Raises ValueError."""
    place, end = 0, len(data)
    while place < end:
        tag, place = _varint(data, place)
        kind = tag & 7
        if kind == 0:
            number, place = _varint(data, place)
            yield tag >> 3, number
            continue
        size = 8 if kind == 1 else 4
        if kind == 2:
            size, place = _varint(data, place)
        elif kind not in (1, 5):
            raise ValueError("an unknown kind of field")
        if place + size > end:
            raise ValueError("a field beyond the end")
        yield tag >> 3, data[place : place + size]
        place += size


def _varint(data: bytes, place: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        byte = data[place]
        place += 1
        number |= (byte & 127) << shift
        if byte < 128:
            return number, place
        shift += 7
        if shift > 63:
            raise ValueError("a number beyond 64 bits")


def _messages(data: bytes, number: int) -> Iterator[bytes]:
    return (value for each, value in _fields(data) if each == number and isinstance(value, bytes))


def _spans_of_protobuf(body: bytes) -> Iterator[Span]:
    for group in _messages(body, 1):
        resource: dict[str, Json] = {}
        for named in _messages(group, 1):
            resource |= dict(map(_pair, _messages(named, 1)))
        for scope in _messages(group, 2):
            for span in _messages(scope, 2):
                yield _span_of_protobuf(span, resource)


def _span_of_protobuf(data: bytes, resource: Attributes) -> Span:
    ids: dict[int, str] = {}
    times: dict[int, int] = {}
    attributes: dict[str, Json] = {}
    failed = False
    for number, value in _fields(data):
        if not isinstance(value, bytes):
            continue
        if number in (1, 2):
            ids[number] = value.hex()
        elif number in (7, 8):
            times[number] = struct.unpack("<Q", value)[0]
        elif number == 9:
            key, inner = _pair(value)
            attributes[key] = inner
        elif number == 15:
            failed = any(each == 3 and code == 2 for each, code in _fields(value))
    return Span(ids.get(1, ""), ids.get(2, ""), times.get(7, 0), times.get(8, 0), failed, attributes, resource)


def _pair(data: bytes) -> tuple[str, Json]:
    key, value = "", None
    for number, inner in _fields(data):
        if number == 1 and isinstance(inner, bytes):
            key = inner.decode("utf-8", "replace")
        elif number == 2 and isinstance(inner, bytes):
            value = _any(inner)
    return key, value


def _any(data: bytes) -> Json:
    for number, value in _fields(data):
        match number:
            case 1 if isinstance(value, bytes):
                return value.decode("utf-8", "replace")
            case 2:
                return bool(value)
            case 3 if isinstance(value, int):
                return value - (1 << 64) if value >> 63 else value
            case 4 if isinstance(value, bytes):
                return float(struct.unpack("<d", value)[0])
            case 5 if isinstance(value, bytes):
                return [_any(each) for each in _messages(value, 1)]
            case 7 if isinstance(value, bytes):
                return base64.b64encode(value).decode()
            case _:
                pass
    return None
