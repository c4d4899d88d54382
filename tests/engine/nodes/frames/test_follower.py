"""Whom a reader asks, and when: it never waits for nothing, and never asks without need."""

from __future__ import annotations

import math

import pytest

from callboard.bus import StreamLog, TextDelta, TurnComplete, TurnEvent, UnknownStream
from callboard.engine.nodes.frames.exchange import (
    AskOwner,
    AskStore,
    Follower,
    OwnerAnswer,
    Replay,
    Stored,
    Timing,
)
from callboard.engine.nodes.frames.mirror import Mirror, begun_us, may_be_new
from callboard.engine.nodes.frames.sender import Framer
from callboard.engine.nodes.frames.wire import Ending, Frame

TIMING = Timing(quiet=3, gap=0.2, retry=1, patience=20)
END = TurnComplete("completed")


def follower() -> Follower:
    """One that has asked the broker for its frames, and got none yet."""
    one = Follower(Mirror(StreamLog("s")), 0.0, TIMING)
    assert one.question(0.0) == Replay()
    return one


def frames(*events: TurnEvent, from_seq: int = 0) -> list[Frame]:
    log: StreamLog[TurnEvent] = StreamLog("s")
    log.extend(events)
    return list(Framer(log, "ses", "owner", 1).since(from_seq))


def events_of(one: Follower) -> list[TurnEvent]:
    return one.mirror.log.since(0)


def test_while_frames_come_nobody_is_asked() -> None:
    """A reader costs its owner nothing."""
    one = follower()
    one.replayed(0.0)
    assert one.question(0.0) == AskOwner(0, "")
    one.owner_answered(OwnerAnswer("owner", 0), 0.0)
    for number, frame in enumerate(frames(*(TextDelta(str(n)) for n in range(20)))):
        one.frame(frame, float(number))
        assert one.question(float(number)) is None
    assert one.wake_at == 19 + TIMING.quiet


def test_kept_frames_are_enough_to_begin_with() -> None:
    """The owner is asked only when nothing was kept."""
    one = follower()
    for frame in frames(TextDelta("a")):
        one.frame(frame, 0.0)
    assert not one.settled
    one.replayed(0.0)
    assert one.settled
    assert one.question(0.0) is None


def test_a_gap_is_asked_for_when_it_has_not_closed_by_itself() -> None:
    """And again, if the answer is lost."""
    one = follower()
    first, _, third = frames(TextDelta("a"), TextDelta("b"), TextDelta("c"))
    one.frame(first, 0.0)
    one.replayed(0.0)
    one.frame(third, 1.0)
    assert one.question(1.1) is None
    assert one.wake_at == 1.2
    assert one.question(1.2) == AskOwner(1, "owner")
    assert one.question(1.2) is None
    one.owner_answered(OwnerAnswer("owner", 3), 1.3)
    assert one.question(1.4) is None
    assert one.question(1.5) == AskOwner(1, "owner")


def test_a_gap_that_closes_is_not_asked_for() -> None:
    """Frames may overtake each other."""
    one = follower()
    first, second, third = frames(TextDelta("a"), TextDelta("b"), TextDelta("c"))
    one.replayed(0.0)
    for frame, now in [(first, 1.0), (third, 1.1), (second, 1.2)]:
        one.frame(frame, now)
    assert one.wake_at == 1.2 + TIMING.quiet
    assert events_of(one) == [TextDelta("a"), TextDelta("b"), TextDelta("c")]


def test_a_quiet_owner_is_asked_whether_it_is_still_at_it() -> None:
    """A model may think for minutes."""
    one = follower()
    for frame in frames(TextDelta("a")):
        one.frame(frame, 0.0)
    one.replayed(0.0)
    for now in (3.0, 6.0, 9.0):
        assert one.question(now) == AskOwner(1, "owner")
        one.owner_answered(OwnerAnswer("owner", 1), now)
    assert not one.over


def test_when_the_owner_does_not_answer_the_store_is_asked_until_it_knows() -> None:
    """While the owner's lease runs, the turn is its."""
    one = follower()
    for frame in frames(TextDelta("a")):
        one.frame(frame, 0.0)
    one.replayed(0.0)
    for now in (3.0, 4.0, 5.0):
        assert one.question(now) == AskOwner(1, "owner")
        one.owner_answered(None, now)
        assert one.question(now) == AskStore("ses", "owner", 0)
        one.store_answered("alive", now)
        assert one.question(now + 0.9) is None
    assert one.question(6.0) is not None
    one.owner_answered(None, 6.0)
    assert one.question(6.0) is not None
    one.store_answered(Ending("outcome_unknown", "gone", 2), 6.0)
    assert events_of(one) == [TextDelta("a"), TurnComplete("outcome_unknown", "gone")]
    assert (one.over, one.question(99.0), one.wake_at) == (True, None, math.inf)


def test_a_stream_that_nobody_knows_is_unknown() -> None:
    """Its readers are told when they read."""
    one = follower()
    one.replayed(0.0)
    assert isinstance(one.question(0.0), AskOwner)
    one.owner_answered(None, 1.0)
    assert one.question(1.0) == AskStore("", "", 0)
    one.store_answered("nothing", 1.0)
    assert one.over
    assert isinstance(one.mirror.log.error, UnknownStream)


def test_of_a_stream_that_was_just_made_nobody_may_know_yet() -> None:
    """Its id was here before its node could say anything. For a while it is asked again who has it."""
    one = Follower(Mirror(StreamLog("s")), 0.0, TIMING, new=True)
    one.question(0.0)
    one.replayed(0.0)
    now = 0.0
    while not one.over and now < TIMING.new:
        now = max(now, one.wake_at)
        assert one.question(now) == AskOwner(0, "")
        one.owner_answered(None, now)
        one.question(now)
        one.store_answered("nothing", now)
    assert now == TIMING.new
    assert isinstance(one.mirror.log.error, UnknownStream)


def test_only_the_id_of_a_late_turn_may_be_new() -> None:
    """As far as clocks can be trusted; the id of another program tells nothing."""
    stream_id = "trn_01M8367X40DDKENTFC8AGVPECP"
    made_us = begun_us(stream_id)
    assert made_us == 1_795_403_543_680_000
    hour = 3_600_000_000
    assert [may_be_new(stream_id, made_us + late * hour) for late in (-1, 0, 1, 3)] == [True, True, True, False]
    assert not may_be_new("trn_other", made_us)


def test_a_stream_that_ended_long_ago_is_what_is_stored() -> None:
    """In whole pieces."""
    one = follower()
    one.replayed(0.0)
    one.question(0.0)
    one.owner_answered(None, 0.0)
    one.question(0.0)
    one.store_answered(Stored((TextDelta("all of it"), END)), 0.0)
    assert one.mirror.log.snapshot == (TextDelta("all of it"),)
    assert events_of(one) == [END]


@pytest.mark.parametrize("answer", ["nothing", "no answer"])
def test_frames_that_come_after_all_are_taken(answer: str) -> None:
    """The question was faster than the first frame."""
    one = follower()
    one.replayed(0.0)
    one.question(0.0)
    one.owner_answered(None, 0.0)
    one.question(0.0)
    for frame in frames(TextDelta("a")):
        one.frame(frame, 0.0)
    one.store_answered("nothing" if answer == "nothing" else "no answer", 0.0)
    for frame in frames(TextDelta("a"), END, from_seq=1):
        one.frame(frame, 0.1)
    assert events_of(one) == [TextDelta("a"), END]


def test_without_a_store_patience_has_an_end() -> None:
    """A reader doesn't wait for ever for a node that is gone."""
    one = follower()
    for frame in frames(TextDelta("a")):
        one.frame(frame, 0.0)
    one.replayed(0.0)
    now = 3.0
    while not one.over:
        assert now < TIMING.patience + 2
        now = max(now, one.wake_at)
        if isinstance(one.question(now), AskOwner):
            one.owner_answered(None, now)
        else:
            one.store_answered("nothing", now)
    assert now >= TIMING.patience
    assert isinstance(events_of(one)[-1], TurnComplete)


def test_without_broker_and_store_nothing_is_decided() -> None:
    """The owner may well be alive. Of a stream that was never seen, patience has an end, too."""
    one, unseen = follower(), follower()
    for frame in frames(TextDelta("a")):
        one.frame(frame, 0.0)
    for each in (one, unseen):
        each.replayed(0.0)
        now = 0.0
        while now < 100 and not each.over:
            now = max(now, each.wake_at)
            if isinstance(each.question(now), AskOwner):
                each.owner_answered(None, now)
            else:
                each.store_answered("no answer", now)
    assert not one.over
    assert isinstance(unseen.mirror.log.error, UnknownStream)


def test_after_a_reconnection_the_kept_frames_are_read_again() -> None:
    """Frames may have been missed, also while a question was under way."""
    one = follower()
    for frame in frames(TextDelta("a")):
        one.frame(frame, 0.0)
    one.replayed(0.0)
    one.reconnected(0.5)
    assert one.question(0.5) == Replay()
    one.replayed(0.5)
    assert one.question(3.5) == AskOwner(1, "owner")
    one.reconnected(3.6)
    one.owner_answered(None, 4.0)
    assert one.question(4.0) == Replay()
    one.replayed(4.0)
    assert one.question(7.0) == AskStore("ses", "owner", 0)


def test_an_ending_does_not_overtake_what_was_kept() -> None:
    """Another node tells of it while the frames are being read."""
    one = follower()
    ending = Frame("s", "ses", "taker", 1, 0, 0, ending=Ending("outcome_unknown", "gone", 1))
    first, second = frames(TextDelta("a"), TextDelta("b"))
    one.frame(first, 0.0, kept=True)
    one.frame(ending, 0.0)
    one.frame(frames(TextDelta("a"), TextDelta("b"), TextDelta("zombie"))[2], 0.0)
    one.frame(second, 0.0, kept=True)
    one.replayed(0.0)
    assert events_of(one) == [TextDelta("a"), TextDelta("b"), TurnComplete("outcome_unknown", "gone")]


def test_what_was_kept_behind_an_ending_is_not_heard() -> None:
    """A host that woke up has said it."""
    one = follower()
    ending = Frame("s", "ses", "taker", 1, 0, 0, ending=Ending("outcome_unknown", "gone", 1))
    first, second = frames(TextDelta("a"), TextDelta("b"))
    for frame in (first, ending, second):
        one.frame(frame, 0.0, kept=True)
    one.replayed(0.0)
    assert events_of(one) == [TextDelta("a"), TurnComplete("outcome_unknown", "gone")]
