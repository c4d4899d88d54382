"""Cache breakpoints: their places, and the cached tokens of a conversation.

`PrefixCache` works block by block, as the provider's documentation describes its cache.
"""

from __future__ import annotations

import base64
import copy

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from callboard.adapters.config import AdapterConfig
from callboard.adapters.contract import CanonicalRequest
from callboard.adapters.http.adapter import HttpAdapter
from callboard.adapters.providers.anthropic.adapter import AnthropicAdapter
from callboard.adapters.providers.anthropic.request import write_request
from callboard.bus.errors import InvalidRequestError
from callboard.bus.values.base import Json, JsonObject
from callboard.bus.values.content import (
    ContentBlock,
    ImageBlock,
    OpaqueBlock,
    ProviderRaw,
    RedactedThinkingBlock,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from callboard.bus.values.messages import Message, Role, ToolDefinition

from ...definition_of_done.rows import row
from ...support.fake_http import ask, request
from ...support.judges import messages_faults

LONG = "All work and no play. " * 1000
"""Some 5,500 tokens, which is more than any model's minimum."""

TOOLS = (ToolDefinition("read", "Reads."), ToolDefinition("write", LONG))
CONTROL: Json = {"type": "ephemeral"}


def written(*messages: Message, options: JsonObject | None = None, **changes: object) -> JsonObject:
    said = messages or (Message.user("Hi"),)
    asked: CanonicalRequest = request(**{"model": "anthropic:claude-sonnet-4-5", "messages": said, **changes})
    wire = write_request(asked, provider="anthropic", options=options or {}, stream=False)
    body: JsonObject = msgspec.json.decode(wire.body)
    assert messages_faults(body) == []
    return body


def prompt(body: JsonObject) -> list[tuple[str, Json]]:
    """The blocks of a prompt in the order in which the cache reads them, each with its place."""
    blocks: list[tuple[str, Json]] = [("tools", tool) for tool in _list(body.get("tools"))]
    system = body.get("system")
    blocks += [("system", block) for block in _list([system] if isinstance(system, str) else system)]
    for number, message in enumerate(_list(body["messages"])):
        assert isinstance(message, dict)
        blocks += [(f"{number} {message['role']}", block) for block in _list(message["content"])]
    return blocks


def _list(value: Json) -> list[Json]:
    return value if isinstance(value, list) else []


def marks(body: JsonObject) -> list[int]:
    """The places of the prompt with a breakpoint."""
    return [n for n, (_, block) in enumerate(prompt(body)) if isinstance(block, dict) and "cache_control" in block]


class PrefixCache:
    """Anthropic's cache: the prefix before each breakpoint, which is found again within 20 blocks."""

    def __init__(self) -> None:
        self.kept: set[bytes] = set()

    def send(self, body: JsonObject) -> tuple[int, int]:
        """Send a prompt. Returns the number of blocks from the cache and the number of all blocks."""
        blocks = prompt(copy.deepcopy(body))
        places = marks(body)
        assert len(places) <= 4
        prefixes: list[bytes] = []
        sofar = b""
        for where, block in blocks:
            if isinstance(block, dict):
                block.pop("cache_control", None)
            sofar += msgspec.json.encode([where, block])
            prefixes.append(sofar)
        read = 0
        for place in places:
            for back in range(place, max(-1, place - 20), -1):
                if prefixes[back] in self.kept:
                    read = max(read, back + 1)
                    break
        self.kept |= {prefixes[place] for place in places}
        return read, len(blocks)


# -- places


@row("8.6.3", of="anthropic")
def test_tools_system_and_the_conversation_get_one_each_and_the_last_turn_another() -> None:
    said = (Message.user("One"), Message.assistant("Two"), Message.user("Three"))
    body = written(*said, tools=TOOLS, system_prompt="You are brief.")
    places = [where for n, (where, _) in enumerate(prompt(body)) if n in marks(body)]
    assert places == ["tools", "system", "0 user", "2 user"]
    assert body["system"] == [{"type": "text", "text": "You are brief.", "cache_control": CONTROL}]
    schema: JsonObject = {"type": "object", "properties": {}}
    last = {"name": "write", "description": LONG, "input_schema": schema, "cache_control": CONTROL}
    assert _list(body["tools"])[1] == last


@pytest.mark.parametrize(("model", "minimum"), [
    ("claude-sonnet-4-5-20250929", 1024),
    ("claude-haiku-4-5", 4096),
    ("claude-opus-4-6", 4096),
    ("claude-sonnet-4-6", 2048),
    ("claude-fable-5", 2048),
    ("claude-opus-5-5", 512),
])  # fmt: skip
def test_a_prompt_below_the_models_minimum_has_no_breakpoint(model: str, minimum: int) -> None:
    """A token counts as three bytes. Tokens are rarely smaller, so no prompt that could be cached is missed."""
    for size, marked in ((3 * minimum - 50, False), (3 * minimum + 50, True)):
        body = written(model=f"anthropic:{model}", system_prompt="x" * size)
        assert (isinstance(body["system"], list), bool(marks(body))) == (marked, marked)


def test_only_shared_parts_of_a_single_request_are_cached() -> None:
    """Writing costs more than reading. Without a session, tools or a reply, a single request is not cached."""
    assert marks(written(Message.user(LONG))) == []
    assert marks(written(Message.user(LONG), system_prompt=LONG)) == [0]
    assert marks(written(Message.user(LONG), session_id="ses_1")) == [0]
    assert marks(written(Message.user(LONG), tools=TOOLS)) == [1, 2]


def test_blocks_that_cannot_have_a_breakpoint_are_skipped() -> None:
    """Reasoning, and text that is only white space, can't have a breakpoint."""
    raw = ProviderRaw("anthropic", {})
    reply: tuple[ContentBlock, ...] = (TextBlock("So far"), ThinkingBlock("Hm", "sig", raw))
    body = written(
        Message.user(LONG), Message.assistant((*reply, RedactedThinkingBlock("x", raw))), session_id="ses_1"
    )
    assert marks(body) == [0, 1]


def test_a_picture_can_carry_one() -> None:
    png = base64.b64encode(b"\x89PNG\r\n\x1a\n").decode()
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": png}}
    body = written(Message.user((TextBlock(LONG), ImageBlock(data=b"\x89PNG\r\n\x1a\n"))), session_id="ses_1")
    assert marks(body) == [1]
    assert prompt(body)[1][1] == {**image, "cache_control": CONTROL}


# -- breakpoints of the host


@pytest.mark.parametrize(
    ("options", "asked"),
    [({"auto_cache": False}, {}), ({}, {"auto_cache": False}), ({"auto_cache": True}, {"auto_cache": False})],
)
@row("8.6.6", of="anthropic")
def test_it_can_be_switched_off(options: JsonObject, asked: JsonObject) -> None:
    body = written(
        options=options, provider_options={"anthropic": asked}, system_prompt=LONG, tools=TOOLS, session_id="s"
    )
    assert marks(body) == []
    assert body["system"] == LONG
    assert "auto_cache" not in body


def test_the_lifetime_can_be_chosen() -> None:
    hour: JsonObject = {"cache_ttl": "1h"}
    body = written(options=hour, system_prompt=LONG)
    assert body["system"] == [{"type": "text", "text": LONG, "cache_control": {"type": "ephemeral", "ttl": "1h"}}]
    body = written(options=hour, provider_options={"anthropic": {"cache_ttl": "5m"}}, system_prompt=LONG)
    assert body["system"] == [{"type": "text", "text": LONG, "cache_control": CONTROL}]
    with pytest.raises(InvalidRequestError, match="cache_ttl '2h' must be one of 5m, 1h"):
        written(options={"cache_ttl": "2h"})


def host_tool(name: str, ttl: str | None = None) -> JsonObject:
    control: JsonObject = {"type": "ephemeral"} if ttl is None else {"type": "ephemeral", "ttl": ttl}
    return {"name": name, "input_schema": {"type": "object"}, "cache_control": control}


@pytest.mark.parametrize(("hosts", "ours"), [(1, 3), (2, 2), (3, 1), (4, 0), (5, 0)])
def test_the_hosts_breakpoints_count_and_come_first(hosts: int, ours: int) -> None:
    """There may be four breakpoints. A fifth one of the host is sent. Those of the conversation are dropped last.
    The host's own objects are not changed.
    """
    tools: list[Json] = [host_tool(f"t{n}") for n in range(hosts)]
    system: list[Json] = [{"type": "text", "text": "Be brief."}]
    given = copy.deepcopy((tools, system))
    said = (Message.user(LONG), Message.assistant("Two"), Message.user("Three"))
    asked = request(model="anthropic:claude-test", messages=said,
                    provider_options={"anthropic": {"tools": tools, "system": system}})  # fmt: skip
    body = msgspec.json.decode(write_request(asked, provider="anthropic", options={}, stream=False).body)
    assert len(marks(body)) == hosts + min(ours, 2)  # the system text before them is too short
    assert (tools, system) == given
    if ours == 1:
        assert [where for n, (where, _) in enumerate(prompt(body)) if n in marks(body)][-1] == "2 user"


def test_the_providers_own_automatic_breakpoint_takes_the_place_of_the_conversations() -> None:
    said = (Message.user(LONG), Message.assistant("Two"), Message.user("Three"))
    body = written(*said, system_prompt=LONG, provider_options={"anthropic": {"cache_control": CONTROL}})
    assert body["cache_control"] == CONTROL
    assert marks(body) == [0]


@pytest.mark.parametrize(
    ("ttl", "host_ttl", "kept"), [("5m", "1h", True), ("5m", None, True), ("1h", "1h", True), ("1h", None, False)]
)
def test_a_longer_lifetime_never_comes_after_a_shorter_one(ttl: str, host_ttl: str | None, kept: bool) -> None:
    """The provider refuses that order. The host's breakpoint is on a tool, before the adapter's."""
    body = written(
        options={"cache_ttl": ttl},
        provider_options={"anthropic": {"tools": [host_tool("t", host_ttl)]}},
        system_prompt=LONG,
    )
    assert marks(body) == ([0, 1] if kept else [0])


def test_a_short_lived_one_never_comes_before_the_hosts_long_lived_one() -> None:
    long_lived = {"anthropic": {"cache_control": {"type": "ephemeral", "ttl": "1h"}}}
    assert marks(written(system_prompt=LONG, tools=TOOLS, provider_options=long_lived)) == []


# -- savings


def _turn(number: int, calls: int, results: str) -> list[Message]:
    """A question, a reply that calls tools, their results, and a final reply."""
    thought = ThinkingBlock("", f"sig{number}", ProviderRaw("anthropic", {}))
    uses = tuple(ToolUseBlock(f"tu_{number}_{n}", "read", {"path": str(n)}) for n in range(calls))
    messages = [Message.user(f"Question {number}?")]
    if calls:
        messages.append(Message.assistant((thought, *uses)))
        messages += [Message.tool_result(use.id, f"{results} {use.id}") for use in uses]
    return [*messages, Message.assistant((thought, TextBlock(f"Answer {number}.")))]


def _requests(turns: list[list[Message]]) -> list[tuple[Message, ...]]:
    """The histories of all calls of a conversation, one for each turn of the model."""
    history = [message for turn in turns for message in turn]
    return [tuple(history[:n]) for n, message in enumerate(history) if message.role == "assistant"]


@given(
    st.lists(st.sampled_from([0, 1, 2, 5, 30]), min_size=2, max_size=8),
    st.sampled_from(["claude-sonnet-4-5", "claude-opus-4-8", "claude-opus-5-5", "claude-of-tomorrow"]),
    st.booleans(),
)
@settings(max_examples=40, deadline=None)
def test_each_call_reads_the_previous_prompt_from_the_cache(
    calls: list[int], model: str, with_tools: bool
) -> None:
    """A turn may have any number of blocks, although the cache only searches 20 blocks back."""
    cache = PrefixCache()
    former = 0
    for messages in _requests([_turn(n, count, "Result") for n, count in enumerate(calls)]):
        tools = TOOLS if with_tools else ()
        body = written(*messages, model=f"anthropic:{model}", system_prompt=LONG, tools=tools, session_id="ses_1")
        read, blocks = cache.send(body)
        assert read >= former
        former = blocks


# -- Fields of a host on blocks and tools for this provider, and further fields of a reply.


MARK: JsonObject = {"type": "ephemeral"}

PICTURE = b"\x89PNG\r\n\x1a\n"


def mine(**fields: Json) -> ProviderRaw:
    return ProviderRaw("anthropic", fields)


def body_of(*messages: Message, adapter: HttpAdapter | None = None, **changes: object) -> JsonObject:
    adapter = adapter or AnthropicAdapter(AdapterConfig())
    asked = ask(*messages, model=f"{adapter.name}:claude-sonnet-4-5", **changes)
    body: JsonObject = msgspec.json.decode(adapter.write_request(asked, stream=False).body)
    return body


def content(body: JsonObject, number: int = 0) -> list[JsonObject]:
    return body["messages"][number]["content"]  # type: ignore[index, call-overload, no-any-return]


def test_a_call_and_its_result_have_the_hosts_fields() -> None:
    """The parts of the result also have them. Fields that a request does not accept are left out."""
    call = ToolUseBlock("tu_1", "look", {}, provider_raw=mine(toolset_name="set", cache_control=MARK, seen=1))
    parts = (TextBlock("Dark.", mine(cache_control=MARK)), ImageBlock(data=PICTURE))
    result = ToolResultBlock("tu_1", parts, provider_raw=mine(cache_control=MARK, toolset_name="set", seen=1))
    history = (Message.user("Look."), Message.assistant([call]), Message(Role.TOOL, (result,)))
    body = body_of(*history, tools=(ToolDefinition("look", "Looks."),))
    [asked], [answered] = content(body, 1), content(body, 2)
    assert {name: asked[name] for name in ("toolset_name", "cache_control")} == {
        "toolset_name": "set", "cache_control": MARK,
    }  # fmt: skip
    assert (answered["cache_control"], answered["toolset_name"]) == (MARK, "set")
    assert answered["content"][0] == {"type": "text", "text": "Dark.", "cache_control": MARK}
    assert "seen" not in asked
    assert "seen" not in answered


def test_the_hosts_skills_and_the_container_that_a_reply_waits_in_are_named_together() -> None:
    waiting = OpaqueBlock("container", mine(type="container", id="container_1"))
    said = (Message.user("Hi"), Message.assistant([TextBlock("So"), waiting]))
    skills: Json = [{"type": "anthropic", "skill_id": "xlsx"}]
    for container, sent in (
        ({"skills": skills}, {"id": "container_1", "skills": skills}),
        ({"id": "mine", "skills": skills}, {"id": "mine", "skills": skills}),
        ("mine", "mine"),
    ):
        assert body_of(*said, provider_options={"anthropic": {"container": container}})["container"] == sent


def marks_of_body(value: Json) -> int:
    if isinstance(value, dict):
        return ("cache_control" in value) + sum(map(marks_of_body, value.values()))
    return sum(map(marks_of_body, value)) if isinstance(value, list) else 0


@pytest.mark.parametrize("where", ["blocks", "tools", "both"])
def test_the_hosts_breakpoints_count_among_the_four(where: str) -> None:
    """The adapter fills the rest of the four. If messages have too many, the last ones stay, because they cover
    the others.
    """
    raw = mine(cache_control=MARK) if where != "tools" else None
    options = {"anthropic": {"cache_control": MARK}} if where != "blocks" else {}
    said = [Message.user([TextBlock(LONG, raw)]) if n % 2 == 0 else Message.assistant(LONG) for n in range(7)]
    tools = (ToolDefinition("look", LONG, provider_options=options),)
    body = body_of(*said, tools=tools, system_prompt=LONG)
    assert marks_of_body(body) == 4
    marked = [number for number in (0, 2, 4, 6) if "cache_control" in content(body, number)[0]]
    assert marked == {"blocks": [0, 2, 4, 6], "tools": [4, 6], "both": [2, 4, 6]}[where]
