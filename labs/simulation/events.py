"""Events that are read on other hosts. Pages come through the broker, and missing events from the shared store.

`BridgeQueue` and `Incoming` are the classes of production. A reader must get each event of a run once and in
order.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from callboard.bus import ActorStarted, Envelope
from callboard.engine.nodes.bridge import BridgeQueue, Page, Pause, Read, Send
from callboard.engine.nodes.remote_bus import Arrived, Incoming

from .kernel import ANSWER_SECONDS, BrokenPromise, Host, Kernel, Network
from .trace import File, SharedTrace, Written

SWEEP_SECONDS = 10.0
FLUSH_SECONDS = 0.1
"""The time from writing an event to its commit."""


class Bridge:
    """Sends the events of one host to the broker.

    Args:
    kernel: The kernel.
    network: The network.
    file: The host's file.
    host: The host.
    """

    def __init__(self, kernel: Kernel, network: Network, file: File, host: Host) -> None:
        self.readers: list[EventReader] = []
        self._kernel, self._network, self._file, self._host = kernel, network, file, host
        self._messages: set[str] = set()  # the pages that the broker has

    def begin(self) -> None:
        """Start a new process. The unsent events of the process before are in the shared store later."""
        self._outgoing = BridgeQueue(behind=self._kernel.chance(0.5))
        self._uncommitted: list[int] = []
        self._is_busy = False

    def wrote(self, written: Written) -> None:
        """Add an event that was written. It is committed soon, together with others."""
        if self.readers:
            self._uncommitted.append(written.seq)
            if len(self._uncommitted) == 1:
                self._host.soon(FLUSH_SECONDS, self._commit)

    def connected(self) -> None:
        """Handle a new connection to the broker."""
        self._outgoing.connected()
        self._step()

    def _commit(self) -> None:
        seqs, self._uncommitted = self._uncommitted, []
        if self._outgoing.is_behind:
            self._outgoing.note(seqs[-1])
        else:
            self._outgoing.add([self._page(self._outgoing.last, seqs)])
        self._step()

    def _page(self, after: int, seqs: Sequence[int]) -> Page:
        lines = " ".join(map(str, seqs)).encode() if self._kernel.chance(0.95) else None
        return Page(self._host.run_id, after, seqs[-1], lines)

    def _step(self) -> None:
        if self._is_busy:
            return
        network = self._network
        match self._outgoing.next(self._kernel.now, connected=network.broker_up and not self._host.side):
            case Send(page):
                self._is_busy = True
                self._host.soon(ANSWER_SECONDS, partial(self._unanswered, page))
                network.send(self._host, None, partial(self._arrived, page))
            case Read(after):
                committed = self._outgoing.committed
                seqs = [each for each in self._file.seqs.get(self._host.run_id, ()) if after < each <= committed]
                self._outgoing.read([self._page(after, seqs)] if seqs else [])
                self._step()
            case Pause(seconds) if seconds is not None:
                self._host.soon(seconds, self._step)

    def _arrived(self, page: Page) -> None:
        if not self._network.broker_up:
            return
        if page.message_id not in self._messages:
            self._messages.add(page.message_id)
            for reader in self.readers:
                self._network.send(None, reader.host, partial(reader.take, page))
        self._network.send(None, self._host, partial(self._acknowledged, page))

    def _acknowledged(self, page: Page) -> None:
        if page.run_id != self._host.run_id:
            return  # that process has ended
        self._outgoing.acknowledged(page)
        self._is_busy = False
        self._step()

    def _unanswered(self, page: Page) -> None:
        if self._is_busy and self._outgoing.cursor < page.last:
            self._is_busy = False
            self._outgoing.failed(self._kernel.now)
            self._step()


class EventReader:
    """A reader on one host of all events of another host.

    Args:
    kernel: The kernel.
    network: The network.
    trace: The shared store.
    file: The other host's file.
    host: The reader's host.
    """

    def __init__(self, kernel: Kernel, network: Network, trace: SharedTrace, file: File, host: Host) -> None:
        self.host = host
        self.given = 0
        self._kernel, self._network, self._trace, self._file = kernel, network, trace, file
        self._runs: dict[str, Incoming] = {}
        self._places: dict[str, int] = {}
        self._asking: set[str] = set()

    def begin(self) -> None:
        """Start a new process that reads all runs from the beginning."""
        self._runs, self._places, self._asking = {}, {}, set()
        self.host.soon(self._kernel.random.uniform(0, SWEEP_SECONDS), self._sweep)

    def take(self, page: Page) -> None:
        """Handle a page that has arrived."""
        seqs = None if page.lines is None else [int(each) for each in page.lines.split()]
        envelopes = None if seqs is None else _envelopes(page.run_id, seqs)
        arrived = Arrived(page.after, page.last, envelopes)
        self._give(page.run_id, self._incoming(page.run_id).receive(arrived, self._kernel.now))

    def check_all_given(self) -> None:
        """Check at the end that no event is missing."""
        for run_id, seqs in self._file.seqs.items():
            if self._places.get(run_id, 0) != len(seqs):
                raise BrokenPromise(
                    f"host {self.host.number} has {self._places.get(run_id, 0)} of {len(seqs)} events of {run_id}"
                )

    def _incoming(self, run_id: str) -> Incoming:
        return self._runs.setdefault(run_id, Incoming(0, float("inf")))

    def _give(self, run_id: str, envelopes: Sequence[Envelope]) -> None:
        place, seqs = self._places.get(run_id, 0), self._file.seqs[run_id]
        for envelope in envelopes:
            if place >= len(seqs) or seqs[place] != envelope.seq:
                raise BrokenPromise(f"event {envelope.seq} of {run_id} is given after {seqs[max(0, place - 1)]}")
            place += 1
        self.given += len(envelopes)
        self._places[run_id] = place
        incoming = self._runs[run_id]
        if incoming.ask_at is not None and run_id not in self._asking:
            self._asking.add(run_id)
            self.host.soon(max(incoming.ask_at - self._kernel.now, 0.001), partial(self._ask, run_id))

    def _ask(self, run_id: str) -> None:
        incoming = self._runs[run_id]
        known = incoming.up_to
        if incoming.ask_at is None or known is None:
            self._asking.discard(run_id)
            return

        def work() -> list[int]:
            return [seq for seq in self._trace.runs.get(run_id, ()) if seq > known]

        self._network.ask(self.host, work, partial(self._answered, run_id), partial(self._not_answered, run_id))

    def _answered(self, run_id: str, seqs: list[int]) -> None:
        self._asking.discard(run_id)
        given = self._runs[run_id].answered(_envelopes(run_id, seqs), seqs[-1] if seqs else 0, self._kernel.now)
        self._give(run_id, given)

    def _not_answered(self, run_id: str) -> None:
        self._asking.discard(run_id)
        self._runs[run_id].unanswered(self._kernel.now)
        self._give(run_id, ())

    def _sweep(self) -> None:
        self.host.soon(SWEEP_SECONDS, self._sweep)

        def work() -> dict[str, int]:
            runs = self._trace.runs
            return {run_id: runs[run_id][-1] for run_id in self._file.seqs if run_id in runs}

        self._network.ask(self.host, work, self._swept, lambda: None)

    def _swept(self, runs: dict[str, int]) -> None:
        for run_id, last in runs.items():
            self._incoming(run_id).stored(last, self._kernel.now)
            self._give(run_id, ())


_NOTHING = ActorStarted(actor="")


def _envelopes(run_id: str, seqs: Sequence[int]) -> list[Envelope]:
    return [Envelope(seq, run_id, 0, 0, _NOTHING) for seq in seqs]
