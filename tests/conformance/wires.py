"""How each protocol says the same things: what the conformance suite needs to know of an adapter.

A third-party adapter joins by a subclass of Wire and an entry in WIRES; every test of the suite then runs with it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator

import msgspec

from adapters import (
    AnthropicAdapter,
    GeminiAdapter,
    OllamaAdapter,
    OpenAIAdapter,
    OpenAICompatibleAdapter,
    TGIAdapter,
)
from adapters.contract import AdapterConfig
from adapters.http_adapter import HttpAdapter
from adapters.transport import HttpReply, HttpRequest, Transport
from bus.clock import Clock
from bus.json_types import Json, JsonObject

from ..support.fake_http import FakeReply
from ..support.judges import chat_faults, messages_faults, responses_faults
from ..support.wire_history import history_faults

CALLS = (("read_file", {"path": "a.txt"}), ("list_files", {"path": ".", "deep": True, "limit": 3}))


class Wire(ABC):
    """One protocol. Every reply reports 12 input tokens, 4 of them from a cache, and 7 output tokens.

    What a protocol can't say, its wire says here: cached_tokens, of the 12; whether its replies have an id; into
    how many pieces it cuts a call's arguments; after how many events its text is over; whether it calls tools at
    all (then emulated calls are tested with its adapter).
    """

    name: str
    adapter: type[HttpAdapter]
    base_url: str
    id_prefix = "call_"
    history = "messages"  # the key of a request's body under which the conversation stands
    secrets: tuple[str, ...] = ()
    """What the reasoning in `reasoned` carries that must come back to this provider, and go to nobody else."""
    cached_tokens = 4
    has_response_ids = True
    call_pieces = 2
    closing_events = 3
    calls_tools = True

    def make(self, transport: Transport, clock: Clock, **config: object) -> HttpAdapter:
        settings = AdapterConfig(**{"api_key": "sk-conformance", "base_url": self.base_url, **config})  # type: ignore[arg-type]
        return self.adapter(settings, transport=transport, clock=clock)

    @abstractmethod
    def body(self, text: str, calls: int, stop: str) -> JsonObject:
        """A whole reply: text, the first `calls` of CALLS, and why it stopped (end, tools or length)."""

    @abstractmethod
    def events(self, text: str, calls: int, stop: str) -> Iterator[tuple[str, JsonObject]]:
        """The same as a stream; names may be empty. Text and arguments come in two pieces."""

    @abstractmethod
    def error_body(self, condition: str) -> tuple[int, Json]:
        """Status and body of a failure: one of `test_substitutability.CONDITIONS`."""

    @abstractmethod
    def error_event(self) -> tuple[str, JsonObject]:
        """The provider fails in the middle of a stream, because it is overloaded."""

    @abstractmethod
    def ids(self, body: JsonObject) -> tuple[list[str], list[str]]:
        """The ids of the calls and of the results in a request."""

    def reasoned(self, thought: str, text: str, calls: int, stop: str) -> JsonObject:
        """As `body`, with reasoning before it where the protocol has any."""
        return self.body(text, calls, stop)

    def faults(self, body: bytes) -> list[str]:
        """What the provider would refuse in a request's history; the least is that calls and results are pairs."""
        calls, results = self.ids(msgspec.json.decode(body))
        return [] if sorted(calls) == sorted(results) else [f"calls {calls} and results {results} are no pairs"]

    def says(self, calls: int) -> bool:
        """Whether it can say so many calls."""
        return self.calls_tools or not calls

    def judged(self, body: bytes) -> list[str]:
        """What the vendor's own types find wrong with a request."""
        return []

    def ids_issued(self, calls: int) -> list[str]:
        """The ids that it gives its first calls."""
        return [f"{self.id_prefix}{number}" for number in range(calls)]

    def whole(self, text: str = "", calls: int = 0, stop: str = "end") -> FakeReply:
        body = msgspec.json.encode(self.body(text, calls, stop))
        return FakeReply(body, headers={"content-type": "application/json"})

    def chunks(self, text: str = "", calls: int = 0, stop: str = "end") -> list[bytes]:
        """A streamed reply, one piece for each event."""
        return [self.event(*event) for event in self.events(text, calls, stop)]

    def event(self, name: str, data: Json) -> bytes:
        """One event as it stands in a body."""
        return write_event(name, data)

    def asked(self, request: HttpRequest) -> tuple[Json, bool, Json]:
        """What a request asks for: the model if it can, whether to stream, the limit of output tokens."""
        body = msgspec.json.decode(request.body)
        limits = ("max_tokens", "max_completion_tokens", "max_output_tokens")
        return body["model"], body.get("stream") is True, next(body[name] for name in limits if name in body)

    def streamed(self, text: str = "", calls: int = 0, stop: str = "end") -> FakeReply:
        return FakeReply(*self.chunks(text, calls, stop))

    def failing(self, condition: str) -> FakeReply:
        status, body = self.error_body(condition)
        return FakeReply(msgspec.json.encode(body), status=status, headers={"content-type": "application/json"})


def write_event(name: str, data: Json) -> bytes:
    head = f"event: {name}\n".encode() if name else b""
    return head + b"data: " + (data.encode() if isinstance(data, str) else msgspec.json.encode(data)) + b"\n\n"


def halves(text: str) -> tuple[str, str]:
    return text[: len(text) // 2], text[len(text) // 2 :]


def arguments(call: int) -> str:
    return msgspec.json.encode(CALLS[call][1]).decode()


class AnthropicWire(Wire):
    name = "anthropic"
    adapter = AnthropicAdapter
    base_url = "https://api.anthropic.com"
    id_prefix = "toolu_0"
    secrets = ("c2lnbmF0dXJl", "aGlkZGVu")
    _stops = {"end": "end_turn", "tools": "tool_use", "length": "max_tokens"}  # noqa: RUF012
    _usage = {"input_tokens": 8, "cache_read_input_tokens": 4, "cache_creation_input_tokens": 0}  # noqa: RUF012

    def body(self, text: str, calls: int, stop: str) -> JsonObject:
        content: list[Json] = [{"type": "text", "text": text}] if text else []
        for number in range(calls):
            name, given = CALLS[number]
            content.append({"type": "tool_use", "id": f"toolu_0{number}", "name": name, "input": given})
        return {**self._message(), "content": content, "stop_reason": self._stops[stop], "usage": {
            **self._usage, "output_tokens": 7}}  # fmt: skip

    def reasoned(self, thought: str, text: str, calls: int, stop: str) -> JsonObject:
        body = self.body(text, calls, stop)
        shown = {"type": "thinking", "thinking": thought, "signature": self.secrets[0]}
        return {
            **body,
            "content": [shown, {"type": "redacted_thinking", "data": self.secrets[1]}, *body["content"]],
        }

    def faults(self, body: bytes) -> list[str]:
        return history_faults("/v1/messages", msgspec.json.decode(body))

    def judged(self, body: bytes) -> list[str]:
        return messages_faults(body)

    def _message(self) -> JsonObject:
        return {"id": "msg_01", "type": "message", "role": "assistant", "model": "claude-served"}

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
    history = "input"
    secrets = ("ZW5jcnlwdGVk",)
    _usage = {  # noqa: RUF012
        "input_tokens": 12,
        "input_tokens_details": {"cached_tokens": 4},
        "output_tokens": 7,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 19,
    }

    def _items(self, text: str, calls: int) -> list[JsonObject]:
        items: list[JsonObject] = []
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

    def body(self, text: str, calls: int, stop: str) -> JsonObject:
        return {
            "id": "resp_1",
            "object": "response",
            "model": "gpt-served",
            "status": "incomplete" if stop == "length" else "completed",
            "incomplete_details": {"reason": "max_output_tokens"} if stop == "length" else None,
            "error": None,
            "output": self._items(text, calls),
            "usage": self._usage,
        }

    def reasoned(self, thought: str, text: str, calls: int, stop: str) -> JsonObject:
        body = self.body(text, calls, stop)
        summary: Json = [{"type": "summary_text", "text": thought}]
        item = {"type": "reasoning", "id": "rs_1", "summary": summary, "encrypted_content": self.secrets[0]}
        return {**body, "output": [item, *body["output"]]}

    def faults(self, body: bytes) -> list[str]:
        return history_faults("/v1/responses", msgspec.json.decode(body))

    def judged(self, body: bytes) -> list[str]:
        return responses_faults(body)

    def events(self, text: str, calls: int, stop: str) -> Iterator[tuple[str, JsonObject]]:
        number = -1

        def event(kind: str, **fields: Json) -> tuple[str, JsonObject]:
            nonlocal number
            number += 1
            return kind, {"type": kind, "sequence_number": number, **fields}

        done = self.body(text, calls, stop)
        begun = {**done, "status": "in_progress", "incomplete_details": None, "output": [], "usage": None}
        yield event("response.created", response=begun)
        yield event("response.in_progress", response=begun)
        for index, item in enumerate(self._items(text, calls)):
            place: JsonObject = {"output_index": index, "item_id": item["id"]}
            if item["type"] == "message":
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

    def body(self, text: str, calls: int, stop: str) -> JsonObject:
        message: JsonObject = {"role": "assistant", "content": text or None}
        if calls:
            message["tool_calls"] = [
                {
                    "id": f"call_{number}",
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

    def reasoned(self, thought: str, text: str, calls: int, stop: str) -> JsonObject:
        body = self.body(text, calls, stop)
        body["choices"][0]["message"]["reasoning_content"] = thought
        return body

    def faults(self, body: bytes) -> list[str]:
        return history_faults("/v1/chat/completions", msgspec.json.decode(body))

    def judged(self, body: bytes) -> list[str]:
        return chat_faults(body)

    def events(self, text: str, calls: int, stop: str) -> Iterator[tuple[str, JsonObject]]:
        def chunk(delta: JsonObject, finish: str | None = None) -> tuple[str, JsonObject]:
            choice = {"index": 0, "delta": delta, "finish_reason": finish}
            return "", {**head, "choices": [choice], "usage": None}

        head: JsonObject = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "model": "gpt-served"}
        yield chunk({"role": "assistant", "content": ""})
        for half in halves(text) if text else ():
            yield chunk({"content": half})
        for number in range(calls):
            function = {"name": CALLS[number][0], "arguments": ""}
            start = {"index": number, "id": f"call_{number}", "type": "function", "function": function}
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


class GeminiWire(Wire):
    name = "gemini"
    adapter = GeminiAdapter
    base_url = "https://generativelanguage.googleapis.com"
    call_pieces = 1
    closing_events = 2
    history = "contents"
    secrets = ("Z2VtaW5pLXNpZ25lZA==",)
    _stops = {"end": "STOP", "tools": "STOP", "length": "MAX_TOKENS"}  # noqa: RUF012
    _usage = {  # noqa: RUF012
        "promptTokenCount": 10,
        "cachedContentTokenCount": 4,
        "toolUsePromptTokenCount": 2,
        "candidatesTokenCount": 5,
        "thoughtsTokenCount": 2,
        "totalTokenCount": 19,
    }

    def _chunk(self, *parts: JsonObject, stop: str | None = None, usage: Json = None) -> JsonObject:
        candidate: JsonObject = {"content": {"parts": list(parts), "role": "model"}, "index": 0}
        if stop is not None:
            candidate["finishReason"] = self._stops[stop]
        counted = usage or {"promptTokenCount": 10, "totalTokenCount": 10}
        return {"candidates": [candidate], "usageMetadata": counted, **self._identity()}

    def _identity(self) -> JsonObject:
        return {"modelVersion": "gemini-served", "responseId": "reply-1"}

    def _calls(self, calls: int) -> list[JsonObject]:
        return [
            {"functionCall": {"id": f"call_{number}", "name": name, "args": given}}
            for number, (name, given) in enumerate(CALLS[:calls])
        ]

    def body(self, text: str, calls: int, stop: str) -> JsonObject:
        said: list[JsonObject] = [{"text": text}] if text else []
        return self._chunk(*said, *self._calls(calls), stop=stop, usage=self._usage)

    def events(self, text: str, calls: int, stop: str) -> Iterator[tuple[str, JsonObject]]:
        for half in halves(text) if text else ():
            yield "", self._chunk({"text": half})
        for call in self._calls(calls):
            yield "", self._chunk(call)
        yield "", self._chunk({"text": ""}, stop=stop)
        yield "", {"usageMetadata": self._usage, **self._identity()}

    def error_body(self, condition: str) -> tuple[int, Json]:
        google = "type.googleapis.com/google.rpc."
        per_day: Json = {"@type": google + "QuotaFailure", "violations": [{"quotaId": "RequestsPerDayPerProject"}]}
        bad_key: Json = {"@type": google + "ErrorInfo", "reason": "API_KEY_INVALID"}
        quota = "You exceeded your current quota, please check your plan and billing details."
        overflow = "The input token count (1200000) exceeds the maximum number of tokens allowed (1048576)."
        cases: dict[str, tuple[int, str, str, list[Json]]] = {
            "rate limit": (429, "RESOURCE_EXHAUSTED", quota, []),
            "overload": (503, "UNAVAILABLE", "The model is overloaded. Please try again later.", []),
            "quota": (429, "RESOURCE_EXHAUSTED", quota, [per_day]),
            "bad key": (400, "INVALID_ARGUMENT", "API key not valid. Please pass a valid API key.", [bad_key]),
            "forbidden": (403, "PERMISSION_DENIED", "Your API key was reported as leaked.", []),
            "no model": (404, "NOT_FOUND", "models/gemini-none is not found for API version v1beta", []),
            "overflow": (400, "INVALID_ARGUMENT", overflow, []),
            "bad request": (400, "INVALID_ARGUMENT", "Request contains an invalid argument.", []),
            "server": (500, "INTERNAL", "An internal error has occurred.", []),
        }
        status, canonical, message, details = cases[condition]
        return status, {"error": {"code": status, "message": message, "status": canonical, "details": details}}

    def error_event(self) -> tuple[str, JsonObject]:
        return "", {"error": {"code": 503, "message": "The model is overloaded.", "status": "UNAVAILABLE"}}

    def ids(self, body: JsonObject) -> tuple[list[str], list[str]]:
        parts = [part for content in body["contents"] for part in content["parts"]]
        calls = [part["functionCall"]["id"] for part in parts if "functionCall" in part]
        return calls, [part["functionResponse"]["id"] for part in parts if "functionResponse" in part]

    def faults(self, body: bytes) -> list[str]:
        return history_faults("/v1beta/models/served:generateContent", msgspec.json.decode(body))

    def asked(self, request: HttpRequest) -> tuple[Json, bool, Json]:
        model, _, method = request.url.rpartition("/")[2].partition(":")
        limit = msgspec.json.decode(request.body)["generationConfig"]["maxOutputTokens"]
        return model, method == "streamGenerateContent?alt=sse", limit


class Knowing:
    """A transport that answers by itself what Ollama's adapter asks about a model before it is first used."""

    def __init__(self, transport: Transport) -> None:
        self.transport = transport

    async def send(self, request: HttpRequest) -> HttpReply:
        if not request.url.endswith("/api/show"):
            return await self.transport.send(request)
        facts = {
            "capabilities": ["completion", "tools", "thinking", "vision"],
            "details": {"family": "served"},
            "model_info": {"general.architecture": "served", "served.context_length": 32768},
        }
        return FakeReply(msgspec.json.encode(facts), headers={"content-type": "application/json"})

    async def aclose(self) -> None:
        await self.transport.aclose()


class OllamaWire(Wire):
    name = "ollama"
    adapter = OllamaAdapter
    base_url = "http://localhost:11434"
    cached_tokens = 0
    has_response_ids = False
    call_pieces = 1
    closing_events = 1
    _stops = {"end": "stop", "tools": "stop", "length": "length"}  # noqa: RUF012

    def make(self, transport: Transport, clock: Clock, **config: object) -> HttpAdapter:
        return super().make(Knowing(transport), clock, **config)

    def _call(self, number: int) -> JsonObject:
        name, given = CALLS[number]
        return {"id": f"call_{number}", "function": {"index": number, "name": name, "arguments": given}}

    def _line(self, **fields: Json) -> JsonObject:
        message: JsonObject = {"role": "assistant", "content": "", **fields}
        return {"model": "served", "created_at": "2026-11-01T12:00:00Z", "message": message, "done": False}

    def _last(self, stop: str, **fields: Json) -> JsonObject:
        return {
            **self._line(**fields),
            "done": True,
            "done_reason": self._stops[stop],
            "total_duration": 5_000_000,
            "prompt_eval_count": 12,
            "eval_count": 7,
        }

    def body(self, text: str, calls: int, stop: str) -> JsonObject:
        if not calls:
            return self._last(stop, content=text)
        return self._last(stop, content=text, tool_calls=[self._call(number) for number in range(calls)])

    def events(self, text: str, calls: int, stop: str) -> Iterator[tuple[str, JsonObject]]:
        for half in halves(text) if text else ():
            yield "", self._line(content=half)
        for number in range(calls):
            yield "", self._line(tool_calls=[self._call(number)])
        yield "", self._last(stop)

    def event(self, name: str, data: Json) -> bytes:
        return msgspec.json.encode(data) + b"\n"

    def asked(self, request: HttpRequest) -> tuple[Json, bool, Json]:
        body = msgspec.json.decode(request.body)
        return body["model"], body["stream"], body["options"]["num_predict"]

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


class TGIWire(Wire):
    name = "tgi"
    adapter = TGIAdapter
    base_url = "http://localhost:8080"
    cached_tokens = 0
    has_response_ids = False
    closing_events = 1
    calls_tools = False
    _stops = {"end": "eos_token", "tools": "eos_token", "length": "length"}  # noqa: RUF012

    def _details(self, stop: str) -> JsonObject:
        return {"finish_reason": self._stops[stop], "generated_tokens": 7, "input_length": 12, "seed": None}

    def _token(self, text: str, *, special: bool = False) -> JsonObject:
        token: JsonObject = {"id": 1, "text": text, "logprob": -0.5, "special": special}
        return {"index": 1, "token": token, "generated_text": None, "details": None}

    def body(self, text: str, calls: int, stop: str) -> JsonObject:
        return {"generated_text": text, "details": self._details(stop)}

    def events(self, text: str, calls: int, stop: str) -> Iterator[tuple[str, JsonObject]]:
        for half in halves(text) if text else ():
            yield "", self._token(half)
        last = self._token("</s>", special=True)
        yield "", {**last, "generated_text": text, "details": self._details(stop)}

    def asked(self, request: HttpRequest) -> tuple[Json, bool, Json]:
        limit = msgspec.json.decode(request.body)["parameters"]["max_new_tokens"]
        return None, request.url.endswith("/generate_stream"), limit

    def error_body(self, condition: str) -> tuple[int, Json]:
        status, message, kind = {
            "rate limit": (429, "Rate limit reached", None),
            "overload": (429, "Model is overloaded", "overloaded"),
            "quota": (402, "You have exceeded your monthly included credits", None),
            "bad key": (401, "Authorization header is invalid", None),
            "forbidden": (403, "This token may not call this endpoint", None),
            "no model": (404, "Model none does not exist", None),
            "overflow": (
                422,
                "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 2048. Given: 4096",
                "validation",
            ),
            "bad request": (422, "Input validation error: `temperature` must be strictly positive", "validation"),
            "server": (424, "Request failed during generation: Server error", "generation"),
        }[condition]
        return status, {"error": message} if kind is None else {"error": message, "error_type": kind}

    def error_event(self) -> tuple[str, JsonObject]:
        return "", {"error": "Model is overloaded", "error_type": "overloaded"}

    def ids(self, body: JsonObject) -> tuple[list[str], list[str]]:
        return [], []


WIRES: tuple[Wire, ...] = (AnthropicWire(), ResponsesWire(), ChatWire(), GeminiWire(), OllamaWire(), TGIWire())
CALLING_WIRES = tuple(wire for wire in WIRES if wire.calls_tools)
