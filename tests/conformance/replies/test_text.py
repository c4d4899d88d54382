"""Streamed text and reasoning, and replies as their provider sent them."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from callboard.adapters.http import fidelity
from callboard.adapters.http.fidelity import RawKept
from callboard.bus.streams.events import MessageStart, ProviderEvent, TextDelta, ThinkingDelta, ToolUseStart
from callboard.bus.values.base import Json, JsonObject
from callboard.bus.values.content import ThinkingBlock
from callboard.bus.values.messages import RawReply
from callboard.bus.values.usage import StopReason

from ...support.fake_http import pieces
from ...support.wires import Wire
from ...support.wires import anthropic as a
from ...support.wires import chat as c
from ...support.wires import gemini as g
from ...support.wires import ollama as o
from ...support.wires import responses as r
from ...support.wires import tgi as t
from ...support.wires.reading import read, read_pieces, read_whole, shown
from .cases import CHAT, CLAUDE, EACH, GEMINI, HI, OLLAMA, OVER, RESPONSES, TGI, Case, check, table

pytestmark = pytest.mark.more("streams arrive byte by byte, too")

HELLO = r.message("Hello")
PART = r.event("content_part.done", output_index=0, content_index=0, part={"type": "output_text", "text": "a"})
CHANGING = [{**r.text_delta(0, text), "item_id": f"msg_{text}"} for text in ("Hel", "lo")]


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
    Case(CLAUDE, "a block that is none, and one that begins twice", [a.message_start(),
         a.event("content_block_start", index=0, content_block=7), a.start(0, "text", text=""),
         a.delta(0, "text_delta", text="a"), a.start(0, "text", text=""), a.delta(0, "text_delta", text="b"),
         a.stop(0), *a.ending()], ["a", "b"], warnings=["unknown_content"]),
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
def test_fields_around_a_text_are_ignored(case: Case) -> None:
    """The text is read, even if other fields are missing, repeated, null or odd."""
    check(case)


def test_text_is_delivered_before_a_late_stop() -> None:
    """The start of a later block ends the text, so no text is held back until the end of the message."""
    begun = [a.message_start(), a.start(0, "text", text=""), a.delta(0, "text_delta", text="a")]
    events = shown(CLAUDE, *begun, a.start(1, "tool_use", id="t", name="f"))
    assert [type(event) for event in events] == [MessageStart, TextDelta, ToolUseStart]


def test_text_without_deltas_is_taken_from_the_item() -> None:
    """The text comes from the finished item or, without an item, from the response."""
    for item in (HELLO, r.reasoning("Why"), r.call("f", "{}")):
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


def test_an_item_without_an_end_delays_others_until_the_end() -> None:
    """An announced item without an end delays later items to the end of the reply. Its content comes from the
    output.
    """
    item = r.reasoning("Why")
    streamed = [r.CREATED, r.added(0, item), r.added(1, HELLO), r.text_delta(1, "Hello"), r.done(1, HELLO)]
    assert shown(RESPONSES, *streamed) == []
    whole = read(RESPONSES, *streamed, r.ending(output=[item, HELLO]))
    assert whole.said == [("thinking", "Why", "secret 1"), "Hello"]
    assert read(RESPONSES, *streamed, r.ending()).said == ["Hello"]


# -- Reasoning: visible, signed, hidden, in tags or in details, and the parts that are sent back.


RAW_ITEM = {"type": "reasoning", "id": "rs_tmp_1", "summary": []}
RAW = {**RAW_ITEM, "content": [{"type": "reasoning_text", "text": "Hm."}]}
RAW_DELTA = r.event("reasoning_text.delta", output_index=0, item_id="rs_tmp_1", content_index=0, delta="Hm.")
SUMMARY = r.reasoning("First.", "Second.")
SPOKEN = [r.added(1, HELLO), r.text_delta(1, "Hello"), r.done(1, HELLO), r.ending()]


def claude(*events: JsonObject) -> list[JsonObject]:
    return [a.message_start(), *events, *a.text(1, "So."), *a.ending()]


def chat(*chunks: JsonObject) -> list[JsonObject | bytes]:
    return [*chunks, c.chunk(content="So."), c.STOP, c.DONE]


def detail(text: str | None = None, **fields: Json) -> JsonObject:
    said: JsonObject = {} if text is None else {"text": text}
    return {"type": "reasoning.text", "index": 0, **said, "format": "f", **fields}


ENCRYPTED: JsonObject = {"type": "reasoning.encrypted", "index": 1, "data": "xyz"}
OF_MISTRAL: Json = {"type": "thinking", "thinking": [{"type": "text", "text": "Let me see."}]}
GOOGLE: Json = {"google": {"thought_signature": "c2ln"}}
BOTH = ("reasoning_content", "reasoning")


@table(
    Case(CLAUDE, "signed", claude(a.start(0, "thinking", thinking="", signature=""),
         a.delta(0, "thinking_delta", thinking="Hm", estimated_tokens=3), a.delta(0, "thinking_delta",
         thinking="m."),
         a.delta(0, "signature_delta", signature="c2ln"), a.stop(0)), [("thinking", "Hmm.", "c2ln"), "So."],
         deltas=["Hm", "m.", "", "So."]),
    Case(CLAUDE, "omitted", claude(a.start(0, "thinking", thinking="", signature=""),
         a.delta(0, "signature_delta", signature="c2ln"), a.stop(0)), [("thinking", "", "c2ln"), "So."]),
    Case(CLAUDE, "redacted", claude(a.start(0, "redacted_thinking", data="ZGF0YQ"), a.stop(0)),
         [("redacted", "ZGF0YQ"), "So."]),
    Case(CLAUDE, "signed too late", [a.message_start(), a.start(0, "thinking", thinking=""),
         a.delta(0, "thinking_delta", thinking="Hm"), a.start(1, "text", text=""), a.delta(1, "text_delta",
         text="a"),
         a.delta(0, "signature_delta", signature="late"), *a.ending()], [("thinking", "Hm"), "a"],
         warnings=["late_signature"]),
    Case(RESPONSES, "a summary of parts", [r.CREATED, r.added(0, SUMMARY), r.summary_delta(0, "Fir"),
         r.summary_delta(0, "st."), r.summary_delta(0, "Second.", 1), r.done(0, SUMMARY), *SPOKEN],
         [("thinking", "First."), ("thinking", "Second.", "secret 1"), "Hello"],
         kept=[{"type": "reasoning_part"}, SUMMARY, {"item_id": "msg_1", "after": "rs_1"}]),
    Case(RESPONSES, "hidden", [r.CREATED, r.added(0, r.reasoning()), r.done(0, r.reasoning()), *SPOKEN],
         [("thinking", "", "secret 1"), "Hello"]),
    Case(RESPONSES, "text without a summary", [r.CREATED, r.added(0, RAW_ITEM), RAW_DELTA,
         r.event("content_part.done",
         output_index=0, item_id="rs_tmp_1", part={"type": "reasoning_text", "text": "Hm."}), r.done(0, RAW),
         *SPOKEN, b"[DONE]"], [("thinking", "Hm."), "Hello"]),
    *[Case(CHAT, "+".join(fields), chat(c.chunk(**dict.fromkeys(fields, "Let me ")),
           c.chunk(content=None, **dict.fromkeys(fields, "see."))), [("thinking", "Let me see."), "So."])
      for fields in (BOTH[:1], BOTH[1:], BOTH)],
    Case(CHAT, "details in pieces", chat(c.chunk(reasoning="Let me ", reasoning_details=[detail("Let me ")]),
         c.chunk(reasoning="see.", reasoning_details=[detail("see.")]),
         c.chunk(reasoning=None, reasoning_details=[detail(signature="c2ln"), ENCRYPTED])),
         [("thinking", "Let me see.", "c2ln"), "So."],
         kept=[{"reasoning_details": [detail("Let me see.", signature="c2ln"), ENCRYPTED]}, None]),
    Case(CHAT, "details alone", chat(c.chunk(reasoning_details=[{"type": "reasoning.summary",
         "summary": "Hmm."}])),
         [("thinking", "Hmm."), "So."]),
    Case(CHAT, "parts of a list", [c.chunk(content=[OF_MISTRAL]), c.chunk(content=[{"type": "text", "text": "42"},
         {"type": "reference", "reference_ids": [1]}]), c.chunk(content="!"), c.STOP, c.DONE],
         [("thinking", "Let me see."), "42", {"reference": {"type": "reference", "reference_ids": [1]}}, "!"]),
    Case(CHAT, "a signature alone", chat(c.chunk(extra_content=GOOGLE)), [("thinking", "", "c2ln"), "So."]),
    Case(GEMINI, "in parts", [g.chunk(g.thought("Let me ")), g.chunk(g.thought("see.")), g.chunk(g.text("So")),
         g.chunk(g.text(".")), g.END], [("thinking", "Let me see."), "So."]),
    Case(GEMINI, "signed, then another", [g.chunk(g.thought("One", "c2lnMQ==")), g.chunk(g.thought("Two")), g.END],
         [("thinking", "One", "c2lnMQ=="), ("thinking", "Two")]),
    Case(GEMINI, "a signed piece of text", [g.chunk(g.text("Hello")), g.chunk(g.text(" you", "c2ln")),
         g.chunk(g.text("!")), g.END], ["Hello you!"],
         kept=[{"signatures": [{"start": 5, "end": 9, "signature": "c2ln"}]}]),
    *[Case(GEMINI, f"a trailing signature {number}", [g.chunk(g.text("Hello")), g.chunk(last, finish="STOP",
           usage=g.USAGE)], ["Hello"], kept=[{"signatures": [{"start": 5, "end": 5, "signature": "c2ln"}]}])
      for number, last in enumerate([g.text("", "c2ln"), {"thoughtSignature": "c2ln"}])],
    Case(GEMINI, "a signature after a call", [g.chunk(g.call("go", args={})), g.chunk(g.text("", "c2ln")), g.END],
         [("go", {}, None), {"thoughtSignature": {"text": "", "thoughtSignature": "c2ln"}}]),
    Case(OLLAMA, "in lines", [o.line(thinking="Let me"), o.line(thinking=" see ☃"), o.line(content="So."),
         o.last()],
         [("thinking", "Let me see ☃"), "So."], deltas=["Let me", " see ☃", "So."]),
)  # fmt: skip
def test_reasoning_is_kept_separate_and_complete(case: Case) -> None:
    """The reasoning comes before the text. It has its signature and all data that the provider needs again."""
    check(case)


@pytest.mark.parametrize(
    ("wire", "events"),
    [
        (CLAUDE, claude(a.start(0, "thinking", thinking=""), a.delta(0, "thinking_delta", thinking="Hm"),
                        a.delta(0, "signature_delta", signature="c2ln"), a.stop(0))),
        (RESPONSES, [r.CREATED, r.added(0, r.reasoning("Hm")), r.summary_delta(0, "Hm"),
                     r.done(0, r.reasoning("Hm", encrypted_content="c2ln")), *SPOKEN]),
        (GEMINI, [g.chunk(g.thought("Hm", "c2ln")), g.chunk(g.text("So.")), g.END]),
    ],
    ids=["anthropic", "openai", "gemini"],
)  # fmt: skip
def test_the_signature_is_on_the_last_delta(wire: Wire, events: list[JsonObject]) -> None:
    """No other delta has a signature."""
    deltas = [event for event in read(wire, *events).events if isinstance(event, ThinkingDelta)]
    assert [(event.text, event.signature) for event in deltas] == [("Hm", None), ("", "c2ln")]


def test_reasoning_that_is_only_announced_starts_no_message() -> None:
    """An attempt that fails then can be repeated."""
    assert shown(RESPONSES, r.CREATED, r.added(0, r.reasoning())) == []
    failed = r.event("failed", response=r.response("failed", error={"code": "server_error"}, usage=None))
    reading = read(RESPONSES, r.CREATED, r.added(0, r.reasoning()), failed)
    assert reading.events == []
    assert reading.error is not None
    assert reading.error.retryable


def test_a_summary_goes_before_the_raw_reasoning() -> None:
    content = [{"type": "reasoning_text", "text": "raw"}]
    for summary, expected in (((), "raw"), (("summary",), "summary")):
        reading = read_whole(RESPONSES, r.response(output=[r.reasoning(*summary, content=content)]))
        assert [block.text for block in reading.content if isinstance(block, ThinkingBlock)] == [expected]


# -- think tags

PAIRED, OPEN = ({"config": {"options": {"quirks": {"think_tags": tags}}}} for tags in ("paired", "open"))


@pytest.mark.parametrize(("changes", "said", "thinking", "text"), [
    (PAIRED, "<think>\nHmm</think>\n\n42", "\nHmm", "42"),
    (PAIRED, "\n <think>Hmm</think>", "Hmm", ""),
    (PAIRED, "<think>a < b </thin k></think>42", "a < b </thin k>", "42"),
    (PAIRED, "<think>never closed", "never closed", ""),
    (PAIRED, "The tag <think> is text here</think>", "", "The tag <think> is text here</think>"),
    (PAIRED, "<thin", "", "<thin"),
    (OPEN, "Hmm</think>42", "Hmm", "42"),
    (OPEN, "<think>Hmm</think>42", "Hmm", "42"),
    ({}, "<think>Hmm</think>42", "", "<think>Hmm</think>42"),
])  # fmt: skip
def test_think_tags(changes: dict[str, object], said: str, thinking: str, text: str) -> None:
    """Tags are read at the start of a reply if the quirks ask for it. Then the first tag may be missing."""
    expected: list[object] = [("thinking", thinking)] if thinking else []
    for size in (1, 3, len(said)):
        deltas = [c.chunk(content=said[at : at + size]) for at in range(0, len(said), size)]
        reading = read_pieces(CHAT, [CHAT.stream(*deltas, c.STOP, c.DONE)], **changes)
        assert reading.said == expected + ([text] if text else [])


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.sampled_from(["<think>", "</think>", "<", "think>", "/", "x", " "]), max_size=8), st.integers(1, 5)
)
def test_think_tags_lose_nothing(parts: list[str], size: int) -> None:
    """The result is the same for any pieces. Only tags and blank lines are removed."""
    said = "".join(parts)
    results = []
    for step in (size, max(len(said), 1)):
        deltas = [c.chunk(content=said[at : at + step]) for at in range(0, len(said), step)]
        results.append(read_pieces(CHAT, [CHAT.stream(*deltas, c.STOP, c.DONE)], **PAIRED).said)
    assert results[0] == results[1]
    kept = "".join(block[1] if isinstance(block, tuple) else str(block) for block in results[0]).replace(" ", "")
    bare = said.replace(" ", "")
    assert kept in (bare, bare.replace("<think>", "", 1).replace("</think>", "", 1))


# -- The original reply of the provider: kept on every wire if requested, and otherwise on none.


TEXT = "Hé, ☃\u2028😀!"


@EACH
@settings(max_examples=10, deadline=None)
@given(cuts=st.lists(st.integers(0, 4000), max_size=30))
def test_the_events_of_a_stream_are_kept_in_their_order(wire: Wire, cuts: list[int]) -> None:
    """The events do not depend on the network's pieces, and the content is the same as without the option."""
    body = wire.stream(*[event for _, event in wire.events(TEXT, *wire.most)])
    kept = read_pieces(wire, pieces(body, cuts), include_raw=True)
    sent = tuple(event for _, event in wire.events(TEXT, *wire.most) if isinstance(event, dict))
    assert kept.reply.raw == RawReply(events=sent)
    plain = read_pieces(wire, pieces(body, cuts))
    assert plain.reply.raw is None
    assert plain.said == kept.said


@EACH
def test_the_body_of_a_plain_reply_is_kept(wire: Wire) -> None:
    """Broken JSON is kept as text, although it is repaired before it is read. A key that a server repeats is
    masked, and an end mark is no event.
    """
    body = wire.body(TEXT, *wire.most)
    assert read_whole(wire, body, include_raw=True).reply.raw == RawReply(body=body)
    assert read_whole(wire, body).reply.raw is None
    broken = msgspec.json.encode(wire.body("***", 0, "end")).replace(b"***", b"\\ud83d")
    assert read_whole(wire, broken, include_raw=True).reply.raw == RawReply(body=broken.decode())
    config = {"api_key": "sk-hidden-key"}
    kept = read_whole(wire, wire.body("sk-hidden-key", 0, "end"), include_raw=True, config=config).reply.raw
    assert kept is not None
    assert ("sk-hidden-key" in str(kept.body), "***" in str(kept.body)) == (False, True)
    sent = [*HI[wire.name], *OVER[wire.name]]
    kept = read_pieces(wire, [wire.stream(*sent)], include_raw=True).reply.raw
    assert kept is not None
    assert all(isinstance(event, dict) for event in kept.events)
    assert len(kept.events) == len(sent) - (wire.name == "openai_compatible")


def test_the_original_reply_is_limited_and_counts_missing_events(monkeypatch: pytest.MonkeyPatch) -> None:
    """After the first event above the limit, no event is kept, so there are no gaps."""
    monkeypatch.setattr(fidelity, "MAX_RAW_BYTES", 5)
    kept = RawKept()
    for data in (b"12", b"345", b"6", b"", b"7"):
        kept.event(data)
    assert kept.reply(()) == RawReply(events=(12, 345), left_out=3)
    large = RawKept()
    large.body(b"123456")
    assert large.reply(()) == RawReply(left_out=1)


def test_live_readers_get_a_citation_with_the_place_of_its_text() -> None:
    """Anthropic sends a citation before or after its text."""
    first: Json = {"type": "char_location", "cited_text": "a", "document_index": 0}
    second: Json = {"type": "char_location", "cited_text": "b", "document_index": 0}
    events = shown(
        CLAUDE, a.message_start(), *a.text(0, "Hi"), a.start(1, "text", text=""),
        a.delta(1, "citations_delta", citation=first), a.delta(1, "text_delta", text="a"),
        a.delta(1, "citations_delta", citation=second), a.stop(1),
    )  # fmt: skip
    told = [event for event in events if isinstance(event, TextDelta | ProviderEvent)]
    assert [event.raw if isinstance(event, ProviderEvent) else event.text for event in told] == [
        "Hi",
        {"block": 1, "citation": first},
        "a",
        {"block": 1, "citation": second},
    ]
