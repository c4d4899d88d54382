"""The shared rows of a cluster's nodes, and the interfaces that a database implements for them.

There are three parts: the ledger of shared budgets, the ownership of sessions, and the probes of unavailable
providers. Only `callboard.tracestore.postgres` implements them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeAlias

import msgspec

from callboard.bus.events.sessions import TurnStatus

from .rows import SpendingQuery

# --- Shared budgets ---
#
# An account belongs to one budget and one session, provider, model or value of a tag. In each slot of the budget's
# window, a node has a grant, its **slice**. The node spends the slice without a request to the store. An account's
# total is the sum of all slices, of living and dead nodes, plus the trace's amount for runs without a slice:
#
# spent, in the trace, by runs without a slice + slices of all nodes <= limit
#
# A slice is granted whole or not at all. The slice of a dead node is counted in full until the node's calls are in
# the trace. Then the slice is deleted and the trace is counted again, in one transaction.


Allotment: TypeAlias = tuple[int, int]
"""An amount: money in nano-USD, and tokens."""


class Slot(msgspec.Struct, frozen=True):
    """A time range of a budget's window, in microseconds since the epoch."""

    start_us: int
    """The start of the range."""
    forgotten_us: int
    """The time from which the slot is no longer counted. A later grant may extend this time."""


class AccountScope(Protocol):
    """The rule by which the calls of one account are counted. Pure."""

    @property
    def budget(self) -> str:
        """The text of the budget's scope and window, equal on every node."""
        ...

    @property
    def value(self) -> str:
        """The session, provider, model or value of a tag; empty for the account of all."""
        ...

    @property
    def limits(self) -> tuple[int | None, int | None]:
        """The most money in nano-USD, and the most tokens; None means no limit."""
        ...

    def slot(self, now_us: int) -> Slot: ...

    def query(self, now_us: int) -> SpendingQuery | None:
        """The query for the calls in the trace that count at a time; None if the trace doesn't count."""
        ...

    def counted_slot(self, query: SpendingQuery, number: int, now_us: int) -> Slot:
        """The slot with a given slot number, among the slots in the result of `query`."""
        ...


class SliceRequest(msgspec.Struct, frozen=True):
    """A node's request for a slice of an account."""

    scope: AccountScope
    slot: Slot
    up_to: Allotment
    """The least size of the slice."""
    more: Allotment = (0, 0)
    """Another amount that the node expects to use soon. If the account has enough left, the node gets a part of
    this amount.
    """
    forced: bool = False
    """Whether the node has already admitted calls while the store could not be reached."""


class AccountBalance(msgspec.Struct, frozen=True):
    """The state of an account, from the view of one node."""

    slot: Slot
    granted: Allotment
    """The node's slice in the current slot."""
    spent: Allotment
    """The amount that the trace contains, in all counted slots."""
    others: Allotment
    """The slices of other nodes, in all slots that count."""


class Answer(msgspec.Struct, frozen=True):
    """The state of the requested accounts, in the order of the request."""

    now_us: int
    """The time of the store's clock, in microseconds since the epoch."""
    balances: Sequence[AccountBalance]
    wanted: Sequence[bool] = ()
    """For each account, whether it has recently refused a call of another node."""


class SliceRow(msgspec.Struct, frozen=True, kw_only=True):
    budget: str
    """The budget, in the form of `AccountScope.budget`."""
    value: str
    """The session, provider, model or value of a tag; empty for the account of all."""
    node: str
    """The node's id, which is the run id of its engine."""
    name: str
    """The node's name, for people; empty if the node is no longer known."""
    lives: bool
    """Whether the node is running. A stopped node's slice counts until all its calls are in the trace."""
    nano_usd: int
    """The money that the node may spend in the slot, in nano-USD."""
    tokens: int


SliceRequests: TypeAlias = Callable[[int], Sequence[SliceRequest]]
"""A function that returns the slices to request at a time of the store's clock, in the order of `by_name`. It is
pure, and is called within the transaction.
"""


_ONE_BY_ONE = 16
"""The number of calls that must fit into an account. With less room, a node gets only the amount that its call
needs.
"""


def by_name(scope: AccountScope) -> tuple[str, str]:
    """The order in which all transactions lock accounts."""
    return scope.budget, scope.value


def granted(request: SliceRequest, balance: AccountBalance, allotment: Allotment) -> Allotment | None:
    """The size of a requested slice; None if the account has too little left.

    Room for fifteen more calls of this size is reserved for all nodes. Of the rest, a node gets at most a quarter
    for its expected use. So an idle node has only a small slice, and near the limit, calls are admitted one by
    one.
    """
    sizes = []
    for part, limit in enumerate(request.scope.limits):
        need = max(0, request.up_to[part] - balance.granted[part])
        if limit is None or request.forced:
            sizes.append(balance.granted[part] + need)
            continue
        available = limit - balance.spent[part] - balance.others[part] - allotment[part]
        if need > available:
            return None
        sizes.append(
            balance.granted[part] + need + min(request.more[part], max(0, available - _ONE_BY_ONE * need) // 4)
        )
    return sizes[0], sizes[1]


class LedgerTables(Protocol):
    """The shared rows of budgets. Every method raises StoreError while the store can't be reached.

    Each node numbers its changes. A change with a lower number than an earlier one has no effect. So a statement
    does no harm if it arrives after its connection is lost.
    """

    async def grant(self, node: str, number: int, requests: SliceRequests) -> Answer:
        """Give a node all the slices that it requests, or none."""
        ...

    async def give_back(
        self, node: str, number: int, slices: Sequence[tuple[AccountScope, Slot, Allotment]]
    ) -> None:
        """Shrink slices of a node to the size that the node still needs."""

    async def look(self, node: str, scopes: Sequence[AccountScope]) -> Answer:
        """Return the state of accounts, without a change."""
        ...

    async def recount(self, scopes: Sequence[AccountScope]) -> None:
        """Count the accounts again from the trace, because prices have changed."""

    async def settle(self, node: str, scopes: Sequence[AccountScope]) -> None:
        """Release all slices of a node whose calls are all in the trace. Then count the trace again."""

    async def settle_dead(self, scopes: Callable[[str, str], AccountScope | None]) -> int:
        """Release the slices of stopped nodes whose calls are all in the trace. Returns how many were released."""
        ...


# --- Nodes and owners of sessions ---
#
# A node is treated as running while its lease is valid, by the database's clock. A session has one owner at a
# time. A takeover raises the session's epoch, and every message carries its epoch. So the store can refuse late
# messages of a former owner.


class NodeInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A node's description of itself."""

    node: str
    """The run id of the node's engine, which is the node's id."""
    cluster: str = "callboard"
    name: str = ""
    """The node's name, for people."""
    lease_seconds: float = 15.0
    """The length of the node's lease, in seconds."""


class NodeRow(msgspec.Struct, frozen=True, kw_only=True):
    node: str
    """The run id of the node's engine, which is the node's id."""
    cluster: str
    name: str
    """The node's name, for people."""
    lives: bool
    """Whether the node's lease is valid."""
    seconds_left: float
    """Seconds until the end of the node's lease; negative if the lease has expired."""
    sessions: int
    """The number of sessions that the node owns."""


class Renewed(msgspec.Struct, frozen=True, kw_only=True):
    lease: int
    """The number of the lease. If it is unchanged, no session was taken from the node."""
    owned: Mapping[str, int] | None = None
    """The sessions that the node still owns, with their epochs. None if the number of the lease is unchanged."""
    wanted: Sequence[str] = ()
    """The node's sessions that another node waits for."""


class Owner(msgspec.Struct, frozen=True, kw_only=True):
    node: str
    """The owner's id, which is the run id of its engine."""
    name: str = ""
    """The owner's name, for people; empty if the node is no longer known."""
    epoch: int
    """The number of the claim. Each claim gets a higher number than all earlier claims of the session."""
    lives: bool
    """Whether the owner's lease is valid."""
    seconds_left: float = 0.0
    """Seconds until the end of the owner's lease."""
    released: bool = False


class Claimed(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a claim that succeeded."""

    epoch: int
    """The new epoch of the session."""
    previous: Owner | None = None
    """The previous owner; None if the session had no owner."""


class HeldSession(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a claim that failed, because the session's owner is running."""

    by: Owner


class TurnEnding(msgspec.Struct, frozen=True, kw_only=True):
    """The end of a turn, as decided by a node that did not run the turn."""

    stream_id: str
    """The id of the turn and of its stream."""
    session_id: str
    """The id of the session; empty for a turn without one."""
    epoch: int
    """The epoch in which the turn ran."""
    status: TurnStatus
    decided_by: str


class OwnershipTables(Protocol):
    """The shared rows of nodes and owners. Each method is one transaction. Each failure is a StoreError."""

    async def renew(self, node: NodeInfo, previous_lease: int) -> Renewed:
        """Renew a node's lease, from the database's current time."""
        ...

    async def leave(self, node: str) -> None:
        """Mark a node as stopped, so that other nodes need not wait until its lease expires."""

    async def claim(self, session_id: str, node: str, *, request_takeover: bool = False) -> Claimed | HeldSession:
        """Give a session to a node, unless another owner is running and has not released the session."""
        ...

    async def requested_sessions(self, node: str) -> Sequence[str]:
        """The sessions of a node that another node waits for."""
        ...

    async def release(self, node: str, sessions: Mapping[str, int]) -> None:
        """Release sessions, given with their epochs. A session that now has another owner is not changed."""

    async def forget(self, node: str, session_id: str, epoch: int) -> None:
        """Release a deleted session, and delete its rows."""

    async def owner(self, session_id: str) -> Owner | None:
        """The owner of a session; None if the session was never claimed, or was deleted since its last claim."""
        ...

    async def ending(self, stream_id: str) -> TurnEnding | None:
        """The decision about the end of a turn; None if there is none."""
        ...

    async def end_turn(self, ending: TurnEnding, owner: str) -> TurnEnding | None:
        """Decide once how a turn ended, if the turn's owner can no longer end it. Returns the decision."""
        ...

    async def nodes(self) -> list[NodeRow]:
        """All nodes in the store, running nodes first."""
        ...


# --- Probes ---
# One node at a time probes an unavailable provider or model, under a lease.


class ProbeTables(Protocol):
    """The shared leases for probes. Every method raises StoreError while the store can't be reached."""

    async def take(self, node: str, provider: str, model: str, seconds: float) -> float:
        """Take or renew the lease for a probe. Return 0, or the seconds until another node's lease expires."""
        ...

    async def release(self, node: str, provider: str, model: str) -> None:
        """Release the lease of a probe, if the node has it."""
