from __future__ import annotations

import asyncio

from attempts import BASE, KEY, SECRET, report
from pydantic import BaseModel
from pydantic_ai import Agent
from pydantic_ai.models import Model
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.google import GoogleModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.google import GoogleProvider
from pydantic_ai.providers.openai import OpenAIProvider


class Person(BaseModel):
    name: str
    age: int


def look_up(key: str) -> str:
    """Look a code up."""
    return SECRET


async def text(model: Model) -> object:
    return (await Agent(model).run("Say hello.")).output


async def stream(model: Model) -> object:
    async with Agent(model).run_stream("Say hello.") as result:
        return "".join([piece async for piece in result.stream_text(delta=True)])


async def with_tool(model: Model) -> object:
    return (await Agent(model, tools=[look_up]).run("Look the code up.")).output


async def schema(model: Model) -> object:
    person = (await Agent(model, output_type=Person).run("Who is it?")).output
    return person.name, person.age


def models() -> dict[str, Model]:
    openai = OpenAIProvider(base_url=f"{BASE}/v1", api_key=KEY)
    return {
        "pydantic-ai, Chat Completions": OpenAIChatModel("gpt-5.2", provider=openai),
        "pydantic-ai, Responses": OpenAIResponsesModel("gpt-5.2", provider=openai),
        "pydantic-ai, Anthropic": AnthropicModel(
            "claude-opus-4-6", provider=AnthropicProvider(base_url=BASE, api_key=KEY)
        ),
        "pydantic-ai, Google": GoogleModel("gemini-2.5-pro", provider=GoogleProvider(base_url=BASE, api_key=KEY)),
    }


for name in models():
    tasks = {"text": text, "stream": stream, "tool": with_tool, "schema": schema}
    report(name, **{task: lambda do=do, name=name: asyncio.run(do(models()[name])) for task, do in tasks.items()})
