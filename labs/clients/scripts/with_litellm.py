from __future__ import annotations

import json
from typing import Any

import litellm
from attempts import BASE, KEY, SECRET, report
from pydantic import BaseModel

litellm.suppress_debug_info = True


class Person(BaseModel):
    name: str
    age: int


TOOL = {
    "type": "function",
    "function": {
        "name": "look_up",
        "description": "Look a code up.",
        "parameters": {"type": "object", "properties": {"key": {"type": "string"}}, "required": ["key"]},
    },
}


def ask(where: dict[str, Any], content: str, **more: Any) -> Any:
    return litellm.completion(messages=[{"role": "user", "content": content}], api_key=KEY, **where, **more)


def text(where: dict[str, Any]) -> object:
    return ask(where, "Say hello.").choices[0].message.content


def stream(where: dict[str, Any]) -> object:
    return "".join(piece.choices[0].delta.content or "" for piece in ask(where, "Say hello.", stream=True))


def with_tool(where: dict[str, Any]) -> object:
    messages: list[Any] = [{"role": "user", "content": "Look the code up."}]
    for _ in range(3):
        message = litellm.completion(messages=messages, tools=[TOOL], api_key=KEY, **where).choices[0].message
        messages.append(message)
        if not message.tool_calls:
            return message.content
        messages += [{"role": "tool", "tool_call_id": call.id, "content": SECRET} for call in message.tool_calls]
    return "no end"


def schema(where: dict[str, Any]) -> object:
    person = json.loads(ask(where, "Who is it?", response_format=Person).choices[0].message.content)
    return person["name"], person["age"]


for name, where in {
    "LiteLLM, OpenAI": {"model": "openai/gpt-5.2", "api_base": f"{BASE}/v1"},
    "LiteLLM, Anthropic": {"model": "anthropic/claude-opus-4-6", "api_base": BASE},
    "LiteLLM, Gemini": {"model": "gemini/gemini-2.5-pro", "api_base": f"{BASE}/v1beta/models/gemini-2.5-pro"},
}.items():
    report(
        name,
        text=lambda where=where: text(where),
        stream=lambda where=where: stream(where),
        tool=lambda where=where: with_tool(where),
        schema=lambda where=where: schema(where),
    )
