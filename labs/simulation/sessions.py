"""Sessions that move between nodes: leases, claims, turns that write in an epoch, and releases.

`Holding` is the class of production. The code here replaces `Ownership`, but does not wait: a host whose claim is
refused tries again later.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import msgspec

from callboard.engine.nodes.ownership import Holding, Renewal
from callboard.tracestore.nodes import Claimed, HeldSession, NodeInfo, Renewed
from tests.support.shared_tables import OwnershipModel

from .kernel import BrokenPromise, Host, Kernel, Network, result
from .streams import OwnStream, Streams
from .trace import File, SharedTrace

LEASE_SECONDS = 15.0


class Open(msgspec.Struct):
    """An open session of a node."""

    epoch: int
    """The epoch of its claim."""
    length: int
    """The number of its messages, as far as the node knows."""
    left: int = 0
    """The number of messages that its turn has still to write; 0 without a turn."""
    stream: OwnStream | None = None
    """The stream of its turn, which readers read."""


class Node:
    """One host's sessions.

    Args:
        kernel: The kernel.
        network: The network.
        tables: The shared rows.
        trace: The shared store.
        host: The host.
        file: The host's file.
        streams: The streams that can be read on other hosts.
    """

    tell: Callable[[str], None]
    """Notifies an owner that another node waits for one of its sessions."""

    def __init__(
        self,
        kernel: Kernel,
        network: Network,
        tables: OwnershipModel,
        trace: SharedTrace,
        host: Host,
        file: File,
        streams: Streams,
    ) -> None:
        self.kernel, self.network, self.tables, self.trace = kernel, network, tables, trace
        self.host, self.file, self.streams = host, file, streams
        self.holding = Holding(LEASE_SECONDS)
        self.open: dict[str, Open] = {}
        self.turns = self.moves = 0
        self.own_late_claims = 0
        """How often it wrote in an epoch that a later claim of its own had replaced. The store refuses that."""
        self._wanted: set[str] = set()
        self._claiming: set[str] = set()
        self._renewing = False

    def begin(self) -> None:
        """Start a new process."""
        self.holding = Holding(LEASE_SECONDS)
        self.open = {}
        self._wanted, self._claiming = set(), set()
        self._renewing = False
        self._info = NodeInfo(node=self.host.run_id, lease_seconds=LEASE_SECONDS)
        self.host.soon(self.kernel.random.uniform(0, 1), self._tend)

    # -- The lease

    def _tend(self) -> None:
        self._give_away()
        self._renew()

    def _renew(self) -> None:
        if self._renewing:
            return
        self._renewing = True
        asked, info = self.holding.asks(self.host.monotonic_ns()), self._info
        work = partial(self._at_database, lambda: result(self.tables.renew(info, asked.lease)))
        self.network.ask(self.host, work, partial(self._renewed, asked), self._not_renewed)

    def _renewed(self, asked: Renewal, answer: Renewed) -> None:
        self._renewing = False
        self._wanted.update(answer.wanted)
        for session_id in self.holding.renewed(asked, answer):
            self._lose(session_id)
        self._come_back()

    def _not_renewed(self) -> None:
        self._renewing = False
        self.holding.not_renewed(self.host.monotonic_ns())
        self._come_back()

    def _come_back(self) -> None:
        pause = self.holding.pause(self.host.monotonic_ns())
        self.host.soon(max(pause, 0.01), self._tend)

    def _at_database(self, work: Callable[[], Renewed]) -> Renewed:
        self.tables.now = self.kernel.now
        return work()

    # -- Turns

    def turn(self, session_id: str) -> None:
        """Start a turn of a session on this node."""
        session = self.open.get(session_id)
        now = self.host.monotonic_ns()
        if session is not None:
            if not session.left and self.holding.may_act(session_id, session.epoch, now):
                self._begin_turn(session_id, session)
        elif (
            session_id not in self._claiming
            and self.holding.lives(now)
            and (self.file.is_shipped or not self.holding.epoch_of(session_id))
        ):
            self._claim(session_id)

    def _claim(self, session_id: str) -> None:
        self._claiming.add(session_id)
        run_id = self.host.run_id

        def work() -> Claimed | HeldSession:
            self.tables.now = self.kernel.now
            return result(self.tables.claim(session_id, run_id, request_takeover=True))

        self.network.ask(
            self.host, work, partial(self._claimed, session_id), partial(self._claiming.discard, session_id)
        )

    def _claimed(self, session_id: str, found: Claimed | HeldSession) -> None:
        if isinstance(found, HeldSession):
            self._claiming.discard(session_id)
            self.tell(found.by.node + " " + session_id)
            return
        self.holding.claimed(session_id, found.epoch)
        if found.previous is not None and found.previous.node != self.host.run_id:
            self.moves += 1

        def read() -> int:
            stored = self.trace.sessions.get(session_id)
            return 0 if stored is None else stored.length

        epoch = found.epoch
        self.network.ask(
            self.host, read, partial(self._opened, session_id, epoch), partial(self._claiming.discard, session_id)
        )

    def _opened(self, session_id: str, epoch: int, length: int) -> None:
        self._claiming.discard(session_id)
        if self.holding.may_act(session_id, epoch, self.host.monotonic_ns()):
            session = self.open[session_id] = Open(epoch, length)
            self._begin_turn(session_id, session)

    def _begin_turn(self, session_id: str, session: Open) -> None:
        self.turns += 1
        session.left = self.kernel.random.randint(1, 4)
        session.stream = self.streams.begin(self, session_id, session.epoch)
        self.host.soon(self.kernel.random.uniform(0, 2), partial(self._say, session_id, session))

    def _say(self, session_id: str, session: Open) -> None:
        if self.open.get(session_id) is not session or not session.left:
            return
        if not self.holding.may_act(session_id, session.epoch, self.host.monotonic_ns()):
            self._renew()  # as `Ownership.require` does: ask, and continue if the node still owns the session
            self.host.soon(1.0, partial(self._say, session_id, session))
            return
        self._check(session_id, session.epoch)
        self.file.write(session_id, session.epoch, session.length)
        session.length += 1
        session.left -= 1
        stream = session.stream
        if stream is not None:
            stream.say()
        if session.left:
            self.host.soon(self.kernel.random.uniform(0, 4), partial(self._say, session_id, session))
            return
        if stream is not None:
            stream.end()
            self.file.write(session_id, session.epoch, -1, stream.log)
            session.stream = None
        if self.kernel.chance(0.3):
            self._lose(session_id)  # the session is not open here any more

    def _check(self, session_id: str, epoch: int) -> None:
        """Check that the node really owns the session."""
        self.tables.now = self.kernel.now
        owner = result(self.tables.owner(session_id))
        if owner is not None and owner.node == self.host.run_id and owner.epoch > epoch:
            self.own_late_claims += 1
        elif owner is None or (owner.node, owner.epoch) != (self.host.run_id, epoch) or not owner.lives:
            raise BrokenPromise(f"{self.host.run_id} acts for {session_id} in epoch {epoch}, but it is of {owner}")

    # -- Letting go

    def wanted(self, session_id: str) -> None:
        """Handle the request of another node for a session."""
        self._wanted.add(session_id)
        self._give_away()

    def _give_away(self) -> None:
        for session_id in sorted(self._wanted):
            session = self.open.get(session_id)
            if session is not None and session.left:
                continue
            self._wanted.discard(session_id)
            self._lose(session_id)
        if not self.file.is_shipped:
            return
        unheld = {each: epoch for each, epoch in self.holding.sessions.items() if each not in self.open}
        if unheld:
            for session_id in unheld:
                self.holding.let_go(session_id)
            self._release(unheld)

    def _release(self, sessions: Mapping[str, int]) -> None:
        run_id = self.host.run_id
        self.network.ask(
            self.host,
            lambda: result(self.tables.release(run_id, sessions)),
            lambda _: None,
            lambda: self._not_released(sessions),
        )

    def _not_released(self, sessions: Mapping[str, int]) -> None:
        for session_id, epoch in sessions.items():
            self.holding.claimed(session_id, epoch)

    def _lose(self, session_id: str) -> None:
        session = self.open.pop(session_id, None)
        if session is not None and session.stream is not None:
            session.stream.abandon()
