"""Streamed replies. Every vector is written by hand from wire facts, and read in every way that `read` knows."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bus.errors import AdapterError, InvalidRequestError, OverloadedError, QuotaExceededError, StreamError
from bus.streams.events import MessageStart, TextDelta, ThinkingDelta, ToolUseInputDelta
from bus.values.content import OpaqueBlock, ProviderRaw, TextBlock, ThinkingBlock, ToolUseBlock
from bus.values.json import Json, JsonObject
from bus.values.usage import StopReason, UsageSource

from ...support.fake_http import pieces
from ...support.invariants import check_stream
from ...support.readings import without_raw
from .wire_chunks import (
    END,
    ESTIMATE,
    MODEL,
    USAGE,
    body,
    call,
    chunk,
    read,
    read_pieces,
    text,
    thought,
)


def own(**data: Json) -> ProviderRaw:
    return ProviderRaw("gemini", data, MODEL)


def test_text_comes_as_it_arrives() -> None:
    """Each part is one event, a separator inside a string is none, and the end holds them all."""
    reading = read(chunk(text("Hel")), chunk(text("lo \u2028☃"), text("!")), END)
    assert reading.events[0] == MessageStart("msg", "gemini-test-001", "gemini")
    assert [event.text for event in reading.events if isinstance(event, TextDelta)] == ["Hel", "lo \u2028☃", "!"]
    assert reading.content == (TextBlock("Hello \u2028☃!"),)
    assert reading.complete.stop_reason is StopReason.END_TURN
    assert reading.complete.raw_stop_reason == "STOP"
    assert reading.assembler.response_id == "reply-1"


def test_thoughts_and_text_are_blocks_of_their_own() -> None:
    """However many parts each has."""
    reading = read(chunk(thought("Let me ")), chunk(thought("see.")), chunk(text("So")), chunk(text(".")), END)
    assert reading.content == (ThinkingBlock("Let me see.", None, own()), TextBlock("So."))


def test_a_signed_thought_ends_with_its_signature() -> None:
    """What follows is another thought; the last delta carries the signature."""
    reading = read(chunk(thought("One", "c2lnMQ==")), chunk(thought("Two")), END)
    assert reading.content == (ThinkingBlock("One", "c2lnMQ==", own()), ThinkingBlock("Two", None, own()))
    signatures = [event.signature for event in reading.events if isinstance(event, ThinkingDelta)]
    assert signatures == [None, "c2lnMQ==", None]


def test_a_signature_on_text_says_which_piece_it_signs() -> None:
    """One block of text, in which the signed part can be found again."""
    reading = read(chunk(text("Hello")), chunk(text(" you", "c2ln")), chunk(text("!")), END)
    signed: list[Json] = [{"start": 5, "end": 9, "signature": "c2ln"}]
    assert reading.content == (TextBlock("Hello you!", own(signatures=signed)),)


@pytest.mark.parametrize("last", [text("", "c2ln"), {"thoughtSignature": "c2ln"}])
def test_a_trailing_signature_signs_an_empty_piece(last: JsonObject) -> None:
    """With an empty text or with none at all."""
    reading = read(chunk(text("Hello")), chunk(last, finish="STOP", usage=USAGE))
    assert reading.content == (TextBlock("Hello", own(signatures=[{"start": 5, "end": 5, "signature": "c2ln"}])),)


def test_a_signature_without_text_before_it_is_a_part_of_its_own() -> None:
    """It is kept, to go back where it stood."""
    reading = read(chunk(call("go", args={})), chunk(text("", "c2ln")), END)
    _, kept = reading.content
    assert kept == OpaqueBlock("thoughtSignature", own(text="", thoughtSignature="c2ln"))


def test_calls_come_whole() -> None:
    """Start, one fragment as the provider wrote it, end; the id and the signature stay with the call."""
    raw = (
        b'{"candidates":[{"content":{"parts":[{"functionCall":{"name":"a","args":{"x": [1, 2]},"id":"c1"},'
        b'"thoughtSignature":"c2ln"},{"functionCall":{"name":"b"}}]}}]}'
    )
    reading = read(raw, END)
    first, second = reading.content
    assert isinstance(first, ToolUseBlock)
    assert isinstance(second, ToolUseBlock)
    assert (first.name, first.input, first.provider_raw) == (
        "a",
        {"x": [1, 2]},
        own(id="c1", thoughtSignature="c2ln"),
    )
    assert (second.name, second.input, second.provider_raw) == ("b", {}, own())
    fragments = [event.partial_json for event in reading.events if isinstance(event, ToolUseInputDelta)]
    assert fragments == ['{"x": [1, 2]}']
    assert reading.complete.stop_reason is StopReason.TOOL_USE
    assert reading.complete.raw_stop_reason == "STOP"


@pytest.mark.parametrize("args", [[], "x", 7])
def test_arguments_that_are_no_object_are_not_to_be_executed(args: Json) -> None:
    """What came is kept."""
    (block,) = read(chunk(call("a", args=args)), END).content
    assert isinstance(block, ToolUseBlock)
    assert (block.incomplete, block.raw_arguments) == (True, msgspec.json.encode(args).decode())


def partial(*values: JsonObject, more: bool = True) -> JsonObject:
    return chunk({"functionCall": {"partialArgs": list(values), **({"willContinue": True} if more else {})}})


def begin(name: str, **fields: Json) -> JsonObject:
    return chunk({"functionCall": {"name": name, "willContinue": True, **fields}})


TERMINATOR = chunk({"functionCall": {}})


def test_arguments_in_pieces_are_put_together() -> None:
    """Strings grow, every kind of value has its place, and the end is an empty call."""
    reading = read(
        begin("plan", id="c1"),
        partial({"jsonPath": "$.city", "stringValue": "Bos", "willContinue": True}),
        partial({"jsonPath": "$.city", "stringValue": "ton"}, {"jsonPath": "$.days[0].n", "numberValue": 3}),
        partial({"jsonPath": "$.days[0].ok", "boolValue": True}, {"jsonPath": "$.days[1]", "nullValue": None}),
        partial({"jsonPath": "$['odd key']", "nullValue": "NULL_VALUE"}, {"jsonPath": "$.city"}),
        TERMINATOR,
        chunk(call("next", args={})),
        END,
    )
    wanted = {"city": "Boston", "days": [{"n": 3, "ok": True}, None], "odd key": None}
    assert reading.calls == [("plan", wanted, False), ("next", {}, False)]


def test_a_call_in_pieces_may_lack_its_end() -> None:
    """A new name, or the end of the reply, is as good."""
    a: JsonObject = {"jsonPath": "$.a", "numberValue": 1}
    reading = read(begin("one"), partial(a), begin("two", partialArgs=[a]), partial(a | {"jsonPath": "$.b"}), END)
    assert reading.calls == [("one", {"a": 1}, False), ("two", {"a": 1, "b": 1}, False)]
    reading = read(
        begin("one", partialArgs=[a]), partial(a | {"jsonPath": "$.b"}, more=False), chunk(text("Hi")), END
    )
    assert reading.calls == [("one", {"a": 1, "b": 1}, False)]


def test_text_between_the_pieces_of_a_call_waits_for_its_end() -> None:
    """Neither gets what is the other's."""
    a: JsonObject = {"jsonPath": "$.a", "stringValue": "x"}
    reading = read(begin("one"), chunk(text("Hi")), partial(a), chunk(thought("Hm")), partial(a), TERMINATOR, END)
    assert reading.calls == [("one", {"a": "xx"}, False)]
    assert reading.content[1:] == (TextBlock("Hi"), ThinkingBlock("Hm", None, own()))


@pytest.mark.parametrize("path", ["city", "$", "$.a..b", "$[0]", "$.a[7]", "$.a[99999999999]", "$.x.y", "", None])
def test_a_piece_that_has_no_place_makes_the_call_incomplete(path: str | None) -> None:
    """Rather that than to run a tool with the wrong arguments."""
    first: JsonObject = {"jsonPath": "$.x", "numberValue": 1}
    reading = read(begin("one"), partial(first), partial({"jsonPath": path, "numberValue": 2}), TERMINATOR, END)
    ((_, arguments, incomplete),) = reading.calls
    assert isinstance(arguments, dict)
    assert (arguments["x"], incomplete) == (1, True)


def test_a_call_in_pieces_that_is_cut_off_is_incomplete() -> None:
    """Its start was shown; it is closed as what it is."""
    reading = read_pieces([body([begin("one"), partial({"jsonPath": "$.a", "numberValue": 1})])])
    assert isinstance(reading.error, StreamError)
    reading.assembler.abort(StopReason.ERROR)
    last = check_stream([*reading.events, *reading.assembler.take()])
    (block,) = last.final_content
    assert isinstance(block, ToolUseBlock)
    assert block.incomplete


def test_other_parts_are_kept_word_for_word() -> None:
    """Code, its result, images, the provider's own tools, and kinds that are yet to be."""
    parts: list[JsonObject] = [
        {"executableCode": {"language": "PYTHON", "code": "1+1", "id": "x"}, "thoughtSignature": "c2ln"},
        {"codeExecutionResult": {"outcome": "OUTCOME_OK", "output": "2", "id": "x"}},
        {"inlineData": {"mimeType": "image/png", "data": "iVBORw0KGgo="}},
        {"thoughtSignature": "c2ln", "toolCall": {"toolType": "GOOGLE_SEARCH_WEB", "args": {}}},
        {"hologram": {"depth": 3}},
    ]
    reading = read(chunk(text("So"), *parts), chunk(text("then")), END)
    kinds = ["executableCode", "codeExecutionResult", "inlineData", "toolCall", "hologram"]
    assert reading.content == (
        TextBlock("So"),
        *[OpaqueBlock(kind, ProviderRaw("gemini", part, MODEL)) for kind, part in zip(kinds, parts, strict=True)],
        TextBlock("then"),
    )


def test_an_empty_part_is_reported_once() -> None:
    """It says nothing and breaks nothing."""
    reading = read(chunk({}, text("Hi"), {}), END)
    assert reading.content == (TextBlock("Hi"),)
    assert reading.warnings == ["unknown_content"]


def test_what_is_about_the_reply_comes_last() -> None:
    """Grounding as it stood last, and probabilities of all tokens."""
    reading = read(
        chunk(text("A"), groundingMetadata={"webSearchQueries": ["a"]}, logprobsResult={"chosenCandidates": [1]}),
        chunk(
            text("B"), groundingMetadata={"webSearchQueries": ["a", "b"]}, logprobsResult={"chosenCandidates": [2]}
        ),
        chunk(finish="STOP", usage=USAGE, groundingMetadata={}, citationMetadata=None),
    )
    assert reading.content == (
        TextBlock("AB"),
        OpaqueBlock("groundingMetadata", own(groundingMetadata={"webSearchQueries": ["a", "b"]})),
        OpaqueBlock("logprobsResult", own(logprobsResult={"chosenCandidates": [1, 2]})),
    )


def test_only_the_first_candidate_is_read() -> None:
    """Wherever it stands in the list; the others are mentioned once."""
    other: JsonObject = {"content": {"parts": [text("No")]}, "index": 1}
    both = chunk(text("Yes"))
    candidates = both["candidates"]
    assert isinstance(candidates, list)
    candidates.insert(0, other)
    reading = read(both, {"candidates": [other]}, END)
    assert reading.content == (TextBlock("Yes"),)
    assert reading.warnings == ["extra_candidates"]


def test_the_reply_goes_on_after_a_finish_reason() -> None:
    """Older models give one in every chunk; usage may follow the last."""
    reading = read(
        chunk(text("A"), finish="STOP"),
        chunk(text("B"), finish="MAX_TOKENS"),
        {"usageMetadata": USAGE},
    )
    assert reading.content == (TextBlock("AB"),)
    assert reading.complete.raw_stop_reason == "MAX_TOKENS"
    assert reading.complete.usage.total_tokens == 30


def test_usage_is_the_last_of_each_count() -> None:
    """Counts come and go; thoughts are output, what was cached is no fresh input, what tools put in is."""
    reading = read(
        chunk(text("A"), usage={"promptTokenCount": 169, "cachedContentTokenCount": 60, "thoughtsTokenCount": 7}),
        chunk(
            text("B"), usage={"promptTokenCount": 100, "candidatesTokenCount": 4, "toolUsePromptTokenCount": 30}
        ),
        chunk(finish="STOP", usage={"candidatesTokenCount": 5, "trafficType": "ON_DEMAND"}),
        {"usageMetadata": {"trafficType": "ON_DEMAND"}},
    )
    usage = reading.complete.usage
    assert (usage.input_tokens, usage.cached_input_tokens, usage.output_tokens) == (70, 60, 12)
    assert (usage.reasoning_tokens, usage.cache_creation_input_tokens) == (7, 0)
    assert usage.source is UsageSource.REPORTED
    assert usage.raw is not None
    assert msgspec.json.decode(usage.raw)["promptTokenCount"] == 100


def test_usage_without_counts_is_no_usage() -> None:
    """It is estimated, and said to be."""
    reading = read(chunk(text("A"), finish="STOP", usage={"trafficType": "ON_DEMAND"}))
    assert reading.complete.usage == ESTIMATE
    assert reading.warnings == ["usage_estimated"]


def test_a_function_call_as_the_reason_to_stop_is_tool_use() -> None:
    """aimock names it so; Gemini itself says STOP."""
    whole = read(chunk(call("read", args={"path": "x"}), finish="FUNCTION_CALL", usage=USAGE))
    assert whole.complete.stop_reason is StopReason.TOOL_USE
    assert whole.complete.raw_stop_reason == "FUNCTION_CALL"


def test_a_reply_that_breaks_off_has_the_usage_so_far() -> None:
    """Marked as partial."""
    reading = read_pieces([body([chunk(text("A"), usage=USAGE)])])
    assert isinstance(reading.error, StreamError)
    reading.assembler.abort(StopReason.CANCELLED)
    usage = check_stream([*reading.events, *reading.assembler.take()]).usage
    assert (usage.input_tokens, usage.output_tokens, usage.source) == (20, 10, UsageSource.PARTIAL)


@pytest.mark.parametrize(
    ("finish", "reason"),
    [
        ("STOP", StopReason.END_TURN),
        ("MAX_TOKENS", StopReason.MAX_TOKENS),
        *[
            (name, StopReason.CONTENT_FILTER)
            for name in ("SAFETY", "RECITATION", "BLOCKLIST", "PROHIBITED_CONTENT", "SPII", "MODEL_ARMOR")
        ],
        *[
            (f"IMAGE_{name}", StopReason.CONTENT_FILTER)
            for name in ("SAFETY", "PROHIBITED_CONTENT", "RECITATION", "OTHER")
        ],
        *[
            (name, StopReason.PROVIDER_SPECIFIC)
            for name in ("LANGUAGE", "OTHER", "NO_IMAGE", "MALFORMED_FUNCTION_CALL", "UNEXPECTED_TOOL_CALL")
        ],
        *[
            (name, StopReason.PROVIDER_SPECIFIC)
            for name in ("TOO_MANY_TOOL_CALLS", "MISSING_THOUGHT_SIGNATURE", "CONTINUATION", "INVENTED_TOMORROW")
        ],
    ],
)
def test_every_finish_reason_has_its_meaning(finish: str, reason: StopReason) -> None:
    """And stays readable beside it."""
    complete = read(chunk(text("A")), chunk(finish=finish, usage=USAGE)).complete
    assert (complete.stop_reason, complete.raw_stop_reason) == (reason, finish)


def test_a_malformed_call_is_told() -> None:
    """The reply is empty, and its warning says what the model tried."""
    said = "Malformed function call: print(default_api.go("
    reading = read(chunk(finish="MALFORMED_FUNCTION_CALL", finishMessage=said, usage=USAGE))
    assert reading.content == ()
    assert reading.complete.stop_reason is StopReason.PROVIDER_SPECIFIC
    (warning,) = reading.assembler.warnings
    assert said in warning.message


def test_an_unexpected_call_is_no_regular_call_for_tools() -> None:
    """The call is there, is never executed, and why the reply ended is not `tool_use`."""
    reading = read(chunk(call("nobody", args={}), finish="UNEXPECTED_TOOL_CALL", usage=USAGE))
    assert reading.calls == [("nobody", {}, True)]
    assert reading.complete.stop_reason is StopReason.PROVIDER_SPECIFIC


def test_what_a_regular_end_says_is_no_warning() -> None:
    """Newer models comment on every call."""
    reading = read(chunk(call("a"), finish="STOP", finishMessage="Model generated function call(s).", usage=USAGE))
    assert reading.warnings == []


def test_a_blocked_prompt_is_a_reply_without_content() -> None:
    """There is no candidate at all; the block's reason stands for the finish reason."""
    feedback: JsonObject = {"blockReason": "PROHIBITED_CONTENT", "blockReasonMessage": "Not that."}
    reading = read({"promptFeedback": feedback, "usageMetadata": {"promptTokenCount": 9}})
    assert reading.content == ()
    assert reading.complete.stop_reason is StopReason.CONTENT_FILTER
    assert reading.complete.raw_stop_reason == "PROHIBITED_CONTENT"
    assert reading.complete.usage.total_tokens == 9
    assert reading.warnings == ["finish_message"]


def test_harmless_feedback_is_no_block() -> None:
    """Ratings of a prompt that passed."""
    fine: JsonObject = {**chunk(text("A")), "promptFeedback": {"safetyRatings": []}}
    assert read(fine, END).complete.stop_reason is StopReason.END_TURN


def test_a_stream_without_a_finish_reason_was_cut_off() -> None:
    """Whatever came before; an unspecified reason is none."""
    for last in (chunk(text("A")), chunk(text("A"), finish="FINISH_REASON_UNSPECIFIED"), {"candidates": []}):
        assert isinstance(read(last).error, StreamError)
    assert isinstance(read().error, StreamError)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        ({"code": 503, "message": "The model is overloaded.", "status": "UNAVAILABLE"}, OverloadedError),
        ({"code": 400, "message": "No.", "status": "INVALID_ARGUMENT"}, InvalidRequestError),
        (
            {
                "code": 429,
                "message": "limit: 0",
                "status": "RESOURCE_EXHAUSTED",
                "details": [{"@type": "type.googleapis.com/google.rpc.QuotaFailure", "violations": [{}]}],
            },
            QuotaExceededError,
        ),
    ],
)
def test_an_error_in_the_stream(error: JsonObject, kind: type[AdapterError]) -> None:
    """As an event; or as plain, indented JSON, which is no event at all."""
    reading = read(chunk(text("A")), {"error": error})
    assert type(reading.error) is kind
    assert str(error["message"]) in str(reading.error)
    bare = body([chunk(text("A"))]) + msgspec.json.format(msgspec.json.encode({"error": error}))
    for pieces_of in ([bare], [bare[at : at + 1] for at in range(len(bare))]):
        assert type(read_pieces(pieces_of).error) is kind


@pytest.mark.parametrize("stray", [b"", b"<html>", b'{"what": 1}', b"[1]", b"null", b"\xff"])
def test_other_text_at_the_end_is_no_error_of_theirs(stray: bytes) -> None:
    """The stream is cut off, as it would be without it."""
    error = read_pieces([body([chunk(text("A"))]) + stray]).error
    assert isinstance(error, StreamError)
    assert "ended before" in str(error)


def test_a_done_marker_of_another_protocol_is_ignored() -> None:
    """Proxies send it."""
    assert read(chunk(text("A")), END, b"[DONE]").content == (TextBlock("A"),)


def test_half_a_surrogate_pair_does_not_repeat_anything() -> None:
    """The event is mended and read once."""
    raw = b'{"candidates":[{"content":{"parts":[{"text":"A"},{"text":"\\ud83d"},{"hologram":1}]}}]}'
    half = b'{"candidates":[{"content":{"parts":[{"text":"B"}]},"groundingMetadata":{"q":"\\ud83d"}}]}'
    reading = read(raw, half, END)
    texts = [block.text for block in reading.content if isinstance(block, TextBlock)]
    assert texts == ["A\ufffd", "B"]


EVERYTHING = [
    chunk(thought("Let me see", "c2lnMA==")),
    chunk(text("Héllo ☃ \u2028")),
    chunk(call("a", "c2ln", args={"x": "é"}), call("b", args={})),
    begin("c"),
    partial({"jsonPath": "$.x", "stringValue": "☃"}),
    TERMINATOR,
    chunk(text("", "c2ln")),
    END,
]
WHOLE = body(EVERYTHING)


def test_every_single_cut() -> None:
    """Two pieces, cut anywhere."""
    reference = read_pieces([WHOLE])
    for cut in range(len(WHOLE)):
        other = read_pieces([WHOLE[:cut], WHOLE[cut:]])
        assert without_raw(other.events) == without_raw(reference.events)
        assert other.error is None


@settings(max_examples=60)
@given(st.lists(st.integers(0, len(WHOLE)), max_size=40))
def test_any_cuts(cuts: list[int]) -> None:
    """However the network deals it out."""
    assert without_raw(read_pieces(pieces(WHOLE, cuts)).events) == without_raw(read_pieces([WHOLE]).events)
