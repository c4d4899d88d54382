"""What a host puts on blocks and tools for this provider, and what a reply says beside its content."""

from __future__ import annotations

import msgspec
import pytest

from callboard.adapters.config import AdapterConfig
from callboard.adapters.http.adapter import HttpAdapter
from callboard.adapters.providers.anthropic.adapter import AnthropicAdapter
from callboard.adapters.providers.openai.adapter import OpenAIAdapter
from callboard.bus.values.base import Json, JsonObject
from callboard.bus.values.content import (
    ContentBlock,
    DocumentBlock,
    ImageBlock,
    OpaqueBlock,
    ProviderRaw,
    TextBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from callboard.bus.values.messages import Message, Role, ToolDefinition

from ...support.fake_http import ask
from ...support.judges import messages_faults
from ...support.wires import WIRES
from ...support.wires import anthropic as a
from ...support.wires.reading import read_pieces, read_whole

CLAUDE = WIRES[0]
MARK: JsonObject = {"type": "ephemeral"}
LONG = "All work and no play. " * 1000
"""More than any model's minimum for the cache."""

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


SEARCH_RESULT: JsonObject = {
    "type": "search_result", "source": "https://x.test", "title": "X", "citations": {"enabled": True},
    "content": [{"type": "text", "text": "Found."}],
}  # fmt: skip
FILE: JsonObject = {"type": "document", "source": {"type": "file", "file_id": "file_1"}}
MARKED: list[tuple[ContentBlock, JsonObject]] = [
    (TextBlock("Hi", mine(cache_control=MARK)), {"type": "text", "text": "Hi", "cache_control": MARK}),
    (
        ImageBlock(url="https://x.test/a.png", provider_raw=mine(cache_control=MARK)),
        {"type": "image", "source": {"type": "url", "url": "https://x.test/a.png"}, "cache_control": MARK},
    ),
    (
        DocumentBlock(
            url="https://x.test/a.pdf",
            name="A",
            provider_raw=mine(citations={"enabled": True}, context="A year ago", cache_control=MARK),
        ),
        {
            "type": "document", "source": {"type": "url", "url": "https://x.test/a.pdf"}, "title": "A",
            "citations": {"enabled": True}, "context": "A year ago", "cache_control": MARK,
        },
    ),
    (OpaqueBlock("search_result", ProviderRaw("anthropic", SEARCH_RESULT)), SEARCH_RESULT),
    (OpaqueBlock("document", ProviderRaw("anthropic", FILE)), FILE),
]  # fmt: skip


@pytest.mark.parametrize(("block", "sent"), MARKED, ids=[type(block).__name__ for block, _ in MARKED])
def test_what_the_host_puts_on_a_block_is_sent_with_it(block: ContentBlock, sent: JsonObject) -> None:
    """To this provider; of another provider's fields nothing is."""
    body = body_of(Message.user([block, TextBlock("So?")]))
    assert content(body) == [sent, {"type": "text", "text": "So?"}]
    assert messages_faults(body) == []
    elsewhere = body_of(Message.user([block, TextBlock("So?")]), adapter=OpenAIAdapter(AdapterConfig()))
    assert b"cache_control" not in msgspec.json.encode(elsewhere)
    assert b"file_1" not in msgspec.json.encode(elsewhere)


def test_a_call_and_its_result_carry_the_hosts_fields_too() -> None:
    """And so do the parts of the result. What a request doesn't take stays at home."""
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


def test_a_tools_fields_are_sent_with_it_and_with_it_alone() -> None:
    """Once, and none by which it would be another tool."""
    fields: JsonObject = {
        "defer_loading": True, "input_examples": [{"q": "x"}], "allowed_callers": ["direct"],
        "eager_input_streaming": True, "cache_control": MARK,
    }  # fmt: skip
    tools = (
        ToolDefinition("look", "Looks.", provider_options={"anthropic": fields, "openai": {"strict": True}}),
        ToolDefinition("see", "Sees."),
    )
    first, second = body_of(Message.user("Hi"), tools=tools)["tools"]
    assert {name: first[name] for name in fields} == fields
    assert set(second) == {"name", "description", "input_schema"}
    assert set(first) == set(second) | set(fields)


VENDORS: list[tuple[str, JsonObject]] = [
    ("bash", {"type": "bash_20250124"}),
    ("memory", {"type": "memory_20250818", "input_examples": [{"command": "view", "path": "/memories"}]}),
    ("str_replace_based_edit_tool", {"type": "text_editor_20250728", "max_characters": 100}),
    ("computer", {"type": "computer_20251124", "display_width_px": 9, "display_height_px": 9}),
]


@pytest.mark.parametrize(("name", "fields"), VENDORS, ids=[name for name, _ in VENDORS])
def test_a_tool_of_the_vendors_may_be_run_by_the_host(name: str, fields: JsonObject) -> None:
    """It is sent by its type, without the description and schema by which other providers know it."""
    schema: JsonObject = {"type": "object", "properties": {"command": {"type": "string"}}}
    tool = ToolDefinition(name, "Does it.", schema, provider_options={"anthropic": fields})
    body = body_of(Message.user("Do."), tools=(tool,))
    assert body["tools"] == [{"name": name, **fields}]
    assert [
        fault for fault in messages_faults(body) if "'custom'" not in fault and "input_schema" not in fault
    ] == []
    [strict] = body_of(Message.user("Do."), tools=(msgspec.structs.replace(tool, strict=True),))["tools"]
    assert strict == {"name": name, "strict": True, **fields}
    [plain] = body_of(Message.user("Do."), tools=(tool,), adapter=OpenAIAdapter(AdapterConfig()))["tools"]
    assert (plain["name"], plain["description"]) == (name, "Does it.")


def test_a_call_of_a_tool_of_the_vendors_arrives_as_a_call_and_its_result_goes_back() -> None:
    """With the name of the toolset, where it is of one: the result names it too, whoever made it."""
    called: JsonObject = {
        "type": "tool_use", "id": "toolu_1", "name": "left_click", "input": {"coordinate": [1, 2]},
        "toolset_name": "computer",
    }  # fmt: skip
    reply = read_whole(CLAUDE, {**CLAUDE.body("", 0, "tools"), "content": [called]}).reply
    [call] = reply.content
    assert isinstance(call, ToolUseBlock)
    assert (call.name, call.input) == ("left_click", {"coordinate": [1, 2]})
    said = (Message.user("Click."), Message.assistant(reply.content), Message.tool_result(call.id, "Done."))
    body = body_of(*said, provider_options={"anthropic": {"tools": [{"type": "computer_toolset_20260801"}]}})
    assert content(body, 1) == [called]
    assert content(body, 2) == [
        {"type": "tool_result", "tool_use_id": "toolu_1", "content": "Done.", "toolset_name": "computer"}
    ]
    assert messages_faults(body) == []


def test_the_hosts_skills_and_the_container_that_a_reply_waits_in_are_named_together() -> None:
    waiting = OpaqueBlock("container", mine(type="container", id="container_1"))
    said = (Message.user("Hi"), Message.assistant([TextBlock("So"), waiting]))
    skills: Json = [{"type": "anthropic", "skill_id": "xlsx"}]
    for given, sent in (
        ({"skills": skills}, {"id": "container_1", "skills": skills}),
        ({"id": "mine", "skills": skills}, {"id": "mine", "skills": skills}),
        ("mine", "mine"),
    ):
        assert body_of(*said, provider_options={"anthropic": {"container": given}})["container"] == sent


def marks(value: Json) -> int:
    if isinstance(value, dict):
        return ("cache_control" in value) + sum(map(marks, value.values()))
    return sum(map(marks, value)) if isinstance(value, list) else 0


@pytest.mark.parametrize("where", ["blocks", "tools", "both"])
def test_the_hosts_breakpoints_count_among_the_four(where: str) -> None:
    """Ours fill what is left of them. Of too many in the messages the last ones stay, as they cover the others."""
    raw = mine(cache_control=MARK) if where != "tools" else None
    options = {"anthropic": {"cache_control": MARK}} if where != "blocks" else {}
    said = [Message.user([TextBlock(LONG, raw)]) if n % 2 == 0 else Message.assistant(LONG) for n in range(7)]
    tools = (ToolDefinition("look", LONG, provider_options=options),)
    body = body_of(*said, tools=tools, system_prompt=LONG)
    assert marks(body) == 4
    marked = [number for number in (0, 2, 4, 6) if "cache_control" in content(body, number)[0]]
    assert marked == {"blocks": [0, 2, 4, 6], "tools": [4, 6], "both": [2, 4, 6]}[where]


EDITED: JsonObject = {"applied_edits": [{"type": "clear_tool_uses_20250919", "cleared_tool_uses": 2}]}
DROPPED: Json = [{"type": "thinking_dropped", "reason": "prefix_mismatch", "path": "messages.1"}]


def test_what_a_reply_says_beside_its_content_is_kept_and_told() -> None:
    """Whole and streamed alike: which stop sequence was met, what was left out of the prompt, and why."""
    beside: JsonObject = {"stop_sequence": "STOP", "context_management": EDITED, "input_transformations": DROPPED}
    body = {**CLAUDE.body("Hi", 0, "end"), "stop_reason": "stop_sequence", **beside}
    delta: JsonObject = {
        "type": "message_delta", "delta": {"stop_reason": "stop_sequence", "stop_sequence": "STOP"},
        "usage": {"output_tokens": 1}, "context_management": EDITED, "input_transformations": DROPPED,
    }  # fmt: skip
    start: JsonObject = {"type": "message_start", "message": {"id": "m", "usage": {"input_tokens": 1}}}
    events = [start, *a.text(0, "Hi"), delta, {"type": "message_stop"}]
    for reading in (read_whole(CLAUDE, body), read_pieces(CLAUDE, [CLAUDE.stream(*events)])):
        assert reading.reply.provider_details == beside
        assert [warning.code for warning in reading.reply.warnings] == ["provider_changed_input"] * 2


def test_an_ordinary_reply_says_nothing_beside_its_content() -> None:
    assert read_whole(CLAUDE, CLAUDE.body("Hi", 0, "end")).reply.provider_details == {}


def test_a_tools_result_may_hold_the_providers_own_kinds() -> None:
    """A search result for Claude. Another provider's is left out and told; after a failure there is only text."""
    found = OpaqueBlock("search_result", ProviderRaw("anthropic", SEARCH_RESULT))
    call = Message.assistant([ToolUseBlock("tu_1", "find", {})])

    def sent(adapter: HttpAdapter, *, is_error: bool = False) -> tuple[JsonObject, list[str]]:
        result = Message.tool_result("tu_1", [TextBlock("One:"), found], is_error=is_error)
        asked = ask(Message.user("Find."), call, result, model=f"{adapter.name}:m")
        written = adapter.write_request(asked, stream=False)
        return msgspec.json.decode(written.body), [warning.code for warning in written.warnings]

    body, warnings = sent(AnthropicAdapter(AdapterConfig()))
    assert content(body, 2)[0]["content"] == [{"type": "text", "text": "One:"}, SEARCH_RESULT]
    assert warnings == []
    assert messages_faults(body) == []
    for adapter, is_error in ((OpenAIAdapter(AdapterConfig()), False), (AnthropicAdapter(AdapterConfig()), True)):
        body, warnings = sent(adapter, is_error=is_error)
        assert b"x.test" not in msgspec.json.encode(body)
        assert warnings == ["content_dropped"]
