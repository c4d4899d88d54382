"""Models of the tables that the nodes of a cluster share: plain dictionaries with the semantics of the statements.

The simulation drives the machines of production against them. tests/tracestore/nodes/ runs the same cases on a
model and on PostgreSQL.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec

from callboard.tracestore.nodes import (
    AccountBalance,
    AccountScope,
    Allotment,
    Answer,
    Claimed,
    HeldSession,
    NodeInfo,
    NodeRow,
    Owner,
    Renewed,
    SliceRequest,
    SliceRequests,
    Slot,
    TurnEnding,
    granted,
)
from callboard.tracestore.postgres.ledger import WANTED_SECONDS as WANTED_FOR_SECONDS
from callboard.tracestore.postgres.nodes import FORGOTTEN_SECONDS, WANTED_SECONDS


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
    """`OwnershipTables` in memory. Its time is `now` in seconds, which its user sets."""

    def __init__(self) -> None:
        self.now = 0.0
        self.started = -1e9
        """The time of the server's start."""
        self._leases: dict[str, _Lease] = {}
        self._owned: dict[str, _Owned] = {}
        self._of_node: dict[str, dict[str, _Owned]] = {}
        self._endings: dict[str, TurnEnding] = {}
        self._claims = 0

    async def renew(self, node: NodeInfo, previous_lease: int) -> Renewed:
        before = self._leases.get(node.node)
        number = previous_lease + 1 if before is None else before.number + (before.until <= self.now)
        self._leases[node.node] = _Lease(node, number, self.now + node.lease_seconds)
        requested = await self.requested_sessions(node.node)
        if number == previous_lease:
            return Renewed(lease=number, wanted=requested)
        for name, lease in list(self._leases.items()):
            if lease.until < self.now - FORGOTTEN_SECONDS:
                del self._leases[name]
        rows = self._of_node.get(node.node, {})
        owned = {session_id: row.epoch for session_id, row in rows.items() if not row.released}
        return Renewed(lease=number, owned=owned, wanted=requested)

    async def leave(self, node: str) -> None:
        self._leases.pop(node, None)

    async def claim(self, session_id: str, node: str, *, request_takeover: bool = False) -> Claimed | HeldSession:
        row = self._owned.get(session_id)
        if row is None:
            return Claimed(epoch=self._own(session_id, node).epoch)
        owner = self._owner(row)
        if row.node != node and owner.lives and not row.released:
            if request_takeover:
                row.wanted_at = self.now
            return HeldSession(by=owner)
        del self._of_node[row.node][session_id]
        return Claimed(epoch=self._own(session_id, node).epoch, previous=owner)

    async def requested_sessions(self, node: str) -> Sequence[str]:
        return [
            session_id
            for session_id, row in self._of_node.get(node, {}).items()
            if not row.released
            if row.wanted_at is not None and row.wanted_at > self.now - WANTED_SECONDS
        ]

    async def release(self, node: str, sessions: Mapping[str, int]) -> None:
        for session_id, epoch in sessions.items():
            row = self._owned.get(session_id)
            if row is not None and (row.node, row.epoch) == (node, epoch):
                row.released, row.wanted_at = True, None

    async def forget(self, node: str, session_id: str, epoch: int) -> None:
        row = self._owned.get(session_id)
        if row is not None and (row.node, row.epoch) == (node, epoch):
            del self._owned[session_id], self._of_node[node][session_id]

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

    def _own(self, session_id: str, node: str) -> _Owned:
        self._claims += 1
        row = self._owned[session_id] = _Owned(node, self._claims)
        self._of_node.setdefault(node, {})[session_id] = row
        return row

    def _left(self, node: str) -> float | None:
        lease = self._leases.get(node)
        if lease is None:
            return None
        return max(lease.until, self.started + lease.info.lease_seconds) - self.now

    def _owner(self, row: _Owned) -> Owner:
        lease, left = self._leases.get(row.node), self._left(row.node) or 0.0
        return Owner(
            node=row.node, name="" if lease is None else lease.info.name, epoch=row.epoch, lives=left > 0,
            seconds_left=left, released=row.released,
        )  # fmt: skip


class _Slice(msgspec.Struct):
    slot: Slot
    size: Allotment
    number: int


class _SharedAccount(msgspec.Struct):
    slices: dict[tuple[int, str], _Slice] = msgspec.field(default_factory=dict)
    """The slices, by the slot's first moment and the node."""
    spent: dict[Slot, Allotment] = msgspec.field(default_factory=dict)
    counted: bool = False
    wanted_at: float = -1e9


class LedgerModel:
    """`LedgerTables` in memory. Its time is `now` in seconds, which its user sets.

    The trace is a list of amounts: the run, the value, the time, money and tokens.
    """

    def __init__(self) -> None:
        self.now = 0.0
        self.trace: list[tuple[str, str, int, int, int]] = []
        self.dead: set[str] = set()
        """Nodes that have ended, with all their calls in the trace."""
        self._accounts: dict[tuple[str, str], _SharedAccount] = {}

    async def grant(self, node: str, number: int, wants: SliceRequests) -> Answer:
        now_us = self._now_us
        asked = wants(now_us)
        sizes = [self._size(want, node, number) for want in asked]
        if None not in sizes:
            for want, size in zip(asked, sizes, strict=True):
                assert size is not None
                slices, key = self._account(want.scope).slices, (want.slot.start_us, node)
                if key not in slices or slices[key].number < number:
                    slices[key] = _Slice(want.slot, size, number)
        return Answer(now_us, [self._balance(want.scope, want.slot, node) for want in asked])

    async def give_back(
        self, node: str, number: int, slices: Sequence[tuple[AccountScope, Slot, Allotment]]
    ) -> None:
        for scope, slot, used in slices:
            found = self._account(scope).slices.get((slot.start_us, node))
            if found is not None and found.number < number:
                found.size = min(found.size[0], used[0]), min(found.size[1], used[1])
                found.number = number

    async def look(self, node: str, scopes: Sequence[AccountScope]) -> Answer:
        now_us = self._now_us
        stands = [self._balance(scope, scope.slot(now_us), node) for scope in scopes]
        accounts = [self._accounts.get((scope.budget, scope.value)) for scope in scopes]
        wanted = [each is not None and each.wanted_at > self.now - WANTED_FOR_SECONDS for each in accounts]
        return Answer(now_us, stands, wanted)

    async def recount(self, scopes: Sequence[AccountScope]) -> None:
        for scope in scopes:
            self._count(self._account(scope), scope)

    async def settle(self, node: str, scopes: Sequence[AccountScope]) -> None:
        for scope in scopes:
            account = self._account(scope)
            for key in [key for key in account.slices if key[1] == node]:
                del account.slices[key]
            self._count(account, scope)

    async def settle_dead(self, scopes: Callable[[str, str], AccountScope | None]) -> int:
        settled = 0
        for (budget, value), account in self._accounts.items():
            scope = scopes(budget, value)
            for node in {node for _, node in account.slices} & self.dead:
                if scope is not None:
                    await self.settle(node, [scope])
                    settled += 1
        return settled

    def counted(self, scope: AccountScope) -> Allotment:
        """The amounts that count for an account now: from the trace and from all nodes."""
        standing = self._balance(scope, scope.slot(self._now_us), "")
        return standing.spent[0] + standing.others[0], standing.spent[1] + standing.others[1]

    @property
    def _now_us(self) -> int:
        return round(self.now * 1e6)

    def _account(self, scope: AccountScope) -> _SharedAccount:
        account = self._accounts.setdefault((scope.budget, scope.value), _SharedAccount())
        if not account.counted:
            self._count(account, scope)
        return account

    def _count(self, account: _SharedAccount, scope: AccountScope) -> None:
        account.counted = True
        now_us = self._now_us
        account.slices = {key: each for key, each in account.slices.items() if each.slot.forgotten_us > now_us}
        runs = {node for _, node in account.slices}
        account.spent = {}
        for run, value, at_us, nano, tokens in self.trace:
            if value == scope.value and run not in runs and scope.query(now_us) is not None:
                slot = scope.slot(at_us)
                before = account.spent.get(slot, (0, 0))
                account.spent[slot] = before[0] + nano, before[1] + tokens

    def _size(self, want: SliceRequest, node: str, number: int) -> Allotment | None:
        account = self._account(want.scope)
        standing = self._balance(want.scope, want.slot, node)
        mine = [
            each
            for (_, of), each in account.slices.items()
            if of == node and each.slot.forgotten_us > self._now_us
        ]
        if max((each.number for each in mine), default=0) >= number:
            return standing.granted
        own = self._sum([each.size for each in mine])
        size = granted(want, standing, own)
        if size is None:
            account.wanted_at = self.now
        return size

    def _balance(self, scope: AccountScope, slot: Slot, node: str) -> AccountBalance:
        account = self._accounts.get((scope.budget, scope.value)) or _SharedAccount()
        now_us = self._now_us
        counting = {key: each for key, each in account.slices.items() if each.slot.forgotten_us > now_us}
        others = [each.size for (_, of), each in counting.items() if of != node]
        spent = [size for each, size in account.spent.items() if each.forgotten_us > now_us]
        mine = counting.get((slot.start_us, node))
        return AccountBalance(slot, (0, 0) if mine is None else mine.size, self._sum(spent), self._sum(others))

    @staticmethod
    def _sum(sizes: Sequence[Allotment]) -> Allotment:
        return sum(size[0] for size in sizes), sum(size[1] for size in sizes)


class ProbeModel:
    """`tracestore.nodes.ProbeTables` in memory, with a clock of its own."""

    def __init__(self) -> None:
        self.now = 0.0
        """The time of the store's clock, in seconds."""
        self._leases: dict[tuple[str, str], tuple[str, float]] = {}

    async def take(self, node: str, provider: str, model: str, seconds: float) -> float:
        owner, until = self._leases.get((provider, model), (node, 0.0))
        if owner != node and until > self.now:
            return until - self.now
        self._leases[provider, model] = node, self.now + seconds
        return 0.0

    async def release(self, node: str, provider: str, model: str) -> None:
        if self._leases.get((provider, model), ("", 0.0))[0] == node:
            del self._leases[provider, model]
