"""OpenAI's Chat Completions, and servers of that protocol that differ."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial

import msgspec

from callboard.adapters import OpenAICompatibleAdapter
from callboard.adapters.conformance import CALLS, arguments, halves
from callboard.bus.values.base import Json, JsonObject

from .. import fake_http
from ..judges import chat_faults
from ..wire_history import history_faults
from .wire import Event, Wire, openai_error


class ChatWire(Wire):
    name = "openai_compatible"
    adapter = OpenAICompatibleAdapter
    base_url = "https://api.openai.com"
    _stops = {"end": "stop", "tools": "tool_calls", "length": "length"}  # noqa: RUF012
    _usage = {  # noqa: RUF012
        "prompt_tokens": 12,
        "prompt_tokens_details": {"cached_tokens": 4},
        "completion_tokens": 7,
        "total_tokens": 19,
    }

    def __init__(self, quirks: str | None = None, id_prefix: str = "call_") -> None:
        self.quirks = quirks or "default"
        self.id_prefix = id_prefix
        self.options = {"quirks": quirks} if quirks else {}

    def body(self, text: str, calls: int, stop: str, thought: str = "") -> JsonObject:
        message: JsonObject = {"role": "assistant", "content": text or None}
        if thought:
            message["reasoning_content"] = thought
        if calls:
            message["tool_calls"] = [
                {
                    "id": f"{self.id_prefix}{number}",
                    "type": "function",
                    "function": {"name": CALLS[number][0], "arguments": arguments(number)},
                }
                for number in range(calls)
            ]
        choice = {"index": 0, "message": message, "finish_reason": self._word(stop)}
        return {
            "id": "chatcmpl-1", "object": "chat.completion", "model": "gpt-served", "choices": [choice],
            "usage": self._usage,
        }  # fmt: skip

    def unknown_event(self) -> tuple[str, JsonObject]:
        return "", {"id": "chatcmpl-1", "object": "mood", "mood": "cheerful"}

    def events(self, text: str, calls: int, stop: str, thought: str = "") -> Iterator[tuple[str, JsonObject]]:
        def chunk(delta: JsonObject, finish: str | None = None) -> tuple[str, JsonObject]:
            choice = {"index": 0, "delta": delta, "finish_reason": finish}
            return "", {**head, "choices": [choice], "usage": None}

        head: JsonObject = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "model": "gpt-served"}
        yield chunk({"role": "assistant", "content": ""})
        for half in halves(thought) if thought else ():
            yield chunk({"reasoning_content": half})
        for half in halves(text) if text else ():
            yield chunk({"content": half})
        for number in range(calls):
            function = {"name": CALLS[number][0], "arguments": ""}
            start = {"index": number, "id": f"{self.id_prefix}{number}", "type": "function", "function": function}
            yield chunk({"tool_calls": [start]})
            for half in halves(arguments(number)):
                yield chunk({"tool_calls": [{"index": number, "function": {"arguments": half}}]})
        yield chunk({}, self._word(stop))
        yield "", {**head, "choices": [], "usage": self._usage}
        yield "", "[DONE]"  # type: ignore[misc]

    def error_body(self, condition: str) -> tuple[int, Json]:
        return openai_error(condition)

    def error_event(self) -> tuple[str, JsonObject]:
        return "", {"error": {"type": "server_error", "code": "server_is_overloaded", "message": "Overloaded"}}

    def ids(self, body: JsonObject) -> tuple[list[str], list[str]]:
        messages = body["messages"]
        calls = [call["id"] for message in messages for call in message.get("tool_calls") or ()]
        return calls, [message["tool_call_id"] for message in messages if message["role"] == "tool"]

    def faults(self, body: bytes) -> list[str]:
        return history_faults("/v1/chat/completions", msgspec.json.decode(body))

    def judged(self, body: bytes) -> list[str]:
        """The faults by OpenAI's types, which lack the reasoning fields of other servers."""
        sent: JsonObject = msgspec.json.decode(body)
        for message in sent["messages"] if self.quirks != "openai" else ():
            message.pop("reasoning_content", None)
        return chat_faults(msgspec.json.encode(sent))


# -- the words of the protocol

USAGE: JsonObject = {
    "prompt_tokens": 100,
    "completion_tokens": 20,
    "total_tokens": 120,
    "prompt_tokens_details": {"cached_tokens": 60, "cache_write_tokens": 30},
    "completion_tokens_details": {"reasoning_tokens": 5},
}


DONE = b"[DONE]"


STOP: JsonObject = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}


def chunk(finish: Json = None, **delta: Json) -> JsonObject:
    """One chunk with one choice."""
    choice: JsonObject = {"index": 0, "delta": delta, "finish_reason": finish}
    return {"id": "chatcmpl-1", "object": "chat.completion.chunk", "model": "test-2026", "choices": [choice]}


def tool(index: Json = 0, wire_id: Json = "call_1", name: Json = "look", arguments: Json = "") -> JsonObject:
    """A fragment of a tool call without the fields that are None."""
    function: JsonObject = {
        key: value for key, value in (("name", name), ("arguments", arguments)) if value is not None
    }
    fields: JsonObject = {"index": index, "id": wire_id, "type": "function", "function": function}
    return {key: value for key, value in fields.items() if value is not None}


def tools(*fragments: JsonObject) -> JsonObject:
    return chunk(tool_calls=list(fragments))


def more(arguments: Json, index: Json = 0) -> JsonObject:
    return tools(tool(index, None, None, arguments))


def reply(finish: Json = "stop", **message: Json) -> JsonObject:
    """A complete reply."""
    choice: JsonObject = {"index": 0, "message": {"role": "assistant", **message}, "finish_reason": finish}
    return {
        "id": "chatcmpl-1", "object": "chat.completion", "model": "test-2026", "choices": [choice], "usage": USAGE,
    }  # fmt: skip


def body(events: Iterable[Event]) -> bytes:
    """A streamed body of these events."""
    return ChatWire().stream(*events)


ask = partial(fake_http.ask, model="openai_compatible:test")
"""A request to a model of this wire."""
