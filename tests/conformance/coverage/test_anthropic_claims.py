"""The claims of the decisions about Anthropic's wire are true: samples of the SDK's types pass through the
adapter.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, get_args

import msgspec
import pytest

from callboard.adapters.config import AdapterConfig
from callboard.adapters.providers.anthropic.adapter import AnthropicAdapter
from callboard.bus.streams.events import ProviderBlock
from callboard.bus.values.base import Json, JsonObject
from callboard.bus.values.content import (
    ContentBlock,
    DocumentBlock,
    ImageBlock,
    OpaqueBlock,
    ProviderRaw,
    RedactedThinkingBlock,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from callboard.bus.values.messages import Message, Role, ToolChoice, ToolDefinition
from scripts.wire_coverage import DECISIONS, SINGLE, deep_fields, fields, kinds, load, members_of, read_coverage

from ...support.fake_http import ask
from ...support.judges import messages_faults
from ...support.sdk_samples import at, nested, objects, paths, sample, samples
from ...support.wires import WIRES
from ...support.wires import anthropic as a
from ...support.wires.reading import Reading, read_pieces, read_whole
from ..endings import ENDINGS

COVERAGE = read_coverage(DECISIONS / "anthropic_messages.toml")
CLAUDE = WIRES[0]
SCHEMA: JsonObject = {"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"]}
LOOK = ToolDefinition("look", "Looks.", SCHEMA)
MARK: JsonObject = {"type": "ephemeral"}


def claimed(part: str, verdict: str, kind: str | None = None) -> list[tuple[str, str]]:
    """The types and fields of a part with that verdict."""
    rows = COVERAGE.rows.items()
    found = [(of, field) for (where, of, field), row in rows if (where, row.verdict) == (part, verdict)]
    return [(of, field) for of, field in found if kind in (None, of)]


def body_of(*messages: Message, **fields: object) -> JsonObject:
    fields = {"model": "anthropic:claude-sonnet-4-5", **fields}
    call = AnthropicAdapter(AdapterConfig()).write_request(
        ask(*(messages or (Message.user("Hi"),)), **fields), stream=False
    )
    body: JsonObject = msgspec.json.decode(call.body)
    return body


@pytest.mark.parametrize("field", [f for _, f in claimed("request", "options") if f != "betas"])
def test_a_request_field_that_is_optional_is_sent_as_the_host_gives_it(field: str) -> None:
    [of] = kinds(COVERAGE, "request")[SINGLE]
    value = sample(deep_fields(of)[field])
    assert at(body_of(provider_options={"anthropic": nested(field, value)}), field) == value


def rich() -> Iterator[JsonObject]:
    """Request bodies that together use every feature with a canonical form."""
    raw = ProviderRaw("anthropic", {"cache_control": MARK})
    media: list[ContentBlock] = [
        ImageBlock(data=b"\x89PNG\r\n\x1a\n", provider_raw=raw),
        ImageBlock(url="https://x.test/a.png"),
        DocumentBlock(data=b"%PDF-", name="a.pdf"),
        DocumentBlock(data=b"Words.", media_type="text/plain"),
        DocumentBlock(url="https://x.test/a.pdf", media_type="application/pdf"),
        TextBlock("Hi"),
    ]
    of_a_set = ProviderRaw("anthropic", {"toolset_name": "set"})
    said = [
        Message.user(media),
        Message.assistant([
            ThinkingBlock("Hm.", "sig", ProviderRaw("anthropic", {})),
            RedactedThinkingBlock("aGk=", ProviderRaw("anthropic", {})),
            ToolUseBlock("tu_1", "look", {"input": "x"}, provider_raw=of_a_set),
        ]),
        Message(Role.TOOL, (ToolResultBlock("tu_1", "No.", is_error=True),)),
    ]  # fmt: skip
    common = {
        "user": "u", "stop_sequences": ("x",), "tools": (LOOK, ToolDefinition("see", "Sees.", SCHEMA, True)),
        "system_prompt": "Be brief.", "max_output_tokens": 99,
    }  # fmt: skip
    for choice in (ToolChoice("named", "look"), ToolChoice("required"), ToolChoice("none"), ToolChoice("auto")):
        yield body_of(*said, tool_choice=choice, parallel_tool_calls=False, **common)
    format_: JsonObject = {"type": "object", "properties": {}, "additionalProperties": False}
    yield body_of(reasoning_effort="low", output_schema=format_, model="anthropic:claude-opus-4-6")
    yield body_of(reasoning_effort="low", max_output_tokens=9000)
    yield body_of(reasoning_effort="none", model="anthropic:claude-haiku-5-5")
    waiting = OpaqueBlock("container", ProviderRaw("anthropic", {"type": "container", "id": "cont_1"}))
    yield body_of(Message.user("Hi"), Message.assistant([TextBlock("So"), waiting]))


def test_a_request_field_that_has_a_name_of_ours_is_sent_by_it() -> None:
    sent = {path for body in rich() for path in paths(body)}
    assert {field for _, field in claimed("request", "canonical")} - sent == set()


@pytest.mark.parametrize(
    "part", ["tool", "tool_choice", "thinking", "message", "content", "image_source", "document_source"]
)
def test_canonical_parts_of_a_request_have_all_their_fields(part: str) -> None:
    sent: dict[str, set[str]] = {}
    for body in rich():
        for found in objects(body):
            kind = found.get("type") or found.get("role") or "custom"
            sent.setdefault(str(kind), set()).update(paths(found))
    for kind, field in claimed(part, "canonical"):
        assert field in sent.get(kind, ()), (kind, field)


@pytest.mark.parametrize("tool", samples(load(COVERAGE.parts["tool"][0])), ids=lambda tool: str(tool.get("type")))
def test_every_kind_of_tool_can_be_added(tool: JsonObject) -> None:
    body = body_of(tools=(LOOK,), provider_options={"anthropic": {"tools": [tool]}})
    assert [one.get("name") for one in body["tools"]][:1] == ["look"]
    assert body["tools"][1:] == [tool]


def test_a_tools_fields_for_the_provider_are_sent_with_it() -> None:
    [of] = kinds(COVERAGE, "tool")["custom"]
    extra = {field: sample(deep_fields(of)[field]) for _, field in claimed("tool", "options", "custom")}
    tool = ToolDefinition("look", "Looks.", SCHEMA, provider_options={"anthropic": extra})
    [written] = body_of(tools=(tool,))["tools"]
    assert extra
    assert {field: written[field] for field in extra} == extra


THINKING = samples(load(COVERAGE.parts["thinking"][0]))


@pytest.mark.parametrize("thinking", THINKING, ids=lambda thinking: str(thinking["type"]))
def test_a_host_can_set_any_kind_of_thinking(thinking: JsonObject) -> None:
    """The host's thinking field replaces the adapter's, unchanged."""
    for model in ("claude-sonnet-4-5", "claude-opus-4-6", "claude-sonnet-5-5", "claude-of-tomorrow"):
        asked = {"reasoning_effort": "low", "model": f"anthropic:{model}", "max_output_tokens": 9000}
        assert body_of(provider_options={"anthropic": {"thinking": thinking}}, **asked)["thinking"] == thinking


def test_a_host_can_write_a_system_message_in_the_middle() -> None:
    """The host's messages replace the adapter's."""
    [of] = kinds(COVERAGE, "message")["system"]
    said: list[Json] = [{"role": "user", "content": "Hi"}, sample(of)]
    assert body_of(provider_options={"anthropic": {"messages": said}})["messages"] == said


CLIENT_TOOLS: dict[str, Any] = {
    kind: sample(members[0])
    for kind, members in kinds(COVERAGE, "tool").items()
    if "which the host runs" in COVERAGE.rows["tool", kind, "type"].how
}


@pytest.mark.parametrize("tool", CLIENT_TOOLS.values(), ids=list(CLIENT_TOOLS))
def test_a_tool_of_ours_may_be_one_of_the_vendors(tool: JsonObject) -> None:
    own: JsonObject = {name: value for name, value in tool.items() if name not in ("name", "strict")}
    ours = ToolDefinition(str(tool["name"]), "Does it.", SCHEMA, True, provider_options={"anthropic": own})
    assert body_of(tools=(ours,))["tools"] == [tool]


def opaque(data: JsonObject) -> OpaqueBlock:
    return OpaqueBlock(str(data["type"]), ProviderRaw("anthropic", data))


CONTENT = {str(block["type"]): block for block in samples(load(COVERAGE.parts["content"][0]))}
OPAQUE = [kind for kind, field in claimed("content", "options") if field == "type"]
OF_REPLIES = {kind for kind, field in claimed("block", "reported") if field == "type"}


def pair(kind: str) -> list[JsonObject]:
    """A block with its other half: a call or a result. All samples have the same id, which is also the id of the
    call.
    """
    if not kind.endswith(("_result", "_use")):
        return [CONTENT[kind]]
    call = "mcp_tool_use" if kind.startswith("mcp") else "server_tool_use"
    answer = (
        kind
        if kind.endswith("_result")
        else "mcp_tool_result"
        if call == "mcp_tool_use"
        else "web_search_tool_result"
    )
    return [CONTENT[call], CONTENT[answer]]


@pytest.mark.parametrize("kind", OPAQUE)
def test_a_block_of_the_host_is_sent_unchanged(kind: str) -> None:
    """A block is in a message of the user. A block of a reply is in the reply."""
    if kind == "search_result" or kind not in OF_REPLIES:
        body = body_of(Message.user([opaque(CONTENT[kind]), TextBlock("So?")]))
        assert body["messages"][0]["content"][0] == CONTENT[kind]
        return
    said = [*map(opaque, pair(kind)), TextBlock("So.")]
    body = body_of(Message.user("Hi"), Message.assistant(said), Message.user("Go on"))
    assert CONTENT[kind] in body["messages"][1]["content"]


@pytest.mark.parametrize(("part", "field"), [
    ("document_source", "file"), ("document_source", "content"), ("image_source", "file"),
])  # fmt: skip
def test_a_source_of_the_vendors_own_is_sent_as_it_is(part: str, field: str) -> None:
    [of] = kinds(COVERAGE, part)[field]
    block: JsonObject = {"type": part.removesuffix("_source"), "source": sample(of)}
    body = body_of(Message.user([opaque(block), TextBlock("So?")]))
    assert body["messages"][0]["content"][0] == block


OF_BLOCKS = [
    (part, kind, field)
    for part in ("content", "result_content")
    for kind, field in claimed(part, "options")
    if COVERAGE.rows[part, kind, "type"].verdict == "canonical"
]


@pytest.mark.parametrize(("part", "kind", "field"), OF_BLOCKS)
def test_an_optional_field_of_a_host_s_block_is_sent_unchanged(part: str, kind: str, field: str) -> None:
    """The block is in a message or in the result of a tool."""
    of = kinds(COVERAGE, part)[kind][0]  # the other kinds belong to replies
    value = sample(deep_fields(of)[field])
    raw = ProviderRaw("anthropic", nested(field, value))
    parts: dict[str, TextBlock | ImageBlock | DocumentBlock] = {
        "text": TextBlock("Hi", raw),
        "image": ImageBlock(url="https://x.test/a.png", provider_raw=raw),
        "document": DocumentBlock(data=b"%PDF-", provider_raw=raw),
    }
    said = parts.get(kind, TextBlock("Hi"))
    use = ToolUseBlock("tu_1", "look", {"input": "x"}, provider_raw=raw if kind == "tool_use" else None)
    result = ToolResultBlock(
        "tu_1", (said if part == "result_content" else TextBlock("Dark."),),
        provider_raw=raw if kind == "tool_result" else None,
    )  # fmt: skip
    body = body_of(Message.user([said]), Message.assistant([use]), Message(Role.TOOL, (result,)), tools=(LOOK,))
    place = body["messages"][2]["content"][0]["content"] if part == "result_content" else body["messages"]
    found = next(one for one in objects(place) if one.get("type") == kind)
    assert at(found, field) == value


RESULT_PARTS = {str(block["type"]): block for block in samples(load(COVERAGE.parts["result_content"][0]))}


@pytest.mark.parametrize("kind", [kind for kind, field in claimed("result_content", "options") if field == "type"])
def test_a_part_of_a_result_of_the_vendors_own_is_sent_as_it_is(kind: str) -> None:
    result = Message.tool_result("tu_1", [TextBlock("One:"), opaque(RESULT_PARTS[kind])])
    body = body_of(
        Message.user("Hi"), Message.assistant([ToolUseBlock("tu_1", "look", {})]), result, tools=(LOOK,)
    )
    assert body["messages"][2]["content"][0]["content"][1] == RESULT_PARTS[kind]


def both(block: JsonObject) -> tuple[Reading, Reading]:
    """Read a block from a plain reply and from a stream."""
    whole = read_whole(CLAUDE, {**CLAUDE.body("", 0, "end"), "content": [block]})
    started: JsonObject = {"type": "content_block_start", "index": 0, "content_block": block}
    return whole, read_pieces(CLAUDE, [CLAUDE.stream(a.message_start(), started, a.stop(0), *a.ending())])


@pytest.mark.parametrize("block", samples(load(COVERAGE.parts["block"][0])), ids=lambda block: str(block["type"]))
def test_no_block_of_a_reply_is_lost(block: JsonObject) -> None:
    """The reply is plain or streamed. A block without a canonical form is kept unchanged."""
    whole, streamed = both(block)
    assert whole.said == streamed.said != []
    if str(block["type"]) in OF_REPLIES:
        assert whole.kept == streamed.kept == [block]
        assert [event.raw for event in streamed.events if isinstance(event, ProviderBlock)] == [block]


CITATIONS = samples(load(COVERAGE.parts["citation"][1]))
"""Citations in the form of replies."""


@pytest.mark.parametrize("citation", CITATIONS, ids=lambda citation: str(citation["type"]))
def test_a_citation_stays_with_its_text_and_is_sent_back(citation: JsonObject) -> None:
    """A citation can also be streamed before its text. A request has no field for the id of its file."""
    cited: JsonObject = {"type": "text", "text": "So.", "citations": [citation]}
    delta = a.delta(0, "citations_delta", citation=citation)
    begun = a.start(0, "text", text="", citations=None)
    events = [a.message_start(), begun, delta, a.delta(0, "text_delta", text="So."), a.stop(0), *a.ending()]
    for reading in (read_whole(CLAUDE, {**CLAUDE.body("", 0, "end"), "content": [cited]}),
                    read_pieces(CLAUDE, [CLAUDE.stream(*events)])):  # fmt: skip
        body = body_of(Message.user("Hi"), Message.assistant(reading.content), Message.user("Go on"))
        assert reading.kept == [{"citations": [citation]}]
        taken = {name: value for name, value in citation.items() if name != "file_id"}
        assert body["messages"][1]["content"] == [{**cited, "citations": [taken]}]
        assert messages_faults(body) == []


def test_further_fields_of_a_reply_are_in_the_details() -> None:
    """The details of plain and streamed replies are the same."""
    [of] = kinds(COVERAGE, "reply")[SINGLE]
    names = {field.split(".")[0] for _, field in claimed("reply", "reported") if not field.startswith("usage")}
    beside = {name: sample(fields(of)[name]) for name in names}
    whole = read_whole(CLAUDE, {**CLAUDE.body("Hi", 0, "end"), **beside}).reply
    assert whole.provider_details == beside
    start = a.message_start(diagnostics=beside["diagnostics"])
    delta: JsonObject = {
        "type": "message_delta",
        "delta": {"stop_reason": "end_turn", **{n: beside[n] for n in ("stop_sequence", "stop_details",
            "container")}},
        "usage": {"output_tokens": 1},
        **{name: beside[name] for name in ("context_management", "input_transformations")},
    }  # fmt: skip
    streamed = read_pieces(CLAUDE, [CLAUDE.stream(start, *a.text(0, "Hi"), delta, {"type": "message_stop"})]).reply
    assert streamed.provider_details == beside


def test_every_word_of_the_vendors_for_an_end_is_decided_on() -> None:
    assert set(get_args(load("anthropic.types.beta:BetaStopReason"))) - ENDINGS["anthropic"].keys() == set()


def test_every_effort_and_cache_lifetime_of_the_vendor_can_be_set() -> None:
    """The values come from the vendor's types, because the decisions only list fields."""
    [request] = kinds(COVERAGE, "request")[SINGLE]
    for effort in words(deep_fields(request)["output_config.effort"]):
        body = body_of(reasoning_effort=effort, model="anthropic:claude-opus-5")
        assert body["output_config"] == {"effort": effort}
    for ttl in words(fields(load("anthropic.types.beta:BetaCacheControlEphemeralParam"))["ttl"]):
        options = {"anthropic": {"cache_ttl": ttl}}
        body = body_of(Message.user("Hi"), tools=(LOOK,), system_prompt="x" * 9000, provider_options=options)
        assert body["system"][0]["cache_control"].get("ttl", "5m") == ttl


def words(kind: Any) -> list[str]:
    return [get_args(word)[0] for word in members_of(kind) if get_args(word)]


EVENTS = {str(event["type"]): event for event in samples(load(COVERAGE.parts["event"][0]))}


@pytest.mark.parametrize("kind", list(EVENTS))
def test_no_kind_of_event_breaks_a_stream(kind: str) -> None:
    reading = read_pieces(CLAUDE, [CLAUDE.stream(a.message_start(), EVENTS[kind], *a.ending())])
    assert reading.error is None


@pytest.mark.parametrize("delta", samples(load(COVERAGE.parts["delta"][0])), ids=lambda delta: str(delta["type"]))
def test_no_kind_of_delta_breaks_a_stream(delta: JsonObject) -> None:
    for kind in ("text", "thinking", "tool_use", "server_tool_use", "compaction"):
        event: JsonObject = {"type": "content_block_delta", "index": 0, "delta": delta}
        begun = a.start(0, kind, id="toolu_1", name="look", input={})
        assert (
            read_pieces(CLAUDE, [CLAUDE.stream(a.message_start(), begun, event, a.stop(0), *a.ending())]).error
            is None
        )
