"""Streams become small: merged deltas, folded messages, and how many closed ones are kept."""

from __future__ import annotations

import pytest

from callboard.bus import (
    ImageBlock,
    MessageComplete,
    MessageStart,
    ProviderEvent,
    StopReason,
    StreamChannel,
    StreamLog,
    StreamReset,
    TextBlock,
    TextDelta,
    ThinkingBlock,
    ThinkingDelta,
    TokenUsage,
    ToolResultBlock,
    ToolUseBlock,
    ToolUseEnd,
    ToolUseInputDelta,
    ToolUseStart,
    TurnEvent,
    UnknownStream,
)
from callboard.bus.streams.fold import coalesce, fold, weigh
from callboard.bus.streams.log import FOLD_ABOVE_BYTES
from tests.support.virtual_time import FakeClock

from .stream_making import MEBIBYTE, complete, filled, read, reply, text_of

pytestmark = pytest.mark.anyio


def test_only_adjacent_deltas_of_one_block_are_merged() -> None:
    """Not across blocks, messages, kinds, or a signature; and the seq is that of the last that went in."""
    events = [
        TextDelta("a", 0, "m"),
        TextDelta("b", 0, "m"),
        TextDelta("c", 1, "m"),
        TextDelta("d", 1, "n"),
        ThinkingDelta("e", None, 1, "n"),
        ThinkingDelta("f", "sig", 1, "n"),
        ThinkingDelta("g", None, 1, "n"),
        ToolUseInputDelta("t", "{", 2, "n"),
        ToolUseInputDelta("t", "}", 2, "n"),
    ]
    merged, seqs = coalesce(events, 10)
    assert merged == [
        TextDelta("ab", 0, "m"),
        TextDelta("c", 1, "m"),
        TextDelta("d", 1, "n"),
        ThinkingDelta("ef", "sig", 1, "n"),
        ThinkingDelta("g", None, 1, "n"),
        ToolUseInputDelta("t", "{", 2, "n"),
        ToolUseInputDelta("t", "}", 2, "n"),
    ]
    assert seqs == [11, 12, 13, 15, 16, 17, 18]


def test_a_merged_delta_stays_below_its_limit() -> None:
    """16 KiB is where a merged delta ends and the next begins; a single bigger one stays whole."""
    merged, _ = coalesce([TextDelta("x" * 6000) for _ in range(10)] + [TextDelta("y" * 20000)], 0)
    assert [len(event.text) for event in merged if isinstance(event, TextDelta)] == [12000] * 5 + [20000]


def test_a_finished_message_folds_to_its_start_and_end() -> None:
    """What its deltas add up to is in the MessageComplete; tools and steps around it stay."""
    events = reply("a", "b")
    assert fold(events) == (events[0], events[-2], events[-1])


def test_what_is_told_beside_the_content_is_for_those_who_were_there() -> None:
    """It folds to nothing, between two deltas of an unfinished message too; until then it weighs what it holds."""
    picture = ProviderEvent("partial_image", {"b64": "x" * 10_000}, "m")
    events = [MessageStart("m"), picture, TextDelta("a", 0, "m"), picture, TextDelta("b", 0, "m")]
    assert fold(events) == (MessageStart("m"), TextDelta("ab", 0, "m"))
    assert weigh(picture) > 10_000


def test_an_unfinished_message_folds_to_one_delta_per_block() -> None:
    """Text, thinking and arguments are joined; folding again changes nothing but what is new."""
    events: list[TurnEvent] = [
        MessageStart("m"),
        ThinkingDelta("a", None, 0, "m"),
        ThinkingDelta("b", "sig", 0, "m"),
        ToolUseStart("t", "tool", 1, "m"),
        ToolUseInputDelta("t", '{"a"', 1, "m"),
        ToolUseInputDelta("t", ":1}", 1, "m"),
        ToolUseEnd("t", {"a": 1}, False, 1, "m"),
        TextDelta("c", 2, "m"),
        TextDelta("d", 2, "m"),
    ]
    folded = fold(events)
    assert folded == (
        MessageStart("m"),
        ThinkingDelta("ab", "sig", 0, "m"),
        ToolUseStart("t", "tool", 1, "m"),
        ToolUseInputDelta("t", '{"a":1}', 1, "m"),
        ToolUseEnd("t", {"a": 1}, False, 1, "m"),
        TextDelta("cd", 2, "m"),
    )
    assert fold((*folded, TextDelta("e", 2, "m")))[-1] == TextDelta("cde", 2, "m")


def test_weight_follows_what_an_event_keeps_alive() -> None:
    """Text, arguments and whole blocks count; nothing weighs nothing."""
    blocks = (
        TextBlock("x" * 1000),
        ThinkingBlock("x" * 1000),
        ImageBlock(data=b"\x89PNG\r\n\x1a\n" + b"x" * 1000),
        ToolUseBlock("t", "n", {}),
    )
    heavy = MessageComplete(blocks, StopReason.END_TURN, None, TokenUsage())
    assert 3000 < weigh(heavy) < 5000
    assert weigh(ToolUseEnd("t", {"a": ["x" * 1000, 1, {}]})) > 1000
    assert weigh(TextDelta("x" * 1000)) > 1000
    assert weigh(ToolUseInputDelta("t", "x" * 1000)) > 1000
    result = MessageComplete((ToolResultBlock("t", "x" * 1000),), StopReason.END_TURN, None, TokenUsage())
    assert weigh(result) > 1000
    assert weigh(object()) > 0


async def test_a_huge_stream_folds_and_a_reader_behind_is_reset() -> None:
    """Above 8 MiB the oldest is folded; the call goes on, and a slow reader still gets the whole text."""
    log: StreamLog[TurnEvent] = StreamLog("s")
    slow, quick = log.reader(), log.reader()
    log.append(MessageStart("m"))
    piece = "x" * 1000
    taken = 0
    for n in range(20_000):
        log.append(TextDelta(piece, n // 1000, "m"))
        if n % 100 == 99:
            for _ in range(100):
                await anext(quick)
                taken += 1
    assert log.size < 20_000 * 1100 + 8 * MEBIBYTE
    log.append(complete("end"))
    log.close()
    reset = await anext(slow)
    assert isinstance(reset, StreamReset)
    rest = await read(slow)
    assert len(text_of([*reset.snapshot, *rest])) == 20_000_000
    assert slow.statistics().resets == 1
    assert quick.statistics().resets == 0
    assert taken + len(await read(quick)) == log.next_seq
    assert slow.seq == quick.seq == log.next_seq - 1


@pytest.mark.parametrize("at_once", [1, 300])
def test_a_stream_is_folded_at_its_bound_and_not_before(at_once: int) -> None:
    """Whether events come singly or several at once; half of what the bound allows then stays whole."""
    log: StreamLog[TurnEvent] = StreamLog("s")
    delta = TextDelta("x" * 1000, 0, "m")
    slack = (512 + at_once) * weigh(delta)  # between two weighings
    folds, before = 0, 0
    while log.next_seq * weigh(delta) < 4 * FOLD_ABOVE_BYTES:
        if at_once == 1:
            log.append(delta)
        else:
            log.extend([delta] * at_once)
        whole = (log.next_seq - log.first_seq) * weigh(delta)
        assert whole <= FOLD_ABOVE_BYTES + slack
        if log.first_seq > before:
            folds, before = folds + 1, log.first_seq
            assert FOLD_ABOVE_BYTES // 2 - weigh(delta) <= whole <= FOLD_ABOVE_BYTES // 2
        elif not folds:
            assert log.snapshot == ()
    assert folds == 6


async def test_a_finished_stream_is_kept_whole_and_then_folded() -> None:
    """For 60 s a late reader gets every event; after that, one reset with what they say."""
    clock = FakeClock()
    channel = StreamChannel(clock=clock)
    events = reply("a", "b")
    filled(channel.open("s"), events)
    clock.advance(59)
    assert await read(channel.attach("s")) == events
    clock.advance(2)
    reader = channel.attach("s", from_seq=1)
    (reset,) = await read(reader)
    assert reset == StreamReset((events[0], events[-2], events[-1]), len(events))
    assert reader.seq == len(events) - 1
    assert await read(channel.attach("s", from_seq=len(events))) == []
    statistics = channel.statistics()
    assert (statistics.open, statistics.kept, statistics.folded) == (0, 0, 1)


async def test_closed_streams_are_bounded_by_bytes_least_recently_used_first() -> None:
    """Over the limit the oldest are folded early, then evicted; one that was just used stays."""
    clock = FakeClock()
    channel = StreamChannel(clock=clock, retain_seconds=60, max_bytes=40_000)
    for name in "abc":
        filled(channel.open(name), reply("x" * 9_000))
    assert channel.statistics().closed_bytes <= 40_000
    clock.advance(61)
    channel.attach("a")
    assert channel.statistics().folded == 3
    for name in "def":
        filled(channel.open(name), reply("x" * 9_000))
        assert channel.statistics().closed_bytes <= 40_000
    assert "a" in channel or "b" not in channel
    assert "b" not in channel
    with pytest.raises(UnknownStream, match="session"):
        channel.attach("b")
    assert channel.statistics().evicted > 0
