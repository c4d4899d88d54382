"""Clients whose wire has only texts and calls: the provider still gets the content that they can't send back."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from callboard.adapters import Message, Role, TextBlock, ThinkingBlock, ToolResultBlock, ToolUseBlock
from callboard.engine.gateway.application import gateway
from callboard.tracestore import TraceStore

from ..support.engines import requests_of
from ..support.scripted import Say
from .asking import post
from .keeping import engine_on

Items: TypeAlias = list[Any]

SCHEMA = {"type": "object", "properties": {"at": {"type": "integer"}}}
TURNS = 6


def chat_body(items: Items) -> dict[str, Any]:
    tool = {"type": "function", "function": {"name": "look", "parameters": SCHEMA}}
    return {"model": "s:m", "messages": [{"role": "user", "content": "Hi"}, *items], "tools": [tool]}


def chat_echo(reply: Any) -> Items:
    message = {name: reply["choices"][0]["message"].get(name) for name in ("role", "content", "tool_calls")}
    results = [{"role": "tool", "tool_call_id": call["id"], "content": "x"} for call in message["tool_calls"]]
    return [message, *results]


def responses_body(items: Items) -> dict[str, Any]:
    tool = {"type": "function", "name": "look", "parameters": SCHEMA}
    return {"model": "s:m", "store": False, "input": [{"role": "user", "content": "Hi"}, *items], "tools": [tool]}


def responses_echo(reply: Any) -> Items:
    items = [item for item in reply["output"] if item["type"] in ("message", "function_call")]
    calls = [item["call_id"] for item in items if item["type"] == "function_call"]
    return [*items, *({"type": "function_call_output", "call_id": each, "output": "x"} for each in calls)]


def messages_body(items: Items) -> dict[str, Any]:
    sent = [{"role": "user", "content": "Hi"}, *items]
    return {
        "model": "s:m", "max_tokens": 100, "messages": sent, "tools": [{"name": "look", "input_schema": SCHEMA}],
    }  # fmt: skip


def messages_echo(reply: Any) -> Items:
    blocks = [block for block in reply["content"] if block["type"] in ("text", "tool_use")]
    calls = [block["id"] for block in blocks if block["type"] == "tool_use"]
    results = [{"type": "tool_result", "tool_use_id": each, "content": "x"} for each in calls]
    return [{"role": "assistant", "content": blocks}, {"role": "user", "content": results}]


def gemini_body(items: Items) -> dict[str, Any]:
    tool = {"functionDeclarations": [{"name": "look", "parameters": SCHEMA}]}
    return {"contents": [{"role": "user", "parts": [{"text": "Hi"}]}, *items], "tools": [tool]}


def gemini_echo(reply: Any) -> Items:
    parts = [
        {name: value for name, value in part.items() if name != "thoughtSignature"}
        for part in reply["candidates"][0]["content"]["parts"]
        if not part.get("thought")
    ]
    calls = [part["functionCall"] for part in parts if "functionCall" in part]
    results = [
        {
            "functionResponse": {
                **{name: call[name] for name in ("name", "id") if name in call},
                "response": {"r": "x"},
            }
        }
        for call in calls
    ]
    return [{"role": "model", "parts": parts}, {"role": "user", "parts": results}]


Wire: TypeAlias = tuple[str, Callable[[Items], dict[str, Any]], Callable[[Any], Items]]

WIRES: dict[str, Wire] = {
    "chat": ("/v1/chat/completions", chat_body, chat_echo),
    "responses": ("/v1/responses", responses_body, responses_echo),
    "messages": ("/v1/messages", messages_body, messages_echo),
    "gemini": ("/v1beta/models/s:m:generateContent", gemini_body, gemini_echo),
}
"""For each wire: its address, a request, and the messages that a client adds to its history after a reply."""


@pytest.mark.parametrize("wire", WIRES)
async def test_a_long_conversation_is_as_complete_as_one_without_a_gateway(tmp_path: Path, wire: str) -> None:
    """Each reply has reasoning, a text and two calls. The client sends back only the text and the calls."""
    path, body, echo = WIRES[wire]
    replies = [
        Say(f"Step {turn}. ", thinking=f"Thought {turn}.", calls=[("look", {"at": turn}), ("look", {"at": 7})])
        for turn in range(TURNS)
    ]
    store = TraceStore(tmp_path / "trace.db")
    async with engine_on(store, *replies, capture_content=True) as engine:
        items: Items = []
        for _ in range(TURNS):
            # a new gateway each time, as after a restart
            answer = await post(gateway(engine, keyless=True), body(items), path)
            assert answer.status == 200, answer.data
            items += echo(answer.json)
        requests = requests_of(engine)
        assert len({request.session_id for request in requests}) == 1
        history = requests[-1].messages
    said = [each.content for each in history if each.role is Role.ASSISTANT]
    assert [[type(block) for block in content] for content in said] == [
        [ThinkingBlock, TextBlock, ToolUseBlock, ToolUseBlock]
    ] * (TURNS - 1)
    assert [_thinking(each) for each in history if each.role is Role.ASSISTANT] == [
        f"Thought {turn}." for turn in range(TURNS - 1)
    ]
    calls = [call.id for each in history for call in each.tool_uses]
    results = [
        block.tool_use_id for each in history for block in each.content if isinstance(block, ToolResultBlock)
    ]
    assert calls == results
    assert len(set(calls)) == 2 * (TURNS - 1)


def _thinking(message: Message) -> str:
    return "".join(block.text for block in message.content if isinstance(block, ThinkingBlock))
