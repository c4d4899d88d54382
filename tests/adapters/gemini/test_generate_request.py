"""Requests on the wire. The expected bodies are written by hand from facts about the wire."""

from __future__ import annotations

import base64
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from callboard.adapters.config import AdapterConfig
from callboard.adapters.contract import CanonicalRequest
from callboard.adapters.http.adapter import HttpAdapter
from callboard.adapters.providers.gemini import wire
from callboard.adapters.providers.gemini.adapter import GeminiAdapter
from callboard.adapters.providers.gemini.contents import GO_ON, NO_SIGNATURE
from callboard.adapters.providers.gemini.request import build_request
from callboard.adapters.providers.gemini.response import GeminiNormaliser, read_reply
from callboard.adapters.providers.gemini.wire import UsageCounts
from callboard.adapters.replies.assembler import Assembler
from callboard.adapters.requests.history import BEGINNING
from callboard.adapters.requests.history_target import BuiltRequest
from callboard.bus.clock import SystemClock
from callboard.bus.errors import StreamError
from callboard.bus.values.base import Json, JsonObject
from callboard.bus.values.content import (
    AudioBlock,
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
from callboard.bus.values.usage import TokenUsage

from ...support.fake_http import ask, request
from ...support.wires import WIRES
from ...support.wires import gemini as g
from ...support.wires.gemini import USAGE, chunk, text, thought
from ...support.wires.reading import Reading, read
from ...support.wires.reading import read_whole as read_body

PNG = b"\x89PNG\r\n\x1a\n"
PNG_64 = base64.b64encode(PNG).decode()
PATH: JsonObject = {"type": "object", "properties": {"path": {"type": "string"}}}
READ_FILE = ToolDefinition("read_file", "Reads.", PATH)
OLDER, NEWER = "gemini:gemini-2.5-flash", "gemini:gemini-3-flash-preview"


MODEL = "gemini-2.5-flash"


def read_whole(*parts: Json, **fields: Json) -> Reading:
    """Read a reply with these parts."""
    body = chunk(*parts, finish="STOP", usage=USAGE, **fields)
    return read_body(WIRES[3], body, model=f"gemini:{MODEL}")


def build(*messages: Message, **changes: object) -> BuiltRequest:
    asked: CanonicalRequest = request(**{"model": NEWER, "messages": messages or (Message.user("Hi"),), **changes})
    return build_request(asked, provider="gemini")


def contents(*messages: Message, **changes: object) -> list[Any]:
    found: list[Any] = build(*messages, **changes).body["contents"]  # type: ignore[assignment]
    return found


def codes(**changes: object) -> list[str]:
    return [warning.code for warning in build(**changes).warnings]


def user(*parts: JsonObject) -> JsonObject:
    return {"role": "user", "parts": list(parts)}


def model(*parts: JsonObject) -> JsonObject:
    return {"role": "model", "parts": list(parts)}


def ours(**data: Json) -> ProviderRaw:
    return ProviderRaw("gemini", data, NEWER.removeprefix("gemini:"))


def use(call_id: str, name: str = "read_file", raw: ProviderRaw | None = None, **arguments: Json) -> ToolUseBlock:
    return ToolUseBlock(call_id, name, arguments, provider_raw=raw)


def test_a_conversation_begins_and_ends_with_the_user() -> None:
    """If the history does not, a turn is added with a warning."""
    assert contents(Message.assistant("Hello")) == [user(text(BEGINNING)), model(text("Hello")), user(text(GO_ON))]
    assert codes(messages=(Message.assistant("Hello"),)) == ["content_dropped", "turn_added"]
    messages = (Message.assistant("Hello"), Message.user("Hi"))
    assert contents(*messages) == [user(text(BEGINNING)), model(text("Hello")), user(text("Hi"))]
    assert codes(messages=messages) == ["content_dropped"]


# -- media


def test_media_for_a_model_that_takes_none() -> None:
    """Gemma only gets images."""
    message = Message.user([ImageBlock(data=PNG), AudioBlock(data=b"ID3"), DocumentBlock(data=b"%PDF-")])
    built = build(message, model="gemini:gemma-3-27b-it")
    assert built.body["contents"] == [user({"inlineData": {"mimeType": "image/png", "data": PNG_64}})]
    assert len(built.warnings) == 2


# -- calls and results


def test_images_in_results() -> None:
    """Newer models get them within the result. Other models, and images by address, get them after the results."""
    blocks = [TextBlock("Two."), ImageBlock(data=PNG), ImageBlock(url="https://x.test/b.png")]
    messages = (
        Message.user("Hi"), Message.assistant([use("a")]), Message.tool_result("a", blocks), Message.user("And?"),
    )  # fmt: skip
    inline: JsonObject = {"inlineData": {"mimeType": "image/png", "data": PNG_64}}
    linked: JsonObject = {"fileData": {"mimeType": "image/png", "fileUri": "https://x.test/b.png"}}
    response: JsonObject = {"id": "a", "name": "read_file", "response": {"output": "Two."}}
    label = text("In the result of read_file:")
    newer, older = contents(*messages), contents(*messages, model=OLDER)
    assert newer[2:] == [
        user({"functionResponse": {**response, "parts": [inline]}}),
        user(label, linked, text("And?")),
    ]
    assert older[2:] == [user({"functionResponse": response}), user(label, inline, linked, text("And?"))]


def test_signatures_are_only_sent_back_to_their_model() -> None:
    """Other models get calls, texts and parts without signatures, and no signed reasoning."""
    code: JsonObject = {"executableCode": {"language": "PYTHON", "code": "1"}}
    signed: list[Json] = [{"start": 0, "end": 2, "signature": "c2ln"}]
    said: list[ContentBlock] = [
        ThinkingBlock("Hm", "c2ln", ours()),
        TextBlock("So", ours(signatures=signed)),
        OpaqueBlock("executableCode", ours(**code, thoughtSignature="c2ln")),
        OpaqueBlock("thoughtSignature", ours(text="", thoughtSignature="c2ln")),
        use("c", raw=ours(thoughtSignature="c2ln")),
    ]
    history = (Message.user("Hi"), Message.assistant(said), Message.tool_result("c", "x"))
    called: JsonObject = {"functionCall": {"id": "c", "name": "read_file", "args": {}}}
    for there, signature in ((OLDER, {}), ("gemini:gemini-3-pro", {"thoughtSignature": NO_SIGNATURE})):
        built = build(*history, model=there)
        sent = built.body["contents"]
        assert isinstance(sent, list)
        assert sent[1] == model(text("So"), code, {**called, **signature})
        assert [loss.block_type for loss in built.history.losses] == ["thinking"]


@pytest.mark.parametrize("signed", [[{"start": 3, "end": 99, "signature": "s"}], [{"start": 1}], "x", None, [7]])
def test_a_signature_that_fits_no_text_is_left_out(signed: Json) -> None:
    """The text is still sent."""
    found = contents(Message.user("Hi"), Message.assistant([TextBlock("abc", ours(signatures=signed))]))
    assert found[1] == model(text("abc"))


def test_only_signed_thoughts_of_the_provider_are_sent_back() -> None:
    """Dropped thoughts are reported."""
    content: list[ContentBlock] = [
        ThinkingBlock("summary", None, ours()),
        ThinkingBlock("signed", "c2ln", ours()),
        ThinkingBlock("foreign", "c2ln", ProviderRaw("anthropic", {})),
        RedactedThinkingBlock("x", ours()),
        TextBlock("A", ProviderRaw("openai", {"signatures": [{"start": 0, "end": 1, "signature": "s"}]})),
    ]
    built = build(Message.user("Hi"), Message.assistant(content), Message.user("Go"))
    sent = built.body["contents"]
    assert isinstance(sent, list)
    assert sent[1] == model(thought("signed", "c2ln"), text("A"))
    assert [loss.block_type for loss in built.history.losses] == ["thinking", "thinking", "redacted_thinking"]


# -- tools


def test_strict_tools_are_validated_if_supported() -> None:
    """Strict tools are validated on newer models, unless the request has another mode."""
    strict = ToolDefinition("a", "", PATH, strict=True)
    validated = {"functionCallingConfig": {"mode": "VALIDATED"}}
    assert build(tools=(strict,)).body["toolConfig"] == validated
    assert build(tools=(strict,), tool_choice=ToolChoice("auto")).body["toolConfig"] == validated
    assert "toolConfig" not in build(tools=(strict,), model=OLDER).body


# -- the reply's form, and tuning


def test_structured_output_with_tools_on_older_models() -> None:
    """Older models refuse it, so the system text has the schema, with a warning."""
    built = build(output_schema=PATH, tools=(READ_FILE,), model=OLDER, system_prompt="Be brief.")
    assert built.body["generationConfig"] == {"maxOutputTokens": 64}
    said = msgspec.json.encode(built.body["systemInstruction"]).decode()
    assert "Be brief." in said
    assert "JSON Schema" in said
    assert [warning.code for warning in built.warnings] == ["schema_as_instruction"]


# -- the provider's own options


def test_tools_of_both_kinds_on_newer_models() -> None:
    """A field of the request allows the combination. The caller can set another value."""
    search: JsonObject = {"tools": [{"googleSearch": {}}]}
    built = build(provider_options={"gemini": search}, tools=(READ_FILE,))
    assert built.body["toolConfig"] == {"includeServerSideToolInvocations": True}
    assert "toolConfig" not in build(provider_options={"gemini": search}).body
    declared: JsonObject = {"tools": [{"functionDeclarations": []}]}
    assert "toolConfig" not in build(provider_options={"gemini": declared}, tools=(READ_FILE,)).body


def test_cached_content_has_its_own_tools_and_system_text() -> None:
    """Gemini refuses a request with these fields and cached content."""
    built = build(
        provider_options={"gemini": {"cachedContent": "cachedContents/x"}},
        tools=(READ_FILE,),
        tool_choice=ToolChoice("auto"),
        system_prompt="S",
    )
    assert set(built.body) == {"cachedContent", "contents", "generationConfig"}
    assert [warning.code for warning in built.warnings] == ["parameter_dropped"] * 3


# -- Fields of a host for parts and tools of Gemini, and further fields of a reply.


GEMINI = WIRES[3]


def mine(**fields: Json) -> ProviderRaw:
    return ProviderRaw("gemini", fields)


def body_of(*messages: Message, adapter: HttpAdapter | None = None, **changes: object) -> JsonObject:
    adapter = adapter or GeminiAdapter(AdapterConfig())
    asked = ask(*messages, **{"model": f"{adapter.name}:gemini-3-flash", **changes})
    body: JsonObject = msgspec.json.decode(adapter.write_request(asked, stream=False).body)
    return body


def parts(body: JsonObject, number: int = 0) -> list[JsonObject]:
    return body["contents"][number]["parts"]  # type: ignore[index, call-overload, no-any-return]


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


def test_a_schema_of_the_host_replaces_the_adapters() -> None:
    """The protocol accepts one of the two forms."""
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


def test_the_latest_word_of_a_stream_counts() -> None:
    first = {**DETAILS, "avgLogprobs": -9, "safetyRatings": [{"category": "X", "probability": "HIGH"}]}
    first_chunk = rated(**first)
    first_chunk["candidates"][0].pop("finishReason")  # type: ignore[index, union-attr, call-overload]
    assert read(GEMINI, first_chunk, rated(**DETAILS)).reply.provider_details == DETAILS


def test_null_is_ignored() -> None:
    assert read_body(GEMINI, rated(**dict.fromkeys(DETAILS))).reply.provider_details == {}


NAMED: JsonObject = {"partMetadata": {"from": "a"}}
OTHER: JsonObject = {"partMetadata": {"from": "b"}}


def replayed(reading: Reading) -> list[JsonObject]:
    return parts(body_of(Message.user("Hi"), Message.assistant(reading.content), Message.user("So?")), 1)


def test_texts_with_different_fields_are_separate_blocks() -> None:
    """Pieces with the same fields are one text, in any division of the stream. Signatures stay in place."""
    pieces: list[JsonObject] = [
        {**g.text("a"), **NAMED}, {**g.text("b"), **NAMED}, {**g.text("c"), **OTHER}, g.text("d"),
        {**g.text("e", "c2ln"), **NAMED}, {**g.text("f"), **NAMED},
    ]  # fmt: skip
    reading = read(GEMINI, *map(g.chunk, pieces), g.END, model="gemini:gemini-3-flash")
    assert reading.said == ["ab", "c", "d", "ef"]
    assert read_body(GEMINI, g.chunk(*pieces, finish="STOP"), model="gemini:gemini-3-flash").said == reading.said
    assert replayed(reading) == [{**g.text("ab"), **NAMED}, *pieces[2:]]
    assert read(GEMINI, g.chunk(pieces[0]), g.chunk(g.text("b")), g.END).said == ["a", "b"]


@pytest.mark.parametrize("part", [{"text": "", **NAMED}, NAMED, {"text": "", "thoughtSignature": "c2ln", **NAMED}])
def test_what_is_said_of_nothing_is_kept_as_it_came(part: JsonObject) -> None:
    reading = read(GEMINI, g.chunk(g.text("a")), g.chunk(part), g.END, model="gemini:gemini-3-flash")
    assert replayed(reading) == [g.text("a"), part]


def test_a_null_field_does_not_divide_a_text() -> None:
    """The text continues in its block."""
    pieces: list[JsonObject] = [g.text("a"), {**g.text("b"), "partMetadata": None}]
    reading = read(GEMINI, *map(g.chunk, pieces), g.END)
    assert reading.said == ["ab"]
    assert reading.content[0].provider_raw is None


# -- A streamed reply gives the same result if its chunks are read as text only or in general.


PART = st.sampled_from(
    [
        {"text": "a"},
        {"text": ""},
        {"text": "b", "thought": True},
        {"text": "c", "thoughtSignature": "c2ln"},
        {"executableCode": {"code": "1"}},
        {"functionCall": {"name": "f", "args": {"x": 1}}},
    ]
)
CANDIDATE = st.fixed_dictionaries(
    {"content": st.fixed_dictionaries({"parts": st.lists(PART, max_size=2)}, optional={"role": st.just("model")})},
    optional={
        "index": st.sampled_from([0, 1, None]),
        "safetyRatings": st.just([{"category": "C"}]),
        "finishReason": st.just("STOP"),
        "tokenCount": st.just(4),
    },
)
CHUNK = st.fixed_dictionaries(
    {"candidates": st.lists(CANDIDATE, max_size=2)},
    optional={
        "usageMetadata": st.sampled_from([None, {"promptTokenCount": 3}, {"candidatesTokenCount": 12}]),
        "modelVersion": st.just("m"),
        "responseId": st.just("r"),
        "modelStatus": st.just({"stage": "x"}),
    },
)
TEXT: dict[str, Any] = {"candidates": [{"content": {"parts": [{"text": "a"}]}}]}


def assembler() -> Assembler:
    return Assembler(
        message_id="m",
        provider="p",
        requested_model="m",
        clock=SystemClock(),
        estimate_usage=lambda _: TokenUsage(0, 0),
    )


@given(st.lists(CHUNK, min_size=1, max_size=8))
@example([TEXT, TEXT, {"candidates": [{"content": {"parts": [{"text": "z"}]}, "index": 1}]}, TEXT])
@example([TEXT, {"candidates": [{"content": {"parts": [{"text": "z"}]}, "tokenCount": 4}]}, TEXT])
def test_a_stream_equals_a_list_of_its_chunks(chunks: list[dict[str, Any]]) -> None:
    """Content, usage, details and warnings are the same."""
    chunks = [*chunks, {"candidates": [{"finishReason": "STOP"}]}]
    streamed, whole = assembler(), assembler()
    normaliser = GeminiNormaliser(streamed)
    for each in chunks:
        normaliser.feed(b"data: " + msgspec.json.encode(each) + b"\r\n\r\n")
    normaliser.close()
    assert normaliser.error is None
    read_reply(msgspec.json.encode(chunks), whole)
    assert said(streamed) == said(whole)


def said(reply: Assembler) -> object:
    content = [msgspec.to_builtins(block) for block in reply.final_content]
    for block in content:
        block.pop("id", None)
    return content, reply.usage, reply.details, reply.warnings, reply.stop_reason, reply.response_id, reply.model


# -- The counts of a streamed reply, of which each chunk has some.


COUNTS = ("promptTokenCount", "cachedContentTokenCount", "candidatesTokenCount", "thoughtsTokenCount")

COUNTED_CHUNK = st.dictionaries(st.sampled_from(COUNTS), st.none() | st.integers(0, 120), max_size=len(COUNTS))


@given(st.lists(COUNTED_CHUNK, min_size=1, max_size=12))
def test_the_last_value_of_each_count_is_the_total(chunks: list[dict[str, int | None]]) -> None:
    """A chunk may have all counts or some, as numbers or as null."""
    counts = UsageCounts()
    last: dict[str, int] = {}
    for each in chunks:
        counts.add(msgspec.Raw(msgspec.json.encode(each)))
        last.update({name: count for name, count in each.items() if count is not None})
    total = counts.total()
    if not last:
        assert total is None
        return
    assert total is not None
    cached = last.get("cachedContentTokenCount", 0)
    assert total.cached_input_tokens == cached
    assert total.input_tokens == max(0, last.get("promptTokenCount", 0) - cached)
    thoughts = last.get("thoughtsTokenCount")
    assert total.output_tokens == last.get("candidatesTokenCount", 0) + (thoughts or 0)
    assert total.reasoning_tokens == thoughts


def test_the_raw_usage_is_the_last_one_with_the_prompts_count() -> None:
    """The raw usage is unchanged. A chunk without the prompt's count adds to the figures, but does not replace the
    raw usage.
    """
    counts = UsageCounts()
    for raw in (b'{"promptTokenCount":7}', b'{"promptTokenCount":8}', b'{"candidatesTokenCount":3}', b"null"):
        counts.add(msgspec.Raw(raw))
    total = counts.total()
    assert total is not None
    assert total.raw == msgspec.Raw(b'{"promptTokenCount":8}')
    assert (total.input_tokens, total.output_tokens) == (8, 3)


def test_without_a_usage_object_no_usage_is_reported() -> None:
    """The chunks have no usage object, or null."""
    counts = UsageCounts()
    assert counts.total() is None
    counts.add(wire.ABSENT)
    assert counts.total() is None


def test_a_number_in_place_of_the_counts_is_an_error() -> None:
    """The value only has digits, and the comparison of two chunks ignores digits."""
    error = read_body(WIRES[3], {**g.chunk(g.text("Hi"), finish="STOP"), "usageMetadata": 7}).error
    assert isinstance(error, StreamError)
