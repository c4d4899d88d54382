from __future__ import annotations

from typing import Any

from attempts import BASE, KEY, SECRET, report
from langchain_anthropic import ChatAnthropic
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import BaseModel


class Person(BaseModel):
    name: str
    age: int


@tool
def look_up(key: str) -> str:
    """Look a code up."""
    return SECRET


def text(model: BaseChatModel) -> object:
    return model.invoke("Say hello.").text


def stream(model: BaseChatModel) -> object:
    return "".join(piece.text for piece in model.stream("Say hello."))


def with_tool(model: BaseChatModel) -> object:
    bound = model.bind_tools([look_up])
    messages: list[Any] = [HumanMessage("Look the code up.")]
    for _ in range(3):
        reply = bound.invoke(messages)
        messages.append(reply)
        if not reply.tool_calls:
            return reply.text
        messages += [
            ToolMessage(look_up.invoke(call["args"]), tool_call_id=call["id"]) for call in reply.tool_calls
        ]
    return "no end"


def schema(model: BaseChatModel) -> object:
    person = model.with_structured_output(Person).invoke("Who is it?")
    return person.name, person.age


for name, model in {
    "langchain-openai, Chat Completions": ChatOpenAI(
        base_url=f"{BASE}/v1", api_key=KEY, model="gpt-5.2", max_retries=0
    ),
    "langchain-openai, Responses": ChatOpenAI(
        base_url=f"{BASE}/v1", api_key=KEY, model="gpt-5.2", use_responses_api=True, max_retries=0
    ),
    "langchain-anthropic": ChatAnthropic(base_url=BASE, api_key=KEY, model="claude-opus-4-6", max_retries=0),
}.items():
    report(
        name,
        text=lambda model=model: text(model),
        stream=lambda model=model: stream(model),
        tool=lambda model=model: with_tool(model),
        schema=lambda model=model: schema(model),
    )
