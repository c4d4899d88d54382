"""The content of a request of any client: texts, calls and results, in order."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

from callboard import ToolDefinition


class NotPlain(Exception):
    """The request has more than text, tool calls and their results."""


class Text(NamedTuple):
    role: str
    text: str


class Call(NamedTuple):
    name: str
    arguments: dict[str, Any]


class Result(NamedTuple):
    """The result of a tool call."""

    text: str | None
    """The text. None for a failure, because each client words failures differently."""


class Conversation(NamedTuple):
    """The conversation in a request."""

    system: str | None
    """The system text. None if there is no system text or an empty one."""
    turns: tuple[Text | Call | Result, ...]
    tools: tuple[ToolDefinition, ...]

    @property
    def comparable(self) -> tuple[object, ...]:
        """The parts that can be compared between clients. Only the names of the tools are compared."""
        return (self.system, self.turns, tuple(tool.name for tool in self.tools))


def read(provider: str, body: dict[str, Any]) -> Conversation:
    """Read the conversation of a request.

    Raises:
        NotPlain: The request has more than text, tool calls and their results.
    """
    system, turns, tools = {"openai": _responses, "anthropic": _messages, "gemini": _contents}[provider](body)
    said = [turn for turn in turns if not isinstance(turn, Text) or turn.text]
    return Conversation(system or None, tuple(said), tuple(tools))


def _words(content: Any) -> str:
    """Return the text of a string or of a list of text parts."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list) or not all("text" in part for part in content):
        raise NotPlain
    return "".join(part["text"] for part in content)


def _definition(name: str, description: str | None, schema: Any) -> ToolDefinition:
    try:
        return ToolDefinition(name, description or "", schema or {"type": "object", "properties": {}})
    except ValueError as error:
        raise NotPlain from error


def _responses(body: dict[str, Any]) -> tuple[str | None, list[Text | Call | Result], list[ToolDefinition]]:
    turns: list[Text | Call | Result] = []
    given = body["input"]
    for item in [{"role": "user", "content": given}] if isinstance(given, str) else given:
        match item:
            case {"type": "function_call", "name": name, "arguments": arguments}:
                turns.append(Call(name, json.loads(arguments or "{}")))
            case {"type": "function_call_output", "output": output}:
                turns.append(Result(_words(output)))
            case {"type": "reasoning"}:
                pass  # clients send back different parts of the reasoning
            case {"role": role, "content": content}:
                turns.append(Text(role, _words(content)))
            case _:
                raise NotPlain
    tools = body.get("tools") or []
    if any(tool["type"] != "function" for tool in tools):
        raise NotPlain
    return (
        body.get("instructions"),
        turns,
        [_definition(tool["name"], tool.get("description"), tool.get("parameters")) for tool in tools],
    )


def _messages(body: dict[str, Any]) -> tuple[str | None, list[Text | Call | Result], list[ToolDefinition]]:
    turns: list[Text | Call | Result] = []
    for message in body["messages"]:
        content = message["content"]
        for block in [{"type": "text", "text": content}] if isinstance(content, str) else content:
            match block:
                case {"type": "text", "text": text}:
                    turns.append(Text(message["role"], text))
                case {"type": "tool_use", "name": name, "input": given}:
                    turns.append(Call(name, given))
                case {"type": "tool_result"}:
                    turns.append(Result(None if block.get("is_error") else _words(block.get("content") or "")))
                case {"type": "thinking" | "redacted_thinking"}:
                    pass
                case _:
                    raise NotPlain
    tools = body.get("tools") or []
    if any("input_schema" not in tool for tool in tools):
        raise NotPlain
    system = body.get("system")
    return (
        _words(system) if system else None,
        turns,
        [_definition(tool["name"], tool.get("description"), tool["input_schema"]) for tool in tools],
    )


def _contents(body: dict[str, Any]) -> tuple[str | None, list[Text | Call | Result], list[ToolDefinition]]:
    turns = [turn for content in body["contents"] for part in content["parts"] for turn in _part(content, part)]
    tools: list[ToolDefinition] = []
    groups = body.get("tools") or []
    for group in [groups] if isinstance(groups, dict) else groups:
        declared = group.get("functionDeclarations") or group.get("function_declarations")
        if not declared:
            raise NotPlain
        for tool in declared:
            schema = (
                tool.get("parametersJsonSchema") or tool.get("parameters_json_schema") or tool.get("parameters")
            )
            tools.append(_definition(tool["name"], tool.get("description"), schema))
    system = body.get("systemInstruction")
    return _words(system["parts"]) if system else None, turns, tools


def _part(content: dict[str, Any], part: dict[str, Any]) -> Iterator[Text | Call | Result]:
    match {name.replace("_", "").lower(): value for name, value in part.items()}:
        case {"thought": True}:
            pass
        case {"text": text}:
            yield Text("assistant" if content.get("role") == "model" else "user", text)
        case {"functioncall": call}:
            yield Call(call["name"], call.get("args") or {})
        case {"functionresponse": {"parts": _}}:
            raise NotPlain
        case {"functionresponse": answer}:
            yield Result(_answer(answer["response"]))
        case _:
            raise NotPlain


def _answer(response: dict[str, Any]) -> str | None:
    """Read the text of a result. Gemini's results are objects, and clients put the text under different keys."""
    match response:
        case {"error": _}:
            return None
        case {"return_value": value} | {"output": value}:
            return value if isinstance(value, str) else json.dumps(value)
        case _:
            return json.dumps(response)
