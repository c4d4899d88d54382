"""Record the local model's conversations again:  python cassettes/record.py [FOLDER]

Starts llama.cpp through adapters.local and holds the conversations of `CONVERSATIONS` with it, one cassette for
each protocol, and one for emulated tools. The same functions are played against the cassettes by the tests, and
the demo plays them where the model is not installed: so change a conversation here, record, and both agree again.

Everything is at temperature 0 with a fixed seed; what a review should see is in README.md beside this file.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from callboard.adapters.cassettes import CassetteTransport, RecordingTransport
from callboard.adapters.config import AdapterConfig
from callboard.adapters.contract import CanonicalRequest, CanonicalResponse, ProviderAdapter
from callboard.adapters.providers.local import LocalAdapter
from callboard.adapters.providers.local.adapter import create_inner, read_options
from callboard.adapters.transport.connection_pool import new_transport
from callboard.bus.clock import SYSTEM_CLOCK
from callboard.bus.errors import AdapterError
from callboard.bus.streams.events import StreamEvent, TextDelta
from callboard.bus.values.base import Json
from callboard.bus.values.messages import Message, ToolDefinition

FOLDER = Path(__file__).resolve().parent / "local"
MODEL = "local:smollm2"
CONTEXT_TOKENS = 1024
"""Small, so that the request which overflows it is small, too."""

WEATHER = ToolDefinition(
    "get_weather",
    "The weather of a city.",
    {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
)
CITY_SCHEMA: dict[str, Json] = {
    "title": "city",
    "type": "object",
    "properties": {"city": {"type": "string"}, "country": {"type": "string"}},
    "required": ["city", "country"],
    "additionalProperties": False,
}
CAPITAL = "What is the capital of France? Answer in one word."


class Replies(dict[str, CanonicalResponse | AdapterError]):
    """What each step of a conversation came to, and the events of those that were streamed."""

    def __init__(self) -> None:
        super().__init__()
        self.events: dict[str, list[StreamEvent]] = {}


class Conversation:
    """Sends requests one after another, and keeps what came back under the step's name."""

    def __init__(self, adapter: ProviderAdapter) -> None:
        self._adapter = adapter
        self.replies = Replies()

    async def say(
        self, step: str, *messages: Message, stream: bool = False, limit: int = 24, **more: object
    ) -> CanonicalResponse:
        fields: dict[str, object] = {
            "request_id": f"req_{step.replace(' ', '_')}",
            "messages": messages,
            "model": MODEL,
            "max_output_tokens": limit,
            "temperature": 0.0,
            "provider_options": {"local": {"seed": 7}},
            **more,
        }
        request = CanonicalRequest(**fields)  # type: ignore[arg-type]
        try:
            if stream:
                async with self._adapter.stream(request) as events:
                    self.replies.events[step] = [event async for event in events]
                response = events.response
                assert response is not None
            else:
                response = await self._adapter.complete(request)
        except AdapterError as error:
            self.replies[step] = error
            raise
        self.replies[step] = response
        return response


async def basics(adapter: ProviderAdapter) -> Replies:
    """What every protocol can do: plain, streamed, several turns, a limit reached, a prompt that is too long."""
    conversation = Conversation(adapter)
    say = conversation.say
    capital = await say("plain", Message.user(CAPITAL))
    await say("streamed", Message.user(CAPITAL), stream=True)
    history = (
        Message.user(CAPITAL),
        Message.assistant(capital.content),
        Message.user("And of Italy? Answer in one word."),
    )
    await say("second turn", *history)
    await say("second turn streamed", *history, stream=True)
    await say("system prompt", Message.user("Hello!"), system_prompt="You are a pirate. Be brief.", stream=True)
    await say("limit", Message.user("Tell me a story."), limit=8)
    await say("limit streamed", Message.user("Tell me a story."), limit=8, stream=True)
    with contextlib.suppress(AdapterError):  # it is kept among the replies
        await say("too long", Message.user("word " * (CONTEXT_TOKENS + 100)))
    return conversation.replies


async def chat(adapter: ProviderAdapter) -> Replies:
    """The basics, and what only Chat Completions enforce on llama.cpp: an object of a schema."""
    conversation = Conversation(adapter)
    asked = Message.user("Give the capital of France and its country as JSON.")
    await conversation.say("object", asked, output_schema=CITY_SCHEMA, limit=48)
    await conversation.say("object streamed", asked, output_schema=CITY_SCHEMA, limit=48, stream=True)
    replies = await basics(adapter)
    replies.update(conversation.replies)
    replies.events.update(conversation.replies.events)
    return replies


async def tools(adapter: ProviderAdapter) -> Replies:
    """One round of an emulated tool: the call, its result, and the answer; the call streamed as well."""
    conversation = Conversation(adapter)
    asked = Message.user("What is the weather in Paris?")
    call = await conversation.say("call", asked, tools=(WEATHER,), limit=64)
    await conversation.say("call streamed", asked, tools=(WEATHER,), limit=64, stream=True)
    results = [Message.tool_result(each.id, "Sunny, 21 degrees.") for each in call.tool_uses]
    await conversation.say(
        "answer", asked, Message.assistant(call.content), *results, tools=(WEATHER,), limit=64, stream=True
    )
    return conversation.replies


CONVERSATIONS: dict[str, tuple[str, dict[str, Json], Callable[[ProviderAdapter], Awaitable[Replies]]]] = {
    "chat": ("Chat Completions of llama.cpp", {"protocol": "chat"}, chat),
    "messages": ("Anthropic's Messages, as llama.cpp speaks them", {"protocol": "messages"}, basics),
    "responses": ("OpenAI's Responses, as llama.cpp speaks them", {"protocol": "responses"}, basics),
    "tools": ("Tools emulated over Chat Completions", {"protocol": "chat", "tools": "emulate"}, tools),
}
"""By the cassette's name: its scenario, the options of type ``local``, and what is said."""


def replaying_adapter(path: Path, options: dict[str, Json]) -> tuple[ProviderAdapter, CassetteTransport]:
    """The adapter that recorded a cassette, without its server: what it sends is answered from the file."""
    config = AdapterConfig(options=options, max_retries=0)
    transport = CassetteTransport(path)
    parsed = read_options(config, "local")
    return create_inner(config, parsed, name="local", clock=SYSTEM_CLOCK, transport=transport), transport


async def record(name: str, folder: Path) -> Replies:
    """Hold one conversation with the real model, and write its cassette."""
    scenario, options, talk = CONVERSATIONS[name]
    transport = RecordingTransport(new_transport(), folder / f"{name}.json", scenario=scenario)
    settings: dict[str, Json] = {**options, "context_tokens": CONTEXT_TOKENS, "slots": 1}
    adapter = LocalAdapter(AdapterConfig(options=settings, max_retries=0), transport=transport)
    try:
        return await talk(adapter)
    finally:
        await adapter.close()


def describe(name: str, replies: Replies) -> str:
    """One line for each step, for whoever records."""
    lines = [f"{name}:"]
    for step, reply in replies.items():
        if isinstance(reply, AdapterError):
            lines.append(f"  {step:<22} {type(reply).__name__}: {reply}")
            continue
        said = reply.text or ", ".join(f"{call.name}({call.input})" for call in reply.tool_uses)
        pieces = sum(isinstance(event, TextDelta) for event in replies.events.get(step, ()))
        usage = f"{reply.usage.total_input_tokens}+{reply.usage.output_tokens}"
        lines.append(f"  {step:<22} {reply.stop_reason:<12} {usage:>8}  {pieces:>2} deltas  {said!r}")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description="Record the local model's conversations again.")
    parser.add_argument("folder", nargs="?", type=Path, default=FOLDER)
    folder = parser.parse_args().folder
    for name in CONVERSATIONS:
        print(describe(name, asyncio.run(record(name, folder))))  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main())
