"""How each protocol says the same things: the conformance kits of our own adapters.

A provider joins by a subclass of Wire and an entry in WIRES; every check of `adapters.conformance`, and every test
here, then runs with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from adapters import AnthropicAdapter, OpenAIAdapter, OpenAICompatibleAdapter
from adapters.conformance import CALLS, arguments, halves, write_event
from adapters.conformance.http_kit import HttpKit as Wire
from bus.json_types import Json, JsonObject

__all__ = [
    "CALLS",
    "QUIRKY",
    "WIRES",
    "AnthropicWire",
    "ChatWire",
    "ResponsesWire",
    "Wire",
    "arguments",
    "halves",
    "write_event",
]


class AnthropicWire(Wire):
    name = "anthropic"
    adapter = AnthropicAdapter
    base_url = "https://api.anthropic.com"
    id_prefix = "toolu_0"
    _stops = {"end": "end_turn", "tools": "tool_use", "length": "max_tokens"}  # noqa: RUF012
    _usage = {"input_tokens": 8, "cache_read_input_tokens": 4, "cache_creation_input_tokens": 0}  # noqa: RUF012

    def body(self, text: str, calls: int, stop: str) -> JsonObject:
        content: list[Json] = [{"type": "text", "text": text}] if text else []
        for number in range(calls):
            name, given = CALLS[number]
            content.append({"type": "tool_use", "id": f"toolu_0{number}", "name": name, "input": given})
        return {**self._message(), "content": content, "stop_reason": self._stops[stop], "usage": {
            **self._usage, "output_tokens": 7}}  # fmt: skip

    def _message(self) -> JsonObject:
        return {"id": "msg_01", "type": "message", "role": "assistant", "model": "claude-served"}

    def thinking_body(self, thought: str, text: str) -> JsonObject:
        body = self.body(text, 0, "end")
        return {
            **body,
            "content": [{"type": "thinking", "thinking": thought, "signature": "c2ln"}, *body["content"]],
        }

    def thinking_events(self, thought: str, text: str) -> Iterable[tuple[str, JsonObject]]:
        first, *rest = self.events(text, 0, "end")
        start = {"type": "thinking", "thinking": "", "signature": ""}
        deltas = [{"type": "thinking_delta", "thinking": half} for half in halves(thought)]
        thinking = [
            ("content_block_start", {"type": "content_block_start", "index": 0, "content_block": start}),
            *[
                ("content_block_delta", {"type": "content_block_delta", "index": 0, "delta": delta})
                for delta in [*deltas, {"type": "signature_delta", "signature": "c2ln"}]
            ],
            ("content_block_stop", {"type": "content_block_stop", "index": 0}),
        ]
        later = [(name, {**data, "index": data["index"] + 1} if "index" in data else data) for name, data in rest]
        return [first, *thinking, *later]

    def unknown_event(self) -> tuple[str, JsonObject]:
        return "mood", {"type": "mood", "index": 0, "mood": {"type": "cheerful"}}

    def events(self, text: str, calls: int, stop: str) -> Iterator[tuple[str, JsonObject]]:
        def event(kind: str, **fields: Json) -> tuple[str, JsonObject]:
            return kind, {"type": kind, **fields}

        started = {
            **self._message(),
            "content": [],
            "stop_reason": None,
            "usage": {**self._usage, "output_tokens": 1},
        }
        yield event("message_start", message=started)
        index = 0
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
        yield event("message_delta", delta={"stop_reason": self._stops[stop]}, usage={"output_tokens": 7})
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


class ResponsesWire(Wire):
    name = "openai"
    adapter = OpenAIAdapter
    base_url = "https://api.openai.com"
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
            items.append({"type": "reasoning", "id": "rs_1", "summary": summary, "encrypted_content": "AAAA"})
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
        return {
            "id": "resp_1",
            "object": "response",
            "model": "gpt-served",
            "status": "incomplete" if stop == "length" else "completed",
            "incomplete_details": {"reason": "max_output_tokens"} if stop == "length" else None,
            "error": None,
            "output": self._items(text, calls, thought),
            "usage": self._usage,
        }

    def thinking_body(self, thought: str, text: str) -> JsonObject:
        return self.body(text, 0, "end", thought)

    def thinking_events(self, thought: str, text: str) -> Iterator[tuple[str, JsonObject]]:
        return self.events(text, 0, "end", thought)

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
        yield event("response.incomplete" if stop == "length" else "response.completed", response=done)

    def error_body(self, condition: str) -> tuple[int, Json]:
        return openai_error(condition)

    def error_event(self) -> tuple[str, JsonObject]:
        error = {"code": "server_is_overloaded", "message": "Overloaded", "param": None}
        return "error", {"type": "error", "sequence_number": 9, **error}

    def ids(self, body: JsonObject) -> tuple[list[str], list[str]]:
        items = body["input"]
        calls = [item["call_id"] for item in items if item.get("type") == "function_call"]
        return calls, [item["call_id"] for item in items if item.get("type") == "function_call_output"]


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
        choice = {"index": 0, "message": message, "finish_reason": self._stops[stop]}
        return {
            "id": "chatcmpl-1",
            "object": "chat.completion",
            "model": "gpt-served",
            "choices": [choice],
            "usage": self._usage,
        }

    def thinking_body(self, thought: str, text: str) -> JsonObject:
        return self.body(text, 0, "end", thought)

    def thinking_events(self, thought: str, text: str) -> Iterator[tuple[str, JsonObject]]:
        return self.events(text, 0, "end", thought)

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
        yield chunk({}, self._stops[stop])
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


def openai_error(condition: str) -> tuple[int, Json]:
    status, kind, code, message = {
        "rate limit": (429, "requests", "rate_limit_exceeded", "Rate limit reached for requests"),
        "overload": (503, "server_error", "server_is_overloaded", "The server is overloaded"),
        "quota": (429, "insufficient_quota", "insufficient_quota", "You exceeded your current quota"),
        "bad key": (401, "invalid_request_error", "invalid_api_key", "Incorrect API key provided: sk-***"),
        "forbidden": (403, "invalid_request_error", "unsupported_country_region_territory", "Not supported"),
        "no model": (404, "invalid_request_error", "model_not_found", "The model does not exist"),
        "overflow": (
            400,
            "invalid_request_error",
            "context_length_exceeded",
            "maximum context length is 8192 tokens",
        ),
        "bad request": (400, "invalid_request_error", None, "Invalid value: must be positive"),
        "server": (500, "server_error", None, "The server had an error"),
    }[condition]
    return status, {"error": {"type": kind, "code": code, "message": message, "param": None}}


WIRES: tuple[Wire, ...] = (AnthropicWire(), ResponsesWire(), ChatWire())

QUIRKY: tuple[Wire, ...] = (
    ChatWire("openai"),
    ChatWire("vllm"),
    ChatWire("ollama"),
    ChatWire("deepseek"),
    ChatWire("mistral", id_prefix="abcdefgh"),
    ChatWire("openrouter"),
    ChatWire("cerebras"),
    ChatWire("llama.cpp"),
)
"""Servers of one protocol that differ in what is sent to them."""
