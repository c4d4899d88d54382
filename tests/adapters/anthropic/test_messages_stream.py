"""Streamed replies. Every vector is written by hand from wire facts, and read in every way that `read` knows."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bus.errors import (
    AdapterError,
    ContextOverflowError,
    InvalidRequestError,
    OverloadedError,
    QuotaExceededError,
    RateLimitError,
    ServerError,
    StreamError,
)
from bus.streams.events import MessageStart, TextDelta, ThinkingDelta, ToolUseInputDelta, ToolUseStart
from bus.values.content import (
    OpaqueBlock,
    ProviderRaw,
    RedactedThinkingBlock,
    TextBlock,
    ThinkingBlock,
    ToolUseBlock,
)
from bus.values.json import JsonObject
from bus.values.usage import StopReason, UsageSource

from ...support.fake_http import pieces
from ...support.invariants import check_stream
from ...support.readings import Reading, without_raw
from .wire_events import (
    ESTIMATE,
    PING,
    START_USAGE,
    body,
    delta,
    ending,
    event,
    message_start,
    read,
    read_pieces,
    read_whole,
    start,
    stop,
    text,
    tool,
)


def calls(reading: Reading) -> list[tuple[str, object, object]]:
    blocks = [block for block in reading.content if isinstance(block, ToolUseBlock)]
    return [(block.name, block.input, block.provider_raw and block.provider_raw.data["id"]) for block in blocks]


def test_text_comes_as_it_arrives() -> None:
    """Each text delta is one event, and the end holds them all."""
    reading = read(message_start(), *text(0, "Hel", "lo ", "☃😀"), *ending())
    assert reading.content == (TextBlock("Hello ☃😀"),)
    assert reading.complete.stop_reason is StopReason.END_TURN
    assert [item.text for item in reading.events if isinstance(item, TextDelta)] == ["Hel", "lo ", "☃😀"]
    assert reading.events[0] == MessageStart("msg", "claude-test", "anthropic")
    assert reading.assembler.response_id == "msg_1"
    assert reading.warnings == []


def test_pings_are_nothing() -> None:
    """A ping may come anywhere, even between deltas, and is never seen."""
    once = text(0, "a", "b")
    reading = read(PING, message_start(), PING, once[0], PING, once[1], PING, PING, once[2], once[3], *ending())
    assert reading.content == (TextBlock("ab"),)
    assert reading.warnings == []


def test_two_parallel_tool_calls_are_two_blocks() -> None:
    """Calls keep their provider's ids and get their arguments from the joined fragments."""
    reading = read(
        message_start(),
        *text(0, "Let me look."),
        *tool(1, "get_weather", "toolu_1", '{"city": "Pa', 'ris"}'),
        *tool(2, "get_time", "toolu_2", '{"zone": ["CET", 1, null, true, {"x": 1.5}]}'),
        *ending("tool_use"),
    )
    assert calls(reading) == [
        ("get_weather", {"city": "Paris"}, "toolu_1"),
        ("get_time", {"zone": ["CET", 1, None, True, {"x": 1.5}]}, "toolu_2"),
    ]
    assert reading.complete.stop_reason is StopReason.TOOL_USE
    fragments = [item.partial_json for item in reading.events if isinstance(item, ToolUseInputDelta)]
    assert fragments[:2] == ['{"city": "Pa', 'ris"}']


@pytest.mark.parametrize("fragments", [(), ("",), ("", "")])
def test_a_tool_without_arguments_gets_an_empty_object(fragments: tuple[str, ...]) -> None:
    """Only the empty fragment comes, or no delta at all."""
    deltas = [delta(0, "input_json_delta", partial_json=fragment) for fragment in fragments]
    reading = read(
        message_start(),
        start(0, "tool_use", id="toolu_1", name="now", input={}),
        *deltas,
        stop(0),
        *ending("tool_use"),
    )
    assert calls(reading) == [("now", {}, "toolu_1")]
    assert not isinstance(reading.content[0], ToolUseBlock) or not reading.content[0].incomplete


def test_input_in_a_tools_start_counts_where_no_fragment_comes() -> None:
    """Calls made by code carry their whole input in the start, and no deltas."""
    caller: JsonObject = {"type": "code_execution_20250825", "tool_id": "srvtoolu_1"}
    reading = read(
        message_start(),
        start(0, "tool_use", id="toolu_1", name="query", input={"sql": "select 1"}, caller=caller),
        stop(0),
        *ending("tool_use"),
    )
    assert calls(reading) == [("query", {"sql": "select 1"}, "toolu_1")]
    block = reading.content[0]
    assert isinstance(block, ToolUseBlock)
    assert block.provider_raw is not None
    assert block.provider_raw.data["caller"] == caller


def test_fragments_replace_the_input_of_a_tools_start() -> None:
    """A server that sends both means the same call, not two inputs."""
    reading = read(
        message_start(),
        start(0, "tool_use", id="toolu_1", name="f", input={"old": 1}),
        delta(0, "input_json_delta", partial_json='{"new": 2}'),
        stop(0),
        *ending("tool_use"),
    )
    assert calls(reading) == [("f", {"new": 2}, "toolu_1")]


def test_arguments_that_are_no_object_make_the_call_incomplete() -> None:
    """What doesn't parse is kept as text and never becomes an empty call."""
    reading = read(message_start(), *tool(0, "f", "toolu_1", '{"a": 1,, }'), *ending("tool_use"))
    block = reading.content[0]
    assert isinstance(block, ToolUseBlock)
    assert (block.incomplete, block.raw_arguments, block.input) == (True, '{"a": 1,, }', {})


def test_a_call_cut_off_at_the_token_limit_is_incomplete() -> None:
    """Even if what there is happens to be an object, the last call may lack its end."""
    reading = read(message_start(), *tool(0, "f", "toolu_1", '{"a": 1}'), *ending("max_tokens"))
    block = reading.content[0]
    assert isinstance(block, ToolUseBlock)
    assert block.incomplete
    assert reading.complete.stop_reason is StopReason.MAX_TOKENS


def test_thinking_is_signed_by_its_last_delta() -> None:
    """The signature stands on the block, and on the last event of it."""
    reading = read(
        message_start(),
        start(0, "thinking", thinking="", signature=""),
        delta(0, "thinking_delta", thinking="Hm", estimated_tokens=3),
        delta(0, "thinking_delta", thinking="m."),
        delta(0, "signature_delta", signature="c2ln"),
        stop(0),
        *text(1, "Two"),
        *ending(),
    )
    assert reading.content == (
        ThinkingBlock("Hmm.", "c2ln", ProviderRaw("anthropic", {}, "claude-test")),
        TextBlock("Two"),
    )
    deltas = [item for item in reading.events if isinstance(item, ThinkingDelta)]
    assert [(item.text, item.signature) for item in deltas] == [("Hm", None), ("m.", None), ("", "c2ln")]


def test_omitted_thinking_is_kept_for_its_signature() -> None:
    """A block that shows nothing must still go back."""
    reading = read(
        message_start(),
        start(0, "thinking", thinking="", signature=""),
        delta(0, "signature_delta", signature="c2ln"),
        stop(0),
        *text(1, "Two"),
        *ending(),
    )
    assert reading.content[0] == ThinkingBlock("", "c2ln", ProviderRaw("anthropic", {}, "claude-test"))


def test_redacted_thinking_is_whole_in_its_start() -> None:
    """Hidden reasoning has no deltas."""
    reading = read(
        message_start(), start(0, "redacted_thinking", data="ZGF0YQ"), stop(0), *text(1, "a"), *ending()
    )
    block = reading.content[0]
    assert isinstance(block, RedactedThinkingBlock)
    assert block.data == "ZGF0YQ"


def test_citations_may_come_before_their_text() -> None:
    """They are attached to the text, whenever they come, and open no block by themselves."""
    cited: JsonObject = {"type": "char_location", "cited_text": "x", "document_index": 0}
    reading = read(
        message_start(),
        start(0, "text", text="", citations=[]),
        delta(0, "citations_delta", citation=cited),
        delta(0, "text_delta", text="x it is"),
        delta(0, "citations_delta", citation={**cited, "cited_text": "y"}),
        stop(0),
        *text(1, "plain"),
        *ending(),
    )
    first, second = reading.content
    assert isinstance(first, TextBlock)
    assert first.provider_raw is not None
    assert first.provider_raw.data == {"citations": [cited, {**cited, "cited_text": "y"}]}
    assert second == TextBlock("plain")


def test_server_tools_and_their_results_are_kept_word_for_word() -> None:
    """A server tool's input is put together from its fragments; its result is whole in its start."""
    found: JsonObject = {"type": "web_search_result", "url": "https://x.test", "page_age": None}
    reading = read(
        message_start(),
        start(0, "server_tool_use", id="srvtoolu_1", name="web_search", input={}),
        delta(0, "input_json_delta", partial_json=""),
        delta(0, "input_json_delta", partial_json='{"query": "c'),
        delta(0, "input_json_delta", partial_json='allboard"}'),
        stop(0),
        start(1, "web_search_tool_result", tool_use_id="srvtoolu_1", content=[found], caller=None),
        stop(1),
        *text(2, "Found."),
        *ending(),
    )
    call, result, _ = reading.content
    assert isinstance(call, OpaqueBlock)
    assert isinstance(result, OpaqueBlock)
    assert (call.kind, result.kind) == ("server_tool_use", "web_search_tool_result")
    assert call.provider_raw.data["input"] == {"query": "callboard"}
    assert result.provider_raw.data["content"] == [found]


def test_a_compaction_gets_its_content_from_its_delta() -> None:
    """The block begins with null content."""
    reading = read(
        message_start(),
        start(0, "compaction", content=None),
        delta(0, "compaction_delta", content="So far: nothing."),
        stop(0),
        *text(1, "Hello"),
        *ending(),
    )
    block = reading.content[0]
    assert isinstance(block, OpaqueBlock)
    assert block.provider_raw.data == {"type": "compaction", "content": "So far: nothing."}


def test_blocks_and_deltas_of_the_future_are_kept_and_never_fatal() -> None:
    """An unknown block survives with what its deltas add; unknown deltas and events are reported."""
    reading = read(
        message_start(),
        event("weather_report", delta=["odd", "shape"], index="north"),
        start(0, "hologram", parts=["a"], caption="c", depth=1),
        delta(0, "hologram_delta", parts=["b"], caption="d", depth=2, extra=None),
        stop(0),
        start(1, "text", text=""),
        delta(1, "emphasis_delta", strength=9),
        delta(1, "text_delta", text="Hello"),
        stop(1),
        *ending(),
    )
    assert reading.content == (
        OpaqueBlock(
            "hologram",
            ProviderRaw(
                "anthropic",
                {"type": "hologram", "parts": ["a", "b"], "caption": "cd", "depth": 2},
                "claude-test",
            ),
        ),
        TextBlock("Hello"),
    )
    assert reading.warnings == ["unknown_event", "unknown_delta"]


def test_blocks_that_start_before_their_predecessor_stopped_do_not_mix() -> None:
    """llama.cpp stops all blocks at the end; text still streams, and calls come one after the other."""
    reading = read(
        message_start({"input_tokens": 30, "output_tokens": 0, "cache_read_input_tokens": 2}),
        start(0, "thinking", thinking=""),
        delta(0, "thinking_delta", thinking="Hm"),
        start(1, "text", text=""),
        delta(1, "text_delta", text="Both:"),
        start(2, "tool_use", id="a", name="f"),
        delta(2, "input_json_delta", partial_json='{"x":'),
        delta(2, "input_json_delta", partial_json="1}"),
        start(3, "tool_use", id="b", name="g"),
        delta(3, "input_json_delta", partial_json='{"y":2}'),
        delta(0, "signature_delta", signature=""),
        stop(0),
        stop(1),
        stop(2),
        stop(3),
        *ending("tool_use", usage={"output_tokens": 9}),
    )
    assert [block.__struct_config__.tag for block in reading.content] == [
        "thinking",
        "text",
        "tool_use",
        "tool_use",
    ]
    assert calls(reading) == [("f", {"x": 1}, "a"), ("g", {"y": 2}, "b")]
    usage = reading.complete.usage
    assert (usage.input_tokens, usage.cached_input_tokens, usage.output_tokens) == (30, 2, 9)
    assert usage.source is UsageSource.REPORTED
    assert reading.warnings == []


def test_text_is_shown_before_a_stop_that_comes_late() -> None:
    """A later block's start ends text, so nothing that was written is held back to the message's end."""
    streamed = body(
        [
            message_start(),
            start(0, "text", text=""),
            delta(0, "text_delta", text="a"),
            start(1, "tool_use", id="t", name="f"),
        ]
    )
    events = read_pieces([streamed]).events
    assert [type(item) for item in events] == [MessageStart, TextDelta, ToolUseStart]


def test_interleaved_arguments_reach_their_own_call() -> None:
    """Fragments are found by index, never by what is current."""
    reading = read(
        message_start(),
        start(0, "tool_use", id="a", name="f", input={}),
        start(1, "tool_use", id="b", name="g", input={}),
        delta(0, "input_json_delta", partial_json='{"x"'),
        delta(1, "input_json_delta", partial_json='{"y"'),
        delta(0, "input_json_delta", partial_json=":1}"),
        delta(1, "input_json_delta", partial_json=":2}"),
        stop(1),
        stop(0),
        *ending("tool_use"),
    )
    assert calls(reading) == [("f", {"x": 1}, "a"), ("g", {"y": 2}, "b")]


def test_a_signature_after_its_reasoning_ended_is_dropped_and_reported() -> None:
    """It can't be put on a block that is delivered, and alone it would be worthless."""
    reading = read(
        message_start(),
        start(0, "thinking", thinking=""),
        delta(0, "thinking_delta", thinking="Hm"),
        start(1, "text", text=""),
        delta(1, "text_delta", text="a"),
        delta(0, "signature_delta", signature="late"),
        *ending(),
    )
    assert [block.__struct_config__.tag for block in reading.content] == ["thinking", "text"]
    assert reading.warnings == ["late_signature"]


def test_content_inside_message_start_is_content() -> None:
    """A whole call can stand there, and gets no events of its own."""
    call: JsonObject = {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {"a": 1}}
    reading = read(message_start(content=[{"type": "text", "text": "First"}, call]), *ending("tool_use"))
    assert reading.content[0] == TextBlock("First")
    assert calls(reading) == [("f", {"a": 1}, "toolu_1")]


def test_a_repeated_message_start_before_content_is_a_reset() -> None:
    """Some proxies send it twice; the later one counts."""
    reading = read(message_start(id="msg_0", model="other"), message_start(), *text(0, "a"), *ending())
    assert reading.assembler.response_id == "msg_1"
    assert reading.assembler.model == "claude-test"
    assert reading.complete.usage.input_tokens == 20


def test_a_repeated_message_start_after_content_is_ignored() -> None:
    """What was delivered can't be taken back."""
    reading = read(message_start(), *text(0, "a"), message_start({"input_tokens": 9}), *text(1, "b"), *ending())
    assert reading.complete.usage.input_tokens == 20
    assert reading.content == (TextBlock("a"), TextBlock("b"))
    assert reading.warnings == ["repeated_start"]


def test_missing_events_are_made_up_for() -> None:
    """Without message_start, block starts, stops and indexes, what was said is still read."""
    reading = read(
        event("content_block_delta", delta={"type": "thinking_delta", "thinking": "Hm"}),
        event("content_block_stop"),
        event("content_block_delta", index=4, delta={"type": "text_delta", "text": "a"}),
        event("content_block_delta", delta={"type": "text_delta", "text": "b"}),
        event("content_block_delta", index=5, delta={"type": "input_json_delta", "partial_json": "{}"}),
        event("content_block_delta", index=4),
        event("content_block_start", content_block={"type": "tool_use", "name": "f"}),
        event("message_delta"),
        event("message_stop"),
    )
    assert [block.__struct_config__.tag for block in reading.content] == ["thinking", "text", "tool_use"]
    assert reading.content[1] == TextBlock("ab")
    assert reading.complete.stop_reason is StopReason.PROVIDER_SPECIFIC
    assert reading.complete.usage == ESTIMATE
    assert reading.warnings == ["stray_delta", "no_stop_reason", "usage_estimated"]


def test_null_fields_are_as_good_as_absent() -> None:
    """Null deltas, texts, fragments and usage change nothing."""
    reading = read(
        message_start(None, content=None),
        start(0, "text", text=None),
        delta(0, "text_delta", text=None),
        event("content_block_delta", index=0, delta=None),
        delta(0, "text_delta", text="a"),
        delta(0, "citations_delta", citation=None),
        stop(0),
        start(1, "tool_use", id="t", name="f", input=None),
        delta(1, "input_json_delta", partial_json=None),
        stop(1),
        event("message_delta", delta={"stop_reason": "tool_use"}, usage=None),
        event("message_stop"),
    )
    assert reading.content[0] == TextBlock("a")
    assert calls(reading) == [("f", {}, "t")]
    assert reading.complete.usage.estimated


def test_deltas_in_a_block_of_another_kind_are_shown_all_the_same() -> None:
    """Nothing that a server writes is lost for standing in the wrong place."""
    reading = read(
        message_start(),
        start(0, "tool_use", id="t", name="f", input={}),
        delta(0, "input_json_delta", partial_json="{}"),
        delta(0, "text_delta", text="psst"),
        stop(0),
        start(1, "text", text=""),
        delta(1, "thinking_delta", thinking="hm"),
        delta(1, "text_delta", text="a"),
        stop(1),
        *ending("tool_use"),
    )
    complete = reading.complete
    assert [block.text for block in complete.final_content if isinstance(block, TextBlock)] == ["psst", "a"]
    assert [block.text for block in complete.final_content if isinstance(block, ThinkingBlock)] == ["hm"]


def test_later_usage_replaces_earlier_usage_field_by_field() -> None:
    """Input may grow and cache reads may shrink; nulls replace nothing, and nothing adds up."""
    first: JsonObject = {
        **START_USAGE,
        "input_tokens": 2068,
        "cache_read_input_tokens": 55096,
        "cache_creation_input_tokens": 30,
        "cache_creation": {"ephemeral_5m_input_tokens": 20, "ephemeral_1h_input_tokens": 10},
    }
    last: JsonObject = {
        "input_tokens": 22397,
        "cache_read_input_tokens": 0,
        "cache_creation_input_tokens": None,
        "output_tokens": 50,
        "output_tokens_details": {"thinking_tokens": 12},
        "server_tool_use": {"web_search_requests": 1},
    }
    usage = read(message_start(first), *text(0, "a"), *ending(usage=last)).complete.usage
    assert (usage.input_tokens, usage.cached_input_tokens, usage.output_tokens) == (22397, 0, 50)
    assert (usage.cache_creation_input_tokens, usage.cache_creation_1h_input_tokens) == (30, 10)
    assert usage.reasoning_tokens == 12
    assert usage.raw is not None
    raw = msgspec.json.decode(usage.raw)
    assert raw["server_tool_use"] == {"web_search_requests": 1}
    assert (raw["cache_creation_input_tokens"], raw["service_tier"]) == (30, "standard")


def test_usage_without_a_final_output_count_is_partial() -> None:
    """What message_start says of the output is a placeholder."""
    reading = read(message_start(), *text(0, "a"), *ending(usage={}))
    assert reading.complete.usage.source is UsageSource.PARTIAL


def test_a_call_that_stops_early_has_the_usage_of_its_start() -> None:
    """A cancelled call is priced too."""
    reading = read_pieces([body([message_start(), start(0, "text"), delta(0, "text_delta", text="a")])])
    assert reading.assembler.usage is not None
    assert reading.assembler.usage.input_tokens == 20


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        ({"type": "overloaded_error", "message": "Overloaded"}, OverloadedError),
        ({"type": "api_error", "message": "Internal server error"}, ServerError),
        ({"type": "rate_limit_error", "message": "slow down"}, RateLimitError),
        ({"type": "invalid_request_error", "message": "prompt is too long: 9 tokens > 8"}, ContextOverflowError),
        ({"type": "invalid_request_error", "message": "messages.0: no"}, InvalidRequestError),
        (
            {"type": "rate_limit_error", "details": {"error_code": "enforced_spend_limit_reached"}},
            QuotaExceededError,
        ),
        ({"type": "brand_new_error", "message": "?"}, AdapterError),
        ("just words", AdapterError),
    ],
)
def test_an_error_inside_a_stream_is_classified_without_a_status(
    said: JsonObject | str, kind: type[AdapterError]
) -> None:
    """It ends the stream after the events before it."""
    reading = read(message_start(), *text(0, "a")[:2], event("error", error=said, request_id="req_9"), *ending())
    assert type(reading.error) is kind
    assert reading.error.provider_status is None
    assert reading.error.provider_request_id == "req_9"
    assert [item.text for item in reading.events if isinstance(item, TextDelta)] == ["a"]


def test_an_error_without_a_type_is_still_an_error() -> None:
    """Proxies send the inner object alone."""
    reading = read(message_start(), event("", error={"type": "overloaded_error", "message": "busy"}))
    assert type(reading.error) is OverloadedError


@pytest.mark.parametrize("missing", [1, 2])
def test_a_body_that_ends_before_message_stop_is_an_error(missing: int) -> None:
    """Even the stop reason is no proof that all came."""
    events = [message_start(), *text(0, "a"), *ending()]
    assert isinstance(read(*events[:-missing]).error, StreamError)


def test_what_follows_message_stop_is_ignored() -> None:
    """Proxies append other protocols' ends, and more."""
    reading = read(message_start(), *text(0, "a"), *ending(), b"[DONE]", b"not json", event("error", error={}))
    assert reading.content == (TextBlock("a"),)


def test_done_before_the_end_is_ignored() -> None:
    """`[DONE]` belongs to another protocol and says nothing here."""
    assert read(message_start(), *text(0, "a"), b" [DONE] ", *ending()).content == (TextBlock("a"),)


@pytest.mark.parametrize(
    "data", [b"{", b"[]", b"7", b"<html>", b"\xff", b'{"type":"content_block_delta","delta":7}', b"[" * 100_000]
)
def test_what_is_no_event_ends_the_stream_in_a_stream_error(data: bytes) -> None:
    """Whatever a server sends, nothing but an AdapterError comes of it."""
    reading = read_pieces([body([message_start(), data, *ending()])])
    assert isinstance(reading.error, StreamError)


def test_a_refusal_may_be_empty() -> None:
    """It is a reply without content; why it was refused is a warning."""
    details: JsonObject = {"type": "refusal", "category": "bio", "explanation": "Not that."}
    reading = read(message_start(), *ending("refusal", stop_details=details))
    assert reading.content == ()
    assert reading.complete.stop_reason is StopReason.REFUSAL
    assert [(warning.code, warning.message) for warning in reading.assembler.warnings] == [
        ("refusal", "bio: Not that.")
    ]


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        ("end_turn", StopReason.END_TURN),
        ("max_tokens", StopReason.MAX_TOKENS),
        ("stop", StopReason.END_TURN),
        ("length", StopReason.MAX_TOKENS),
        ("tool_calls", StopReason.TOOL_USE),
        ("content_filter", StopReason.CONTENT_FILTER),
        ("stop_sequence", StopReason.STOP_SEQUENCE),
        ("tool_use", StopReason.TOOL_USE),
        ("pause_turn", StopReason.PAUSE_TURN),
        ("refusal", StopReason.REFUSAL),
        ("model_context_window_exceeded", StopReason.MAX_TOKENS),
        ("compaction", StopReason.PROVIDER_SPECIFIC),
        ("sensitive", StopReason.PROVIDER_SPECIFIC),
        (None, StopReason.PROVIDER_SPECIFIC),
    ],
)
def test_every_stop_reason_is_kept_beside_its_portable_form(raw: str | None, reason: StopReason) -> None:
    """An unknown or missing one is never taken for a regular end."""
    complete = read(message_start(), *text(0, "a"), *ending(raw)).complete
    assert (complete.stop_reason, complete.raw_stop_reason) == (reason, raw)


_EVERYTHING = body(
    [
        message_start(),
        start(0, "thinking", thinking="", signature=""),
        PING,
        delta(0, "thinking_delta", thinking="Hm\u2028☃"),
        delta(0, "signature_delta", signature="c2ln"),
        stop(0),
        start(1, "redacted_thinking", data="ZGF0YQ"),
        stop(1),
        *text(2, "é", "😀"),
        start(3, "server_tool_use", id="srvtoolu_1", name="web_search", input={}),
        delta(3, "input_json_delta", partial_json='{"q": "x"}'),
        stop(3),
        *tool(4, "f", "toolu_1", '{"a"', ": [1, 2]}"),
        *ending("tool_use"),
    ]
)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, len(_EVERYTHING)), max_size=30))
def test_the_same_reply_however_the_network_cuts_it(cuts: list[int]) -> None:
    """Pieces may end anywhere: inside a line, a character, a line end."""
    assert without_raw(read_pieces(pieces(_EVERYTHING, cuts)).events) == without_raw(
        read_pieces([_EVERYTHING]).events
    )


@settings(max_examples=60, deadline=None)
@given(st.integers(0, len(_EVERYTHING) - 1), st.binary(min_size=1, max_size=4))
def test_a_damaged_stream_never_raises_and_keeps_the_invariants(at: int, junk: bytes) -> None:
    """The normaliser reports a StreamError or reads on; what it emits stays in order."""
    reading = read_pieces([_EVERYTHING[:at] + junk + _EVERYTHING[at + len(junk) :]])
    if reading.error is None:
        check_stream(reading.events)
    else:
        reading.assembler.abort(StopReason.ERROR)
        check_stream([*reading.events, *reading.assembler.take()])


CONTAINER: JsonObject = {"id": "container_1", "expires_at": "2026-01-01T00:00:00Z"}


@pytest.mark.parametrize(("reason", "kept"), [("tool_use", True), ("pause_turn", True), ("end_turn", False)])
def test_the_container_of_a_reply_that_will_go_on_is_kept(reason: str, kept: bool) -> None:
    """In which its tools wait; it comes with the message's end, or with its beginning."""
    late = read(message_start(), *tool(0, "f", "toolu_1"), *ending(reason, container=CONTAINER))
    early = read(message_start(container=CONTAINER), *tool(0, "f", "toolu_1"), *ending(reason))
    whole = read_whole(
        [{"type": "tool_use", "id": "toolu_1", "name": "f", "input": {}}], reason=reason, container=CONTAINER
    )
    for reading in (late, early, whole):
        found = [block for block in reading.content if isinstance(block, OpaqueBlock)]
        assert [block.provider_raw.data for block in found] == [{**CONTAINER, "type": "container"}] * kept


def test_a_server_tools_call_without_arguments_keeps_the_object_that_it_began_with() -> None:
    """Its only fragment is empty; as text it would be refused when it goes back."""
    begun = start(0, "server_tool_use", id="srvtoolu_1", name="code_execution", input={})
    reading = read(message_start(), begun, delta(0, "input_json_delta", partial_json=""), stop(0), *ending())
    (block,) = reading.content
    assert isinstance(block, OpaqueBlock)
    assert block.provider_raw.data["input"] == {}
