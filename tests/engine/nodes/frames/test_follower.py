"""The times at which a reader's follower asks the owner or the store: no endless wait, and no needless request."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable

import pytest

from callboard.bus import Message, StreamChannel, StreamLog, TextDelta, TurnComplete, TurnEvent, UnknownStream
from callboard.engine.nodes.frame_sender import Framer, FrameSender
from callboard.engine.nodes.frames import (
    AskCancel,
    AskFrames,
    Ending,
    Frame,
    OwnerAnswer,
    Subjects,
    encode,
    read_answer,
    read_packet,
    token,
)
from callboard.engine.nodes.mirror import (
    AskOwner,
    AskStore,
    Follower,
    Mirror,
    Replay,
    Stored,
    Timing,
    may_be_new,
    started_us,
)

from ....support.virtual_time import FakeClock, runs_on

anyio_backend = runs_on("virtual-asyncio")
TIMING = Timing(quiet=3, gap=0.2, retry=1, patience=20)
END = TurnComplete("completed")


def follower() -> Follower:
    """A follower that has requested the frames of the broker and has received none."""
    one = Follower(Mirror(StreamLog("s")), 0.0, TIMING)
    assert one.question(0.0) == Replay()
    return one


def replayed(*events: TurnEvent) -> Follower:
    """A follower that has the retained frames of these events."""
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


def test_while_frames_arrive_no_request_is_sent() -> None:
    """A reader causes no request to its owner. Retained frames are enough at the start."""
    one = replayed()
    assert one.question(0.0) == AskOwner(0, "")
    one.owner_answered(OwnerAnswer("owner", 0), 0.0)
    for number, frame in enumerate(frames(*(TextDelta(str(n)) for n in range(20)))):
        one.frame(frame, float(number))
        assert one.question(float(number)) is None
    assert one.wake_at == 19 + TIMING.quiet
    kept = replayed(TextDelta("a"))
    assert (kept.settled, kept.question(0.0)) == (True, None)


def test_an_open_gap_is_requested_from_the_owner() -> None:
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


def test_a_gap_that_closes_is_not_requested() -> None:
    one = follower()
    first, second, third = frames(TextDelta("a"), TextDelta("b"), TextDelta("c"))
    one.replayed(0.0)
    for frame, now in [(first, 1.0), (third, 1.1), (second, 1.2)]:
        one.frame(frame, now)
    assert one.wake_at == 1.2 + TIMING.quiet
    assert events_of(one) == [TextDelta("a"), TextDelta("b"), TextDelta("c")]


def test_a_quiet_owner_is_asked_for_its_state() -> None:
    """A model can think for minutes, so a stream stays open while its owner answers."""
    one = replayed(TextDelta("a"))
    for now in (3.0, 6.0, 9.0):
        assert one.question(now) == AskOwner(1, "owner")
        one.owner_answered(OwnerAnswer("owner", 1), now)
    assert not one.over


def test_if_the_owner_does_not_answer_the_store_is_asked_until_it_has_the_end() -> None:
    """While the owner's lease is valid, the turn stays open."""
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


def test_a_stream_without_owner_and_store_row_is_unknown() -> None:
    one = replayed()
    assert isinstance(one.question(0.0), AskOwner)
    one.owner_answered(None, 1.0)
    assert one.question(1.0) == AskStore("", "", 0)
    one.store_answered("nothing", 1.0)
    assert one.over
    assert isinstance(one.mirror.log.error, UnknownStream)


def test_a_new_stream_is_requested_for_some_time() -> None:
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


def test_only_a_recent_id_can_be_new() -> None:
    """The time is a part of the id. The id of another program has no time."""
    stream_id = "trn_01M8367X40DDKENTFC8AGVPECP"
    made_us = started_us(stream_id)
    assert made_us == 1_795_403_543_680_000
    hour = 3_600_000_000
    assert [may_be_new(stream_id, made_us + late * hour) for late in (-1, 0, 1, 3)] == [True, True, True, False]
    assert not may_be_new("trn_other", made_us)


def test_a_stream_that_ended_long_ago_comes_from_the_store() -> None:
    one = replayed()
    one.question(0.0)
    one.owner_answered(None, 0.0)
    one.question(0.0)
    one.store_answered(Stored((TextDelta("all of it"), END)), 0.0)
    assert one.mirror.log.snapshot == (TextDelta("all of it"),)
    assert events_of(one) == [END]


@pytest.mark.parametrize("answer", ["nothing", "no answer"])
def test_frames_that_arrive_late_are_used(answer: str) -> None:
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


def test_without_a_store_the_wait_is_limited() -> None:
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


def test_without_broker_and_store_the_stream_stays_open() -> None:
    """The owner may be alive. The wait for a stream without any frames is limited."""
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


def test_after_a_reconnection_the_retained_frames_are_read_again() -> None:
    """Frames can be missed while a request is in progress."""
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


def test_an_ending_does_not_overtake_retained_frames() -> None:
    """Another node can publish the ending while frames are read. Later frames of the old owner are ignored."""
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


# Frames that a node sends of its streams: their times, their order, and the streams that they belong to.

SUBJECTS = Subjects("c")
INTERVAL = 0.025


class Wire:
    """A broker that records the messages that are sent."""

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

    def on_reconnect(self, callback: Callable[[], None]) -> None:
        self.back.append(callback)

    def frames(self) -> list[Frame]:
        """The frames that were sent since the last call."""
        sent, self.sent = self.sent, []
        return [packet for _, payload in sent if isinstance(packet := read_packet(payload), Frame)]


class Owner:
    """A node that sends frames, with its state."""

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


async def test_a_thousand_idle_streams_cost_nothing() -> None:
    """Idle streams have no timer. The frames of all streams are sent together."""
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


async def test_events_within_the_interval_are_sent_together() -> None:
    """The first event after a pause is sent immediately, and no event waits longer than the interval."""
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


async def test_no_frame_is_sent_for_a_session_of_another_node() -> None:
    """The next epoch belongs to another node. A turn that completed is still sent to its end."""
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


async def test_a_turn_that_waits_for_its_session_gets_the_sessions_epoch() -> None:
    owner = Owner()
    owner.begun()
    owner.epochs["ses"] = 2
    owner.sender.begin("trn_1", 4, [Message.user("Hi")])
    await asyncio.sleep(INTERVAL)
    (frame,) = owner.wire.frames()
    assert (frame.epoch, frame.beginning.history) == (2, 4)


async def test_after_a_reconnection_open_streams_are_sent_again() -> None:
    """The broker can have lost its retained frames."""
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


async def test_a_stream_that_cannot_be_encoded_stops_no_other() -> None:
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


async def test_a_node_answers_only_for_its_own_streams() -> None:
    """A node answers for its open and completed streams. It ignores other streams, because another node may have
    them.
    """
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


async def test_an_ending_is_published_to_the_readers_of_its_stream() -> None:
    owner = Owner()
    owner.sender.announce("trn_1", "ses", Ending("outcome_unknown", "gone", 4))
    ((subject, payload),) = owner.wire.sent
    frame = read_packet(payload)
    assert subject == SUBJECTS.stream("trn_1", "ses")
    assert isinstance(frame, Frame)
    assert (frame.epoch, frame.ending) == (4, Ending("outcome_unknown", "gone", 4))


def test_names_are_tokens_of_subjects() -> None:
    """A name may have any characters. Two names never have the same token."""
    names = ["", "-", "a.b", "a b", "a>b", "a*b", "a=2eb", "é", "\ud800", "trn_01ARZ3NDEKTSV4RRFFQ69G5FAV", "a/b"]
    tokens = [token(name) for name in names]
    assert len(set(tokens)) == len(names)
    assert not any(set(one) & set(" .*>\t\n") for one in tokens)
    assert tokens[-2] == names[-2]
