"""Clients of the gateway: their keys, the models they may use, their budgets, and their rates.

A key has 256 random bits, so one SHA-256 is enough; slow hashes are for passwords, which can be guessed. Only the
hash is stored. `Clients` checks for changes by other processes with one small query, at most once a second, and
also for each unknown key. So a new key works immediately, and a revoked key stops working within a second.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

import anyio
import anyio.lowlevel
import msgspec

from callboard.adapters import TokenUsage
from callboard.bus.errors import RateLimitWaitError, StoreError, StoreUnavailable
from callboard.bus.log import Log
from callboard.bus.values.base import ShortRepr
from callboard.tracestore import Store
from callboard.tracestore.gateway import Client, ClientKey, GatewayChanges, GatewayTables

from ..budgets.budget import Budget
from ..budgets.budgets import loader
from ..budgets.ledger import Ledger
from ..routing.rate_limits import AsyncRateLimiter, RateLimitLease
from ..routing.rate_slots import RateLimiter
from .failures import Failure, FailureKind
from .http import RateHeaders

if TYPE_CHECKING:
    from ..engine import Engine
    from ..runtime.runtime import Runtime

CLIENT_TAG = "client"
"""The tag with the client's name, in the trace and in budgets."""

LOOK_US = 1_000_000
"""Microseconds between two checks for changes of clients."""

SHARE_SECONDS = 0.5
"""Seconds that a request waits in a cluster for this node's share of its client's rate."""

UNLIMITED_USD = 1_000_000_000
"""The limit of a budget that only refuses calls without a price."""

KEY_PREFIX = "cb-"
_SHOWN = 10
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}")

_log = Log("engine.gateway.clients")


class ClientRefused(Exception):
    """A client's request was refused. `failure` has the details."""

    def __init__(self, kind: FailureKind, message: str, *, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.failure = Failure(kind=kind, message=message, retry_after=retry_after)


# --- Keys and settings ---


def issue_key(client: str, now_us: int) -> tuple[str, ClientKey]:
    """Create a key for a client. Returns the key, to show once, and the row to store."""
    key = KEY_PREFIX + secrets.token_urlsafe(32)
    return key, ClientKey(hash=hash_of(key), client=client, prefix=key[:_SHOWN], created_us=now_us)


def hash_of(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()


def check_client(client: Client) -> Client:
    """Return the client. Raises ValueError for an invalid name or setting."""
    if not _NAME.fullmatch(client.name):
        raise ValueError(
            f"{client.name!r} is not a name for a client: use letters, digits and . _ @ -, at most 64 in total"
        )
    for limit in ("requests_per_minute", "tokens_per_minute"):
        value = getattr(client, limit)
        if value is not None and value < 1:
            raise ValueError(f"{limit}={value}: must be at least 1")
    if any(not pattern or pattern != pattern.strip() for pattern in client.models):
        raise ValueError("a pattern of model names is empty or has spaces around it")
    budget_of(client)
    return client


def budget_of(client: Client) -> Budget | None:
    """The budget of a client; None if its spending is unlimited, including calls without a price."""
    nano, unpriced = client.budget_nano_usd, client.unpriced
    if nano is None and unpriced != "refuse":
        return None
    return Budget(
        max_cost_usd=UNLIMITED_USD if nano is None else Decimal(nano).scaleb(-9),
        per=f"tag:{CLIENT_TAG}",
        of=client.name,
        window=client.window,
        zone=client.zone,
        unpriced=unpriced or "refuse",
    )


async def tables_of(runtime: Runtime) -> GatewayTables | None:
    """The gateway's tables. They are in the cluster's shared store, or without a cluster in the engine's trace.

    None if there is no store, or if a host's own store lacks these tables. Raises StoreUnavailable while the trace
    isn't open.
    """
    await runtime.host.start()
    if (shared := runtime.cluster.gateway_tables()) is not None:
        return shared
    store = runtime.store
    if store is not None and not store.is_open:
        raise StoreUnavailable(f"the trace at {store.path} can't be used now")
    tables: GatewayTables | None = getattr(store, "gateway", None)
    return tables


# --- Spending ---


class ClientSpending(ShortRepr, frozen=True, kw_only=True):
    """A client, with the costs of its calls from the trace."""

    client: Client
    keys: tuple[ClientKey, ...] = ()
    """The client's keys that have not expired, the oldest first."""
    calls: int = 0
    """The number of the client's calls."""
    cost_nano_usd: int = 0
    """The known cost of the client's calls, in nano-USD."""
    spent_nano_usd: int | None = None
    """The cost in the budget's current window, including reservations of calls in progress; None without a
    budget.
    """
    left_nano_usd: int | None = None
    """The remaining budget in the current window; None without a budget."""


async def spending_of(store: Store, tables: GatewayTables, now_us: int) -> list[ClientSpending]:
    """All clients by name, with their spending. Raises StoreError."""
    clients, keys = await tables.clients(), await tables.client_keys()
    budgets = {each.name: budget for each in clients if (budget := budget_of(each)) is not None}
    ledger = Ledger(tuple(budgets.values()))
    load = loader(store, "", anyio.lowlevel.checkpoint)
    (await load(ledger.budgets, now_us)).count_in(ledger)
    costs = {row.key[0]: row for row in await store.costs(by=[f"tag:{CLIENT_TAG}"])}
    found = []
    for client in clients:
        row = costs.get(client.name)
        state = None
        if client.budget_nano_usd is not None:
            state = ledger.account(budgets[client.name], client.name).state(now_us)
        remaining = None if state is None else state.left_nano_usd
        found.append(
            ClientSpending(
                client=client,
                keys=tuple(
                    key
                    for key in keys
                    if key.client == client.name and (key.expires_us is None or key.expires_us > now_us)
                ),
                calls=0 if row is None else row.calls,
                cost_nano_usd=0 if row is None else row.cost_nano_usd,
                spent_nano_usd=None if remaining is None else (client.budget_nano_usd or 0) - remaining,
                left_nano_usd=remaining,
            )
        )
    return found


# --- Rates ---


NO_RATES = RateHeaders()


class Admission:
    """An admitted request. Call `over` at its end, in every case."""

    def __init__(self, rates: RateHeaders, lease: RateLimitLease | None = None) -> None:
        self.rates = rates
        self._lease = lease

    def over(self, usage: TokenUsage | None = None) -> None:
        """Replace the estimate with the actual tokens. With None, the estimate is kept."""
        lease, self._lease = self._lease, None
        if lease is not None:
            lease.end(None, usage)


def _rates(live: AsyncRateLimiter) -> RateHeaders:
    now_us = live.now_us()
    found: dict[str, float] = {}
    for limit in live.limiter.shared.limits:
        found[f"limit_{limit.kind}"] = int(limit.limit)
        found[f"remaining_{limit.kind}"] = max(int(limit.room(now_us)), 0)
        found[f"reset_{limit.kind}"] = limit.opens_in(limit.limit, now_us) / 1e6
    return msgspec.convert(found, RateHeaders)


# --- The registry ---


class _Known(msgspec.Struct, frozen=True):
    changes: GatewayChanges | None = None
    clients: dict[str, Client] = {}
    keys: dict[bytes, ClientKey] = {}


class Clients:
    """The clients of one gateway, read from the trace store of its engine.

    If the store can't be read, clients that were read before are still served. In a cluster, the clients are in
    the shared store.
    """

    def __init__(self, engine: Engine) -> None:
        self._runtime = engine._runtime
        self._cached = _Known()
        self._budgets: frozenset[Budget] = frozenset()
        self._looked_us: int | None = None
        self._looks = 0
        """The number of readings that were started."""
        self._looking = anyio.Lock()
        self._limiters: dict[str, AsyncRateLimiter] = {}
        self._revoked: dict[str, anyio.Event] = {}
        self._in_progress = 0
        self._watching = False

    async def authenticate(self, key: str | None) -> Client:
        """Find the client with a key, and activate its budget."""
        if not key:
            raise ClientRefused(
                "authentication", "the request has no API key. Send one that `callboard clients add` has made"
            )
        await self._look()
        digest = hash_of(key)
        if digest not in self._cached.keys:
            await self._look_again()  # the key may be new
        found = self._cached.keys.get(digest)
        if found is None or not hmac.compare_digest(found.hash, digest):
            raise ClientRefused("authentication", "the API key is unknown or was revoked")
        if found.expires_us is not None and found.expires_us <= self._runtime.clock.now_us():
            raise ClientRefused(
                "authentication", "the API key has expired, because a new one was made for its client"
            )
        client = self._cached.clients[found.client]
        budget = budget_of(client)
        if budget is not None and budget not in self._budgets:
            raise ClientRefused("unavailable", "the client's budget can't be counted now", retry_after=1.0)
        return client

    async def _look(self) -> None:
        """Read the clients, unless they were read in the last second."""
        looked = self._looked_us
        if looked is None or not 0 <= self._runtime.clock.now_us() - looked < LOOK_US:
            await self._look_again()
        if self._runtime.cluster.in_cluster:
            self._watch()

    async def _look_again(self) -> None:
        """Read the clients. Concurrent requests share one reading that starts after all of them."""
        started = self._looks
        async with self._looking:
            if self._looks > started:
                return
            self._looks += 1
            try:
                await self._read()
            except StoreError as error:
                if self._cached.changes is None:
                    self._looks = started  # waiting callers then read the clients themselves
                    raise
                _log.warning("clients_not_read", error=str(error))
            self._looked_us = self._runtime.clock.now_us()

    async def _read(self) -> None:
        tables = await tables_of(self._runtime)
        if tables is None:
            raise StoreError("keys of clients need a trace: run the engine with a trace file or a database")
        changes = await tables.changes()
        last_change = self._cached.changes
        if last_change is None or changes.clients != last_change.clients:
            clients = {each.name: each for each in await tables.clients() if each.revoked_us is None}
            keys = {each.hash: each for each in await tables.client_keys() if each.client in clients}
            # The change counts are read first, so that the next reading includes any change in between.
            self._cached = _Known(last_change, clients, keys)
            self._report_revoked()
            await self._use_budgets()
        self._cached = msgspec.structs.replace(self._cached, changes=changes)

    async def _use_budgets(self) -> None:
        budgets = frozenset(budget for each in self._cached.clients.values() if (budget := budget_of(each)))
        await self._runtime.budgets.change(tuple(budgets - self._budgets), self._budgets - budgets)
        self._budgets = budgets

    # --- Rights of a client ---

    def may_use(self, client: Client, model: str) -> bool:
        """Whether a client may use a model, by the client's name for it."""
        return not client.models or any(fnmatchcase(model, pattern) for pattern in client.models)

    def require_model(self, client: Client, model: str) -> None:
        """Raise ClientRefused (``permission``) if the client may not use the model."""
        if not self.may_use(client, model):
            raise ClientRefused(
                "permission",
                f"this API key may not use the model {model!r}; it may use {', '.join(client.models)}",
            )

    async def admit(self, client: Client, input_tokens: int, output_tokens: int) -> Admission:
        """Count a request in the client's rates. In a cluster, the rates apply to all nodes together."""
        live = self._limiter(client)
        if live is None:
            return Admission(NO_RATES)
        patience = SHARE_SECONDS if self._runtime.cluster.in_cluster else 0.0
        lease = RateLimitLease(live, "", 0, (input_tokens, output_tokens), patience, learns=False)
        try:
            has_turn = lease.ask()
            while not has_turn or not lease.send():
                await lease.wait(patience)
                has_turn = True
        except RateLimitWaitError as error:
            seconds = error.retry_after_seconds
            limits = [
                f"{limit} {kind} a minute"
                for kind, limit in (("requests", client.requests_per_minute), ("tokens", client.tokens_per_minute))
                if limit is not None
            ]
            text = f"the rate limit of this API key is reached: {' and '.join(limits)}"
            raise ClientRefused("rate_limit", text, retry_after=seconds) from None
        return Admission(_rates(live), lease)

    def _limiter(self, client: Client) -> AsyncRateLimiter | None:
        declared = client.requests_per_minute, client.tokens_per_minute
        live = self._limiters.get(client.name)
        if live is None:
            if declared == (None, None):
                return None
            live = self._limiters[client.name] = AsyncRateLimiter(
                f"client:{client.name}", "", RateLimiter(*declared)
            )
            self._runtime.rate_limits.share(live)
        elif live.limiter.declared != declared:
            live.limiter.declare(*declared)
            self._runtime.rate_limits.share(live)
        return live

    def tags(self, client: Client) -> dict[str, str]:
        return {CLIENT_TAG: client.name}

    # --- Clients that are revoked while their requests are in progress ---

    @contextmanager
    def in_progress(self, client: Client) -> Iterator[anyio.Event]:
        """A context for one request. The event is set within about a second after the client's key was revoked.

        Cancel the call when it is set.
        """
        event = self._revoked.setdefault(client.name, anyio.Event())
        self._in_progress += 1
        self._watch()
        try:
            yield event
        finally:
            self._in_progress -= 1

    def _report_revoked(self) -> None:
        for name in self._revoked.keys() - self._cached.clients.keys():
            self._revoked.pop(name).set()

    def _watch(self) -> None:
        """Check for changes every second while requests are in progress. A node of a cluster always checks,
        because its budgets depend on the clients.
        """
        if not self._watching:
            self._watching = True
            self._runtime.host.spawn(self._keep_looking, name="clients of the gateway")

    async def _keep_looking(self) -> None:
        try:
            while self._in_progress or self._runtime.cluster.in_cluster:
                await anyio.sleep(LOOK_US / 1e6)
                await self._look_again()
            self._revoked.clear()
        finally:
            self._watching = False
