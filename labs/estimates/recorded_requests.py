"""Converts recorded requests to canonical requests, with the input tokens that their provider counted.

A request is skipped if a canonical request cannot represent it: if it has server tools, files by reference,
history on the server or a schema for the reply. The estimator could not see the tokens of these parts.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from callboard.bus.values.content import (
    ContentBlock,
    ImageBlock,
    ProviderRaw,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from callboard.bus.values.messages import Message, Role, ToolDefinition

Body: TypeAlias = Mapping[str, Any]


_JUNE_2025 = 1_748_736_000


class NotCanonical(Exception):
    """A canonical request cannot represent the request."""


@dataclass(frozen=True)
class Sample:
    """A canonical request and its counted tokens."""

    id: str
    protocol: str
    """The name of the recording's file."""
    host: str
    model: str
    messages: tuple[Message, ...]
    tools: tuple[ToolDefinition, ...]
    system: str | None
    tokens: int
    """All input tokens, cached or not."""


def read_samples(folder: Path) -> list[Sample]:
    """All usable requests of a folder of recordings, without duplicates."""
    samples: dict[tuple[object, ...], Sample] = {}
    for protocol, read in _READERS.items():
        path = folder / f"{protocol}.jsonl"
        for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
            case = json.loads(line)
            tokens = _tokens(case["oracle"])
            if not case["oracle"].get("reliable") or not tokens or _is_early(protocol, case["response_body"]):
                continue
            try:
                system, messages, tools = read(case["request_body"])
            except (NotCanonical, ValueError, KeyError, TypeError, AttributeError):
                continue
            if not messages:
                continue
            model = case["request_body"].get("model") or case["path"].rpartition("/")[2].partition(":")[0]
            sample = Sample(
                case["id"], protocol, case["provider_host"], model, tuple(messages), tuple(tools), system, tokens
            )
            request_text = json.dumps(case["request_body"], sort_keys=True)
            samples[protocol, sample.host, model, request_text] = sample
    return list(samples.values())


def _is_early(protocol: str, reply: str) -> bool:
    """Whether the recording is from the first weeks of the Responses API, when tools added about 200 hidden
    tokens.
    """
    created = re.search(r'"created_at":\s*(\d+)', reply) if protocol == "openai_responses" else None
    return created is not None and int(created[1]) < _JUNE_2025


def _tokens(oracle: Body) -> int:
    usage = (oracle.get("contract") or {}).get("usage")
    if usage:
        return int(usage["input_tokens"] + usage["cached_input_tokens"] + usage["cache_creation_input_tokens"])
    raw = oracle.get("usage") or {}
    return int(raw.get("promptTokenCount", 0))  # Gemini


Read: TypeAlias = tuple[str | None, list[Message], list[ToolDefinition]]


def _only(body: Body, *known: str) -> None:
    if not set(body) <= set(known):
        raise NotCanonical


def _object(value: Any) -> dict[str, Any]:
    value = json.loads(value) if isinstance(value, str) else value
    if not isinstance(value, dict):
        raise NotCanonical
    return value


def _tool(fields: Body) -> ToolDefinition:
    schema = fields.get("input_schema") or fields.get("parameters") or fields.get("parametersJsonSchema")
    schema = schema or fields.get("parameters_json_schema") or {"type": "object", "properties": {}}
    return ToolDefinition(fields["name"], fields.get("description") or "", schema)


def _image(url: str) -> ImageBlock:
    head, _, data = url.partition(";base64,")
    if not data:
        raise NotCanonical  # a file by address, whose size is unknown
    return ImageBlock(data=base64.b64decode(data), media_type=head.removeprefix("data:"))


# -- Anthropic


def _anthropic(body: Body) -> Read:
    _only(body, "max_tokens", "messages", "model", "stream", "tools", "tool_choice", "system", "stop_sequences",
          "thinking", "cache_control", "metadata")  # fmt: skip
    system = body.get("system")
    if isinstance(system, list):
        system = "\n\n".join(part["text"] for part in system)
    tools = []
    for tool in body.get("tools", ()):
        _only(tool, "name", "description", "input_schema", "strict", "cache_control")
        tools.append(_tool(tool))
    return system, [_anthropic_message(message) for message in body["messages"]], tools


def _anthropic_message(message: Body) -> Message:
    content = message["content"]
    if isinstance(content, str):
        return Message(Role(message["role"]), (TextBlock(content),))
    return Message(Role(message["role"]), tuple(_anthropic_block(block) for block in content))


def _anthropic_block(block: Body) -> ContentBlock:
    match block:
        case {"type": "text", "text": text}:
            return TextBlock(text)
        case {"type": "thinking", "thinking": text}:
            return ThinkingBlock(text, block.get("signature"))
        case {"type": "tool_use", "id": wire_id, "name": name, "input": arguments}:
            return ToolUseBlock(wire_id, name, arguments)
        case {"type": "tool_result", "tool_use_id": wire_id}:
            content = block.get("content") or ""
            if isinstance(content, list):
                content = "".join(part["text"] for part in content)
            return ToolResultBlock(wire_id, content)
        case {"type": "image", "source": {"type": "base64", "data": data, "media_type": kind}}:
            return ImageBlock(data=base64.b64decode(data), media_type=kind)
        case _:
            raise NotCanonical


# -- Chat Completions


def _chat(body: Body) -> Read:
    _only(body, "messages", "model", "stream", "tools", "tool_choice", "n", "top_p", "stream_options", "stop",
          "reasoning_effort", "max_completion_tokens", "max_tokens", "temperature", "service_tier", "user",
          "frequency_penalty", "presence_penalty", "prompt_cache_key", "reasoning", "reasoning_format",
          "thinking", "provider")  # fmt: skip
    system, messages = [], []
    for message in body["messages"]:
        if message["role"] == "system":
            system.append(_chat_text(message["content"]))
        else:
            messages.append(_chat_message(message))
    return "\n\n".join(system) or None, messages, [_tool(tool["function"]) for tool in body.get("tools", ())]


def _chat_message(message: Body) -> Message:
    match message["role"]:
        case "tool":
            return Message(Role.TOOL, (ToolResultBlock(message["tool_call_id"], _chat_text(message["content"])),))
        case "assistant":
            content = message.get("content")
            blocks: list[ContentBlock] = [TextBlock(_chat_text(content))] if content else []
            for call in message.get("tool_calls") or ():
                function = call["function"]
                arguments = _object(function["arguments"] or {})
                blocks.append(ToolUseBlock(call["id"], function["name"], arguments))
            return Message(Role.ASSISTANT, tuple(blocks))
        case role:
            content = message["content"]
            if isinstance(content, str):
                return Message(Role(role), (TextBlock(content),))
            return Message(Role(role), tuple(_chat_part(part) for part in content))


def _chat_part(part: Body) -> ContentBlock:
    match part:
        case {"type": "text" | "input_text" | "output_text", "text": text}:
            return TextBlock(text)
        case {"type": "image_url", "image_url": {"url": url}} | {"type": "input_image", "image_url": str(url)}:
            return _image(url)
        case _:
            raise NotCanonical


def _chat_text(content: Any) -> str:
    return content if isinstance(content, str) else "".join(part["text"] for part in content)


# -- Responses


def _responses(body: Body) -> Read:
    _only(body, "input", "model", "stream", "include", "tools", "tool_choice", "instructions", "reasoning",
          "temperature", "parallel_tool_calls", "service_tier", "max_output_tokens", "store")  # fmt: skip
    _only(body.get("reasoning") or {}, "effort", "summary")
    tools = []
    for tool in body.get("tools", ()):
        if tool["type"] != "function":
            raise NotCanonical
        tools.append(_tool(tool))
    items_or_text = body["input"]
    items = [{"role": "user", "content": items_or_text}] if isinstance(items_or_text, str) else items_or_text
    return body.get("instructions"), [_responses_item(item) for item in items], tools


def _responses_item(item: Body) -> Message:
    match item:
        case {"type": "function_call", "call_id": call, "name": name, "arguments": arguments}:
            return Message(Role.ASSISTANT, (ToolUseBlock(call, name, _object(arguments or {})),))
        case {"type": "function_call_output", "call_id": call, "output": str(output)}:
            return Message(Role.TOOL, (ToolResultBlock(call, output),))
        case {"role": role, "content": str(text)}:
            return Message(Role(role), (TextBlock(text),))
        case {"role": role, "content": list(parts)}:
            return Message(Role(role), tuple(_chat_part(part) for part in parts))
        case _:
            raise NotCanonical  # also reasoning, whose size only the provider knows


# -- Gemini


def _gemini(body: Body) -> Read:
    _only(body, "contents", "generationConfig", "tools", "toolConfig", "systemInstruction", "safetySettings")
    config = body.get("generationConfig") or {}
    if "responseSchema" in config or "responseJsonSchema" in config:
        raise NotCanonical
    tools = []
    for group in body.get("tools", ()):
        _only(group, "functionDeclarations", "function_declarations")
        declared = group.get("functionDeclarations") or group["function_declarations"]
        tools += [_tool(tool) for tool in declared]
    instruction = body.get("systemInstruction")
    system = "\n\n".join(part["text"] for part in instruction["parts"]) if instruction else None
    messages = []
    for content in body["contents"]:
        role = Role.ASSISTANT if content["role"] == "model" else Role.USER
        blocks = tuple(_gemini_part(part) for part in content["parts"])
        if any(isinstance(block, ToolResultBlock) for block in blocks):
            role = Role.TOOL
        messages.append(Message(role, blocks))
    return system, messages, tools


def _gemini_part(part: Body) -> ContentBlock:
    fields = {name.replace("_", "").lower(): value for name, value in part.items()}
    match fields:
        case {"text": text}:
            return TextBlock(text)
        case {"functioncall": call}:
            signed = {"thoughtSignature": fields.get("thoughtsignature")}
            name = call["name"]
            return ToolUseBlock(call.get("id") or name, name, call.get("args") or {},
                                provider_raw=ProviderRaw("gemini", signed))  # fmt: skip
        case {"functionresponse": answer}:
            _only(answer, "id", "name", "response")
            response_text = json.dumps(answer["response"], separators=(",", ":"))
            return ToolResultBlock(answer.get("id") or answer["name"], response_text)
        case {"inlinedata": data}:
            kind = data.get("mimeType") or data["mime_type"]
            if not kind.startswith("image/"):
                raise NotCanonical
            return ImageBlock(data=base64.b64decode(data["data"]), media_type=kind)
        case _:
            raise NotCanonical


_READERS: Mapping[str, Callable[[Body], Read]] = {
    "anthropic": _anthropic,
    "openai_responses": _responses,
    "openai_chat": _chat,
    "gemini": _gemini,
}
