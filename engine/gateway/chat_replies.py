"""Replies, streams and errors of Chat Completions. Pure.

The vendor has no fields for some content. Reasoning is in DeepSeek's `reasoning_content`, and its signatures are
in OpenRouter's `reasoning_details`. The reply's images are in OpenRouter's `images`, and the provider's own stop
reason in its `native_finish_reason`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec

from callboard.adapters import CanonicalResponse
from callboard.adapters.requests.content import encode_json, media_bytes, write_data_url
from callboard.adapters.requests.settings import CUSTOM, INPUT, free_text
from callboard.bus.streams.events import (
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

from .chat_messages import ANTHROPIC_FORMAT, PROTOCOL, encode_arguments
from .chat_requests import FREE_FORM_TOOLS, INCLUDE_USAGE, LEGACY_FUNCTIONS, TOOL_NAMES, read_request
from .wire import ClientRequest, Failure, FailureKind, ListedModel, ReplyInfo, ReplyWriter

# --- How a reply ended ---

FINISH_REASONS: Mapping[StopReason, str] = {
    StopReason.END_TURN: "stop",
    StopReason.STOP_SEQUENCE: "stop",
    StopReason.TOOL_USE: "tool_calls",
    StopReason.MAX_TOKENS: "length",
    StopReason.PAUSE_TURN: "length",  # the reply isn't complete, and the protocol has no other word for that
    StopReason.CONTENT_FILTER: "content_filter",
    StopReason.REFUSAL: "content_filter",
    StopReason.CANCELLED: "length",
    StopReason.ERROR: "error",
    StopReason.PROVIDER_SPECIFIC: "stop",
}
"""The vendor's words, and OpenRouter's ``error``."""

_SAME = frozenset({"stop", "tool_calls", "function_call", "length", "content_filter"})


class _Names:
    """The clients' names for the tools of a reply."""

    def __init__(self, asked: ClientRequest) -> None:
        names, free_form = asked.options.get(TOOL_NAMES), asked.options.get(FREE_FORM_TOOLS)
        self._names = names if isinstance(names, dict) else {}
        self._free_form = frozenset(free_form if isinstance(free_form, list) else ())
        self.legacy = asked.options.get(LEGACY_FUNCTIONS) is True

    def of(self, name: str) -> str:
        return str(self._names.get(name, name))

    def is_free_form(self, name: str) -> bool:
        return name in self._free_form


# --- Whole replies ---


def write_reply(asked: ClientRequest, info: ReplyInfo, response: CanonicalResponse) -> JsonObject:
    """The body of a reply."""
    names = _Names(asked)
    content = response.content
    text: Json = reply_text(content)
    message: JsonObject = {"role": "assistant", "content": text or None, "refusal": None, "annotations": []}
    if not text and not response.tool_uses:
        message["content"] = ""
    choice: JsonObject = {"index": 0, "message": message, "logprobs": _logprobs(content)}
    if response.stop_reason is StopReason.REFUSAL and text:
        message["content"], message["refusal"] = None, text
        choice["finish_reason"] = "stop"
    else:
        choice["finish_reason"] = _finish_reason(response.stop_reason, names)
    choice |= _native(response)
    thinking = reply_thinking(content)
    if thinking:
        message["reasoning_content"] = thinking
    details = _reasoning_details(content, with_text=True)
    if details:
        message["reasoning_details"] = details
    message["annotations"] = annotations_of(content)
    message |= _media(content)
    calls = response.tool_uses
    if calls and names.legacy:
        message["function_call"] = {"name": names.of(calls[0].name), "arguments": encode_arguments(calls[0])}
    elif calls:
        message["tool_calls"] = [_call(call, names) for call in calls]
    return {
        "id": f"chatcmpl-{info.id}",
        "object": "chat.completion",
        "created": info.created,
        "model": info.model,
        "choices": [choice],
        "usage": write_usage(response.usage),
        **_tier(response.usage),
        "system_fingerprint": _fingerprint(response),
    }


def reply_text(content: Iterable[ContentBlock]) -> str:
    """The text of a reply. Texts with other blocks between them have a blank line between them."""
    text, apart = "", False
    for block in content:
        if not isinstance(block, TextBlock):
            apart = True
        elif block.text:
            text += f"{gap(text, block.text)}{block.text}" if apart else block.text
            apart = False
    return text


def gap(before: str, after: str) -> str:
    """The text between two texts that other blocks separate."""
    return "" if not before or before[-1].isspace() or after[:1].isspace() else "\n\n"


def reply_thinking(content: Iterable[ContentBlock]) -> str:
    """The visible reasoning of a reply, with a blank line between its blocks."""
    texts = [block.text for block in content if isinstance(block, ThinkingBlock) and block.text]
    return "\n\n".join(texts)


def _call(call: ToolUseBlock, names: _Names) -> JsonObject:
    name = names.of(call.name)
    text = free_text(call) if names.is_free_form(call.name) else None
    if text is not None:
        return {"id": call.id, "type": CUSTOM, CUSTOM: {"name": name, INPUT: text}}
    function: JsonObject = {"name": name, "arguments": encode_arguments(call)}
    return {"id": call.id, "type": "function", "function": function, **_extra(call)}


def _extra(call: ToolUseBlock) -> JsonObject:
    """Gemini's signature of a call, as its endpoint for this protocol has it."""
    raw = call.provider_raw
    return {"extra_content": raw.data["extra_content"]} if raw is not None and "extra_content" in raw.data else {}


def _finish_reason(reason: StopReason, names: _Names) -> str:
    return "function_call" if reason is StopReason.TOOL_USE and names.legacy else FINISH_REASONS[reason]


def _native(response: CanonicalResponse) -> JsonObject:
    """The provider's own stop reason, and the stop sequence that ended the reply, as vLLM has it."""
    found: JsonObject = {}
    said, raw = response.provider_details, response.raw_stop_reason
    if raw and raw not in _SAME:
        found["native_finish_reason"] = raw
    for name in ("stop_sequence", "matched_stop", "stop_reason"):
        if response.stop_reason is StopReason.STOP_SEQUENCE and isinstance(said.get(name), str):
            found["stop_reason"] = said[name]
            break
    return found


def _tier(usage: TokenUsage) -> JsonObject:
    return {} if usage.service_tier is None else {"service_tier": usage.service_tier}


def _fingerprint(response: CanonicalResponse) -> Json:
    return response.provider_details.get("system_fingerprint")


def _logprobs(content: Iterable[ContentBlock]) -> Json:
    found: list[Json] = []
    for block in content:
        if isinstance(block, TextBlock) and block.provider_raw is not None:
            entries = block.provider_raw.data.get("logprobs")
            found += entries if isinstance(entries, list) else []
    return {"content": found, "refusal": None} if found else None


# --- Reasoning, citations and media ---


def _reasoning_details(content: Iterable[ContentBlock], *, with_text: bool) -> list[Json]:
    """The opaque parts of reasoning, for clients that send them back."""
    details: list[Json] = []
    for block in content:
        match block:
            case ThinkingBlock(provider_raw=raw) if raw is not None and "reasoning_details" in raw.data:
                given = raw.data["reasoning_details"]
                details += given if isinstance(given, list) else []
            case ThinkingBlock(signature=str(signature)) if signature:
                text: JsonObject = {"text": block.text} if with_text else {}
                said = {"type": "reasoning.text", **text, "signature": signature}
                details.append({**said, "format": ANTHROPIC_FORMAT, "index": len(details)})
            case RedactedThinkingBlock():
                said = {"type": "reasoning.encrypted", "data": block.data}
                details.append({**said, "format": ANTHROPIC_FORMAT, "index": len(details)})
            case _:
                pass
    return details


def annotations_of(content: Iterable[ContentBlock]) -> list[Json]:
    """The citations of a reply, as the vendor's web search gives them."""
    found: list[Json] = []
    text, apart = "", False
    for block in content:
        if not isinstance(block, TextBlock):
            apart = True
            continue
        start = len(text) + (len(gap(text, block.text)) if apart else 0)
        text, apart = f"{text}{gap(text, block.text) if apart else ''}{block.text}", False
        data = block.provider_raw.data if block.provider_raw is not None else {}
        for name in ("annotations", "citations"):
            entries = data.get(name)
            for entry in entries if isinstance(entries, list) else ():
                found += _annotation(entry, start, len(text))
    return found


def _annotation(entry: Json, start: int, end: int) -> list[Json]:
    if not isinstance(entry, dict):
        return []
    match entry:
        case {"type": "url_citation", "url_citation": dict()}:
            return [entry]
        case {"type": "url_citation", "url": str(url)}:  # Responses, Gemini's interactions
            first, last = entry.get("start_index"), entry.get("end_index")
            first = start + first if isinstance(first, int) else start
            last = start + last if isinstance(last, int) else end
        case {"url": str(url)}:  # Anthropic
            first, last = start, end
        case _:
            return []
    said: JsonObject = {"url": url, "title": entry.get("title") or "", "start_index": first, "end_index": last}
    return [{"type": "url_citation", "url_citation": said}]


def _media(content: Iterable[ContentBlock]) -> JsonObject:
    """The images and the recording of a reply."""
    found: JsonObject = {}
    images: list[Json] = []
    for block in content:
        match block:
            case ImageBlock():
                read = media_bytes(block)
                url: JsonObject = {"url": block.url if read is None else write_data_url(*read)}
                images.append({"type": "image_url", "image_url": url, "index": len(images)})
            case OpaqueBlock(kind="audio") if block.provider_raw.data.get("data"):
                found["audio"] = block.provider_raw.data
            case _:
                pass
    if images:
        found["images"] = images
    return found


# --- Usage ---


def write_usage(usage: TokenUsage) -> JsonObject:
    """The token counts. The prompt's include cached ones."""
    details = usage.details or {}
    prompt, output = usage.total_input_tokens, usage.output_tokens
    prompt_details: JsonObject = {
        "cached_tokens": usage.cached_input_tokens,
        "audio_tokens": details.get("audio_input", 0),
    }
    if usage.cache_creation_input_tokens:
        prompt_details["cache_write_tokens"] = usage.cache_creation_input_tokens
        hour = usage.cache_creation_1h_input_tokens
        if hour:
            prompt_details["cache_creation"] = {
                "ephemeral_5m_input_tokens": usage.cache_creation_input_tokens - hour,
                "ephemeral_1h_input_tokens": hour,
            }
    written: JsonObject = {
        "prompt_tokens": prompt,
        "completion_tokens": output,
        "total_tokens": prompt + output,
        "prompt_tokens_details": prompt_details,
        "completion_tokens_details": {
            "reasoning_tokens": usage.reasoning_tokens or 0,
            "audio_tokens": details.get("audio_output", 0),
            "accepted_prediction_tokens": 0,
            "rejected_prediction_tokens": 0,
        },
    }
    if details.get("web_search"):
        written["server_tool_use"] = {"web_search_requests": details["web_search"]}
    return written


# --- Streams ---

_DONE: Final = b"data: [DONE]\n\n"
_PING: Final = b": ping\n\n"


def _event(value: Json) -> bytes:
    return b"data: " + encode_json(value) + b"\n\n"


def _json_text(text: str) -> bytes:
    try:
        return msgspec.json.encode(text)
    except UnicodeEncodeError:
        return encode_json(text)


class ChatWriter:
    """Writes one streamed reply; see `ReplyWriter`."""

    def __init__(self, asked: ClientRequest, info: ReplyInfo) -> None:
        self._names = _Names(asked)
        self._with_usage = asked.options.get(INCLUDE_USAGE) is True
        self._frame: JsonObject = {
            "id": f"chatcmpl-{info.id}",
            "object": "chat.completion.chunk",
            "created": info.created,
            "model": info.model,
        }
        self._head = b"data: " + encode_json(self._frame)[:-1] + b',"choices":[{"index":0,"delta":'
        usage = b',"usage":null' if self._with_usage else b""
        self._tail = b',"logprobs":null,"finish_reason":null}]' + usage + b"}\n\n"
        self._text_head = self._head + b'{"content":'
        self._text_tail = b"}" + self._tail
        self._block = -1  # the index of the last block with text
        self._end = ""  # the last character of the text
        self._thought = -1  # the index of the last block of reasoning
        self._calls = 0
        self._sent = False  # whether the current call has arguments
        self._free: _FreeText | None = None

    def start(self) -> bytes:
        return self._delta({"role": "assistant", "content": "", "refusal": None})

    def write(self, event: StreamEvent) -> bytes:
        match event:
            case TextDelta():
                text = event.text
                if event.content_block_index != self._block:
                    text = self._apart(event) + text
                self._end = text[-1:] or self._end
                return self._text_head + _json_text(text) + self._text_tail
            case ThinkingDelta():
                return self._thinking(event)
            case ToolUseStart():
                return self._start_call(event)
            case ToolUseInputDelta():
                self._sent = True
                text = event.partial_json if self._free is None else self._free.feed(event.partial_json)
                return self._arguments(text) if text else b""
            case ToolUseEnd():
                return self._end_call(event)
            case _:
                return b""

    def finish(self, response: CanonicalResponse) -> bytes:
        content = response.content
        late: JsonObject = _media(content)
        annotations = annotations_of(content)
        if annotations:
            late["annotations"] = annotations
        details = _reasoning_details(content, with_text=False)
        if details:
            late["reasoning_details"] = details
        pieces = [self._delta(late)] if late else []
        last: JsonObject = {
            "index": 0,
            "delta": {},
            "logprobs": None,
            "finish_reason": _finish_reason(response.stop_reason, self._names),
            **_native(response),
        }
        more: JsonObject = {**_tier(response.usage)}
        if _fingerprint(response):
            more["system_fingerprint"] = _fingerprint(response)
        null: JsonObject = {"usage": None} if self._with_usage else {}
        pieces.append(_event({**self._frame, **more, "choices": [last], **null}))
        if self._with_usage:
            usage = write_usage(response.usage)
            pieces.append(_event({**self._frame, **more, "choices": [], "usage": usage}))
        return b"".join((*pieces, _DONE))

    def fail(self, failure: Failure) -> bytes:
        return _event(write_failure(failure)[1])

    def ping(self) -> bytes:
        return _PING

    def _delta(self, delta: JsonObject) -> bytes:
        return self._head + encode_json(delta) + self._tail

    def _apart(self, event: TextDelta) -> str:
        """The text before a new block, which is empty right after another block of text."""
        index, former = event.content_block_index, self._block
        self._block = index
        return "" if index == former + 1 else gap(self._end, event.text)

    def _thinking(self, event: ThinkingDelta) -> bytes:
        if not event.text:
            return b""
        text = event.text
        if event.content_block_index != self._thought:
            text = text if self._thought < 0 else f"\n\n{text}"
            self._thought = event.content_block_index
        return self._head + b'{"reasoning_content":' + _json_text(text) + self._text_tail

    # --- Calls ---

    def _start_call(self, event: ToolUseStart) -> bytes:
        name, free_form = self._names.of(event.tool_name), self._names.is_free_form(event.tool_name)
        self._calls += 1
        self._sent = False
        self._free = _FreeText() if free_form else None
        if self._names.legacy:
            return self._delta({"function_call": {"name": name, "arguments": ""}}) if self._calls == 1 else b""
        call: JsonObject = {"index": self._calls - 1, "id": event.tool_use_id}
        if free_form:
            call |= {"type": CUSTOM, CUSTOM: {"name": name, INPUT: ""}}
        else:
            call |= {"type": "function", "function": {"name": name, "arguments": ""}}
        return self._delta({"tool_calls": [call]})

    def _arguments(self, text: str) -> bytes:
        written = _json_text(text)
        if self._names.legacy:
            if self._calls > 1:
                return b""
            return self._head + b'{"function_call":{"arguments":' + written + b"}}" + self._tail
        place = b'{"tool_calls":[{"index":%d,' % (self._calls - 1)
        field = b'"function":{"arguments":' if self._free is None else b'"custom":{"input":'
        return self._head + place + field + written + b"}}]}" + self._tail

    def _end_call(self, event: ToolUseEnd) -> bytes:
        if self._free is not None:
            text = event.final_input.get(INPUT)
            rest = self._free.rest(text if isinstance(text, str) else "")
            return self._arguments(rest) if rest else b""
        if self._sent or event.incomplete:
            return b""
        return self._arguments(encode_json(event.final_input).decode())


class _FreeText:
    """The text that is the only argument of a call, from fragments of its JSON."""

    def __init__(self) -> None:
        self._json = ""
        self._given = 0

    def feed(self, fragment: str) -> str:
        self._json += fragment
        return ""

    def rest(self, text: str) -> str:
        """The text that was not returned yet."""
        return text[self._given :]


# --- Failures ---

_FAILURES: Mapping[FailureKind, tuple[int, str, str | None]] = {
    "invalid_request": (400, "invalid_request_error", None),
    "context_overflow": (400, "invalid_request_error", "context_length_exceeded"),
    "content_filter": (400, "invalid_request_error", "content_filter"),
    "authentication": (401, "invalid_request_error", "invalid_api_key"),
    "budget": (429, "insufficient_quota", "insufficient_quota"),
    "permission": (403, "invalid_request_error", "insufficient_permissions"),
    "not_found": (404, "invalid_request_error", "model_not_found"),
    "too_large": (413, "invalid_request_error", "request_too_large"),
    "rate_limit": (429, "requests", "rate_limit_exceeded"),
    "server": (500, "server_error", None),
    "unavailable": (503, "server_error", "service_unavailable"),
    "timeout": (504, "server_error", "timeout"),
    "overloaded": (503, "server_error", "server_is_overloaded"),
}
"""The status, type and code of each kind of failure."""

_PARAMS: Mapping[FailureKind, str] = {"context_overflow": "messages", "not_found": "model"}


def write_failure(failure: Failure) -> tuple[int, JsonObject]:
    """The status and the body of a failure."""
    status, kind, code = _FAILURES[failure.kind]
    param = failure.param if failure.param is not None else _PARAMS.get(failure.kind)
    error: JsonObject = {
        "message": failure.message,
        "type": kind,
        "param": param,
        "code": code if code is not None else failure.code,
    }
    return status, {"error": error}


# --- Models ---


def write_model(model: ListedModel) -> JsonObject:
    """One model, with the limits under OpenRouter's and Groq's names."""
    written: JsonObject = {
        "id": model.id,
        "object": "model",
        "created": model.created,
        "owned_by": model.owned_by,
    }
    if model.context_tokens is not None:
        written["context_length"] = model.context_tokens
    if model.output_tokens is not None:
        written["max_completion_tokens"] = model.output_tokens
    return written


# --- The wire ---


class ChatWire:
    """The wire of Chat Completions; see `ClientWire`."""

    name = "chat"
    protocol = PROTOCOL

    def read_request(
        self, body: JsonObject, headers: Mapping[str, str], *, model: str | None = None, stream: bool = False
    ) -> ClientRequest:
        return read_request(body, headers, model=model, stream=stream)

    def stream_type(self, asked: ClientRequest) -> str:
        return "text/event-stream; charset=utf-8"

    def writer(self, asked: ClientRequest, info: ReplyInfo) -> ReplyWriter:
        return ChatWriter(asked, info)

    def write_reply(self, asked: ClientRequest, info: ReplyInfo, response: CanonicalResponse) -> JsonObject:
        return write_reply(asked, info, response)

    def write_failure(self, failure: Failure) -> tuple[int, JsonObject]:
        return write_failure(failure)

    def write_models(self, models: Sequence[ListedModel]) -> JsonObject:
        return {"object": "list", "data": [write_model(model) for model in models]}

    def write_model(self, model: ListedModel) -> JsonObject:
        return write_model(model)

    def write_token_count(self, tokens: int) -> JsonObject:
        return {"object": "response.input_tokens", "input_tokens": tokens}


WIRE = ChatWire()
