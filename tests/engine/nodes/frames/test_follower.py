"""When a reader asks the owner or the store: it never waits without a reason, and never asks without need."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable

import pytest

from callboard.bus import Message, StreamChannel, StreamLog, TextDelta, TurnComplete, TurnEvent, UnknownStream
from callboard.engine.nodes.frames.exchange import (
    AskCancel,
    AskFrames,
    AskOwner,
    AskStore,
    Follower,
    OwnerAnswer,
    Receiver,
    Replay,
    Stored,
    Subjects,
    Subscription,
    Timing,
    encode,
    read_answer,
    token,
)
from callboard.engine.nodes.frames.mirror import Mirror, may_be_new, started_us
from callboard.engine.nodes.frames.sender import Framer, FrameSender
from callboard.engine.nodes.frames.wire import Ending, Frame, read_packet

from ....support.virtual_time import FakeClock, runs_on

anyio_backend = runs_on("virtual-asyncio")
TIMING = Timing(quiet=3, gap=0.2, retry=1, patience=20)
END = TurnComplete("completed")


def follower() -> Follower:
    """One that has asked the broker for its frames, and got none yet."""
    one = Follower(Mirror(StreamLog("s")), 0.0, TIMING)
    assert one.question(0.0) == Replay()
    return one


def replayed(*events: TurnEvent) -> Follower:
    """One that has got the kept frames of these events."""
    one = follower()
    for frame in frames(*events):
        one.frame(frame, 0.0)
    one.replayed(0.0)
    return one


def frames(*events: TurnEvent, from_seq: int = 0) -> list[Frame]:
    log: StreamLog[TurnEvent] = StreamLog("s")
    log.extend(events)
    return list(Framer(log, "ses", "owner", 1).since(from_seq))


def events_of(one: Follower) -> list[TurnEvent]:
    return one.mirror.log.since(0)


def test_while_frames_come_nobody_is_asked() -> None:
    """A reader costs its owner nothing; and kept frames are enough to begin with."""
    one = replayed()
    assert one.question(0.0) == AskOwner(0, "")
    one.owner_answered(OwnerAnswer("owner", 0), 0.0)
    for number, frame in enumerate(frames(*(TextDelta(str(n)) for n in range(20)))):
        one.frame(frame, float(number))
        assert one.question(float(number)) is None
    assert one.wake_at == 19 + TIMING.quiet
    kept = replayed(TextDelta("a"))
    assert (kept.settled, kept.question(0.0)) == (True, None)


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
    one = replayed(TextDelta("a"))
    for now in (3.0, 6.0, 9.0):
        assert one.question(now) == AskOwner(1, "owner")
        one.owner_answered(OwnerAnswer("owner", 1), now)
    assert not one.over


def test_when_the_owner_does_not_answer_the_store_is_asked_until_it_knows() -> None:
    """While the owner's lease runs, the turn is its."""
    one = replayed(TextDelta("a"))
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
    one = replayed()
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
    made_us = started_us(stream_id)
    assert made_us == 1_795_403_543_680_000
    hour = 3_600_000_000
    assert [may_be_new(stream_id, made_us + late * hour) for late in (-1, 0, 1, 3)] == [True, True, True, False]
    assert not may_be_new("trn_other", made_us)


def test_a_stream_that_ended_long_ago_is_what_is_stored() -> None:
    """In whole pieces."""
    one = replayed()
    one.question(0.0)
    one.owner_answered(None, 0.0)
    one.question(0.0)
    one.store_answered(Stored((TextDelta("all of it"), END)), 0.0)
    assert one.mirror.log.snapshot == (TextDelta("all of it"),)
    assert events_of(one) == [END]


@pytest.mark.parametrize("answer", ["nothing", "no answer"])
def test_frames_that_come_after_all_are_taken(answer: str) -> None:
    """The question was faster than the first frame."""
    one = replayed()
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
    one = replayed(TextDelta("a"))
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
    one = replayed(TextDelta("a"))
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
    """Another node tells of it while frames are read; what a woken host said behind it is not heard."""
    ending = Frame("s", "ses", "taker", 1, 0, 0, ending=Ending("outcome_unknown", "gone", 1))
    first, second, zombie = frames(TextDelta("a"), TextDelta("b"), TextDelta("zombie"))
    one, other = follower(), follower()
    for frame, kept in ((first, True), (ending, False), (zombie, False), (second, True)):
        one.frame(frame, 0.0, stored=kept)
    for frame in (first, ending, second):
        other.frame(frame, 0.0, stored=True)
    for each in (one, other):
        each.replayed(0.0)
    end = TurnComplete("outcome_unknown", "gone")
    assert events_of(one) == [TextDelta("a"), TextDelta("b"), end]
    assert events_of(other) == [TextDelta("a"), end]


# What a node says of its streams, and when: at once or together, and only what is its own.

SUBJECTS = Subjects("c")
INTERVAL = 0.025


class Wire:
    """A broker that notes what is sent."""

    connected_seconds = 99.0
    most_bytes = 1 << 20

    def __init__(self) -> None:
        self.sent: list[tuple[str, bytes]] = []
        self.away = False
        self.back: list[Callable[[], None]] = []

    def publish(self, subject: str, payload: bytes) -> bool:
        if not self.away:
            self.sent.append((subject, payload))
        return not self.away

    async def subscribe(self, subject: str, receive: Receiver) -> Subscription:
        raise NotImplementedError

    async def request(self, subject: str, payload: bytes, seconds: float) -> bytes | None:
        raise NotImplementedError

    def kept(self, subject: str) -> AsyncIterator[bytes]:
        raise NotImplementedError

    async def forget(self, subject: str) -> None:
        raise NotImplementedError

    async def drain(self) -> None:
        """Nothing waits here."""

    async def release(self) -> None:
        """Nor here."""

    async def run(self) -> None:
        """Nothing is to be done."""

    def on_reconnect(self, callback: Callable[[], None]) -> None:
        self.back.append(callback)

    def frames(self) -> list[Frame]:
        """The frames that were sent since the last time."""
        sent, self.sent = self.sent, []
        return [packet for _, payload in sent if isinstance(packet := read_packet(payload), Frame)]


class Owner:
    """A node that sends, and what it has."""

    def __init__(self) -> None:
        self.wire = Wire()
        self.epochs: dict[str, int] = {}
        self.streams = StreamChannel(clock=FakeClock())
        self.cancelled: list[str] = []
        self.sender = FrameSender(
            self.wire,
            SUBJECTS,
            "me",
            lambda session_id: self.epochs.get(session_id, 0),
            self.streams,
            frame_seconds=INTERVAL,
            frame_bytes=4096,
        )

    def begun(self, stream_id: str = "trn_1", session_id: str = "ses") -> StreamLog[TurnEvent]:
        log = self.streams.open(stream_id)
        self.sender.follow(log, session_id, lambda: self.cancelled.append(stream_id) or True)
        return log

    def answers(self, ask: AskFrames | AskCancel) -> list[tuple[str, bytes]]:
        self.wire.sent.clear()
        self.sender.answer("", encode(ask), "reply")
        sent, self.wire.sent = self.wire.sent, []
        return sent


def say(log: StreamLog[TurnEvent], *texts: str) -> None:
    for text in texts:
        log.append(TextDelta(text, 0, "m"))


async def test_a_thousand_streams_that_say_nothing_cost_nothing() -> None:
    """There is no timer; and what all of them say together is said at one time."""
    owner = Owner()
    logs = [owner.begun(f"trn_{number}") for number in range(1000)]
    assert owner.sender._timer is None
    for log in logs:
        say(log, "a", "b")
    timer = owner.sender._timer
    assert timer is not None
    await asyncio.sleep(INTERVAL)
    assert len(owner.wire.frames()) == 1000
    assert owner.sender._timer is None


async def test_what_comes_within_the_interval_is_said_together() -> None:
    """The first news after a pause go out at once, and no news wait longer than the interval."""
    owner, loop = Owner(), asyncio.get_running_loop()
    log = owner.begun()
    times: list[float] = []
    for number in range(100):
        say(log, str(number))
        began = loop.time()
        before = len(owner.wire.sent)
        await asyncio.sleep(0.005)
        times += [began] * (len(owner.wire.sent) - before)
    await asyncio.sleep(INTERVAL)
    frames = owner.wire.frames()
    assert frames[0].next_seq == 1
    assert [frame.first_seq for frame in frames[1:]] == [frame.next_seq for frame in frames[:-1]]
    assert frames[-1].next_seq == 100
    assert 20 <= len(frames) <= 26


async def test_a_session_that_went_away_is_not_spoken_of() -> None:
    """The next epoch is another node's. What it had said to its own end it still says."""
    owner = Owner()
    lost, ended, unknown = (owner.begun(f"trn_{name}", name) for name in ("lost", "ended", "unknown"))
    owner.epochs = {"lost": 3, "ended": 3, "unknown": 3}
    for log in (lost, ended, unknown):
        say(log, "a")
    await asyncio.sleep(INTERVAL)
    assert [frame.epoch for frame in owner.wire.frames()] == [3, 3, 3]
    owner.epochs.clear()
    say(lost, "b")
    ended.append(TurnComplete("completed"))
    unknown.append(TurnComplete("outcome_unknown"))
    for log in (ended, unknown):
        log.close()
    await asyncio.sleep(2 * INTERVAL)
    (frame,) = owner.wire.frames()
    assert (frame.stream_id, frame.epoch) == ("trn_ended", 3)
    assert owner.answers(AskFrames("trn_lost", 0, "to")) == []


async def test_a_turn_that_waits_for_its_session_gets_its_epoch() -> None:
    """It was queued before the session was claimed."""
    owner = Owner()
    owner.begun()
    owner.epochs["ses"] = 2
    owner.sender.begin("trn_1", 4, [Message.user("Hi")])
    await asyncio.sleep(INTERVAL)
    (frame,) = owner.wire.frames()
    assert (frame.epoch, frame.beginning.history) == (2, 4)


async def test_when_the_broker_is_back_everything_that_is_open_is_said_again() -> None:
    """What it had kept may be gone."""
    owner = Owner()
    log = owner.begun()
    say(log, "a")
    await asyncio.sleep(INTERVAL)
    owner.wire.frames()
    owner.wire.away = True
    say(log, "b")
    await asyncio.sleep(2 * INTERVAL)
    assert owner.sender.statistics().lost == 1
    owner.wire.away = False
    for callback in owner.wire.back:
        callback()
    await asyncio.sleep(2 * INTERVAL)
    (frame,) = owner.wire.frames()
    assert (frame.first_seq, frame.next_seq) == (0, 2)


async def test_a_stream_that_can_not_be_framed_stops_no_other() -> None:
    """It is let go; its readers get it from elsewhere."""
    owner = Owner()
    bad, good = owner.begun("trn_bad"), owner.begun("trn_good")
    bad.append(TextDelta("a", 0, "\ud800"))
    say(good, "a")
    await asyncio.sleep(INTERVAL)
    assert [frame.stream_id for frame in owner.wire.frames()] == ["trn_good"]
    say(good, "b")
    bad.close()
    await asyncio.sleep(2 * INTERVAL)
    assert [frame.stream_id for frame in owner.wire.frames()] == ["trn_good"]


async def test_questions_are_answered_for_streams_of_this_node_alone() -> None:
    """Open ones and those that are over; of others nothing is said, since another node may have them."""
    owner = Owner()
    log = owner.begun()
    say(log, "a", "b", "c")
    (_, answer), (to, packet) = owner.answers(AskFrames("trn_1", 1, "to"))
    assert read_answer(answer, OwnerAnswer) == OwnerAnswer("me", 3)
    frame = read_packet(packet)
    assert isinstance(frame, Frame)
    assert (to, frame.first_seq, frame.next_seq) == ("to", 1, 3)
    ((_, answer),) = owner.answers(AskCancel("trn_1"))
    assert read_answer(answer, bool) is True
    assert owner.cancelled == ["trn_1"]
    log.append(TurnComplete("cancelled"))
    log.close()
    await asyncio.sleep(2 * INTERVAL)
    assert len(owner.answers(AskFrames("trn_1", 0, "to"))) == 2
    ((_, answer),) = owner.answers(AskCancel("trn_1"))
    assert read_answer(answer, bool) is False
    owner.streams.open("trn_mirrored")
    assert owner.answers(AskFrames("trn_mirrored", 0, "to")) == []
    assert owner.answers(AskCancel("trn_other")) == []
    owner.wire.sent.clear()
    owner.sender.answer("", b"\xc1", "reply")
    assert owner.wire.sent == []


async def test_an_ending_is_told_to_the_readers_of_its_stream() -> None:
    """On the subject of its frames."""
    owner = Owner()
    owner.sender.announce("trn_1", "ses", Ending("outcome_unknown", "gone", 4))
    ((subject, payload),) = owner.wire.sent
    frame = read_packet(payload)
    assert subject == SUBJECTS.stream("trn_1", "ses")
    assert isinstance(frame, Frame)
    assert (frame.epoch, frame.ending) == (4, Ending("outcome_unknown", "gone", 4))


def test_names_are_tokens_of_subjects() -> None:
    """Whatever is in them; two names never share one."""
    names = ["", "-", "a.b", "a b", "a>b", "a*b", "a=2eb", "é", "\ud800", "trn_01ARZ3NDEKTSV4RRFFQ69G5FAV", "a/b"]
    tokens = [token(name) for name in names]
    assert len(set(tokens)) == len(names)
    assert not any(set(one) & set(" .*>\t\n") for one in tokens)
    assert tokens[-2] == names[-2]
