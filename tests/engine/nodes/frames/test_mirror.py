"""A mirror is at every moment a beginning of the log, whatever the broker does to frames, and has one end."""

from __future__ import annotations

from random import Random

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from callboard.bus import (
    Message,
    MessageComplete,
    MessageStart,
    StopReason,
    StreamLog,
    TextBlock,
    TextDelta,
    TokenUsage,
    ToolUseEnd,
    ToolUseInputDelta,
    ToolUseStart,
    TurnComplete,
    TurnEvent,
)
from callboard.engine.nodes.frames.mirror import MOST_HELD, Mirror
from callboard.engine.nodes.frames.sender import Framer
from callboard.engine.nodes.frames.wire import Ending, Frame, Texts

from .events import LOGS, without_raws

END = TurnComplete("completed")


def new_mirror() -> Mirror:
    return Mirror(StreamLog("s"))


def framed(events: list[TurnEvent], *, each: int = 3, most_bytes: int = 200, epoch: int = 0) -> list[Frame]:
    """The frames of a log, made after every few events."""
    log: StreamLog[TurnEvent] = StreamLog("s")
    framer = Framer(log, "", "n", most_bytes)
    framer.epoch = epoch
    frames: list[Frame] = []
    for start in range(0, len(events), each):
        log.extend(events[start : start + each])
        frames += framer.frames()
    return frames


def ends(mirror: Mirror) -> int:
    return sum(isinstance(event, TurnComplete) for event in mirror.log.since(0))


@given(
    events=LOGS.map(lambda log: [event for event in log if not isinstance(event, TurnComplete)]),
    each=st.integers(1, 7),
    seed=st.integers(0, 2**32),
    lost=st.floats(0, 0.6),
)
@settings(max_examples=300, deadline=None)
def test_a_mirror_is_a_beginning_of_the_log_until_it_is_all_of_it(
    events: list[TurnEvent], each: int, seed: int, lost: float
) -> None:
    """Frames are lost, doubled and in any order; what is missing is asked for in the end."""
    events = [*events, END]
    random = Random(seed)
    frames = [frame for frame in framed(events, each=each) if random.random() >= lost]
    frames += [frame for frame in frames if random.random() < 0.3]
    random.shuffle(frames)
    mirror = new_mirror()
    for frame in frames:
        mirror.receive(frame)
        assert without_raws(mirror.log.since(0)) == without_raws(events[: mirror.next_seq])
    log: StreamLog[TurnEvent] = StreamLog("s")
    log.extend(events)
    answers = list(Framer(log, "", "n", 64).since(mirror.next_seq))  # cut elsewhere than the frames
    random.shuffle(answers)
    assert mirror.over == (mirror.next_seq == len(events))
    for frame in answers:
        mirror.receive(frame)
    assert without_raws(mirror.log.since(0)) == without_raws(events)
    assert (mirror.over, mirror.behind, ends(mirror)) == (True, False, 1)


def test_frames_in_order_leave_nothing_behind() -> None:
    """What is held is let go when it has been taken in."""
    mirror = new_mirror()
    for frame in framed([MessageStart("m"), *(TextDelta(str(n), 0, "m") for n in range(50))]):
        assert mirror.receive(frame)
        assert not mirror.behind
    assert mirror._held == {}


def test_a_doubled_frame_says_nothing_new() -> None:
    """So it is no sign of life either."""
    mirror = new_mirror()
    (frame,) = framed([TextDelta("a")])
    assert mirror.receive(frame)
    assert not mirror.receive(frame)


def test_what_is_held_behind_a_gap_is_bounded() -> None:
    """The frames nearest to the gap are kept."""
    mirror = new_mirror()
    frames = framed([TextDelta(str(n)) for n in range(2 * MOST_HELD)], each=1)
    for frame in reversed(frames[1:]):
        mirror.receive(frame)
    assert len(mirror._held) == MOST_HELD
    mirror.receive(frames[0])
    assert mirror.next_seq == MOST_HELD
    assert mirror.behind


def test_an_older_epoch_says_nothing_any_more() -> None:
    """A host that was suspended and wakes up goes on sending."""
    mirror = new_mirror()
    old, new = framed([TextDelta("old")], epoch=1), framed([TextDelta("new")], epoch=2)
    mirror.receive(new[0])
    later = msgspec.structs.replace(old[0], first_seq=1, next_seq=2)
    assert not mirror.receive(later)
    assert mirror.log.since(0) == [TextDelta("new")]


def test_what_an_older_epoch_said_behind_a_gap_is_forgotten() -> None:
    """The events of two epochs are not mixed."""
    mirror = new_mirror()
    old = framed([TextDelta("1"), TextDelta("2"), TextDelta("3")], each=1, epoch=1)
    mirror.receive(old[2])
    for frame in framed([TextDelta("a"), TextDelta("b")], each=1, epoch=2):
        mirror.receive(frame)
    assert mirror.log.since(0) == [TextDelta("a"), TextDelta("b")]


def test_an_ending_closes_the_message_with_what_has_come() -> None:
    """Mid-text, the text so far is the message's content."""
    mirror = new_mirror()
    for frame in framed([MessageStart("m", "model", "p"), TextDelta("Hel", 0, "m"), TextDelta("lo", 0, "m")]):
        mirror.receive(frame)
    mirror.receive(Frame("s", "", "taker", 2, 0, 0, ending=Ending("outcome_unknown", "gone", 2)))
    *_, complete, end = mirror.log.since(0)
    assert isinstance(complete, MessageComplete)
    assert complete.final_content == (TextBlock("Hello"),)
    assert complete.stop_reason is StopReason.ERROR
    assert end == TurnComplete("outcome_unknown", "gone")
    assert mirror.over


def test_an_ending_amid_arguments_marks_the_call_as_incomplete() -> None:
    """It must never be run."""
    mirror = new_mirror()
    start: list[TurnEvent] = [MessageStart("m"), ToolUseStart("tu", "sum", 0, "m")]
    for frame in framed([*start, ToolUseInputDelta("tu", '{"a"', 0, "m")]):
        mirror.receive(frame)
    mirror.end(Ending("outcome_unknown"))
    assert ToolUseEnd("tu", {}, True, 0, "m") in mirror.log.since(0)
    assert ends(mirror) == 1


def test_an_ending_between_messages_adds_no_message() -> None:
    """Nothing had begun that could be closed."""
    mirror = new_mirror()
    complete = MessageComplete((), StopReason.END_TURN, None, TokenUsage(), "m")
    for frame in framed([MessageStart("m"), complete]):
        mirror.receive(frame)
    mirror.end(Ending("outcome_unknown"))
    assert [event.type for event in mirror.log.since(0)] == ["message.start", "message.complete", "turn.complete"]


def test_after_its_end_a_stream_says_nothing_more() -> None:
    """Neither the old owner's frames, nor a second ending, nor the store."""
    mirror = new_mirror()
    frames = framed([TextDelta("a"), END])
    mirror.end(Ending("outcome_unknown"))
    for frame in frames:
        assert not mirror.receive(frame)
    mirror.end(Ending("failed"))
    mirror.complete([TextDelta("b"), END])
    assert mirror.log.since(0) == [TurnComplete("outcome_unknown")]


def test_a_snapshot_closes_a_gap_that_events_can_not_close() -> None:
    """The owner has folded them; what it has after them follows."""
    mirror = new_mirror()
    events: list[TurnEvent] = [MessageStart("m"), *(TextDelta(str(n), 0, "m") for n in range(9))]
    log: StreamLog[TurnEvent] = StreamLog("s")
    log.extend(events)
    framer = Framer(log, "", "n", 4096)
    for frame in framed(events[:4]):
        mirror.receive(frame)
    log.fold()
    log.extend([TextDelta("!", 0, "m"), END])
    for frame in framer.since(mirror.next_seq):
        mirror.receive(frame)
    assert mirror.log.snapshot == (MessageStart("m"), TextDelta("012345678", 0, "m"))
    assert mirror.log.since(0) == [TextDelta("!", 0, "m"), END]
    assert mirror.over


def test_a_log_that_is_folded_whole_is_mirrored_with_its_end() -> None:
    """Its snapshot has the end."""
    mirror = new_mirror()
    log: StreamLog[TurnEvent] = StreamLog("s")
    log.extend([TextDelta("a"), END])
    log.close()
    log.fold()
    for frame in Framer(log, "", "n", 4096).since(0):
        mirror.receive(frame)
    assert (mirror.over, mirror.log.snapshot[-1]) == (True, END)


def test_a_frame_that_contradicts_itself_is_a_gap() -> None:
    """It is asked for once more."""
    mirror = new_mirror()
    assert not mirror.receive(Frame("s", "", "n", 0, 0, 2, (Texts(b"abc", [1, 1], 0, "m"),)))
    assert (mirror.next_seq, mirror.behind) == (0, True)


def test_what_the_store_has_replaces_a_part_of_it() -> None:
    """Its readers begin anew."""
    mirror = new_mirror()
    for frame in framed([MessageStart("m"), TextDelta("He", 0, "m")]):
        mirror.receive(frame)
    complete = MessageComplete((TextBlock("Hello"),), StopReason.END_TURN, None, TokenUsage(), "m")
    mirror.complete([MessageStart("m"), TextDelta("Hello", 0, "m"), complete, END])
    assert mirror.log.first_seq == 3
    assert mirror.log.snapshot == (MessageStart("m"), complete)
    assert (mirror.log.since(0), mirror.over) == ([END], True)


def test_beginning_and_messages_are_in_the_frames_once() -> None:
    """Also if there are no events to go with them; and once more when everything is said again."""
    log: StreamLog[TurnEvent] = StreamLog("s")
    framer = Framer(log, "ses", "n", 4096)
    framer.begin(2, [Message.user("Hi")])
    (first,) = framer.frames()
    assert first.beginning is not None
    assert (first.beginning.history, first.first_seq, first.next_seq) == (2, 0, 0)
    log.append(TextDelta("a"))
    framer.append(2, Message.user("Hi"))
    (second,) = framer.frames()
    assert (second.beginning, len(second.appended), second.next_seq) == (None, 1, 1)
    assert list(framer.frames()) == []
    framer.again()
    (all_of_it,) = framer.frames()
    assert (all_of_it.beginning, all_of_it.appended) == (first.beginning, second.appended)
    assert (all_of_it.first_seq, all_of_it.next_seq) == (0, 1)
