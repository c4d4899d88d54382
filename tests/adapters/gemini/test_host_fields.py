"""What a host says of parts and tools for Gemini, and what a reply says beside its content."""

from __future__ import annotations

import msgspec
import pytest

from callboard.adapters.config import AdapterConfig
from callboard.adapters.http.adapter import HttpAdapter
from callboard.adapters.providers.anthropic.adapter import AnthropicAdapter
from callboard.adapters.providers.gemini.adapter import GeminiAdapter
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
from callboard.bus.values.messages import Message, Role, ToolDefinition

from ...support.fake_http import ask
from ...support.wires import WIRES
from ...support.wires import gemini as g
from ...support.wires.reading import Reading, read, read_whole

GEMINI = WIRES[3]
CLIP: JsonObject = {"startOffset": "2s", "endOffset": "5s", "fps": 0.5}
FINE: JsonObject = {"level": "MEDIA_RESOLUTION_HIGH"}
FILM = "https://www.youtube.com/watch?v=x"


def mine(**fields: Json) -> ProviderRaw:
    return ProviderRaw("gemini", fields)


def body_of(*messages: Message, adapter: HttpAdapter | None = None, **changes: object) -> JsonObject:
    adapter = adapter or GeminiAdapter(AdapterConfig())
    asked = ask(*messages, **{"model": f"{adapter.name}:gemini-3-flash", **changes})
    body: JsonObject = msgspec.json.decode(adapter.write_request(asked, stream=False).body)
    return body


def parts(body: JsonObject, number: int = 0) -> list[JsonObject]:
    return body["contents"][number]["parts"]  # type: ignore[index, call-overload, no-any-return]


SAID: list[tuple[ContentBlock, JsonObject]] = [
    (
        DocumentBlock(url=FILM, provider_raw=mine(videoMetadata=CLIP)),
        {"fileData": {"fileUri": FILM}, "videoMetadata": CLIP},
    ),
    (
        DocumentBlock(data=b"film", media_type="video/mp4", provider_raw=mine(videoMetadata=CLIP)),
        {"inlineData": {"mimeType": "video/mp4", "data": "ZmlsbQ=="}, "videoMetadata": CLIP},
    ),
    (
        ImageBlock(data=b"x", media_type="image/png", provider_raw=mine(mediaResolution=FINE)),
        {"inlineData": {"mimeType": "image/png", "data": "eA=="}, "mediaResolution": FINE},
    ),
    (
        AudioBlock(data=b"x", media_type="audio/wav", provider_raw=mine(audioMetadata={"a": 1})),
        {"inlineData": {"mimeType": "audio/wav", "data": "eA=="}, "audioMetadata": {"a": 1}},
    ),
    (TextBlock("Hi", mine(partMetadata={"a": 1})), {"text": "Hi", "partMetadata": {"a": 1}}),
    (OpaqueBlock("hologram", mine(hologram={"depth": 3})), {"hologram": {"depth": 3}}),
]


@pytest.mark.parametrize(("block", "part"), SAID, ids=lambda value: type(value).__name__)
def test_a_part_has_what_the_host_says_of_it(block: ContentBlock, part: JsonObject) -> None:
    assert parts(body_of(Message.user([block]))) == [part]


@pytest.mark.parametrize(("block", "part"), SAID, ids=lambda value: type(value).__name__)
def test_no_other_provider_is_told(block: ContentBlock, part: JsonObject) -> None:
    said = str(body_of(Message.user([TextBlock("Hi"), block]), adapter=AnthropicAdapter(AdapterConfig())))
    assert not any(name in said for name in ("videoMetadata", "mediaResolution", "partMetadata", "hologram"))


def test_a_result_has_its_scheduling_and_the_providers_own_parts() -> None:
    shown = OpaqueBlock("fileData", mine(fileData={"fileUri": "gs://x", "mimeType": "image/png"}))
    result = ToolResultBlock("tu_1", (TextBlock("So."), shown), provider_raw=mine(scheduling="SILENT"))
    messages = [
        Message.user("Hi"), Message.assistant([ToolUseBlock("tu_1", "look", {})]), Message(Role.TOOL, (result,)),
    ]  # fmt: skip
    body = body_of(*messages)
    [answered] = parts(body, 2)
    assert answered["functionResponse"] == {
        "id": "tu_1", "name": "look", "response": {"output": "So."}, "scheduling": "SILENT",
    }  # fmt: skip
    assert parts(body, 3)[1] == shown.provider_raw.data


def test_a_tool_has_the_providers_own_fields() -> None:
    own: JsonObject = {"behavior": "NON_BLOCKING", "responseJsonSchema": {"type": "string"}}
    tool = ToolDefinition("look", "Looks.", {"type": "object", "properties": {"x": {"type": "string"}}})
    sent = body_of(tools=(msgspec.structs.replace(tool, provider_options={"gemini": own}),))["tools"]
    [declared] = sent[0]["functionDeclarations"]  # type: ignore[index, call-overload]
    assert declared == {
        "name": "look", "description": "Looks.", "parametersJsonSchema": dict(tool.input_schema), **own,
    }  # fmt: skip


def test_a_schema_of_the_hosts_own_stands_for_ours() -> None:
    """The protocol takes one of the two forms."""
    own: JsonObject = {"parameters": {"type": "OBJECT"}}
    tool = ToolDefinition(
        "look", "", {"type": "object", "properties": {"x": {}}}, provider_options={"gemini": own}
    )
    sent = body_of(tools=(tool,))["tools"]
    assert sent[0]["functionDeclarations"] == [{"name": "look", **own}]  # type: ignore[index, call-overload]


RATED: list[Json] = [{"category": "HARM_CATEGORY_HARASSMENT", "probability": "NEGLIGIBLE"}]
DETAILS: JsonObject = {
    "safetyRatings": RATED, "avgLogprobs": -0.25, "continuationToken": "next", "tokenCount": 3,
    "promptFeedback": {"safetyRatings": RATED}, "modelStatus": {"modelStage": "STABLE"},
    "createTime": "2026-01-01T00:00:00Z",
}  # fmt: skip


def rated(**about: Json) -> JsonObject:
    chunk = g.chunk(g.text("Hi"), finish="STOP", usage=g.USAGE)
    [candidate] = chunk["candidates"]  # type: ignore[misc, union-attr]
    of_candidate = {name: about[name] for name in list(DETAILS)[:4] if name in about}
    of_chunk = {name: about[name] for name in list(DETAILS)[4:] if name in about}
    return {**chunk, **of_chunk, "candidates": [{**candidate, **of_candidate}]}  # type: ignore[dict-item]


def test_what_a_reply_says_beside_its_content_is_among_its_details() -> None:
    assert read_whole(GEMINI, rated(**DETAILS)).reply.provider_details == DETAILS
    assert read_whole(GEMINI, rated()).reply.provider_details == {}


def test_the_latest_word_of_a_stream_counts() -> None:
    first = {**DETAILS, "avgLogprobs": -9, "safetyRatings": [{"category": "X", "probability": "HIGH"}]}
    first_chunk = rated(**first)
    first_chunk["candidates"][0].pop("finishReason")  # type: ignore[index, union-attr, call-overload]
    assert read(GEMINI, first_chunk, rated(**DETAILS)).reply.provider_details == DETAILS


def test_null_says_nothing() -> None:
    assert read_whole(GEMINI, rated(**dict.fromkeys(DETAILS))).reply.provider_details == {}


NAMED: JsonObject = {"partMetadata": {"from": "a"}}
OTHER: JsonObject = {"partMetadata": {"from": "b"}}


def replayed(reading: Reading) -> list[JsonObject]:
    return parts(body_of(Message.user("Hi"), Message.assistant(reading.content), Message.user("So?")), 1)


def test_texts_of_which_different_things_are_said_are_blocks_of_their_own() -> None:
    """Pieces of which the same is said are one text, however a stream cuts them; signatures stay in place."""
    pieces: list[JsonObject] = [
        {**g.text("a"), **NAMED}, {**g.text("b"), **NAMED}, {**g.text("c"), **OTHER}, g.text("d"),
        {**g.text("e", "c2ln"), **NAMED}, {**g.text("f"), **NAMED},
    ]  # fmt: skip
    reading = read(GEMINI, *map(g.chunk, pieces), g.END, model="gemini:gemini-3-flash")
    assert reading.said == ["ab", "c", "d", "ef"]
    assert read_whole(GEMINI, g.chunk(*pieces, finish="STOP"), model="gemini:gemini-3-flash").said == reading.said
    assert replayed(reading) == [
        {**g.text("ab"), **NAMED}, {**g.text("c"), **OTHER}, g.text("d"),
        {**g.text("e", "c2ln"), **NAMED}, {**g.text("f"), **NAMED},
    ]  # fmt: skip


def test_a_text_of_which_nothing_is_said_does_not_join_one_of_which_something_is() -> None:
    """Wherever it comes in a stream."""
    assert read(GEMINI, g.chunk({**g.text("a"), **NAMED}), g.chunk(g.text("b")), g.END).said == ["a", "b"]


@pytest.mark.parametrize("part", [{"text": "", **NAMED}, NAMED, {"text": "", "thoughtSignature": "c2ln", **NAMED}])
def test_what_is_said_of_nothing_is_kept_as_it_came(part: JsonObject) -> None:
    reading = read(GEMINI, g.chunk(g.text("a")), g.chunk(part), g.END, model="gemini:gemini-3-flash")
    assert replayed(reading) == [g.text("a"), part]


def test_null_is_said_of_no_part() -> None:
    """The text goes on in its block."""
    pieces: list[JsonObject] = [g.text("a"), {**g.text("b"), "partMetadata": None}]
    reading = read(GEMINI, *map(g.chunk, pieces), g.END)
    assert reading.said == ["ab"]
    assert reading.content[0].provider_raw is None
