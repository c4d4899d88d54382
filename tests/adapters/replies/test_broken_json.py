"""Bodies that are nearly JSON are read all the same, on every wire; a history is sent that no UTF-8 holds."""

from __future__ import annotations

import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from callboard.adapters.conformance.http_kit import FakeReply, FakeTransport
from callboard.adapters.contract import CanonicalRequest, CanonicalResponse
from callboard.adapters.refusals.classify import read_error
from callboard.adapters.replies.json_text import mend_body
from callboard.bus.errors import StreamError
from callboard.bus.values.base import Json
from callboard.bus.values.content import ToolUseBlock
from callboard.bus.values.messages import Message

from ...support.json_values import json_objects
from ...support.virtual_time import FakeClock
from ...support.wires import CALLING_WIRES, WIRES, Wire

TEXT = "Well, a walrus."
BROKEN = {
    "bytes that are no UTF-8": (b"walrus", b"w\xfflrus", "Well, a w\ufffdlrus."),
    "half a surrogate pair": (b"walrus", rb"w\ud83dlrus", "Well, a w\ufffdlrus."),
    "NaN or Infinity": (b"{", b'{"odd":[NaN,-Infinity,Infinity],', TEXT),
}
"""What is put in the place of what, by the words that report it, and the text that is read then."""


def ask(wire: Wire, *messages: Message) -> CanonicalRequest:
    return CanonicalRequest(
        request_id="req_1",
        messages=messages or (Message.user("Go on"),),
        model=f"{wire.name}:some-model",
        max_output_tokens=64,
    )


def spoilt(body: bytes, what: str) -> bytes:
    before, after, _ = BROKEN[what]
    if what != "NaN or Infinity":
        return body.replace(before, after)
    start = body.index(b"{")
    return body[:start] + after + body[start + 1 :]


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
async def test_what_can_be_read_is_read_and_what_was_replaced_is_told_once(
    wire: Wire, what: str, streamed: bool
) -> None:
    if streamed:
        chunks = [spoilt(chunk, what) if b"{" in chunk else chunk for chunk in wire.chunks(TEXT)]
        response = await read(wire, wire.stream_of(*chunks), streamed=True)
    else:
        whole = wire.whole(TEXT)
        steps = [spoilt(step, what) for step in whole.steps if isinstance(step, bytes)]
        response = await read(wire, FakeReply(*steps, headers=whole.headers), streamed=False)
    assert response.text in (BROKEN[what][2], TEXT)
    told = [warning.message for warning in response.warnings if warning.code == "body_mended"]
    assert told == [f"the provider sent {what}, which was replaced"] or (streamed and response.text == TEXT)


@pytest.mark.anyio
@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("wire", CALLING_WIRES, ids=lambda wire: wire.name)
async def test_a_byte_in_a_call_s_arguments_is_replaced_and_the_call_is_there_once(
    wire: Wire, streamed: bool
) -> None:
    """Of the body, not of what it means: also where nobody looks at arguments before something has been read."""
    if streamed:
        chunks = [chunk.replace(b".txt", b"\xff.txt") for chunk in wire.chunks("", 1)]
        response = await read(wire, wire.stream_of(*chunks), streamed=True)
    else:
        whole = wire.whole("", 1)
        steps = [step.replace(b"a.txt", b"\xff.txt") for step in whole.steps if isinstance(step, bytes)]
        response = await read(wire, FakeReply(*steps, headers=whole.headers), streamed=False)
    (call,) = response.tool_uses
    assert "\ufffd" in str(call.input)
    assert [warning.code for warning in response.warnings] == ["body_mended"]


@pytest.mark.anyio
@pytest.mark.parametrize("wire", WIRES, ids=lambda wire: wire.name)
async def test_what_is_no_json_at_all_is_still_an_error(wire: Wire) -> None:
    """A page that says NaN is a page."""
    with pytest.raises(StreamError):
        await read(
            wire, FakeReply(b"<p>NaN \xff</p>", headers={"content-type": "application/json"}), streamed=False
        )


@pytest.mark.anyio
@pytest.mark.parametrize("wire", CALLING_WIRES, ids=lambda wire: wire.name)
async def test_half_a_surrogate_pair_in_a_host_s_arguments_is_replaced(wire: Wire) -> None:
    """Estimating doesn't stumble over it, and what is sent is valid."""
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
def test_valid_json_is_never_touched(value: dict[str, Json]) -> None:
    """Also where its texts speak of NaN, and where its backslashes come in rows."""
    for text in (value, {"NaN": 'a "NaN" \\" Infinity \\\\', "x": value}):
        assert mend_body(msgspec.json.encode(text)) is None


@given(st.lists(st.sampled_from(["NaN", "Infinity", "-Infinity", "1", '"NaN"', '"\\\\\\"Infinity"'])))
def test_only_numbers_that_json_lacks_become_null(parts: list[str]) -> None:
    body = f"[{','.join(parts)}]".encode()
    mended = mend_body(body)
    values = msgspec.json.decode(body if mended is None else mended.text)
    assert [value is None for value in values] == [part in ("NaN", "Infinity", "-Infinity") for part in parts]
    assert (mended is None) == (None not in values)
    assert not any(isinstance(value, float) and math.isnan(value) for value in values)


def test_an_error_s_words_survive_its_odd_bytes() -> None:
    """The code decides what becomes of a call; a byte of its message must not hide it."""
    found = read_error(b'{"error":{"code":"rate_limit_exceeded","message":"slow \xff down","score":NaN}}')
    assert (found.code, found.message) == ("rate_limit_exceeded", "slow \ufffd down")
