"""Streams of Chat Completions, as servers send them. The vectors are hand-written from wire facts."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adapters.providers.openai_compatible.chat.think_tags import ThinkTags
from adapters.providers.openai_compatible.quirks.servers import QUIRKS, Quirks
from bus.errors import (
    AdapterError,
    ContextOverflowError,
    InvalidRequestError,
    OverloadedError,
    ServerError,
    StreamError,
)
from bus.streams.events import TextDelta, ToolUseInputDelta
from bus.values.content import OpaqueBlock, TextBlock, ThinkingBlock, ToolUseBlock
from bus.values.json import Json, JsonObject
from bus.values.usage import StopReason, UsageSource

from ...support.fake_http import pieces
from .wire_chunks import DONE, STOP, USAGE, body, chunk, more, read, read_pieces, tool, tools

HELLO = (chunk(role="assistant", content=""), chunk(content="Hel"), chunk(content="lo ☃"))
USAGE_ALONE: JsonObject = {"choices": [], "usage": USAGE}
BOTH = [("call_1", "look", {"at": 1}), ("call_2", "hear", {"to": 2})]


# -- text and its end


def test_text_arrives_delta_by_delta() -> None:
    """Each delta is one event, the parts add up, and the last event has stop reason and usage."""
    outcome = read(*HELLO, STOP, USAGE_ALONE, DONE)
    assert [event.text for event in outcome.events if isinstance(event, TextDelta)] == ["Hel", "lo ☃"]
    assert outcome.content == (TextBlock("Hello ☃"),)
    assert outcome.complete is not None
    assert outcome.complete.stop_reason is StopReason.END_TURN
    assert outcome.complete.raw_stop_reason == "stop"
    assert (outcome.assembler.model, outcome.assembler.response_id) == ("test-2026", "chatcmpl-1")


@pytest.mark.parametrize("line_end", [b"\n", b"\r\n", b"\r"])
@pytest.mark.parametrize("colon", [b":", b": "])
def test_line_ends_and_colons_of_all_kinds(line_end: bytes, colon: bytes) -> None:
    """Lines may end in three ways, and the space after the colon may be missing."""
    events = (*HELLO, chunk(content=" \u2028\U0001f600"), STOP, DONE)
    assert read(raw=body(events, line_end=line_end, colon=colon)).text == "Hello ☃ \u2028\U0001f600"


def test_comments_and_empty_events_are_nothing() -> None:
    """Keep-alives stand between the events, and events without data are skipped."""
    raw = b": PROCESSING\n\n:\n\ndata:\n\n" + body([*HELLO, STOP]) + b": ping\n\n" + body([DONE])
    assert read(raw=raw).text == "Hello ☃"


@pytest.mark.parametrize("events", [(), (chunk(""),), (USAGE_ALONE,)], ids=["none", "empty", "usage"])
def test_done_without_a_finish_reason_is_a_broken_stream(events: tuple[JsonObject, ...]) -> None:
    """A server that ends a stream in order says why; this one lost its model, or its patience."""
    outcome = read(*HELLO, *events, DONE)
    assert isinstance(outcome.error, StreamError)
    assert outcome.error.retryable
    assert outcome.complete is None


@pytest.mark.parametrize(
    ("events", "reason"),
    [
        (HELLO, StopReason.END_TURN),
        ((*HELLO, chunk("")), StopReason.END_TURN),
        ((tools(tool(arguments="{}")),), StopReason.TOOL_USE),
        ((*HELLO, {"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 64}}), StopReason.MAX_TOKENS),
    ],
    ids=["text", "empty reason", "call", "limit"],
)
def test_a_server_that_never_gives_a_reason_ends_with_done(
    events: tuple[JsonObject, ...], reason: StopReason
) -> None:
    """Its quirk says so; what it used tells whether the limit was reached."""
    outcome = read(*events, DONE, quirks=QUIRKS["snowflake"])
    assert outcome.error is None
    assert outcome.complete is not None
    assert outcome.complete.stop_reason is reason
    assert not outcome.complete.raw_stop_reason
    assert [block.incomplete for block in outcome.content if isinstance(block, ToolUseBlock)] in ([], [False])


def test_finish_reason_without_done_is_an_end() -> None:
    """The body may end after the finish reason."""
    assert read(*HELLO, STOP).error is None


@pytest.mark.parametrize("events", [HELLO, (), (b"",), (USAGE_ALONE,), ({"type": "ping"},)])
def test_an_end_without_either_is_a_broken_stream(events: tuple[JsonObject, ...]) -> None:
    """Without finish reason and `[DONE]` the reply was cut off; what had arrived stays."""
    outcome = read(*events)
    assert isinstance(outcome.error, StreamError)
    assert outcome.complete is None


def test_done_alone_is_no_reply() -> None:
    """A stream without a single choice is not an empty answer."""
    assert isinstance(read(DONE).error, StreamError)


def test_what_follows_done_is_ignored() -> None:
    """`[DONE]` is the end, even with an error behind it."""
    assert read(*HELLO, STOP, b" [DONE] ", {"error": {"message": "late"}}).error is None


@pytest.mark.parametrize("late", [None, "", "stop"])
def test_a_finish_reason_stays_when_null_follows(late: Json) -> None:
    """The usage chunk behind the end may have a choice with a null or a repeated finish reason."""
    outcome = read(*HELLO, STOP, chunk(late, content="", role="assistant") | {"usage": USAGE}, DONE)
    assert outcome.complete is not None
    assert outcome.complete.raw_stop_reason == "stop"
    assert outcome.usage.output_tokens == 20


@pytest.mark.parametrize(
    "odd",
    [
        {"choices": []},
        {"choices": None},
        {"choices": [None]},
        {"choices": [{"index": 0}]},
        {"choices": [{"index": 0, "delta": None}]},
        {"choices": [{"index": 0, "delta": {"content": None, "tool_calls": None, "refusal": None}}]},
        {"choices": [], "prompt_filter_results": [{}], "id": "", "model": "", "created": 0},
        {"type": "unheard-of", "id": 7, "model": []},
    ],
)
def test_chunks_that_say_nothing_change_nothing(odd: JsonObject) -> None:
    """Choices empty or null, deltas null or missing, unknown objects: at any place."""
    assert read(odd, HELLO[1], odd, HELLO[2], odd, STOP, odd, DONE).text == "Hello ☃"


def test_a_whole_message_in_a_stream() -> None:
    """Fake streams send `message` where `delta` should be."""
    whole: JsonObject = {"choices": [{"message": {"content": "Hi"}, "finish_reason": "stop"}], "usage": USAGE}
    assert read(whole, DONE).text == "Hi"


def test_a_second_answer_is_not_mixed_in() -> None:
    """With n > 1 the choices alternate; the first is the reply."""
    second: JsonObject = {"choices": [{"index": 1, "delta": {"content": "other"}}]}
    assert read(HELLO[1], second, HELLO[2], STOP, DONE).text == "Hello ☃"


def test_a_refusal_is_text_with_its_own_stop_reason() -> None:
    """The model's refusal stands in a field of its own."""
    outcome = read(chunk(content=None, refusal="I can't"), chunk(refusal=" do that."), STOP, DONE)
    assert outcome.text == "I can't do that."
    assert outcome.complete is not None
    assert outcome.complete.stop_reason is StopReason.REFUSAL


# -- usage


@pytest.mark.parametrize(
    "events",
    [
        (STOP, USAGE_ALONE),
        (STOP | {"usage": USAGE},),
        (STOP, chunk(content="") | {"usage": USAGE}),
        (STOP | {"x_groq": {"id": "req_1", "usage": USAGE}},),
        ({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop", "usage": USAGE}]},),
        (chunk() | {"usage": {**USAGE, "completion_tokens": 1}}, STOP | {"usage": USAGE}),
        (STOP | {"usage": USAGE, "x_groq": {"usage": USAGE}}, chunk() | {"usage": None}),
    ],
    ids=["alone", "finish", "after", "groq", "choice", "cumulative", "null-after"],
)
def test_usage_is_found_wherever_it_stands(events: tuple[JsonObject, ...]) -> None:
    """Seven places, one reading: disjoint buckets, and the last report counts."""
    usage = read(*HELLO, *events, DONE).usage
    counts = (usage.input_tokens, usage.cached_input_tokens, usage.cache_creation_input_tokens)
    assert counts == (10, 60, 30)
    assert (usage.output_tokens, usage.reasoning_tokens, usage.source) == (20, 5, UsageSource.REPORTED)


def test_missing_usage_is_estimated_and_said_to_be() -> None:
    """No usage is not zero usage."""
    outcome = read(*HELLO, STOP, DONE)
    assert outcome.usage.estimated
    assert [warning.code for warning in outcome.assembler.warnings] == ["usage_estimated"]


# -- reasoning


@pytest.mark.parametrize(
    "fields",
    [
        ("reasoning_content",),
        ("reasoning",),
        ("reasoning_content", "reasoning"),
    ],
)
def test_reasoning_fields_become_thinking(fields: tuple[str, ...]) -> None:
    """One field, the other, or both with the same words: read once, and closed by the first text."""
    first, second = (dict.fromkeys(fields, part) for part in ("Let me ", "see."))
    outcome = read(chunk(**first), chunk(content=None, **second), chunk(content="42"), STOP, DONE)
    assert [type(block) for block in outcome.content] == [ThinkingBlock, TextBlock]
    assert (outcome.thinking, outcome.text) == ("Let me see.", "42")


def test_reasoning_details_are_kept_whole() -> None:
    """Fragments of one detail are joined again, so that the array can go back unmodified."""
    first: JsonObject = {"type": "reasoning.text", "index": 0, "text": "Let me ", "format": "f"}
    second: JsonObject = {"type": "reasoning.text", "index": 0, "text": "see.", "format": "f"}
    signed: JsonObject = {"type": "reasoning.text", "index": 0, "signature": "c2ln", "format": "f"}
    hidden: JsonObject = {"type": "reasoning.encrypted", "index": 1, "data": "xyz"}
    outcome = read(
        chunk(reasoning="Let me ", reasoning_details=[first]),
        chunk(reasoning="see.", reasoning_details=[second]),
        chunk(reasoning=None, reasoning_details=[signed, hidden]),
        chunk(content="42"),
        STOP,
        DONE,
    )
    block = outcome.content[0]
    assert isinstance(block, ThinkingBlock)
    assert (block.text, block.signature) == ("Let me see.", "c2ln")
    assert block.provider_raw is not None
    joined = {"type": "reasoning.text", "index": 0, "text": "Let me see.", "format": "f", "signature": "c2ln"}
    assert block.provider_raw.data == {"reasoning_details": [joined, hidden]}


def test_reasoning_details_alone_are_read() -> None:
    """Some gateways send no other field."""
    detail: JsonObject = {"type": "reasoning.summary", "summary": "Hmm."}
    assert read(chunk(reasoning_details=[detail]), chunk(content="42"), STOP, DONE).thinking == "Hmm."


def test_thinking_parts_in_a_list_of_content() -> None:
    """Mistral's content is a list of parts, some of them thinking; unknown ones are kept as they are."""
    thinking: Json = {"type": "thinking", "thinking": [{"type": "text", "text": "Let me see."}]}
    text: Json = {"type": "text", "text": "42"}
    reference: Json = {"type": "reference", "reference_ids": [1]}
    outcome = read(chunk(content=[thinking]), chunk(content=[text, reference]), chunk(content="!"), STOP, DONE)
    assert (outcome.thinking, outcome.text) == ("Let me see.", "42!")
    assert [block.kind for block in outcome.content if isinstance(block, OpaqueBlock)] == ["reference"]


TAGGED = Quirks(think_tags="paired")
OPEN = Quirks(think_tags="open")


@pytest.mark.parametrize(
    ("quirks", "said", "thinking", "text"),
    [
        (TAGGED, "<think>\nHmm</think>\n\n42", "\nHmm", "42"),
        (TAGGED, "\n <think>Hmm</think>", "Hmm", ""),
        (TAGGED, "<think>a < b </thin k></think>42", "a < b </thin k>", "42"),
        (TAGGED, "<think>never closed", "never closed", ""),
        (TAGGED, "The tag <think> is text here</think>", "", "The tag <think> is text here</think>"),
        (TAGGED, "<thin", "", "<thin"),
        (OPEN, "Hmm</think>42", "Hmm", "42"),
        (OPEN, "<think>Hmm</think>42", "Hmm", "42"),
        (QUIRKS["default"], "<think>Hmm</think>42", "", "<think>Hmm</think>42"),
    ],
)
def test_think_tags(quirks: Quirks, said: str, thinking: str, text: str) -> None:
    """Tags count at the start of a reply, where the quirks say so; there the first may be missing, too."""
    for size in (1, 3, len(said)):
        deltas = [chunk(content=said[at : at + size]) for at in range(0, len(said), size)]
        outcome = read(*deltas, STOP, DONE, quirks=quirks)
        assert (outcome.thinking, outcome.text) == (thinking, text)


@given(
    st.lists(st.sampled_from(["<think>", "</think>", "<", "think>", "/", "x", " "]), max_size=8), st.integers(1, 5)
)
@settings(max_examples=60, deadline=None)
def test_think_tags_lose_nothing(parts: list[str], size: int) -> None:
    """However a text is cut, the same comes out, and nothing but tags and blank lines is gone."""
    said = "".join(parts)
    results = []
    for step in (size, max(len(said), 1)):
        tags = ThinkTags(opened=False)
        found = [
            pair for at in range(0, len(said), step) for pair in tags.feed(said[at : at + step])
        ] + tags.flush()
        results.append(["".join(text for thought, text in found if thought is kind) for kind in (True, False)])
    assert results[0] == results[1]
    kept = "".join(results[0]).replace(" ", "")
    assert kept in (
        said.replace(" ", ""),
        said.replace(" ", "").replace("<think>", "", 1).replace("</think>", "", 1),
    )


def test_gemini_signatures_are_kept() -> None:
    """The signature of a message, and that of a call, come with it for its way back."""
    google: Json = {"google": {"thought_signature": "c2ln"}}
    fragment = tool(None, "", arguments="{}") | {"extra_content": google}
    outcome = read(chunk(extra_content=google), tools(fragment), STOP, DONE)
    first, second = outcome.content
    assert isinstance(first, ThinkingBlock)
    assert first.signature == "c2ln"
    assert isinstance(second, ToolUseBlock)
    assert second.provider_raw is not None
    assert second.provider_raw.data == {"id": "", "extra_content": google}


# -- tool calls


def test_arguments_are_passed_on_as_they_come() -> None:
    """Fragments are the provider's, byte for byte, and the call ends with the object they make."""
    outcome = read(tools(tool()), more('{"at"'), more(": 1}"), chunk("tool_calls"), DONE)
    assert [event.partial_json for event in outcome.events if isinstance(event, ToolUseInputDelta)] == [
        '{"at"',
        ": 1}",
    ]
    assert outcome.calls == [("call_1", "look", {"at": 1})]
    assert outcome.complete is not None
    assert outcome.complete.stop_reason is StopReason.TOOL_USE


def two(first: JsonObject, *events: JsonObject) -> list[tuple[Json, str, JsonObject]]:
    return read(first, *events, chunk("tool_calls"), DONE).calls


@pytest.mark.parametrize(
    "events",
    [
        (tools(tool(0, "call_1")), more('{"at":1}'), tools(tool(1, "call_2", "hear")), more('{"to":2}', 1)),
        (tools(tool(0, "call_1"), tool(1, "call_2", "hear")), more('{"at":1}'), more('{"to":2}', 1)),
        (tools(tool(1, "call_1")), more('{"at":1}', 1), tools(tool(2, "call_2", "hear")), more('{"to":2}', 2)),
        (tools(tool(0, "call_1")), more('{"at":1}'), tools(tool(0, "call_2", "hear")), more('{"to":2}')),
        (tools(tool(None, "call_1", arguments='{"at":1}'), tool(None, "call_2", "hear", '{"to":2}')),),
        (tools(tool(None, "call_1")), more('{"at":1}', None), tools(tool(None, "call_2", "hear", '{"to":2}'))),
        (
            tools(tool(None, "call_1"), tool(None, "call_2", "hear")),
            tools(tool(None, None, None, '{"at":1}'), tool(None, None, None, '{"to":2}')),
        ),
        (
            tools(tool(0, "call_1"), tool(1, "call_2", "hear")),
            more('{"to"', 1),
            more('{"at"'),
            more(":2}", 1),
            more(":1}"),
        ),
        (tools(tool("0", "call_1", arguments='{"at":1}'), tool("1", "call_2", "hear", '{"to":2}')),),
        (
            tools(tool(None, "call_1"), tool(None, "call_2", "hear")),
            tools(tool(None, "call_1", None, '{"at":1}')),
            tools(tool(None, "call_2", None, '{"to":2}')),
        ),
    ],
    ids=[
        "one-after-the-other",
        "both-begin-first",
        "index-from-1",
        "index-0-for-all",
        "whole-without-index",
        "last-without-index",
        "position-without-index",
        "interleaved",
        "index-as-text",
        "id-without-index",
    ],
)
def test_two_calls_are_told_apart(events: tuple[JsonObject, ...]) -> None:
    """Whatever index and id do, each fragment finds its call."""
    assert two(*events) == BOTH


@pytest.mark.parametrize(
    "second",
    [
        tool(0, "call_1", None, "1}"),
        tool(0, "call_1", "look", "1}"),
        tool(0, "", "", "1}"),
        tool(0, "call_9", None, "1}"),
        tool(0, None, "look", "1}"),
        tool(None, None, None, "1}"),
        tool(None, "call_1", "look", "1}"),
        tool(None, None, "look", "1}"),
    ],
    ids=[
        "id-repeated",
        "id-and-name",
        "empty",
        "new-id-each-chunk",
        "name-repeated",
        "no-index",
        "id-and-name-no-index",
        "name-only",
    ],
)
def test_a_continuation_is_no_new_call(second: JsonObject) -> None:
    """Servers repeat, empty, drop and renew what a continuation doesn't need."""
    outcome = read(tools(tool(arguments='{"at":')), tools(second), chunk("tool_calls"), DONE)
    assert outcome.calls == [("call_1", "look", {"at": 1})]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [('{"at":1}', {"at": 1}), ({"at": 1}, {"at": 1}), (None, {}), ("", {}), ({}, {}), (" {} ", {})],
)
def test_arguments_whole_or_missing(arguments: Json, expected: JsonObject) -> None:
    """Arguments come whole, as an object, null, empty, or not at all."""
    outcome = read(tools(tool(arguments=arguments)), chunk("tool_calls"), DONE)
    assert outcome.calls == [("call_1", "look", expected)]


def test_a_trailing_repeat_of_the_arguments_is_dropped() -> None:
    """Some gateways say the whole arguments again with the finish reason."""
    repeat = tools(tool(0, "call_1", None, '{"at":1}'))
    assert read(tools(tool()), more('{"at":1}'), repeat, chunk("tool_calls"), DONE).calls == BOTH[:1]


def test_a_name_may_come_after_the_id() -> None:
    """A call begins when its name is known; what came before waits, and a late id counts."""
    outcome = read(tools(tool(0, None, None, '{"at":')), tools(tool(0, "call_1", "look", "1}")), STOP, DONE)
    assert outcome.calls == [("call_1", "look", {"at": 1})]


def test_a_call_without_any_name_is_dropped_with_a_warning() -> None:
    """Nobody could execute it."""
    outcome = read(tools(tool(0, "call_1", None, "{}")), STOP, USAGE_ALONE, DONE)
    assert outcome.content == ()
    assert [warning.code for warning in outcome.assembler.warnings] == ["nameless_tool_call"]


@pytest.mark.parametrize("arguments", ['{"at":', "[1]", "look!", [1], 7, '{"at":1}{"at":2}'])
def test_arguments_that_are_no_object_are_never_executed(arguments: Json) -> None:
    """The call is kept with its text, and marked."""
    (block,) = read(tools(tool(arguments=arguments)), chunk("tool_calls"), DONE).content
    assert isinstance(block, ToolUseBlock)
    assert block.incomplete
    assert block.input == {}
    assert block.raw_arguments


def test_a_call_cut_off_at_the_limit_is_marked() -> None:
    """`length` wins over the calls, and the last of them can't be trusted."""
    outcome = read(tools(tool()), more('{"at":1}'), chunk("length"), DONE)
    (block,) = outcome.content
    assert isinstance(block, ToolUseBlock)
    assert block.incomplete
    assert outcome.complete is not None
    assert outcome.complete.stop_reason is StopReason.MAX_TOKENS


def test_the_older_function_call_is_a_tool_call() -> None:
    """One server still sends it; an empty one, which others add, is nothing."""
    empty: Json = {"name": "", "arguments": ""}
    assert read(chunk(content="Hi", function_call=empty), STOP, DONE).calls == []
    begun: Json = {"name": "look", "arguments": '{"at":'}
    rest: Json = {"arguments": "1}"}
    outcome = read(chunk(function_call=begun), chunk(function_call=rest), chunk("function_call"), DONE)
    assert outcome.calls == [("", "look", {"at": 1})]


@pytest.mark.parametrize("finish", ["stop", "tool_calls", "eos_token", "end_turn"])
def test_calls_decide_the_stop_reason(finish: Json) -> None:
    """A reply with calls that ends well stops for them, whichever word says so; without calls it does not."""
    with_call = read(tools(tool(arguments="{}")), chunk(finish), DONE).complete
    assert with_call is not None
    assert with_call.stop_reason is StopReason.TOOL_USE
    without = read(*HELLO, chunk("tool_calls"), DONE).complete
    assert without is not None
    assert without.stop_reason is StopReason.END_TURN


def test_media_are_kept_as_opaque_blocks() -> None:
    """What models paint and say has no block of its own, and isn't lost."""
    image: Json = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}
    outcome = read(chunk(content="Look:", images=[image], audio={"data": ""}), STOP, DONE)
    assert [type(block) for block in outcome.content] == [TextBlock, OpaqueBlock]


# -- errors inside a stream


@pytest.mark.parametrize(
    ("event", "kind"),
    [
        ({"error": {"message": "no", "type": "server_error", "code": None}}, ServerError),
        ({"error": {"message": "Token limit reached", "code": 400}}, InvalidRequestError),
        ({"error": "it broke"}, AdapterError),
        ({"error": {"message": "busy", "type": "overloaded_error"}}, OverloadedError),
        ({"error": {"message": "This model's maximum context length is 10 tokens"}}, ContextOverflowError),
        ({"object": "error", "message": "bad", "type": "BadRequestError", "code": 400}, InvalidRequestError),
        ({"choices": [{"index": 0, "error": {"code": 502, "message": "upstream"}}]}, ServerError),
        (chunk("error") | {"error": {"code": 503, "message": "gone"}}, ServerError),
        (b"{not json", StreamError),
        (b"[1]", StreamError),
        (b'{"choices": 7}', StreamError),
        (b"[" * 100_000, StreamError),
    ],
)
def test_an_error_ends_the_stream_and_keeps_what_came_before(
    event: JsonObject | bytes, kind: type[AdapterError]
) -> None:
    """An error chunk at status 200 is a failure of its class; `[DONE]` behind it changes nothing."""
    outcome = read(*HELLO, event, DONE)
    assert type(outcome.error) is kind
    assert "".join(event.text for event in outcome.events if isinstance(event, TextDelta)) == "Hello ☃"
    assert outcome.complete is None


def test_an_error_event_without_done() -> None:
    """Groq names the event, gives the status in the body and sends no `[DONE]`."""
    error = b'event: error\ndata: {"error":{"message":"no tool","code":"tool_use_failed","status_code":400}}\n\n'
    outcome = read(raw=body(HELLO) + error)
    assert isinstance(outcome.error, InvalidRequestError)
    assert outcome.error.provider_code == "tool_use_failed"


def test_an_error_chunk_may_carry_the_usage() -> None:
    """What the failed reply cost is known, and stays known."""
    outcome = read(*HELLO, chunk() | {"error": {"code": 400, "message": "no"}, "usage": USAGE}, DONE)
    outcome.assembler.abort(StopReason.ERROR)
    assert outcome.assembler.usage is not None
    assert (outcome.assembler.usage.output_tokens, outcome.assembler.usage.source) == (20, UsageSource.PARTIAL)


def test_half_surrogate_pairs_don_t_break_a_stream() -> None:
    """A proxy that cuts by UTF-16 units leaves halves; each is replaced."""
    outcome = read(b'{"choices":[{"delta":{"content":"a\\ud83d b"}}]}', STOP, DONE)
    assert outcome.text == "a\ufffd b"


# -- however it is cut

EVERYTHING = (
    chunk(reasoning="Let me see \U0001f600"),
    *HELLO,
    tools(tool(0, "call_1"), tool(1, "call_2", "hear")),
    more('{"at":"☃"}'),
    more('{"to":2}', 1),
    chunk("tool_calls"),
    USAGE_ALONE,
    DONE,
)


@given(st.lists(st.integers(0, 2000), max_size=20), st.sampled_from([b"\n", b"\r\n", b"\r"]))
@settings(max_examples=40, deadline=None)
def test_cuts_change_nothing(cuts: list[int], line_end: bytes) -> None:
    """A body gives the same events in whatever pieces it arrives, inside characters and line ends too."""
    data = body(EVERYTHING, line_end=line_end)
    assert read_pieces(pieces(data, cuts)).events == read_pieces([body(EVERYTHING)]).events


@given(st.integers(0, 2000))
@settings(max_examples=40, deadline=None)
def test_a_stream_cut_short_never_succeeds(length: int) -> None:
    """Until its finish reason has arrived, a stream that ends has failed."""
    data = body(EVERYTHING)
    whole_from = data.index(b'"tool_calls"}')
    outcome = read_pieces([data[:length]])
    if length < whole_from:
        assert isinstance(outcome.error, StreamError)
