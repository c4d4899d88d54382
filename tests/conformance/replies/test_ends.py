"""How streams end, and how they only seem to."""

from __future__ import annotations

import pytest

from callboard.bus.errors import StreamError
from callboard.bus.values.base import Json, JsonObject
from callboard.bus.values.usage import StopReason

from ...support.wires import WIRES, Wire
from ...support.wires import anthropic as a
from ...support.wires import chat as c
from ...support.wires import gemini as g
from ...support.wires import interactions as i
from ...support.wires import ollama as o
from ...support.wires import responses as r
from ...support.wires.reading import read, read_pieces, read_whole
from ..endings import ENDINGS
from .cases import CHAT, CLAUDE, EACH, GEMINI, HI, OLLAMA, OVER, RESPONSES, Case, check, quirky, table

ERROR: JsonObject = {"error": {"message": "late"}}
LATER: dict[str, list[JsonObject | bytes]] = {
    "anthropic": [b"[DONE]", b"not json", a.event("error", error={})],
    "openai": [b"[DONE]", r.ending("failed", error={"code": "server_error"})],
    "openai_compatible": [ERROR],
    "gemini": [b"[DONE]"],
    "interactions": [b"[DONE]", b"not json", i.event("error", error={})],
    "ollama": [o.line(content=" there"), {"error": "late"}],
    "tgi": [],
}


@EACH
def test_what_follows_the_end_is_ignored(wire: Wire) -> None:
    """Another protocol's mark of the end, an error that comes late, and what is no JSON."""
    reading = read(wire, *HI[wire.name], *OVER[wire.name], *LATER[wire.name])
    assert (reading.said, reading.last.stop_reason) == (["Hi"], StopReason.END_TURN)


def broken(wire: Wire) -> list[tuple[JsonObject | bytes, ...]]:
    """What may stand in place of a stream's end."""
    nonsense: list[tuple[JsonObject | bytes, ...]] = [
        (),
        (b"{",),
        (b"[1]",),
        (b"7",),
        (b"null",),
        (b"[" * 100_000,),
    ]
    own: dict[str, list[tuple[JsonObject | bytes, ...]]] = {
        "anthropic": [(a.ending()[0],), (b'{"type":"content_block_delta","delta":7}',), (b"<html>",), (b"\xff",)],
        "openai": [(b"[DONE]",), (b" [DONE] ",), (b'{"type":"response.created","x":' + b"[" * 50_000 + b"}",)],
        "openai_compatible": [(c.DONE,), (c.chunk(""), c.DONE), ({"choices": [], "usage": c.USAGE}, c.DONE),
        (b"",),
                              ({"type": "ping"},), ({"choices": [], "usage": c.USAGE},), (b'{"choices": 7}',),
                              (b"\x00",)],
        "gemini": [(g.chunk(g.text("A"), finish="FINISH_REASON_UNSPECIFIED"),), ({"candidates": []},)],
        "interactions": [(i.stop(0),), (b"[DONE]",), (i.event("interaction.status_update", status="completed"),),
                         (b'{"event_type":"step.delta","delta":7}',)],
        "ollama": [(o.line(thinking="Hm"),), (o.line(tool_calls=[o.call("look", {})]),), (b"<html>",),
                   (b'{"message":{"con',), (b'{"message":"text"}',)],
        "tgi": [(b'{"token": 1}',)],
    }  # fmt: skip
    return [*nonsense, *own[wire.name]]


@pytest.mark.parametrize(("wire", "ends"), [(wire, ends) for wire in WIRES for ends in broken(wire)],
                         ids=lambda value: getattr(value, "name", None) or repr(value)[:30])  # fmt: skip
def test_a_stream_without_its_end_is_broken(wire: Wire, ends: tuple[JsonObject | bytes, ...]) -> None:
    """Whatever it ends in, what had come stays; and it may be asked for again."""
    reading = read_pieces(wire, [wire.stream(*HI[wire.name], *ends)])
    assert type(reading.error) is StreamError
    assert reading.error.retryable
    assert reading.said[:1] in (["Hi"], ["HiA"])
    assert reading.last.stop_reason is StopReason.ERROR
    assert type(read_pieces(wire, [wire.stream(*ends)]).error) is StreamError


@pytest.mark.parametrize("stray", [b"", b"<html>", b'{"what": 1}', b"[1]", b"null", b"\xff"])
def test_other_text_at_the_end_is_no_error_of_theirs(stray: bytes) -> None:
    """The stream is cut off, as it would be without it."""
    error = read_pieces(GEMINI, [GEMINI.stream(g.chunk(g.text("A"))) + stray]).error
    assert isinstance(error, StreamError)
    assert "ended before" in str(error)


LATE: list[Json] = [None, "", "stop"]
LIMIT: JsonObject = {"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 64}}
NO_REASON = quirky("snowflake")


NO_WORD = {**o.METRICS, "eval_count": 64}


@table(
    *[Case(OLLAMA, f"no reason but the count, {reason!r}", [*HI["ollama"], o.last(reason, NO_WORD)], ["Hi"],
           StopReason.MAX_TOKENS) for reason in (None, "")],
    Case(CHAT, "without [DONE]", [*HI["openai_compatible"], c.STOP], ["Hi"], StopReason.END_TURN),
    *[Case(CHAT, f"{late!r} after it", [*HI["openai_compatible"], c.STOP, c.chunk(late, content="")
           | {"usage": c.USAGE}, c.DONE], ["Hi"], StopReason.END_TURN) for late in LATE],
    *[Case(NO_REASON, f"none, {name}", [*events, c.DONE], said, stop) for name, events, said, stop in [
        ("text", HI["openai_compatible"], ["Hi"], StopReason.END_TURN),
        ("empty", [*HI["openai_compatible"], c.chunk("")], ["Hi"], StopReason.END_TURN),
        ("call", [c.tools(c.tool(arguments="{}"))], [("look", {}, "call_1")], StopReason.TOOL_USE),
        ("limit", [*HI["openai_compatible"], LIMIT], ["Hi"], StopReason.MAX_TOKENS),
    ]],
    Case(CHAT, "for calls, and there are none", [*HI["openai_compatible"], c.chunk("tool_calls"), c.DONE], ["Hi"],
         StopReason.END_TURN),
    Case(CHAT, "a refusal", [c.chunk(content=None, refusal="I can't"), c.chunk(refusal=" do that."), c.STOP,
         c.DONE],
         ["I can't do that."], StopReason.REFUSAL),
    Case(CLAUDE, "an empty refusal", [a.message_start(), *a.ending("refusal", stop_details={
         "type": "refusal", "category": "bio", "explanation": "Not that."})], [], StopReason.REFUSAL,
         warnings=["refusal"]),
    Case(CLAUDE, "[DONE] before it", [*HI["anthropic"], b" [DONE] ", *a.ending()], ["Hi"], StopReason.END_TURN),
    Case(GEMINI, "a blocked prompt", [{"promptFeedback": {"blockReason": "PROHIBITED_CONTENT",
         "blockReasonMessage": "Not that."}, "usageMetadata": {"promptTokenCount": 9}}], [],
         StopReason.CONTENT_FILTER, warnings=["finish_message"]),
    Case(GEMINI, "harmless feedback", [{**g.chunk(g.text("A")), "promptFeedback": {"safetyRatings": []}}, g.END],
         ["A"], StopReason.END_TURN),
    Case(GEMINI, "a malformed call", [g.chunk(finish="MALFORMED_FUNCTION_CALL", finishMessage="print(",
         usage=g.USAGE)], [], StopReason.PROVIDER_SPECIFIC, warnings=["finish_message"]),
    *[Case(RESPONSES, f"waits for the host: {stop}", [r.CREATED, *[r.done(index, item) for index, item in
           enumerate(items)], r.ending()], [{str(item["type"]): item} for item in items], stop) for items,
           stop in [
        ([{"type": "tool_search_call", "call_id": "c1", "execution": "client"}], StopReason.TOOL_USE),
        ([{"type": "tool_search_call", "call_id": None, "execution": "server"}], StopReason.END_TURN),
        ([{"type": "shell_call", "call_id": "c1"}, {"type": "shell_call_output", "call_id": "c1"}],
         StopReason.END_TURN),
    ]],
    *[Case(RESPONSES, f"{status}, in its own words", [*HI["openai"], r.ending(status, incomplete_details={
           "reason": "steered"})], ["Hi"], StopReason.PROVIDER_SPECIFIC) for status in ("incomplete",
           "cancelled")],
)  # fmt: skip
def test_odd_ends(case: Case) -> None:
    """What is said of a reply's end is kept, however it is said."""
    check(case)


SAID = [
    (wire, word) for wire in WIRES for word, means in ENDINGS[wire.name].items() if not isinstance(means, type)
]


@pytest.mark.parametrize(("wire", "word"), SAID, ids=lambda value: getattr(value, "name", None) or str(value))
def test_a_replys_own_word_for_its_end_is_kept(wire: Wire, word: str) -> None:
    """Beside what it means, and nothing is made up where there is none."""
    reply = read_whole(wire, wire.body("Hi", 0, word)).reply
    assert reply.raw_stop_reason == wire._word(word)


def test_an_incomplete_response_without_a_reason_says_so() -> None:
    reply = read_whole(RESPONSES, r.response("incomplete", output=[r.message("Hi")])).reply
    assert (reply.stop_reason, reply.raw_stop_reason) == (StopReason.PROVIDER_SPECIFIC, "incomplete")


@pytest.mark.parametrize("streamed", ["whole", "deltas alone", "item alone"])
def test_a_refusal_of_responses_is_text(streamed: str) -> None:
    """And the reason why the reply ended."""
    item = r.message(content=[{"type": "refusal", "refusal": "I can't."}])
    deltas = [r.event("refusal.delta", output_index=0, content_index=0, delta=part) for part in ("I ", "can't.")]
    events = {"whole": [r.added(0, item), *deltas, r.done(0, item)], "deltas alone": [r.added(0, item), *deltas],
              "item alone": [r.done(0, item)]}[streamed]  # fmt: skip
    reading = read(RESPONSES, r.CREATED, *events, r.ending())
    assert (reading.said, reading.last.stop_reason) == (["I can't."], StopReason.REFUSAL)


def test_llama_cpp_says_completed_at_the_limit() -> None:
    """A minimal beginning, no indexes, all ends last; the count of tokens tells where the limit was reached."""
    think = {"type": "reasoning", "id": "rs_x", "summary": [], "content": [], "encrypted_content": ""}
    whole = {**think, "content": [{"type": "reasoning_text", "text": "Hm"}]}
    item = r.message("Hello")
    events = [
        r.event("created", response={"id": "resp_1", "object": "response", "status": "in_progress"}),
        r.event("output_item.added", item=think),
        r.event("reasoning_text.delta", item_id="rs_x", delta="Hm"),
        r.event("output_item.added", item=r.message()),
        r.event("content_part.added", item_id="msg_1", part={"type": "output_text", "text": ""}),
        r.event("output_text.delta", item_id="msg_1", delta="Hello"),
        r.event("output_item.done", item=whole),
        r.event("output_text.done", item_id="msg_1", text="Hello"),
        r.event("output_item.done", item=item),
        r.ending(output=[whole, item], usage={"input_tokens": 3, "output_tokens": 7}),
    ]
    config = {"options": {"quirks": "llama.cpp"}}
    for limit, stop in ((7, StopReason.MAX_TOKENS), (8, StopReason.END_TURN)):
        reading = read(RESPONSES, *events, config=config, max_output_tokens=limit)
        assert reading.said == [("thinking", "Hm"), "Hello"]
        assert (reading.last.stop_reason, reading.last.raw_stop_reason) == (stop, "completed")
        body = r.response(output=[item], usage={"input_tokens": 3, "output_tokens": 7})
        assert read_whole(RESPONSES, body, config=config, max_output_tokens=limit).reply.stop_reason is stop
