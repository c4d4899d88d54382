"""The lease of a node and the sessions that it holds, as the node itself can know them.

    none ──renewed──▶ held ──time──▶ over ──renewed──▶ held

    none   the node has not said yet that it lives
    held   it may act for its sessions, without asking anybody
    over   somebody else may have taken them: it has to ask first

The database's lease begins when the database carries out the renewal, which is after the node has asked for it.
So a node that counts from the moment before it asked, on its own monotonic clock, believes in its lease no longer
than the database does. Nobody's clocks are compared.

Leases are numbered, because an answer may get lost: the renewal after it is no break any more, but what was taken
before it the node hasn't heard of.

It has no clock and no I/O. Times are nanoseconds of one monotonic clock.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from callboard.tracestore.nodes import Renewed

_RENEWALS = 3
"""The times that a lease is renewed while it lasts."""

_TRIES = 15
"""The times that a renewal that failed is tried while a lease lasts."""


class Asked(msgspec.Struct, frozen=True):
    """A renewal that is under way."""

    at_ns: int
    """The moment before it was sent."""
    known: int
    """The number of the lease that the node knew of then."""
    held: Mapping[str, int]
    """The sessions that the node held then, with their epochs."""


class Holding:
    """What a node holds.

    Args:
        lease_seconds: The length of its lease.
    """

    def __init__(self, lease_seconds: float) -> None:
        self.breaks = 0
        """How often somebody else may have taken sessions, because the lease was over in between."""
        self._lease_ns = round(lease_seconds * 1e9)
        self._lease = 0
        self._until_ns: int | None = None
        self._next_ns = 0
        self._sessions: dict[str, int] = {}

    @property
    def sessions(self) -> Mapping[str, int]:
        """The sessions that it holds, with their epochs."""
        return self._sessions

    def epoch_of(self, session_id: str) -> int:
        """The epoch in which it holds a session; 0 if it doesn't."""
        return self._sessions.get(session_id, 0)

    def lives(self, now_ns: int) -> bool:
        """Whether its lease lasts, for all that it knows."""
        return self._until_ns is not None and now_ns < self._until_ns

    def may_act(self, session_id: str, epoch: int, now_ns: int) -> bool:
        """Whether it may act for a session that it claimed in that epoch."""
        return self._sessions.get(session_id) == epoch and self.lives(now_ns)

    def seconds_left(self, now_ns: int) -> float:
        """Seconds until the end of the lease; 0 if it is over."""
        return 0.0 if self._until_ns is None else max(0, self._until_ns - now_ns) / 1e9

    def pause(self, now_ns: int) -> float:
        """Seconds until something is to be done: a renewal, or the end of the lease is to be noticed."""
        moments = [self._next_ns]
        if self._until_ns is not None and self._until_ns > now_ns:
            moments.append(self._until_ns)
        return max(0, min(moments) - now_ns) / 1e9

    # -- What happens

    def asks(self, now_ns: int) -> Asked:
        """A renewal is about to be sent."""
        return Asked(now_ns, self._lease, dict(self._sessions))

    def renewed(self, asked: Asked, answer: Renewed) -> dict[str, int]:
        """A renewal was answered.

        Returns:
            The sessions that were lost, with their epochs. They aren't held any more.
        """
        if self._until_ns is None or asked.at_ns + self._lease_ns > self._until_ns:
            self._until_ns = asked.at_ns + self._lease_ns
        self._next_ns = asked.at_ns + self._lease_ns // _RENEWALS
        if answer.owned is None:
            return {}
        self._lease = max(self._lease, answer.lease)
        self.breaks += 1
        lost = {
            session_id: epoch
            for session_id, epoch in asked.held.items()
            if answer.owned.get(session_id) != epoch and self._sessions.get(session_id) == epoch
        }
        for session_id in lost:
            del self._sessions[session_id]
        return lost

    def not_renewed(self, now_ns: int) -> None:
        """A renewal has failed. It is tried again soon."""
        self._next_ns = now_ns + self._lease_ns // _TRIES

    def claimed(self, session_id: str, epoch: int) -> None:
        """A session is the node's own from now on."""
        self._sessions[session_id] = max(epoch, self._sessions.get(session_id, 0))

    def let_go(self, session_id: str) -> int:
        """A session is not the node's own any more.

        Returns:
            Its epoch; 0 if it wasn't.
        """
        return self._sessions.pop(session_id, 0)
