"""Conversations as they come about: random replies of the vendors' own reply types, read by the adapters.

The host's messages between them may have content of the vendors' request types. A reply that its adapter refuses
is left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

import msgspec
import typing_extensions as te
from hypothesis import strategies as st

from callboard.bus.values.base import Json, JsonObject
from callboard.bus.values.content import ContentBlock, OpaqueBlock, ProviderRaw, ToolResultBlock, ToolUseBlock
from callboard.bus.values.messages import Message, Role
from scripts.wire_coverage import DECISIONS, fields, load, members_of, read_coverage

from .canonical_requests import RESULT_CONTENTS, SAID
from .fake_http import FakeReply
from .sdk_samples import samples
from .sdk_values import values
from .wires import WIRES, chat, gemini, responses
from .wires.reading import read_reply
from .wires.wire import Wire, as_data

BY_NAME: Mapping[str, Wire] = {wire.name: wire for wire in WIRES}


def _types(table: str, part: str) -> list[Any]:
    return [load(path) for path in read_coverage(DECISIONS / f"{table}.toml").parts[part]]


@cache
def _kinds(table: str, part: str) -> st.SearchStrategy[JsonObject]:
    kinds = [kind for of in _types(table, part) for kind in members_of(of) if fields(kind)]
    sent = [kind for kind in kinds if te.is_typeddict(kind)]  # some unions have the replies' types as well
    return st.one_of([values(kind) for kind in sent or kinds])  # type: ignore[arg-type]


def bodies(provider: str) -> st.SearchStrategy[JsonObject]:
    """Whole replies of a provider."""
    match provider:
        case "anthropic":
            blocks = st.lists(_kinds("anthropic_messages", "block"), min_size=1, max_size=4)
            return blocks.map(
                lambda content: {**BY_NAME[provider].body("", 0, "end"), "content": _with_whole_tools(content)}
            )
        case "openai":
            items = st.lists(_kinds("openai_responses", "output").filter(_is_models), min_size=1, max_size=4)
            return items.map(lambda output: responses.response(output=_with_whole_tools(output)))
        case "gemini":
            parts = st.lists(_part("functionResponse"), min_size=1, max_size=4)
            return parts.map(lambda found: gemini.chunk(*found, finish="STOP", usage=gemini.USAGE))
        case "interactions":
            steps = st.lists(_step(), min_size=1, max_size=4)
            return steps.map(lambda found: {**BY_NAME[provider].body("", 0, "end"), "steps": found})
        case _:
            return _kinds("openai_chat", "reply_message").map(
                lambda said: chat.reply(**{**said, "role": "assistant"})
            )


def item_bodies(provider: str) -> Iterator[tuple[str, JsonObject]]:
    """A reply for each kind of content in a provider's replies, with the name of the kind."""
    match provider:
        case "anthropic":
            for block in _each("anthropic_messages", "block"):
                yield (
                    block["type"],
                    {**BY_NAME[provider].body("", 0, "end"), "content": _with_whole_tools([block])},
                )
        case "openai":
            for item in filter(_is_models, _each("openai_responses", "output")):
                yield item["type"], responses.response(output=_with_whole_tools([item]))
        case "gemini":
            [part] = [each for kind in _types("gemini", "part") for each in samples(kind)]
            for name in sorted(part.keys() - {"thought", "thoughtSignature", "functionResponse"}):
                said = {name: part[name], "thoughtSignature": "c2ln"}
                yield name, gemini.chunk(said, finish="STOP", usage=gemini.USAGE)
        case "interactions":
            for step in samples(load("google.genai._gaos.types.interactions:Step")):
                if step["type"] not in ("user_input", "function_result"):
                    yield step["type"], {**BY_NAME[provider].body("", 0, "end"), "steps": [step]}
        case _:
            [message] = _each("openai_chat", "reply_message")
            for name in sorted(message.keys() - {"role"}):
                yield name, chat.reply(role="assistant", **{"content": "Said.", name: message[name]})


def _each(table: str, part: str) -> list[JsonObject]:
    """A value of each kind in a part of a table."""
    return [value for of in _types(table, part) for value in samples(of)]


def _is_models(item: JsonObject) -> bool:
    """Whether the item is the model's. OpenAI's type of replies also contains the host's answers."""
    return item["type"] not in _HOSTS


@cache
def _step() -> st.SearchStrategy[JsonObject]:
    """A step of a model."""
    kinds = members_of(load("google.genai._gaos.types.interactions:Step"))
    not_said = ("UnknownStep", "UserInputStep", "FunctionResultStep")
    return st.one_of([values(kind) for kind in kinds if kind.__name__ not in not_said])  # type: ignore[arg-type]


def _with_whole_tools(items: list[JsonObject]) -> list[Json]:
    """Items with all optional fields, also in their tools."""
    tool: JsonObject = {"type": "function", "name": "look", "parameters": {"type": "object"}, "strict": False}
    found: list[Json] = []
    for item in items:
        if item["type"] in ("tool_search_output", "additional_tools"):
            found.append({**item, "tools": [tool] if item["tools"] else []})
        elif item["type"] == "image_generation_call":
            found.append({"result": None, **item})
        elif item["type"] == "code_interpreter_call":
            found.append({"code": None, "outputs": None, **item})
        elif item["type"] == "compaction" and item.get("tool_changes"):
            found.append({**item, "tool_changes": []})
        else:
            found.append(item)
    return found


def _part(*without: str) -> st.SearchStrategy[JsonObject]:
    """A part of a Gemini message with one kind of content and its metadata."""
    [kind] = _types("gemini", "part")
    found = fields(members_of(kind)[0])
    about: st.SearchStrategy[JsonObject] = st.fixed_dictionaries(
        {}, optional={"thoughtSignature": st.just("c2ln"), "thought": st.booleans()}
    )
    kinds = [name for name in found if name not in ("thoughtSignature", "thought", *without)]
    return st.sampled_from(kinds).flatmap(
        lambda name: st.tuples(values(members_of(found[name])[0]), about).map(
            lambda both: {name: both[0], **both[1]}
        )
    )


@cache
def _chat_parts() -> st.SearchStrategy[JsonObject]:
    """The parts of a user's message. The table also has those of an assistant's."""
    return st.one_of([values(kind) for kind in members_of(_types("openai_chat", "content")[0])])  # type: ignore[arg-type]


_HOSTS = (
    *("computer_call_output", "local_shell_call_output", "mcp_approval_response"),
    *("function_call_output", "custom_tool_call_output"),
)

_OURS = (
    *("message", None, "reasoning", "function_call", "custom_tool_call"),
    *("function_call_output", "custom_tool_call_output"),
)
"""Items that have canonical blocks, so no host sends them as opaque ones."""


def said_by_host(provider: str) -> st.SearchStrategy[ContentBlock]:
    """A provider's own kinds of content in a host's message."""
    match provider:
        case "anthropic":
            data = _kinds("anthropic_messages", "content")
        case "openai":
            data = _kinds("openai_responses", "item").filter(lambda item: item.get("type") not in _OURS)
        case "gemini":
            data = _part("functionCall", "functionResponse")
        case "interactions":
            data = _step().filter(lambda step: step["type"] not in ("model_output", "thought", "function_call"))
        case _:
            data = _chat_parts()

    def opaque(data: JsonObject) -> ContentBlock:
        kind = str(data.get("type") or next(iter(data)))
        return OpaqueBlock(kind, ProviderRaw(provider, data))

    return data.map(opaque)


def _renamed(block: ContentBlock, turn: int, number: int) -> ContentBlock:
    """Give a tool call a unique id, as a real provider does."""
    if not isinstance(block, ToolUseBlock):
        return block
    return msgspec.structs.replace(block, id=f"tu_{turn}_{number}")


PROVIDERS = ("anthropic", "openai", "gemini", "interactions", "openai_compatible")


def read_content(provider: str, body: JsonObject, model: str) -> tuple[ContentBlock, ...]:
    """The content that an adapter reads from a reply; empty for a reply that it refuses."""
    wire = BY_NAME[provider]
    reply = FakeReply(as_data(body), headers={"content-type": "application/json"})
    reading = read_reply(wire, reply, streamed=False, model=f"{provider}:{model}")
    return reading.response.content if reading.response is not None else ()


@st.composite
def conversations(draw: st.DrawFn, models: Mapping[str, list[str]], *, turns: int = 3) -> tuple[Message, ...]:
    """Conversations of several turns with several providers."""
    history: list[Message] = []
    for turn in range(draw(st.integers(1, turns))):
        provider = draw(st.sampled_from(PROVIDERS))
        said = list(draw(SAID))
        if draw(st.booleans()):
            said.insert(draw(st.integers(0, len(said))), draw(said_by_host(provider)))
        history.append(Message(Role.USER, tuple(said), id=f"msg_{turn}"))
        model = draw(st.sampled_from(models[provider]))
        content = read_content(provider, draw(bodies(provider)), model)
        content = tuple(_renamed(block, turn, n) for n, block in enumerate(content))
        if not content:
            continue
        history.append(Message(Role.ASSISTANT, content, id=f"msg_{turn}_answer"))
        calls = history[-1].tool_uses
        results = [
            ToolResultBlock(call.id, draw(RESULT_CONTENTS), draw(st.booleans()))
            for call in calls
            if draw(st.integers(0, 5))
        ]
        if results:
            history.append(Message(Role.TOOL, tuple(results), id=f"msg_{turn}_results"))
    return tuple(history)
