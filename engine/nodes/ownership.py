"""The ownership of sessions: a node's lease, the sessions that it owns, and their handover."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import Protocol

import anyio
import msgspec

from callboard.bus import (
    AdmissionError,
    Bus,
    Clock,
    Log,
    SessionBusy,
    SessionTakenOver,
    SessionTurnCompleted,
    StoreError,
)
from callboard.bus.events.operation import NodeLeaseChanged, SessionClaimed, SessionLost
from callboard.tracestore.nodes import Claimed, HeldSession, NodeInfo, OwnershipTables, Renewed, TurnEnding

from ..runtime.alone import OwnershipStatistics
from .broker import Broker
from .frames import Ending, Subjects

# --- The lease and held sessions ---

_RENEWALS = 3
"""The number of renewals during a lease."""

_TRIES = 15
"""The number of retries during one lease if a renewal fails."""


class Renewal(msgspec.Struct, frozen=True):
    """A lease renewal in progress."""

    at_ns: int
    """The time before the renewal was sent."""
    lease: int
    sessions: Mapping[str, int]
    """The sessions that the node owned at that time, with their epochs."""


class Holding:
    """A node's own record of its lease and its sessions."""

    def __init__(self, lease_seconds: float) -> None:
        self.breaks = 0
        """The number of times that the lease expired. After that, other nodes may have taken over sessions."""
        self._lease_ns = round(lease_seconds * 1e9)
        self._lease = 0
        self._until_ns: int | None = None
        self._next_ns = 0
        self._sessions: dict[str, int] = {}

    @property
    def sessions(self) -> Mapping[str, int]:
        return self._sessions

    def epoch_of(self, session_id: str) -> int:
        """The epoch in which the node owns a session; 0 if it does not own the session."""
        return self._sessions.get(session_id, 0)

    def lives(self, now_ns: int) -> bool:
        """Whether the lease is valid, by the node's own clock."""
        return self._until_ns is not None and now_ns < self._until_ns

    def may_act(self, session_id: str, epoch: int, now_ns: int) -> bool:
        """Whether the node may act for a session that it claimed in that epoch."""
        return self._sessions.get(session_id) == epoch and self.lives(now_ns)

    def seconds_left(self, now_ns: int) -> float:
        """Seconds until the end of the lease; 0 if it has expired."""
        return 0.0 if self._until_ns is None else max(0, self._until_ns - now_ns) / 1e9

    def pause(self, now_ns: int) -> float:
        """Seconds until the next action: a renewal, or reporting that the lease has expired."""
        moments = [self._next_ns]
        if self._until_ns is not None and self._until_ns > now_ns:
            moments.append(self._until_ns)
        return max(0, min(moments) - now_ns) / 1e9

    def asks(self, now_ns: int) -> Renewal:
        return Renewal(now_ns, self._lease, dict(self._sessions))

    def renewed(self, renewal: Renewal, answer: Renewed) -> dict[str, int]:
        if self._until_ns is None or renewal.at_ns + self._lease_ns > self._until_ns:
            self._until_ns = renewal.at_ns + self._lease_ns
        self._next_ns = renewal.at_ns + self._lease_ns // _RENEWALS
        if answer.owned is None:
            return {}
        self._lease = max(self._lease, answer.lease)
        self.breaks += 1
        lost = {
            session_id: epoch
            for session_id, epoch in renewal.sessions.items()
            if answer.owned.get(session_id) != epoch and self._sessions.get(session_id) == epoch
        }
        for session_id in lost:
            del self._sessions[session_id]
        return lost

    def not_renewed(self, now_ns: int) -> None:
        """Record that a renewal has failed. It is tried again soon."""
        self._next_ns = now_ns + self._lease_ns // _TRIES

    def claimed(self, session_id: str, epoch: int) -> None:
        self._sessions[session_id] = max(epoch, self._sessions.get(session_id, 0))

    def let_go(self, session_id: str) -> int:
        return self._sessions.pop(session_id, 0)


# --- Keeping and handing over ---

_log = Log("engine.ownership")

LOOK_SECONDS = 1.0
"""Seconds between two checks for sessions that other nodes request or that this node no longer uses."""

HANDOVER_SECONDS = 3.0
"""Seconds that a running owner has to hand over a requested session."""

ASK_SECONDS = 0.1
"""Seconds between two attempts of a node that waits for a session."""


OUTCOME_UNKNOWN = "the node that ran this turn has stopped, and the state of its last call is unknown"
"""The error text for the end of a dead node's turn."""


class LocalSessions(Protocol):
    """The open sessions of the engine, for `Ownership`."""

    def is_open(self, session_id: str) -> bool:
        """Whether the session is open in this engine."""

    def is_idle(self, session_id: str) -> bool:
        """Whether no turn of the session runs or waits."""

    def lose(self, session_id: str, why: str) -> None:
        """Close the session and end its turns with SessionTakenOver and this text."""

    async def ship(self) -> bool:
        """Ship all published events to the shared store. Return whether they arrived."""


class Ownership:
    """Keeps the lease of one node, and owns its sessions."""

    local: LocalSessions
    """The open sessions; set before the start."""
    tell: Callable[[str], object] = staticmethod(lambda _node: None)
    """Notifies another node that one of its sessions is requested. By default, the shared rows are the only
    notice.
    """
    shared = True
    """Whether the shared store has all content at the end; set before `close`."""

    def __init__(self, tables: OwnershipTables, info: NodeInfo, bus: Bus, clock: Clock) -> None:
        self.tables = tables
        self.info = info
        self.holding = Holding(info.lease_seconds)
        self._bus = bus
        self._clock = clock
        self._renewing = anyio.Lock()
        self._reported_loss = False
        self._reason = ""
        self._unheld: set[str] = set()  # sessions that this engine did not use at the last check
        self._requested_sessions: tuple[str, ...] = ()
        self._wake = anyio.Event()
        self._ended: set[str] = set()  # turns of other nodes whose end was decided here
        self._deleted: set[str] = set()  # deleted sessions that this node still owns

    def statistics(self) -> OwnershipStatistics:
        now = self._clock.monotonic_ns()
        return OwnershipStatistics(
            node=self.info.node,
            name=self.info.name,
            lives=self.holding.lives(now),
            seconds_left=self.holding.seconds_left(now),
            sessions=len(self.holding.sessions),
            breaks=self.holding.breaks,
            reason=self._reason,
        )

    # --- Interface for sessions ---

    def epoch_of(self, session_id: str) -> int:
        """The epoch in which this node owns a session; 0 if it does not own the session."""
        return self.holding.epoch_of(session_id)

    def may_act(self, session_id: str) -> bool:
        """Whether this node may act for a session, by its own record of the lease.

        A node may act for an unclaimed session, for example a session without stored content.
        """
        return not self.holding.epoch_of(session_id) or self.holding.lives(self._clock.monotonic_ns())

    def holds(self, session_id: str, epoch: int) -> bool:
        """Whether a turn of the session may continue. The node decides this without the store, so it may be
        wrong.
        """
        return self.holding.may_act(session_id, epoch, self._clock.monotonic_ns())

    async def require(self, session_id: str, epoch: int) -> None:
        """Check that this node owns the session in this epoch, with a query to the store if needed. Raises an
        error if another node owns it.
        """
        if not self.holds(session_id, epoch):
            await self._have_lease()
            if self.holding.epoch_of(session_id) != epoch:
                raise SessionTakenOver(taken_over(session_id))

    async def claim(self, session_id: str, *, waits: bool) -> Claimed:
        await self._have_lease()
        began = anyio.current_time()
        first: HeldSession | None = None
        while True:
            try:
                found = await self.tables.claim(session_id, self.info.node, request_takeover=waits)
            except StoreError as error:
                raise AdmissionError(_cannot_ask(session_id, error)) from error
            if isinstance(found, Claimed):
                self._claimed(session_id, found)
                return found
            if waits:
                self.tell(found.by.node)
            first = first or found
            waited = anyio.current_time() - began
            lives = found.by.node != first.by.node or found.by.seconds_left > first.by.seconds_left - waited + 0.5
            if not waits or (lives and waited > HANDOVER_SECONDS):
                raise SessionBusy(_held_by(session_id, found))
            await anyio.sleep(ASK_SECONDS)

    async def release(self, session_id: str) -> None:
        """Release a session whose messages are all shared. If the store is unreachable, the store is updated
        later.
        """
        epoch = self.holding.let_go(session_id)
        if not epoch:
            return
        try:
            if session_id in self._deleted:
                await self.tables.forget(self.info.node, session_id, epoch)
            else:
                await self.tables.release(self.info.node, {session_id: epoch})
        except StoreError as error:
            self.holding.claimed(session_id, epoch)  # the next check releases the session
            _log.warning("session_not_released", session_id=session_id, error=str(error))

    def deleted(self, session_id: str) -> None:
        """Record that a session was deleted. Its release then removes the remaining rows, unless the session is
        claimed again.
        """
        if self.holding.epoch_of(session_id):
            self._deleted.add(session_id)

    async def ending_of(self, stream_id: str, session_id: str, node: str, epoch: int) -> Ending | None:
        """The end of a turn with an unreachable owner. If its lease has expired, the end is decided now."""
        found = await self.end_of_turn(stream_id, session_id, node, epoch)
        if found is None:
            return None
        if found.decided_by == self.info.node and stream_id not in self._ended:
            self._ended.add(stream_id)
            self._bus.publish(
                SessionTurnCompleted(status=found.status, calls=1, attempts=1, unknown=1, error=OUTCOME_UNKNOWN),
                session_id=session_id or None,
                turn_id=stream_id,
            )
        return Ending(found.status, OUTCOME_UNKNOWN, found.epoch)

    async def end_of_turn(self, stream_id: str, session_id: str, node: str, epoch: int) -> TurnEnding | None:
        """The decided end of a turn. If its owner can no longer end it, it is decided now."""
        ending = TurnEnding(
            stream_id=stream_id,
            session_id=session_id,
            epoch=epoch,
            status="outcome_unknown",
            decided_by=self.info.node,
        )
        return await self.tables.end_turn(ending, node)

    # --- Start and end ---

    def notify_over(self, broker: Broker, subjects: Subjects) -> None:
        """Send and receive requests for sessions over the broker.

        A lost request delays the takeover by at most a second, because owners also check the shared rows.
        """
        self.tell = lambda node: broker.publish(subjects.request_subject(node), b"")
        broker.listen(subjects.request_subject(self.info.node), lambda *_: self._wake.set())

    async def run(self) -> None:
        """Keep the lease, and hand over sessions that other nodes wait for."""
        renew_at = 0.0
        while True:
            self._wake = anyio.Event()
            if anyio.current_time() >= renew_at:
                with contextlib.suppress(StoreError):
                    await self._renew()
            elif self.holding.sessions:
                with contextlib.suppress(StoreError):
                    self._requested_sessions = tuple(await self.tables.requested_sessions(self.info.node))
            self._note_lease()
            await self._give_away()
            pause = self.holding.pause(self._clock.monotonic_ns())
            renew_at = anyio.current_time() + pause
            with anyio.move_on_after(min(pause, LOOK_SECONDS)):
                await self._wake.wait()

    async def close(self) -> None:
        """Release all sessions and end the lease, so that other nodes need not wait.

        Sessions with content that is only on this node are kept until the lease expires.
        """
        try:
            if self.shared:
                owned = dict(self.holding.sessions)
                for session_id in self._deleted & owned.keys():
                    await self.tables.forget(self.info.node, session_id, owned.pop(session_id))
                await self.tables.release(self.info.node, owned)
                await self.tables.leave(self.info.node)
        except StoreError as error:
            _log.warning("sessions_not_released", error=str(error))

    async def _have_lease(self) -> None:
        if self.holding.lives(self._clock.monotonic_ns()):
            return
        try:
            await self._renew()
        except StoreError as error:
            raise AdmissionError(_cannot_ask("", error)) from error
        if not self.holding.lives(self._clock.monotonic_ns()):
            raise AdmissionError(
                "the shared store answers more slowly than a lease lasts. Increase lease_seconds="
            )

    async def _renew(self) -> None:
        async with self._renewing:
            renewal = self.holding.asks(self._clock.monotonic_ns())
            try:
                answer = await self.tables.renew(self.info, renewal.lease)
            except StoreError as error:
                self.holding.not_renewed(self._clock.monotonic_ns())
                self._reason = str(error)
                raise
            self._reason = ""
            self._requested_sessions = tuple(answer.wanted)
            lost = self.holding.renewed(renewal, answer)
        for session_id, epoch in lost.items():
            self._bus.publish(SessionLost(epoch=epoch, how="taken_over"), session_id=session_id)
            self.local.lose(session_id, taken_over(session_id))
        self._note_lease()

    def _note_lease(self) -> None:
        """Publish an event when the lease has expired, and when the node has a lease again."""
        lives = self.holding.lives(self._clock.monotonic_ns())
        if lives != self._reported_loss:
            return
        self._reported_loss = not lives
        _log.warning("lease_changed", lives=lives, reason=self._reason)
        self._bus.publish(
            NodeLeaseChanged(
                node=self.info.node,
                name=self.info.name,
                current="held" if lives else "over",
                reason=self._reason,
            )
        )

    async def _give_away(self) -> None:
        owned = self.holding.sessions
        to_release = [each for each in self._requested_sessions if each in owned and self.local.is_idle(each)]
        for session_id in to_release:
            self._bus.publish(SessionLost(epoch=owned[session_id], how="handed_over"), session_id=session_id)
            self.local.lose(session_id, taken_over(session_id))
        unheld = {each for each in owned if not self.local.is_open(each)}
        to_release += sorted((unheld & self._unheld).difference(to_release))
        if to_release and await self.local.ship():
            for session_id in to_release:
                if not self.local.is_open(session_id):
                    await self.release(session_id)
        self._unheld = unheld

    def _claimed(self, session_id: str, found: Claimed) -> None:
        self.holding.claimed(session_id, found.epoch)
        self._deleted.discard(session_id)
        previous = found.previous
        if previous is None or previous.node == self.info.node:
            return
        self._bus.publish(
            SessionClaimed(
                node=self.info.node,
                name=self.info.name,
                epoch=found.epoch,
                previous=previous.node,
                how="released" if previous.released else "lease_over",
            ),
            session_id=session_id,
        )


def taken_over(session_id: str) -> str:
    """The error text for users of a session that belongs to another node."""
    return f"session {session_id!r} was taken over by another node. To continue it here, resume it"


def _held_by(session_id: str, session: HeldSession) -> str:
    owner = session.by
    return (
        f"session {session_id!r} is owned by node {owner.name or owner.node}, which is running a turn. "
        f"Its lease lasts for {owner.seconds_left:.0f} s. Try again after its turn"
    )


def _cannot_ask(session_id: str, error: StoreError) -> str:
    which = f"session {session_id!r}" if session_id else "a session"
    return (
        f"can't read the owner of {which} from the shared store ({error}), and another node may own it "
        f"by now. Calls without a session continue. Try again when the store is back"
    )
