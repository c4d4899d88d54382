"""OpenAI's Responses API."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from callboard.adapters import OpenAIAdapter
from callboard.adapters.conformance import CALLS, arguments, halves
from callboard.bus.values.base import Json, JsonObject

from ..judges import responses_faults
from ..wire_history import history_faults
from .wire import Event, Wire, openai_error

_INCOMPLETE = {
    "length": "max_output_tokens", "max_output_tokens": "max_output_tokens", "content_filter": "content_filter",
    "steered": "steered",
}  # fmt: skip
"""The reason in an incomplete response, by stop reason."""


class ResponsesWire(Wire):
    name = "openai"
    names_events = True
    adapter = OpenAIAdapter
    base_url = "https://api.openai.com"
    history = "input"
    secrets = ("ZW5jcnlwdGVk",)
    _stops = {"end": "completed", "tools": "completed"}  # noqa: RUF012
    _usage = {  # noqa: RUF012
        "input_tokens": 12,
        "input_tokens_details": {"cached_tokens": 4},
        "output_tokens": 7,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 19,
    }

    def _items(self, text: str, calls: int, thought: str = "") -> list[JsonObject]:
        items: list[JsonObject] = []
        if thought:
            summary = [{"type": "summary_text", "text": thought}]
            items.append(
                {"type": "reasoning", "id": "rs_1", "summary": summary, "encrypted_content": self.secrets[0]}
            )
        if text:
            part = {"type": "output_text", "text": text, "annotations": []}
            items.append(
                {"type": "message", "id": "msg_a", "role": "assistant", "status": "completed", "content": [part]}
            )
        items += [
            {
                "type": "function_call",
                "id": f"fc_{number}",
                "call_id": f"call_{number}",
                "name": CALLS[number][0],
                "arguments": arguments(number),
                "status": "completed",
            }
            for number in range(calls)
        ]
        return items

    def body(self, text: str, calls: int, stop: str, thought: str = "") -> JsonObject:
        why = _INCOMPLETE.get(stop)
        return {
            "id": "resp_1", "object": "response", "model": "gpt-served",
            "status": "incomplete" if why else self._word(stop),
            "incomplete_details": {"reason": why} if why else None, "error": None,
            "output": self._items(text, calls, thought), "usage": self._usage,
        }  # fmt: skip

    def unknown_event(self) -> tuple[str, JsonObject]:
        return "response.mood", {"type": "response.mood", "output_index": 0, "mood": "cheerful"}

    def events(self, text: str, calls: int, stop: str, thought: str = "") -> Iterator[tuple[str, JsonObject]]:
        number = -1

        def event(kind: str, **fields: Json) -> tuple[str, JsonObject]:
            nonlocal number
            number += 1
            return kind, {"type": kind, "sequence_number": number, **fields}

        done = self.body(text, calls, stop, thought)
        begun = {**done, "status": "in_progress", "incomplete_details": None, "output": [], "usage": None}
        yield event("response.created", response=begun)
        yield event("response.in_progress", response=begun)
        for index, item in enumerate(self._items(text, calls, thought)):
            place: JsonObject = {"output_index": index, "item_id": item["id"]}
            if item["type"] == "reasoning":
                yield event("response.output_item.added", output_index=index, item={**item, "summary": []})
                for half in halves(thought):
                    yield event("response.reasoning_summary_text.delta", **place, summary_index=0, delta=half)
            elif item["type"] == "message":
                yield event("response.output_item.added", output_index=index, item={**item, "content": []})
                part = {"type": "output_text", "text": "", "annotations": []}
                yield event("response.content_part.added", **place, content_index=0, part=part)
                for half in halves(text):
                    yield event("response.output_text.delta", **place, content_index=0, delta=half)
                yield event("response.output_text.done", **place, content_index=0, text=text)
                yield event("response.content_part.done", **place, content_index=0, part=item["content"][0])
            else:
                yield event("response.output_item.added", output_index=index, item={**item, "arguments": ""})
                for half in halves(item["arguments"]):
                    yield event("response.function_call_arguments.delta", **place, delta=half)
                yield event("response.function_call_arguments.done", **place, arguments=item["arguments"])
            yield event("response.output_item.done", output_index=index, item=item)
        kind = done["status"] if done["status"] in ("incomplete", "failed", "cancelled") else "completed"
        yield event(f"response.{kind}", response=done)

    def error_body(self, condition: str) -> tuple[int, Json]:
        return openai_error(condition)

    def error_event(self) -> tuple[str, JsonObject]:
        error = {"code": "server_is_overloaded", "message": "Overloaded", "param": None}
        return "error", {"type": "error", "sequence_number": 9, **error}

    def ids(self, body: JsonObject) -> tuple[list[str], list[str]]:
        items = body["input"]
        calls = [item["call_id"] for item in items if item.get("type") == "function_call"]
        return calls, [item["call_id"] for item in items if item.get("type") == "function_call_output"]

    def faults(self, body: bytes) -> list[str]:
        return history_faults("/v1/responses", msgspec.json.decode(body))

    def judged(self, body: bytes) -> list[str]:
        return responses_faults(body)


# -- the words of the protocol

USAGE: JsonObject = {
    "input_tokens": 100, "input_tokens_details": {"cached_tokens": 60, "cache_write_tokens": 30},
    "output_tokens": 20, "output_tokens_details": {"reasoning_tokens": 5}, "total_tokens": 120,
}  # fmt: skip


def event(kind: str, **fields: Json) -> JsonObject:
    return {"type": f"response.{kind}", **fields}


def response(status: str | None = "completed", **fields: Json) -> JsonObject:
    """A response object. `output` is empty, as one backend leaves it at the end of a stream."""
    return {
        "id": "resp_1", "object": "response", "model": "gpt-test-2026", "status": status, "error": None,
        "incomplete_details": None, "output": [], "usage": USAGE, **fields,
    }  # fmt: skip


CREATED = event("created", response=response("in_progress", usage=None))


def ending(status: str = "completed", **fields: Json) -> JsonObject:
    return event(status, response=response(status, **fields))


def message(*texts: str, item_id: str = "msg_1", **fields: Json) -> JsonObject:
    parts: list[Json] = [{"type": "output_text", "text": text, "annotations": []} for text in texts]
    return {
        "type": "message", "id": item_id, "role": "assistant", "status": "completed", "content": parts, **fields,
    }  # fmt: skip


def call(name: str, arguments: str, number: int = 1, **fields: Json) -> JsonObject:
    return {
        "type": "function_call", "id": f"fc_{number}", "call_id": f"call_{number}", "name": name,
        "arguments": arguments, "status": "completed", **fields,
    }  # fmt: skip


def reasoning(*summary: str, number: int = 1, **fields: Json) -> JsonObject:
    parts: list[Json] = [{"type": "summary_text", "text": text} for text in summary]
    return {
        "type": "reasoning", "id": f"rs_{number}", "summary": parts, "encrypted_content": f"secret {number}",
        **fields,
    }  # fmt: skip


def added(index: int, item: JsonObject) -> JsonObject:
    """The event that announces an item, without its later fields."""
    empty: JsonObject = {"content": [], "summary": [], "arguments": ""}
    start = {**item, **{name: value for name, value in empty.items() if name in item}, "status": "in_progress"}
    if "encrypted_content" in item:
        start["encrypted_content"] = "shorter"
    return event("output_item.added", output_index=index, item=start)


def done(index: int, item: JsonObject) -> JsonObject:
    return event("output_item.done", output_index=index, item=item)


def text_delta(index: int, delta: Json, part: int = 0, **fields: Json) -> JsonObject:
    return event(
        "output_text.delta", item_id="msg_1", output_index=index, content_index=part, delta=delta, logprobs=[],
        **fields,
    )  # fmt: skip


def arguments_delta(index: int, delta: Json, number: int = 1) -> JsonObject:
    return event("function_call_arguments.delta", item_id=f"fc_{number}", output_index=index, delta=delta)


def summary_delta(index: int, delta: str, part: int = 0) -> JsonObject:
    return event(
        "reasoning_summary_text.delta", item_id="rs_1", output_index=index, summary_index=part, delta=delta
    )


def body(events: Iterable[Event]) -> bytes:
    """A streamed body of these events."""
    return ResponsesWire().stream(*events)
