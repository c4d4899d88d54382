"""The assembler satisfies the stream invariants for each order in which a provider sends its blocks."""

from __future__ import annotations

from itertools import pairwise

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from callboard.adapters.replies import server_sent_events
from callboard.adapters.replies.assembler import Assembler
from callboard.adapters.replies.block import parse_object
from callboard.adapters.replies.server_sent_events import NdjsonDecoder, SseDecoder, SseEvent
from callboard.bus.errors import StreamError
from callboard.bus.streams.events import (
    MessageComplete,
    ProviderEvent,
    StreamEvent,
    TextDelta,
    ThinkingDelta,
    ToolUseEnd,
    ToolUseInputDelta,
    ToolUseStart,
)
from callboard.bus.values.content import OpaqueBlock, RedactedThinkingBlock, TextBlock, ThinkingBlock, ToolUseBlock
from callboard.bus.values.usage import StopReason, TokenUsage, UsageSource

from ...support.fake_http import pieces
from ...support.invariants import check_stream
from ...support.virtual_time import FakeClock

ESTIMATE = TokenUsage(1, 1, source=UsageSource.ESTIMATED)


def make() -> Assembler:
    return Assembler(
        message_id="msg_1",
        provider="toy",
        requested_model="one",
        clock=FakeClock(),
        estimate_usage=lambda output: ESTIMATE,
    )


def kinds(events: list[StreamEvent]) -> list[str]:
    return [event.type for event in events]


KEYS = st.sampled_from([0, 1, 2, "item_a", ("t", 3)])
TEXTS = st.sampled_from(["a", "bc", "☃", " ", "\n"])
ARGUMENTS = st.sampled_from(["{}", "{", '"a"', ": 1", "}", "[1]", '{"b": "\\ud83d"}', "null", " ", ""])


class AnyProvider(RuleBasedStateMachine):
    """A provider that sends any part of any block at any time, ends or breaks off at any time, and then sends
    more.
    """

    def __init__(self) -> None:
        super().__init__()
        self.assembler = make()
        self.assembler.fragments = "pieces"
        self.events: list[StreamEvent] = []
        self.text = ""
        self.thinking = ""
        self.arguments = ""
        self.tools: list[str] = []
        self.whole = 0

    @property
    def talking(self) -> bool:
        return not self.assembler.complete

    @rule(key=KEYS, fragment=TEXTS | st.just(""), implicit_end=st.booleans())
    def says_text(self, key: object, fragment: str, implicit_end: bool) -> None:
        if self.talking:
            self.text += fragment
        self.assembler.text(key, fragment, implicit_end=implicit_end)

    @rule(
        key=KEYS, fragment=TEXTS | st.just(""), implicit_end=st.booleans(), raw=st.none() | st.just({"id": "rs"})
    )
    def thinks(self, key: object, fragment: str, implicit_end: bool, raw: dict[str, object] | None) -> None:
        if self.talking:
            self.thinking += fragment
        self.assembler.thinking(key, fragment, implicit_end=implicit_end, raw=raw)

    @rule()
    def tells_something_else(self) -> None:
        self.assembler.provider_event("searching", {})

    @rule(key=KEYS, signature=st.sampled_from(["sig", ""]))
    def signs(self, key: object, signature: str) -> None:
        self.assembler.signature(key, signature)

    @rule(key=KEYS, name=st.sampled_from(["read", "write"]), implicit_end=st.booleans())
    def calls(self, key: object, name: str, implicit_end: bool) -> None:
        if self.talking:
            self.tools.append(name)
        self.assembler.tool_start(key, name, raw={"id": f"x{len(self.tools)}"}, implicit_end=implicit_end)

    @rule(key=KEYS, fragment=ARGUMENTS)
    def argues(self, key: object, fragment: str) -> None:
        warned = len(self.assembler.warnings)
        self.assembler.tool_arguments(key, fragment)
        if self.talking and len(self.assembler.warnings) == warned and (fragment.strip() or self._open_tool(key)):
            self.arguments += fragment

    def _open_tool(self, key: object) -> bool:
        block = self.assembler._by_key.get(key)  # blank arguments for a closed call are dropped without a warning
        return block is not None and not block.closed

    @rule(key=KEYS)
    def gives_input(self, key: object) -> None:
        self.assembler.tool_input(key, {"given": True})

    @rule(key=KEYS)
    def names_call_late(self, key: object) -> None:
        self.assembler.block_raw(key, {"id": "late"})

    @rule(key=KEYS)
    def sends_unknown_block(self, key: object) -> None:
        self.whole += self.talking
        self.assembler.whole(key, "citation", {"type": "citation"})

    @rule(key=KEYS)
    def hides_thinking(self, key: object) -> None:
        self.whole += self.talking
        self.assembler.redacted_thinking(key, "opaque")

    @rule(key=KEYS)
    def ends_block(self, key: object) -> None:
        self.assembler.end(key)

    @rule()
    def takes(self) -> None:
        self.events += self.assembler.take()

    @rule()
    def reports_usage(self) -> None:
        if self.talking:
            self.assembler.usage = TokenUsage(3, 2)

    @precondition(lambda self: self.talking)
    @rule(reason=st.sampled_from([StopReason.END_TURN, StopReason.TOOL_USE, StopReason.MAX_TOKENS]))
    def finishes(self, reason: StopReason) -> None:
        self.assembler.finish(reason, reason.value)

    @precondition(lambda self: self.talking)
    @rule(reason=st.sampled_from([StopReason.CANCELLED, StopReason.ERROR]))
    def breaks_off(self, reason: StopReason) -> None:
        self.assembler.abort(reason)

    @invariant()
    def one_block_is_open_at_a_time(self) -> None:
        found = [getattr(event, "content_block_index", None) for event in self.events]
        indexes = [index for index in found if index is not None]
        assert all(later - earlier in (0, 1) or later > earlier for earlier, later in pairwise(indexes))

    def teardown(self) -> None:
        self.assembler.abort(StopReason.CANCELLED)  # has no effect after the end
        self.events += self.assembler.take()
        last = check_stream(self.events)
        assert self.assembler.take() == []
        assert last.final_content == self.assembler.final_content
        self._nothing_is_lost(last)

    def _nothing_is_lost(self, last: MessageComplete) -> None:
        blocks = last.final_content
        said = "".join(event.text for event in self.events if isinstance(event, TextDelta))
        thought = "".join(event.text for event in self.events if isinstance(event, ThinkingDelta))
        sent = "".join(event.partial_json for event in self.events if isinstance(event, ToolUseInputDelta))
        assert sorted(said) == sorted(self.text)
        assert sorted(thought) == sorted(self.thinking)
        assert sorted(sent) == sorted(self.arguments)
        assert sorted(block.name for block in blocks if isinstance(block, ToolUseBlock)) == sorted(self.tools)
        assert sum(isinstance(block, OpaqueBlock | RedactedThinkingBlock) for block in blocks) == self.whole
        if last.stop_reason in (StopReason.CANCELLED, StopReason.ERROR):
            assert last.usage.source is not UsageSource.REPORTED


AnyProvider.TestCase.settings = settings(max_examples=100, stateful_step_count=25)
TestAnyProvider = AnyProvider.TestCase


@given(st.lists(st.tuples(st.integers(0, 3), TEXTS), min_size=1), st.randoms())
def test_interleaved_calls_come_one_after_another_with_their_own_fragments(
    pieces: list[tuple[int, str]], random: object
) -> None:
    """Fragments of parallel calls in any order reach each call in its order, without being merged."""
    assembler = make()
    assembler.fragments = "pieces"
    order: list[int] = []
    for key, fragment in pieces:
        if key not in order:
            order.append(key)
            assembler.tool_start(key, f"tool{key}")
        assembler.tool_arguments(key, fragment)
    assembler.finish(StopReason.TOOL_USE, "tool_use", TokenUsage(1, 1))
    events = assembler.take()
    names = [block.name for block in check_stream(events).final_content if isinstance(block, ToolUseBlock)]
    assert names == [f"tool{key}" for key in order]
    deltas = [event for event in events if isinstance(event, ToolUseInputDelta)]
    for index, key in enumerate(order):
        told = [event.partial_json for event in deltas if event.content_block_index == index]
        assert told == [fragment for other, fragment in pieces if other == key]


def test_message_start_waits_for_content() -> None:
    """An attempt without content leaves no event."""
    assembler = make()
    assembler.text(0, "")
    assembler.thinking(0, "")
    assembler.usage = TokenUsage(1, 0)
    assert assembler.take() == []
    assembler.text(0, "x")
    assert kinds(assembler.take()) == ["message.start", "text.delta"]


def test_incomplete_arguments_delay_the_next_call() -> None:
    """A call whose arguments are not yet a complete object can't be over."""
    assembler = make()
    assembler.tool_start(0, "read", implicit_end=True)
    assembler.tool_arguments(0, '{"x":')
    assembler.tool_start(1, "write", implicit_end=True)
    assembler.tool_arguments(1, "{}")
    assembler.tool_arguments(0, "1}")
    names = [event.tool_name for event in assembler.take() if isinstance(event, ToolUseStart)]
    assert names == ["read"]
    assembler.finish(StopReason.TOOL_USE, None, TokenUsage(1, 1))
    assembler_events = assembler.take()
    ends = [event for event in assembler_events if isinstance(event, ToolUseEnd)]
    assert [(end.final_input, end.incomplete) for end in ends] == [({"x": 1}, False), ({}, False)]


@pytest.mark.parametrize(("fragments", "final_input", "raw"), [
    ([], {}, None),
    (["  "], {}, None),
    (['{"a"', ": [1, 2]}"], {"a": [1, 2]}, None),
    *[([text], {}, text) for text in ("null", "[1]", '"text"', '{"a": ', '{"a": NaN}', "{" * 100_000)],
    (['{"a": "line\nbreak"}'], {"a": "line\nbreak"}, None),
    (['{"a": ' + "9" * 5000 + "}"], {}, '{"a": ' + "9" * 5000 + "}"),
], ids=range(11))  # fmt: skip
def test_invalid_arguments_are_kept_and_never_executed(
    fragments: list[str], final_input: object, raw: str | None
) -> None:
    """A call runs only with the arguments that the model meant."""
    assembler = make()
    assembler.tool_start(0, "read")
    for fragment in fragments:
        assembler.tool_arguments(0, fragment)
    assembler.end(0)
    assembler.finish(StopReason.TOOL_USE, None, TokenUsage(1, 1))
    last = check_stream(assembler.take())
    (block,) = last.final_content
    assert isinstance(block, ToolUseBlock)
    assert (block.input, block.raw_arguments, block.incomplete) == (final_input, raw, raw is not None)


def test_a_cancelled_call_ends_with_its_parsed_arguments() -> None:
    """`final_input` is the parsed object or empty. The call is marked as incomplete in both cases."""
    for text, expected in (('{"path": "a', {}), ('{"path": "a"}', {"path": "a"}), ("", {})):
        assembler = make()
        assembler.tool_start(0, "read")
        assembler.tool_arguments(0, text)
        assembler.abort(StopReason.CANCELLED)
        *_, end, last = assembler.take()
        assert isinstance(end, ToolUseEnd)
        assert (end.final_input, end.incomplete) == (expected, True)
        assert isinstance(last, MessageComplete)
        assert last.usage == ESTIMATE


def test_usage_is_the_last_reported_and_partial_before_a_break() -> None:
    """A reported zero is a value: only missing counts are estimated. A callback is used until usage is set
    directly. A fork does not call it after its end.
    """
    assembler = make()
    assembler.text(0, "x")
    assembler.finish(StopReason.END_TURN, "stop", TokenUsage())
    assert (assembler.usage, assembler.warnings) == (TokenUsage(), [])
    assembler = make()
    reported = [TokenUsage(3, 1)]
    assembler.usage_from(lambda: reported[-1])
    assembler.text(0, "a")
    reported.append(TokenUsage(3, 2))
    fork = assembler.fork()
    fork.abort(StopReason.CANCELLED)
    for _ in range(2):
        assert fork.usage == TokenUsage(3, 2, source=UsageSource.PARTIAL)
        reported.append(TokenUsage(3, 9))
    assert assembler.usage == TokenUsage(3, 9)
    assembler.usage = TokenUsage(5, 5)
    assembler.abort(StopReason.ERROR)
    assert check_stream(assembler.take()).usage == TokenUsage(5, 5, source=UsageSource.PARTIAL)


def test_the_estimate_of_an_output_includes_complete_arguments() -> None:
    """A call's arguments count the same as fragments and as an object."""
    whole, streamed = make(), make()
    for each in (whole, streamed):
        each.text(0, "So. ")
        each.tool_start(1, "read")
    whole.tool_input(1, {"path": "x"})
    for fragment in ('{"path":', '"x"}'):
        streamed.tool_arguments(1, fragment)
    assert whole.partial_text() == streamed.partial_text() == 'So. {"path":"x"}'
    whole.end(1)
    assert whole.partial_text() == 'So. {"path":"x"}'


def test_a_key_used_for_another_kind_begins_another_block() -> None:
    """Text never becomes part of a reasoning block, and the first block can still end."""
    assembler = make()
    assembler.thinking(0, "hm")
    assembler.text(0, "so")
    assembler.tool_start(0, "read")
    assembler.tool_arguments(0, "{}")
    assembler.tool_start(0, "write")
    assembler.finish(StopReason.TOOL_USE, None, TokenUsage(1, 1))
    kinds = [ThinkingBlock, TextBlock, ToolUseBlock, ToolUseBlock]
    assert [type(block) for block in assembler.final_content] == kinds


def test_late_and_stray_arguments_are_reported() -> None:
    """Arguments that can't be delivered cause a warning."""
    assembler = make()
    assembler.tool_arguments(9, "{}")
    assembler.tool_start(0, "read")
    assembler.end(0)
    assembler.tool_arguments(0, "{}")
    assert [warning.code for warning in assembler.warnings] == ["stray_tool_arguments", "late_tool_arguments"]


@given(st.text())
def test_parse_object_never_fails(text: str) -> None:
    """The result is None for anything that is not an object. An object can be written again."""
    for candidate in (text, "{" + text + "}", '{"a": "' + text + '"}'):
        value = parse_object(candidate)
        if value is not None:
            msgspec.json.encode(value)


def test_provider_events_wait_for_the_start_of_the_reply() -> None:
    """An attempt that fails before its first content has delivered nothing. After the end, such events are
    dropped.
    """
    assembler = make()
    assembler.provider_event("queued", {"place": 3})
    assert (assembler.take(), assembler.fork().received) == ([], False)
    assembler.text("a", "Hi")
    assembler.provider_event("searching", None)
    begun = assembler.take()
    assembler.finish(StopReason.END_TURN, "stop", ESTIMATE)
    assembler.provider_event("late", None)
    told = [*begun, *assembler.take()]
    assert kinds(told) == ["message.start", "provider.event", "text.delta", "provider.event", "message.complete"]
    assert told[1] == ProviderEvent("queued", {"place": 3}, "msg_1")


# -- Server-sent events and newline-delimited JSON: events and lines are the same for any pieces of the network.


VECTORS: dict[str, tuple[bytes, list[tuple[bytes, bytes]]]] = {
    "lf": (b"event: a\ndata: 1\n\ndata: 2\n\n", [(b"a", b"1"), (b"", b"2")]),
    "crlf": (b"event: a\r\ndata: 1\r\n\r\ndata: 2\r\n\r\n", [(b"a", b"1"), (b"", b"2")]),
    "cr": (b"event: a\rdata: 1\r\rdata: 2\r\r", [(b"a", b"1"), (b"", b"2")]),
    "mixed line ends": (b"data: 1\r\n\ndata: 2\n\r\ndata: 3\r\r", [(b"", b"1"), (b"", b"2"), (b"", b"3")]),
    "no space after the colon": (b"data:1\n\n", [(b"", b"1")]),
    "only one space is taken": (b"data:  1 \n\n", [(b"", b" 1 ")]),
    "line separators inside": ("data: a\u2028b\u2029c\x85d\x0ce\n\n".encode(),
        [(b"", "a\u2028b\u2029c\x85d\x0ce".encode())]),
    "byte order mark": (b"\xef\xbb\xbfdata: 1\n\n", [(b"", b"1")]),
    "byte order mark later is text": (b"data: 1\n\n\xef\xbb\xbfdata: 2\n\n", [(b"", b"1")]),
    "comments": (b": ping\n\n:\n\n: PROCESSING\ndata: 1\n: in between\n\n", [(b"", b"1")]),
    "several data lines": (b"data: a\ndata: b\ndata: c\n\n", [(b"", b"a\nb\nc")]),
    "empty data": (b"event: ping\ndata:\n\ndata: \n\ndata: 1\n\n", [(b"", b"1")]),
    "no data": (b"event: ping\n\ndata: 1\n\n", [(b"", b"1")]),
    "a name lasts one event": (b"event: a\n\ndata: 1\n\n", [(b"", b"1")]),
    "id and retry": (b"id: 7\nretry: 10\ndata: 1\nid: 8\n\n\n\n", [(b"", b"1")]),
    "unknown field": (b"dataset: 0\ndata: 1\nwhatever\n\n", [(b"", b"1")]),
    "end without blank line": (b"data: 1\n\nevent: b\ndata: 2\n", [(b"", b"1"), (b"b", b"2")]),
    "end without line end": (b"data: 1\n\ndata: 2", [(b"", b"1"), (b"", b"2")]),
    "end after cr": (b"data: 1\r", [(b"", b"1")]),
    "done": (b"data: [DONE]\n\n", [(b"", b"[DONE]")]),
    "nothing": (b"", []),
    "blank lines": (b"\n\n\r\n\r\r\n", []),
    "multibyte": ("data: ☃😀é\n\n".encode(), [(b"", "☃😀é".encode())]),
    "trailing spaces": (b'data: {"type":"ping"}     \n\n', [(b"", b'{"type":"ping"}     ')]),
}  # fmt: skip


def decode(chunks: list[bytes]) -> list[tuple[bytes, bytes]]:
    decoder = SseDecoder()
    events: list[SseEvent] = []
    for chunk in chunks:
        events += decoder.feed(chunk)
    return [tuple(event) for event in events + decoder.close()]


@pytest.mark.parametrize("name", VECTORS)
def test_every_known_form_is_read(name: str) -> None:
    """The stream is read as a whole, byte by byte, and with empty pieces. A blank line ends an event."""
    body, expected = VECTORS[name]
    assert decode([body]) == expected
    assert decode([body[at : at + 1] for at in range(len(body))]) == expected
    assert decode([piece for at in range(len(body)) for piece in (b"", body[at : at + 1])]) == expected
    for end in (b"\n\n", b"\r\n\r\n", b"\r\r"):
        assert SseDecoder().feed(b"data: 1" + end) == [(b"", b"1")], end


@given(
    st.lists(st.sampled_from([b"data: x", b"data:", b"event: e", b": c", b"\r", b"\n", b"\r\n", b"y"])), st.data()
)
@example([b"\r", b"\n", b"data: x", b"\r", b"\n", b"\n"], None)
def test_any_text_is_read_the_same_in_any_pieces(parts: list[bytes], data: st.DataObject | None) -> None:
    body = b"".join(parts)
    cuts = list(range(len(body))) if data is None else data.draw(st.lists(st.integers(0, max(len(body), 1))))
    assert decode(pieces(body, cuts)) == decode([body])


@given(st.lists(st.sampled_from([b"data: x", b"data: ", b"data: \ry", b"event: e", b": c", b"", b"", b"y"])))
@example([b"data: x", b"", b"event: e", b"data: x", b"", b"y"])
def test_lines_with_any_line_end_give_the_same(lines: list[bytes]) -> None:
    """Pieces may begin with an event, and most events have one line."""
    first = b": the body has begun\n"
    ended = [b"".join(line + end for line in lines) for end in (b"\n", b"\r\n")]
    assert decode([first, ended[0]]) == decode([first, ended[1]])


@pytest.mark.parametrize("kind", [SseDecoder, NdjsonDecoder])
@given(st.binary())
def test_no_bytes_make_a_decoder_fail(kind: type[SseDecoder] | type[NdjsonDecoder], body: bytes) -> None:
    """The decoder ignores the content. A second close returns nothing."""
    decoder = kind()
    decoder.feed(body)
    decoder.close()
    assert decoder.close() == []


@pytest.mark.parametrize(("kind", "good", "piece"), [
    (SseDecoder, b"data: " + b"x" * 500 + b"\n\n", b"x"),
    (SseDecoder, b"data: " + b"x" * 500 + b"\n\n", b"data: x\n"),
    (NdjsonDecoder, b"x" * 900 + b"\n", b"x"),
], ids=["one line", "many data lines", "a line of JSON"])  # fmt: skip
def test_an_event_without_end_is_refused(
    kind: type[SseDecoder] | type[NdjsonDecoder], good: bytes, piece: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A line and an event have a maximum size. The limit does not apply to the stream."""
    monkeypatch.setattr(server_sent_events, "MAX_EVENT_BYTES", 1000)
    decoder = kind()
    assert sum(len(decoder.feed(good)) for _ in range(10)) == 10
    with pytest.raises(StreamError, match="larger than 1000 bytes"):
        for _ in range(2000):
            decoder.feed(piece)


def test_lines_outside_of_events_are_kept_separately(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bare error at the end of a body can be read there. Comments and other fields can't. Their size is
    limited.
    """
    body = b': ping\nid: 7\nretry: 1\nevent: a\ndata: 1\n\n{\n  "error": 3\n}\n\ndata: 2\n\n'
    for size in (1, 3, 1000):
        decoder = SseDecoder()
        events = [event for at in range(0, len(body), size) for event in decoder.feed(body[at : at + size])]
        assert events + decoder.close() == [(b"a", b"1"), (b"", b"2")]
        assert decoder.other_lines == b'{\n  "error": 3\n}'
    monkeypatch.setattr(server_sent_events, "MAX_STRAY_BYTES", 1000)
    decoder = SseDecoder()
    for _ in range(100):
        decoder.feed(b"x" * 700 + b"\n")
    assert 1000 <= len(decoder.other_lines) < 2100


# -- Newline-delimited JSON: the lines are the same for any pieces of the network.


NDJSON_VECTORS: dict[str, tuple[bytes, list[bytes]]] = {
    "lf": (b'{"a":1}\n{"b":2}\n', [b'{"a":1}', b'{"b":2}']),
    "crlf": (b'{"a":1}\r\n{"b":2}\r\n', [b'{"a":1}', b'{"b":2}']),
    "a carriage return alone ends nothing": (b'{"a":\r1}\n', [b'{"a":\r1}']),
    "no end of the last line": (b'{"a":1}\n{"b":2}', [b'{"a":1}', b'{"b":2}']),
    "no line end at all": (b'{"a":1}', [b'{"a":1}']),
    "blank lines": (b'\n\r\n{"a":1}\n\n  \t\r\n{"b":2}\n\n', [b'{"a":1}', b'{"b":2}']),
    "space around a value": (b'  {"a":1} \t\n', [b'{"a":1}']),
    "line separators inside": ('{"a":"b\u2028c\u2029d\x85e\x0cf\x1eg"}\n1\n'.encode(),
        ['{"a":"b\u2028c\u2029d\x85e\x0cf\x1eg"}'.encode(), b"1"]),
    "escaped line feed inside": (b'{"a":"b\\nc"}\n', [b'{"a":"b\\nc"}']),
    "multibyte": ('{"a":"☃😀é"}\n'.encode(), ['{"a":"☃😀é"}'.encode()]),
    "byte order mark": (b"\xef\xbb\xbf1\n2\n", [b"1", b"2"]),
    "byte order mark later is content": (b"1\n\xef\xbb\xbf2\n", [b"1", b"\xef\xbb\xbf2"]),
    "nothing": (b"", []),
}  # fmt: skip


def decode_ndjson(chunks: list[bytes]) -> list[bytes]:
    decoder = NdjsonDecoder()
    events: list[SseEvent] = []
    for chunk in chunks:
        events += decoder.feed(chunk)
    events += decoder.close()
    assert all(name == b"" for name, _ in events)
    return [line for _, line in events]


@pytest.mark.parametrize("name", NDJSON_VECTORS)
def test_every_form_is_read_the_same_at_every_cut(name: str) -> None:
    """The stream is read as a whole, byte by byte, with empty pieces, and divided at every place."""
    body, expected = NDJSON_VECTORS[name]
    assert decode_ndjson([body]) == expected
    assert decode_ndjson([body[at : at + 1] for at in range(len(body))]) == expected
    assert decode_ndjson([piece for at in range(len(body)) for piece in (b"", body[at : at + 1])]) == expected
    for cut in range(len(body)):
        assert decode_ndjson([body[:cut], body[cut:]]) == expected


@given(st.lists(st.sampled_from([b'{"x":1}', b"\r", b"\n", b"\r\n", b" ", "☃\u2028".encode()])), st.data())
def test_ndjson_any_text_is_read_the_same_in_any_pieces(parts: list[bytes], data: st.DataObject) -> None:
    """This includes invalid text. The lines are the parts between line feeds."""
    body = b"".join(parts)
    cuts = data.draw(st.lists(st.integers(0, max(len(body), 1))))
    expected = [line for raw in body.split(b"\n") if (line := raw.strip(b" \t\r"))]
    assert decode_ndjson(pieces(body, cuts)) == expected
