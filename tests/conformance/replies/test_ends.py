"""How streams end: complete, with an error after status 200, or with repeated parts."""

from __future__ import annotations

import json

import pytest

from callboard.bus.errors import (
    AdapterError,
    CapabilityError,
    ContextOverflowError,
    InvalidRequestError,
    NotFoundError,
    OverloadedError,
    QuotaExceededError,
    RateLimitError,
    ServerError,
    StreamError,
)
from callboard.bus.values.base import Json, JsonObject
from callboard.bus.values.usage import StopReason, UsageSource

from ...support.wires import Wire
from ...support.wires import anthropic as a
from ...support.wires import chat as c
from ...support.wires import gemini as g
from ...support.wires import interactions as i
from ...support.wires import ollama as o
from ...support.wires import responses as r
from ...support.wires.reading import Reading, read, read_pieces, read_whole
from ...support.wires.wire import Event
from ..endings import ENDINGS
from .cases import CHAT, CLAUDE, EACH, GEMINI, HI, OLLAMA, OVER, RESPONSES, TGI, Case, check, quirky, table

pytestmark = pytest.mark.more("streams arrive byte by byte, too")

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
def test_events_after_the_end_are_ignored(wire: Wire) -> None:
    """Examples are the end mark of another protocol, a late error, and invalid JSON."""
    reading = read(wire, *HI[wire.name], *OVER[wire.name], *LATER[wire.name])
    assert (reading.said, reading.last.stop_reason) == (["Hi"], StopReason.END_TURN)


NONSENSE: list[tuple[JsonObject | bytes, ...]] = [(), (b"{",), (b"[1]",), (b"7",), (b"null",), (b"[" * 100_000,)]
BROKEN: dict[str, list[tuple[JsonObject | bytes, ...]]] = {
    "anthropic": [(a.ending()[0],), (b'{"type":"content_block_delta","delta":7}',), (b"<html>",), (b"\xff",)],
    "openai": [(b"[DONE]",), (b" [DONE] ",), (b'{"type":"response.created","x":' + b"[" * 50_000 + b"}",)],
    "openai_compatible": [
        (c.DONE,), (c.chunk(""), c.DONE), ({"choices": [], "usage": c.USAGE}, c.DONE), (b"",), ({"type": "ping"},),
        ({"choices": [], "usage": c.USAGE},), (b'{"choices": 7}',), (b"\x00",),
    ],
    "gemini": [(g.chunk(g.text("A"), finish="FINISH_REASON_UNSPECIFIED"),), ({"candidates": []},)],
    "interactions": [(i.stop(0),), (b"[DONE]",), (i.event("interaction.status_update", status="completed"),),
                     (b'{"event_type":"step.delta","delta":7}',)],
    "ollama": [(o.line(thinking="Hm"),), (o.line(tool_calls=[o.call("look", {})]),), (b"<html>",),
               (b'{"message":{"con',), (b'{"message":"text"}',)],
    "tgi": [(b'{"token": 1}',)],
}  # fmt: skip
"""The events that may replace the end of a stream."""


@EACH
def test_a_stream_without_its_end_is_a_stream_error(wire: Wire) -> None:
    """The received content is kept, and the error can be retried."""
    for ends in (*NONSENSE, *BROKEN[wire.name]):
        reading = read_pieces(wire, [wire.stream(*HI[wire.name], *ends)])
        assert type(reading.error) is StreamError, ends
        assert reading.error.retryable
        assert reading.said[:1] in (["Hi"], ["HiA"])
        assert reading.last.stop_reason is StopReason.ERROR
        assert type(read_pieces(wire, [wire.stream(*ends)]).error) is StreamError, ends


def test_other_text_at_the_end_is_no_error_of_the_provider() -> None:
    """The stream counts as cut off, as without the text."""
    for stray in (b"", b"<html>", b'{"what": 1}', b"[1]", b"null", b"\xff"):
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
    """Information about the end of a reply is kept in any form."""
    check(case)


@EACH
def test_the_provider_s_word_for_the_end_of_a_reply_is_kept(wire: Wire) -> None:
    """The provider's word is kept next to its meaning. Without a word, none is invented."""
    for word, means in ENDINGS[wire.name].items():
        if not isinstance(means, type):
            assert read_whole(wire, wire.body("Hi", 0, word)).reply.raw_stop_reason == wire._word(word), word


def test_a_refusal_of_responses_is_text() -> None:
    """The refusal is also the stop reason."""
    item = r.message(content=[{"type": "refusal", "refusal": "I can't."}])
    deltas = [r.event("refusal.delta", output_index=0, content_index=0, delta=part) for part in ("I ", "can't.")]
    begun, done = r.added(0, item), r.done(0, item)
    for events in ([begun, *deltas, done], [begun, *deltas], [done]):
        reading = read(RESPONSES, r.CREATED, *events, r.ending())
        assert (reading.said, reading.last.stop_reason) == (["I can't."], StopReason.REFUSAL)


def test_llama_cpp_reports_completed_at_the_limit() -> None:
    """The stream has a minimal start, no indexes, and all ends last. The token count shows that the limit was
    reached.
    """
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


# -- Errors inside a stream, after status 200.


OVERLOADED: JsonObject = {"type": "overloaded_error", "message": "busy"}
SPENT: JsonObject = {"type": "rate_limit_error", "details": {"error_code": "enforced_spend_limit_reached"}}
NO_QUOTA: JsonObject = {"@type": "type.googleapis.com/google.rpc.QuotaFailure", "violations": [{}]}
ERRORS: list[tuple[Wire, JsonObject, type[AdapterError]]] = [
    *[(CLAUDE, a.event("error", error=said, request_id="req_9"), kind) for said, kind in [
        (OVERLOADED, OverloadedError),
        ({"type": "api_error", "message": "Internal server error"}, ServerError),
        ({"type": "rate_limit_error", "message": "slow down"}, RateLimitError),
        ({"type": "invalid_request_error", "message": "prompt is too long: 9 tokens > 8"}, ContextOverflowError),
        ({"type": "invalid_request_error", "message": "messages.0: no"}, InvalidRequestError),
        (SPENT, QuotaExceededError),
        ({"type": "brand_new_error", "message": "?"}, AdapterError),
        ("just words", AdapterError),
    ]],
    (CLAUDE, a.event("", error=OVERLOADED), OverloadedError),
    (RESPONSES, {"type": "error", "error": {"code": "rate_limit_exceeded", "message": "m"}}, RateLimitError),
    (RESPONSES, {"type": "error", "code": "server_is_overloaded", "message": "m", "param": None}, OverloadedError),
    (RESPONSES, {"type": "error", "error": {"code": "insufficient_quota", "message": "m"}}, QuotaExceededError),
    (RESPONSES, {"type": "error", "code": None, "message": "Your input exceeds the context window"},
     ContextOverflowError),
    (RESPONSES, {"error": {"message": "boom", "code": 502}}, ServerError),
    (RESPONSES, r.ending("failed", error={"code": "invalid_prompt", "message": "m"}), InvalidRequestError),
    (RESPONSES, r.ending("failed", error=None), ServerError),
    (RESPONSES, r.ending("failed", error="odd"), AdapterError),
    (CHAT, {"error": {"message": "no", "type": "server_error", "code": None}}, ServerError),
    (CHAT, {"error": "it broke"}, AdapterError),
    (CHAT, {"error": OVERLOADED}, OverloadedError),
    (CHAT, {"error": {"message": "This model's maximum context length is 10 tokens"}}, ContextOverflowError),
    (CHAT, {"object": "error", "message": "bad", "type": "BadRequestError", "code": 400}, InvalidRequestError),
    (CHAT, {"choices": [{"index": 0, "error": {"code": 502, "message": "upstream"}}]}, ServerError),
    (CHAT, c.chunk("error") | {"error": {"code": 503, "message": "gone"}}, ServerError),
    (GEMINI, {"error": {"code": 503, "message": "overloaded.", "status": "UNAVAILABLE"}}, OverloadedError),
    (GEMINI, {"error": {"code": 400, "message": "No.", "status": "INVALID_ARGUMENT"}}, InvalidRequestError),
    (GEMINI, {"error": {"code": 429, "message": "limit: 0", "status": "RESOURCE_EXHAUSTED",
     "details": [NO_QUOTA]}}, QuotaExceededError),
    *[(OLLAMA, {"error": said}, kind) for said, kind in [
        ("server busy, please try again.  maximum pending requests exceeded", OverloadedError),
        ("an error was encountered while running the model: CUDA error", AdapterError),
        ("llama runner process has terminated: exit status 2", ServerError),
        ("the prompt is longer than the context length currently available", ContextOverflowError),
        ('"qwen" does not support tools', CapabilityError),
        ("model 'x' not found", NotFoundError),
    ]],
    *[(TGI, {"error": said, "error_type": code}, kind) for said, code, kind in [
        ("Input validation error: `temperature` must be strictly positive", "validation", InvalidRequestError),
        ("`inputs` tokens + `max_new_tokens` must be <= 2048. Given: 9000", "validation", ContextOverflowError),
        ("`inputs` must have less than 1000 tokens. Given: 1500", "validation", ContextOverflowError),
        ("Model is overloaded", "overloaded", OverloadedError),
        ("Request failed during generation: Server error: CUDA", "generation", ServerError),
        ("Incomplete generation", "incomplete_generation", ServerError),
        ("Incomplete generation stream", "incomplete_generation_stream", ServerError),
        ("Template error: x", "template_error", InvalidRequestError),
        ("Tool error: x", "tool_error", InvalidRequestError),
        ("something else", None, AdapterError),
    ]],
]  # fmt: skip


@pytest.mark.parametrize(("wire", "event", "kind"), ERRORS,
                         ids=[f"{wire.name}-{str(event)[:60]}" for wire, event, _ in ERRORS])  # fmt: skip
def test_an_error_in_a_stream_has_its_class(wire: Wire, event: JsonObject, kind: type[AdapterError]) -> None:
    """The error has no status and comes first or after content. It is raised once, and later events are
    ignored.
    """
    for before in ([], HI[wire.name]):
        reading = read(wire, *before, event, *OVER[wire.name])
        assert type(reading.error) is kind
        assert (reading.error.content != ()) is bool(before)
        assert reading.error.provider_status is None
        if wire is CLAUDE and "request_id" in event:
            assert reading.error.provider_request_id == "req_9"
        if wire in (OLLAMA, TGI):
            assert reading.error.provider_message == event["error"]
            assert wire is OLLAMA or reading.error.provider_code == event.get("error_type")
    if wire in (OLLAMA, TGI):
        assert type(read_whole(wire, event).error) is kind


def test_an_error_as_plain_json_in_a_stream() -> None:
    """Gemini sends indented JSON that is no event. Groq sends a named event with the status in its body."""
    error: JsonObject = {"error": {"code": 503, "message": "The model is overloaded.", "status": "UNAVAILABLE"}}
    body = GEMINI.stream(g.chunk(g.text("A"))) + b'{\n  "error": {"code": 503, "status": "UNAVAILABLE"}\n}'
    for chunks in ([body], [body[at : at + 1] for at in range(len(body))]):
        assert type(read_pieces(GEMINI, chunks).error) is OverloadedError
    assert type(read_whole(GEMINI, [error]).error) is OverloadedError
    groq = b'event: error\ndata: {"error":{"message":"no tool","code":"tool_use_failed","status_code":400}}\n\n'
    failed = read_pieces(CHAT, [CHAT.stream(*HI["openai_compatible"]) + groq]).error
    assert isinstance(failed, InvalidRequestError)
    assert failed.provider_code == "tool_use_failed"


def test_a_token_limit_is_an_overflow_only_before_a_reply() -> None:
    """During a reply, the limit means that the reply is too long."""
    event: JsonObject = {"error": {"message": "Token limit reached", "code": 400}}
    assert type(read(CHAT, event, c.DONE).error) is ContextOverflowError
    assert type(read(CHAT, *HI["openai_compatible"], event, c.DONE).error) is InvalidRequestError


@pytest.mark.parametrize(("wire", "failure", "output"), [
    (CHAT, c.chunk() | {"error": {"code": 400, "message": "no"}, "usage": c.USAGE}, 20),
    (RESPONSES, r.ending("failed", error={"code": "server_error", "message": "Oops"}), 20),
    (CLAUDE, a.event("error", error=OVERLOADED), None),
], ids=["chat", "responses", "messages"])  # fmt: skip
def test_the_usage_of_a_failed_reply_is_known(wire: Wire, failure: JsonObject, output: int | None) -> None:
    """The usage was reported with the failure or before it."""
    error = read(wire, *HI[wire.name], failure).error
    assert error is not None
    assert error.usage is not None
    assert error.usage.source is UsageSource.PARTIAL
    assert error.usage.output_tokens == output or output is None
    assert error.usage.total_input_tokens in (20, 100)


# -- Repetitions of servers: arguments, calls, and marks that belong to no name, with the same tests on each wire.


RESENT_WIRES = (CLAUDE, RESPONSES, CHAT, GEMINI, OLLAMA)
IN_PIECES = (CLAUDE, RESPONSES, CHAT)
each = pytest.mark.parametrize("wire", RESENT_WIRES, ids=lambda wire: wire.name)
each_in_pieces = pytest.mark.parametrize("wire", IN_PIECES, ids=lambda wire: wire.name)

Call = tuple[str, str, list[str]]
"""A call's id, its tool, and the fragments of its arguments."""


def streamed(wire: Wire, *calls: Call) -> Reading:
    """A stream of calls whose fragments alternate."""
    rounds = max(len(fragments) for _, _, fragments in calls)
    turns = [
        (at, fragments[n])
        for n in range(rounds)
        for at, (_, _, fragments) in enumerate(calls)
        if n < len(fragments)
    ]
    if wire is CLAUDE:
        starts = [
            a.start(at, "tool_use", id=name, name=tool, input={}) for at, (name, tool, _) in enumerate(calls)
        ]
        deltas = [a.delta(at, "input_json_delta", partial_json=text) for at, text in turns]
        return read(
            wire, a.message_start(), *starts, *deltas, *map(a.stop, range(len(calls))), *a.ending("tool_use")
        )
    if wire is RESPONSES:
        items = [item(at, call) for at, call in enumerate(calls)]
        begun = [
            r.event("output_item.added", output_index=at, item={**each, "arguments": ""})
            for at, each in enumerate(items)
        ]
        moved = [r.arguments_delta(at, text, at + 1) for at, text in turns]
        ended = [r.done(at, each) for at, each in enumerate(items)]
        return read(wire, r.CREATED, *begun, *moved, *ended, r.ending())
    if wire is CHAT:
        begins = [c.tools(c.tool(at, name, tool)) for at, (name, tool, _) in enumerate(calls)]
        return read(wire, *begins, *[c.more(text, at) for at, text in turns], c.chunk("tool_calls"), c.DONE)
    return read(wire, *whole_events(wire, *calls))


def item(at: int, call: Call) -> JsonObject:
    """The item of a call, with its last fragment as the arguments."""
    name, tool, fragments = call
    given = fragments[-1]
    return {"type": "function_call", "id": f"fc_{at + 1}", "call_id": name, "name": tool, "arguments": given}


def whole_events(wire: Wire, *calls: Call) -> list[Event]:
    """The events of complete calls."""
    if wire is GEMINI:
        parts = [g.call(tool, args=json.loads(texts[-1]), id=name) for name, tool, texts in calls]
        return [g.chunk(*parts), g.END]
    found = [o.call(tool, json.loads(texts[-1]), name) for name, tool, texts in calls]
    return [o.line(tool_calls=found), o.last()]


@each_in_pieces
def test_a_quirk_or_the_json_decides_the_meaning_of_a_fragment(wire: Wire) -> None:
    """Fragments that form a nested object stay fragments."""
    reading = streamed(wire, ("call_1", "look", ['{"a":', '{"a":', "1}}", ""]))
    if wire is not RESPONSES:  # its end repeats the arguments
        assert reading.said == [("look", {"a": {"a": 1}}, "call_1")]


@each
def test_a_repeated_call_counts_once(wire: Wire) -> None:
    """Two calls with the same id, tool and arguments are one, with a warning. Others are separate calls."""
    again = streamed(wire, ("call_1", "look", ['{"at": 1}']), ("call_1", "look", ['{"at":1}']))
    assert again.said == [("look", {"at": 1}, "call_1")]
    assert again.warnings == ["repeated_call"]
    assert again.last.stop_reason is StopReason.TOOL_USE
    others = streamed(
        wire, ("x", "look", ['{"at": 1}']), ("x", "look", ['{"at": 2}']), ("x", "hear", ['{"at": 1}'])
    )
    assert sorted(str(said) for said in others.said) == sorted(
        str(call) for call in [("look", {"at": 1}, "x"), ("look", {"at": 2}, "x"), ("hear", {"at": 1}, "x")]
    )


@each
def test_marks_of_a_chat_template_are_removed_from_a_tools_name(wire: Wire) -> None:
    """The marks are removed with a warning. A name that only consists of marks stays."""
    reading = streamed(wire, ("call_1", "look<|channel|>commentary", ['{"at": 1}']))
    assert reading.said == [("look", {"at": 1}, "call_1")]
    assert reading.warnings == ["tool_name_mended"]
    assert streamed(wire, ("call_1", "<|x|>", ["{}"])).said == [("<|x|>", {}, "call_1")]


def test_arguments_at_the_end_of_a_call_replace_its_deltas() -> None:
    """If they differ, there is a warning. An end without arguments changes nothing."""
    one = {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "look"}
    for last, expected, warnings in (('{"at":2}', 2, ["arguments_replaced"]), ('{ "at": 1 }', 1, []), ("", 1, [])):
        done = r.event("function_call_arguments.done", output_index=0, item_id="fc_1", arguments=last)
        ended = r.done(0, {**one, "arguments": last})
        begun = r.event("output_item.added", output_index=0, item={**one, "arguments": ""})
        delta = r.arguments_delta(0, '{"at":1}')
        reading = read(RESPONSES, r.CREATED, begun, delta, done, ended, r.ending())
        assert reading.said == [("look", {"at": expected}, "call_1")]
        assert reading.warnings == warnings


@pytest.mark.parametrize("ids", [True, False], ids=["ids", "no ids"])
def test_items_with_the_same_output_index_are_distinguished(ids: bool) -> None:
    """Items differ by kind and id. No text and no call is repeated, also if a whole output repeats its items."""
    message, call = r.message("Wait."), r.call("look", '{"at":1}')
    if not ids:
        message, call = ({name: value for name, value in each.items() if name != "id"} for each in (message, call))
    said = [r.added(0, message), r.text_delta(0, "Wait."), r.done(0, message)]
    called = [r.added(0, call), r.arguments_delta(0, '{"at":1}'), r.done(0, call)]
    for one, two, output in ((said, called, [message, call]), (called, said, [call, message])):
        for events in ([*one, *two], [*one[:2], *two[:2], one[2], two[2]]):
            reading = read(RESPONSES, r.CREATED, *events, r.ending(output=output))
            assert sorted(map(str, reading.said)) == sorted(map(str, ["Wait.", ("look", {"at": 1}, "call_1")]))
    if ids:
        twice = read_whole(RESPONSES, r.response(output=[message, message, call, call]))
        assert twice.said == ["Wait.", ("look", {"at": 1}, "call_1")]


def test_items_without_an_end_are_ended_by_their_copies_in_the_response() -> None:
    """The copies are found by their ids, even if the response has them in another order, or has other items."""
    one, two = r.call("look", '{"at":1}'), r.call("hear", '{"to":2}', 2)
    begun = [r.added(0, one), r.added(1, two)]
    for output in ([two, one], [two, r.message("Wait."), one]):
        reading = read(RESPONSES, r.CREATED, *begun, r.ending(output=output))
        assert reading.said == [("look", {"at": 1}, "call_1"), ("hear", {"to": 2}, "call_2")]
