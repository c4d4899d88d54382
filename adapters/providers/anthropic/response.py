"""Content, stop reason and usage of a reply, whole or streamed.

A block has a start, optional deltas, and an end; a block of a whole reply has no deltas. `begin_block` and
`end_block` convert all content. Text, visible reasoning and tool calls open immediately. Any other block (server
tools, unknown kinds) is collected and added unchanged at its end, so that it can be sent back. A stream reports
its usage twice: the later figures replace the earlier ones field by field, except nulls.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Literal

import msgspec

from callboard.bus.errors import AdapterError, WarningCode
from callboard.bus.values.base import Json, JsonObject
from callboard.bus.values.usage import StopReason, TokenUsage, UsageSource, details_of, tier_in, unusual_tier

from ...http.errors import error_without_status, read_error_value
from ...replies.assembler import Assembler
from ...replies.block import parse_object
from ...replies.usage import reported_count, reported_detail, source_of
from ...requests.content import as_text
from .data import ERROR_CODES

# --- Fields of the API ---

VERSION = "2023-06-01"
PATH = "/v1/messages"

CONTAINER = "container"
"""The kind of Callboard's opaque block for the container of a reply's tools. The API has no such block."""

CITATION = "citation"
"""The kind of Callboard's event for a citation in a stream: the `citation`, and the index of its `block` in the
reply.
"""

FALLBACK = "fallback"
"""The type of the block at which one model declined and another continued."""

ABSENT = msgspec.Raw(b"null")
"""The value of a raw field that was not sent, equal to null."""


class Reply(msgspec.Struct, gc=False):
    """A whole message, the `message` of a `message_start`, or an error, which sets only `error`."""

    type: object = None
    id: object = None
    model: object = None
    content: list[Json] | None = None
    stop_reason: object = None
    stop_sequence: Json = None
    stop_details: Json = None
    container: Json = None
    context_management: Json = None
    input_transformations: Json = None
    diagnostics: Json = None
    usage: msgspec.Raw = ABSENT
    error: msgspec.Raw = ABSENT


class Delta(msgspec.Struct, gc=False):
    """The `delta` of a `content_block_delta` or a `message_delta`; `type` decides which fields are set."""

    type: str | None = None
    text: str | None = None
    thinking: str | None = None
    partial_json: str | None = None
    signature: str | None = None
    citation: Json = None
    stop_reason: object = None
    stop_sequence: Json = None
    stop_details: Json = None
    container: Json = None


class Event(msgspec.Struct, gc=False):
    type: str | None = None
    index: int | float | None = None
    delta: Delta | None = None
    content_block: msgspec.Raw = ABSENT
    message: msgspec.Raw = ABSENT
    usage: msgspec.Raw = ABSENT
    context_management: Json = None
    input_transformations: Json = None
    error: msgspec.Raw = ABSENT


class EventType(msgspec.Struct, gc=False):
    """The type and delta of an event that can't be decoded as `Event`."""

    type: object = None
    delta: Json = None


class BlockDelta(msgspec.Struct, gc=False):
    """An undecoded delta, for blocks that are kept unchanged."""

    delta: Json = None


decode_reply = msgspec.json.Decoder(Reply).decode
decode_event = msgspec.json.Decoder(Event).decode
decode_event_type = msgspec.json.Decoder(EventType).decode
decode_block_delta = msgspec.json.Decoder(BlockDelta).decode
decode_json = msgspec.json.Decoder(Json).decode


STOP_REASONS: Mapping[str, StopReason] = {
    "end_turn": StopReason.END_TURN,
    "max_tokens": StopReason.MAX_TOKENS,
    "stop_sequence": StopReason.STOP_SEQUENCE,
    "tool_use": StopReason.TOOL_USE,
    "pause_turn": StopReason.PAUSE_TURN,
    "refusal": StopReason.REFUSAL,
    "model_context_window_exceeded": StopReason.MAX_TOKENS,
    # words of Chat Completions that some proxies pass on
    "stop": StopReason.END_TURN,
    "length": StopReason.MAX_TOKENS,
    "tool_calls": StopReason.TOOL_USE,
    "content_filter": StopReason.CONTENT_FILTER,
}


@dataclass(slots=True)
class WireBlock:
    key: int
    kind: str
    block: JsonObject
    input_json: list[str] = field(default_factory=list)  # for a block that is kept unchanged

    @property
    def kept_whole(self) -> bool:
        """Whether the block is emitted only at its end."""
        return self.kind not in _STREAMED


_STREAMED = frozenset({"text", "thinking", "tool_use", "redacted_thinking"})


def wire_block(key: int, value: Json) -> WireBlock | None:
    kind = value.get("type") if isinstance(value, dict) else None
    if not isinstance(value, dict) or not isinstance(kind, str):
        return None
    return WireBlock(key, kind, value)


def begin_block(assembler: Assembler, state: WireBlock) -> None:
    key, block = state.key, state.block
    match block:
        case {"type": "text"}:
            assembler.text(key, _text(block.get("text")), implicit_end=True)
        case {"type": "thinking"}:
            assembler.thinking(key, _text(block.get("thinking")), implicit_end=True)
            add_signature(assembler, state, _text(block.get("signature")))
        case {"type": "tool_use"}:
            raw = {name: block[name] for name in ("id", "caller", "toolset_name") if block.get(name)}
            assembler.tool_start(key, _text(block.get("name")), raw=raw, implicit_end=True)
        case {"type": "redacted_thinking"}:
            assembler.redacted_thinking(key, _text(block.get("data")))
        case {"type": kind, "to": {"model": str(model)}} if kind == FALLBACK and model:
            assembler.model = model  # this model wrote the later content, so the reply and its usage have its name
        case _:
            pass


def add_signature(assembler: Assembler, state: WireBlock, signature: str) -> None:
    """Sign a reasoning block; an empty signature is ignored."""
    if not signature:
        return
    if assembler.is_closed(state.key):
        assembler.warn(
            WarningCode.LATE_SIGNATURE, "a signature arrived after the end of its reasoning and was dropped"
        )
    else:
        assembler.signature(state.key, signature)


def end_block(assembler: Assembler, state: WireBlock) -> None:
    """Close a block, with the data that only the block's end has."""
    key, block = state.key, state.block
    match state.kind:
        case "text":
            citations = block.get("citations")
            if citations:
                assembler.text(key, "", raw={"citations": citations})
        case "tool_use":
            _take_input(assembler, key, block.get("input"))
        case "thinking" | "redacted_thinking":
            pass
        case kind:
            text = "".join(state.input_json)
            if text.strip():  # for a call without arguments, the fragment is empty or missing
                parsed = parse_object(text)
                block["input"] = text if parsed is None else parsed
            assembler.whole(key, kind, block)
    assembler.end(key)


def _take_input(assembler: Assembler, key: int, arguments: Json) -> None:
    """Use the input of the block's start if no delta had any."""
    if not arguments or assembler.block_text(key).strip():
        return
    if isinstance(arguments, dict):
        assembler.tool_input(key, arguments)
    else:  # some servers send unparsed text; any other value is marked invalid
        assembler.tool_arguments(key, as_text(arguments))


def read_reply(body: bytes, assembler: Assembler) -> None:
    """Feed a whole reply and finish it; leave the assembler incomplete if the body is not a reply.

    Raises AdapterError for an error with HTTP 200, and msgspec's decoding errors.
    """
    reply = decode_reply(body)
    usage = whole_usage(reply.usage)
    if reply.error != ABSENT:
        raise error_in_reply(decode_json(body), assembler.provider)
    if reply.content is None and reply.stop_reason is None:
        return
    begin_message(assembler, reply)
    note_details(assembler, reply, reply)
    for position, value in enumerate(reply.content or ()):
        state = wire_block(position, value)
        if state is None:
            assembler.warn(WarningCode.UNKNOWN_CONTENT, f"content[{position}] is not a block and was left out")
        else:
            begin_block(assembler, state)
            end_block(assembler, state)
    keep_container(assembler, reply.container, reply.stop_reason)
    finish(assembler, reply.stop_reason, reply.stop_details, usage)


def begin_message(assembler: Assembler, reply: Reply) -> None:
    if isinstance(reply.id, str):
        assembler.response_id = reply.id
    if isinstance(reply.model, str) and reply.model:
        assembler.model = reply.model


def note_details(assembler: Assembler, message: Reply | Delta, around: Reply | Event) -> None:
    diagnostics = around.diagnostics if isinstance(around, Reply) else None
    if (
        message.stop_sequence is message.stop_details is message.container is None
        and around.context_management is around.input_transformations is diagnostics is None
    ):
        return  # the usual case
    details = {
        "stop_sequence": message.stop_sequence,
        "stop_details": message.stop_details,
        "container": message.container,
        "context_management": around.context_management,
        "input_transformations": around.input_transformations,
        "diagnostics": diagnostics,
    }
    for name, value in details.items():
        if value:
            assembler.details[name] = value
        elif value is not None:  # an empty list takes precedence over the start's value
            assembler.details.pop(name, None)


def warn_of_changes(assembler: Assembler) -> None:
    """Warn about parts of the request that the provider dropped or changed."""
    edits = assembler.details.get("context_management")
    applied = edits.get("applied_edits") if isinstance(edits, dict) else None
    for name, changes in (("edits", applied), ("transformations", assembler.details.get("input_transformations"))):
        if isinstance(changes, list) and changes:
            kinds = {str(change.get("type")) for change in changes if isinstance(change, dict)}
            message = f"{assembler.provider} applied {name} to the request: {', '.join(sorted(kinds))}"
            assembler.warn(WarningCode.PROVIDER_CHANGED_INPUT, message)


def keep_container(assembler: Assembler, container: Json, stop_reason: object) -> None:
    """Record the container of the tools of a reply that is to be continued."""
    if stop_reason in ("tool_use", "pause_turn") and isinstance(container, dict) and container.get("id"):
        assembler.whole(CONTAINER, CONTAINER, {**container, "type": CONTAINER})


def finish(assembler: Assembler, stop_reason: object, stop_details: Json, usage: TokenUsage | None) -> None:
    """End the reply. A missing or unknown stop reason is not treated as a regular end."""
    raw = stop_reason if isinstance(stop_reason, str) else None
    if raw is None:
        assembler.warn_no_stop_reason()
    reason = STOP_REASONS.get(raw or "", StopReason.PROVIDER_SPECIFIC)
    if reason is StopReason.REFUSAL and isinstance(stop_details, dict):
        values = (stop_details.get(name) for name in ("category", "explanation"))
        why = ": ".join(text for text in values if isinstance(text, str) and text)
        assembler.warn(WarningCode.REFUSAL, why or "the provider gave no reason")
    if assembler.details:
        warn_of_changes(assembler)
    assembler.finish(reason, raw, usage)


def error_in_reply(value: Json, provider: str) -> AdapterError:
    return error_without_status(read_error_value(value), ERROR_CODES, provider)


# --- Usage ---


def read_usage(raw: msgspec.Raw) -> JsonObject:
    """The fields of a usage object without nulls; empty if there is none."""
    value = decode_json(raw)
    return {name: count for name, count in value.items() if count is not None} if isinstance(value, dict) else {}


def later_usage(before: JsonObject, after: JsonObject) -> JsonObject:
    """Merge the usage of a `message_delta` into the usage at the stream's start. Later counts replace earlier
    ones.

    A zero does not replace a count, because several servers send zeros for fields that they don't count. There is
    one exception: if the final usage counts the prompt again, its zeros for the prompt are valid.
    """
    counted_again = any(after.get(name) and after[name] != before.get(name) for name in _PROMPT_COUNTS)
    merged = dict(before)
    for name, value in after.items():
        former = before.get(name)
        if isinstance(value, dict) and isinstance(former, dict):
            merged[name] = {
                **former,
                **{key: count for key, count in value.items() if count or not former.get(key)},
            }
        elif value != 0 or not former or (counted_again and name in _PROMPT_COUNTS):
            merged[name] = value
    return merged


_PROMPT_COUNTS = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")


_Count = Annotated[int, msgspec.Meta(ge=0)]


class _PlainWrites(msgspec.Struct, gc=False, frozen=True, forbid_unknown_fields=True):
    ephemeral_5m_input_tokens: _Count = 0
    ephemeral_1h_input_tokens: _Count = 0


class _PlainUsage(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    """The usual counts of a reply without thinking."""

    input_tokens: _Count
    output_tokens: _Count
    cache_read_input_tokens: _Count = 0
    cache_creation_input_tokens: _Count = 0
    cache_creation: _PlainWrites = _PlainWrites()
    service_tier: Literal["standard"] = "standard"
    inference_geo: Literal["not_available", "global"] = "global"


_decode_plain_usage = msgspec.json.Decoder(_PlainUsage).decode


def token_usage(usage: JsonObject, *, final: bool = True) -> TokenUsage | None:
    return whole_usage(msgspec.Raw(msgspec.json.encode(usage)), final=final)


def whole_usage(raw: msgspec.Raw, *, final: bool = True) -> TokenUsage | None:
    """Counts from a usage object; None if it has none.

    The provider's input count excludes cache reads and writes, and its output count includes reasoning. A missing
    cache count is zero. Missing input or output makes the figures partial, as does a usage that is not `final`.
    Usage of compactions is added. Usage of other models (an advisor, or a model that declined) is only in `raw`
    and makes the figures partial.
    """
    return _plain_usage(raw, final=final) or _any_usage(raw, final=final)


def _plain_usage(raw: msgspec.Raw, *, final: bool) -> TokenUsage | None:
    """The counts of a consistent `_PlainUsage`, as `_any_usage` returns them; None if the usage is not
    consistent.
    """
    try:
        plain = _decode_plain_usage(raw)
    except msgspec.ValidationError:
        return None
    written = plain.cache_creation_input_tokens
    if plain.cache_creation.ephemeral_1h_input_tokens or plain.cache_creation.ephemeral_5m_input_tokens > written:
        return None
    return TokenUsage(
        plain.input_tokens,
        plain.output_tokens,
        plain.cache_read_input_tokens,
        written,
        source=UsageSource.REPORTED if final else UsageSource.PARTIAL,
        raw=raw.copy(),
    )


def _any_usage(raw: msgspec.Raw, *, final: bool) -> TokenUsage | None:
    usage = read_usage(raw)
    found = usage.get("iterations")
    iterations = [entry for entry in found if isinstance(entry, dict)] if isinstance(found, list) else []
    usage = _with_compactions(usage, iterations)
    fresh, output = reported_count(usage.get("input_tokens")), reported_count(usage.get("output_tokens"))
    read = reported_count(usage.get("cache_read_input_tokens"))
    split = _split(usage)
    written, written_1h = _cache_writes(usage, split)
    if fresh is None and output is None and read is None and written is None:
        return None
    details, tools = usage.get("output_tokens_details"), usage.get("server_tool_use")
    reasoning = reported_detail(details, "thinking_tokens")
    parts = ((reasoning, output), (sum(split or (0,)), written))
    is_complete = None not in (fresh, output) and not (iterations and _has_others(iterations))
    source = source_of(*parts, raw=raw, complete=is_complete)
    return TokenUsage(
        input_tokens=fresh or 0,
        output_tokens=output or 0,
        cached_input_tokens=read or 0,
        cache_creation_input_tokens=written or 0,
        cache_creation_1h_input_tokens=written_1h,
        reasoning_tokens=None if reasoning is None else min(reasoning, output or 0),
        source=UsageSource.PARTIAL if source is UsageSource.REPORTED and not final else source,
        raw=raw.copy(),
        details=details_of(web_search=reported_detail(tools, "web_search_requests")),
        service_tier=tier_in(
            "fast" if usage.get("speed") == "fast" else unusual_tier(usage.get("service_tier")),
            usage.get("inference_geo"),
        ),
    )


_COUNTS = ("input_tokens", "output_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")


def _with_compactions(usage: JsonObject, iterations: Sequence[JsonObject]) -> JsonObject:
    for entry in iterations:
        if entry.get("type") == "compaction":
            usage = {**usage, **_sum(usage, entry, _COUNTS)}
            lived, more = usage.get("cache_creation"), entry.get("cache_creation")
            if isinstance(more, dict):
                before = lived if isinstance(lived, dict) else {}
                usage["cache_creation"] = {**before, **_sum(before, more, tuple(more))}
    return usage


def _sum(counts: JsonObject, more: JsonObject, names: Sequence[str]) -> JsonObject:
    added = {name: reported_count(more.get(name)) for name in names}
    return {name: (reported_count(counts.get(name)) or 0) + count for name, count in added.items() if count}


def _has_others(iterations: Sequence[JsonObject]) -> bool:
    """Whether other models worked on the reply: an advisor, or models that declined first."""
    spoke = [entry.get("model") for entry in iterations if entry.get("type") == "fallback_message"]
    declined = [
        entry
        for entry in iterations
        if spoke and entry.get("model") not in (None, *spoke) and reported_count(entry.get("output_tokens"))
    ]  # a model that declined immediately costs nothing
    return bool(declined) or any(entry.get("type") == "advisor_message" for entry in iterations)


def _cache_writes(usage: JsonObject, split: tuple[int, int] | None) -> tuple[int | None, int]:
    """Return the tokens written to the cache, and how many of them were written for an hour. `split` is the result
    of `_split`.

    The final total of a stream has no split by lifetime, so the split at the start is used. Additional tokens were
    written for an hour only if all tokens at the start were.
    """
    total = reported_count(usage.get("cache_creation_input_tokens"))
    if split is None:
        return total, 0
    short, hour = split
    if total is None:
        return short + hour, hour
    return total, total if hour and not short else min(hour, total)


def _split(usage: JsonObject) -> tuple[int, int] | None:
    """Tokens written to the cache for 5 minutes and for an hour; None if not split."""
    split = usage.get("cache_creation")
    if not isinstance(split, dict):
        return None
    short = reported_count(split.get("ephemeral_5m_input_tokens")) or 0
    return short, reported_count(split.get("ephemeral_1h_input_tokens")) or 0


def _text(value: Json) -> str:
    return value if isinstance(value, str) else ""
