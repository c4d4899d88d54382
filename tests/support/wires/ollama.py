"""Ollama's own protocol."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import msgspec

from callboard.adapters import OllamaAdapter
from callboard.adapters.conformance import CALLS, halves
from callboard.bus.values.base import Json, JsonObject
from callboard.bus.values.usage import TokenUsage

from .. import fake_http
from ..judges import ollama_faults
from .wire import Event, Wire, as_data


class OllamaWire(Wire):
    name = "ollama"
    adapter = OllamaAdapter
    base_url = "http://localhost:11434"
    content_type = "application/x-ndjson"
    has_response_ids = False
    fetches = False
    options = {"num_ctx": 16384}  # noqa: RUF012
    """Without this option, the window grows with the history."""

    usage = TokenUsage(12, 7)
    knows = {  # noqa: RUF012
        "/api/tags": {"models": [{"name": "some-model"}]},
        "/api/show": {
            "capabilities": ["completion", "tools", "thinking", "vision"],
            "details": {"family": "served"},
            "model_info": {"general.architecture": "served", "served.context_length": 32768},
        },
    }
    _stops = {"end": "stop", "tools": "stop", "length": "length"}  # noqa: RUF012

    def _call(self, number: int) -> JsonObject:
        name, given = CALLS[number]
        return {"id": f"call_{number}", "function": {"index": number, "name": name, "arguments": given}}

    def _line(self, **fields: Json) -> JsonObject:
        message: JsonObject = {"role": "assistant", "content": "", **fields}
        return {"model": "served", "created_at": "2026-11-01T12:00:00Z", "message": message, "done": False}

    def _last(self, stop: str, **fields: Json) -> JsonObject:
        return {
            **self._line(**fields), "done": True, "done_reason": self._word(stop), "total_duration": 5_000_000,
            "prompt_eval_count": 12, "eval_count": 7,
        }  # fmt: skip

    def body(self, text: str, calls: int, stop: str, thought: str = "") -> JsonObject:
        fields: JsonObject = {"content": text}
        if thought:
            fields["thinking"] = thought
        if calls:
            fields["tool_calls"] = [self._call(number) for number in range(calls)]
        return self._last(stop, **fields)

    def unknown_event(self) -> tuple[str, JsonObject]:
        return "", self._line(mood="cheerful")

    def events(self, text: str, calls: int, stop: str, thought: str = "") -> Iterator[tuple[str, JsonObject]]:
        for half in halves(thought) if thought else ():
            yield "", self._line(thinking=half)
        for half in halves(text) if text else ():
            yield "", self._line(content=half)
        for number in range(calls):
            yield "", self._line(tool_calls=[self._call(number)])
        yield "", self._last(stop)

    def write_event(self, name: str, data: Json) -> bytes:
        return msgspec.json.encode(data) + b"\n"

    def stream(self, *events: Event, named: bool = True, line_end: bytes = b"\n", colon: bytes = b": ") -> bytes:
        return b"".join(as_data(event) + line_end for event in events)

    def other_forms(self, *events: Event) -> list[bytes]:
        return [self.stream(*events, line_end=b"\r\n"), self.stream(*events).replace(b"\n", b"\n\n").rstrip()]

    def error_body(self, condition: str) -> tuple[int, Json]:
        status, message = {
            "rate limit": (429, "too many concurrent requests"),
            "overload": (503, "server busy, please try again.  maximum pending requests exceeded"),
            "quota": (402, "this model needs a paid plan"),
            "bad key": (401, "unauthorized"),
            "forbidden": (403, "cloud models are disabled on this server"),
            "no model": (404, "model 'none' not found"),
            "overflow": (400, "the prompt is longer than the context length currently available to the model"),
            "bad request": (400, "invalid options: temperature"),
            "server": (500, "llama runner process has terminated: exit status 2"),
        }[condition]
        return status, {"error": message}

    def error_event(self) -> tuple[str, JsonObject]:
        return "", {"error": "server busy, please try again.  maximum pending requests exceeded"}

    def ids(self, body: JsonObject) -> tuple[list[str], list[str]]:
        messages = body["messages"]
        calls = [call["id"] for message in messages for call in message.get("tool_calls") or ()]
        return calls, [message["tool_call_id"] for message in messages if message["role"] == "tool"]

    def judged(self, body: bytes) -> list[str]:
        return ollama_faults(body)


# -- the words of the protocol

METRICS: JsonObject = {
    "total_duration": 174560334, "load_duration": 101397084, "prompt_eval_count": 11,
    "prompt_eval_duration": 13074791, "eval_count": 18, "eval_duration": 52479709,
}  # fmt: skip


def line(**message: Json) -> JsonObject:
    """One line of a stream, before the last."""
    said: JsonObject = {"role": "assistant", "content": "", **message}
    return {"model": "qwen3:8b", "created_at": "2026-10-17T23:14:07.414671Z", "message": said, "done": False}


def last(reason: str | None = "stop", metrics: JsonObject = METRICS, **message: Json) -> JsonObject:
    """The last line of a stream, or a complete plain reply."""
    ended: JsonObject = {} if reason is None else {"done_reason": reason}
    return {**line(**message), "done": True, **ended, **metrics}


def call(name: str, arguments: Json, wire_id: str | None = None) -> JsonObject:
    function: JsonObject = {"name": name, "arguments": arguments}
    return {"function": function} if wire_id is None else {"id": wire_id, "function": function}


def body(*events: Event) -> bytes:
    """A streamed body of these events."""
    return OllamaWire().stream(*events)


ask = partial(fake_http.ask, model="ollama:qwen3:8b", message_id="msg_1")
"""A request to a model of this wire."""
