"""Almost valid JSON is read on each wire, and a history with lone surrogates is sent."""

from __future__ import annotations

import json
import math
from collections.abc import Callable

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from callboard.adapters.conformance.http_kit import FakeReply, FakeTransport
from callboard.adapters.contract import CanonicalRequest, CanonicalResponse
from callboard.adapters.http.errors import read_error
from callboard.adapters.replies.block import GrowingArguments, Meaning, is_whole, may_become_json, parse_arguments
from callboard.adapters.replies.server_sent_events import SseDecoder
from callboard.adapters.requests.content import repair_body, repair_json, repair_text
from callboard.bus.errors import AdapterError, ContextOverflowError, RateLimitError
from callboard.bus.values.base import Json, JsonObject
from callboard.bus.values.content import ToolUseBlock
from callboard.bus.values.messages import Message

from ...support import fake_http
from ...support.json_values import json_objects
from ...support.virtual_time import FakeClock
from ...support.wires import CALLING_WIRES, WIRES, Wire, chat
from ...support.wires.anthropic import AnthropicWire
from ...support.wires.gemini import GeminiWire
from ...support.wires.interactions import InteractionsWire
from ...support.wires.reading import read_pieces, read_whole
from ...support.wires.responses import ResponsesWire
from ...support.wires.tgi import TGIWire

TEXT = "Well, a walrus."
BROKEN = {
    "invalid UTF-8": (b"walrus", b"w\xfflrus", "Well, a w\ufffdlrus."),
    "half a surrogate pair": (b"walrus", rb"w\ud83dlrus", "Well, a w\ufffdlrus."),
    "NaN or Infinity": (b"{", b'{"odd":[NaN,-Infinity,Infinity],', TEXT),
}
"""The replaced bytes, the replacement and the resulting text, by the description in the warning."""


def ask(wire: Wire, *messages: Message) -> CanonicalRequest:
    return fake_http.ask(*(messages or (Message.user("Go on"),)), model=f"{wire.name}:some-model")


def spoilt(body: bytes, what: str) -> bytes:
    before, after, _ = BROKEN[what]
    return body.replace(before, after, 1 if before == b"{" else -1)


def changed(wire: Wire, change: Callable[[bytes], bytes], text: str, calls: int, *, streamed: bool) -> FakeReply:
    """A reply of the wire whose JSON was changed."""
    if streamed:
        return wire.stream_of(*[change(chunk) if b"{" in chunk else chunk for chunk in wire.chunks(text, calls)])
    whole = wire.whole(text, calls)
    return FakeReply(*[change(step) for step in whole.steps if isinstance(step, bytes)], headers=whole.headers)


async def read(wire: Wire, reply: FakeReply, *, streamed: bool) -> CanonicalResponse:
    adapter = wire.make(FakeTransport(reply), FakeClock(), max_retries=0)
    if not streamed:
        return await adapter.complete(ask(wire))
    async with adapter.stream(ask(wire)) as stream:
        async for _ in stream:
            pass
        assert stream.response is not None
        return stream.response


@pytest.mark.anyio
@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("what", BROKEN)
@pytest.mark.parametrize("wire", WIRES, ids=lambda wire: wire.name)
async def test_broken_json_is_read_with_one_warning(wire: Wire, what: str, streamed: bool) -> None:
    reply = changed(wire, lambda body: spoilt(body, what), TEXT, 0, streamed=streamed)
    response = await read(wire, reply, streamed=streamed)
    assert response.text in (BROKEN[what][2], TEXT)
    told = [warning.message for warning in response.warnings if warning.code == "body_mended"]
    assert told == [f"the provider sent {what}, which was replaced"] or (streamed and response.text == TEXT)


@pytest.mark.anyio
@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("wire", CALLING_WIRES, ids=lambda wire: wire.name)
async def test_an_invalid_byte_in_the_arguments_is_replaced(wire: Wire, streamed: bool) -> None:
    """The byte in the body is replaced, also if the arguments are first read later."""
    reply = changed(wire, lambda body: body.replace(b".txt", b"\xff.txt"), "", 1, streamed=streamed)
    response = await read(wire, reply, streamed=streamed)
    (call,) = response.tool_uses
    assert "\ufffd" in str(call.input)
    assert [warning.code for warning in response.warnings] == ["body_mended"]


@pytest.mark.anyio
@pytest.mark.parametrize("wire", CALLING_WIRES, ids=lambda wire: wire.name)
async def test_half_a_surrogate_pair_in_a_host_s_arguments_is_replaced(wire: Wire) -> None:
    """Estimates work, and the sent request is valid."""
    transport = FakeTransport(wire.whole("Fine."))
    adapter = wire.make(transport, FakeClock(), max_retries=0)
    call = ToolUseBlock("tu_1", "read_file", {"pa\ud800th": ["\udfff.txt"]})
    messages = (Message.user("Read"), Message.assistant([call]), Message.tool_result("tu_1", "x"))
    assert adapter.estimate_input_tokens(messages, model="some-model") > 0
    response = await adapter.complete(ask(wire, *messages))
    sent = next(request.body for request in transport.requests if b"read_file" in request.body)
    assert "\ufffd.txt" in sent.decode().replace("\\ufffd", "\ufffd")
    assert "content_dropped" in [warning.code for warning in response.warnings]


@given(json_objects(3))
def test_valid_json_is_never_changed(value: dict[str, Json]) -> None:
    """The texts include NaN and several backslashes in a row."""
    for text in (value, {"NaN": 'a "NaN" \\" Infinity \\\\', "x": value}):
        assert repair_body(msgspec.json.encode(text)) is None


@given(st.lists(st.sampled_from(["NaN", "Infinity", "-Infinity", "1", '"NaN"', '"\\\\\\"Infinity"'])))
def test_only_numbers_that_json_lacks_become_null(parts: list[str]) -> None:
    body = f"[{','.join(parts)}]".encode()
    repaired = repair_body(body)
    values = msgspec.json.decode(body if repaired is None else repaired.text)
    assert [value is None for value in values] == [part in ("NaN", "Infinity", "-Infinity") for part in parts]
    assert (repaired is None) == (None not in values)
    assert not any(isinstance(value, float) and math.isnan(value) for value in values)


def test_the_text_of_an_error_survives_invalid_bytes() -> None:
    """The code decides the class of the error. An invalid byte in the message must not hide the code."""
    found = read_error(b'{"error":{"code":"rate_limit_exceeded","message":"slow \xff down","score":NaN}}')
    assert (found.code, found.message) == ("rate_limit_exceeded", "slow \ufffd down")


# -- Arguments in pieces, and arguments that are repeated in each chunk, give the same result.


KEYS = st.sampled_from(["a", "b", '{"a', "ab"])
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=2),
    max_leaves=6,
)
TEXTS = st.builds(
    lambda value, spaces: json.dumps(value, indent=spaces),
    st.dictionaries(KEYS, VALUES, min_size=1, max_size=2),
    st.sampled_from([None, 1]),
)
CUTS = st.lists(st.integers(0, 60), max_size=8)


def joined(fragments: list[str], meaning: Meaning = "either") -> str:
    """The result of the fragments. The deltas must add up to it."""
    arguments = GrowingArguments(meaning)
    deltas = [arguments.add(fragment) for fragment in fragments]
    so_far = arguments.text
    deltas.append(arguments.settle())
    assert "".join(deltas) == so_far == arguments.text == "".join(arguments.parts)
    return so_far


def places(text: str, cuts: list[int]) -> list[int]:
    """Sorted places inside a text."""
    return sorted({min(cut, len(text)) for cut in cuts} | {len(text)})


@given(TEXTS, CUTS)
def test_pieces_give_the_arguments_for_any_division(text: str, cuts: list[int]) -> None:
    """A piece may begin like all earlier ones together."""
    ends = places(text, cuts)
    assert joined([text[start:end] for start, end in zip([0, *ends], ends, strict=False)]) == text


@given(TEXTS, CUTS)
def test_growing_prefixes_give_the_arguments_for_any_division(text: str, cuts: list[int]) -> None:
    """Each chunk is a longer prefix of the same JSON."""
    assert joined([text[:end] for end in places(text, cuts)]) == text


@given(TEXTS, CUTS)
def test_arguments_in_a_string_are_unwrapped(text: str, cuts: list[int]) -> None:
    """The JSON string around the object is divided, or repeated, like the object."""
    wrapped = json.dumps(text)
    ends = places(wrapped, cuts)
    pieces = [wrapped[start:end] for start, end in zip([0, *ends], ends, strict=False)]
    for fragments in (pieces, [wrapped[:end] for end in ends]):
        assert parse_arguments(joined(fragments)) == (json.loads(text), True)


@pytest.mark.parametrize(("meaning", "fragments", "text"), [
    ("either", ['{"a":', '{"a":1}}'], '{"a":{"a":1}}'),
    ("either", ['{"a":', '{"a":1}'], '{"a":1}'),
    ("either", ['{"a":', '{"a":', "1}}"], '{"a":{"a":1}}'),
    ("either", ['{"a":', '{"a":{', '{"a":{}}'], '{"a":{}}'),
    ("either", ['{"a":1}', '{"a":1}'], '{"a":1}'),
    ("either", ['{"a":1}', '{"a":1}{"b":2}'], '{"a":1}{"a":1}{"b":2}'),
    ("either", ["", '{"a"', '{"a":1', '{"a"', '{"a":1}'], '{"a":1}'),
    ("pieces", ['{"a":', '{"a":1}'], '{"a":{"a":1}'),
    ("so_far", ['{"a":1}', '{"a":1} '], '{"a":1} '),
])  # fmt: skip
def test_fragments_have_the_meaning_that_gives_json(meaning: Meaning, fragments: list[str], text: str) -> None:
    """A fragment replaces an incomplete beginning, unless only the joined pieces are JSON. A quirk forces one of
    the two.
    """
    assert joined(fragments, meaning) == text


@given(TEXTS)
def test_every_prefix_of_json_is_accepted(text: str) -> None:
    """A text that starts no JSON is not accepted."""
    assert all(may_become_json(text[:end]) for end in range(len(text) + 1))
    assert is_whole(text)
    bad = ("{,", '{"a" 1', "[1 2", "{1", "tru3", "1.2.3", "]", '{"a":}', "[,", "nul}", '{"a":1,}')
    assert [wrong for wrong in (text + "}", "{" + text, *bad) if may_become_json(wrong)] == []


# -- Halves of surrogate pairs never break a reply or a history.


@given(st.text(st.characters(exclude_categories=[]) | st.sampled_from('\ud83d\ude00\\u"/n')))
def test_any_python_string_can_be_encoded(text: str) -> None:
    """The string can be written as text and as JSON, and only the halves change."""
    assert json.loads(msgspec.json.encode(repair_text(text))) == repair_text(text)
    repaired = msgspec.json.decode(repair_json(json.dumps(text).encode()))
    assert repaired == repair_text(text)


@pytest.mark.parametrize(("before", "after"), [
    (rb'"\ud83d"', rb'"\ufffd"'),
    (rb'"\uDE00 \ud83d"', rb'"\ufffd \ufffd"'),
    (rb'"\ud83d\ude00"', rb'"\ud83d\ude00"'),
    (rb'"\\ud83d"', rb'"\\ud83d"'),
    (rb'"\\\ud83d"', rb'"\\\ufffd"'),
    (rb'"\ud83d\ud83d\ude00"', rb'"\ufffd\ud83d\ude00"'),
])  # fmt: skip
def test_only_halves_are_replaced(before: bytes, after: bytes) -> None:
    """Complete pairs stay. An escaped backslash before `ud83d` is no escape."""
    assert repair_json(before) == after


def test_good_text_is_not_copied() -> None:
    """The function returns the same object if it changed nothing."""
    text = "☃😀 \\u0041"
    assert repair_text(text) is text
    body = rb'{"a": "\u2603"}'
    assert repair_json(body) is body


# -- Errors outside of the events of a stream, on every wire with events.


BARE_ERROR_WIRES: list[Callable[[], Wire]] = [
    chat.ChatWire, AnthropicWire, ResponsesWire, GeminiWire, InteractionsWire, TGIWire,
]  # fmt: skip
OVER = {"code": 400, "message": "the request exceeds the available context size", "type": "invalid_request_error"}
LIMIT = {"error": {"message": "Rate limit reached", "type": "rate_limit_error", "code": "rate_limit_exceeded"}}
FORMS: list[tuple[str, str, type[AdapterError]]] = [
    ("a field named error", f"error: {json.dumps(OVER)}\n\ndata: [DONE]\n\n", ContextOverflowError),
    ("a field named error, at the end", f"error: {json.dumps(OVER)}", ContextOverflowError),
    ("an error event with a bare line", f"event: error\n{json.dumps({'error': OVER})}\n\n", ContextOverflowError),
    ("an error event without data", "event: error\n\n", AdapterError),
    ("an error event that is a text", "event: error\ndata: no context\n\n", AdapterError),
    ("bare JSON", json.dumps({"error": OVER}), ContextOverflowError),
    ("bare JSON on lines", json.dumps(LIMIT, indent=1), RateLimitError),
    ("a detail", 'data: {"detail": "Rate limit reached"}\n\n', AdapterError),
]


@pytest.mark.parametrize("make", BARE_ERROR_WIRES, ids=lambda make: make.__name__)
@pytest.mark.parametrize(("body", "kind"), [form[1:] for form in FORMS], ids=[form[0] for form in FORMS])
def test_an_error_outside_the_events_is_raised(make: Callable[[], Wire], body: str, kind: type) -> None:
    """The error comes in one piece or byte by byte. Without a code, its text decides."""
    data = body.encode()
    for chunks in ([data], [data[at : at + 1] for at in range(len(data))]):
        assert type(read_pieces(make(), chunks).error) is kind


@pytest.mark.parametrize("make", BARE_ERROR_WIRES[:-1], ids=lambda make: make.__name__)
def test_an_error_after_text_is_raised(make: Callable[[], Wire]) -> None:
    """The delivered text is kept, and then the error is raised."""
    wire = make()
    events = [event for _, event in wire.events("Hi", 0, "end")]
    begun = wire.stream(*events[: max(1, len(events) // 2)])
    for bare in (json.dumps({"error": OVER}), f"error: {json.dumps(OVER)}\n\n"):
        assert isinstance(read_pieces(wire, [begun + bare.encode()]).error, ContextOverflowError)


@pytest.mark.parametrize("make", [*BARE_ERROR_WIRES], ids=lambda make: make.__name__)
def test_a_plain_reply_that_is_an_error_is_raised(make: Callable[[], Wire]) -> None:
    """The status is 200, and the form is not that of the wire."""
    spent: JsonObject = {"code": "x", "message": "Insufficient balance"}
    bodies: list[JsonObject] = [
        {"errors": [spent], "success": False}, {"base_resp": {"status_code": 1008, "status_msg": "no"}}, spent,
    ]  # fmt: skip
    for body in bodies:
        assert type(read_whole(make(), body).error).__name__ == "QuotaExceededError"


def test_lines_outside_of_events_are_ignored() -> None:
    """A bare line is data only for an error event without its own data."""
    decoder = SseDecoder()
    assert decoder.feed(b"stray\nevent: x\nbare\n\nevent: error\nwhy\n\nevent: error\ndata: 1\n\n") == [
        (b"error", b"why"),
        (b"error", b"1"),
    ]
    assert decoder.other_lines == b"stray\nbare"
