"""Writes replies of Anthropic's Messages API: whole, streamed and failed replies, models and token counts. Pure.

The reverse of the adapter's `response` and `stream`. As in Anthropic's streams, a block has an empty start,
deltas, and an end. Clients rely on this, for example for the arguments of the provider's tools.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime

import msgspec

from callboard.adapters import CanonicalResponse
from callboard.adapters.providers.anthropic.response import CITATION, CONTAINER, STOP_REASONS, token_usage
from callboard.adapters.requests.content import encode_json
from callboard.bus.streams.events import (
    MessageComplete,
    MessageStart,
    ProviderBlock,
    ProviderEvent,
    StreamEvent,
    TextDelta,
    ThinkingDelta,
    ToolUseEnd,
    ToolUseInputDelta,
    ToolUseStart,
)
from callboard.bus.values.base import Json, JsonObject
from callboard.bus.values.content import (
    ContentBlock,
    ImageBlock,
    OpaqueBlock,
    RedactedThinkingBlock,
    TextBlock,
    ThinkingBlock,
    ToolUseBlock,
)
from callboard.bus.values.usage import StopReason, TokenUsage

from .failures import WORDS, Failure, FailureKind
from .messages_content import (
    IMAGE_LEFT_OUT,
    PROTOCOL,
    client_signature,
    client_tool_id,
)
from .messages_requests import read_request
from .wire import STOP_WORDS, ClientRequest, ClientWire, ListedModel, ReplyInfo, ReplyWriter

# --- Content ---

_WITH_INPUT = ("tool_use", "server_tool_use", "mcp_tool_use")
_OWN_KINDS = frozenset({"server_tool_use", "mcp_tool_use", "container_upload", "compaction", "fallback"})
_CITATIONS = frozenset(
    {"char_location", "page_location", "content_block_location", "web_search_result_location"}
    | {"search_result_location"}
)


def _wire_block(kind: str, raw: Json) -> JsonObject | None:
    """A provider's block that a client of this wire can read; None for any other block."""
    if kind == "image":
        return {"type": "text", "text": IMAGE_LEFT_OUT}
    if kind == "redacted_thinking":
        data = raw.get("data") if isinstance(raw, dict) else raw
        return {"type": kind, "data": data} if isinstance(data, str) else None
    if not isinstance(raw, dict) or raw.get("type") != kind:
        return None
    return raw if kind in _OWN_KINDS or kind.endswith(("_tool_result", "mcp_tool_listing")) else None


def _citations(block: TextBlock) -> list[Json]:
    citations = block.provider_raw.data.get("citations") if block.provider_raw is not None else None
    if not isinstance(citations, list):
        return []
    return [one for one in citations if isinstance(one, dict) and one.get("type") in _CITATIONS]


def _content(response: CanonicalResponse, client_request: ClientRequest) -> Iterator[JsonObject]:
    for block in response.content:
        match block:
            case TextBlock():
                cited = _citations(block)
                yield {"type": "text", "text": block.text, **({"citations": cited} if cited else {})}
            case ThinkingBlock():
                signature = client_signature(block.signature, _provider_of(block, response.provider))
                yield {"type": "thinking", "thinking": block.text, "signature": signature}
            case RedactedThinkingBlock():
                yield {"type": "redacted_thinking", "data": block.data}
            case ToolUseBlock():
                yield {
                    "type": "tool_use",
                    "id": client_tool_id(block.id),
                    "name": client_request.tool_name(block.name),
                    "input": block.input,
                    **_call_fields(block),
                }
            case OpaqueBlock():
                written = _wire_block(block.kind, block.provider_raw.data)
                if written is not None:
                    yield written
            case ImageBlock():
                yield {"type": "text", "text": IMAGE_LEFT_OUT}
            case _:
                pass  # replies have no other blocks


def _provider_of(block: ThinkingBlock, provider: str) -> str:
    return provider if block.provider_raw is None else block.provider_raw.provider


def _call_fields(block: ToolUseBlock) -> JsonObject:
    data = {} if block.provider_raw is None else block.provider_raw.data
    return {name: data[name] for name in ("caller", "toolset_name") if isinstance(data.get(name), dict | str)}


# --- The end ---

_OWN_REASONS = frozenset(
    {"end_turn", "max_tokens", "stop_sequence", "tool_use", "pause_turn", "refusal", "compaction"}
    | {"model_context_window_exceeded"}
)
"""The vendor's stop reasons."""


def _stop_reason(response: CanonicalResponse) -> str:
    raw, reason = response.raw_stop_reason, response.stop_reason
    if raw in _OWN_REASONS and STOP_REASONS.get(raw, StopReason.PROVIDER_SPECIFIC) is reason:
        return raw
    calls = any(isinstance(block, ToolUseBlock) and not block.incomplete for block in response.content)
    if calls and reason in (StopReason.END_TURN, StopReason.PROVIDER_SPECIFIC):
        return "tool_use"  # some providers end a reply with tool calls with the reason `stop`
    return STOP_WORDS[reason].anthropic


def _ending(response: CanonicalResponse) -> JsonObject:
    """The fields for the end of a message, in a whole reply and in `message_delta`."""
    details = response.provider_details
    reason = _stop_reason(response)
    stop_sequence = details.get("stop_sequence")
    ending: JsonObject = {
        "stop_reason": reason,
        "stop_sequence": stop_sequence if reason == "stop_sequence" and isinstance(stop_sequence, str) else None,
    }
    stop_details = details.get("stop_details")
    ending["stop_details"] = stop_details if reason == "refusal" and isinstance(stop_details, dict) else None
    container = details.get("container") or next(
        (
            {name: value for name, value in block.provider_raw.data.items() if name != "type"}
            for block in response.content
            if isinstance(block, OpaqueBlock) and block.kind == CONTAINER
        ),
        None,
    )
    if isinstance(container, dict):
        ending["container"] = container
    return ending


_AROUND = ("context_management", "input_transformations")


def _around(response: CanonicalResponse) -> JsonObject:
    """Data besides the content. In a stream, it is in `message_delta`."""
    return {
        name: value for name in _AROUND if isinstance(value := response.provider_details.get(name), dict | list)
    }


# --- Usage ---


def _usage(usage: TokenUsage) -> JsonObject:
    """A usage object: the provider's own object if it has this API's form and the same counts, otherwise a new
    one.
    """
    raw_usage = _own_usage(usage)
    if raw_usage is not None and _bare(token_usage(raw_usage)) == _bare(usage):
        return raw_usage
    written, hour = usage.cache_creation_input_tokens, usage.cache_creation_1h_input_tokens
    tier = raw_usage.get("service_tier") if raw_usage is not None else None
    counts: JsonObject = {
        "input_tokens": usage.input_tokens,
        "cache_creation_input_tokens": written,
        "cache_read_input_tokens": usage.cached_input_tokens,
        "cache_creation": {"ephemeral_5m_input_tokens": written - hour, "ephemeral_1h_input_tokens": hour},
        "output_tokens": usage.output_tokens,
        "service_tier": tier if isinstance(tier, str) else _tier(usage.service_tier),
    }
    if usage.reasoning_tokens is not None:
        counts["output_tokens_details"] = {"thinking_tokens": usage.reasoning_tokens}
    searches = (usage.details or {}).get("web_search")
    if searches:
        counts["server_tool_use"] = {"web_search_requests": searches}
    return counts


def _bare(usage: TokenUsage | None) -> TokenUsage | None:
    return None if usage is None else msgspec.structs.replace(usage, raw=None)


def _own_usage(usage: TokenUsage) -> JsonObject | None:
    """The provider's usage object, if it has this API's form. OpenAI's usage object has different fields next to
    the counts.
    """
    if usage.raw is None:
        return None
    try:
        value = msgspec.json.decode(usage.raw)
    except msgspec.DecodeError:
        return None
    if not isinstance(value, dict) or "input_tokens" not in value or "output_tokens" not in value:
        return None
    return None if {"total_tokens", "input_tokens_details"} & value.keys() else value


def _tier(tier: str | None) -> str:
    return tier if tier in ("priority", "batch") else "standard"


# --- Streams ---


def _event(kind: str, fields: JsonObject) -> bytes:
    return b"event: " + kind.encode() + b"\ndata: " + encode_json({"type": kind, **fields}) + b"\n\n"


_PING = _event("ping", {})
_STOP = _event("message_stop", {})


class MessagesWriter(ReplyWriter):
    """Writes one streamed reply; see `ReplyWriter`."""

    def __init__(self, client_request: ClientRequest, info: ReplyInfo) -> None:
        self._info = info
        self._request = client_request
        self._provider = ""
        self._index = -1  # the index of the last block on the wire
        self._place = -1  # the open block's index in the reply
        self._kind: str | None = None  # the open block's kind; None if no block is open
        self._signed = False
        self._cited = False
        self._arguments = False

    def start(self) -> bytes:
        usage: JsonObject = {
            "input_tokens": self._info.input_tokens,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 0,
            "output_tokens": 1,
            "service_tier": "standard",
        }
        message = {
            **_message(self._info),
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": usage,
        }
        return _event("message_start", {"message": message})

    def write(self, event: StreamEvent) -> bytes:
        match event:
            case TextDelta(text=text, content_block_index=place):
                if self._kind == "text" and self._place == place:
                    return self._delta("text_delta", "text", text)
                started = self._begin(place, {"type": "text", "text": ""})
                return started + (self._delta("text_delta", "text", text) if text else b"")
            case ThinkingDelta():
                return self._thinking(event)
            case ToolUseStart(tool_use_id=call_id, tool_name=name, content_block_index=place):
                name = self._request.tool_name(name)
                self._arguments = False
                block: JsonObject = {"type": "tool_use", "id": client_tool_id(call_id), "name": name, "input": {}}
                return self._begin(place, block)
            case ToolUseInputDelta(partial_json=fragment):
                self._arguments = self._arguments or bool(fragment)
                return (
                    self._delta("input_json_delta", "partial_json", fragment) if self._kind == "tool_use" else b""
                )
            case ToolUseEnd(incomplete=True):
                # held back, because a client may run a call that has an end, even if the reply breaks off later
                return b""
            case ToolUseEnd(final_input=arguments):
                late = b""
                if arguments and not self._arguments and self._kind == "tool_use":
                    late = self._delta("input_json_delta", "partial_json", encode_json(arguments).decode())
                return late + self._end()
            case ProviderBlock(kind=kind, raw=raw, content_block_index=place):
                written = _wire_block(kind, raw)
                return b"" if written is None else self._write_block(place, written)
            case ProviderEvent(kind=kind, raw={"block": int(place), "citation": dict(citation)}) if (
                kind == CITATION
            ):
                return self._citation(place, citation)
            case MessageStart(provider=provider):
                self._provider = provider
                return b""
            case MessageComplete(final_content=content):
                return self._cite(content)  # the block of a failed reply must not get an end
            case _:
                return b""

    def finish(self, response: CanonicalResponse) -> bytes:
        delta = {"delta": _ending(response), "usage": _usage(response.usage), **_around(response)}
        return self._end() + _event("message_delta", delta) + _STOP

    def fail(self, failure: Failure) -> bytes:
        return _event("error", write_failure(failure)[1])

    def ping(self) -> bytes:
        return _PING

    # --- Blocks ---

    def _begin(self, place: int, block: JsonObject) -> bytes:
        ended = self._end()
        self._index += 1
        self._place, self._kind, self._signed, self._cited = place, str(block["type"]), False, False
        return ended + _event("content_block_start", {"index": self._index, "content_block": block})

    def _delta(self, kind: str, name: str, value: Json) -> bytes:
        return _event("content_block_delta", {"index": self._index, "delta": {"type": kind, name: value}})

    def _end(self) -> bytes:
        """End the open block. Thinking gets a signature if it has none."""
        if self._kind is None:
            return b""
        unsigned = self._kind == "thinking" and not self._signed
        signed = self._delta("signature_delta", "signature", client_signature(None, "")) if unsigned else b""
        self._kind = None
        return signed + _event("content_block_stop", {"index": self._index})

    def _thinking(self, event: ThinkingDelta) -> bytes:
        written = b""
        if self._kind != "thinking" or self._place != event.content_block_index or self._signed:
            block: JsonObject = {"type": "thinking", "thinking": "", "signature": ""}
            written = self._begin(event.content_block_index, block)
        if event.text:
            written += self._delta("thinking_delta", "thinking", event.text)
        if event.signature:
            self._signed = True
            signature = client_signature(event.signature, self._provider)
            written += self._delta("signature_delta", "signature", signature)
        return written

    def _write_block(self, place: int, block: JsonObject) -> bytes:
        """A block in one piece, in Anthropic's stream format."""
        match block:
            case {"type": "text", "text": str(text)}:
                opened = self._begin(place, {"type": "text", "text": ""})
                return opened + self._delta("text_delta", "text", text) + self._end()
            case {"type": str(kind), "input": dict(arguments)} if kind in _WITH_INPUT:
                opened = self._begin(place, {**block, "input": {}})
                return (
                    opened
                    + self._delta("input_json_delta", "partial_json", encode_json(arguments).decode())
                    + self._end()
                )
            case {"type": "compaction", "content": content}:
                fields = {name: value for name, value in block.items() if name != "type"}
                opened = self._begin(place, {**block, "content": None if content is None else ""})
                delta: JsonObject = {"type": "compaction_delta", **fields}
                return opened + _event("content_block_delta", {"index": self._index, "delta": delta}) + self._end()
            case _:
                return self._begin(place, block) + self._end()

    def _citation(self, place: int, citation: JsonObject) -> bytes:
        """A citation, which may arrive before its text."""
        if (
            citation.get("type") not in _CITATIONS
            or place < self._place
            or (place == self._place and self._kind != "text")
        ):
            return b""
        started = self._begin(place, {"type": "text", "text": ""}) if place > self._place else b""
        self._cited = True
        return started + self._delta("citations_delta", "citation", citation)

    def _cite(self, content: Sequence[ContentBlock]) -> bytes:
        """The citations of the last text, if none was sent before."""
        if self._cited or self._kind != "text" or not 0 <= self._place < len(content):
            return b""
        block = content[self._place]
        cited = _citations(block) if isinstance(block, TextBlock) else []
        return b"".join(self._delta("citations_delta", "citation", citation) for citation in cited)


# --- Messages and models ---


def _message(info: ReplyInfo) -> JsonObject:
    message_id = info.id if info.id.startswith("msg_") else f"msg_{info.id}"
    return {"id": message_id, "type": "message", "role": "assistant", "model": info.model}


def _model(model: ListedModel) -> JsonObject:
    created = datetime.fromtimestamp(model.created, UTC).isoformat().replace("+00:00", "Z")
    return {
        "type": "model",
        "id": model.id,
        "display_name": model.id,
        "created_at": created,
        "lifecycle": "active",
        "max_input_tokens": model.context_tokens,
        "max_tokens": model.output_tokens,
    }


def write_reply(client_request: ClientRequest, info: ReplyInfo, response: CanonicalResponse) -> JsonObject:
    return {
        **_message(info),
        "content": list(_content(response, client_request)),
        **_ending(response),
        **_around(response),
        "usage": _usage(response.usage),
    }


def write_failure(failure: Failure) -> tuple[int, JsonObject]:
    kind = failure.kind
    if kind == "budget" and failure.retry_after is not None:
        kind = "rate_limit"  # a retry in the budget's next window may succeed
    words, message = WORDS[kind], failure.message
    if kind == "context_overflow" and _TOO_LONG not in message.lower():
        message = f"{_TOO_LONG}: {message}"
    error: JsonObject = {**failure.details, "type": words.anthropic, "message": message}
    if failure.code is not None and "details" not in error:
        error["details"] = {"error_code": failure.code}
    body: JsonObject = {"type": "error", "error": error, "request_id": failure.request_id}
    return _STATUSES.get(kind, words.status), body


_STATUSES: Mapping[FailureKind, int] = {"budget": 402, "overloaded": 529}
"""The statuses that differ from those of other vendors."""

_TOO_LONG = "prompt is too long"
"""The text by which clients detect a prompt that is too long, and shorten their history."""


def write_models(models: Sequence[ListedModel]) -> JsonObject:
    return {
        "data": [_model(model) for model in models],
        "first_id": models[0].id if models else None,
        "last_id": models[-1].id if models else None,
        "has_more": False,
    }


def write_token_count(tokens: int) -> JsonObject:
    return {"input_tokens": tokens}


WIRE = ClientWire(
    name="messages",
    protocol=PROTOCOL,
    read_request=read_request,
    writer=MessagesWriter,
    write_reply=write_reply,
    write_failure=write_failure,
    write_models=write_models,
    write_model=_model,
    write_token_count=write_token_count,
)
"""The wire of Anthropic's Messages API."""
