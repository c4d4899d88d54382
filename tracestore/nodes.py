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

# --- Shared budgets --- An account belongs to one budget and one session, provider, model or value of a tag. In
# each slot of the budget's window a node has a grant, its **slice**. It spends the slice without a request to the
# store. An account's total is the sum of all slices, of living and dead nodes, plus the trace's amount for runs
# without a slice:
#
#   spent, in the trace, by runs without a slice  +  slices of all nodes  <=  limit
#
# A slice is granted whole or not at all. The slice of a dead node counts in full until its calls are in the trace.
# Then it is deleted and the trace is counted again, in one transaction.


Allotment: TypeAlias = tuple[int, int]
"""Money in nano-USD, and tokens."""


class Slot(msgspec.Struct, frozen=True):
    """A stretch of a budget's window, in microseconds since the epoch."""

    start_us: int
    """The first moment."""
    forgotten_us: int
    """The time after which it does not count. A later grant may extend it."""


class AccountScope(Protocol):
    """How the calls of one account are counted. Pure."""

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
        """The calls of the trace that count at a moment; None if the trace doesn't count."""
        ...

    def counted_slot(self, query: SpendingQuery, number: int, now_us: int) -> Slot:
        """The slot for a slot number in the result of `query`."""
        ...


class SliceRequest(msgspec.Struct, frozen=True):
    """A requested slice."""

    scope: AccountScope
    slot: Slot
    up_to: Allotment
    """The size that the slice must have at least."""
    more: Allotment = (0, 0)
    """A further amount that the node expects to use soon. If the account has enough left, it gets a part of this
    amount.
    """
    forced: bool = False
    """Whether the node has admitted calls already, while the store could not be reached."""


class AccountBalance(msgspec.Struct, frozen=True):
    """The state of an account for a node."""

    slot: Slot
    """The current slot."""
    granted: Allotment
    """The node's slice in that slot."""
    spent: Allotment
    """The amount in the trace, in all slots that count."""
    others: Allotment
    """The slices of other nodes, in all slots that count."""


class Answer(msgspec.Struct, frozen=True):
    """The state of the requested accounts, in the order of the request."""

    now_us: int
    """The time of the store's clock, in microseconds since the epoch."""
    balances: Sequence[AccountBalance]
    wanted: Sequence[bool] = ()
    """For each account, whether it has just refused a call of another node."""


class SliceRow(msgspec.Struct, frozen=True, kw_only=True):
    """A slice in the store."""

    budget: str
    """The budget, in the words of `AccountScope.budget`."""
    value: str
    """The session, provider, model or value of a tag; empty for the account of all."""
    node: str
    """The node: the run of its engine."""
    name: str
    """The node's name, for people; empty if the node is no longer known."""
    lives: bool
    """Whether the node is running. A stopped node's slice counts until all its calls are in the trace."""
    nano_usd: int
    """The money that it may spend in the slot."""
    tokens: int
    """The tokens that it may use in the slot."""


SliceRequests: TypeAlias = Callable[[int], Sequence[SliceRequest]]
"""The slices to request at a moment of the store's clock, in the order of `by_name`.

It is pure, and is called within the transaction.
"""


_ONE_BY_ONE = 16
"""The number of calls that must fit into an account. With less room, a node gets only the amount that its call
needs.
"""


def by_name(scope: AccountScope) -> tuple[str, str]:
    """The order in which all transactions lock accounts."""
    return scope.budget, scope.value


def granted(request: SliceRequest, balance: AccountBalance, own: Allotment) -> Allotment | None:
    """The size of a requested slice; None if the account has too little left.

    Room for fifteen more calls of this size is reserved for all nodes. Of the rest, a node gets at most a quarter
    for its expected use. So an idle node holds only a small slice, and near the limit calls are admitted one by
    one.
    """
    sizes = []
    for part, limit in enumerate(request.scope.limits):
        need = max(0, request.up_to[part] - balance.granted[part])
        if limit is None or request.forced:
            sizes.append(balance.granted[part] + need)
            continue
        left = limit - balance.spent[part] - balance.others[part] - own[part]
        if need > left:
            return None
        sizes.append(
            balance.granted[part] + need + min(request.more[part], max(0, left - _ONE_BY_ONE * need) // 4)
        )
    return sizes[0], sizes[1]


class LedgerTables(Protocol):
    """The rows. Every method raises StoreError while they can't be reached.

    Each node numbers its changes. A change that arrives after one with a higher number has no effect, so a
    statement that outlives its connection does no harm.
    """

    async def grant(self, node: str, number: int, requests: SliceRequests) -> Answer:
        """Give a node all the slices that it requests, or none."""
        ...

    async def give_back(
        self, node: str, number: int, slices: Sequence[tuple[AccountScope, Slot, Allotment]]
    ) -> None:
        """Shrink slices of a node to the size that it still needs."""
        ...

    async def look(self, node: str, scopes: Sequence[AccountScope]) -> Answer:
        """The state of accounts. Nothing changes."""
        ...

    async def recount(self, scopes: Sequence[AccountScope]) -> None:
        """Count the accounts again from the trace, because prices have changed."""
        ...

    async def settle(self, node: str, scopes: Sequence[AccountScope]) -> None:
        """Release all slices of a node with all its calls in the trace, and count the trace again."""
        ...

    async def settle_dead(self, scopes: Callable[[str, str], AccountScope | None]) -> int:
        """Release the slices of stopped nodes whose calls are all in the trace. Returns how many were released."""
        ...


# --- Nodes and owners of sessions --- A node counts as running while its lease is valid, by the database's clock.
# A session has one owner at a time. A takeover raises the session's epoch, and every message carries its epoch. So
# the store can refuse late messages of a former owner.


class NodeInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A node, as it describes itself."""

    node: str
    """The run of its engine, which is its identity."""
    cluster: str = "callboard"
    name: str = ""
    """The node's name, for people."""
    lease_seconds: float = 15.0
    """The length of its lease."""


class NodeRow(msgspec.Struct, frozen=True, kw_only=True):
    """A node in the store."""

    node: str
    """The run of its engine."""
    cluster: str
    name: str
    """The node's name, for people."""
    lives: bool
    """Whether its lease is valid."""
    seconds_left: float
    """Seconds until the end of its lease; negative if it has expired."""
    sessions: int
    """The number of sessions that it owns."""


class Renewed(msgspec.Struct, frozen=True, kw_only=True):
    """A renewed lease."""

    lease: int
    """The number of the lease. If it is unchanged, no session was taken from the node."""
    owned: Mapping[str, int] | None = None
    """The sessions that the node still owns, with their epochs, if the number differs from the node's."""
    wanted: Sequence[str] = ()
    """The node's sessions that another node waits for."""


class Owner(msgspec.Struct, frozen=True, kw_only=True):
    node: str
    """The run of the owner's engine."""
    name: str = ""
    """The owner's name, for people; empty if the node is no longer known."""
    epoch: int
    """The number of the claim. Each claim gets a higher number than all earlier claims of the session."""
    lives: bool
    """Whether the owner's lease is valid."""
    seconds_left: float = 0.0
    """Seconds until the end of that lease."""
    released: bool = False
    """Whether it has released the session."""


class Claimed(msgspec.Struct, frozen=True, kw_only=True):
    """A session that the claimant now owns."""

    epoch: int
    """The epoch from now on."""
    previous: Owner | None = None
    """The previous owner; None for a session without one."""


class HeldSession(msgspec.Struct, frozen=True, kw_only=True):
    """A session that can't be claimed, because its owner is running."""

    by: Owner
    """The owner."""


class TurnEnding(msgspec.Struct, frozen=True, kw_only=True):
    """The end of a turn, decided by another node than the one that ran it."""

    stream_id: str
    """The turn's id, and its stream's."""
    session_id: str
    """The session; empty for a turn without one."""
    epoch: int
    """The epoch in which the turn ran."""
    status: TurnStatus
    decided_by: str


class OwnershipTables(Protocol):
    """The shared rows. Each method is one transaction; each failure is a StoreError."""

    async def renew(self, node: NodeInfo, known: int) -> Renewed:
        """Renew a node's lease from the current time of the database."""
        ...

    async def leave(self, node: str) -> None:
        """Mark a node as stopped, so that others need not wait for the end of its lease."""
        ...

    async def claim(self, session_id: str, node: str, *, request_takeover: bool = False) -> Claimed | HeldSession:
        """Give a session to a node, unless another owner is alive and has not released it."""
        ...

    async def wanted(self, node: str) -> Sequence[str]:
        """The sessions of a node that another node waits for."""
        ...

    async def release(self, node: str, sessions: Mapping[str, int]) -> None:
        """Release sessions, by their epochs. A session that now has another owner is not changed."""
        ...

    async def forget(self, node: str, session_id: str, epoch: int) -> None:
        """Release a deleted session. Its rows are removed."""
        ...

    async def owner(self, session_id: str) -> Owner | None:
        """The owner of a session; None if it was never claimed, or was deleted since."""
        ...

    async def ending(self, stream_id: str) -> TurnEnding | None:
        """The decided end of a turn; None if it is undecided."""
        ...

    async def end_turn(self, ending: TurnEnding, owner: str) -> TurnEnding | None:
        """Decide how a turn ended. This happens once, and only if the turn's owner can no longer end it."""
        ...

    async def nodes(self) -> list[NodeRow]:
        """All nodes in the store, the living ones first."""
        ...


# --- Probes ---
# One node at a time probes an unavailable provider or model, under a lease.


class ProbeTables(Protocol):
    """The rows. Every method raises StoreError while they can't be reached."""

    async def take(self, node: str, provider: str, model: str, seconds: float) -> float:
        """Take the lease for a probe, or renew it."""
        ...

    async def release(self, node: str, provider: str, model: str) -> None:
        """Release a lease, if the node has it."""
        ...
