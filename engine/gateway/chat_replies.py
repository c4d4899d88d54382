"""Replies, errors and lists of models of Chat Completions, and the wire as a whole. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from callboard.adapters import CanonicalResponse
from callboard.adapters.requests.settings import CUSTOM, INPUT
from callboard.bus.values.base import Json, JsonObject
from callboard.bus.values.content import ToolUseBlock
from callboard.bus.values.usage import StopReason

from .chat_content import (
    ClientNames,
    annotations_of,
    end_of,
    fingerprint_of,
    logprobs_of,
    media_of,
    reply_text,
    reply_thinking,
    tier_of,
    write_failure,
    write_usage,
)
from .chat_reasoning import PROTOCOL, reasoning_details, signed_message
from .chat_requests import read_request
from .chat_stream import ChatWriter
from .reading import arguments_of, free_form_text
from .wire import ClientRequest, Failure, ListedModel, ReplyInfo, ReplyWriter


def write_reply(client_request: ClientRequest, info: ReplyInfo, response: CanonicalResponse) -> JsonObject:
    """The body of a reply."""
    names = ClientNames(client_request)
    content, calls = response.content, response.tool_uses
    text: Json = reply_text(content)
    message: JsonObject = {"role": "assistant", "content": text, "refusal": None}
    choice: JsonObject = {"index": 0, "message": message, "logprobs": logprobs_of(content)}
    choice |= end_of(response, names)
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
    if calls and names.legacy:
        message["function_call"] = {"name": names.of(calls[0].name), "arguments": arguments_of(calls[0])}
    elif calls:
        message["tool_calls"] = [_call(call, names) for call in calls]
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


def _call(call: ToolUseBlock, names: ClientNames) -> JsonObject:
    name = names.of(call.name)
    if names.is_free_form(call.name):
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


# --- The wire ---


class ChatWire:
    """The wire of Chat Completions; see `ClientWire`."""

    name = "chat"
    protocol = PROTOCOL

    def read_request(
        self, body: JsonObject, headers: Mapping[str, str], *, model: str | None = None, stream: bool = False
    ) -> ClientRequest:
        return read_request(body, headers, model=model, stream=stream)

    def stream_type(self, client_request: ClientRequest) -> str:
        return "text/event-stream; charset=utf-8"

    def writer(self, client_request: ClientRequest, info: ReplyInfo) -> ReplyWriter:
        return ChatWriter(client_request, info)

    def write_reply(
        self, client_request: ClientRequest, info: ReplyInfo, response: CanonicalResponse
    ) -> JsonObject:
        return write_reply(client_request, info, response)

    def write_failure(self, failure: Failure) -> tuple[int, JsonObject]:
        return write_failure(failure)

    def write_models(self, models: Sequence[ListedModel]) -> JsonObject:
        return {"object": "list", "data": [write_model(model) for model in models]}

    def write_model(self, model: ListedModel) -> JsonObject:
        return write_model(model)

    def write_token_count(self, tokens: int) -> JsonObject:
        return {"object": "response.input_tokens", "input_tokens": tokens}


WIRE = ChatWire()
