"""The contents of a Gemini client's request: messages, parts, calls and results."""

from __future__ import annotations

import msgspec
import pytest

from callboard.bus.values.base import Json, JsonObject
from callboard.bus.values.content import (
    AudioBlock,
    ContentBlock,
    DocumentBlock,
    ImageBlock,
    OpaqueBlock,
    TextBlock,
    ThinkingBlock,
    ToolUseBlock,
)
from callboard.bus.values.messages import Message, Role
from callboard.engine.gateway.gemini_fields import token_of
from callboard.engine.gateway.gemini_replies import WIRE
from callboard.engine.gateway.wire import (
    BadRequest,
)

from ..support.canonical_requests import PNG
from ..support.wires.gemini import text, thought
from .gemini_clients import (
    HELLO,
    MODEL,
    PNG_TEXT,
    SIGNATURE,
    adapter,
    model,
    own,
    read,
    results,
    user,
)


@pytest.mark.parametrize("role", ["user", "", None])
def test_a_content_without_a_role_is_the_users(role: Json) -> None:
    content: JsonObject = {"parts": [{"text": "Hi"}], **({} if role is None else {"role": role})}
    assert read(content).request.messages == (Message.user("Hi"),)


@pytest.mark.parametrize("role", ["user", "function", "tool", None])
def test_results_may_come_in_any_role_but_the_models(role: Json) -> None:
    result: JsonObject = {"functionResponse": {"name": "f", "response": {"output": "x"}}}
    content: JsonObject = {"parts": [result, {"text": "Go on"}], **({} if role is None else {"role": role})}
    messages = read(HELLO, model({"functionCall": {"name": "f"}}), content).request.messages
    assert [message.role for message in messages[1:]] == [Role.ASSISTANT, Role.TOOL, Role.USER]


def test_one_object_is_a_list_of_one() -> None:
    """Google's examples have a system instruction whose parts are an object."""
    body: JsonObject = {
        "contents": {"parts": {"text": "Hi"}},
        "system_instruction": {"parts": {"text": "Be brief."}},
    }
    request = WIRE.read_request(body, {}, model=MODEL).request
    assert (request.messages, request.system_prompt) == ((Message.user("Hi"),), "Be brief.")


def test_chunks_of_a_stream_in_the_history_are_one_message() -> None:
    """The SDK's chats append each chunk of a stream as a separate content."""
    messages = read(
        HELLO, model({"text": "It is "}), model({"text": "wa"}, {"text": "rm."}), HELLO
    ).request.messages
    assert messages[1] == Message.assistant("It is warm.")


def test_calls_without_ids_are_answered_by_name_and_order() -> None:
    def called(name: str) -> JsonObject:
        return {"functionCall": {"name": name, "args": {}}}

    def answered(name: str, said: str, **more: Json) -> JsonObject:
        return {"functionResponse": {"name": name, "response": {"output": said}, **more}}

    messages = read(
        HELLO,
        model(called("a"), called("b"), called("a")),
        user(answered("b", "1"), answered("a", "2"), answered("a", "3", id="the-clients-own")),
        model(called("a")),
        user(answered("a", "4")),
    ).request.messages
    said = {block.tool_use_id: block.text for block in results(messages)}
    calls = [block for message in messages for block in message.tool_uses]
    assert [(block.name, said[block.id]) for block in calls] == [("a", "2"), ("b", "1"), ("a", "3"), ("a", "4")]


def test_a_result_of_no_call_is_reported_by_the_adapter() -> None:
    request = read(HELLO, user({"functionResponse": {"name": "a", "response": {"output": "x"}}})).request
    call = adapter.write_request(msgspec.structs.replace(request, model=f"gemini:{MODEL}"), stream=False)
    assert [loss.reason for loss in call.losses] == ["its tool call is missing"]


@pytest.mark.parametrize(("response", "said", "is_error"), [
    ({"output": "warm"}, "warm", False),
    ({"output": {"c": 20}}, '{"c":20}', False),
    ({"result": [1, 2]}, "[1,2]", False),
    ({"error": "no such file"}, "no such file", True),
    ({"c": 20, "wind": "low"}, '{"c":20,"wind":"low"}', False),
    ({"output": "x", "error": ""}, '{"output":"x","error":""}', False),
    ({}, "", False),
    (None, "", False),
])  # fmt: skip
def test_a_response_is_text_or_an_error(response: Json, said: str, is_error: bool) -> None:
    result: JsonObject = {"functionResponse": {"name": "a", "response": response}}
    block = next(results(read(HELLO, model({"functionCall": {"name": "a"}}), user(result)).request.messages))
    assert (block.text, block.is_error) == (said, is_error)


def test_a_result_may_hold_files() -> None:
    files: list[Json] = [
        {"inlineData": {"mimeType": "image/png", "data": PNG_TEXT}},
        {"inlineData": {"mimeType": "application/pdf", "data": "JVBERi0=", "displayName": "a.pdf"}},
        {"fileData": {"mimeType": "text/plain", "fileUri": "gs://bucket/a.txt"}},
        SOUND,
    ]
    result: JsonObject = {"functionResponse": {"name": "a", "response": {"output": "See."}, "parts": files}}
    block = next(results(read(HELLO, model({"functionCall": {"name": "a"}}), user(result)).request.messages))
    assert [type(part) for part in block.content] == [
        TextBlock, ImageBlock, DocumentBlock, DocumentBlock, OpaqueBlock,
    ]  # fmt: skip


SOUND: JsonObject = {"inlineData": {"mimeType": "audio/wav", "data": "UklGRg=="}}
FILES = "https://generativelanguage.googleapis.com/v1beta/files/abc"


@pytest.mark.parametrize(("part", "block"), [
    ({"text": "a", "videoMetadata": {"fps": 1}}, TextBlock("a", own({"videoMetadata": {"fps": 1}}))),
    (SOUND, AudioBlock(data=b"RIFF", media_type="audio/wav")),
    ({"inlineData": {"mimeType": "application/pdf", "data": "JVBERi0", "displayName": "a.pdf"}},
        DocumentBlock(data=b"%PDF-", media_type="application/pdf", name="a.pdf")),
    ({"inlineData": {"data": PNG_TEXT}}, ImageBlock(data=PNG)),
    ({"inlineData": {"mimeType": "video/mp4", "data": "_-8="}, "videoMetadata": {"fps": 2}},
        DocumentBlock(data=b"\xff\xef", media_type="video/mp4",
        provider_raw=own({"videoMetadata": {"fps": 2}}))),
    ({"fileData": {"mimeType": "image/png", "fileUri": "https://x.test/a"}},
        ImageBlock(url="https://x.test/a", media_type="image/png")),
    ({"fileData": {"fileUri": "https://x.test/a.jpg?v=1"}}, ImageBlock(url="https://x.test/a.jpg?v=1")),
    ({"text": "a", "functionResponse": None, "inlineData": None}, TextBlock("a")),
    ({"fileData": {"fileUri": "https://youtu.be/abc"}}, DocumentBlock(url="https://youtu.be/abc")),
    ({"fileData": {"mimeType": "audio/ogg", "fileUri": "gs://b/a.ogg"}},
        AudioBlock(url="gs://b/a.ogg", media_type="audio/ogg")),
    ({"fileData": {"mimeType": "image/png", "fileUri": FILES}},
        OpaqueBlock("fileData", own({"fileData": {"mimeType": "image/png", "fileUri": FILES}}))),
    ({"newKind": {"x": 1}, "thought": False}, OpaqueBlock("newKind",
        own({"newKind": {"x": 1}, "thought": False}))),
])  # fmt: skip
def test_parts_of_the_user_are_read(part: JsonObject, block: ContentBlock) -> None:
    """A file that only Gemini's servers can read becomes an opaque block, so that adapters report its loss."""
    assert read(user(part)).request.messages == (Message.user((block,)),)


@pytest.mark.parametrize(("parts", "blocks"), [
    ([text("a"), text("b", SIGNATURE), text("c")], [TextBlock("abc",
        own({"signatures": [{"start": 1, "end": 2, "signature": SIGNATURE}]}))]),
    ([text("", SIGNATURE)], [OpaqueBlock("thoughtSignature", own({"text": "",
        "thoughtSignature": SIGNATURE}))]),
    ([thought("a"), thought("b", SIGNATURE), text("c")], [ThinkingBlock("ab", SIGNATURE, own({"start": 1})),
        TextBlock("c")]),
    ([thought("a")], [ThinkingBlock("a", None, own({}))]),
    ([thought("a", token_of("foreign")), text("b")], [ThinkingBlock("a"), TextBlock("b")]),
    ([text("a", token_of("foreign")), text("", token_of("foreign"))], [TextBlock("a")]),
    ([{"functionCall": {"name": "f"}, "thoughtSignature": "skip_thought_signature_validator"}],
        [ToolUseBlock("call_1", "f", {})]),
    ([{"functionCall": {"id": "x", "name": "f"}, "thoughtSignature": SIGNATURE}],
        [ToolUseBlock("x", "f", {}, provider_raw=own({"id": "x", "thoughtSignature": SIGNATURE}))]),
    ([{"executableCode": {"code": "1"}, "thoughtSignature": SIGNATURE},
        {"codeExecutionResult": {"output": "1"}}], [OpaqueBlock("executableCode",
        own({"executableCode": {"code": "1"}, "thoughtSignature": SIGNATURE})),
        OpaqueBlock("codeExecutionResult", own({"codeExecutionResult": {"output": "1"}}))]),
    ([{"inlineData": {"mimeType": "image/png", "data": PNG_TEXT}}],
        [ImageBlock(data=PNG, provider_raw=own({"inlineData": {"mimeType": "image/png"}}))]),
    ([SOUND], [OpaqueBlock("inlineData", own(SOUND))]),
])  # fmt: skip
def test_parts_of_the_model_are_read(parts: list[Json], blocks: list[ContentBlock]) -> None:
    """A signature that the gateway or the client made up counts as no signature."""
    assert read(HELLO, model(*parts)).request.messages[1] == Message.assistant(blocks)


@pytest.mark.parametrize(("contents", "message"), [
    ([], "contents are required"),
    ([{"role": "user", "parts": []}], "contents are required"),
    ("Hi", "contents must be a list"),
    ([["Hi"]], r"contents\[0\] must be an object"),
    ([{"role": "system", "parts": [{"text": "x"}]}], "Please use a valid role: user, model."),
    ([user({})], "must have one initialized field"),
    ([user({"inlineData": {"mimeType": "image/png", "data": "%%%"}})], "Base64 decoding failed"),
    ([user({"inlineData": {"data": "AAAA"}})], "inline_data"),
    ([model({"functionCall": {"args": {}}})], "Name cannot be empty"),
    ([model({"functionCall": {"name": "f", "args": [1]}})], "args must be an object"),
])  # fmt: skip
def test_contents_that_mean_nothing_are_refused(contents: Json, message: str) -> None:
    with pytest.raises(BadRequest, match=message) as refused:
        WIRE.read_request({"contents": contents}, {}, model=MODEL)
    assert refused.value.failure.kind == "invalid_request"
    assert refused.value.failure.param is not None
