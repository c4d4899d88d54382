"""Models of the tables that the nodes of a cluster share: plain dictionaries with the semantics of the statements.

The simulation drives the machines of production against them. tests/tracestore/nodes/ runs the same cases on a
model and on PostgreSQL.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from tracestore.nodes.ownership import Claimed, Held, NodeInfo, NodeRow, Owner, Renewed, TurnEnding
from tracestore.postgres.nodes.ownership import FORGOTTEN_SECONDS, WANTED_SECONDS


class _Lease(msgspec.Struct):
    info: NodeInfo
    number: int
    until: float


class _Owned(msgspec.Struct):
    node: str
    epoch: int
    released: bool = False
    wanted_at: float | None = None


class OwnershipModel:
    """`OwnershipTables` in memory. Its time is `now`, in seconds, which its user moves on."""

    def __init__(self) -> None:
        self.now = 0.0
        self.started = -1e9
        """The time at which the server was started."""
        self._leases: dict[str, _Lease] = {}
        self._owned: dict[str, _Owned] = {}
        self._endings: dict[str, TurnEnding] = {}

    async def renew(self, node: NodeInfo, known: int) -> Renewed:
        before = self._leases.get(node.node)
        broken = (self._left(node.node) or 0) <= 0
        number = known + 1 if before is None else before.number + broken
        self._leases[node.node] = _Lease(node, number, self.now + node.lease_seconds)
        wanted = await self.wanted(node.node)
        if number == known:
            return Renewed(lease=number, wanted=wanted)
        for name, lease in list(self._leases.items()):
            if lease.until < self.now - FORGOTTEN_SECONDS:
                del self._leases[name]
        owned = {
            session_id: row.epoch
            for session_id, row in self._owned.items()
            if row.node == node.node and not row.released
        }
        return Renewed(lease=number, owned=owned, wanted=wanted)

    async def leave(self, node: str) -> None:
        self._leases.pop(node, None)

    async def claim(self, session_id: str, node: str, *, wants: bool = False) -> Claimed | Held:
        row = self._owned.get(session_id)
        if row is None:
            self._owned[session_id] = _Owned(node, 1)
            return Claimed(epoch=1)
        owner = self._owner(row)
        if row.node != node and owner.lives and not row.released:
            if wants:
                row.wanted_at = self.now
            return Held(by=owner)
        self._owned[session_id] = _Owned(node, row.epoch + 1)
        return Claimed(epoch=row.epoch + 1, previous=owner)

    async def wanted(self, node: str) -> Sequence[str]:
        return [
            session_id
            for session_id, row in self._owned.items()
            if row.node == node and not row.released
            if row.wanted_at is not None and row.wanted_at > self.now - WANTED_SECONDS
        ]

    async def release(self, node: str, sessions: Mapping[str, int]) -> None:
        for session_id, epoch in sessions.items():
            row = self._owned.get(session_id)
            if row is not None and (row.node, row.epoch) == (node, epoch):
                row.released, row.wanted_at = True, None

    async def owner(self, session_id: str) -> Owner | None:
        row = self._owned.get(session_id)
        return None if row is None else self._owner(row)

    async def ending(self, stream_id: str) -> TurnEnding | None:
        return self._endings.get(stream_id)

    async def end_turn(self, ending: TurnEnding, owner: str) -> TurnEnding | None:
        if ending.stream_id in self._endings:
            return self._endings[ending.stream_id]
        row = self._owned.get(ending.session_id)
        theirs = row is None or (row.node, row.epoch) == (owner, ending.epoch)
        if theirs and (self._left(owner) or 0) > 0:
            return None
        self._endings[ending.stream_id] = ending
        return ending

    async def nodes(self) -> list[NodeRow]:
        rows = [
            NodeRow(
                node=name,
                cluster=lease.info.cluster,
                name=lease.info.name,
                lives=(self._left(name) or 0) > 0,
                seconds_left=self._left(name) or 0,
                sessions=sum(row.node == name and not row.released for row in self._owned.values()),
            )
            for name, lease in self._leases.items()
        ]
        return sorted(rows, key=lambda row: (-row.seconds_left, row.node))

    def _left(self, node: str) -> float | None:
        lease = self._leases.get(node)
        if lease is None:
            return None
        return max(lease.until, self.started + lease.info.lease_seconds) - self.now

    def _owner(self, row: _Owned) -> Owner:
        lease, left = self._leases.get(row.node), self._left(row.node) or 0.0
        return Owner(
            node=row.node,
            name="" if lease is None else lease.info.name,
            epoch=row.epoch,
            lives=left > 0,
            seconds_left=left,
            released=row.released,
        )
