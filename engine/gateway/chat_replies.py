"""Writes replies, streams, errors and lists of models of Chat Completions, and defines the wire. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from callboard.adapters import CanonicalResponse
from callboard.adapters.requests.content import encode_json
from callboard.adapters.requests.settings import CUSTOM, INPUT
from callboard.bus.streams.events import (
    StreamEvent,
    TextDelta,
    ThinkingDelta,
    ToolUseEnd,
    ToolUseInputDelta,
    ToolUseStart,
)
from callboard.bus.values.base import Json, JsonObject
from callboard.bus.values.content import ToolUseBlock
from callboard.bus.values.usage import StopReason

from .chat_content import (
    annotations_of,
    end_of,
    fingerprint_of,
    gap,
    logprobs_of,
    media_of,
    reasoning_details,
    reply_text,
    reply_thinking,
    signed_message,
    tier_of,
    write_failure,
    write_usage,
)
from .chat_messages import PROTOCOL
from .chat_requests import FREE_FORM_TOOLS, INCLUDE_USAGE, LEGACY_FUNCTIONS, read_request
from .failures import Failure
from .wire import ClientRequest, ClientWire, FreeFormReader, ListedModel, ReplyInfo, arguments_of, free_form_text


def write_reply(client_request: ClientRequest, info: ReplyInfo, response: CanonicalResponse) -> JsonObject:
    """The body of a reply."""
    content, calls = response.content, response.tool_uses
    legacy = client_request.options.get(LEGACY_FUNCTIONS, False)
    text: Json = reply_text(content)
    message: JsonObject = {"role": "assistant", "content": text, "refusal": None}
    choice: JsonObject = {"index": 0, "message": message, "logprobs": logprobs_of(content)}
    choice |= end_of(response, legacy=legacy)
    if calls and not text:
        message["content"] = None
    if response.stop_reason is StopReason.REFUSAL and text:
        message |= {"content": None, "refusal": text}
        choice["finish_reason"] = "stop"
    thinking = reply_thinking(content)
    if thinking:
        message["reasoning_content"] = thinking
    details = reasoning_details(content, with_text=True)
    if details:
        message["reasoning_details"] = details
    message |= signed_message(content)
    message["annotations"] = annotations_of(content)
    message |= media_of(content)
    if calls and legacy:
        name = client_request.tool_name(calls[0].name)
        message["function_call"] = {"name": name, "arguments": arguments_of(calls[0])}
    elif calls:
        message["tool_calls"] = [_call(call, client_request) for call in calls]
    return {
        "id": f"chatcmpl-{info.id}",
        "object": "chat.completion",
        "created": info.created,
        "model": info.model,
        "choices": [choice],
        "usage": write_usage(response.usage),
        **tier_of(response.usage),
        "system_fingerprint": fingerprint_of(response),
    }


def _call(call: ToolUseBlock, client_request: ClientRequest) -> JsonObject:
    name = client_request.tool_name(call.name)
    if call.name in client_request.options.get(FREE_FORM_TOOLS, ()):
        text = free_form_text(call.input, call.raw_arguments)
        return {"id": call.id, "type": CUSTOM, CUSTOM: {"name": name, INPUT: text}}
    function: JsonObject = {"name": name, "arguments": arguments_of(call)}
    written: JsonObject = {"id": call.id, "type": "function", "function": function}
    raw = call.provider_raw
    if raw is not None and "extra_content" in raw.data:  # Gemini's signature, in the form of Google's own endpoint
        written["extra_content"] = raw.data["extra_content"]
    return written


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


def write_models(models: Sequence[ListedModel]) -> JsonObject:
    """The body of a list of models."""
    return {"object": "list", "data": [write_model(model) for model in models]}


def write_token_count(tokens: int) -> JsonObject:
    """The body of a token count."""
    return {"object": "response.input_tokens", "input_tokens": tokens}


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

    def __init__(self, client_request: ClientRequest, info: ReplyInfo) -> None:
        self._request = client_request
        self._legacy: bool = client_request.options.get(LEGACY_FUNCTIONS, False)
        self._with_usage: bool = client_request.options.get(INCLUDE_USAGE, False)
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
        self._free: FreeFormReader | None = None
        self._streamed_input: list[str] = []

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
                text = event.partial_json
                if self._free is not None:
                    text = self._free.read(text)
                    self._streamed_input.append(text)
                return self._arguments(text) if text else b""
            case ToolUseEnd():
                return self._end_call(event)
            case _:
                return b""

    def finish(self, response: CanonicalResponse) -> bytes:
        content = response.content
        late = media_of(content) | signed_message(content)
        annotations = annotations_of(content)
        if annotations:
            late["annotations"] = annotations
        details = reasoning_details(content, with_text=False)
        if details:
            late["reasoning_details"] = details
        pieces = [self._delta(late)] if late else []
        last: JsonObject = {"index": 0, "delta": {}, "logprobs": None, **end_of(response, legacy=self._legacy)}
        more = tier_of(response.usage)
        fingerprint = fingerprint_of(response)
        if fingerprint is not None:
            more["system_fingerprint"] = fingerprint
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
        """The separator before a new block; empty directly after another text block."""
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
        name = self._request.tool_name(event.tool_name)
        free_form = event.tool_name in self._request.options.get(FREE_FORM_TOOLS, ())
        self._calls += 1
        self._sent = False
        self._free = FreeFormReader() if free_form else None
        self._streamed_input = []
        if self._legacy:
            return self._delta({"function_call": {"name": name, "arguments": ""}}) if self._calls == 1 else b""
        call: JsonObject = {"index": self._calls - 1, "id": event.tool_use_id}
        if free_form:
            call |= {"type": CUSTOM, CUSTOM: {"name": name, INPUT: ""}}
        else:
            call |= {"type": "function", "function": {"name": name, "arguments": ""}}
        return self._delta({"tool_calls": [call]})

    def _arguments(self, text: str) -> bytes:
        written = _json_text(text)
        if self._legacy:
            if self._calls > 1:
                return b""
            return self._head + b'{"function_call":{"arguments":' + written + b"}}" + self._tail
        place = b'{"tool_calls":[{"index":%d,' % (self._calls - 1)
        field = b'"function":{"arguments":' if self._free is None else b'"custom":{"input":'
        return self._head + place + field + written + b"}}]}" + self._tail

    def _end_call(self, event: ToolUseEnd) -> bytes:
        if self._free is not None:
            text, streamed = free_form_text(event.final_input), "".join(self._streamed_input)
            is_longer = len(text) > len(streamed) and text.startswith(streamed) and not event.incomplete
            return self._arguments(text[len(streamed) :]) if is_longer else b""
        if self._sent or event.incomplete:
            return b""
        return self._arguments(encode_json(event.final_input).decode())


WIRE = ClientWire(
    name="chat",
    protocol=PROTOCOL,
    read_request=read_request,
    writer=ChatWriter,
    write_reply=write_reply,
    write_failure=write_failure,
    write_models=write_models,
    write_model=write_model,
    write_token_count=write_token_count,
)
"""The wire of Chat Completions."""
