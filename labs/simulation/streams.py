"""Streams that are read on other hosts. The broker may lose frames, so readers also ask the owner and the store.

`Framer`, `Mirror` and `Follower` are the classes of production. Each time a reader gets events, it is checked: its
text is a prefix of the owner's text, the text never shrinks, and the stream has one end.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Protocol

from callboard.bus import StreamLog
from callboard.bus.streams.events import TextDelta, TurnComplete, TurnEvent
from callboard.engine.nodes.frame_sender import Framer
from callboard.engine.nodes.frames import Ending, Frame, OwnerAnswer
from callboard.engine.nodes.mirror import (
    AskOwner,
    AskStore,
    Follower,
    Mirror,
    Question,
    Replay,
    StoreAnswer,
    Stored,
)
from callboard.engine.nodes.ownership import Holding
from callboard.tracestore.nodes import TurnEnding
from tests.support.shared_tables import OwnershipModel

from .kernel import BrokenPromise, Host, Kernel, Network, result
from .trace import SharedTrace

FRAME_BYTES = 60
FRAME_SECONDS = 0.025
ASK_SECONDS = 1.0
STEADY_SECONDS = 5.0


class Owner(Protocol):
    """The node of a stream."""

    host: Host
    holding: Holding


class Streams:
    """All streams, and the broker of their frames.

    Args:
        kernel: The kernel.
        network: The network.
        tables: The shared rows.
        trace: The shared store.
        hosts: All hosts.
        read_share: The share of turns that are read.
    """

    def __init__(
        self,
        kernel: Kernel,
        network: Network,
        tables: OwnershipModel,
        trace: SharedTrace,
        hosts: list[Host],
        read_share: float,
    ) -> None:
        self.kernel, self.network, self.tables, self.trace = kernel, network, tables, trace
        self.readers: list[Reader] = []
        self.ended: dict[str, int] = {}
        """The number of readers by the end of their stream."""
        self.steady_since = 0.0
        self._hosts = hosts
        self._read_share = read_share
        self._count = 0
        self._own: dict[str, OwnStream] = {}
        self._kept: dict[str, list[Frame]] = {}
        self._listening: dict[str, list[Reader]] = {}

    def begin(self, node: Owner, session_id: str, epoch: int) -> OwnStream | None:
        """Start a turn. Some turns have up to three readers; the others have no stream."""
        if not self.kernel.chance(self._read_share):
            return None
        self._count += 1
        own = OwnStream(self, node, f"turn_{self._count}", session_id, epoch)
        self._own[own.log.stream_id] = own
        for _ in range(self.kernel.random.randint(1, 3)):
            host = self.kernel.random.choice(self._hosts)
            host.soon(self.kernel.random.uniform(0, 8), partial(self._read, own, host))
        return own

    def _read(self, own: OwnStream, host: Host) -> None:
        reader = Reader(self, own, host)
        self.readers.append(reader)
        self._listening.setdefault(own.log.stream_id, []).append(reader)
        reader.go()

    # -- The broker

    def publish(self, host: Host, frame: Frame) -> None:
        """Send a frame to the broker, which sends it to all readers."""
        self.network.send(host, None, partial(self._arrived, frame))

    def _arrived(self, frame: Frame) -> None:
        if not self.network.broker_up:
            return
        self._kept.setdefault(frame.stream_id, []).append(frame)
        for reader in self._listening.get(frame.stream_id, ()):
            if not reader.follower.over:
                self.network.send(None, reader.host, partial(reader.take, frame))

    def kept(self, stream_id: str) -> list[Frame]:
        """The frames that the broker has stored."""
        return self._kept.get(stream_id, []) if self.network.broker_up else []

    def broker_is_back(self, *, wiped: bool) -> None:
        """Make the broker reachable again. With `wiped`, it has lost its frames."""
        if wiped:
            self._kept.clear()
        self.steady_since = self.kernel.now
        for host in self._hosts:
            self.reconnected(host)

    def reconnected(self, host: Host) -> None:
        """Handle a host's new connection to the broker."""
        for reader in self.readers:
            if reader.host is host and reader.is_there:
                host.soon(0.01, reader.reconnected)
        for own in self._own.values():
            if own.node.host is host and own.is_there and not own.log.closed:
                host.soon(0.01, own.say_again)

    def forget_the_ended(self) -> None:
        """Remove the streams whose readers have all ended, and the readers of dead processes."""
        self.readers = [each for each in self.readers if each.is_there and not each.follower.over]
        wanted = {reader.own.log.stream_id for reader in self.readers}
        for stream_id, own in list(self._own.items()):
            if stream_id not in wanted and own.begun < self.kernel.now - 60:
                del self._own[stream_id]
                self._kept.pop(stream_id, None)
                self._listening.pop(stream_id, None)

    def is_broker_steady(self, host: Host) -> bool:
        """Whether a host has been connected to the broker for a while."""
        return self.network.broker_up and not host.side and self.kernel.now - self.steady_since > STEADY_SECONDS

    # -- Endings

    def look_up(self, reader: Reader, asked: AskStore) -> StoreAnswer:
        """The shared store's answer about a turn, as from `answer_of_store`."""
        stream_id = reader.own.log.stream_id
        if (events := self.trace.turns.get(stream_id)) is not None:
            return Stored(events)
        if not asked.node:
            return "nothing" if self.is_broker_steady(reader.host) else "no answer"
        self.tables.now = self.kernel.now
        ending = TurnEnding(
            stream_id=stream_id,
            session_id=asked.session_id,
            epoch=asked.epoch,
            status="outcome_unknown",
            decided_by=reader.host.run_id,
        )
        found = result(self.tables.end_turn(ending, asked.node))
        return "alive" if found is None else Ending(found.status, "its node is gone", found.epoch)

    def announce(self, reader: Reader, session_id: str, ending: Ending) -> None:
        """Notify all readers of the end of a turn."""
        stream_id = reader.own.log.stream_id
        frame = Frame(stream_id, session_id, reader.host.run_id, ending.epoch, 0, 0, ending=ending)
        self.publish(reader.host, frame)


class OwnStream:
    """A stream on its owner's node."""

    def __init__(self, streams: Streams, node: Owner, stream_id: str, session_id: str, epoch: int) -> None:
        self.node = node
        self.log: StreamLog[TurnEvent] = StreamLog(stream_id)
        self.text = ""
        self.begun = streams.kernel.now
        self._streams = streams
        self._framer = Framer(self.log, session_id, node.host.run_id, FRAME_BYTES)
        self._framer.epoch = epoch
        self._session_id, self._epoch = session_id, epoch
        self._life = node.host.lives
        self._is_abandoned = self._is_due = False

    @property
    def is_there(self) -> bool:
        """Whether its process is alive and still has the stream."""
        host = self.node.host
        return host.lives == self._life and host.state != "down" and not self._is_abandoned

    def say(self) -> None:
        """Add a piece of text from the model."""
        for _ in range(self._streams.kernel.random.randint(1, 4)):
            word = f"{len(self.text)} "
            self.text += word
            self.log.append(TextDelta(word))
        self._news()

    def end(self) -> None:
        """End the turn."""
        self.log.append(TurnComplete("completed"))
        self.log.close()
        self._news()

    def abandon(self) -> None:
        """Give the stream up, because another node owns the session now."""
        self._is_abandoned = True

    def say_again(self) -> None:
        """Publish all frames again."""
        self._framer.again()
        self._news()

    def asked(self, reader: Reader, number: int, from_seq: int) -> None:
        """Handle a reader's request for events."""
        if not self.is_there or not self._is_ours:
            return
        send, host = self._streams.network.send, self.node.host
        answer = OwnerAnswer(host.run_id, self.log.next_seq)
        send(host, reader.host, partial(reader.owner_answered, number, answer))
        for frame in self._framer.since(from_seq):
            send(host, reader.host, partial(reader.take, frame))

    @property
    def _is_ours(self) -> bool:
        return self.log.closed or self.node.holding.epoch_of(self._session_id) == self._epoch

    def _news(self) -> None:
        if not self._is_due:
            self._is_due = True
            self.node.host.soon(FRAME_SECONDS, self._flush)

    def _flush(self) -> None:
        self._is_due = False
        if not self._is_abandoned and self._is_ours:
            for frame in self._framer.frames():
                self._streams.publish(self.node.host, frame)


class Reader:
    """A reader on another host."""

    def __init__(self, streams: Streams, own: OwnStream, host: Host) -> None:
        self.own = own
        self.host = host
        self._streams = streams
        self._kernel = streams.kernel
        self.follower = Follower(Mirror(StreamLog(own.log.stream_id)), self._kernel.now)
        self._life = host.lives
        self._asked = 0
        self._timer = math.inf
        self._read = 0
        self._ends = 0

    @property
    def is_there(self) -> bool:
        """Whether its process is alive."""
        return self.host.lives == self._life and self.host.state != "down"

    def take(self, frame: Frame) -> None:
        """Handle a frame that has arrived."""
        self.follower.frame(frame, self._kernel.now)
        self.go()

    def reconnected(self) -> None:
        """Handle a new connection: frames may be missing."""
        self.follower.reconnected(self._kernel.now)
        self.go()

    def owner_answered(self, number: int, answer: OwnerAnswer | None) -> None:
        """Handle the owner's answer, or a timeout of it."""
        if number == self._asked:
            self._asked += 1
            self.follower.owner_answered(answer, self._kernel.now)
            self.go()

    def go(self) -> None:
        """Check the events so far, and send the next requests."""
        self._check()
        if self.follower.over:
            return
        now = self._kernel.now
        if (question := self.follower.question(now)) is not None:
            self._put(question)
        elif self.follower.wake_at < self._timer:
            self._timer = self.follower.wake_at
            self.host.soon(self._timer - now + 1e-6, self._woken)

    def _woken(self) -> None:
        self._timer = math.inf
        self.go()

    def _put(self, question: Question) -> None:
        streams, host = self._streams, self.host
        match question:
            case Replay():
                host.soon(streams.network.delay(), self._replay)
            case AskOwner(from_seq=from_seq):
                number = self._asked
                ask = partial(self.own.asked, self, number, from_seq)
                streams.network.send(host, self.own.node.host, ask)
                host.soon(ASK_SECONDS, partial(self.owner_answered, number, None))
            case AskStore():
                work = partial(streams.look_up, self, question)
                told = partial(self._store_answered, question.session_id)
                streams.network.ask(host, work, told, partial(told, "no answer"))

    def _replay(self) -> None:
        if not self.host.side:
            for frame in self._streams.kept(self.own.log.stream_id):
                self.follower.frame(frame, self._kernel.now, stored=True)
        self.follower.replayed(self._kernel.now)
        self.go()

    def _store_answered(self, session_id: str, answer: StoreAnswer) -> None:
        if isinstance(answer, Ending):
            self._streams.announce(self, session_id, answer)
        self.follower.store_answered(answer, self._kernel.now)
        self.go()

    def _check(self) -> None:
        log, said = self.follower.mirror.log, self.own.text
        events = (*log.snapshot, *log.since(log.first_seq))
        text = "".join(event.text for event in events if isinstance(event, TextDelta))
        ends = [event for event in events if isinstance(event, TurnComplete)]
        about = f"a reader of {log.stream_id}"
        if not said.startswith(text) or len(text) < self._read:
            raise BrokenPromise(f"{about} has {text!r} after {self._read} characters, and {said!r} was said")
        self._read = len(text)
        if len(ends) != (log.closed and log.error is None):
            raise BrokenPromise(f"{about} has {len(ends)} ends, and is {'' if log.closed else 'not '}over")
        if not log.closed or self._ends:
            return
        self._ends += 1
        if ends and ends[0].status == "completed" and text != said:
            raise BrokenPromise(f"{about} ends with {text!r} of {said!r}")
        status = ends[0].status if ends else "unknown stream"
        self._streams.ended[status] = self._streams.ended.get(status, 0) + 1
