"""The gateway's replies to clients of Chat Completions, read by OpenAI's SDK and the adapter; recorded traffic."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from openai.types.chat import ChatCompletion

from callboard.adapters import CanonicalResponse
from callboard.adapters.providers.openai_compatible.quirks import QUIRKS, choose_quirks
from callboard.adapters.providers.openai_compatible.response import ChatNormaliser, read_whole
from callboard.adapters.providers.openai_compatible.wire import decode_reply
from callboard.bus.errors import AdapterError
from callboard.bus.values.base import Json, JsonObject
from callboard.bus.values.content import (
    ContentBlock,
    ImageBlock,
    OpaqueBlock,
    ProviderRaw,
    RedactedThinkingBlock,
    TextBlock,
    ThinkingBlock,
    ToolUseBlock,
)
from callboard.bus.values.usage import StopReason, TokenUsage
from callboard.engine.gateway.chat_replies import WIRE
from callboard.engine.gateway.wire import ClientRequest
from tests.support.depth import each_nth_is_quick
from tests.support.json_values import differences

from ..support.recordings import FOLDER, needs_recordings
from .chat_kit import (
    INFO,
    Reply,
    adapters_body,
    asked,
    chunks_of,
    in_general,
    new_assembler,
    read_body,
    read_stream,
    replies,
    reply_from,
    response_of,
    streamed,
    written,
)
from .responses_cases import sdk_of

USAGE = TokenUsage(
    input_tokens=10, output_tokens=7, cached_input_tokens=4, cache_creation_input_tokens=3,
    cache_creation_1h_input_tokens=1, reasoning_tokens=2,
)  # fmt: skip
WITH_USAGE = asked(stream=True, stream_options={"include_usage": True})
SQL: JsonObject = {"type": "custom", "custom": {"name": "sql"}}


def response(
    *content: ContentBlock, stop: StopReason = StopReason.END_TURN, raw: str | None = None, **more: Any
) -> CanonicalResponse:
    fields: dict[str, Any] = {"usage": USAGE, **more}
    return CanonicalResponse(
        request_id="req_1", model="m", provider="p", content=content, stop_reason=stop, raw_stop_reason=raw,
        **fields,
    )  # fmt: skip


def message_of(reply: CanonicalResponse, request: ClientRequest | None = None) -> dict[str, Any]:
    message: dict[str, Any] = choice_of(reply, request)["message"]
    return message


def choice_of(reply: CanonicalResponse, request: ClientRequest | None = None) -> dict[str, Any]:
    body: Any = WIRE.write_reply(request or asked(), INFO, reply)
    choice: dict[str, Any] = body["choices"][0]
    return choice


def hello(stop: StopReason = StopReason.END_TURN, *texts: str) -> Reply:
    assembler = new_assembler()
    for text in texts or ("Hel", "lo"):
        assembler.text("t", text, implicit_end=True)
    return reply_from(assembler, stop, "stop", USAGE)


PNG = b"\x89PNG\r\n\x1a\n"


# --- The mirror of the adapter ---


def test_the_sdk_accumulates_a_stream_to_the_whole_reply() -> None:
    assembler = new_assembler("anthropic")
    assembler.text("t", "Let me look.", implicit_end=True)
    for at, arguments in enumerate(('{"path": "a"}', '{"path": "b"}')):
        assembler.tool_start(at, "read", raw={"id": f"toolu_{at}"})
        for half in (arguments[:5], arguments[5:]):
            assembler.tool_arguments(at, half)
        assembler.end(at)
    reply = reply_from(assembler, StopReason.TOOL_USE, "tool_use", USAGE)
    data = b"".join(streamed(WITH_USAGE, reply))
    sdk = sdk_of(data, headers={"content-type": WIRE.stream_type(WITH_USAGE)})
    with sdk.chat.completions.stream(model="m", messages=[]) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_completion()
    assert {"content.delta", "tool_calls.function.arguments.delta", "tool_calls.function.arguments.done"} <= kinds
    whole = ChatCompletion.model_validate_json(written(asked(), reply.response))
    first, second = whole.choices[0], final.choices[0]
    assert (second.message.content, second.finish_reason) == (first.message.content, first.finish_reason)
    ids = [[call.id for call in choice.message.tool_calls or []] for choice in (first, second)]
    assert ids[0] == ids[1] == [use.id for use in reply.response.tool_uses]
    assert final.usage == whole.usage


def test_a_stream_that_is_cut_off_is_never_a_complete_reply() -> None:
    assembler = new_assembler()
    assembler.text("t", "Hello", implicit_end=True)
    reply = reply_from(assembler, StopReason.END_TURN, None, USAGE)
    stream = b"".join(streamed(WITH_USAGE, reply))
    ended = stream.index(b'"finish_reason":"stop"')
    for cut in range(ended):
        with pytest.raises(AdapterError):
            read_stream([stream[:cut]])


@settings(max_examples=150)
@given(reply=replies("sql"))
def test_the_text_of_a_free_form_call_streams_as_it_comes(reply: Reply) -> None:
    request = asked(tools=[SQL], stream=True)
    pieces = streamed(request, reply)
    read = read_stream(pieces)
    assert in_general(read.content) == in_general(reply.response.content)
    assert in_general(read_body(written(request, reply.response)).content) == in_general(read.content)


def test_a_free_form_call_is_not_held_back_until_its_end() -> None:
    assembler = new_assembler("anthropic")
    assembler.tool_start(0, "sql", raw={"id": "toolu_1"})
    for piece in ('{"inp', 'ut": "SELECT ', "\\ud83d", '\\ude00 1"', "}"):
        assembler.tool_arguments(0, piece)
    assembler.end(0)
    reply = reply_from(assembler, StopReason.TOOL_USE, None, USAGE)
    stream = b"".join(streamed(asked(tools=[SQL], stream=True), reply))
    inputs = [
        call["custom"]["input"]
        for chunk in chunks_of(stream)
        for choice in _dicts(chunk["choices"])
        for call in choice["delta"].get("tool_calls", [])
    ]
    assert inputs == ["", "SELECT ", "😀 1"]
    ChatCompletion.model_validate_json(written(asked(tools=[SQL]), reply.response), strict=True)


def _dicts(value: Json) -> list[dict[str, Any]]:
    assert isinstance(value, list)
    return [each for each in value if isinstance(each, dict)]


# --- Parts of a reply ---


def test_a_streamed_text_is_the_text_of_the_whole_reply() -> None:
    assembler = new_assembler("anthropic")
    for key, kind, text in ((0, "text", "a"), (1, "text", "b"), (2, "thinking", "Hm"), (3, "text", "c"),
            (4, "thinking", "So"), (5, "text", "\nd")):  # fmt: skip
        (assembler.text if kind == "text" else assembler.thinking)(key, text)
        assembler.end(key)
    reply = reply_from(assembler, StopReason.END_TURN, None, USAGE)
    deltas = [
        choice["delta"] for chunk in chunks_of(b"".join(streamed(asked(), reply)))
        for choice in _dicts(chunk["choices"])
    ]  # fmt: skip
    assert "".join(delta.get("content") or "" for delta in deltas) == "ab\n\nc\nd"
    assert "".join(delta.get("reasoning_content") or "" for delta in deltas) == "Hm\n\nSo"
    message = message_of(reply.response)
    assert (message["content"], message["reasoning_content"]) == ("ab\n\nc\nd", "Hm\n\nSo")


def test_a_signature_of_anthropics_goes_to_the_client_and_comes_back() -> None:
    raw = ProviderRaw("anthropic", {})
    reply = response(ThinkingBlock("Hm", "c2ln", raw), RedactedThinkingBlock("ZGF0YQ", raw), TextBlock("Hi"))
    back = asked(messages=[{"role": "user", "content": "Hi"}, message_of(reply)]).request.messages[1].content
    assert in_general(back) == in_general(reply.content)


def test_a_streamed_signature_comes_back_with_the_text_that_it_signs() -> None:
    assembler = new_assembler("anthropic")
    assembler.thinking(0, "Hm")
    assembler.signature(0, "c2ln")
    assembler.end(0)
    assembler.text(1, "Hi")
    assembler.end(1)
    reply = reply_from(assembler, StopReason.END_TURN, None, USAGE)
    message: dict[str, Any] = {"role": "assistant"}
    for chunk in chunks_of(b"".join(streamed(asked(), reply))):
        for choice in _dicts(chunk["choices"]):
            for name, value in choice["delta"].items():
                if isinstance(value, str | list) and name != "role":
                    message[name] = message.get(name, type(value)()) + value
    back = asked(messages=[{"role": "user", "content": "Hi"}, message]).request.messages[1].content
    assert in_general(back) == in_general(reply.response.content)


def test_a_refusal_has_the_vendors_field() -> None:
    reply = response(TextBlock("No."), stop=StopReason.REFUSAL)
    choice = choice_of(reply)
    assert (choice["message"]["content"], choice["message"]["refusal"]) == (None, "No.")
    assert choice["finish_reason"] == "stop"
    assert read_body(written(asked(), reply)).stop_reason == "refusal"
    assert choice_of(response(stop=StopReason.REFUSAL, raw="refusal"))["finish_reason"] == "content_filter"


def test_images_of_a_reply_are_where_openrouter_has_them() -> None:
    reply = response(TextBlock("Here"), ImageBlock(data=PNG))
    image = {
        "type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}, "index": 0
    }  # fmt: skip
    assert message_of(reply)["images"] == [image]
    assert in_general(read_body(written(asked(), reply)).content) == in_general(reply.content)


def test_a_recording_of_a_reply_is_the_vendors_audio() -> None:
    audio: JsonObject = {"id": "audio_1", "data": "UklGRg==", "transcript": "Hi", "expires_at": 1}
    reply = response(OpaqueBlock("audio", ProviderRaw("openai_compatible", audio)))
    assert message_of(reply)["audio"] == audio


@pytest.mark.parametrize("data", [
    {"citations": [{"type": "web_search_result_location", "url": "https://x.test", "title": "X"}]},
    {"annotations": [{"type": "url_citation", "url": "https://x.test", "title": "X", "start_index": 0,
        "end_index": 5}]},
    {"annotations": [{"type": "url_citation", "url_citation": {"url": "https://x.test", "title": "X",
        "start_index": 7, "end_index": 12}}]},
])  # fmt: skip
def test_citations_of_every_protocol_are_annotations_with_their_place_in_the_text(data: JsonObject) -> None:
    reply = response(TextBlock("Before."), TextBlock("Cited", ProviderRaw("p", data)))
    citation = {"url": "https://x.test", "title": "X", "start_index": 7, "end_index": 12}
    assert message_of(reply)["annotations"] == [{"type": "url_citation", "url_citation": citation}]


def test_geminis_grounding_is_annotations_with_places_in_characters() -> None:
    metadata: JsonObject = {
        "groundingChunks": [{"web": {"uri": "https://x.test", "title": "X"}}, {"maps": {"uri": "m"}}],
        "groundingSupports": [
            {"segment": {"startIndex": 5, "endIndex": 10, "text": "Cited"}, "groundingChunkIndices": [0, 1, 9]}
        ],
    }
    grounding = OpaqueBlock("groundingMetadata", ProviderRaw("gemini", {"groundingMetadata": metadata}))
    citation = {"url": "https://x.test", "title": "X", "start_index": 3, "end_index": 8}
    reply = response(TextBlock("☃ .Cited"), grounding)
    assert message_of(reply)["annotations"] == [{"type": "url_citation", "url_citation": citation}]


def test_old_clients_get_a_function_call() -> None:
    request = asked(functions=[{"name": "read"}], stream=True)
    assembler = new_assembler("anthropic")
    assembler.tool_start(0, "read", raw={"id": "toolu_1"})
    assembler.tool_arguments(0, '{"a": 1}')
    assembler.end(0)
    reply = reply_from(assembler, StopReason.TOOL_USE, None, USAGE)
    choice = choice_of(reply.response, request)
    assert choice["finish_reason"] == "function_call"
    assert choice["message"]["function_call"] == {"name": "read", "arguments": '{"a":1}'}
    read = read_stream(streamed(request, reply))
    assert [(call.name, call.input) for call in read.tool_uses] == [("read", {"a": 1})]


def test_a_call_that_was_cut_off_is_no_call_to_run() -> None:
    call = ToolUseBlock("tu_1", "read", {}, raw_arguments='{"a": ', incomplete=True)
    choice = choice_of(response(call, stop=StopReason.PROVIDER_SPECIFIC))
    assert choice["finish_reason"] == "length"


def test_usage_counts_cached_tokens_among_the_prompts() -> None:
    body: Any = WIRE.write_reply(asked(), INFO, response())
    usage = body["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]) == (17, 7, 24)
    details = usage["prompt_tokens_details"]
    assert (details["cached_tokens"], details["cache_write_tokens"]) == (4, 3)
    assert usage["completion_tokens_details"]["reasoning_tokens"] == 2


# --- Streams ---


@pytest.mark.parametrize("with_usage", [True, False])
def test_a_stream_has_the_vendors_order(with_usage: bool) -> None:
    stream = b"".join(streamed(WITH_USAGE if with_usage else asked(stream=True), hello()))
    assert stream.endswith(b"data: [DONE]\n\n")
    first, *rest = chunks_of(stream)
    assert first == {
        "id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1_700_000_000, "model": "gpt-5",
        "choices": [
            {"index": 0, "delta": {"role": "assistant", "content": "", "refusal": None}, "logprobs": None,
                "finish_reason": None}
        ],
        **({"usage": None} if with_usage else {}),
    }  # fmt: skip
    if with_usage:
        last = rest.pop()
        assert last["choices"] == []
        assert last["usage"] == WIRE.write_reply(asked(), INFO, hello().response)["usage"]
    assert [choice["delta"] for chunk in rest for choice in _dicts(chunk["choices"])] == [
        {"content": "Hel"}, {"content": "lo"}, {}
    ]  # fmt: skip
    assert [choice["finish_reason"] for choice in _dicts(rest[-1]["choices"])] == ["stop"]


def cases() -> list[dict[str, Any]]:
    path = FOLDER / "openai_chat.jsonl"
    if not path.is_file():
        return []
    with path.open(encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


CASES = cases()
ALLOWED = {
    ".stream": "the adapter adds it to streamed requests only",
    ".stream_options": "the adapter always asks for usage", ".n": "one choice is the default",
    ".max_tokens": "the adapter has one name of the limit for each server",
    ".max_completion_tokens": "the adapter has one name of the limit for each server",
    ".stop": "the adapter omits it for a model that refuses it while it reasons",
    ".model": "the part before a colon is the provider", ".tools": "no tools are like an empty list",
    ".tools[].type": "Mistral's clients omit it",
    ".tools[].function.strict": "the adapter states strictness where the server has it, and only there",
    ".tools[].function.parameters.$defs.Answer.required[]": "strict mode requires all properties, in order",
    ".tools[].function.parameters.required[]": "strict mode requires all properties, in order",
    ".response_format.json_schema.strict": "the adapter states strictness where the server has it, and only there",
    ".response_format.json_schema.schema.additionalProperties": "strict mode requires it",
    ".response_format.json_schema.schema.title": "the name of the format is the title of its schema",
    ".reasoning_effort": "Z.ai has no efforts, only reasoning on and off",
    ".reasoning.effort": "an enabled reasoning has the middle effort",
    ".thinking.type": "an enabled reasoning has the middle effort",
    ".tool_choice.type": "the adapter always states it", ".messages": "system messages are one, at the start",
    ".messages[].content": "the adapter joins texts of one message", ".messages[].prefix": "false is the default",
    ".messages[].name": "Mistral's results have the tool's name",
    ".messages[].tool_calls": "no calls are like an empty list",
    ".messages[].tool_calls[].index": "the place in the list says it",
    ".messages[].tool_calls[].function.arguments": "the adapter writes the same arguments without blanks",
}  # fmt: skip
"""Differences between a recorded request and the one that the adapter writes, with the reasons."""


def without_nulls(value: Json) -> Json:
    """A body without its nulls, which equal missing fields, and with its parts of text as one text."""
    match value:
        case dict():
            return {name: without_nulls(each) for name, each in value.items() if each is not None}
        case [{"text": str()}, *_] if all(isinstance(each, dict) and "text" in each for each in value):
            return "\n\n".join(str(each["text"]) for each in value if isinstance(each, dict))
        case list():
            return [without_nulls(each) for each in value]
        case _:
            return value


@needs_recordings
@pytest.mark.parametrize("case", each_nth_is_quick(CASES, 5, "each recording"), ids=[case["id"] for case in CASES])
def test_a_recorded_request_is_written_again_as_it_was(case: dict[str, Any]) -> None:
    body = case["request_body"]
    quirks = choose_quirks({}, f"https://{case['provider_host']}")
    client = WIRE.read_request(body, {})
    found = set(differences(without_nulls(body), without_nulls(adapters_body(client.request, quirks))))
    assert found <= ALLOWED.keys()
    assert (client.model, client.stream) == (body["model"], body.get("stream") is True)


def read_recorded(case: Mapping[str, Any]) -> Reply | None:
    """Read the recorded reply with the adapter. None if the recording is no reply."""
    data = case["response_body"].encode()
    assembler = new_assembler()
    if case["response_status"] != 200 or case["oracle"].get("must_not_succeed"):
        return None
    if case["streamed"]:
        normaliser = ChatNormaliser(assembler, QUIRKS["default"])
        events = normaliser.feed(data) + normaliser.close()
        if normaliser.error is not None:
            return None
        return Reply(response_of(assembler), events)
    read_whole(decode_reply(data), data, assembler, QUIRKS["default"])
    return Reply(response_of(assembler), assembler.take())


REPLIES = [(case, reply) for case in CASES if (reply := read_recorded(case)) is not None]


def counts(usage: TokenUsage) -> tuple[object, ...]:
    return (
        usage.input_tokens, usage.output_tokens, usage.cached_input_tokens, usage.cache_creation_input_tokens,
        usage.reasoning_tokens or 0, usage.details,
    )  # fmt: skip


def reasoning_apart(content: Sequence[ContentBlock]) -> tuple[object, ...]:
    """The content of a streamed reply, with the opaque parts of reasoning after the rest."""
    thoughts = [block for block in content if isinstance(block, ThinkingBlock)]
    others = [block for block in content if not isinstance(block, ThinkingBlock)]
    return (
        "".join(thought.text for thought in thoughts),
        [thought.signature for thought in thoughts if thought.signature],
        in_general(others),
    )


def check(read: CanonicalResponse, reply: CanonicalResponse) -> None:
    if reply.stop_reason is not StopReason.PROVIDER_SPECIFIC:
        assert read.stop_reason == reply.stop_reason
    assert counts(read.usage) == counts(reply.usage)


@needs_recordings
@pytest.mark.parametrize(
    ("case", "reply"),
    each_nth_is_quick(REPLIES, 5, "each recording", rows=True),
    ids=[case["id"] for case, _ in REPLIES],
)
def test_a_recorded_reply_goes_through_the_gateway_unchanged(case: dict[str, Any], reply: Reply) -> None:
    options: JsonObject = {"stream_options": {"include_usage": True}}
    client = WIRE.read_request({**case["request_body"], **options}, {})
    whole = msgspec.json.encode(WIRE.write_reply(client, INFO, reply.response))
    read = read_body(whole)
    assert in_general(read.content) == in_general(reply.response.content)
    check(read, reply.response)
    writer = WIRE.writer(client, INFO)
    pieces = [writer.start(), *map(writer.write, reply.events), writer.finish(reply.response)]
    read = read_stream(pieces)
    assert reasoning_apart(read.content) == reasoning_apart(reply.response.content)
    check(read, reply.response)
