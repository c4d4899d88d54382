"""Streamed replies. Every vector is written by hand from wire facts, and read in every way that `read` knows."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adapters.providers.openai.quirks import QUIRKS
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
from bus.streams.events import MessageStart, TextDelta, ThinkingDelta, ToolUseInputDelta
from bus.values.content import OpaqueBlock, TextBlock, ThinkingBlock, ToolUseBlock
from bus.values.json import JsonObject
from bus.values.usage import StopReason, UsageSource

from ...support.fake_http import pieces
from ...support.invariants import check_stream
from ...support.readings import without_raw
from .wire_events import (
    CREATED,
    ESTIMATE,
    USAGE,
    added,
    arguments_delta,
    body,
    call,
    done,
    ending,
    event,
    message,
    read,
    read_pieces,
    read_whole,
    reasoning,
    request,
    response,
    summary_delta,
    text_delta,
)

HELLO = message("Hello")
HELLO_STREAM = [CREATED, added(0, HELLO), text_delta(0, "Hel"), text_delta(0, "lo"), done(0, HELLO), ending()]


def test_text_arrives_in_deltas() -> None:
    """Each delta becomes one event, and the response says which model answered under which id."""
    reading = read(*HELLO_STREAM)
    assert reading.kinds == ["message.start", "text.delta", "text.delta", "message.complete"]
    assert reading.content == (TextBlock("Hello"),)
    assert reading.events[0] == MessageStart("msg", "gpt-test-2026", "openai")
    assert reading.assembler.response_id == "resp_1"
    assert reading.complete.stop_reason is StopReason.END_TURN
    assert reading.complete.raw_stop_reason == "completed"


def test_usage_is_disjoint() -> None:
    """Cache reads and writes are taken out of the input count, and the raw object is kept."""
    usage = read(*HELLO_STREAM).complete.usage
    assert (usage.input_tokens, usage.cached_input_tokens, usage.cache_creation_input_tokens) == (10, 60, 30)
    assert (usage.output_tokens, usage.reasoning_tokens, usage.source) == (20, 5, UsageSource.REPORTED)
    assert usage.raw is not None
    assert msgspec.json.decode(usage.raw) == USAGE


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        ({"input_tokens": 5, "input_tokens_details": {"cached_tokens": 9}, "output_tokens": 1}, (0, 9, 1)),
        ({"input_tokens": 5.0, "output_tokens": 2.0, "input_tokens_details": None}, (5, 0, 2)),
        ({"input_tokens": 5, "output_tokens": "many", "output_tokens_details": []}, (5, 0, 0)),
    ],
)
def test_odd_usage_is_read_as_far_as_it_goes(usage: JsonObject, expected: tuple[int, int, int]) -> None:
    """Counts may be floats, null or nonsense, and never become negative."""
    found = read(*HELLO_STREAM[:-1], ending(usage=usage)).complete.usage
    assert (found.input_tokens, found.cached_input_tokens, found.output_tokens) == expected


def test_no_usage_is_estimated() -> None:
    """Missing usage is no zero."""
    reading = read(*HELLO_STREAM[:-1], ending(usage=None))
    assert reading.complete.usage == ESTIMATE
    assert [warning.code for warning in reading.assembler.warnings] == ["usage_estimated"]


def test_reasoning_is_kept_whole() -> None:
    """Each summary part is a block, and the last bears the final item, not the shorter one announced."""
    item = reasoning("First.", "Second.")
    reading = read(
        CREATED,
        added(0, item),
        summary_delta(0, "Fir"),
        summary_delta(0, "st."),
        summary_delta(0, "Second.", 1),
        done(0, item),
        added(1, HELLO),
        text_delta(1, "Hello"),
        done(1, HELLO),
        ending(),
    )
    part, thought, text = reading.content
    assert isinstance(part, ThinkingBlock)
    assert isinstance(thought, ThinkingBlock)
    assert (part.text, part.signature, thought.text) == ("First.", None, "Second.")
    assert part.provider_raw is not None
    assert part.provider_raw.data == {"type": "reasoning_part"}
    assert thought.signature == "secret 1"
    assert thought.provider_raw is not None
    assert thought.provider_raw.data == item
    assert isinstance(text, TextBlock)
    assert text.provider_raw is not None
    assert text.provider_raw.data == {"item_id": "msg_1", "after": "rs_1"}
    assert ThinkingDelta("", "secret 1", 1, "msg") in reading.events


def test_hidden_reasoning_is_kept() -> None:
    """A reasoning item that shows nothing is still a block, for it must go back; it starts no message early."""
    item = reasoning()
    streamed = [CREATED, added(0, item), done(0, item), added(1, HELLO), text_delta(1, "Hello"), ending()]
    first, second = read(*streamed).content
    assert isinstance(first, ThinkingBlock)
    assert first.text == ""
    assert isinstance(second, TextBlock)
    assert read_pieces([body(streamed[:2])]).events == []


def test_failure_while_reasoning_leaves_no_trace() -> None:
    """Announced items are no events, so an attempt that fails after them can be repeated."""
    failure = response("failed", error={"code": "server_error", "message": "Oops"}, usage=None)
    reading = read(CREATED, added(0, reasoning()), event("failed", response=failure))
    assert isinstance(reading.error, ServerError)
    assert reading.error.retryable
    assert reading.events == []


def test_raw_reasoning_without_summary() -> None:
    """OpenRouter's form: no event names, comments, reasoning as text, a [DONE] after the end."""
    item = {"type": "reasoning", "id": "rs_tmp_1", "summary": []}
    whole = {**item, "content": [{"type": "reasoning_text", "text": "Hm."}]}
    delta = event("reasoning_text.delta", output_index=0, item_id="rs_tmp_1", content_index=0, delta="Hm.")
    part = event(
        "content_part.done", output_index=0, item_id="rs_tmp_1", part={"type": "reasoning_text", "text": "Hm."}
    )
    reading = read(CREATED, added(0, item), delta, part, done(0, whole), *_hello_at(1), ending(), b"[DONE]")
    assert reading.thinking == "Hm."
    assert [type(block) for block in reading.content] == [ThinkingBlock, TextBlock]
    commented = b": OPENROUTER PROCESSING\n\n" + body([CREATED, *_hello_at(0), ending(), b"[DONE]"], named=False)
    assert read_pieces([commented]).content == (TextBlock("Hello"),)


def _hello_at(index: int) -> list[JsonObject]:
    return [added(index, HELLO), text_delta(index, "Hello"), done(index, HELLO)]


def test_parallel_calls_interleave() -> None:
    """Fragments of a later call wait for the earlier one, unmerged, and each keeps its own ids."""
    one, two = call("f", '{"a":1}'), call("g", '{"b":2}', 2)
    reading = read(
        CREATED,
        added(0, one),
        added(1, two),
        arguments_delta(0, '{"a'),
        arguments_delta(1, '{"b', 2),
        arguments_delta(1, '":2}', 2),
        arguments_delta(0, '":1}'),
        done(1, two),
        done(0, one),
        ending(),
    )
    first, second = reading.calls
    assert (first.name, first.input, second.name, second.input) == ("f", {"a": 1}, "g", {"b": 2})
    assert first.provider_raw is not None
    assert first.provider_raw.data == {"id": "call_1"}
    fragments = [event.partial_json for event in reading.events if isinstance(event, ToolUseInputDelta)]
    assert fragments == ['{"a', '":1}', '{"b', '":2}']
    assert reading.complete.stop_reason is StopReason.TOOL_USE


def test_messages_interleave() -> None:
    """Blocks keep the order of the items even if a later one speaks first."""
    one, two = message("one"), message("two", item_id="msg_2")
    reading = read(
        CREATED,
        added(0, one),
        added(1, two),
        text_delta(1, "two"),
        done(1, two),
        text_delta(0, "one"),
        done(0, one),
        ending(),
    )
    assert reading.content == (TextBlock("one"), TextBlock("two"))


def test_item_that_never_speaks_holds_nothing_for_ever() -> None:
    """An announced item without an end delays later ones to the reply's end, and is taken from its output."""
    item = reasoning("Why")
    streamed = [CREATED, added(0, item), added(1, HELLO), text_delta(1, "Hello"), done(1, HELLO)]
    assert read_pieces([body(streamed)]).events == []
    assert [type(block) for block in read(*streamed, ending(output=[item, HELLO])).content] == [
        ThinkingBlock,
        TextBlock,
    ]
    (text,) = read(*streamed, ending()).content
    assert isinstance(text, TextBlock)


def test_several_parts_of_one_message() -> None:
    """Each text part is a block of its own."""
    item = message("a", "b")
    part = event("content_part.done", output_index=0, content_index=0, part={"type": "output_text", "text": "a"})
    reading = read(
        CREATED, added(0, item), text_delta(0, "a"), part, text_delta(0, "b", 1), done(0, item), ending()
    )
    assert reading.content == (TextBlock("a"), TextBlock("b"))


def test_item_ids_that_change_with_every_event() -> None:
    """One server changes the item's id all the time: the index decides."""
    deltas = [{**text_delta(0, text), "item_id": f"msg_{text}"} for text in ("Hel", "lo")]
    reading = read(CREATED, added(0, HELLO), *deltas, done(0, {**HELLO, "id": "other"}), ending())
    assert reading.content == (TextBlock("Hello"),)


def _without_index(*events: JsonObject) -> list[JsonObject]:
    indexes = ("output_index", "content_index", "summary_index", "sequence_number")
    return [{name: value for name, value in event.items() if name not in indexes} for event in events]


def test_no_indexes_but_item_ids() -> None:
    """Without indexes the item's id tells parallel items apart."""
    one, two = call("f", '{"a":1}'), call("g", "{}", 2)
    streamed = _without_index(
        added(0, one),
        arguments_delta(0, '{"a":1}'),
        done(0, one),
        added(1, two),
        arguments_delta(1, "{}", 2),
        done(1, two),
    )
    assert [block.input for block in read(CREATED, *streamed, ending()).calls] == [{"a": 1}, {}]


def test_neither_indexes_nor_ids() -> None:
    """Then it is the last item of that kind."""
    one = {name: value for name, value in call("f", '{"a":1}').items() if name != "id"}
    bare = event("function_call_arguments.delta", delta='{"a":1}')
    (block,) = read(CREATED, *_without_index(added(0, one)), bare, *_without_index(done(0, one)), ending()).calls
    assert block.input == {"a": 1}


def test_llama_cpp_form() -> None:
    """A minimal beginning, no indexes, all ends last, and ``completed`` at the token limit."""
    think = {"type": "reasoning", "id": "rs_x", "summary": [], "content": [], "encrypted_content": ""}
    whole = {**think, "content": [{"type": "reasoning_text", "text": "Hm"}]}
    text = message("Hello")
    streamed: list[JsonObject | bytes] = [
        event("created", response={"id": "resp_1", "object": "response", "status": "in_progress"}),
        event("output_item.added", item=think),
        event("reasoning_text.delta", item_id="rs_x", delta="Hm"),
        event("output_item.added", item=message()),
        event("content_part.added", item_id="msg_1", part={"type": "output_text", "text": ""}),
        event("output_text.delta", item_id="msg_1", delta="Hello"),
        event("output_item.done", item=whole),
        event("output_text.done", item_id="msg_1", text="Hello"),
        event("output_item.done", item=text),
        ending(output=[whole, text], usage={"input_tokens": 3, "output_tokens": 7}),
    ]
    quirks = QUIRKS["llama.cpp"]
    reading = read(*streamed, quirks=quirks, asked=request(max_output_tokens=7))
    assert [block.text for block in reading.content if isinstance(block, ThinkingBlock | TextBlock)] == [
        "Hm",
        "Hello",
    ]
    assert reading.complete.stop_reason is StopReason.MAX_TOKENS
    assert reading.complete.raw_stop_reason == "completed"
    assert reading.complete.usage.reasoning_tokens is None
    early = read_pieces([body(streamed[:6])], quirks)
    assert "text.delta" in early.kinds
    longer = read(*streamed, quirks=quirks, asked=request(max_output_tokens=8))
    assert longer.complete.stop_reason is StopReason.END_TURN


def test_arguments_only_at_their_end() -> None:
    """One backend sends arguments in `.done` only, and ends with an empty output."""
    item = call("f", '{"a":1}')
    whole = event("function_call_arguments.done", output_index=0, item_id="fc_1", arguments='{"a":1}')
    reading = read(CREATED, added(0, item), whole, done(0, item), ending())
    assert [block.input for block in reading.calls] == [{"a": 1}]
    fragments = [event.partial_json for event in reading.events if isinstance(event, ToolUseInputDelta)]
    assert fragments == ['{"a":1}']


@pytest.mark.parametrize("item", [HELLO, reasoning("Why"), call("f", '{"a":1}')], ids=["text", "thinking", "call"])
def test_no_deltas_at_all(item: JsonObject) -> None:
    """What the deltas left out is emitted from the finished item, and from the response if that is missing."""
    whole = read_whole(item)
    for streamed in (
        [CREATED, added(0, item), done(0, item), ending()],
        [CREATED, done(0, item), ending()],
        [CREATED, added(0, item), ending(output=[item])],
        [ending(output=[item])],
    ):
        reading = read(*streamed)
        assert without_raw(reading.events) == without_raw(whole.events)


def test_half_of_the_deltas_are_missing() -> None:
    """The rest of a text is taken from the finished item; a text that differs stays as it was delivered."""
    assert read(CREATED, added(0, HELLO), text_delta(0, "Hel"), done(0, HELLO), ending()).content == (
        TextBlock("Hello"),
    )
    assert read(CREATED, added(0, HELLO), text_delta(0, "Hi"), done(0, HELLO), ending()).content == (
        TextBlock("Hi"),
    )


def test_arguments_before_the_name() -> None:
    """A call whose announcement got lost begins when its name is known."""
    item = call("f", '{"a":1}')
    (block,) = read(CREATED, arguments_delta(0, '{"a"'), arguments_delta(0, ":1}"), done(0, item), ending()).calls
    assert (block.name, block.input) == ("f", {"a": 1})


def test_call_without_arguments() -> None:
    """Empty arguments of a finished call are an empty object."""
    item = call("f", "")
    (block,) = read(CREATED, added(0, item), done(0, item), ending()).calls
    assert (block.input, block.incomplete) == ({}, False)


def test_arguments_that_are_no_object() -> None:
    """Their text is kept, and the call is marked so that nobody runs it."""
    item = call("f", '["a"]')
    (block,) = read(CREATED, added(0, item), done(0, item), ending()).calls
    assert (block.input, block.raw_arguments, block.incomplete) == ({}, '["a"]', True)


def test_cut_off_call_is_incomplete() -> None:
    """At the token limit a call may parse and still not be whole."""
    item = call("f", '{"a":1}', status="incomplete")
    details = {"reason": "max_output_tokens"}
    for last in (done(0, item), event("unknown")):
        reading = read(
            CREATED,
            added(0, item),
            arguments_delta(0, '{"a":1}'),
            last,
            ending("incomplete", incomplete_details=details),
        )
        assert [block.incomplete for block in reading.calls] == [True]
        assert reading.complete.stop_reason is StopReason.MAX_TOKENS
        assert reading.complete.raw_stop_reason == "max_output_tokens"


def test_incomplete_call_before_another_block() -> None:
    """A call that the provider itself calls incomplete is never run, wherever it stands."""
    item = call("f", '{"a":1}', status="incomplete")
    streamed = [CREATED, added(0, item), done(0, item), *_hello_at(1)]
    (block,) = read(*streamed, ending("incomplete", incomplete_details={"reason": "content_filter"})).calls
    assert block.incomplete


def test_refusal() -> None:
    """A refusal is text, and the reason why the reply ended."""
    item = message(content=[{"type": "refusal", "refusal": "I can't."}])
    deltas = [event("refusal.delta", output_index=0, content_index=0, delta=part) for part in ("I ", "can't.")]
    for streamed in ([added(0, item), *deltas, done(0, item)], [done(0, item)], [added(0, item), *deltas]):
        reading = read(CREATED, *streamed, ending())
        assert reading.complete.stop_reason is StopReason.REFUSAL
        assert [block.text for block in reading.content if isinstance(block, TextBlock)] == ["I can't."]


def test_phase_and_citations_stay_with_the_text() -> None:
    """What must go back, or what only the host can show, is in the block's provider_raw."""
    note = {"type": "url_citation", "url": "https://example.org", "start_index": 0, "end_index": 5, "title": "E"}
    item = message(content=[{"type": "output_text", "text": "Hello", "annotations": [note]}], phase="commentary")
    (block,) = read(CREATED, added(0, item), text_delta(0, "Hello"), done(0, item), ending()).content
    assert isinstance(block, TextBlock)
    assert block.provider_raw is not None
    assert block.provider_raw.data == {"phase": "commentary", "annotations": [note]}


def test_unknown_items_are_surfaced() -> None:
    """An item outside the catalogue is one whole block, in its place."""
    item: JsonObject = {
        "type": "web_search_call",
        "id": "ws_1",
        "status": "completed",
        "action": {"type": "search"},
    }
    reading = read(
        CREATED,
        added(0, item),
        event("web_search_call.searching", output_index=0, item_id="ws_1"),
        done(0, item),
        *_hello_at(1),
        ending(),
    )
    opaque, _ = reading.content
    assert isinstance(opaque, OpaqueBlock)
    assert (opaque.kind, opaque.provider_raw.data) == ("web_search_call", item)
    assert reading.complete.stop_reason is StopReason.END_TURN


@pytest.mark.parametrize(
    ("items", "expected"),
    [
        ([{"type": "tool_search_call", "call_id": "c1", "execution": "client"}], StopReason.TOOL_USE),
        ([{"type": "tool_search_call", "call_id": None, "execution": "server"}], StopReason.END_TURN),
        (
            [{"type": "shell_call", "call_id": "c1"}, {"type": "shell_call_output", "call_id": "c1"}],
            StopReason.END_TURN,
        ),
    ],
)
def test_items_that_wait_for_the_host(items: list[JsonObject], expected: StopReason) -> None:
    """A call that only the host can answer ends the reply as a tool call does."""
    streamed = [done(index, item) for index, item in enumerate(items)]
    assert read(CREATED, *streamed, ending()).complete.stop_reason is expected


CUSTOM: JsonObject = {
    "type": "custom_tool_call",
    "id": "ctc_1",
    "call_id": "call_1",
    "name": "run_sql",
    "input": 'select "a"\n-- ☃',
}


@pytest.mark.parametrize(
    "deltas",
    [["select ", '"a"\n', "-- ☃"], ['select "a"\n-- ☃'], [], ["select "], ["", 'select "a"']],
)
def test_a_custom_tools_text_is_the_one_argument_of_its_call(deltas: list[str]) -> None:
    """However it arrives, and even if only its end has it; the fragments are those of the arguments' JSON."""
    place: JsonObject = {"output_index": 0, "item_id": "ctc_1"}
    reading = read(
        CREATED,
        event("output_item.added", output_index=0, item={**CUSTOM, "input": ""}),
        *[event("custom_tool_call_input.delta", **place, delta=delta) for delta in deltas],
        event("custom_tool_call_input.done", **place, input=CUSTOM["input"]),
        done(0, CUSTOM),
        ending(),
    )
    (call_,) = reading.calls
    assert (call_.name, call_.input, call_.incomplete) == ("run_sql", {"input": CUSTOM["input"]}, False)
    assert call_.provider_raw is not None
    assert call_.provider_raw.data == {"id": "call_1", "type": "custom_tool_call"}
    assert reading.complete.stop_reason is StopReason.TOOL_USE
    assert read(CREATED, done(0, CUSTOM), ending()).calls[0].input == call_.input


def test_a_custom_call_that_breaks_off_is_incomplete() -> None:
    """Its text so far is kept, and never run."""
    reading = read(
        CREATED,
        event("output_item.added", output_index=0, item={**CUSTOM, "input": ""}),
        event("custom_tool_call_input.delta", output_index=0, item_id="ctc_1", delta="drop ta"),
        ending("incomplete", incomplete_details={"reason": "max_output_tokens"}),
    )
    (call_,) = reading.calls
    assert (call_.input, call_.raw_arguments, call_.incomplete) == ({}, '{"input":"drop ta', True)


def test_strange_events_are_ignored() -> None:
    """Events of unknown type, null deltas, wrong types in unused fields and padding change nothing."""
    reading = read(
        CREATED,
        event("invented.today", output_index="x", delta={"deep": [1]}),
        {"type": None},
        added(0, HELLO),
        text_delta(0, None),
        text_delta(0, "Hel", obfuscation="abc", summary_index="x"),
        {**text_delta(0, "lo"), "output_index": 0.0},
        event("audio.delta", delta={"a": 1}),
        done(0, {**HELLO, "phase": 7, "call_id": []}),
        ending(model=5, incomplete_details="?"),
    )
    assert reading.content == (TextBlock("Hello"),)


ERRORS: list[tuple[JsonObject, type[AdapterError]]] = [
    ({"type": "error", "error": {"type": "x", "code": "rate_limit_exceeded", "message": "m"}}, RateLimitError),
    ({"type": "error", "code": "server_is_overloaded", "message": "m", "param": None}, OverloadedError),
    ({"type": "error", "error": {"code": "insufficient_quota", "message": "m"}}, QuotaExceededError),
    ({"type": "error", "code": None, "message": "Your input exceeds the context window"}, ContextOverflowError),
    ({"error": {"message": "boom", "code": 502}}, ServerError),
    (ending("failed", error={"code": "invalid_prompt", "message": "m"}), InvalidRequestError),
    (ending("failed", error=None), ServerError),
    (ending("failed", error="odd"), AdapterError),
]


@pytest.mark.parametrize(("failure", "expected"), ERRORS)
def test_error_inside_a_stream(failure: JsonObject, expected: type[AdapterError]) -> None:
    """Nested and flat errors and failed responses are classified; what came before them stands."""
    reading = read(CREATED, added(0, HELLO), text_delta(0, "Hel"), failure, ending("failed", error={"code": "x"}))
    assert type(reading.error) is expected
    assert [event.text for event in reading.events if isinstance(event, TextDelta)] == ["Hel"]


def test_error_is_raised_once() -> None:
    """A failed response after an error event adds nothing."""
    failure: JsonObject = {"type": "error", "error": {"code": "insufficient_quota", "message": "first"}}
    reading = read(CREATED, failure, ending("failed", error={"code": "server_error", "message": "second"}))
    assert isinstance(reading.error, QuotaExceededError)
    assert reading.error.provider_message == "first"


@pytest.mark.parametrize("last", [None, b"[DONE]", b" [DONE] ", b"{broken", b"[]", b"7"])
def test_stream_without_an_end(last: bytes | None) -> None:
    """Without a terminal event a stream is broken, whatever else it ends in."""
    streamed: list[JsonObject | bytes] = list(HELLO_STREAM[:-1])
    reading = read(*streamed, *([last] if last is not None else []))
    assert isinstance(reading.error, StreamError)


@pytest.mark.parametrize("status", ["incomplete", "cancelled"])
def test_unknown_ends_are_not_called_normal(status: str) -> None:
    """A status or reason that we don't know is passed on in its own words."""
    complete = read(*HELLO_STREAM[:-1], ending(status, incomplete_details={"reason": "steered"})).complete
    assert complete.stop_reason is StopReason.PROVIDER_SPECIFIC
    assert complete.raw_stop_reason == "steered"


def test_half_surrogates() -> None:
    """Half a surrogate pair among the escapes is replaced, not fatal."""
    half = body([text_delta(0, "HALF")]).replace(b"HALF", b"\\ud83d")
    streamed = body([CREATED, added(0, HELLO)]) + half + body([ending()])
    assert read_pieces([streamed]).content == (TextBlock("�"),)


EVERYTHING = [
    CREATED,
    added(0, reasoning("Warum?")),
    summary_delta(0, "Warum? …"),
    done(0, reasoning("Warum? …")),
    added(1, message("été 🎭")),
    text_delta(1, "été "),
    text_delta(1, "🎭"),
    done(1, message("été 🎭")),
    added(2, call("f", '{"a":"\u2028"}')),
    arguments_delta(2, '{"a":"\u2028"}'),
    done(2, call("f", '{"a":"\u2028"}')),
    ending(),
]


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(0, len(body(EVERYTHING))), max_size=20))
def test_any_cuts_say_the_same(cuts: list[int]) -> None:
    """How the network cuts a body changes nothing."""
    expected = read_pieces([body(EVERYTHING)])
    found = read_pieces(pieces(body(EVERYTHING), cuts))
    assert without_raw(found.events) == without_raw(expected.events)


@settings(max_examples=30, deadline=None)
@given(st.permutations(EVERYTHING[1:-1]))
def test_any_order_keeps_the_invariants(events: list[JsonObject]) -> None:
    """Events in an order that no server sends still become a valid message in which nothing is lost."""
    reading = read_pieces([body([CREATED, *events, ending()])])
    assert reading.content
    text = "".join(block.text for block in reading.content if isinstance(block, TextBlock))
    assert set("été 🎭") <= set(text)
    assert any(isinstance(block, ToolUseBlock) for block in reading.content)


JUNK = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-3, 3)
    | st.floats(-2, 2)
    | st.sampled_from(["", "message", "reasoning"]),
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["type", "text"]), inner, max_size=2)
    ),
    max_leaves=4,
)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_junk_never_escapes(data: st.DataObject) -> None:
    """Whatever a field holds, a stream ends in a message or in an AdapterError."""
    events: list[JsonObject] = msgspec.json.decode(msgspec.json.encode(EVERYTHING))
    for _ in range(data.draw(st.integers(1, 4))):
        place: JsonObject = data.draw(st.sampled_from(events))
        while True:
            name = data.draw(st.sampled_from(sorted(place)))
            if not isinstance(place[name], dict) or not place[name] or data.draw(st.booleans()):
                break
            place = place[name]
        place[name] = data.draw(JUNK)
    reading = read_pieces([body(events)])
    if reading.error is None:
        check_stream(reading.events)


def test_deep_nesting_is_an_error_of_ours() -> None:
    """A body made to exhaust the stack is a broken stream."""
    deep = b'{"type":"response.created","x":' + b"[" * 50_000 + b"]" * 50_000 + b"}"
    assert isinstance(read_pieces([b"data: " + deep + b"\n\n"]).error, StreamError)
