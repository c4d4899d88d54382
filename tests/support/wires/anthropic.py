"""Anthropic's Messages API."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from callboard.adapters import AnthropicAdapter
from callboard.adapters.conformance import CALLS, arguments, halves
from callboard.bus.values.base import Json, JsonObject

from ..judges import messages_faults
from ..wire_history import history_faults
from .wire import Event, Wire


class AnthropicWire(Wire):
    name = "anthropic"
    names_events = True
    adapter = AnthropicAdapter
    base_url = "https://api.anthropic.com"
    id_prefix = "toolu_0"
    options = {"auto_cache": False}  # noqa: RUF012
    """Cache marks move with each turn, which would change earlier messages."""

    secrets = ("c2lnbmF0dXJl", "aGlkZGVu")
    _stops = {"end": "end_turn", "tools": "tool_use", "length": "max_tokens"}  # noqa: RUF012
    _usage = {"input_tokens": 8, "cache_read_input_tokens": 4, "cache_creation_input_tokens": 0}  # noqa: RUF012

    def body(self, text: str, calls: int, stop: str, thought: str = "") -> JsonObject:
        content: list[Json] = []
        if thought:
            content.append({"type": "thinking", "thinking": thought, "signature": self.secrets[0]})
        if text:
            content.append({"type": "text", "text": text})
        for number in range(calls):
            name, given = CALLS[number]
            content.append({"type": "tool_use", "id": f"toolu_0{number}", "name": name, "input": given})
        return {**self._message(), "content": content, "stop_reason": self._word(stop), "usage": {
            **self._usage, "output_tokens": 7}}  # fmt: skip

    def _message(self) -> JsonObject:
        return {"id": "msg_01", "type": "message", "role": "assistant", "model": "claude-served"}

    def reasoned(self, thought: str, text: str, calls: int, stop: str) -> JsonObject:
        body = self.body(text, calls, stop, thought)
        shown, *content = body["content"]
        return {**body, "content": [shown, {"type": "redacted_thinking", "data": self.secrets[1]}, *content]}

    def unknown_event(self) -> tuple[str, JsonObject]:
        return "mood", {"type": "mood", "index": 0, "mood": {"type": "cheerful"}}

    def events(self, text: str, calls: int, stop: str, thought: str = "") -> Iterator[tuple[str, JsonObject]]:
        def event(kind: str, **fields: Json) -> tuple[str, JsonObject]:
            return kind, {"type": kind, **fields}

        started = {
            **self._message(), "content": [], "stop_reason": None, "usage": {**self._usage, "output_tokens": 1},
        }  # fmt: skip
        yield event("message_start", message=started)
        index = 0
        if thought:
            empty = {"type": "thinking", "thinking": "", "signature": ""}
            yield event("content_block_start", index=index, content_block=empty)
            for half in halves(thought):
                yield event("content_block_delta", index=index, delta={"type": "thinking_delta", "thinking": half})
            signed = {"type": "signature_delta", "signature": self.secrets[0]}
            yield event("content_block_delta", index=index, delta=signed)
            yield event("content_block_stop", index=index)
            index += 1
        if text:
            yield event("content_block_start", index=index, content_block={"type": "text", "text": ""})
            for half in halves(text):
                yield event("content_block_delta", index=index, delta={"type": "text_delta", "text": half})
            yield event("content_block_stop", index=index)
            index += 1
        for number in range(calls):
            start = {"type": "tool_use", "id": f"toolu_0{number}", "name": CALLS[number][0], "input": {}}
            yield event("content_block_start", index=index, content_block=start)
            for half in halves(arguments(number)):
                delta = {"type": "input_json_delta", "partial_json": half}
                yield event("content_block_delta", index=index, delta=delta)
            yield event("content_block_stop", index=index)
            index += 1
        yield event("message_delta", delta={"stop_reason": self._word(stop)}, usage={"output_tokens": 7})
        yield event("message_stop")

    def error_body(self, condition: str) -> tuple[int, Json]:
        status, kind, message = {
            "rate limit": (429, "rate_limit_error", "Number of requests has exceeded your rate limit"),
            "overload": (529, "overloaded_error", "Overloaded"),
            "quota": (400, "invalid_request_error", "Your credit balance is too low to access the API"),
            "bad key": (401, "authentication_error", "invalid x-api-key"),
            "forbidden": (403, "permission_error", "not allowed"),
            "no model": (404, "not_found_error", "model: claude-none"),
            "overflow": (400, "invalid_request_error", "prompt is too long: 213462 tokens > 200000 maximum"),
            "bad request": (400, "invalid_request_error", "max_tokens: must be positive"),
            "server": (500, "api_error", "Internal server error"),
        }[condition]
        return status, {"type": "error", "error": {"type": kind, "message": message}, "request_id": "req_x"}

    def error_event(self) -> tuple[str, JsonObject]:
        return "error", {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}

    def ids(self, body: JsonObject) -> tuple[list[str], list[str]]:
        blocks = [
            block
            for message in body["messages"]
            for block in (message["content"] if isinstance(message["content"], list) else [])
        ]
        calls = [block["id"] for block in blocks if block["type"] == "tool_use"]
        return calls, [block["tool_use_id"] for block in blocks if block["type"] == "tool_result"]

    def faults(self, body: bytes) -> list[str]:
        return history_faults("/v1/messages", msgspec.json.decode(body))

    def judged(self, body: bytes) -> list[str]:
        return messages_faults(body)


# -- the words of the protocol

START_USAGE: JsonObject = {
    "input_tokens": 20, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 0,
    "cache_creation": {"ephemeral_5m_input_tokens": 0, "ephemeral_1h_input_tokens": 0}, "output_tokens": 2,
    "service_tier": "standard",
}  # fmt: skip


def event(kind: str, **fields: Json) -> JsonObject:
    return {"type": kind, **fields}


def message_start(usage: Json = START_USAGE, **fields: Json) -> JsonObject:
    message: JsonObject = {
        "id": "msg_1", "type": "message", "role": "assistant", "model": "claude-test", "content": [],
        "stop_reason": None, "stop_sequence": None, "usage": usage, **fields,
    }  # fmt: skip
    return event("message_start", message=message)


def start(index: int, kind: str, **fields: Json) -> JsonObject:
    return event("content_block_start", index=index, content_block={"type": kind, **fields})


def delta(index: int, kind: str, **fields: Json) -> JsonObject:
    return event("content_block_delta", index=index, delta={"type": kind, **fields})


def stop(index: int) -> JsonObject:
    return event("content_block_stop", index=index)


def ending(reason: str | None = "end_turn", usage: Json = None, **fields: Json) -> list[JsonObject]:
    """The last two events."""
    usage = {"output_tokens": 10} if usage is None else usage
    changed: JsonObject = {"stop_reason": reason, "stop_sequence": None, **fields}
    return [event("message_delta", delta=changed, usage=usage), event("message_stop")]


def text(index: int, *fragments: str) -> list[JsonObject]:
    """A complete text block."""
    deltas = [delta(index, "text_delta", text=fragment) for fragment in fragments]
    return [start(index, "text", text=""), *deltas, stop(index)]


def tool(index: int, name: str, call_id: str, *fragments: str) -> list[JsonObject]:
    """A complete tool call, with the empty fragment that always comes first."""
    deltas = [delta(index, "input_json_delta", partial_json=fragment) for fragment in ("", *fragments)]
    return [start(index, "tool_use", id=call_id, name=name, input={}), *deltas, stop(index)]


PING = event("ping")


def body(events: Iterable[Event]) -> bytes:
    """A streamed body of these events."""
    return AnthropicWire().stream(*events)
