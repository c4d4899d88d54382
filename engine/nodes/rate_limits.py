"""The rate limits that nodes share: limits that one node has learned, and shares in declared limits.

Each node may use its share of a declared limit. A share is never smaller than the node's use in the last minute.
The shares of all nodes are slices of one account for each adapter and key (see `tracestore.nodes`), so together
they never exceed the limit. A node requests the amount that its waiting requests need, and returns the unused
part. A share that is not renewed expires after 90 seconds. While the store is unreachable, a node uses the limit
divided by the last known number of nodes.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable

import anyio
import msgspec

from callboard.bus import Bus, Clock, Log, NodeLimitsChanged, StoreError
from callboard.tracestore.nodes import Allotment, LedgerTables, SliceRequest, Slot

from ..routing.learned_limits import Declared, Ticket
from ..routing.rate_limits import AsyncRateLimiter, RateLimits
from ..routing.rate_slots import LimitObservation
from .broker import Broker

_log = Log("engine.shared_limits")

# --- Learned limits ---

TELL_SECONDS = 1.0
"""The minimum number of seconds between two messages, unless a request was refused."""

_Place = tuple[str, str, str]


class LimitAnnouncement(msgspec.Struct, frozen=True):
    """A learned rate limit, as sent to the other nodes."""

    node: str
    """The node's id, which is the run id of its engine."""
    adapter: str
    key: str
    observation: LimitObservation = msgspec.field(name="lesson")  # the field's name in messages
    age_us: int
    """Microseconds since the observation."""


class LearnedLimits:
    """Shares learned rate limits with other nodes. Limits that are not sent at the end would be useless later."""

    limits: RateLimits
    """The limits of the engine; set before the start."""

    def __init__(self, node: str, cluster: str, broker: Broker) -> None:
        self._node = node
        self._subject = f"callboard.{cluster}.limits"
        self._broker = broker
        broker.listen(self._subject, self.receive)
        self._news: dict[_Place, tuple[LimitObservation, float]] = {}
        self._come = anyio.Event()
        self._wake = anyio.Event()

    def share(self, limits: RateLimits) -> None:
        self.limits = limits
        limits.on_observation = self.note

    def note(self, adapter: str, key: str, observation: LimitObservation) -> None:
        """Record the limits in a reply, for the next message. They replace earlier ones."""
        self._news[adapter, key, observation.model] = observation, anyio.current_time()
        self._come.set()
        if observation.pause_us:
            self._wake.set()

    async def run(self) -> None:
        while True:
            await self._come.wait()
            self._come, self._wake = anyio.Event(), anyio.Event()
            self._publish()
            with anyio.move_on_after(TELL_SECONDS):
                await self._wake.wait()

    def receive(self, _subject: str, payload: bytes, _reply: str) -> None:
        try:
            announcement = msgspec.json.decode(payload, type=LimitAnnouncement)
        except msgspec.DecodeError as error:  # a message of another version
            _log.debug("lesson_not_read", error=str(error))
            return
        if announcement.node != self._node:
            self.limits.learn(
                announcement.adapter, announcement.key, announcement.observation, announcement.age_us
            )

    def _publish(self) -> None:
        news, self._news = self._news, {}
        for (adapter, key, _), (observation, at) in news.items():
            age_us = max(round((anyio.current_time() - at) * 1e6), 0)
            announcement = LimitAnnouncement(self._node, adapter, key, observation, age_us)
            self._broker.publish(self._subject, msgspec.json.encode(announcement))


# --- Shares of declared limits ---

LOOK_SECONDS = 1.0
"""Seconds between two checks of the shares when no request waits."""

PAUSE_SECONDS = 0.02
"""The minimum seconds between two requests. They double up to `LOOK_SECONDS` while requests are refused."""

NODES_SECONDS = 15.0
"""Seconds between two counts of the nodes."""

KEPT_US = 90_000_000
"""The time after which an unrenewed share expires, in microseconds. It is longer than a limit's window."""

REFRESH_US = 20_000_000
"""The time between two renewals of a share, in microseconds."""


class LimitScope:
    """The limits of one adapter and key, as an account in the shared rows.

    The money fields contain the number of requests. `limits` are the requests and the tokens in a minute.
    """

    value = ""

    def __init__(self, adapter: str, key: str, limits: tuple[int | None, int | None]) -> None:
        self.budget = f"rate limits of {adapter} with key {key!r}: {limits[0]} requests, {limits[1]} tokens"
        self.limits = limits

    def slot(self, now_us: int) -> Slot:
        return Slot(0, now_us + KEPT_US)

    def query(self, now_us: int) -> None:
        """Return None, because calls in the trace are not part of rate limits."""

    def counted_slot(self, query: object, number: int, now_us: int) -> Slot:
        return self.slot(now_us)


class SharedLimit:
    """The limits of one queue, and this node's share of them."""

    def __init__(self, live: AsyncRateLimiter) -> None:
        self.live = live
        self.declared = [limit for limit in live.limiter.shared.limits if isinstance(limit, Declared)]
        sizes = {limit.kind: int(limit.limit) for limit in self.declared}
        self.scope = LimitScope(live.name, live.key, (sizes.get("requests"), sizes.get("tokens")))
        self.granted: Allotment = (0, 0)
        self.granted_us = 0
        """The time of the last update of the share in the store, in microseconds since the epoch."""
        self.pause = PAUSE_SECONDS
        self.ask_at = -math.inf
        """The time of the event loop from which a larger share is requested again."""

    def refused(self) -> None:
        """Wait before the next request. Otherwise, waiting calls would make the node ask the store constantly."""
        self.ask_at = anyio.current_time() + self.pause
        self.pause = min(2 * self.pause, LOOK_SECONDS)

    def used(self) -> Allotment:
        now_us = self.live.now_us()
        used = {limit.kind: math.ceil(limit.used(now_us)) for limit in self.declared}
        return used.get("requests", 0), used.get("tokens", 0)

    def needs(self) -> tuple[Allotment, Allotment]:
        """The share that all waiting requests need, and the share that only the first one needs."""
        tickets = self.live.limiter.in_line()
        return self._with(tickets), self._with(tickets[:1])

    def _with(self, tickets: list[Ticket]) -> Allotment:
        found = {"requests": 0, "tokens": 0}
        used = dict(zip(found, self.used(), strict=True))
        for limit in self.declared:
            more = math.ceil(sum(map(limit.amount, tickets)))
            found[limit.kind] = min(used[limit.kind] + more, int(limit.limit))
        return found["requests"], found["tokens"]

    def use(self, share: Allotment) -> None:
        """Set the share, and admit waiting requests that fit."""
        sizes = dict(zip(("requests", "tokens"), share, strict=True))
        for limit in self.declared:
            limit.share = sizes[limit.kind]
        self.live.changed()

    def degrade(self, nodes: int) -> None:
        """Use the limit divided by the number of nodes, because no share can be requested."""
        for limit in self.declared:
            limit.share = max(limit.limit / nodes, limit.used(self.live.now_us()))
        self.live.changed()


class RateLimitShares:
    """The shares of one node.

    At the end, nothing is returned: the provider and the share both count used amounts for a minute.
    """

    def __init__(
        self, tables: LedgerTables, node: str, bus: Bus, clock: Clock, live_nodes: Callable[[], Awaitable[int]]
    ) -> None:
        self._tables = tables
        self._node = node
        self._bus = bus
        self._clock = clock
        self._live_nodes = live_nodes
        self._limits: dict[AsyncRateLimiter, SharedLimit] = {}
        self._nodes = 1
        self._number = 0
        self._wake = anyio.Event()
        self._degraded = False

    def join(self, live: AsyncRateLimiter) -> None:
        limit = self._limits[live] = SharedLimit(live)
        for each in limit.declared:
            each.share = 0.0
        live.on_wait = lambda: self._wake.set()  # another event after each look

    async def run(self) -> None:
        counted = -math.inf
        while True:
            now = anyio.current_time()
            due = [limit.ask_at - now for limit in self._limits.values() if limit.ask_at > now]
            with anyio.move_on_after(min([LOOK_SECONDS, *due])):
                await self._wake.wait()
            self._wake, pause = anyio.Event(), PAUSE_SECONDS
            try:
                for limit in tuple(self._limits.values()):
                    await self._balance(limit)
                if self._limits and anyio.current_time() - counted > NODES_SECONDS:
                    counted = anyio.current_time()
                    self._nodes = max(1, await self._live_nodes())
                self._become(degraded=False)
            except StoreError as error:
                self._become(degraded=True, reason=str(error))
                for limit in self._limits.values():
                    limit.degrade(self._nodes)
                pause = LOOK_SECONDS
            await anyio.sleep(pause)

    async def _balance(self, limit: SharedLimit) -> None:
        all_of_them, first = limit.needs()
        used, granted = limit.used(), limit.granted
        now_us = self._clock.now_us()
        if _exceeds(all_of_them, granted):
            if anyio.current_time() < limit.ask_at:
                pass
            elif await self._ask(limit, all_of_them) or await self._ask(limit, first):
                limit.pause = PAUSE_SECONDS
            else:
                limit.refused()
        elif now_us - limit.granted_us > REFRESH_US and any(granted):
            await self._ask(limit, granted)
        elif _exceeds(granted, used) and limit.live.limiter.waiting == 0 and any(granted):
            await self._give_back(limit)
        if self._degraded:
            limit.use(limit.granted)

    async def _ask(self, limit: SharedLimit, up_to: Allotment) -> bool:
        """Request a share. Returns whether it was granted."""
        self._number += 1

        def requests(now_us: int) -> list[SliceRequest]:
            return [SliceRequest(limit.scope, limit.scope.slot(now_us), up_to)]

        answer = await self._tables.grant(self._node, self._number, requests)
        limit.granted_us = self._clock.now_us()
        limit.granted = answer.balances[0].granted
        limit.use(limit.granted)
        return not _exceeds(up_to, limit.granted)

    async def _give_back(self, limit: SharedLimit) -> None:
        """Return the unused part of the share. Later requests request a larger share again."""
        limit.granted = limit.used()
        limit.use(limit.granted)
        self._number += 1
        slot = limit.scope.slot(self._clock.now_us())
        await self._tables.give_back(self._node, self._number, [(limit.scope, slot, limit.granted)])

    def _become(self, *, degraded: bool, reason: str = "") -> None:
        if degraded == self._degraded or not self._limits:
            return
        self._degraded = degraded
        _log.warning("limits_changed", degraded=degraded, nodes=self._nodes, reason=reason)
        self._bus.publish(
            NodeLimitsChanged(current="divided" if degraded else "shared", nodes=self._nodes, reason=reason)
        )


def _exceeds(size: Allotment, other: Allotment) -> bool:
    return size[0] > other[0] or size[1] > other[1]
