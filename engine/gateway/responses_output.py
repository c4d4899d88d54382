"""Writes replies of OpenAI's Responses API: the response object, its items, errors and lists. Pure.

An item has OpenAI's id, or an id made from the reply's id and the item's index. Another provider's reasoning
becomes a reasoning item with its text as the summary. Its `encrypted_content` is a token of the gateway, which the
client sends back. The gateway keeps the original.
"""

from __future__ import annotations

import itertools
from base64 import b64encode
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from callboard.adapters import CanonicalResponse
from callboard.adapters.providers.openai.items import OTHER_HALF, SELF_CONTAINED
from callboard.adapters.providers.openai.response import CUSTOM, IMAGE_CALL, REASONING_PART
from callboard.adapters.providers.openai.wire import DETAILS
from callboard.adapters.requests.content import encode_json
from callboard.adapters.requests.settings import INPUT, digest
from callboard.bus.values.base import Json, JsonObject
from callboard.bus.values.content import (
    ContentBlock,
    ImageBlock,
    OpaqueBlock,
    ProviderRaw,
    RedactedThinkingBlock,
    TextBlock,
    ThinkingBlock,
    ToolUseBlock,
)
from callboard.bus.values.usage import StopReason, TokenUsage, split_tier

from .chat_replies import annotations_of
from .failures import Failure, openai_failure
from .responses_items import TOKEN
from .responses_tools import FUNCTION, HOST_TOOLS, OPENAI, WireTool, call_fields
from .wire import ClientRequest, ReplyInfo, arguments_of, free_form_text

COMPLETED, INCOMPLETE, IN_PROGRESS, FAILED = "completed", "incomplete", "in_progress", "failed"

REFUSED = "The model refused to answer."
"""The refusal's text, if the provider gave none."""

_ENDS = {
    StopReason.MAX_TOKENS: (INCOMPLETE, "max_output_tokens"),
    StopReason.CONTENT_FILTER: (INCOMPLETE, "content_filter"),
    StopReason.PAUSE_TURN: (INCOMPLETE, "pause_turn"),  # OpenAI has no such reason, but the reply can be continued
    StopReason.CANCELLED: ("cancelled", None),
    StopReason.ERROR: (FAILED, None),
}
"""The status and the reason of a reply that is not complete."""

_OPENAI_ITEMS = frozenset({*SELF_CONTAINED, *OTHER_HALF, "configuration_update"})
"""The types of items that a client of this wire knows, besides messages, reasoning and calls."""


class ItemIds:
    """The ids of a reply's items. They are the same for a streamed and a whole reply."""

    def __init__(self, reply_id: str) -> None:
        self._reply_id = reply_id
        self._count = 0

    def next(self, prefix: str) -> str:
        self._count += 1
        return f"{prefix}_{self._reply_id}_{self._count}"


# --- Items ---


class ItemWriter:
    def __init__(self, client_request: ClientRequest, info: ReplyInfo) -> None:
        self.tools = msgspec.convert(client_request.options.get("tools", {}), dict[str, WireTool])
        """The client's form of its tools, by canonical name."""
        self.ids = ItemIds(info.id)

    def write(self, content: Sequence[ContentBlock], *, status: str = COMPLETED) -> list[Json]:
        """The items of a whole reply. `status` is the status of the last item."""
        items: list[JsonObject] = []
        parts: list[Json] = []
        summary: list[Json] = []
        former: ContentBlock | None = None
        for number, block in enumerate(content):
            last = status if number == len(content) - 1 else COMPLETED
            if not isinstance(block, ThinkingBlock):
                items += self._unended(summary)
                summary = []
            match block:
                case TextBlock() if isinstance(former, TextBlock) and _is_one_message(former, block):
                    parts.append(text_part(block, sources_after(content, number)))
                case TextBlock():
                    parts = [text_part(block, sources_after(content, number))]
                    items.append({**self.message(block), "content": parts})
                case ThinkingBlock() if data_of(block.provider_raw).get("type") == REASONING_PART:
                    summary.append(_summary(block.text))
                case ThinkingBlock():
                    items.append(self.reasoning(block, summary))
                    summary = []
                case RedactedThinkingBlock():
                    items.append(reasoning_item(self.ids.next("rs"), [], token(block)))
                case ToolUseBlock():
                    items.append(self.call(block))
                case _:
                    items += [item for item in [self.other(block)] if item is not None]
            if last != COMPLETED and items and isinstance(block, TextBlock):
                items[-1]["status"] = last
            former = block
        return [*items, *self._unended(summary)]

    def _unended(self, summary: list[Json]) -> list[JsonObject]:
        """The item for parts of reasoning whose end is missing, for example after the reply's limit in tokens."""
        return [reasoning_item(self.ids.next("rs"), summary, None)] if summary else []

    def message(self, block: TextBlock) -> JsonObject:
        """The item of a message that starts with a text, without its parts."""
        data = data_of(block.provider_raw)
        named = data.get("item_id")
        phase: JsonObject = {"phase": data["phase"]} if data.get("phase") else {}
        item_id = named if isinstance(named, str) and named else self.ids.next("msg")
        return {**message_item(item_id, []), **phase}

    def reasoning(self, block: ThinkingBlock, summary: list[Json]) -> JsonObject:
        data = data_of(block.provider_raw)
        if data.get("type") == "reasoning":
            return {**data, "id": data.get("id") or self.ids.next("rs"), "summary": data.get("summary") or []}
        text = [_summary(block.text)] if block.text else []
        return reasoning_item(self.ids.next("rs"), [*summary, *text], token(block))

    def call(self, block: ToolUseBlock) -> JsonObject:
        data = data_of(block.provider_raw)
        free = data.get("type") == CUSTOM
        wire = self.tools.get(block.name, WireTool(CUSTOM_KIND if free else FUNCTION, block.name))
        fields: JsonObject
        if wire.kind == FUNCTION:
            fields = {"arguments": arguments_of(block)}
        elif wire.kind == CUSTOM_KIND:
            fields = {INPUT: free_form_text(block.input, block.raw_arguments)}
        else:
            fields = call_fields(wire.kind, block.input)
        status = INCOMPLETE if block.incomplete else COMPLETED
        item = self.call_item(wire, block.id, fields, status)
        if isinstance(named := data.get("item_id"), str) and named:
            item["id"] = named
        return item | {name: data[name] for name in ("namespace", "caller", "async") if name in data}

    def call_item(self, wire: WireTool, call_id: str, fields: JsonObject, status: str) -> JsonObject:
        prefix = PREFIXES.get(wire.kind) or HOST_TOOLS[wire.kind].prefix
        kind = CALL_TYPES.get(wire.kind) or HOST_TOOLS[wire.kind].call
        item: JsonObject = {"type": kind, "id": self.ids.next(prefix), "call_id": call_id, "status": status}
        if wire.kind == "local_shell":
            item["id"] = call_id  # the item's output may refer to either id
        if wire.kind in CALL_TYPES:
            item["name"] = wire.name
            if wire.namespace is not None:
                item["namespace"] = wire.namespace
        return item | fields

    def other(self, block: ContentBlock) -> JsonObject | None:
        """An image, or an item of OpenAI; None for content that only another provider can read."""
        if isinstance(block, ImageBlock):
            return self.image(block)
        if isinstance(block, OpaqueBlock):
            raw = block.provider_raw
            return raw.data if raw.provider == OPENAI or is_openai_item(block.kind, raw.data) else None
        return None

    def image(self, block: ImageBlock) -> JsonObject | None:
        if block.data is None:
            return None
        data = data_of(block.provider_raw)
        result = {"result": b64encode(block.data).decode()}
        if data.get("type") == IMAGE_CALL:
            return {**data, **result}
        return {"type": IMAGE_CALL, "id": self.ids.next("ig"), "status": COMPLETED, **result}


CUSTOM_KIND = "custom"
CALL_TYPES = {FUNCTION: "function_call", CUSTOM_KIND: CUSTOM}
PREFIXES = {FUNCTION: "fc", CUSTOM_KIND: "ctc"}


def data_of(raw: ProviderRaw | None) -> JsonObject:
    """The data that an adapter of this protocol attached to a block; empty for data of other adapters."""
    if raw is None:
        return {}
    data = raw.data
    # The adapter may have any name, so the protocol is detected by the form of the data.
    return data if raw.provider == OPENAI or data.get("type") in _OWN_TYPES or "after" in data else {}


_OWN_TYPES = frozenset({"reasoning", REASONING_PART, CUSTOM, IMAGE_CALL, "refusal"})


def is_openai_item(kind: str, raw: Json) -> bool:
    """Whether a provider's block is an item that clients of this wire know."""
    return kind in _OPENAI_ITEMS and isinstance(raw, dict) and raw.get("type") == kind


def _is_one_message(former: TextBlock, block: TextBlock) -> bool:
    """Whether two texts are parts of one message."""
    first, second = data_of(former.provider_raw), data_of(block.provider_raw)
    return all(first.get(name) == second.get(name) for name in ("item_id", "phase", "after"))


def text_part(block: TextBlock, sources: Sequence[OpaqueBlock] = ()) -> JsonObject:
    """A part of a message. `sources` are the blocks with its citations."""
    data = data_of(block.provider_raw)
    if data.get("type") == "refusal":
        return {"type": "refusal", "refusal": block.text}
    annotations, logprobs = data.get("annotations"), data.get("logprobs")
    if not isinstance(annotations, list):
        cited = [note["url_citation"] for note in annotations_of((block, *sources)) if isinstance(note, dict)]
        annotations = [{"type": "url_citation", **note} for note in cited if isinstance(note, dict)]
    return {
        "type": "output_text",
        "text": block.text,
        "annotations": annotations,
        "logprobs": logprobs if isinstance(logprobs, list) else [],
    }


def sources_after(content: Sequence[ContentBlock], number: int) -> list[OpaqueBlock]:
    """The blocks after a text that may have its citations."""
    following = itertools.takewhile(lambda block: isinstance(block, OpaqueBlock), content[number + 1 :])
    return [block for block in following if isinstance(block, OpaqueBlock)]


def message_item(item_id: str, parts: Sequence[Json], *, status: str = COMPLETED) -> JsonObject:
    return {"type": "message", "id": item_id, "role": "assistant", "status": status, "content": list(parts)}


def reasoning_item(item_id: str, summary: Sequence[Json], secret: str | None) -> JsonObject:
    item: JsonObject = {"type": "reasoning", "id": item_id, "summary": list(summary)}
    return item if secret is None else {**item, "encrypted_content": secret}


def _summary(text: str) -> JsonObject:
    return {"type": "summary_text", "text": text}


def token(block: ThinkingBlock | RedactedThinkingBlock) -> str:
    """The `encrypted_content` for a client. It contains nothing of the reasoning."""
    if isinstance(block, RedactedThinkingBlock):
        return secret_token(block.data)
    return secret_token(block.signature or block.text)


def secret_token(of: str) -> str:
    return f"{TOKEN}{digest(of)[:32]}"


# --- The response object ---

_ECHOED: Mapping[str, Json] = {
    "background": False,
    "instructions": None,
    "max_output_tokens": None,
    "max_tool_calls": None,
    "metadata": {},
    "parallel_tool_calls": True,
    "previous_response_id": None,
    "prompt_cache_key": None,
    "safety_identifier": None,
    "store": True,
    "temperature": 1.0,
    "tool_choice": "auto",
    "tools": [],
    "top_logprobs": 0,
    "top_p": 1.0,
    "truncation": "disabled",
    "user": None,
}
"""Fields of the request that the response repeats, with their defaults."""

_ECHOED_IF_SENT = ("conversation", "prompt", "prompt_cache_retention")


class ResponseObject:
    """The response object of one reply, in each of its states."""

    def __init__(self, client_request: ClientRequest, info: ReplyInfo) -> None:
        body = client_request.body
        echoed: JsonObject = {
            name: default if body.get(name) is None else body[name] for name, default in _ECHOED.items()
        }
        echoed |= {name: body[name] for name in _ECHOED_IF_SENT if body.get(name) is not None}
        if isinstance(conversation := echoed.get("conversation"), str):
            echoed["conversation"] = {"id": conversation}
        reasoning, text = body.get("reasoning"), body.get("text")
        echoed["reasoning"] = {
            "effort": None,
            "summary": None,
            **(reasoning if isinstance(reasoning, dict) else {}),
        }
        echoed["text"] = {"format": {"type": "text"}, **(text if isinstance(text, dict) else {})}
        self._echo: Mapping[str, Any] = echoed
        self._head: JsonObject = {
            "id": f"resp_{info.id}",
            "object": "response",
            "created_at": info.created,
            "model": info.model,
        }
        self._tier = body.get("service_tier")

    def encode_echo(self) -> None:
        """Encode the fields of the request once, because a stream repeats them three times."""
        self._echo = {name: msgspec.Raw(encode_json(value)) for name, value in self._echo.items()}

    def at(self, status: str, output: Sequence[Json] = (), *, error: JsonObject | None = None) -> dict[str, Any]:
        """The response before its end, or after a failure."""
        return {
            **self._head,
            "status": status,
            "error": error,
            "incomplete_details": None,
            "output": list(output),
            "usage": None,
            "service_tier": self._tier or "default",
            **self._echo,
        }

    def ended(self, response: CanonicalResponse, output: Sequence[Json]) -> dict[str, Any]:
        """The response at its end."""
        status, reason = end_of(response.stop_reason)
        error: JsonObject | None = {"code": "server_error", "message": _FAILED} if status == FAILED else None
        details = response.provider_details
        tier, _ = split_tier(response.usage.service_tier)
        return {
            **self.at(status, output, error=error),
            "incomplete_details": None if reason is None else {"reason": reason},
            "usage": write_usage(response.usage),
            "service_tier": tier or "default",
            **{name: details[name] for name in DETAILS if name in details},
        }


_FAILED = "The reply failed."


def write_usage(usage: TokenUsage) -> JsonObject:
    return {
        "input_tokens": usage.total_input_tokens,
        "input_tokens_details": {
            "cached_tokens": usage.cached_input_tokens,
            "cache_write_tokens": usage.cache_creation_input_tokens,
        },
        "output_tokens": usage.output_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens or 0},
        "total_tokens": usage.total_tokens,
    }


def end_of(stop_reason: StopReason) -> tuple[str, str | None]:
    """The status of a finished reply, and the reason if it is incomplete."""
    return _ENDS.get(stop_reason, (COMPLETED, None))


def refusal_of(response: CanonicalResponse) -> str | None:
    """The text of a refusal that the content does not show; None if there is none."""
    if response.stop_reason is not StopReason.REFUSAL:
        return None
    texts = (block for block in response.content if isinstance(block, TextBlock))
    if any(data_of(block.provider_raw).get("type") == "refusal" for block in texts):
        return None
    error_message = (warning.message for warning in response.warnings if warning.code == "refusal")
    return next(error_message, REFUSED)


def write_reply(client_request: ClientRequest, info: ReplyInfo, response: CanonicalResponse) -> JsonObject:
    status, _ = end_of(response.stop_reason)
    writer = ItemWriter(client_request, info)
    items = writer.write(response.content, status=INCOMPLETE if status == INCOMPLETE else COMPLETED)
    refused = refusal_of(response)
    if refused is not None:
        part: JsonObject = {"type": "refusal", "refusal": refused}
        items.append(message_item(writer.ids.next("msg"), [part]))
    return ResponseObject(client_request, info).ended(response, items)


# --- Errors ---


def write_failure(failure: Failure) -> tuple[int, JsonObject]:
    """See `ClientWire.write_failure`. The errors are the same as for Chat Completions, except for one field's
    name.
    """
    status, body = openai_failure(failure)
    error = body["error"]
    assert isinstance(error, dict)
    if failure.param is None and failure.kind == "context_overflow":
        error["param"] = "input"
    error["message"] = error_message(failure)
    return status, body


def error_object(failure: Failure) -> JsonObject:
    _, body = write_failure(failure)
    error = body["error"]
    assert isinstance(error, dict)
    return {**error, "code": error["code"] or "server_error"}


def error_message(failure: Failure) -> str:
    """The text of a failure. Codex reads the time to retry from it."""
    wait = failure.retry_after
    if failure.kind not in ("rate_limit", "budget") or wait is None or "try again in" in failure.message.lower():
        return failure.message
    return f"{failure.message.rstrip()} Please try again in {wait:g}s."
