"""A reply as its provider sent it: kept of every wire where it is asked for, and of none where it is not."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from callboard.adapters.replies import block
from callboard.adapters.replies.block import RawKept
from callboard.bus.values.messages import RawReply

from ...support.fake_http import pieces
from ...support.wires import Wire
from ...support.wires.reading import read_pieces, read_whole
from .cases import EACH, HI, OVER

TEXT = "Hé, ☃\u2028😀!"


@EACH
@settings(max_examples=10, deadline=None)
@given(cuts=st.lists(st.integers(0, 4000), max_size=30))
def test_the_events_of_a_stream_are_kept_in_their_order(wire: Wire, cuts: list[int]) -> None:
    """However the network cuts them, and beside the same content as without."""
    body = wire.stream(*[event for _, event in wire.events(TEXT, *wire.most)])
    kept = read_pieces(wire, pieces(body, cuts), include_raw=True)
    sent = tuple(event for _, event in wire.events(TEXT, *wire.most) if isinstance(event, dict))
    assert kept.reply.raw == RawReply(events=sent)
    plain = read_pieces(wire, pieces(body, cuts))
    assert plain.reply.raw is None
    assert plain.said == kept.said


@EACH
def test_the_body_of_a_whole_reply_is_kept(wire: Wire) -> None:
    """Also where a stream was asked for and the server sent it whole."""
    body = wire.body(TEXT, *wire.most)
    assert read_whole(wire, body, include_raw=True).reply.raw == RawReply(body=body)
    assert read_whole(wire, body).reply.raw is None


@EACH
def test_what_is_no_json_stands_as_text(wire: Wire) -> None:
    """Such as a broken escape, which is mended before it is read."""
    broken = msgspec.json.encode(wire.body("***", 0, "end")).replace(b"***", b"\\ud83d")
    kept = read_whole(wire, broken, include_raw=True).reply.raw
    assert kept == RawReply(body=broken.decode())


@EACH
def test_the_mark_of_the_end_is_none_of_the_events(wire: Wire) -> None:
    """It may or may not have come when the reply is over."""
    kept = read_pieces(wire, [wire.stream(*HI[wire.name], *OVER[wire.name])], include_raw=True).reply.raw
    assert kept is not None
    assert all(isinstance(event, dict) for event in kept.events)
    assert len(kept.events) == len([*HI[wire.name], *OVER[wire.name]]) - (wire.name == "openai_compatible")


@EACH
def test_a_key_that_the_server_repeats_is_masked(wire: Wire) -> None:
    config = {"api_key": "sk-hidden-key"}
    kept = read_whole(wire, wire.body("sk-hidden-key", 0, "end"), include_raw=True, config=config).reply.raw
    assert kept is not None
    assert "sk-hidden-key" not in str(kept.body)
    assert "***" in str(kept.body)


def test_what_is_kept_is_bounded_and_says_what_it_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    """From the first event that is too many on, nothing is kept: there are no gaps."""
    monkeypatch.setattr(block, "MAX_RAW_BYTES", 5)
    kept = RawKept()
    for data in (b"12", b"345", b"6", b"", b"7"):
        kept.event(data)
    assert kept.reply(()) == RawReply(events=(12, 345), left_out=3)
    large = RawKept()
    large.body(b"123456")
    assert large.reply(()) == RawReply(left_out=1)
