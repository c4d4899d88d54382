"""A provider with a scripted model: it reads requests and writes replies in each of the four wires."""

from __future__ import annotations

import base64
import hashlib
import itertools
import re
import secrets
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any, NamedTuple, TypeAlias

import msgspec

from .model import Asked, Call, Offered, Reply, ScriptedModel

INPUT_TOKENS, CACHED_TOKENS, OUTPUT_TOKENS = 1000, 400, 50
"""The usage of each reply. The first number includes the second."""
_SEED = secrets.token_hex(16)
THOUGHT = "I should use a tool."
"""The reasoning before each call."""

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


def _id(prefix: str, number: int) -> str:
    """An id of a call, as long as those of real providers."""
    return prefix + hashlib.sha256(f"{_SEED} {number}".encode()).hexdigest()[:24]


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


def write_messages(reply: Reply, number: int, signature: str) -> tuple[Data, Events]:
    usage = {
        "input_tokens": INPUT_TOKENS - CACHED_TOKENS,
        "cache_read_input_tokens": CACHED_TOKENS,
        "cache_creation_input_tokens": 0,
    }
    if isinstance(reply, str):
        content: list[Data] = [{"type": "text", "text": reply}]
    else:
        call = {"type": "tool_use", "id": _id("toolu_", number), "name": reply.tool.name, "input": reply.input}
        content = [{"type": "thinking", "thinking": THOUGHT, "signature": signature}, call]
    stop = "end_turn" if isinstance(reply, str) else "tool_use"
    message: Data = {
        "id": f"msg_{number:04}", "type": "message", "role": "assistant", "model": "lab", "content": content,
        "stop_reason": stop, "stop_sequence": None, "usage": {**usage, "output_tokens": OUTPUT_TOKENS},
    }  # fmt: skip

    def bare() -> Iterator[Data]:
        begun = {**message, "content": [], "stop_reason": None, "usage": {**usage, "output_tokens": 1}}
        yield {"type": "message_start", "message": begun}
        yield {"type": "ping"}
        text = reply if isinstance(reply, str) else _arguments(reply)
        for index, block in enumerate(content):
            kind, field, whole = {
                "text": ("text_delta", "text", text),
                "thinking": ("thinking_delta", "thinking", THOUGHT),
                "tool_use": ("input_json_delta", "partial_json", text),
            }[block["type"]]
            empty = {name: {} if name == "input" else value for name, value in block.items()}
            empty |= {name: "" for name in ("text", "thinking", "signature") if name in block}
            yield {"type": "content_block_start", "index": index, "content_block": empty}
            for half in _halves(whole):
                yield {"type": "content_block_delta", "index": index, "delta": {"type": kind, field: half}}
            if "signature" in block:
                signed = {"type": "signature_delta", "signature": signature}
                yield {"type": "content_block_delta", "index": index, "delta": signed}
            yield {"type": "content_block_stop", "index": index}
        end = {"delta": {"stop_reason": stop, "stop_sequence": None}, "usage": {"output_tokens": OUTPUT_TOKENS}}
        yield {"type": "message_delta", **end}
        yield {"type": "message_stop"}

    return message, ((str(event["type"]), event) for event in bare())


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


def write_responses(reply: Reply, number: int, signature: str) -> tuple[Data, Events]:
    if isinstance(reply, str):
        part = {"type": "output_text", "text": reply, "annotations": [], "logprobs": []}
        item: Data = {"type": "message", "role": "assistant", "content": [part]}
    elif reply.tool.free_form:
        item = {"type": "custom_tool_call", "name": reply.tool.name, "input": _arguments(reply)}
    else:
        item = {"type": "function_call", "name": reply.tool.name, "arguments": _arguments(reply)}
    if not isinstance(reply, str):
        item["call_id"] = _id("call_", number)
        if reply.tool.namespace:
            item["namespace"] = reply.tool.namespace
    item |= {"id": f"it_{number:04}", "status": "completed"}
    usage = {
        "input_tokens": INPUT_TOKENS, "input_tokens_details": {"cached_tokens": CACHED_TOKENS},
        "output_tokens": OUTPUT_TOKENS, "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": INPUT_TOKENS + OUTPUT_TOKENS,
    }  # fmt: skip
    thought = {
        "type": "reasoning", "id": f"rs_{number:04}", "summary": [{"type": "summary_text", "text": THOUGHT}],
        "encrypted_content": signature,
    }  # fmt: skip
    output = [item] if isinstance(reply, str) else [thought, item]
    response: Data = {
        "id": f"resp_{number:04}", "object": "response", "created_at": 1, "model": "lab", "status": "completed",
        "error": None, "incomplete_details": None, "output": output, "usage": usage, "tools": [],
        "parallel_tool_calls": True, "tool_choice": "auto",
    }  # fmt: skip

    def bare() -> Iterator[Data]:
        begun: Data = {**response, "status": "in_progress", "output": [], "usage": None}
        yield {"type": "response.created", "response": begun}
        if not isinstance(reply, str):
            place: Data = {"output_index": 0, "item_id": thought["id"], "summary_index": 0}
            yield {"type": "response.output_item.added", "output_index": 0, "item": {**thought, "summary": []}}
            part = {"type": "summary_text", "text": ""}
            yield {"type": "response.reasoning_summary_part.added", **place, "part": part}
            yield {"type": "response.reasoning_summary_text.delta", **place, "delta": THOUGHT}
            yield {"type": "response.reasoning_summary_text.done", **place, "text": THOUGHT}
            yield {"type": "response.output_item.done", "output_index": 0, "item": thought}
        place = {"output_index": len(output) - 1, "item_id": item["id"]}
        kind, field = {
            "message": ("output_text", "text"), "function_call": ("function_call_arguments", "arguments"),
            "custom_tool_call": ("custom_tool_call_input", "input"),
        }[item["type"]]  # fmt: skip
        emptied: Data = {"content": []} if field == "text" else {field: ""}
        empty = {**item, "status": "in_progress", **emptied}
        yield {"type": "response.output_item.added", "output_index": place["output_index"], "item": empty}
        if field == "text":
            place["content_index"] = 0
            empty_part: Data = {"type": "output_text", "text": "", "annotations": []}
            yield {"type": "response.content_part.added", **place, "part": empty_part}
        text = reply if isinstance(reply, str) else _arguments(reply)
        for half in _halves(text):
            yield {"type": f"response.{kind}.delta", **place, "delta": half}
        yield {"type": f"response.{kind}.done", **place, field: text}
        if field == "text":
            yield {"type": "response.content_part.done", **place, "part": item["content"][0]}
        yield {"type": "response.output_item.done", "output_index": place["output_index"], "item": item}
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


def write_chat(reply: Reply, number: int, signature: str) -> tuple[Data, Events]:
    usage = {
        "prompt_tokens": INPUT_TOKENS, "prompt_tokens_details": {"cached_tokens": CACHED_TOKENS},
        "completion_tokens": OUTPUT_TOKENS, "total_tokens": INPUT_TOKENS + OUTPUT_TOKENS,
    }  # fmt: skip
    head: Data = {"id": f"chatcmpl-{number:04}", "created": 1, "model": "lab"}
    message: Data = {"role": "assistant", "content": reply if isinstance(reply, str) else None}
    if not isinstance(reply, str):
        kind = "custom" if reply.tool.free_form else "function"
        field = "input" if reply.tool.free_form else "arguments"
        call = {
            "id": _id("call_", number),
            "type": kind,
            kind: {"name": reply.tool.name, field: _arguments(reply)},
        }
        message |= {"reasoning_content": THOUGHT, "tool_calls": [call]}
    stop = "stop" if isinstance(reply, str) else "tool_calls"
    reply_object = {**head, "object": "chat.completion", "usage": usage}
    reply_object["choices"] = [{"index": 0, "message": message, "finish_reason": stop, "logprobs": None}]

    def events() -> Events:
        def chunk(delta: Data, finish: str | None = None) -> tuple[str, Data]:
            choice = {"index": 0, "delta": delta, "finish_reason": finish}
            return "", {**head, "object": "chat.completion.chunk", "choices": [choice], "usage": None}

        if isinstance(reply, str):
            for half in _halves(reply):
                yield chunk({"role": "assistant", "content": half})
        else:
            yield chunk({"role": "assistant", "reasoning_content": THOUGHT})
            first, second = _halves(_arguments(reply))
            begun = {**call, "index": 0, kind: {"name": reply.tool.name, field: first}}
            yield chunk({"role": "assistant", "content": None, "tool_calls": [begun]})
            yield chunk({"tool_calls": [{"index": 0, kind: {field: second}}]})
        yield chunk({}, stop)
        yield "", {**head, "object": "chat.completion.chunk", "choices": [], "usage": usage}
        yield "", b"[DONE]"

    return reply_object, events()


# --- Gemini ---


def read_gemini(body: Data, path: str) -> Asked:
    """The API also accepts names in snake case, which LiteLLM sends."""

    def field(of: Data, name: str) -> Any:
        snake = re.sub(r"[A-Z]", lambda found: "_" + found[0].lower(), name)
        return of.get(name) or of.get(snake)

    responses = [
        field(part, "functionResponse") for content in body["contents"] for part in content.get("parts") or []
    ]
    results = [_text_of(each["response"]) for each in responses if each]
    tools = [
        Offered(each["name"], field(each, "parametersJsonSchema") or each.get("parameters") or {})
        for tool in body.get("tools") or []
        for each in field(tool, "functionDeclarations") or []
    ]
    settings = field(body, "generationConfig") or {}
    schema = field(settings, "responseJsonSchema") or field(settings, "responseSchema")
    return Asked(tools, results, "streamGenerateContent" in path, schema)


def write_gemini(reply: Reply, number: int, signature: str) -> tuple[Data, Events]:
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
        call = {"id": _id("", number)[:8], "name": reply.tool.name, "args": reply.input}
        parts = [{"text": THOUGHT, "thought": True}, {"functionCall": call, "thoughtSignature": signature}]
    pieces = [part([each], "STOP" if each is parts[-1] else None) for each in parts]
    return part(parts, "STOP"), (("", piece) for piece in pieces)


# --- The server ---

WIRES: dict[str, tuple[Callable[[Data, str], Asked], Callable[[Reply, int, str], tuple[Data, Events]]]] = {
    "anthropic": (read_messages, write_messages),
    "openai": (read_responses, write_responses),
    "openai_compatible": (read_chat, write_chat),
    "gemini": (read_gemini, write_gemini),
}
"""The functions that read and write, by the adapter's type."""

_PATHS = {
    "/v1/messages": "anthropic", "/v1/responses": "openai", "/v1/chat/completions": "openai_compatible",
}  # fmt: skip


CUT_AFTER = {"anthropic": 9, "openai": 9, "openai_compatible": 2, "gemini": 1}
"""The number of events of a tool call before its stream breaks off. In wires that send arguments in pieces, it
breaks off within the arguments.
"""


class Fault(NamedTuple):
    """The response of a provider in place of a reply."""

    status: int
    """The status; 200 for a stream that breaks off in the middle."""
    body: Data
    headers: Mapping[str, str] = {}


class ScriptedProvider:
    """An ASGI application. `model` is the model of the conversation in progress, and `bodies` its requests.

    Args:
        fault: Chooses the fault for a request; None for a reply.
    """

    def __init__(self, fault: Callable[[str, Asked], Fault | None] = lambda kind, asked: None) -> None:
        self.model = ScriptedModel("")
        self.fault = fault
        self.bodies: list[tuple[str, Data]] = []
        self.signatures: list[str] = []
        """The signatures that later requests must send back with the tool calls."""
        self._numbers = itertools.count(1)

    def signature(self, number: int) -> str:
        return base64.b64encode(f"{_SEED}-{number:04}".encode()).decode()

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
        if scope["method"] != "POST" or path.endswith(("/count_tokens", ":countTokens")):
            # other requests of a program without a gateway: the list of models, and the counting of tokens
            counted: Data = {"input_tokens": INPUT_TOKENS, "totalTokens": INPUT_TOKENS, "data": []}
            await self._send(send, 200, "application/json", msgspec.json.encode(counted))
            return
        read, write = WIRES[kind]
        try:
            body = msgspec.json.decode(received)
            self.bodies.append((kind, body))
            asked = read(body, path)
            fault = self.fault(kind, asked)
            if fault is not None and fault.status != 200:
                await self._send(
                    send, fault.status, "application/json", msgspec.json.encode(fault.body), fault.headers
                )
                return
            reply, number = self.model.answer(asked), next(self._numbers)
            reply_object, events = write(reply, number, self.signature(number))
            if isinstance(reply, Call):
                self.signatures.append(THOUGHT if kind == "openai_compatible" else self.signature(number))
        except Exception as error:  # the lab reports it in place of the client
            self.model.faults.append(f"{kind}: {type(error).__name__}: {error}")
            await self._send(send, 500, "application/json", b"{}")
            return
        if not asked.stream:
            await self._send(send, 200, "application/json", msgspec.json.encode(reply_object))
            return
        frames = [_frame(*event) for event in events]
        if fault is not None:  # the remaining events are never sent, and the connection breaks
            frames = frames[: CUT_AFTER[kind]]
        await self._send(send, 200, "text/event-stream", b"".join(frames), {}, breaks=fault is not None)

    async def _send(
        self,
        send: Callable[[dict[str, Any]], Awaitable[None]],
        status: int,
        kind: str,
        body: bytes,
        more: Mapping[str, str] = {},
        *,
        breaks: bool = False,
    ) -> None:
        headers = [(b"content-type", kind.encode()), *((k.encode(), v.encode()) for k, v in more.items())]
        headers.append((b"content-length", str(len(body) + breaks).encode()))
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body, "more_body": breaks})


def _frame(name: str, data: Any) -> bytes:
    text = data if isinstance(data, bytes) else msgspec.json.encode(data)
    return (b"event: " + name.encode() + b"\n" if name else b"") + b"data: " + text + b"\n\n"
