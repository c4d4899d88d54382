"""A provider whose model is scripted: requests are read and replies written on each of the four wires."""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, TypeAlias

import msgspec

from .model import Asked, Call, Offered, Reply, ScriptedModel

INPUT_TOKENS, CACHED_TOKENS, OUTPUT_TOKENS = 1000, 400, 50
"""The usage of each reply. The first number includes the second."""

Data: TypeAlias = dict[str, Any]
Events: TypeAlias = Iterator[tuple[str, Any]]


def _text_of(content: Any) -> str:
    """The text of a content: a text, a part, or a list of parts."""
    match content:
        case str():
            return content
        case list():
            return "\n".join(map(_text_of, content))
        case {"text": str(text)}:
            return text
        case {"output": inner} | {"content": inner} | {"llmContent": inner}:
            return _text_of(inner)
        case dict() | None:
            return msgspec.json.encode(content).decode()
        case _:
            return str(content)


def _halves(text: str) -> tuple[str, str]:
    return text[: len(text) // 2], text[len(text) // 2 :]


def _arguments(call: Call) -> str:
    return call.input if isinstance(call.input, str) else msgspec.json.encode(call.input).decode()


# --- Messages ---


def read_messages(body: Data, path: str) -> Asked:
    results = [
        _text_of(block.get("content"))
        for message in body["messages"]
        if isinstance(message["content"], list)
        for block in message["content"]
        if block["type"] == "tool_result"
    ]
    tools = [Offered(tool["name"], tool.get("input_schema") or {}) for tool in body.get("tools") or []]
    form = (body.get("output_config") or {}).get("format") or body.get("output_format") or {}
    return Asked(tools, results, body.get("stream") is True, form.get("schema"))


def write_messages(reply: Reply, number: int) -> tuple[Data, Events]:
    usage = {
        "input_tokens": INPUT_TOKENS - CACHED_TOKENS,
        "cache_read_input_tokens": CACHED_TOKENS,
        "cache_creation_input_tokens": 0,
    }
    block: Data = {"type": "text", "text": reply} if isinstance(reply, str) else {
        "type": "tool_use", "id": f"toolu_{number:04}", "name": reply.tool.name, "input": reply.input,
    }  # fmt: skip
    stop = "end_turn" if isinstance(reply, str) else "tool_use"
    message: Data = {
        "id": f"msg_{number:04}", "type": "message", "role": "assistant", "model": "lab", "content": [block],
        "stop_reason": stop, "stop_sequence": None, "usage": {**usage, "output_tokens": OUTPUT_TOKENS},
    }  # fmt: skip

    def events() -> Events:
        begun = {**message, "content": [], "stop_reason": None, "usage": {**usage, "output_tokens": 1}}
        yield "message_start", {"type": "message_start", "message": begun}
        empty = {**block, "text": ""} if isinstance(reply, str) else {**block, "input": {}}
        yield "content_block_start", {"type": "content_block_start", "index": 0, "content_block": empty}
        yield "ping", {"type": "ping"}
        for half in _halves(reply if isinstance(reply, str) else _arguments(reply)):
            delta = (
                {"type": "text_delta", "text": half}
                if isinstance(reply, str)
                else {"type": "input_json_delta", "partial_json": half}
            )
            yield "content_block_delta", {"type": "content_block_delta", "index": 0, "delta": delta}
        yield "content_block_stop", {"type": "content_block_stop", "index": 0}
        end = {"delta": {"stop_reason": stop, "stop_sequence": None}, "usage": {"output_tokens": OUTPUT_TOKENS}}
        yield "message_delta", {"type": "message_delta", **end}
        yield "message_stop", {"type": "message_stop"}

    return message, events()


# --- Responses ---


def read_responses(body: Data, path: str) -> Asked:
    items = body["input"] if isinstance(body["input"], list) else []
    results = [
        _text_of(item["output"])
        for item in items
        if item.get("type") in ("function_call_output", "custom_tool_call_output")
    ]
    tools: list[Offered] = []
    added = [tool for item in items if item.get("type") == "additional_tools" for tool in item["tools"]]
    for tool in [*(body.get("tools") or []), *added]:
        inner = tool["tools"] if tool["type"] == "namespace" else [tool]
        space = tool["name"] if tool["type"] == "namespace" else ""
        for each in inner:
            if each["type"] in ("function", "custom"):
                free = each["type"] == "custom"
                tools.append(Offered(each["name"], each.get("parameters") or {}, free, space))
    form = (body.get("text") or {}).get("format") or {}
    return Asked(tools, results, body.get("stream") is True, form.get("schema"))


def write_responses(reply: Reply, number: int) -> tuple[Data, Events]:
    if isinstance(reply, str):
        part = {"type": "output_text", "text": reply, "annotations": [], "logprobs": []}
        item: Data = {"type": "message", "role": "assistant", "content": [part]}
    elif reply.tool.free_form:
        item = {"type": "custom_tool_call", "name": reply.tool.name, "input": _arguments(reply)}
    else:
        item = {"type": "function_call", "name": reply.tool.name, "arguments": _arguments(reply)}
    if not isinstance(reply, str):
        item["call_id"] = f"call_{number:04}"
        if reply.tool.namespace:
            item["namespace"] = reply.tool.namespace
    item |= {"id": f"it_{number:04}", "status": "completed"}
    usage = {
        "input_tokens": INPUT_TOKENS, "input_tokens_details": {"cached_tokens": CACHED_TOKENS},
        "output_tokens": OUTPUT_TOKENS, "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": INPUT_TOKENS + OUTPUT_TOKENS,
    }  # fmt: skip
    response: Data = {
        "id": f"resp_{number:04}", "object": "response", "created_at": 1, "model": "lab", "status": "completed",
        "error": None, "incomplete_details": None, "output": [item], "usage": usage, "tools": [],
        "parallel_tool_calls": True, "tool_choice": "auto",
    }  # fmt: skip

    def bare() -> Iterator[Data]:
        begun = {**response, "status": "in_progress", "output": [], "usage": None}
        yield {"type": "response.created", "response": begun}
        place = {"output_index": 0, "item_id": item["id"]}
        kind, field = {
            "message": ("output_text", ""), "function_call": ("function_call_arguments", "arguments"),
            "custom_tool_call": ("custom_tool_call_input", "input"),
        }[str(item["type"])]  # fmt: skip
        empty: Data = {**item, "status": "in_progress", **({field: ""} if field else {"content": []})}
        yield {"type": "response.output_item.added", "output_index": 0, "item": empty}
        if not field:
            place["content_index"] = 0
            part = {"type": "output_text", "text": "", "annotations": []}
            yield {"type": "response.content_part.added", **place, "part": part}
        whole = str(reply) if isinstance(reply, str) else _arguments(reply)
        for half in _halves(whole):
            yield {"type": f"response.{kind}.delta", **place, "delta": half}
        yield {"type": f"response.{kind}.done", **place, field or "text": whole}
        if not field:
            yield {"type": "response.content_part.done", **place, "part": item["content"][0]}
        yield {"type": "response.output_item.done", "output_index": 0, "item": item}
        yield {"type": "response.completed", "response": response}

    return response, ((str(event["type"]), {**event, "sequence_number": n}) for n, event in enumerate(bare()))


# --- Chat Completions ---


def read_chat(body: Data, path: str) -> Asked:
    results = [_text_of(message["content"]) for message in body["messages"] if message["role"] == "tool"]
    tools: list[Offered] = []
    for tool in body.get("tools") or []:
        inner = tool[tool["type"]]
        tools.append(Offered(inner["name"], inner.get("parameters") or {}, tool["type"] == "custom"))
    form = body.get("response_format") or {}
    return Asked(tools, results, body.get("stream") is True, (form.get("json_schema") or {}).get("schema"))


def write_chat(reply: Reply, number: int) -> tuple[Data, Events]:
    usage = {
        "prompt_tokens": INPUT_TOKENS, "prompt_tokens_details": {"cached_tokens": CACHED_TOKENS},
        "completion_tokens": OUTPUT_TOKENS, "total_tokens": INPUT_TOKENS + OUTPUT_TOKENS,
    }  # fmt: skip
    head: Data = {"id": f"chatcmpl-{number:04}", "created": 1, "model": "lab"}
    message: Data = {"role": "assistant", "content": reply if isinstance(reply, str) else None}
    if not isinstance(reply, str):
        kind = "custom" if reply.tool.free_form else "function"
        field = "input" if reply.tool.free_form else "arguments"
        call = {"id": f"call_{number:04}", "type": kind, kind: {"name": reply.tool.name, field: _arguments(reply)}}
        message["tool_calls"] = [call]
    stop = "stop" if isinstance(reply, str) else "tool_calls"
    whole = {**head, "object": "chat.completion", "usage": usage}
    whole["choices"] = [{"index": 0, "message": message, "finish_reason": stop, "logprobs": None}]

    def events() -> Events:
        def chunk(delta: Data, finish: str | None = None) -> tuple[str, Data]:
            choice = {"index": 0, "delta": delta, "finish_reason": finish}
            return "", {**head, "object": "chat.completion.chunk", "choices": [choice], "usage": None}

        if isinstance(reply, str):
            for half in _halves(reply):
                yield chunk({"role": "assistant", "content": half})
        else:
            first, second = _halves(_arguments(reply))
            begun = {**call, "index": 0, kind: {"name": reply.tool.name, field: first}}
            yield chunk({"role": "assistant", "content": None, "tool_calls": [begun]})
            yield chunk({"tool_calls": [{"index": 0, kind: {field: second}}]})
        yield chunk({}, stop)
        yield "", {**head, "object": "chat.completion.chunk", "choices": [], "usage": usage}
        yield "", b"[DONE]"

    return whole, events()


# --- Gemini ---


def read_gemini(body: Data, path: str) -> Asked:
    results = [
        _text_of(part["functionResponse"]["response"])
        for content in body["contents"]
        for part in content.get("parts") or []
        if "functionResponse" in part
    ]
    tools = [
        Offered(each["name"], each.get("parametersJsonSchema") or each.get("parameters") or {})
        for tool in body.get("tools") or []
        for each in tool.get("functionDeclarations") or []
    ]
    settings = body.get("generationConfig") or {}
    schema = settings.get("responseJsonSchema") or settings.get("responseSchema")
    return Asked(tools, results, "streamGenerateContent" in path, schema)


def write_gemini(reply: Reply, number: int) -> tuple[Data, Events]:
    usage = {
        "promptTokenCount": INPUT_TOKENS, "cachedContentTokenCount": CACHED_TOKENS,
        "candidatesTokenCount": OUTPUT_TOKENS, "totalTokenCount": INPUT_TOKENS + OUTPUT_TOKENS,
    }  # fmt: skip

    def part(parts: list[Data], finish: str | None) -> Data:
        candidate: Data = {"content": {"role": "model", "parts": parts}, "index": 0}
        if finish is not None:
            candidate["finishReason"] = finish
        served: Data = {"modelVersion": "lab", "responseId": f"r{number:04}"}
        return {"candidates": [candidate], "usageMetadata": usage, **served}

    if isinstance(reply, str):
        parts: list[Data] = [{"text": half} for half in _halves(reply)]
    else:
        call = {"id": f"call{number:04}", "name": reply.tool.name, "args": reply.input}
        parts = [{"functionCall": call, "thoughtSignature": "c2lnbmF0dXJl"}]
    pieces = [part([each], "STOP" if each is parts[-1] else None) for each in parts]
    return part(parts, "STOP"), (("", piece) for piece in pieces)


# --- The server ---

WIRES: dict[str, tuple[Callable[[Data, str], Asked], Callable[[Reply, int], tuple[Data, Events]]]] = {
    "anthropic": (read_messages, write_messages),
    "openai": (read_responses, write_responses),
    "openai_compatible": (read_chat, write_chat),
    "gemini": (read_gemini, write_gemini),
}
"""The functions that read and write, by the adapter's type."""

_PATHS = {
    "/v1/messages": "anthropic", "/v1/responses": "openai", "/v1/chat/completions": "openai_compatible",
}  # fmt: skip


class ScriptedProvider:
    """An ASGI application. `model` is the model of the conversation in progress, and `bodies` its requests."""

    def __init__(self) -> None:
        self.model = ScriptedModel("")
        self.bodies: list[tuple[str, Data]] = []
        self._numbers = itertools.count(1)

    async def __call__(
        self,
        scope: dict[str, Any],
        receive: Callable[[], Awaitable[dict[str, Any]]],
        send: Callable[[dict[str, Any]], Awaitable[None]],
    ) -> None:
        if scope["type"] != "http":
            return
        received = b""
        while True:
            message = await receive()
            received += message.get("body", b"")
            if not message.get("more_body"):
                break
        path = scope["path"]
        kind = _PATHS.get(path, "gemini")
        read, write = WIRES[kind]
        try:
            body = msgspec.json.decode(received)
            self.bodies.append((kind, body))
            asked = read(body, path)
            whole, events = write(self.model.answer(asked), next(self._numbers))
        except Exception as error:  # the lab tells it in place of the client
            self.model.faults.append(f"{kind}: {type(error).__name__}: {error}")
            await self._send(send, 500, "application/json", b"{}")
            return
        if not asked.stream:
            await self._send(send, 200, "application/json", msgspec.json.encode(whole))
            return
        await self._send(send, 200, "text/event-stream", b"".join(_frame(*event) for event in events))

    async def _send(
        self, send: Callable[[dict[str, Any]], Awaitable[None]], status: int, kind: str, body: bytes
    ) -> None:
        headers = [(b"content-type", kind.encode()), (b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})


def _frame(name: str, data: Any) -> bytes:
    text = data if isinstance(data, bytes) else msgspec.json.encode(data)
    return (b"event: " + name.encode() + b"\n" if name else b"") + b"data: " + text + b"\n\n"
