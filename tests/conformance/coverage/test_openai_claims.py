"""The claims of the decisions about OpenAI's wires are true: samples of the SDK's types pass through the
adapters.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pytest

from callboard.adapters.config import AdapterConfig
from callboard.adapters.contract import CanonicalRequest
from callboard.adapters.http.adapter import HttpAdapter
from callboard.adapters.providers.openai.adapter import OpenAIAdapter
from callboard.adapters.providers.openai_compatible.adapter import OpenAICompatibleAdapter
from callboard.adapters.providers.openai_compatible.wire import read_details
from callboard.bus.errors import InvalidRequestError, WarningCode
from callboard.bus.streams.events import ProviderEvent
from callboard.bus.values.base import Json, JsonObject
from callboard.bus.values.content import (
    AudioBlock,
    ContentBlock,
    DocumentBlock,
    ImageBlock,
    OpaqueBlock,
    ProviderRaw,
    TextBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from callboard.bus.values.messages import Message, Role, ToolChoice, ToolDefinition
from callboard.bus.values.usage import StopReason
from scripts.wire_coverage import DECISIONS, SINGLE, Coverage, deep_fields, fields, kinds, load, read_coverage

from ...support.fake_http import ask
from ...support.sdk_samples import at, nested, objects, paths, sample, samples
from ...support.wires import WIRES
from ...support.wires import chat as c
from ...support.wires import responses as r
from ...support.wires.reading import read_pieces, read_whole

RESPONSES = read_coverage(DECISIONS / "openai_responses.toml")
CHAT = read_coverage(DECISIONS / "openai_chat.toml")
ADAPTERS: dict[str, HttpAdapter] = {
    RESPONSES.name: OpenAIAdapter(AdapterConfig(base_url="https://api.openai.com")),
    CHAT.name: OpenAICompatibleAdapter(AdapterConfig(base_url="https://api.openai.com")),
}
CHAT_WIRE = WIRES[2]
SCHEMA: JsonObject = {"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"]}
PICTURE = ImageBlock(data=b"\x89PNG\r\n\x1a\n", detail="high")


def body_of(coverage: Coverage, asked: CanonicalRequest, *, stream: bool = False) -> JsonObject:
    body: JsonObject = msgspec.json.decode(ADAPTERS[coverage.name].write_request(asked, stream=stream).body)
    return body


def asked(coverage: Coverage, *messages: Message, model: str = "gpt-6-sol", **fields: object) -> CanonicalRequest:
    name = ADAPTERS[coverage.name].name
    return ask(*(messages or (Message.user("Hi"),)), model=f"{name}:{model}", **fields)


def claimed(coverage: Coverage, part: str, verdict: str) -> list[tuple[str, str]]:
    """The types and fields of a part with that verdict."""
    return [
        (kind, field) for (of, kind, field), row in coverage.rows.items() if (of, row.verdict) == (part, verdict)
    ]


@pytest.mark.parametrize(
    ("coverage", "field"),
    [(coverage, field) for coverage in (RESPONSES, CHAT) for _, field in claimed(coverage, "request", "options")],
    ids=lambda value: getattr(value, "name", value),
)
def test_a_request_field_that_is_optional_is_sent_as_the_host_gives_it(coverage: Coverage, field: str) -> None:
    [of] = kinds(coverage, "request")[SINGLE]
    value = sample(deep_fields(of)[field])
    options = {ADAPTERS[coverage.name].name: nested(field, value)}
    assert at(body_of(coverage, asked(coverage, provider_options=options)), field) == value


def rich(coverage: Coverage) -> Iterator[JsonObject]:
    """Request bodies that together use every feature with a canonical form."""
    name = ADAPTERS[coverage.name].name
    free: JsonObject = {name: {"type": "custom", "format": {"type": "text"}}}
    tools = (
        ToolDefinition("look", "Looks.", SCHEMA),
        ToolDefinition("write", "Writes.", SCHEMA, None, None, free),
    )
    common = {
        "user": "u", "verbosity": "low", "session_id": "s", "seed": 1, "stop_sequences": ("x",), "tools": tools,
        "system_prompt": "Be brief.", "parallel_tool_calls": True, "temperature": 0.5, "top_p": 0.5,
        "frequency_penalty": 0.5, "presence_penalty": 0.5, "max_output_tokens": 99,
    }  # fmt: skip
    media: list[ContentBlock] = [PICTURE, DocumentBlock(data=b"%PDF-", name="a.pdf"), TextBlock("Hi")]
    linked = DocumentBlock(url="https://x.test/a.pdf", media_type="application/pdf")
    if coverage is RESPONSES:
        media.append(linked)
    said = [
        Message.developer("Be kind."),
        Message.user(media),
        Message.assistant(
            [ToolUseBlock("tu_1", "look", {"input": "x"}), ToolUseBlock("tu_2", "write", {"input": "x"})]
        ),
        Message.tool_result("tu_1", "y"),
        Message.tool_result("tu_2", "y"),
        Message.assistant("So."),
        Message.user("Go on"),
    ]
    reply: JsonObject = {
        "type": "object", "title": "T", "description": "D", **{k: SCHEMA[k] for k in ("properties",)},
    }  # fmt: skip
    for choice in (ToolChoice("named", "look"), ToolChoice("named", "write"), ToolChoice("required"),
                   ToolChoice("none"), ToolChoice("auto")):  # fmt: skip
        yield body_of(coverage, asked(coverage, *said, tool_choice=choice, model="gpt-4.1", **common), stream=True)
    yield body_of(
        coverage, asked(coverage, reasoning_effort="low", output_schema=reply, user="u", verbosity="low")
    )
    yield body_of(coverage, asked(coverage, output_schema={"type": "object"}, background=True))
    other = asked(coverage, Message.user([AudioBlock(data=b"RIFF\0\0\0\0WAVE")]), model="gpt-4o-audio-preview")
    if coverage is CHAT:
        yield body_of(coverage, other)


AS_SERVERS_CALL_IT = {"max_tokens", "user", "max_completion_tokens", "safety_identifier"}
"""Fields of Chat Completions that have two names among servers."""


@pytest.mark.parametrize("coverage", [RESPONSES, CHAT], ids=lambda coverage: coverage.name)
def test_a_request_field_that_has_a_name_of_ours_is_sent_by_it(coverage: Coverage) -> None:
    sent = {path for body in rich(coverage) for path in paths(body)}
    fields = {field for _, field in claimed(coverage, "request", "canonical")} - AS_SERVERS_CALL_IT
    assert fields - sent == set()


@pytest.mark.parametrize(("coverage", "part"), [
    *((RESPONSES, part) for part in ("tool", "format", "content")),
    *((CHAT, part) for part in ("tool", "content")),
], ids=lambda value: getattr(value, "name", value))  # fmt: skip
def test_canonical_parts_of_a_request_have_all_their_fields(coverage: Coverage, part: str) -> None:
    sent: dict[str, set[str]] = {}
    for body in rich(coverage):
        for found in objects(body):
            sent.setdefault(str(found.get("type")), set()).update(paths(found))
    said_in_replies = {"refusal", "reasoning_text"}
    for kind, field in claimed(coverage, part, "canonical"):
        if kind not in said_in_replies:
            assert field in sent.get(kind, ()), (kind, field)


@pytest.mark.parametrize("tool", samples(load(RESPONSES.parts["tool"][0])), ids=lambda tool: str(tool["type"]))
def test_every_kind_of_tool_can_be_added(tool: JsonObject) -> None:
    ours = ToolDefinition("look", "Looks.", SCHEMA)
    body = body_of(RESPONSES, asked(RESPONSES, tools=(ours,), provider_options={"openai": {"tools": [tool]}}))
    assert [one.get("name") for one in body["tools"]][:1] == ["look"]
    assert body["tools"][1:] == [tool]


def test_a_tools_fields_for_the_provider_are_sent_with_it() -> None:
    [of] = kinds(RESPONSES, "tool")["function"]
    fields = [field for kind, field in claimed(RESPONSES, "tool", "options") if kind == "function"]
    extra = {field: sample(deep_fields(of)[field]) for field in fields}
    tool = ToolDefinition("look", "Looks.", SCHEMA, provider_options={"openai": extra})
    [written] = body_of(RESPONSES, asked(RESPONSES, tools=(tool,)))["tools"]
    assert extra
    assert {field: written[field] for field in extra} == extra


INPUT_ITEMS = {str(item["type"]): item for item in samples(load(RESPONSES.parts["item"][0])) if "type" in item}


def opaque(data: JsonObject) -> OpaqueBlock:
    return OpaqueBlock(str(data["type"]), ProviderRaw("openai", data))


def halves(kind: str) -> list[JsonObject]:
    """Sample items with which that kind may be sent back, including its other half. All ids are the same."""
    base = kind.removesuffix("_output").removesuffix("_call")
    names = (base, f"{base}_call", f"{base}_call_output", f"{base}_output")
    found = [one for one in names if one in INPUT_ITEMS]
    if kind.startswith("mcp_approval"):
        found = ["mcp_approval_request", "mcp_approval_response"]
    return [INPUT_ITEMS[one] for one in found if "function" not in one and "custom" not in one]


@pytest.mark.parametrize("kind", [k for k, f in claimed(RESPONSES, "item", "reported") if f == "type"])
def test_an_item_of_a_reply_goes_back_as_it_came(kind: str) -> None:
    item = INPUT_ITEMS[kind]
    calls = [half for half in halves(kind) if not str(half["type"]).endswith(("_output", "_response"))]
    answers = [half for half in halves(kind) if half not in (item, *calls)]
    replied = list(map(opaque, calls if item in calls else [*calls, item]))
    history = (
        Message.user("Hi"),
        Message.assistant(replied),
        Message.user([*map(opaque, answers), TextBlock("Go")]),
    )
    assert item in body_of(RESPONSES, asked(RESPONSES, *history))["input"]


@pytest.mark.parametrize("kind", [k for k, f in claimed(RESPONSES, "item", "options") if f == "type"])
def test_an_item_of_the_hosts_is_sent_as_it_is(kind: str) -> None:
    item = INPUT_ITEMS[kind]
    calls = [opaque(half) for half in halves(kind) if half != item]
    history = (
        Message.user("Hi"),
        Message.assistant(calls or "So."),
        Message.user([opaque(item), TextBlock("Go")]),
    )
    assert item in body_of(RESPONSES, asked(RESPONSES, *history))["input"]


@pytest.mark.parametrize("item", samples(load(RESPONSES.parts["output"][0])), ids=lambda item: str(item["type"]))
def test_no_item_of_a_reply_is_lost(item: JsonObject) -> None:
    """The reply is plain or streamed. An item without a canonical form is kept unchanged."""
    kind = str(item["type"])
    whole = read_whole(WIRES[1], r.response(output=[item]))
    ended = r.event("output_item.done", output_index=0, item=item)
    streamed = read_pieces(WIRES[1], [WIRES[1].stream(r.CREATED, ended, r.ending())])
    assert whole.said == streamed.said != []
    if RESPONSES.rows["output", kind, "type"].verdict == "reported":
        assert whole.kept == [item]


EVENTS = {str(event["type"]): event for event in samples(load(RESPONSES.parts["event"][0]))}
DELTAS = [kind for kind, field in claimed(RESPONSES, "event", "canonical") if field == "delta"]


@pytest.mark.parametrize("kind", DELTAS)
def test_a_delta_is_delivered_when_it_arrives(kind: str) -> None:
    """The delta is the first of an announced item."""
    item_kind = {"function_call_arguments": "function_call", "custom_tool_call_input": "custom_tool_call"}.get(
        kind.split(".")[1], "reasoning" if "reasoning" in kind else "message"
    )
    announced: JsonObject = {"type": item_kind, "id": "text", "name": "look", "call_id": "call_1"}
    event = {**EVENTS[kind], "output_index": 0, "delta": "text"}
    reading = read_pieces(WIRES[1], [WIRES[1].stream(r.CREATED, r.added(0, announced), event)])
    told = reading.deltas + reading.fragments
    assert "text" in "".join(told)


def test_no_kind_of_event_breaks_a_stream() -> None:
    """Only events that end a stream may end it. Progress is delivered unchanged."""
    over = {"error", "response.failed", "response.completed", "response.incomplete"}
    told = {kind for kind, field in claimed(RESPONSES, "event", "reported") if "type" in field}
    for kind, event in EVENTS.items():
        reading = read_pieces(WIRES[1], [WIRES[1].stream(r.CREATED, event, r.ending())])
        assert reading.error is None or kind in over, (kind, reading.error)
        shown = [each.raw for each in reading.events if isinstance(each, ProviderEvent)]
        assert kind not in told or shown == [event], kind


def details_of(coverage: Coverage, part: str) -> JsonObject:
    """The further fields of a reply in the SDK's types, if the table claims that they are reported."""
    [of] = kinds(coverage, part)[SINGLE]
    in_words = "`CanonicalResponse.provider_details`"
    names = {field.split(".")[0] for (of_part, _, field), row in coverage.rows.items()
             if of_part == part and in_words in row.how}  # fmt: skip
    assert names
    return {name: sample(fields(of)[name]) for name in names}


def test_further_fields_of_a_response_are_in_the_details() -> None:
    """The details are the same for plain and streamed replies. Fields that repeat the request are not in the
    details.
    """
    beside = details_of(RESPONSES, "response")
    for reply in (
        read_whole(WIRES[1], r.response(output=[r.message("Hi")], metadata={"a": "b"}, **beside)).reply,
        read_pieces(WIRES[1], [WIRES[1].stream(r.CREATED, r.ending(output=[r.message("Hi")], **beside))]).reply,
    ):
        assert reply.provider_details == beside
        changed = [each.message for each in reply.warnings if each.code == WarningCode.PROVIDER_CHANGED_INPUT]
        assert [beside["input_transformations"][0]["reason"] in message for message in changed] == [True]
    assert read_whole(WIRES[1], r.response(output=[r.message("Hi")])).reply.provider_details == {}


@pytest.mark.parametrize("place", ["with the finish reason", "at the end", "at the beginning"])
def test_further_fields_of_a_chat_reply_are_in_the_details(place: str) -> None:
    """Fields are found at any place in a stream. Azure begins with its filters, and other servers end with their
    times.
    """
    beside = details_of(CHAT, "reply")
    assert details_of(CHAT, "chunk").keys() == beside.keys()
    whole = read_whole(CHAT_WIRE, {**CHAT_WIRE.body("Hi", 0, "end"), **beside}).reply
    assert whole.provider_details == beside
    apart = {**c.chunk(), "choices": [], **beside}
    stop = c.chunk("stop") if place != "with the finish reason" else {**c.chunk("stop"), **beside}
    chunks = [c.chunk(content="Hi"), stop]
    if place == "at the end":
        chunks.append(apart)
    elif place == "at the beginning":
        chunks.insert(0, apart)
    assert read_pieces(CHAT_WIRE, [CHAT_WIRE.stream(*chunks)]).reply.provider_details == beside
    assert read_whole(CHAT_WIRE, CHAT_WIRE.body("Hi", 0, "end")).reply.provider_details == {}


FROM_SERVERS: JsonObject = {
    "system_fingerprint": "fp_1",
    "provider": "Together",
    "citations": ["https://x.test"],
    "prompt_filter_results": [{"prompt_index": 0}],
    "timings": {"predicted_ms": 1.5},
}


def test_fields_about_the_end_of_a_choice_are_in_the_details() -> None:
    """Examples are the stop sequence and the finish reason of a router's provider. Fields of another choice are
    ignored.
    """
    for name in ("stop_reason", "matched_stop", "native_finish_reason", "content_filter_results"):
        body = {**CHAT_WIRE.body("Hi", 0, "end"), **FROM_SERVERS}
        [choice] = body["choices"]
        body["choices"] = [{**choice, name: "###"}, {**choice, "index": 1, name: "another"}]
        ended = c.chunk("stop")
        ended["choices"][0][name] = "###"
        streamed = CHAT_WIRE.stream(c.chunk(content="Hi"), {**ended, **FROM_SERVERS})
        for reading in (read_whole(CHAT_WIRE, body), read_pieces(CHAT_WIRE, [streamed])):
            assert reading.reply.provider_details == {**FROM_SERVERS, name: "###"}
    for odd in ({"choices": "none"}, {"choices": [None, 5]}):
        assert read_details(msgspec.json.encode({"system_fingerprint": "f", **odd}), 0) == {}


@pytest.mark.parametrize(("said", "reason"), [
    ({"stop_reason": "###"}, StopReason.STOP_SEQUENCE),
    ({"matched_stop": "###"}, StopReason.STOP_SEQUENCE),
    ({"matched_stop": 151645}, StopReason.END_TURN),
    ({"stop_reason": None}, StopReason.END_TURN),
    ({"stop_reason": "another"}, StopReason.END_TURN),
])  # fmt: skip
def test_a_stop_sequence_that_a_server_reports_is_the_stop_reason(said: JsonObject, reason: StopReason) -> None:
    """The sequence must be one of the request. A token at the end of every reply is not."""
    body = CHAT_WIRE.body("Hi", 0, "end")
    body["choices"][0] |= said
    ended = c.chunk("stop")
    ended["choices"][0] |= said
    streamed = CHAT_WIRE.stream(c.chunk(content="Hi"), ended)
    assert read_whole(CHAT_WIRE, body, stop_sequences=("###",)).reply.stop_reason is reason
    assert read_pieces(CHAT_WIRE, [streamed], stop_sequences=("###",)).reply.stop_reason is reason
    assert read_whole(CHAT_WIRE, body).reply.stop_reason is StopReason.END_TURN


@pytest.mark.parametrize("coverage", [RESPONSES, CHAT], ids=lambda coverage: coverage.name)
def test_the_fields_of_a_host_s_block_are_sent_with_its_part(coverage: Coverage) -> None:
    """The blocks are texts, images, audio and documents. Fields for another provider are not sent."""
    name = ADAPTERS[coverage.name].name
    breakpoint_ = {"mode": "explicit", "ttl": "1h"}
    given = ProviderRaw(name, {"prompt_cache_breakpoint": breakpoint_, "annotations": [], "id": "msg_1"})
    blocks: list[ContentBlock] = [
        TextBlock("Look", given),
        ImageBlock(data=PICTURE.data, provider_raw=given),
        DocumentBlock(data=b"%PDF-", provider_raw=given),
    ]
    if coverage is CHAT:
        blocks.append(AudioBlock(data=b"RIFF\0\0\0\0WAVE", provider_raw=given))
    foreign = TextBlock("And", ProviderRaw("anthropic", {"cache_control": {"type": "ephemeral"}}))
    model = "gpt-4o-audio-preview" if coverage is CHAT else "gpt-6-sol"
    body = body_of(coverage, asked(coverage, Message.user([*blocks, foreign]), model=model))
    [message] = body["input"] if coverage is RESPONSES else body["messages"]
    *marked, last = message["content"]
    assert [part["prompt_cache_breakpoint"] for part in marked] == [breakpoint_] * len(blocks)
    assert not any(name in part for part in marked for name in ("annotations", "id"))
    assert set(last) == {"type", "text"}
    claims = {kind for kind, field in claimed(coverage, "content", "options") if field.startswith("prompt_cache")}
    assert claims == {part["type"] for part in marked}


@pytest.mark.parametrize("coverage", [RESPONSES, CHAT], ids=lambda coverage: coverage.name)
def test_a_text_alone_keeps_its_fields(coverage: Coverage) -> None:
    """The text is in a message of the user, in a tool's result or, on Chat, in a message of the assistant. Without
    fields it is a plain string.
    """
    name = ADAPTERS[coverage.name].name
    mark = {"type": "ephemeral"}

    def text(said: str, of: str) -> TextBlock:
        return TextBlock(said, ProviderRaw(of, {"cache_control": mark}))

    def texts(of: str) -> list[Json]:
        result = ToolResultBlock("tu_1", (text("y", of),), provider_raw=ProviderRaw(of, {"extra": 1}))
        body = body_of(
            coverage,
            asked(
                coverage,
                Message.user([text("Hi", of)]),
                Message.assistant([text("So", of), ToolUseBlock("tu_1", "look", {})]),
                Message(Role.TOOL, (result,)),
            ),
        )
        said = body["input"] if coverage is RESPONSES else body["messages"]
        return [said[0]["content"], said[1]["content"], said[-1].get("output") or said[-1]["content"],
                said[-1].get("extra")]  # fmt: skip

    user, reply, result, extra = texts(name)
    kind = "input_text" if coverage is RESPONSES else "text"
    assert user == [{"type": kind, "text": "Hi", "cache_control": mark}]
    assert result == [{"type": kind, "text": "y", "cache_control": mark}]
    assert extra == 1
    assert coverage is RESPONSES or reply == [{"type": kind, "text": "So", "cache_control": mark}]
    user, reply, result, extra = texts("another")
    assert (user, result, extra) == ("Hi", "y", None)
    assert coverage is RESPONSES or reply == "So"


def test_a_nested_field_of_the_host_is_merged_into_a_part() -> None:
    """If the adapter writes an object, the host's field must also be an object."""
    picture = ImageBlock(data=PICTURE.data, provider_raw=ProviderRaw("openai_compatible", {"image_url": {"a": 1}}))
    [message] = body_of(CHAT, asked(CHAT, Message.user([TextBlock("Hi"), picture])))["messages"]
    assert set(message["content"][1]["image_url"]) == {"url", "a"}
    wrong = ImageBlock(data=PICTURE.data, provider_raw=ProviderRaw("openai_compatible", {"image_url": "x"}))
    with pytest.raises(InvalidRequestError, match="image_url"):
        body_of(CHAT, asked(CHAT, Message.user([wrong])))
