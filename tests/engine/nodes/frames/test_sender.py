"""What a node says of its streams, and when: at once or together, and only what is its own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

from callboard.bus import Message, StreamChannel, StreamLog, TextDelta, TurnComplete, TurnEvent
from callboard.engine.nodes.frames.exchange import (
    AskCancel,
    AskFrames,
    OwnerAnswer,
    Receiver,
    Subjects,
    Subscription,
    encode,
    read_answer,
    token,
)
from callboard.engine.nodes.frames.sender import FrameSender
from callboard.engine.nodes.frames.wire import Ending, Frame, read_packet
from tests.support.virtual_time import FakeClock, run_virtual, runs_on

pytestmark = pytest.mark.anyio
anyio_backend = runs_on("asyncio")

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

    async def let_go(self) -> None:
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
        self.sender.asked("", encode(ask), "reply")
        sent, self.wire.sent = self.wire.sent, []
        return sent


def say(log: StreamLog[TurnEvent], *texts: str) -> None:
    for text in texts:
        log.append(TextDelta(text, 0, "m"))


def test_a_thousand_streams_that_say_nothing_cost_nothing() -> None:
    """There is no timer; and what all of them say together is said at one time."""

    async def scene() -> None:
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

    run_virtual(scene)


def test_what_comes_within_the_interval_is_said_together() -> None:
    """The first news after a pause go out at once, and no news wait longer than the interval."""

    async def scene() -> None:
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

    run_virtual(scene)


def test_a_session_that_went_away_is_not_spoken_of() -> None:
    """The next epoch is another node's. What it had said to its own end it still says."""

    async def scene() -> None:
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

    run_virtual(scene)


def test_a_turn_that_waits_for_its_session_gets_its_epoch() -> None:
    """It was queued before the session was claimed."""

    async def scene() -> None:
        owner = Owner()
        owner.begun()
        owner.epochs["ses"] = 2
        owner.sender.begin("trn_1", 4, [Message.user("Hi")])
        await asyncio.sleep(INTERVAL)
        (frame,) = owner.wire.frames()
        assert frame.beginning is not None
        assert (frame.epoch, frame.beginning.history) == (2, 4)

    run_virtual(scene)


def test_when_the_broker_is_back_everything_that_is_open_is_said_again() -> None:
    """What it had kept may be gone."""

    async def scene() -> None:
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

    run_virtual(scene)


def test_a_stream_that_can_not_be_framed_stops_no_other() -> None:
    """It is let go; its readers get it from elsewhere."""

    async def scene() -> None:
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

    run_virtual(scene)


def test_questions_are_answered_for_streams_of_this_node_alone() -> None:
    """Open ones and those that are over; of others nothing is said, since another node may have them."""

    async def scene() -> None:
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
        owner.sender.asked("", b"\xc1", "reply")
        assert owner.wire.sent == []

    run_virtual(scene)


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
