"""Reasoning: shown, signed, hidden, in tags or in details, and what is kept of it for its way back."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from callboard.bus.streams.events import ThinkingDelta
from callboard.bus.values.base import Json, JsonObject
from callboard.bus.values.content import ThinkingBlock

from ...support.wires import Wire
from ...support.wires import anthropic as a
from ...support.wires import chat as c
from ...support.wires import gemini as g
from ...support.wires import ollama as o
from ...support.wires import responses as r
from ...support.wires.reading import read, read_pieces, read_whole, shown
from .cases import CHAT, CLAUDE, GEMINI, OLLAMA, RESPONSES, Case, check, table

HELLO = r.message("Hello")
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
def test_reasoning_is_kept_apart_and_whole(case: Case) -> None:
    """It stands before the text, with its signature and with all that its provider wants back."""
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
    """And none of the others has one."""
    deltas = [event for event in read(wire, *events).events if isinstance(event, ThinkingDelta)]
    assert [(event.text, event.signature) for event in deltas] == [("Hm", None), ("", "c2ln")]


def test_reasoning_that_is_only_announced_starts_no_message() -> None:
    """So an attempt that fails after it can be repeated."""
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


@pytest.mark.parametrize(
    ("changes", "said", "thinking", "text"),
    [
        (PAIRED, "<think>\nHmm</think>\n\n42", "\nHmm", "42"),
        (PAIRED, "\n <think>Hmm</think>", "Hmm", ""),
        (PAIRED, "<think>a < b </thin k></think>42", "a < b </thin k>", "42"),
        (PAIRED, "<think>never closed", "never closed", ""),
        (PAIRED, "The tag <think> is text here</think>", "", "The tag <think> is text here</think>"),
        (PAIRED, "<thin", "", "<thin"),
        (OPEN, "Hmm</think>42", "Hmm", "42"),
        (OPEN, "<think>Hmm</think>42", "Hmm", "42"),
        ({}, "<think>Hmm</think>42", "", "<think>Hmm</think>42"),
    ],
)
def test_think_tags(changes: dict[str, object], said: str, thinking: str, text: str) -> None:
    """Tags count at the start of a reply, where the quirks say so; there the first may be missing, too."""
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
    """However a text is cut, the same comes out, and nothing but tags and blank lines is gone."""
    said = "".join(parts)
    results = []
    for step in (size, max(len(said), 1)):
        deltas = [c.chunk(content=said[at : at + step]) for at in range(0, len(said), step)]
        results.append(read_pieces(CHAT, [CHAT.stream(*deltas, c.STOP, c.DONE)], **PAIRED).said)
    assert results[0] == results[1]
    kept = "".join(block[1] if isinstance(block, tuple) else str(block) for block in results[0]).replace(" ", "")
    bare = said.replace(" ", "")
    assert kept in (bare, bare.replace("<think>", "", 1).replace("</think>", "", 1))
