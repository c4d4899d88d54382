"""Token counts on each wire are disjoint and never invented. Plain replies equal streams."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from callboard.bus.errors import AdapterError, OverloadedError, QuotaExceededError, ServerError, StreamError
from callboard.bus.values.base import Json, JsonObject
from callboard.bus.values.usage import StopReason, TokenUsage, UsageSource

from ...support.wires import Wire
from ...support.wires import anthropic as a
from ...support.wires import chat as c
from ...support.wires import gemini as g
from ...support.wires import ollama as o
from ...support.wires import responses as r
from ...support.wires import tgi as t
from ...support.wires.reading import Reading, read, read_pieces, read_whole
from .cases import CHAT, CLAUDE, EACH, GEMINI, HI, OLLAMA, RESPONSES, TGI

pytestmark = pytest.mark.more("streams arrive byte by byte, too")

PARTIAL, INCONSISTENT, ESTIMATED = UsageSource.PARTIAL, UsageSource.INCONSISTENT, UsageSource.ESTIMATED


def whole(wire: Wire, usage: Json) -> Reading:
    """Read a plain reply with the text Hi and this usage."""
    bodies: dict[Wire, JsonObject] = {
        CLAUDE: {**a.message_start()["message"], "content": [{"type": "text", "text": "Hi"}], "usage": usage},
        RESPONSES: r.response(output=[r.message("Hi")], usage=usage),
        CHAT: {**c.reply(content="Hi"), "usage": usage},
        GEMINI: {**g.chunk(g.text("Hi"), finish="STOP"), "usageMetadata": usage},
    }  # fmt: skip
    return read_whole(wire, bodies[wire])


def messages(output: object = 4, **fields: Json) -> JsonObject:
    return {"input_tokens": 3, "output_tokens": output, **fields}


def written(total: int, short: int | None, long: int) -> JsonObject:
    split: JsonObject = {"ephemeral_1h_input_tokens": long}
    return messages(
        cache_creation_input_tokens=total,
        cache_creation=split if short is None else {**split, "ephemeral_5m_input_tokens": short},
    )


def chat(prompt: Json = 9, completion: Json = 3, **fields: Json) -> JsonObject:
    return {"prompt_tokens": prompt, "completion_tokens": completion, **fields}


USED: JsonObject = {"type": "message", "input_tokens": 3, "output_tokens": 4, "model": None}
"""An entry of the usage for the reply's own model. The sum includes its tokens."""
SERVED: JsonObject = {**USED, "type": "fallback_message", "model": "b"}
COMPACTED: JsonObject = {
    "type": "compaction", "input_tokens": 100, "output_tokens": 50, "cache_read_input_tokens": 1,
    "cache_creation_input_tokens": 10,
    "cache_creation": {"ephemeral_5m_input_tokens": 8, "ephemeral_1h_input_tokens": 2},
}  # fmt: skip

COUNTS: list[tuple[Wire, JsonObject, TokenUsage]] = [
    (CLAUDE, messages(), TokenUsage(3, 4)),
    (CLAUDE, {"input_tokens": 0, "output_tokens": 0}, TokenUsage(0, 0)),
    (CLAUDE, messages(cache_read_input_tokens=5, cache_creation_input_tokens=6), TokenUsage(3, 4, 5, 6)),
    (CLAUDE, written(30, 10, 20), TokenUsage(3, 4, 0, 30, 20)),
    (CLAUDE, messages(cache_creation={"ephemeral_1h_input_tokens": 20}), TokenUsage(3, 4, 0, 20, 20)),
    (CLAUDE, written(50, 0, 20), TokenUsage(3, 4, 0, 50, 50)),  # the total grew after the division was known
    (CLAUDE, written(5, 7, 20), TokenUsage(3, 4, 0, 5, 5, source=INCONSISTENT)),  # the total shrank
    (CLAUDE, messages(iterations=[USED, COMPACTED, COMPACTED]), TokenUsage(203, 104, 2, 20, 4)),  # not in the sum
    (CLAUDE, {**written(5, 5, 0), "iterations": [USED, COMPACTED]}, TokenUsage(103, 54, 1, 15, 2)),
    (CLAUDE, messages(iterations=[USED, {**USED, "type": "advisor_message", "model": "b"}]),
     TokenUsage(3, 4, source=PARTIAL)),
    (CLAUDE, messages(iterations=[{**USED, "model": "a"}, {**USED, "type": "fallback_message", "model": "b"}]),
     TokenUsage(3, 4, source=PARTIAL)),
    (CLAUDE, messages(iterations=[{**USED, "model": "a", "output_tokens": 0}, SERVED]), TokenUsage(3, 4)),  # free
    (CLAUDE, messages(iterations=[USED, SERVED]), TokenUsage(3, 4)),
    (CLAUDE, messages(iterations=["odd", {"type": "compaction", "input_tokens": "odd"}]), TokenUsage(3, 4)),
    (CLAUDE, messages(output_tokens_details={"thinking_tokens": 2}), TokenUsage(3, 4, reasoning_tokens=2)),
    (CLAUDE, messages(output_tokens_details={"thinking_tokens": 9}),
     TokenUsage(3, 4, reasoning_tokens=4, source=INCONSISTENT)),
    (CLAUDE, messages(cache_read_input_tokens=-1), TokenUsage(3, 4, source=INCONSISTENT)),
    (CLAUDE, {"output_tokens": 4}, TokenUsage(0, 4, source=PARTIAL)),
    (CLAUDE, {"input_tokens": 3.7, "output_tokens": -4}, TokenUsage(3, 0, source=INCONSISTENT)),
    (RESPONSES, r.USAGE, TokenUsage(10, 20, 60, 30, reasoning_tokens=5)),
    (RESPONSES, {"input_tokens": 5, "input_tokens_details": {"cached_tokens": 9}, "output_tokens": 1},
     TokenUsage(0, 1, 9, source=INCONSISTENT)),
    (RESPONSES, {"input_tokens": 5.0, "output_tokens": 2.0, "input_tokens_details": None}, TokenUsage(5, 2)),
    (RESPONSES, {"input_tokens": 5, "output_tokens": "many", "output_tokens_details": []},
     TokenUsage(5, 0)),
    (RESPONSES, {"input_tokens": -1, "output_tokens": 5}, TokenUsage(0, 5, source=INCONSISTENT)),
    (RESPONSES, {"input_tokens": 9, "output_tokens": 5, "output_tokens_details": {"reasoning_tokens": 50}},
     TokenUsage(9, 5, reasoning_tokens=5, source=INCONSISTENT)),
    (CHAT, c.USAGE, TokenUsage(10, 20, 60, 30, reasoning_tokens=5)),
    (CHAT, chat(total_tokens=12), TokenUsage(9, 3)),
    (CHAT, chat(307, 26, total_tokens=560, completion_tokens_details={"reasoning_tokens": 227}),
     TokenUsage(307, 253, reasoning_tokens=227)),
    (CHAT, chat(35, 12, total_tokens=109), TokenUsage(35, 74, reasoning_tokens=62, source=PARTIAL)),
    (CHAT, chat(prompt_cache_hit_tokens=8), TokenUsage(1, 3, 8)),
    (CHAT, chat(cached_tokens=4), TokenUsage(5, 3, 4)),
    (CHAT, chat(prompt_tokens_details={"cached_tokens": 20}), TokenUsage(0, 3, 20, source=INCONSISTENT)),
    (CHAT, chat(4.0, 3.0, total_tokens=None, prompt_tokens_details=None, completion_tokens_details=[]),
     TokenUsage(4, 3)),
    (CHAT, chat(0, 0), TokenUsage(0, 0)),
    (CHAT, chat(9, -3), TokenUsage(9, 0, source=INCONSISTENT)),
    (CHAT, {"completion_tokens": 3, "total_tokens": 12}, TokenUsage(9, 3, source=PARTIAL)),
    (CHAT, chat(completion_tokens_details={"reasoning_tokens": 9}),
     TokenUsage(9, 3, reasoning_tokens=3, source=INCONSISTENT)),
    (CHAT, {"prompt_tokens": 9}, TokenUsage(9, 0, source=PARTIAL)),
    (CHAT, chat(prompt_tokens_details={"cached_tokens": -1}), TokenUsage(9, 3, source=INCONSISTENT)),
    (CHAT, chat(prompt_tokens_details={"audio_tokens": 11}),
     TokenUsage(9, 3, source=INCONSISTENT, details={"audio_input": 9})),
    (CHAT, chat(completion_tokens_details={"audio_tokens": 6}),
     TokenUsage(9, 3, source=INCONSISTENT, details={"audio_output": 3})),
    (CHAT, chat(prompt_tokens_details={"cached_tokens": 0, "cache_write_tokens": 11}),
     TokenUsage(0, 3, 0, 11, source=INCONSISTENT)),
    (GEMINI, {"promptTokenCount": 14, "totalTokenCount": 14}, TokenUsage(14, 0)),
    (GEMINI, {"promptTokenCount": 9.0, "candidatesTokenCount": 2.0}, TokenUsage(9, 2)),
    (GEMINI, {"promptTokenCount": 5, "cachedContentTokenCount": 9}, TokenUsage(0, 0, 9, source=INCONSISTENT)),
    (GEMINI, {"promptTokenCount": 5, "thoughtsTokenCount": 0}, TokenUsage(5, 0, reasoning_tokens=0)),
    (GEMINI, {"promptTokenCount": 5, "candidatesTokenCount": "x", "thoughtsTokenCount": True}, TokenUsage(5, 0)),
    (GEMINI, {"promptTokenCount": 5, "candidatesTokenCount": -1}, TokenUsage(5, 0, source=INCONSISTENT)),
    (GEMINI, {"promptTokenCount": 5, "promptTokensDetails": [{"modality": "TEXT", "tokenCount": -1}]},
     TokenUsage(5, 0, source=INCONSISTENT)),
]  # fmt: skip


@pytest.mark.parametrize(("wire", "usage", "expected"), COUNTS,
                         ids=[f"{wire.name}-{usage}"[:70] for wire, usage, _ in COUNTS])  # fmt: skip
def test_usage_is_divided_into_disjoint_counts(wire: Wire, usage: JsonObject, expected: TokenUsage) -> None:
    """Cache reads and writes are not fresh input, and hidden reasoning is output. Invalid counts are dropped with
    a warning.
    """
    found = whole(wire, usage).usage
    assert msgspec.structs.replace(found, raw=None) == expected
    assert found.raw is not None
    assert msgspec.json.decode(found.raw) == usage


NOTHING: list[tuple[Wire, Json]] = [
    *[(CLAUDE, usage) for usage in ({"input_tokens": True, "output_tokens": "4"}, {"service_tier": "standard"},
        {})],
    (RESPONSES, None),
    *[(CHAT, usage) for usage in (None, [], "much", {}, {"total_tokens": 5}, {"prompt_tokens": "many"})],
    (GEMINI, {"trafficType": "ON_DEMAND"}),
]  # fmt: skip


@pytest.mark.parametrize(("wire", "usage"), NOTHING, ids=lambda value: getattr(value, "name", None) or str(value))
def test_empty_usage_is_estimated(wire: Wire, usage: Json) -> None:
    reading = whole(wire, usage)
    assert reading.usage.source is ESTIMATED
    assert reading.usage.total_tokens > 0
    assert "usage_estimated" in [warning.code for warning in reading.reply.warnings]


OF_CHAT: list[list[JsonObject]] = [
    [c.STOP, {"choices": [], "usage": c.USAGE}],
    [c.STOP | {"usage": c.USAGE}],
    [c.STOP, c.chunk(content="") | {"usage": c.USAGE}],
    [c.STOP | {"x_groq": {"id": "req_1", "usage": c.USAGE}}],
    [{"choices": [{"index": 0, "delta": {}, "finish_reason": "stop", "usage": c.USAGE}]}],
    [c.chunk() | {"usage": {**c.USAGE, "completion_tokens": 1}}, c.STOP | {"usage": c.USAGE}],
    [c.STOP | {"usage": c.USAGE, "x_groq": {"usage": c.USAGE}}, c.chunk() | {"usage": None}],
]
GROWN: JsonObject = {**a.START_USAGE, "input_tokens": 2068, "cache_read_input_tokens": 55096,
                     **{key: value for key, value in written(30, 20, 10).items() if "cache" in key}}  # fmt: skip
AT_LAST: JsonObject = {"input_tokens": 22397, "cache_read_input_tokens": 0, "cache_creation_input_tokens": None,
                       "output_tokens": 50, "output_tokens_details": {"thinking_tokens": 12}}  # fmt: skip
STREAMED: list[tuple[Wire, list[JsonObject], TokenUsage]] = [
    *[(CHAT, [*HI["openai_compatible"], *events], TokenUsage(10, 20, 60, 30, reasoning_tokens=5))
      for events in OF_CHAT],
    (CLAUDE, [a.message_start(GROWN), *a.text(0, "a"), *a.ending(usage=AT_LAST)],
     TokenUsage(22397, 50, 0, 30, 10, reasoning_tokens=12)),
    (CLAUDE, [a.message_start(), *a.text(0, "a"), *a.ending(usage={})], TokenUsage(20, 2, source=PARTIAL)),
    (GEMINI, [
        g.chunk(g.text("A"), usage={"promptTokenCount": 169, "cachedContentTokenCount": 60,
        "thoughtsTokenCount": 7}),
        g.chunk(g.text("B"), usage={"promptTokenCount": 100, "candidatesTokenCount": 4,
                                    "toolUsePromptTokenCount": 30}),
        g.chunk(finish="STOP", usage={"candidatesTokenCount": 5, "trafficType": "ON_DEMAND"}),
        {"usageMetadata": {"trafficType": "ON_DEMAND"}}], TokenUsage(70, 12, 60, reasoning_tokens=7)),
    (OLLAMA, [*HI["ollama"], o.last()], TokenUsage(11, 18)),
    (OLLAMA, [o.last("stop", {"prompt_eval_count": 11})], TokenUsage(11, 0)),
    (TGI, [*HI["tgi"], t.end("Hi", t.details())], TokenUsage(9, 4)),
]  # fmt: skip


@pytest.mark.parametrize(("wire", "events", "expected"), STREAMED,
                         ids=[f"{wire.name}-{number}" for number, (wire, _,
                         _) in enumerate(STREAMED)])  # fmt: skip
def test_usage_is_found_anywhere_in_a_stream(wire: Wire, events: list[JsonObject], expected: TokenUsage) -> None:
    """Each field has its last reported value. Nulls replace nothing, and no values are added up."""
    assert msgspec.structs.replace(read(wire, *events).usage, raw=None) == expected


def test_reported_usage_is_kept_in_raw() -> None:
    """Fields are merged. All durations are kept for prices by time. Usage of another model stays separate."""
    raw = read(CLAUDE, a.message_start(GROWN), *a.text(0, "a"), *a.ending(usage=AT_LAST)).usage.raw
    assert raw is not None
    found = msgspec.json.decode(raw)
    assert (found["cache_creation_input_tokens"], found["service_tier"], found["output_tokens"]) == (
        30,
        "standard",
        50,
    )
    raw = read(OLLAMA, *HI["ollama"], o.last()).usage.raw
    assert raw is not None
    assert msgspec.json.decode(raw) == o.METRICS
    advisor = messages(iterations=[{"type": "advisor_message", "input_tokens": 2518, "output_tokens": 22}])
    assert whole(CLAUDE, advisor).usage.input_tokens == 3


@pytest.mark.parametrize("metrics", [
    {"eval_count": 18},
    {"prompt_eval_count": 0, "eval_count": 18},
    {"prompt_eval_count": 11},
    {"prompt_eval_count": None, "eval_count": True},
    {},
])  # fmt: skip
def test_counts_that_ollama_leaves_out_are_estimated(metrics: JsonObject) -> None:
    """If all of the prompt is cached, older servers report 0. Missing counts are estimated, and reported ones are
    kept.
    """
    reading = read(OLLAMA, *HI["ollama"], o.last("stop", metrics))
    usage = reading.usage
    assert usage.source is ESTIMATED
    assert (usage.input_tokens > 0, usage.output_tokens > 0) == (True, True)
    assert usage.output_tokens == 18 or metrics.get("eval_count") != 18
    assert usage.input_tokens == 11 or metrics.get("prompt_eval_count") != 11


def test_without_details_tgi_has_no_invented_values() -> None:
    """The stop reason and the counts are unknown. The prompt's size can be the number of its prefill tokens."""
    streamed = read(TGI, *HI["tgi"], t.end("Hi", None))
    assert (streamed.last.raw_stop_reason, streamed.usage.source) == (None, ESTIMATED)
    assert streamed.warnings == ["no_stop_reason"]
    bare = read_whole(TGI, {"generated_text": "Hi", "details": t.details(input_length=None)}).usage
    assert (bare.source, bare.output_tokens, bare.input_tokens > 0) == (ESTIMATED, 4, True)
    prefill: Json = [{"id": 1, "text": "H", "logprob": None}] * 3
    counted = read_whole(TGI, {"generated_text": "Hi", "details": t.details(input_length=None, prefill=prefill)})
    assert (counted.usage.input_tokens, counted.usage.source) == (3, UsageSource.REPORTED)


def test_costs_are_added_only_if_all_are_known() -> None:
    """A sum without one of the costs would be too small."""
    known, unknown = TokenUsage(1, reported_cost_nano_usd=5), TokenUsage(1)
    assert (known + known).reported_cost_nano_usd == 10
    assert (known + unknown).reported_cost_nano_usd is None


# -- Plain replies, and streams in any pieces: both have the same content.


SAID = "Hé, ☃\u2028😀!"


def streamed(wire: Wire, text: str = SAID) -> list[JsonObject]:
    """The events of a reply with every kind of content of the wire."""
    return [event for _, event in wire.events(text, *wire.most, "Hm ☃." if wire.reasons else "")]


@EACH
@pytest.mark.parametrize("text", [SAID, ""])
def test_a_plain_reply_equals_its_stream(wire: Wire, text: str) -> None:
    """Content, stop reason and counts are the same, also if the server sends the form that was not requested."""
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


@settings(max_examples=30, deadline=None)
@given(st.permutations(streamed(RESPONSES)[2:-1]))
def test_events_of_responses_in_any_order_lose_no_content(events: list[JsonObject]) -> None:
    """An order that no server sends still gives a valid message with the whole content."""
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
def test_any_value_in_a_message_is_read_or_refused(content: list[Json], usage: Json, reason: Json) -> None:
    """Any JSON in any field of Anthropic's wire gives a valid message or an AdapterError."""
    body = {"type": "message", "content": content, "usage": usage, "stop_reason": reason}
    read_whole(CLAUDE, body)


@EACH
def test_an_empty_reply_is_valid(wire: Wire) -> None:
    """A plain or streamed reply without content is valid."""
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


@pytest.mark.parametrize(("wire", "body", "said"), [
    (GEMINI, STREAM_OF_LISTS, ["A", ("a", {}, None)]),
    (OLLAMA, OLLAMA.stream(o.line(content="Hi"), o.last(content=" there")), ["Hi there"]),
    (TGI, [{"generated_text": " Hi"}], ["Hi"]),
    (CHAT, CHAT.stream(c.chunk(content="Hi"), c.STOP, c.DONE), ["Hi"]),
], ids=["a list without alt=sse", "lines", "a list", "events"])  # fmt: skip
def test_a_reply_in_the_other_form_is_read(wire: Wire, body: Json | bytes, said: list[object]) -> None:
    """Some servers always stream, and some proxies change the requested form."""
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
def test_odd_values_in_a_plain_reply_are_ignored(wire: Wire, body: JsonObject, said: list[object]) -> None:
    """Wrong types in unused fields, and list positions in place of ids, are ignored."""
    assert read_whole(wire, body).said == said


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
ANYWHERE: list[Json | bytes] = [
    *(b"", b"<html>", b"<p>NaN \xff</p>", None, [], 1, "x", b"[" * 100_000, b"\xff\xfe", b'{"a":')
]


@EACH
def test_a_body_that_is_no_reply_is_a_stream_error(wire: Wire) -> None:
    """Examples are another protocol, an HTML page and an empty body, for plain and streamed requests. A page or a
    queued response must not be retried.
    """
    for body in (*ANYWHERE, *NO_REPLIES[wire.name]):
        error = read_whole(wire, body).error
        assert type(error) is StreamError, body
        page = isinstance(body, bytes) and body[:1] == b"<"
        queued = isinstance(body, dict) and body.get("status") == "queued"
        assert error.retryable is not (page or queued), body


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
    assert type(read_whole(wire, body).error) is kind
