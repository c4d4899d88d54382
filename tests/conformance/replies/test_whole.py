"""Replies that come whole, and streams in any pieces: each is what the other is."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from callboard.bus.errors import AdapterError, OverloadedError, QuotaExceededError, ServerError, StreamError
from callboard.bus.values.base import Json, JsonObject
from callboard.bus.values.usage import StopReason

from ...support.fake_http import pieces
from ...support.wires import WIRES, Wire
from ...support.wires import chat as c
from ...support.wires import gemini as g
from ...support.wires import ollama as o
from ...support.wires import responses as r
from ...support.wires.reading import Reading, plain, read, read_pieces, read_whole
from .cases import CHAT, CLAUDE, EACH, GEMINI, OLLAMA, RESPONSES, TGI

SAID = "Hé, ☃\u2028😀!"


def streamed(wire: Wire, text: str = SAID) -> list[JsonObject]:
    """The events of a reply with all that the wire has."""
    return [event for _, event in wire.events(text, *wire.most, "Hm ☃." if wire.reasons else "")]


@EACH
@pytest.mark.parametrize("text", [SAID, ""])
def test_a_whole_reply_is_what_its_stream_is(wire: Wire, text: str) -> None:
    """The same content, stop reason and counts; also where a stream was asked for, and where none was."""
    thought = "Hm ☃." if wire.reasons else ""
    whole = read_whole(wire, wire.body(text, *wire.most, thought))
    stream = read(wire, *streamed(wire, text))
    assert whole.said == stream.said
    assert len(whole.said) == bool(thought) + bool(text) + wire.most[0]
    assert whole.reply.stop_reason is stream.last.stop_reason
    assert plain_usage(whole) == plain_usage(stream)
    raws = [raw for raw in (getattr(block, "provider_raw", None) for block in whole.content) if raw is not None]
    assert {(raw.provider, raw.model) for raw in raws} <= {(wire.name, wire.model)}


def plain_usage(reading: Reading) -> object:
    return msgspec.structs.replace(reading.usage, raw=None)


@EACH
@settings(max_examples=40, deadline=None)
@given(cuts=st.lists(st.integers(0, 4000), max_size=30))
def test_the_same_reply_however_the_network_cuts_it(wire: Wire, cuts: list[int]) -> None:
    """Pieces may end anywhere: inside a line, a character, a line end."""
    body = wire.stream(*streamed(wire))
    found, expected = read_pieces(wire, pieces(body, cuts)), read_pieces(wire, [body])
    assert plain(found.events) == plain(expected.events)


@settings(max_examples=30, deadline=None)
@given(st.permutations(streamed(RESPONSES)[2:-1]))
def test_events_of_responses_in_any_order_lose_nothing(events: list[JsonObject]) -> None:
    """An order that no server sends still becomes a valid message with all that was said."""
    ends = streamed(RESPONSES)
    reading = read_pieces(RESPONSES, [RESPONSES.stream(ends[0], *events, ends[-1])])
    text = "".join(block for block in reading.said if isinstance(block, str))
    assert set(SAID) <= set(text)
    assert reading.last.stop_reason is StopReason.TOOL_USE


FIELDS = ("type", "text", "thinking", "signature", "data", "id", "name", "input", "citations", "caller")
KINDS = ("text", "thinking", "tool_use", "redacted_thinking", "server_tool_use", "new")
ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
BLOCKS = st.builds(lambda block, kind: {**block, "type": kind},
                   st.dictionaries(st.sampled_from(FIELDS), ANY_JSON, max_size=5),
                   st.sampled_from(KINDS))  # fmt: skip


@settings(max_examples=40, deadline=None)
@given(st.lists(BLOCKS | ANY_JSON, max_size=4), ANY_JSON, ANY_JSON)
def test_whatever_stands_in_a_message_it_is_read_or_refused(
    content: list[Json], usage: Json, reason: Json
) -> None:
    """Any JSON in any field of Anthropic's ends in a valid message or in an AdapterError."""
    body = {"type": "message", "content": content, "usage": usage, "stop_reason": reason}
    read_whole(CLAUDE, body)


@EACH
def test_an_empty_reply_is_a_reply(wire: Wire) -> None:
    """No content is an answer, too; streamed or not."""
    for reading in (
        read_whole(wire, wire.body("", 0, "end")),
        read(wire, *[e for _, e in wire.events("", 0, "end")]),
    ):
        assert (reading.said, reading.reply.stop_reason) == ([], StopReason.END_TURN)


EMPTY: list[tuple[Wire, Json]] = [
    *[(CLAUDE, {"content": content, "stop_reason": "end_turn"}) for content in ([], None)],
    *[(CHAT, c.reply(content=content, tool_calls=[], refusal=None)) for content in (None, "", [])],
    *[(GEMINI, g.chunk(content=content, finish="STOP")) for content in ({}, {"parts": []}, {"parts": None}, None)],
]  # fmt: skip


@pytest.mark.parametrize(
    ("wire", "body"), EMPTY, ids=lambda value: getattr(value, "name", None) or str(value)[:40]
)
def test_content_that_is_missing_is_none(wire: Wire, body: Json) -> None:
    reading = read_whole(wire, body)
    assert (reading.said, reading.reply.stop_reason) == ([], StopReason.END_TURN)


STREAM_OF_LISTS = [g.chunk(g.text("A")), g.chunk(g.call("a", args={})), g.END]


@pytest.mark.parametrize(
    ("wire", "body", "said"),
    [
        (GEMINI, STREAM_OF_LISTS, ["A", ("a", {}, None)]),
        (OLLAMA, OLLAMA.stream(o.line(content="Hi"), o.last(content=" there")), ["Hi there"]),
        (TGI, [{"generated_text": " Hi"}], ["Hi"]),
        (CHAT, CHAT.stream(c.chunk(content="Hi"), c.STOP, c.DONE), ["Hi"]),
    ],
    ids=["a list without alt=sse", "lines", "a list", "events"],
)
def test_a_reply_in_the_other_form_is_understood(wire: Wire, body: Json | bytes, said: list[object]) -> None:
    """Servers that always stream, and proxies that lose the wish for the one form or the other."""
    assert read_whole(wire, body).said == said


ODD_WHOLE: list[tuple[Wire, JsonObject, list[object]]] = [
    (CLAUDE, {"content": [{"type": "text", "text": "a", "citations": 7}, 5, {"no": "type"}], "id": 7,
    "model": None,
     "usage": {"input_tokens": 3.0, "output_tokens": "many", "cache_creation": []}, "role": [], "container": 0,
     "stop_details": "x", "stop_reason": "end_turn"}, ["a"]),
    *[(CLAUDE, {"content": [{"type": "tool_use", "id": "t", "name": "f", "input": given}],
       "stop_reason": "tool_use"}, [call]) for given, call in [(None, ("f", {}, "t")), ('{"a": 1}', ("f",
       {"a": 1}, "t")),
                                   ('{"a": ', ("f", '{"a": ')), ([1], ("f", "[1]"))]],
    (GEMINI, g.chunk(g.text("A"), g.text(""), g.text("B"), finish="STOP"), ["AB"]),
    (GEMINI, g.chunk(g.text("A"), finish="STOP", groundingMetadata={"x": 1}),
     ["A", {"groundingMetadata": {"groundingMetadata": {"x": 1}}}]),
    (RESPONSES, r.response(output=[r.call("multi_tool_use.parallel", '{"tool_uses":[]}', namespace="crm")]),
     [("multi_tool_use.parallel", {"tool_uses": []}, "call_1")]),
    (RESPONSES, r.response(output=[{**r.call("f", ""), "arguments": {"a": 1}}]), [("f", {"a": 1}, "call_1")]),
    (CHAT, c.reply("tool_calls", tool_calls=[c.tool(arguments='{"at":1}')], content="Hi", reasoning_content="Hm"),
     [("thinking", "Hm"), "Hi", ("look", {"at": 1}, "call_1")]),
    *[(CHAT, c.reply("tool_calls", tool_calls=calls), [("look", {}, "")] * 2) for calls in [
        [c.tool(None, "", arguments="{}")] * 2, [c.tool(0, "", arguments="")] * 2]],
    (CHAT, c.reply("tool_calls", tool_calls=[*[c.tool(0, "x", arguments={})] * 2, None]), [("look", {}, "x")]),
]  # fmt: skip


@pytest.mark.parametrize(("wire", "body", "said"), ODD_WHOLE, ids=lambda value: getattr(value, "name", None) or "")
def test_odd_values_cost_nothing_of_a_whole_reply(wire: Wire, body: JsonObject, said: list[object]) -> None:
    """Wrong types in what nobody needs, and places in a list in place of ids."""
    assert read_whole(wire, body).said == said


def test_a_namespace_stays_with_its_call() -> None:
    """A tool that was found by search goes back with the namespace it came from."""
    reading = read_whole(RESPONSES, r.response(output=[r.call("f", "{}", namespace="crm")]))
    assert reading.kept == [{"id": "call_1", "namespace": "crm"}]


NO_REPLIES: dict[str, list[Json | bytes]] = {
    "anthropic": [{}, {"content": None}, {"id": "x", "object": "chat.completion"}, {"content": 1}],
    "openai": [{}, {"choices": [{"message": {"content": "hi"}}], "object": "chat.completion"},
    r.response("queued")],
    "openai_compatible": [{}, {"choices": []}, {"choices": None}, {"choices": [None]}, {"choices": [{}]},
                          {"choices": [{"text": "of another protocol"}]}, {"pathname": "/chat/completions"},
                          b"method=POST pathname=/x"],
    "gemini": [{}, {"candidates": []}, {"usageMetadata": {"promptTokenCount": 1}},
    {"candidates": [{"content": "x"}]},
               {"choices": [{"message": {"content": "Hi"}}]}, STREAM_OF_LISTS[:2]],
    "interactions": [{}, {"steps": []}, {"choices": [{"message": {"content": "Hi"}}]}, {"candidates": []}],
    "ollama": [{}, o.line(content="Hi"), {"message": "text"}],
    "tgi": [{}, []],
}  # fmt: skip
ANYWHERE: list[Json | bytes] = [b"", b"<html>", None, [], 1, "x", b"[" * 100_000, b"\xff\xfe", b'{"a":']


@pytest.mark.parametrize(("wire", "body"), [(wire, body) for wire in WIRES for body in [*ANYWHERE,
                         *NO_REPLIES[wire.name]]],
                         ids=lambda value: getattr(value, "name", None) or str(value)[:30])  # fmt: skip
def test_status_200_that_is_no_reply_is_a_stream_error(wire: Wire, body: Json | bytes) -> None:
    """Another protocol, a page, nothing at all; in answer to either kind of request."""
    error = read_whole(wire, body).error
    assert type(error) is StreamError
    final = body == b"<html>" or (isinstance(body, dict) and body.get("status") == "queued")
    assert error.retryable is not final, "a page stays one; a retry would start a second background response"


FAILED_200: list[tuple[Wire, Json, type[AdapterError]]] = [
    (CLAUDE, {"type": "error", "error": {"type": "overloaded_error", "message": "busy"}}, OverloadedError),
    (RESPONSES, {"error": {"code": 502, "message": "upstream"}}, ServerError),
    (RESPONSES, r.response("failed", error={"code": "insufficient_quota"}), QuotaExceededError),
    (CHAT, {"error": "it broke"}, AdapterError),
    (CHAT, {"error": {"message": "it broke", "code": None, "type": None}, "choices": []}, AdapterError),
    (CHAT, {**c.reply(), "error": "it broke"}, AdapterError),
    (CHAT, {"choices": [{"error": {"code": 502, "message": "upstream"}}]}, ServerError),
    (CHAT, {"object": "error", "message": "busy", "type": "overloaded_error", "code": None}, OverloadedError),
]


@pytest.mark.parametrize(
    ("wire", "body", "kind"), FAILED_200, ids=lambda value: getattr(value, "name", None) or ""
)
def test_an_error_at_status_200_is_that_error(wire: Wire, body: Json, kind: type[AdapterError]) -> None:
    """Some proxies answer 200 to everything."""
    assert type(read_whole(wire, body).error) is kind
