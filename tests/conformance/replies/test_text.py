"""Text as it streams, whatever else a server puts around it."""

from __future__ import annotations

import pytest

from callboard.bus.streams.events import MessageStart, TextDelta, ToolUseStart
from callboard.bus.values.base import JsonObject
from callboard.bus.values.usage import StopReason

from ...support.wires import Wire
from ...support.wires import anthropic as a
from ...support.wires import chat as c
from ...support.wires import gemini as g
from ...support.wires import ollama as o
from ...support.wires import responses as r
from ...support.wires import tgi as t
from ...support.wires.reading import read, read_whole, shown
from .cases import CHAT, CLAUDE, EACH, GEMINI, OLLAMA, RESPONSES, TGI, Case, check, table

SAID = "Hello, ☃\u2028😀!"
HELLO = r.message("Hello")
PART = r.event("content_part.done", output_index=0, content_index=0, part={"type": "output_text", "text": "a"})
CHANGING = [{**r.text_delta(0, text), "item_id": f"msg_{text}"} for text in ("Hel", "lo")]


@EACH
def test_text_comes_as_it_arrives(wire: Wire) -> None:
    """Each delta is one event; the message says who answered, under which id, and why it ended in whose words."""
    body = wire.chunks(SAID)
    reading = read(wire, *[event for _, event in wire.events(SAID, 0, "end")])
    assert len(body) > 2
    assert [event.text for event in reading.events if isinstance(event, TextDelta)] == [SAID[:5], SAID[5:]]
    assert (reading.said, reading.last.stop_reason) == ([SAID], StopReason.END_TURN)
    assert reading.last.raw_stop_reason == wire._word("end")
    served = wire.body(SAID, 0, "end")
    model = served.get("model") or served.get("modelVersion") or wire.model
    assert reading.events[0] == MessageStart("msg_1", str(model), wire.name)
    assert reading.reply.response_id == (served.get("id") or served.get("responseId"))
    assert reading.warnings == []


CALL: JsonObject = {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {"a": 1}}
NULL_CHUNKS: list[JsonObject] = [
    {"choices": []},
    {"choices": None},
    {"choices": [None]},
    {"choices": [{"index": 0}]},
    {"choices": [{"index": 0, "delta": None}]},
    {"choices": [{"index": 0, "delta": {"content": None, "tool_calls": None, "refusal": None}}]},
    {"choices": [], "prompt_filter_results": [{}], "id": "", "model": "", "created": 0},
    {"type": "unheard-of", "id": 7, "model": []},
]
WHOLE_MESSAGE: JsonObject = {"choices": [{"message": {"content": "Hi"}, "finish_reason": "stop"}]}
SECOND: JsonObject = {"choices": [{"index": 1, "delta": {"content": "other"}}]}
OTHER_CANDIDATE: JsonObject = {"content": {"parts": [g.text("No")]}, "index": 1}
BOTH_CANDIDATES: JsonObject = {**g.chunk(), "candidates": [OTHER_CANDIDATE, *g.chunk(g.text("Yes"))["candidates"]]}


@table(
    Case(CLAUDE, "pings", [a.PING, a.message_start(), a.PING, a.text(0)[0], a.PING, *a.text(0, "a", "b")[1:2],
         a.PING, *a.text(0, "b")[1:], *a.ending()], ["ab"]),
    Case(CLAUDE, "content in its start", [a.message_start(content=[{"type": "text", "text": "First"}, CALL]),
         *a.ending("tool_use")], ["First", ("f", {"a": 1}, "toolu_1")]),
    Case(CLAUDE, "a second start before content", [a.message_start(id="msg_0", model="other"), a.message_start(),
         *a.text(0, "a"), *a.ending()], ["a"]),
    Case(CLAUDE, "a second start after content", [a.message_start(), *a.text(0, "a"),
         a.message_start({"input_tokens": 9}), *a.text(1, "b"), *a.ending()], ["a", "b"],
         warnings=["repeated_start"]),
    Case(CLAUDE, "null fields", [a.message_start(None, content=None), a.start(0, "text", text=None),
         a.delta(0, "text_delta", text=None), a.event("content_block_delta", index=0, delta=None),
         a.delta(0, "text_delta", text="a"), a.delta(0, "citations_delta", citation=None), a.stop(0),
         *a.ending(usage={})], ["a"]),
    Case(CLAUDE, "missing events", [
        a.event("content_block_delta", delta={"type": "thinking_delta", "thinking": "Hm"}),
        a.event("content_block_stop"),
        a.event("content_block_delta", index=4, delta={"type": "text_delta", "text": "a"}),
        a.event("content_block_delta", delta={"type": "text_delta", "text": "b"}),
        a.event("content_block_delta", index=5, delta={"type": "input_json_delta", "partial_json": "{}"}),
        a.event("content_block_delta", index=4),
        a.event("content_block_start", content_block={"type": "tool_use", "name": "f"}),
        a.event("message_delta"), a.event("message_stop"),
    ], [("thinking", "Hm"), "ab", ("f", {})], StopReason.PROVIDER_SPECIFIC,
         warnings=["stray_delta", "no_stop_reason"]),
    Case(CLAUDE, "deltas in blocks of another kind", [
        a.message_start(), a.start(0, "tool_use", id="t", name="f", input={}),
        a.delta(0, "input_json_delta", partial_json="{}"), a.delta(0, "text_delta", text="psst"), a.stop(0),
        a.start(1, "text", text=""), a.delta(1, "thinking_delta", thinking="hm"),
        a.delta(1, "text_delta", text="a"), a.stop(1), *a.ending("tool_use"),
    ], [("f", {}, "t"), "psst", ("thinking", "hm"), "a"], StopReason.TOOL_USE,
         warnings=["misplaced_delta"] * 2),
    Case(RESPONSES, "parts of one message", [r.CREATED, r.added(0, r.message("a", "b")), r.text_delta(0, "a"),
         PART, r.text_delta(0, "b", 1), r.done(0, r.message("a", "b")), r.ending()], ["a", "b"]),
    Case(RESPONSES, "ids that change", [r.CREATED, r.added(0, HELLO), *CHANGING,
         r.done(0, {**HELLO, "id": "other"}), r.ending()], ["Hello"]),
    Case(RESPONSES, "a later message speaks first", [r.CREATED, r.added(0, r.message("one")),
         r.added(1, r.message("two", item_id="msg_2")), r.text_delta(1, "two"),
         r.done(1, r.message("two", item_id="msg_2")), r.text_delta(0, "one"), r.done(0, r.message("one")),
         r.ending()], ["one", "two"]),
    Case(RESPONSES, "half of the deltas", [r.CREATED, r.added(0, HELLO), r.text_delta(0, "Hel"), r.done(0, HELLO),
         r.ending()], ["Hello"]),
    Case(RESPONSES, "deltas that say something else", [r.CREATED, r.added(0, HELLO), r.text_delta(0, "Hi"),
         r.done(0, HELLO), r.ending()], ["Hi"]),
    Case(RESPONSES, "strange events", [
        r.CREATED, r.event("invented.today", output_index="x", delta={"deep": [1]}), {"type": None},
        r.added(0, HELLO), r.text_delta(0, None), r.text_delta(0, "Hel", obfuscation="abc", summary_index="x"),
        {**r.text_delta(0, "lo"), "output_index": 0.0}, r.event("audio.delta", delta={"a": 1}),
        r.done(0, {**HELLO, "phase": 7, "call_id": []}), r.ending(model=5, incomplete_details="?"),
    ], ["Hello"], StopReason.END_TURN),
    *[Case(CHAT, f"nothing {number}", [odd, c.chunk(content="Hel"), odd, c.chunk(content="lo"), odd, c.STOP, odd,
           c.DONE], ["Hello"]) for number, odd in enumerate(NULL_CHUNKS)],
    Case(CHAT, "an event without data", [b"", c.chunk(content="Hi"), b"", c.STOP, c.DONE], ["Hi"]),
    Case(CHAT, "a whole message", [WHOLE_MESSAGE, c.DONE], ["Hi"]),
    Case(CHAT, "a second answer", [c.chunk(content="Hel"), SECOND, c.chunk(content="lo"), c.STOP, c.DONE],
         ["Hello"]),
    Case(CHAT, "half a surrogate pair", [b'{"choices":[{"delta":{"content":"a\\ud83d b"}}]}', c.STOP, c.DONE],
         ["a\ufffd b"], warnings=["body_mended"]),
    Case(GEMINI, "other candidates", [BOTH_CANDIDATES, {"candidates": [OTHER_CANDIDATE]}, g.END], ["Yes"],
         warnings=["extra_candidates"]),
    Case(GEMINI, "empty parts", [g.chunk({}, g.text("Hi"), {}), g.END], ["Hi"], warnings=["unknown_content"]),
    Case(GEMINI, "half a surrogate pair", [
        b'{"candidates":[{"content":{"parts":[{"text":"A"},{"text":"\\ud83d"},{"hologram":1}]}}]}',
        b'{"candidates":[{"content":{"parts":[{"text":"B"}]},"groundingMetadata":{"q":"\\ud83d"}}]}', g.END],
        ["A\ufffd", {"hologram": {"hologram": 1}}, "B",
         {"groundingMetadata": {"groundingMetadata": {"q": "\ufffd"}}}],
         warnings=["body_mended"]),
    Case(GEMINI, "a finish reason in every chunk", [g.chunk(g.text("A"), finish="STOP"),
         g.chunk(g.text("B"), finish="MAX_TOKENS"), {"usageMetadata": g.USAGE}], ["AB"], StopReason.MAX_TOKENS),
    Case(OLLAMA, "text in the last line", [o.line(content="Hi"), o.last(content=" there")], ["Hi there"]),
    Case(TGI, "special tokens", [t.token(" It"), t.token(" is ☃"), t.token("<s>", special=True),
         t.end(" It is ☃", t.details())], ["It is ☃"], StopReason.END_TURN, deltas=["It", " is ☃"]),
    Case(TGI, "a last token of text", [t.token("Once"), t.end("Once upon", t.details("length"), " upon",
         special=False)], ["Once upon"], StopReason.MAX_TOKENS),
    Case(TGI, "all at the end", [t.end("Hi there", t.details())], ["Hi there"]),
    Case(TGI, "the space before a chat model's reply", [t.token(" Hi"), t.end(" Hi", t.details())], [" Hi"],
         changes={"config": {"options": {"template": "chatml"}}}),
)  # fmt: skip
def test_what_stands_around_a_text_changes_nothing(case: Case) -> None:
    """What is said is read, whatever is missing, repeated, null or odd beside it."""
    check(case)


def test_text_is_shown_before_a_stop_that_comes_late() -> None:
    """A later block's start ends text, so nothing that was written is held back to the message's end."""
    begun = [a.message_start(), a.start(0, "text", text=""), a.delta(0, "text_delta", text="a")]
    events = shown(CLAUDE, *begun, a.start(1, "tool_use", id="t", name="f"))
    assert [type(event) for event in events] == [MessageStart, TextDelta, ToolUseStart]


@pytest.mark.parametrize("item", [HELLO, r.reasoning("Why"), r.call("f", "{}")], ids=["text", "thinking", "call"])
def test_what_the_deltas_left_out_is_taken_from_the_item(item: JsonObject) -> None:
    """From the finished item, and from the response if that is missing."""
    whole = read_whole(RESPONSES, r.response(output=[item]))
    for streamed in (
        [r.added(0, item), r.done(0, item), r.ending()],
        [r.done(0, item), r.ending()],
        [r.added(0, item), r.ending(output=[item])],
        [r.ending(output=[item])],
    ):
        reading = read(RESPONSES, r.CREATED, *streamed)
        assert (reading.said, reading.kept) == (whole.said, whole.kept)
        assert reading.last.stop_reason is whole.reply.stop_reason


def test_an_item_that_never_speaks_holds_nothing_for_ever() -> None:
    """An announced item without an end delays later ones to the reply's end, and is taken from its output."""
    item = r.reasoning("Why")
    streamed = [r.CREATED, r.added(0, item), r.added(1, HELLO), r.text_delta(1, "Hello"), r.done(1, HELLO)]
    assert shown(RESPONSES, *streamed) == []
    whole = read(RESPONSES, *streamed, r.ending(output=[item, HELLO]))
    assert whole.said == [("thinking", "Why", "secret 1"), "Hello"]
    assert read(RESPONSES, *streamed, r.ending()).said == ["Hello"]
