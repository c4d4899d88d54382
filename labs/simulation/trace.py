"""The written events: a file on each host, the shared store, and the shipping between them.

A host's file survives its processes. `ShippingPlan` ships it. The store writes a shipment and the file's mark in
one transaction, and calls `belongs` to find the owner of a message.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import msgspec

from callboard.bus import StreamLog
from callboard.bus.streams.events import TextDelta, TurnComplete, TurnEvent
from callboard.tracestore.shipping.shipment import START, Position
from callboard.tracestore.shipping.shipper import Ask, Pause, Send, ShippingOptions, ShippingPlan
from callboard.tracestore.sql.events import belongs
from tests.support.shared_tables import OwnershipModel

from .kernel import BrokenPromise, Host, Kernel, Network, result

BATCH = 50


class Written(msgspec.Struct, frozen=True):
    """An event in a host's file."""

    run_id: str
    """The run id of the process that wrote it."""
    seq: int
    """Its seq in that run, which may have gaps."""
    session_id: str
    """The session."""
    epoch: int
    """The epoch of the claim in which it was written."""
    position: int
    """The position of the message in the session's history; -1 for the end of a turn."""
    stream: StreamLog[TurnEvent] | None = None
    """For the end of a turn, its stream."""


class StoredSession(msgspec.Struct):
    """A session in the shared store."""

    owner: tuple[int, int] | None = None
    """The run id and the epoch of the last message."""
    length: int = 0
    """The number of messages."""


class SharedTrace:
    """The shared store.

    Args:
    ownership: The rows of the sessions' owners.
    """

    def __init__(self, ownership: OwnershipModel) -> None:
        self.sessions: dict[str, StoredSession] = {}
        self.turns: dict[str, tuple[TurnEvent, ...]] = {}
        """The turns that are completely stored."""
        self.runs: dict[str, list[int]] = {}
        """The seqs of the stored events of each run."""
        self.refused = 0
        self._ownership = ownership
        self._numbers: dict[str, int] = {}
        self._marks: dict[int, Position] = {}
        self._writers: dict[tuple[str, int], str] = {}

    def mark(self, host: int) -> Position:
        """The position up to which the file of a host is stored."""
        return self._marks.get(host, START)

    def take(self, host: int, after: Position, events: list[Written], last: Position) -> Position:
        """Store a shipment, except events that are already stored."""
        mark = self.mark(host)
        if after.event > mark.event:
            raise BrokenPromise(f"host {host}: events {mark.event} to {after.event} are never shipped")
        for written in events[mark.event - after.event :]:
            self._store(written)
        if last.event > mark.event:
            self._marks[host] = last
        return last

    def _store(self, written: Written) -> None:
        seqs = self.runs.setdefault(written.run_id, [])
        if seqs and seqs[-1] >= written.seq:
            raise BrokenPromise(f"event {written.seq} of {written.run_id} is stored twice")
        seqs.append(written.seq)
        run = self._numbers.setdefault(written.run_id, len(self._numbers) + 1)
        session = self.sessions.setdefault(written.session_id, StoredSession())
        row = result(self._ownership.owner(written.session_id))
        claimed = 0 if row is None else row.epoch
        if not belongs(run, written.epoch, begins=False, owner=session.owner, claimed=claimed):
            self.refused += 1
            return
        if self._writers.setdefault((written.session_id, written.epoch), written.run_id) != written.run_id:
            raise BrokenPromise(f"two owners write {written.session_id} in epoch {written.epoch}")
        session.owner = run, written.epoch
        if written.stream is not None:
            self.turns[written.stream.stream_id] = stored_form(written.stream)
            return
        if written.position != session.length:
            raise BrokenPromise(
                f"{written.session_id}: message {written.position} follows on {session.length} messages"
            )
        session.length += 1


def stored_form(log: StreamLog[TurnEvent]) -> tuple[TurnEvent, ...]:
    """A turn as the store returns it: its text as one event, and its end."""
    events = log.since(0)
    text = "".join(event.text for event in events if isinstance(event, TextDelta))
    return TextDelta(text), *(event for event in events if isinstance(event, TurnComplete))


class File:
    """The trace file of a host, and its shipper.

    Args:
    kernel: The kernel.
    network: The network.
    trace: The shared store.
    host: The host.
    """

    def __init__(self, kernel: Kernel, network: Network, trace: SharedTrace, host: Host) -> None:
        self.events: list[Written] = []
        self.seqs: dict[str, list[int]] = {}
        """The seqs of the events of each process, in order."""
        self._kernel = kernel
        self._network = network
        self._trace = trace
        self._host = host
        self._seq = 0
        self.course = ShippingPlan(ShippingOptions(batch_events=BATCH))
        self._is_idle = False
        self.on_write: Callable[[Written], None] = lambda _: None

    def begin(self) -> None:
        """Start a new process that writes and ships."""
        self._seq = 0
        self.course = ShippingPlan(ShippingOptions(batch_events=BATCH))
        self._is_idle = False
        self._host.soon(0, self._step)

    def write(
        self, session_id: str, epoch: int, position: int, stream: StreamLog[TurnEvent] | None = None
    ) -> Written:
        """Add an event."""
        self._seq += self._kernel.random.choice((1, 1, 1, 3))
        written = Written(self._host.run_id, self._seq, session_id, epoch, position, stream)
        self.events.append(written)
        self.seqs.setdefault(written.run_id, []).append(written.seq)
        if self._is_idle:
            self._is_idle = False
            self.course.wake()
            self._host.soon(self._kernel.random.uniform(0.05, 2), self._step)
        self.on_write(written)
        return written

    @property
    def is_shipped(self) -> bool:
        """Whether the store is known to have all events."""
        return self.course.position.event >= len(self.events)

    def _step(self) -> None:
        match self.course.next(self._kernel.now):
            case Ask():
                self._network.ask(
                    self._host, lambda: self._trace.mark(self._host.number), self._asked, self._failed
                )
            case Send(after, limit):
                events = self.events[after.event : after.event + limit]
                if not events:
                    self.course.nothing_left(self._kernel.now)
                    self._is_idle = True
                    return
                last = Position(after.event + len(events), events[-1].run_id, events[-1].seq)
                take = partial(self._trace.take, self._host.number, after, events, last)
                self._network.ask(self._host, take, self._sent, self._failed)
            case Pause(seconds):
                self._host.soon(seconds, self._step)

    def _asked(self, position: Position) -> None:
        self.course.confirmed(position)
        self._step()

    def _sent(self, position: Position) -> None:
        self.course.sent(position)
        self._step()

    def _failed(self) -> None:
        self.course.failed(self._kernel.now)
        self._step()
