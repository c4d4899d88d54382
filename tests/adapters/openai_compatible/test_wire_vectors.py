"""The decoder vectors that must hold, by number: each was seen in the wild.

``3.n`` is the n-th of the Chat protocol's list, ``7.n`` of the list for errors, ``S.n`` what the issue adds about
hostile servers. A stream is read whole, byte by byte and in random pieces; the same must come out each time.
"""

from __future__ import annotations

import math
from email.utils import formatdate

import msgspec
import pytest

from adapters.contract import AdapterConfig
from adapters.providers.openai_compatible.adapter import OpenAICompatibleAdapter
from adapters.providers.openai_compatible.quirks.servers import QUIRKS
from adapters.refusals.classify import build_error, read_error
from bus.errors import (
    AdapterError,
    ContextOverflowError,
    InvalidRequestError,
    NetworkError,
    QuotaExceededError,
    RateLimitError,
    ServerError,
    StreamError,
)
from bus.values.json import Json, JsonObject

from ...support.fake_http import FakeReply, FakeTransport
from ...support.virtual_time import FakeClock
from .wire_chunks import DONE, STOP, USAGE, ask, body, chunk, more, read, reply, tool, tools

LOOK = ("call_1", "look", {"at": 1})
HEAR = ("call_2", "hear", {"to": 2})
SAY = chunk(content="Hi")
CALLED = chunk("tool_calls")
SEEN = (10, 60, 20)
"""Input, cached and output tokens of USAGE."""


class Vector(msgspec.Struct, frozen=True):
    """raw: the streamed body. calls: provider's id, name and arguments. usage: None for an estimate."""

    number: str
    name: str
    raw: bytes
    text: str = "Hi"
    thinking: str = ""
    calls: tuple[tuple[Json, str, JsonObject], ...] = ()
    usage: tuple[int, int, int] | None = None
    error: type[AdapterError] | None = None
    quirks: str = "default"


def stream(
    number: str, name: str, *events: JsonObject | bytes, raw: bytes | None = None, **expected: object
) -> Vector:
    data = body(events) if raw is None else raw
    return Vector(number, name, data, **expected)  # type: ignore[arg-type]


def calls(number: str, name: str, *events: JsonObject, expected: tuple[object, ...] = (LOOK, HEAR)) -> Vector:
    return stream(number, name, *events, CALLED, DONE, text="", calls=expected)


ALONE: JsonObject = {"choices": [], "usage": USAGE}

STREAMS = (
    stream("3.1", "usage in a chunk without choices", SAY, STOP, ALONE, DONE, usage=SEEN),
    stream("3.2", "usage in a chunk with choices, after the finish", SAY, STOP,
           chunk(content="") | {"usage": USAGE}, DONE, usage=SEEN),
    stream("3.3", "usage in x_groq", SAY, STOP | {"x_groq": {"usage": USAGE}}, DONE, usage=SEEN),
    stream("3.4", "usage in the choice", SAY,
           {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop", "usage": USAGE}]}, DONE, usage=SEEN),
    stream("3.5", "finish null after finish", SAY, STOP, chunk(None), chunk(""), DONE),
    calls("3.6", "index 0 for all calls", tools(tool()), more('{"at":1}'), tools(tool(0, "call_2", "hear")),
          more('{"to":2}')),
    calls("3.7", "id repeated in every fragment", tools(tool()), tools(tool(0, "call_1", None, '{"at"')),
          tools(tool(0, "call_1", None, ":1}")), expected=(LOOK,)),
    calls("3.8", "empty ids", tools(tool(0, "", arguments='{"at":1}')), tools(tool(1, "", "hear", '{"to":2}')),
          expected=(("", "look", {"at": 1}), ("", "hear", {"to": 2}))),
    calls("3.9", "no index", tools(tool(None, "call_1", arguments='{"at":1}')),
          tools(tool(None, "call_2", "hear")), more('{"to":2}', None)),
    calls("3.10", "whole arguments", tools(tool(arguments='{"at":1}'), tool(1, "call_2", "hear", '{"to":2}'))),
    calls("3.11", "arguments null", tools(tool(arguments=None)), tools(tool(0, None, None, None)),
          expected=(("call_1", "look", {}),)),
    calls("3.12", "arguments an object", tools(tool(arguments={"at": 1})), expected=(LOOK,)),
    stream("3.13", "content null", chunk(content=None), SAY, chunk(content=None), STOP, DONE),
    stream("3.14", "reasoning_content", chunk(reasoning_content="Hm"), SAY, STOP, DONE, thinking="Hm"),
    stream("3.15", "reasoning", chunk(reasoning="Hm"), SAY, STOP, DONE, thinking="Hm"),
    stream("3.16", "both, the same twice", chunk(reasoning="Hm", reasoning_content="Hm"), SAY, STOP, DONE,
           thinking="Hm"),
    stream("3.17", "split <think>", chunk(content="<th"), chunk(content="ink>H"), chunk(content="m</thi"),
           chunk(content="nk>\nHi"), STOP, DONE, thinking="Hm", quirks="together"),
    stream("3.18", "error in a chunk", SAY, {"error": {"code": 502, "message": "gone"}}, error=ServerError),
    stream("3.19", "event: error without [DONE]",
           raw=body([SAY]) + b'event: error\ndata: {"error":{"message":"no","code":"tool_use_failed"}}\n\n',
           error=InvalidRequestError),
    stream("3.20", "error, then [DONE] (vLLM)", SAY,
           {"error": {"message": "x", "type": "InternalServerError", "code": 500}}, DONE, error=ServerError),
    stream("3.21", "comments", raw=b": PROCESSING\n\n:\n\n" + body([SAY]) + b": ping\n" + body([STOP, DONE])),
    stream("3.22", "no space after data:", raw=body([SAY, STOP, DONE], colon=b":")),
    stream("3.23", "CRLF", raw=body([SAY, STOP, DONE], line_end=b"\r\n")),
    stream("3.24", "characters of several bytes, cut", chunk(content="☃\U0001f600é"), STOP, DONE,
           text="☃\U0001f600é"),
    stream("3.25", "U+2028 inside JSON", chunk(content="a\u2028b\u2029c\u0085d\x0ce"), STOP, DONE,
           text="a\u2028b\u2029c\u0085d\x0ce"),
    stream("S.1", "no blank line at the end", raw=body([SAY, STOP, DONE]).rstrip(b"\n")),
    stream("S.2", "no [DONE]", SAY, STOP),
    stream("S.3", "cut before the finish", SAY, error=StreamError),
    stream("S.4", "cut inside a chunk", raw=body([SAY, STOP])[:-9], error=StreamError),
    stream("S.5", "error before anything", {"error": {"message": "busy", "code": 429}}, text="",
           error=RateLimitError),
    stream("S.6", "overflow before anything", {"error": {"message": "Token limit reached", "code": 400}}, text="",
           error=ContextOverflowError),
    stream("S.7", "the same words after some output", SAY,
           {"error": {"message": "Token limit reached", "code": 400}}, error=InvalidRequestError),
    stream("S.8", "cumulative usage in every chunk", SAY | {"usage": {**USAGE, "completion_tokens": 1}},
           STOP | {"usage": USAGE}, DONE, usage=SEEN),
    stream("S.9", "a page of HTML in a stream", raw=b"<html><body>502 Bad Gateway</body></html>", text="",
           error=StreamError),
    stream("S.10", "nothing at all", raw=b"", text="", error=StreamError),
    stream("S.11", "a NUL and a bell in JSON text", raw=b'data: {"choices":[{"delta":{"content":"Hi"}}]}\n\n'
           + b"data: \x00\n\n", error=StreamError),
    calls("S.12", "a new id in every fragment", tools(tool()), tools(tool(0, "call_8", None, '{"at"')),
          tools(tool(0, "call_9", None, ":1}")), expected=(LOOK,)),
    calls("S.13", "an index that begins with 1", tools(tool(1)), more('{"at":1}', 1),
          tools(tool(2, "call_2", "hear")), more('{"to":2}', 2)),
    calls("S.14", "one id for two calls", tools(tool(0, "call_1", "look", '{"at":1}')),
          tools(tool(1, "call_1", "hear", '{"to":2}')), expected=(LOOK, ("call_1", "hear", {"to": 2}))),
    calls("S.15", "two calls of one tool with one index and no id",
          tools(tool(0, None, "look", '{"at":1}')), tools(tool(0, None, "look", '{"at":2}')),
          expected=(("", "look", {"at": 1}), ("", "look", {"at": 2}))),
)  # fmt: skip


def test_the_list_is_complete() -> None:
    numbers = [vector.number for vector in STREAMS]
    assert [number for number in numbers if number.startswith("3.")] == [f"3.{n}" for n in range(1, 26)]
    assert len(set(numbers)) == len(numbers)


@pytest.mark.parametrize("vector", STREAMS, ids=lambda vector: f"{vector.number} {vector.name}")
def test_a_stream_of_the_list_is_understood(vector: Vector) -> None:
    if not vector.raw:
        outcome = read(raw=b"\n", quirks=QUIRKS[vector.quirks])
    else:
        outcome = read(raw=vector.raw, quirks=QUIRKS[vector.quirks])
    if vector.error is not None:
        assert type(outcome.error) is vector.error
        assert outcome.complete is None
        assert outcome.assembler.partial_text() == vector.text
        assert outcome.assembler.started is bool(vector.text), "without any content an attempt leaves no trace"
        return
    assert outcome.error is None
    assert (outcome.text, outcome.thinking, tuple(outcome.calls)) == (vector.text, vector.thinking, vector.calls)
    usage = outcome.usage
    if vector.usage is None:
        assert usage.estimated
    else:
        assert (usage.input_tokens, usage.cached_input_tokens, usage.output_tokens) == vector.usage


def made(answer: FakeReply | Exception) -> OpenAICompatibleAdapter:
    return OpenAICompatibleAdapter(
        AdapterConfig(base_url="http://x.test", max_retries=0), transport=FakeTransport(answer), clock=FakeClock()
    )


@pytest.mark.anyio
async def test_3_26_a_stream_may_be_answered_with_a_whole_reply() -> None:
    answer = FakeReply(msgspec.json.encode(reply(content="Hi")), headers={"content-type": "application/json"})
    events = [event async for event in made(answer).stream(ask())]
    assert [event.type for event in events] == ["message.start", "text.delta", "message.complete"]


@pytest.mark.anyio
async def test_s_16_a_kept_connection_that_the_server_dropped_is_a_network_error() -> None:
    """The transport has tried a fresh connection already; what remains may be tried again."""
    with pytest.raises(NetworkError) as caught:
        await made(NetworkError("Server disconnected without sending a response")).complete(ask())
    assert caught.value.retryable


# -- 7: errors. 7.1 and 7.2, every overflow and every false positive, are tables of `test_classify`.


def error(status: int, said: object, headers: dict[str, str] | None = None) -> AdapterError:
    data = said if isinstance(said, bytes) else msgspec.json.encode(said)
    return build_error(
        read_error(data),
        status=status,
        headers=headers or {},
        provider="p",
        now_us=1_000_000_000_000_000,
    )


def test_7_1_and_7_2_are_tables_elsewhere() -> None:
    from .. import test_classify

    assert len(test_classify.OVERFLOWS) >= 30


def test_7_3_a_spent_quota_is_told_from_a_rate_limit_with_the_same_status() -> None:
    spent = error(429, {"error": {"code": "insufficient_quota"}})
    limited = error(429, {"error": {"code": "rate_limit_exceeded", "type": "tokens"}})
    assert (type(spent), spent.retryable) == (QuotaExceededError, False)
    assert (type(limited), limited.retryable) == (RateLimitError, True)
    per_day: JsonObject = {
        "@type": "x/google.rpc.QuotaFailure",
        "violations": [{"quotaId": "GenerateRequestsPerDay"}],
    }
    daily = error(429, [{"error": {"code": 429, "status": "RESOURCE_EXHAUSTED", "details": [per_day]}}])
    assert type(daily) is QuotaExceededError


@pytest.mark.parametrize(
    ("status", "kind"), [(502, ServerError), (429, RateLimitError), (400, InvalidRequestError)]
)
@pytest.mark.parametrize("said", [b"<html><h1>Bad Gateway</h1></html>", b""], ids=["7.4 HTML", "7.5 empty"])
def test_7_4_and_7_5_a_page_of_html_or_an_empty_body_is_told_by_its_status(
    said: bytes, status: int, kind: type[AdapterError]
) -> None:
    found = error(status, said)
    assert type(found) is kind
    assert "<" not in str(found)


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({"retry-after": formatdate(1_000_000_030, usegmt=True)}, 30.0),
        ({"retry-after": "1.5"}, 1.5),
        ({"retry-after-ms": "250"}, 0.25),
        ({}, None),
        ({"retry-after": "-5"}, None),
        ({"retry-after": "NaN"}, None),
    ],
    ids=["7.6 date", "7.7 float", "7.8 ms", "7.9 missing", "7.10 negative", "7.11 NaN"],
)
def test_7_6_to_7_11_retry_after_in_every_form(headers: dict[str, str], expected: float | None) -> None:
    found = error(429, {"error": {"message": "slow down"}}, headers).retry_after_seconds
    assert found == expected
    assert found is None or math.isfinite(found)


@pytest.mark.anyio
async def test_7_12_retry_after_on_200_means_nothing() -> None:
    answer = FakeReply(body([SAY, STOP, DONE]), headers={"retry-after": "60"})
    adapter = made(answer)
    assert [event.type async for event in adapter.stream(ask())][-1] == "message.complete"
