"""The claims of the decisions about Gemini's wires are true: samples of the SDK's types pass through the
adapter.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from callboard.adapters.config import AdapterConfig
from callboard.adapters.providers.gemini.adapter import GeminiAdapter
from callboard.bus.errors import InvalidRequestError
from callboard.bus.streams.events import ProviderBlock
from callboard.bus.values.base import Json, JsonObject
from callboard.bus.values.content import (
    AudioBlock,
    ContentBlock,
    DocumentBlock,
    ImageBlock,
    OpaqueBlock,
    ProviderRaw,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from callboard.bus.values.messages import Message, Role, ToolChoice, ToolDefinition
from scripts.wire_coverage import DECISIONS, SINGLE, deep_fields, fields, kinds, read_coverage

from ...support.fake_http import ask
from ...support.sdk_samples import at, nested, sample
from ...support.wires import WIRES
from ...support.wires import gemini as g
from ...support.wires import interactions as i
from ...support.wires.reading import read, read_whole

pytestmark = pytest.mark.more("streams arrive byte by byte, too")

COVERAGE = read_coverage(DECISIONS / "gemini.toml")
GEMINI = WIRES[3]
SCHEMA: JsonObject = {"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"]}
LOOK = ToolDefinition("look", "Looks.", SCHEMA)
MODEL = "gemini:gemini-3-flash"
IN_CONFIG = "merged into `generationConfig`"


def claimed(part: str, verdict: str, words: str = "") -> list[str]:
    """The fields of a part with the given verdict, and with the given words in the reason."""
    rows = COVERAGE.rows.items()
    return [
        field
        for (where, _, field), row in rows
        if (where, row.verdict) == (part, verdict) and row.how.startswith(words)
    ]


def of(part: str) -> dict[str, Any]:
    """The fields of a part's type, including those of nested objects."""
    [kind] = kinds(COVERAGE, part)[SINGLE]
    return deep_fields(kind)


def body_of(*messages: Message, **changes: object) -> JsonObject:
    asked = ask(*(messages or (Message.user("Hi"),)), **{"model": MODEL, **changes})
    body: JsonObject = msgspec.json.decode(GeminiAdapter(AdapterConfig()).write_request(asked, stream=False).body)
    return body


def paths(value: Json, above: str = "") -> Iterator[str]:
    """The dotted paths of all fields at any depth. Items of a list have the path of the list."""
    for key, inner in value.items() if isinstance(value, dict) else ():
        yield f"{above}{key}"
        yield from paths(inner, f"{above}{key}.")
    for inner in value if isinstance(value, list) else ():
        yield from paths(inner, above)


@pytest.mark.parametrize("field", claimed("request", "options"))
def test_a_request_field_that_is_optional_is_sent_as_the_host_gives_it(field: str) -> None:
    how = COVERAGE.rows["request", SINGLE, field].how
    place = f"generationConfig.{field}" if how.startswith(IN_CONFIG) else field
    value = sample(of("request")[field])
    assert at(body_of(provider_options={"gemini": nested(place, value)}), place) == value


def rich() -> Iterator[JsonObject]:
    """Request bodies that together use every feature with a canonical form."""
    picture = ImageBlock(data=b"x", media_type="image/png")
    media: list[ContentBlock] = [
        picture,
        AudioBlock(data=b"x", media_type="audio/wav"),
        DocumentBlock(url="https://x.test/a.pdf", media_type="application/pdf"),
        TextBlock("Hi"),
    ]
    linked = DocumentBlock(url="https://x.test/a.pdf", media_type="application/pdf")
    said = [
        Message.user(media),
        Message.assistant([
            ThinkingBlock("Hm.", "sig", ProviderRaw("gemini", {})),
            ToolUseBlock("tu_1", "look", {"input": "x"}),
        ]),
        Message(Role.TOOL, (ToolResultBlock("tu_1", (TextBlock("No."), picture, linked)),)),
    ]  # fmt: skip
    common = {
        "stop_sequences": ("x",), "tools": (LOOK,), "system_prompt": "Be brief.", "temperature": 0.5, "top_p": 0.5,
        "seed": 1, "frequency_penalty": 0.5, "presence_penalty": 0.5, "output_schema": SCHEMA,
    }  # fmt: skip
    search: JsonObject = {"gemini": {"tools": [{"googleSearch": {}}]}}
    yield body_of(*said, tool_choice=ToolChoice("named", "look"), provider_options=search, **common)
    yield body_of(reasoning_effort="low", model="gemini:gemini-2.5-flash", **common)
    yield body_of(reasoning_effort="low", **common)
    waiting = OpaqueBlock("continuationToken", mine({"continuationToken": "next"}))
    yield body_of(Message.user("Hi"), Message.assistant([waiting]))


def test_canonical_fields_are_sent() -> None:
    """The fields belong to the body and its generationConfig, to tools and their declarations, and to parts."""
    sent = {path.removeprefix("generationConfig.") for body in rich() for path in paths(body)}
    where = {
        "request": "", "tool": "tools.", "tool_config": "toolConfig.", "content": "contents.parts.",
        "declaration": "tools.functionDeclarations.", "result_part": "contents.parts.functionResponse.parts.",
    }  # fmt: skip
    for part, above in where.items():
        fields_ = claimed(part, "canonical")
        assert fields_
        for field in fields_:
            if part == "result_part" and field.startswith("fileData"):
                continue  # the next test covers it
            assert f"{above}{field}" in sent, (part, field)


def test_media_that_a_result_cannot_hold_follow_it() -> None:
    assert any("contents.parts.fileData.fileUri" in paths(body) for body in rich())


@pytest.mark.parametrize("field", claimed("tool", "options"))
def test_every_kind_of_tool_can_be_added(field: str) -> None:
    tool = nested(field, sample(of("tool")[field]))
    first, *others = body_of(tools=(LOOK,), provider_options={"gemini": {"tools": [tool]}})["tools"]  # type: ignore[misc]
    assert "functionDeclarations" in first  # type: ignore[operator]
    assert others == [tool]


@pytest.mark.parametrize("field", claimed("tool_config", "options"))
def test_a_setting_of_tools_is_merged(field: str) -> None:
    value = sample(of("tool_config")[field])
    options: JsonObject = {"gemini": {"toolConfig": nested(field, value)}}
    body = body_of(tools=(LOOK,), tool_choice=ToolChoice("required"), provider_options=options)
    assert at(body["toolConfig"], field) == value
    assert at(body["toolConfig"], "functionCallingConfig.mode") == "ANY"


@pytest.mark.parametrize("field", claimed("declaration", "options"))
def test_a_tools_field_for_the_provider_is_sent_with_it(field: str) -> None:
    value = sample(of("declaration")[field], 2)  # a schema contains schemas
    tool = msgspec.structs.replace(LOOK, provider_options={"gemini": nested(field, value)})
    [[declared]] = [one["functionDeclarations"] for one in body_of(tools=(tool,))["tools"]]  # type: ignore[union-attr, index, call-overload]
    assert at(declared, field) == value


def mine(data: JsonObject) -> ProviderRaw:
    return ProviderRaw("gemini", data)


@pytest.mark.parametrize("field", claimed("content", "options", "`provider_raw`"))
def test_fields_of_a_host_are_sent_with_a_part_or_a_result(field: str) -> None:
    value = sample(of("content")[field])
    inner = field.removeprefix("functionResponse.")
    if inner != field:
        result = ToolResultBlock("tu_1", "No.", provider_raw=mine(nested(inner, value)))
        call = Message.assistant([ToolUseBlock("tu_1", "look", {"input": "x"})])
        body = body_of(Message.user("Hi"), call, Message(Role.TOOL, (result,)))
        assert at(body["contents"][2]["parts"][0], field) == value  # type: ignore[index, call-overload]
        return
    film = DocumentBlock(data=b"x", media_type="video/mp4", provider_raw=mine(nested(field, value)))
    assert at(body_of(Message.user([film]))["contents"][0]["parts"][0], field) == value  # type: ignore[index, call-overload]


@pytest.mark.parametrize("field", claimed("result_part", "options", "`provider_raw`"))
def test_fields_of_a_host_are_sent_with_a_part_of_a_result(field: str) -> None:
    value = sample(of("result_part")[field])
    picture = ImageBlock(data=b"x", media_type="image/png", provider_raw=mine(nested(field, value)))
    call = Message.assistant([ToolUseBlock("tu_1", "look", {"input": "x"})])
    body = body_of(Message.user("Hi"), call, Message(Role.TOOL, (ToolResultBlock("tu_1", (picture,)),)))
    assert at(body["contents"][2]["parts"][0]["functionResponse"]["parts"][0], field) == value  # type: ignore[index, call-overload]


OF_MEDIA = claimed("part", "reported", "said of media")


@pytest.mark.parametrize("field", [*claimed("part", "reported", "in `provider_raw` of the text"), *OF_MEDIA])
def test_further_fields_of_a_part_stay_with_it(field: str) -> None:
    """The field stays with each kind of part, plain and streamed, and is sent back with the part."""
    about = nested(field, sample(of("part")[field]))
    media: list[JsonObject] = [{"inlineData": {"mimeType": t, "data": "eA=="}} for t in ("image/png", "audio/wav")]
    said = [g.text("Hi"), g.thought("Hm.", "c2ln"), g.call("look", "c2ln", args={}, id="1"), media[0]]
    for part in ({**part, **about} for part in (media if field in OF_MEDIA else said)):
        whole = read_whole(GEMINI, g.chunk(part, finish="STOP", usage=g.USAGE), model=MODEL)
        streamed = read(GEMINI, g.chunk(part), g.END, model=MODEL)
        for reading in () if field in OF_MEDIA else (whole, streamed):
            [block] = reading.content
            assert not isinstance(block, OpaqueBlock | ToolResultBlock)
            assert block.provider_raw is not None
            assert at(block.provider_raw.data, field) == at(about, field)
        body = body_of(Message.user("Hi"), Message.assistant(whole.content), Message.user("Go on"))
        assert body["contents"][1]["parts"] == [part]  # type: ignore[index, call-overload]


def whole_kinds(part: str, verdict: str, words: str) -> list[str]:
    """The fields of a part whose value is a complete part of another kind."""
    return list(dict.fromkeys(field.partition(".")[0] for field in claimed(part, verdict, words)))


def of_kind(part: str, name: str) -> JsonObject:
    [kind] = kinds(COVERAGE, part)[SINGLE]
    return {name: sample(fields(kind)[name])}


@pytest.mark.parametrize("name", whole_kinds("content", "options", "an `OpaqueBlock`"))
def test_a_part_of_the_hosts_is_sent_as_it_is(name: str) -> None:
    part = of_kind("content", name)
    body = body_of(Message.user([OpaqueBlock(name, mine(part)), TextBlock("So?")]))
    assert body["contents"][0]["parts"][0] == part  # type: ignore[index, call-overload]


@pytest.mark.parametrize("name", whole_kinds("part", "reported", "an `OpaqueBlock` as it came"))
def test_no_part_of_a_reply_is_lost(name: str) -> None:
    """Each part is kept, plain and streamed, and is sent back unchanged."""
    part = of_kind("part", name)
    whole = read_whole(GEMINI, g.chunk(part, finish="STOP", usage=g.USAGE))
    streamed = read(GEMINI, g.chunk(part), g.END)
    assert whole.said == streamed.said == [{name: part}]
    assert [event.raw for event in streamed.events if isinstance(event, ProviderBlock)] == [part]
    body = body_of(Message.user("Hi"), Message.assistant(whole.content), Message.user("Go on"))
    assert body["contents"][1]["parts"] == [part]  # type: ignore[index, call-overload]


def test_further_fields_of_a_candidate_are_an_opaque_block() -> None:
    [kind] = kinds(COVERAGE, "candidate")[SINGLE]
    for name in whole_kinds("candidate", "reported", "an `OpaqueBlock`"):
        about = sample(fields(kind)[name])
        reply = g.chunk(g.text("Hi"), finish="STOP", usage=g.USAGE, **{name: about})
        assert read_whole(GEMINI, reply).said == ["Hi", {name: {name: about}}]


def test_further_fields_of_a_reply_are_in_the_details() -> None:
    in_words = "`CanonicalResponse.provider_details`"
    [of_candidate], [of_reply] = kinds(COVERAGE, "candidate")[SINGLE], kinds(COVERAGE, "reply")[SINGLE]
    about: JsonObject = {}
    for part, kind in (("candidate", of_candidate), ("reply", of_reply)):
        about |= {name: sample(fields(kind)[name]) for name in whole_kinds(part, "reported", in_words)}
    about["promptFeedback"].pop("blockReason")  # type: ignore[union-attr, call-arg, arg-type]  # then there is no reply
    chunk = g.chunk(g.text("Hi"), finish="STOP", usage=g.USAGE)
    [candidate] = chunk["candidates"]  # type: ignore[misc, union-attr]
    inner = whole_kinds("candidate", "reported", in_words)
    reply: JsonObject = {**chunk, **{name: value for name, value in about.items() if name not in inner}}
    reply["candidates"] = [{**candidate, **{name: about[name] for name in inner}}]  # type: ignore[dict-item]
    assert read_whole(GEMINI, reply).reply.provider_details == about


def test_the_words_for_an_end_are_reported() -> None:
    blocked: JsonObject = {"promptFeedback": {"blockReason": "SAFETY", "blockReasonMessage": "No."}}
    reply = read_whole(GEMINI, blocked).reply
    assert reply.raw_stop_reason == "SAFETY"
    assert "SAFETY: No." in [warning.message for warning in reply.warnings]
    assert reply.provider_details == blocked
    stopped = g.chunk(g.text("Hi"), finish="SAFETY", usage=g.USAGE, finishMessage="No.")
    assert "SAFETY: No." in [warning.message for warning in read_whole(GEMINI, stopped).reply.warnings]


# -- The claims of the decisions about Gemini's Interactions API: samples of the SDK's types pass through the
# adapter.


INTERACTIONS = read_coverage(DECISIONS / "gemini_interactions.toml")
WIRE = WIRES[6]
LOOK_TOOL = ToolDefinition("look", "Looks.", {"type": "object", "properties": {"x": {"type": "string"}}})


def interactions_claimed(part: str, verdict: str, words: str = "") -> list[tuple[str, str]]:
    """The types and fields of a part with that verdict and with these words in its reason."""
    return [
        (of, field)
        for (where, of, field), row in INTERACTIONS.rows.items()
        if (where, row.verdict) == (part, verdict) and row.how.startswith(words)
    ]


def interactions_body(*messages: Message, **changes: object) -> JsonObject:
    asked = ask(*(messages or (Message.user("Hi"),)), **{"model": "gemini:gemini-3-flash", **changes})
    adapter = GeminiAdapter(AdapterConfig(options={"api": "interactions"}))
    body: JsonObject = msgspec.json.decode(adapter.write_request(asked, stream=False).body)
    return body


def sample_of(part: str, kind: str) -> JsonObject:
    [of] = kinds(INTERACTIONS, part)[kind]
    value = sample(of)
    assert isinstance(value, dict)
    return value


@pytest.mark.parametrize("field", [field for _, field in interactions_claimed("request", "options")])
def test_a_request_field_that_is_optional_is_sent_as_the_host_gives_it_in_interactions(field: str) -> None:
    [of] = kinds(INTERACTIONS, "request")[SINGLE]
    value = sample(deep_fields(of)[field])
    assert at(interactions_body(provider_options={"gemini": nested(field, value)}), field) == value


def test_a_reply_in_the_background_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="background"):
        interactions_body(provider_options={"gemini": {"background": True}})


@pytest.mark.parametrize("kind", [of for of, field in interactions_claimed("tool", "options") if field == "type"])
def test_every_kind_of_tool_can_be_added_in_interactions(kind: str) -> None:
    tool = sample_of("tool", kind)
    assert interactions_body(tools=(LOOK_TOOL,), provider_options={"gemini": {"tools": [tool]}})["tools"][1:] == [
        tool
    ]  # type: ignore[index, call-overload]


def test_a_tools_fields_for_the_provider_are_sent_with_it() -> None:
    for _, field in interactions_claimed("tool", "options", "`ToolDefinition"):
        value = sample_of("tool", "function")[field]
        tool = msgspec.structs.replace(LOOK_TOOL, provider_options={"gemini": {field: value}})
        assert interactions_body(tools=(tool,))["tools"][0][field] == value  # type: ignore[index, call-overload]


@pytest.mark.parametrize("kind", [of for of, field in interactions_claimed("step", "reported") if field == "type"])
def test_no_step_of_a_reply_is_lost(kind: str) -> None:
    """Each step is kept, plain and streamed, and is sent back unchanged."""
    step = sample_of("step", kind)
    whole = read_whole(WIRE, i.interaction(step))
    streamed = read(WIRE, i.start(0, **step), i.stop(0), i.completed())
    assert whole.said == streamed.said == [{kind: step}]
    assert [event.raw for event in streamed.events if isinstance(event, ProviderBlock)] == [step]
    own = OpaqueBlock(kind, ProviderRaw("gemini", step))
    assert interactions_body(Message.user("Hi"), Message.assistant([own, TextBlock("So.")]))["input"][1] == step  # type: ignore[index, call-overload]


@pytest.mark.parametrize("kind", ["audio", "document", "image", "video"])
def test_media_of_a_reply_go_back_as_they_came(kind: str) -> None:
    step: JsonObject = {"type": "model_output", "content": [sample_of("content", kind)]}
    [block] = read_whole(WIRE, i.interaction(step)).content
    assert isinstance(block, OpaqueBlock | ImageBlock)
    assert block.provider_raw is not None
    raw = msgspec.structs.replace(block.provider_raw, provider="gemini", model=None)
    own = msgspec.structs.replace(block, provider_raw=raw)
    assert interactions_body(Message.user("Hi"), Message.assistant([own]), Message.user("So?"))["input"][1] == step  # type: ignore[index, call-overload]


@pytest.mark.parametrize(("kind", "field"), interactions_claimed("content", "options"))
def test_fields_of_a_host_are_sent_with_a_medium(kind: str, field: str) -> None:
    value = sample_of("content", kind)[field.partition(".")[0]]
    film = DocumentBlock(
        data=b"x", media_type="video/mp4", provider_raw=ProviderRaw("gemini", {field.partition(".")[0]: value})
    )
    [step] = interactions_body(Message.user([film]))["input"]  # type: ignore[misc]
    assert step["content"][0][field.partition(".")[0]] == value  # type: ignore[index, call-overload]


@pytest.mark.parametrize(
    "kind", [of for of, field in interactions_claimed("delta", "reported", "`ProviderBlock`") if field == "type"]
)
def test_no_delta_is_lost(kind: str) -> None:
    """A delta of an unknown kind becomes an opaque block."""
    delta = sample_of("delta", kind)
    reading = read(WIRE, i.event("step.delta", index=0, delta=delta), i.completed())
    assert reading.said == [{kind: delta}]


def test_further_fields_of_an_interaction_are_in_the_details() -> None:
    [of] = kinds(INTERACTIONS, "reply")[SINGLE]
    about = {name: sample(fields(of)[name]) for _, name in interactions_claimed("reply", "reported")}
    step: JsonObject = {"type": "model_output", "content": [{"type": "text", "text": "Hi"}]}
    assert read_whole(WIRE, i.interaction(step, **about)).reply.provider_details == about
