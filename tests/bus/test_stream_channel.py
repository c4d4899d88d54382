"""The stream channel: all readers get the same events, and streams shrink after their end."""

from __future__ import annotations

from itertools import pairwise

import anyio
import anyio.lowlevel
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from callboard.bus import (
    ImageBlock,
    MessageComplete,
    MessageStart,
    ProviderEvent,
    StopReason,
    StreamChannel,
    StreamLog,
    StreamReader,
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
from callboard.bus.streams.events import coalesce, fold, weigh
from callboard.bus.streams.log import FOLD_ABOVE_BYTES

from ..support.virtual_time import FakeClock, on_both, run_virtual
from .stream_making import MEBIBYTE, complete, filled, read, reply, text_of

pytestmark = pytest.mark.anyio


async def test_a_reader_resumes_after_the_last_it_saw() -> None:
    """from_seq=reader.seq + 1 continues without a gap or a repetition."""
    channel = StreamChannel(clock=FakeClock())
    events = reply("a", "b")
    filled(channel.open("s"), events)
    reader = channel.attach("s")
    head = [await anext(reader) for _ in range(2)]
    await reader.aclose()
    assert reader.frame_id == "s:1"
    assert head + await read(channel.attach("s", from_seq=reader.seq + 1)) == events
    assert await read(channel.attach("s", from_seq=len(events))) == []
    assert await read(channel.attach("s", from_seq="tail")) == []


async def test_a_tail_reader_gets_only_later_events() -> None:
    log: StreamLog[int] = StreamLog("s")
    log.append(1)
    reader = log.reader("tail")
    assert reader.seq == 0
    log.append(2)
    log.close()
    assert [event async for event in reader] == [2]


@pytest.mark.parametrize("from_seq", [-1, 2])
def test_a_place_that_does_not_exist_is_refused(from_seq: int) -> None:
    log: StreamLog[int] = StreamLog("s")
    log.append(1)
    with pytest.raises(ValueError, match="events 0 to 0"):
        log.reader(from_seq)


def test_nothing_can_be_appended_after_the_end() -> None:
    log: StreamLog[int] = StreamLog("s")
    log.close()
    log.close()
    with pytest.raises(anyio.ClosedResourceError):
        log.append(1)


async def test_closing_a_reader_ends_it_and_nothing_else() -> None:
    """A task that waits in a closed reader returns. The log and its other readers continue."""
    log: StreamLog[int] = StreamLog("s")
    going, staying = log.reader(), log.reader()
    got: dict[str, list[int]] = {}

    async def consume(name: str, reader: StreamReader[int]) -> None:
        async with reader:
            got[name] = [event async for event in reader if isinstance(event, int)]

    async with anyio.create_task_group() as group:
        group.start_soon(consume, "going", going)
        group.start_soon(consume, "staying", staying)
        await anyio.wait_all_tasks_blocked()
        going.close()
        await anyio.wait_all_tasks_blocked()
        log.append(1)
        log.close()
    assert got == {"going": [], "staying": [1]}
    with pytest.raises(StopAsyncIteration):
        await anext(going)


@on_both
async def test_a_cancelled_reader_loses_nothing() -> None:
    """After a cancelled wait, paced or not, the same reader continues at the same event."""
    for min_interval in (0.0, 1.0):
        log: StreamLog[int] = StreamLog("s")
        reader = log.reader(min_interval=min_interval)
        got: list[object] = []
        for n in range(10):
            with anyio.move_on_after(0.3):
                while True:
                    got.append(await anext(reader))
            log.append(n)
        log.close()
        got.extend([event async for event in reader])
        assert got == list(range(10))


async def test_a_long_backlog_is_read_in_turns() -> None:
    log: StreamLog[int] = StreamLog("s")
    for n in range(2048):
        log.append(n)
    log.close()
    turns = 0
    done = False

    async def other() -> None:
        nonlocal turns
        while not done:
            turns += 1
            await anyio.lowlevel.checkpoint()

    async with anyio.create_task_group() as group:
        group.start_soon(other)
        assert [event async for event in log.reader()] == list(range(2048))
        done = True
    assert turns >= 5


async def test_pacing_never_delays_the_first_event_and_loses_none() -> None:
    """With min_interval, batches are at least that far apart. Each batch has all events since the batch before."""
    log: StreamLog[TurnEvent] = StreamLog("s")
    times: list[tuple[float, str]] = []

    async def consume() -> None:
        begin = anyio.current_time()
        async for event in log.reader(coalesce=True, min_interval=0.05):
            assert isinstance(event, TextDelta)
            times.append((round(anyio.current_time() - begin, 3), event.text))

    async with anyio.create_task_group() as group:
        group.start_soon(consume)
        await anyio.wait_all_tasks_blocked()
        for n in range(10):
            log.append(TextDelta(str(n)))
            await anyio.sleep(0.01)
        await anyio.sleep(1)
        log.append(TextDelta("x"))
        await anyio.wait_all_tasks_blocked()
        log.close()
    assert times[0] == (0.0, "0")
    assert "".join(text for _, text in times) == "0123456789x"
    assert [at for at, _ in times][-1] == 1.1
    assert all(later - earlier >= 0.05 for (earlier, _), (later, _) in pairwise(times))


def test_an_unknown_stream_raises_a_readable_error() -> None:
    with pytest.raises(LookupError, match="never opened"):
        StreamChannel(clock=FakeClock()).attach("nope")


def test_a_stream_id_is_used_once() -> None:
    channel = StreamChannel(clock=FakeClock())
    log = channel.open("s")
    for _ in range(2):
        with pytest.raises(ValueError, match="already"):
            channel.open("s")
        log.close()


def test_a_reader_left_in_a_dead_loop_does_not_break_the_producer() -> None:
    class Dead:
        """An asyncio event whose loop was closed under it."""

        def set(self) -> None:
            raise RuntimeError("Event loop is closed")

    log: StreamLog[int] = StreamLog("s")
    log._signal = Dead()  # type: ignore[assignment]
    assert log.append(1) == 0


@settings(max_examples=40, deadline=None)
@given(
    texts=st.lists(st.text(max_size=5), max_size=40),
    pauses=st.lists(st.sampled_from([0.0, 0.01, 0.2]), min_size=1, max_size=10),
    readers=st.lists(
        st.tuples(
            st.booleans(), st.sampled_from([0.0, 0.05]), st.sampled_from([0.0, 0.03, 1.0]), st.integers(0, 20)
        ),
        min_size=1,
        max_size=5,
    ),
    trio=st.booleans(),
)
def test_readers_of_any_speed_read_the_same(
    texts: list[str], pauses: list[float], readers: list[tuple[bool, float, float, int]], trio: bool
) -> None:
    """The text is the same for slow, paced, merging and late readers."""
    events = reply(*texts)
    got: list[list[TurnEvent | StreamReset[TurnEvent]]] = [[] for _ in readers]

    async def scenario() -> None:
        channel = StreamChannel(clock=FakeClock())
        log = channel.open("s")

        async def consume(n: int, merged: bool, interval: float, pause: float, late: int) -> None:
            await anyio.sleep(late * 0.05)
            last = -1
            reader = channel.attach("s", coalesce=merged, min_interval=interval)
            async for event in reader:
                assert reader.seq > last
                last = reader.seq
                got[n].append(event)
                await anyio.sleep(pause)
            assert last == len(events) - 1

        async with anyio.create_task_group() as group:
            for n, (merged, interval, pause, late) in enumerate(readers):
                group.start_soon(consume, n, merged, interval, pause, late)
            for n, event in enumerate(events):
                log.append(event)
                await anyio.sleep(pauses[n % len(pauses)])
            log.close()

    run_virtual(scenario, "virtual-trio" if trio else "virtual-asyncio")
    for (merged, *_), story in zip(readers, got, strict=True):
        assert text_of(story) == "".join(texts)
        if not merged:
            assert story == events


async def test_the_streams_are_listed_with_their_readers() -> None:
    """The list has open streams first, then closed ones, with the lag of each reader."""
    clock = FakeClock()
    channel = StreamChannel(clock=clock, retain_seconds=60)
    filled(channel.open("over"), reply("a"))
    clock.advance(61)
    filled(channel.open("kept"), reply("a", "b"))
    log = channel.open("open")
    log.append(TextDelta("x"))
    reader = channel.attach("open")
    log.append(TextDelta("y"))
    await anext(reader)
    (first, kept, folded) = channel.streams()
    assert (first.stream_id, first.state, first.events) == ("open", "open", 2)
    assert [(each.seq, each.lag) for each in first.readers] == [(0, 1)]
    assert (channel.statistics().max_lag, channel.statistics().readers) == (1, 1)
    assert (kept.stream_id, kept.state, kept.readers) == ("kept", "kept", ())
    assert (folded.stream_id, folded.state) == ("over", "folded")
    assert folded.bytes > 0


async def test_the_list_has_session_model_and_times() -> None:
    """The list has session, model and times of an open, kept or folded stream. A new stream with the id of a
    discarded one has its own values.
    """
    clock = FakeClock()
    channel = StreamChannel(clock=clock, retain_seconds=60)
    log = channel.open("one", session_id="ses_1", model="s:m")
    began = clock.now_us()
    clock.advance(2)

    def listed() -> tuple[object, ...]:
        (each,) = channel.streams()
        return each.session_id, each.model, each.began_us, each.ended_us

    assert listed() == ("ses_1", "s:m", began, None)
    filled(log, reply("a"))
    assert listed() == ("ses_1", "s:m", began, began + 2_000_000)
    clock.advance(61)
    assert listed() == ("ses_1", "s:m", began, began + 2_000_000)
    channel.discard("one")
    channel.open("one")
    assert listed() == (None, None, clock.now_us(), None)
    channel.discard("one")
    assert channel.streams() == ()


async def test_a_jump_resets_the_readers_that_are_behind() -> None:
    """A reader of the skipped part restarts with the snapshot. A new reader gets the snapshot at its start."""
    log: StreamLog[TurnEvent] = StreamLog("s")
    events = reply("a", "b", "c")
    log.extend(events[:2])
    behind, new = log.reader(), log.reader(unfold=iter)
    assert await anext(behind) == events[0]
    log.jump(events[:4], 4)
    log.extend(events[4:])
    log.close()
    assert await anext(behind) == events[1]
    assert await read(behind) == [StreamReset(tuple(events[:4]), 4), *events[4:]]
    assert await read(new) == events


async def test_a_log_jumps_forward_only() -> None:
    log: StreamLog[TurnEvent] = StreamLog("s")
    log.extend(reply("a"))
    with pytest.raises(ValueError, match="already reached 4"):
        log.jump([], 4)
    log.close()
    with pytest.raises(anyio.ClosedResourceError):
        log.jump([], 9)


async def test_an_error_of_the_log_is_raised_at_its_end() -> None:
    """The reader first gets all events. After the error, the reader is at its end."""
    log: StreamLog[TurnEvent] = StreamLog("s")
    log.append(TextDelta("a"))
    log.close(LookupError("gone"))
    reader = log.reader()
    assert await anext(reader) == TextDelta("a")
    with pytest.raises(LookupError, match="gone"):
        await anext(reader)
    assert await read(reader) == []


async def test_a_notice_comes_once_and_does_not_delay_readers() -> None:
    """The notice comes at the next append, once for each notify(). It does not delay the readers that wait."""
    log: StreamLog[TurnEvent] = StreamLog("s")
    noticed: list[int] = []
    reader = log.reader()
    async with anyio.create_task_group() as group:
        for before in (False, True):
            if before:
                log.notify(lambda: noticed.append(log.next_seq))
            group.start_soon(reader.take)
            await anyio.wait_all_tasks_blocked()
            if not before:
                log.notify(lambda: noticed.append(log.next_seq))
            log.append(TextDelta("a"))
            log.append(TextDelta("b"))
            await anyio.wait_all_tasks_blocked()
    assert noticed == [1, 3]
    log.notify(lambda: noticed.append(log.next_seq))
    log.close()
    assert noticed == [1, 3, 4]


async def test_a_discarded_log_is_forgotten_and_still_read() -> None:
    channel = StreamChannel(clock=FakeClock())
    log = channel.open("s")
    log.append(TextDelta("a"))
    reader = channel.attach("s")
    channel.discard("s")
    channel.discard("s")
    assert "s" not in channel
    log.close()
    assert "s" not in channel
    assert await read(reader) == [TextDelta("a")]
    filled(channel.open("s"), reply("a"))
    channel.discard("s")
    assert channel.statistics().closed_bytes == 0


# -- Small streams: merged deltas, folded messages, and the number of closed streams that are kept.


def test_only_adjacent_deltas_of_one_block_are_merged() -> None:
    """Deltas are not merged across blocks, messages, kinds or a signature."""
    events = [
        TextDelta("a", 0, "m"), TextDelta("b", 0, "m"), TextDelta("c", 1, "m"), TextDelta("d", 1, "n"),
        ThinkingDelta("e", None, 1, "n"), ThinkingDelta("f", "sig", 1, "n"), ThinkingDelta("g", None, 1, "n"),
        ToolUseInputDelta("t", "{", 2, "n"), ToolUseInputDelta("t", "}", 2, "n"),
    ]  # fmt: skip
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
    """A merged delta ends at 16 KiB, and the next begins. A single larger delta is not split."""
    merged, _ = coalesce([TextDelta("x" * 6000) for _ in range(10)] + [TextDelta("y" * 20000)], 0)
    assert [len(event.text) for event in merged if isinstance(event, TextDelta)] == [12000] * 5 + [20000]


def test_a_finished_message_folds_to_its_start_and_end() -> None:
    """The MessageComplete has the sum of the deltas. Tools and steps around the message stay."""
    events = reply("a", "b")
    assert fold(events) == (events[0], events[-2], events[-1])


def test_provider_events_are_dropped_when_a_message_is_folded() -> None:
    """A provider event folds to nothing, also between two deltas of an unfinished message."""
    picture = ProviderEvent("partial_image", {"b64": "x" * 10_000}, "m")
    events = [MessageStart("m"), picture, TextDelta("a", 0, "m"), picture, TextDelta("b", 0, "m")]
    assert fold(events) == (MessageStart("m"), TextDelta("ab", 0, "m"))
    assert weigh(picture) > 10_000


def test_an_unfinished_message_folds_to_one_delta_per_block() -> None:
    """Text, thinking and arguments are joined. A second fold only changes the new events."""
    events: list[TurnEvent] = [
        MessageStart("m"), ThinkingDelta("a", None, 0, "m"), ThinkingDelta("b", "sig", 0, "m"),
        ToolUseStart("t", "tool", 1, "m"), ToolUseInputDelta("t", '{"a"', 1, "m"),
        ToolUseInputDelta("t", ":1}", 1, "m"), ToolUseEnd("t", {"a": 1}, False, 1, "m"), TextDelta("c", 2, "m"),
        TextDelta("d", 2, "m"),
    ]  # fmt: skip
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


def test_the_weight_of_an_event_is_that_of_its_content() -> None:
    """The weight has the length of text, arguments and whole blocks. An event without content weighs nothing."""
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
    """Above 8 MiB, the oldest events are folded."""
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
    """A stream is folded at the same size if events come singly or in batches."""
    log: StreamLog[TurnEvent] = StreamLog("s")
    delta = TextDelta("x" * 1000, 0, "m")
    slack = (512 + at_once) * weigh(delta)  # the size between two checks
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
    """For 60 s, a late reader gets every event. After that, it gets one reset with the same content."""
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
    """Above the limit, the oldest streams are folded early, then removed. A stream that was just read stays."""
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
