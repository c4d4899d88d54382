"""Events go into frames and come out as they were, one for one."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from callboard.bus import TextDelta, ToolUseEnd, TurnEvent
from callboard.bus.events.envelope import UnknownEvent
from callboard.engine.nodes.frames.wire import (
    Assembly,
    Frame,
    Packed,
    Texts,
    UnreadableFrame,
    Whole,
    chunks,
    count_of,
    packets,
    read_packet,
    unpacked,
)

from .events import LOGS, raws, without_raws


def carried(events: list[TurnEvent], most_bytes: int = 4096, packet: int = 1 << 20) -> list[object]:
    """The events of the frames of a log, after their way over the wire."""
    came: list[object] = []
    seq = 0
    for entries, count in chunks(events, most_bytes):
        frame = Frame("s", "", "n", 0, seq, seq + count, entries)
        assembly = Assembly()
        *parts, last = [assembly.frame(payload) for payload in packets(frame, packet)]
        assert parts == [None] * len(parts)
        assert last is not None
        assert count_of(last.entries) == count == last.next_seq - last.first_seq
        came += unpacked(last.entries)
        seq += count
    return came


@given(events=LOGS, most_bytes=st.sampled_from([1, 64, 100, 4096]), packet=st.sampled_from([300, 1 << 20]))
@settings(max_examples=300, deadline=None)
def test_every_event_comes_out_as_it_went_in(events: list[TurnEvent], most_bytes: int, packet: int) -> None:
    """Whatever the text, the bounds of frames and the size of messages."""
    came = carried(events, most_bytes, packet)
    assert without_raws(came) == without_raws(events)
    assert raws(came) == raws(events)


def test_deltas_of_a_block_are_one_entry() -> None:
    """Their number costs a byte each."""
    ((entries, count),) = chunks([TextDelta(f"{number} ", 0, "m") for number in range(100)], 4096)
    assert count == 100
    (entry,) = entries
    assert isinstance(entry, Texts)
    assert len(next(packets(Frame("s", "", "n", 0, 0, 100, entries), 1 << 20))) < len(entry.text) + 150


def test_a_stretch_has_its_bytes_at_most_unless_one_event_has_more() -> None:
    """A burst becomes several frames; an event that is larger goes alone."""
    sizes = [
        [len(entry.text) for entry in entries if isinstance(entry, Texts)]
        for entries, _ in chunks([*(TextDelta("x" * 100) for _ in range(100)), TextDelta("y" * 9000)], 4096)
    ]
    assert all(sum(size) <= 4096 for size in sizes[:-1])
    assert sizes[-1] == [9000]


def test_an_event_that_this_version_does_not_know_keeps_its_place() -> None:
    """A newer node may send one."""
    (event,) = unpacked([Whole(Packed(b'{"type": "of.tomorrow", "x": 1}'))])
    assert isinstance(event, UnknownEvent)
    assert event.topic == "of.tomorrow"


def test_an_event_that_json_can_not_say_keeps_its_place() -> None:
    """The sender goes on."""
    (event,) = carried([ToolUseEnd("tu_1", {"a": object()})])  # type: ignore[dict-item]
    assert isinstance(event, UnknownEvent)
    assert event.topic == "tool.use_end"


def test_a_frame_of_a_later_version_is_unreadable() -> None:
    """It is no error of the stream: its reader asks elsewhere."""
    with pytest.raises(UnreadableFrame):
        read_packet(msgspec.msgpack.encode([99, "s"]))
    with pytest.raises(UnreadableFrame):
        read_packet(b"\xc1")


def test_a_frame_with_fields_of_a_later_version_is_read() -> None:
    """They stand at the end."""
    (packet,) = packets(Frame("s", "", "n", 0, 0, 0), 1 << 20)
    assert read_packet(msgspec.msgpack.encode([*msgspec.msgpack.decode(packet), "new"])) == Frame(
        "s", "", "n", 0, 0, 0
    )


@given(order=st.permutations(range(6)))
@settings(max_examples=50, deadline=None)
def test_parts_come_together_in_any_order(order: list[int]) -> None:
    """Also if one comes twice."""
    frame = Frame("s", "", "n", 0, 0, 1, (Texts(b"x" * 1000, [1000], 0, "m"),))
    parts = list(packets(frame, 256 + 180))
    assert len(parts) == 6
    assembly = Assembly()
    came = [assembly.frame(parts[index]) for index in [order[0], *order]]
    assert came[-1] == frame
    assert came[:-1] == [None] * 6


def test_frames_of_which_parts_are_lost_are_given_up() -> None:
    """Memory stays bounded."""
    assembly = Assembly()
    for number in range(100):
        first, *_ = packets(Frame("s", "", "n", 0, number, number + 1, (Texts(b"x" * 999, [999], 0, "m"),)), 500)
        assert assembly.frame(first) is None
    assert len(assembly._parts) <= Assembly.MOST
