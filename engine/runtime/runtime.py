"""What the parts of one engine share: its clock, bus, streams, store, prices, adapters and sessions.

The engine makes it, and every part takes it. It starts nothing and waits for nothing; what lives on an event loop
is its `host`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING

from callboard.bus import Bus, Clock, StreamChannel
from callboard.tracestore import Capture, PriceTable, Store

from ..budgets.budget import Budget
from ..budgets.budgets import Budgets
from ..budgets.from_trace import loader
from ..middleware.chain import Chain
from ..models.registry import ModelRegistry
from ..opening import server_store, shipper_for
from ..pricing.pricing import Pricing
from ..rate_limits.rate_limits import RateLimits
from ..routing.availability import AvailabilityTable
from ..sessions.open import OpenSessions
from .adapter_pool import AdapterPool
from .host import Host
from .in_flight import InFlight
from .limits import Limits, Timeouts

if TYPE_CHECKING:
    from ..nodes.cluster import Cluster
    from ..nodes.node import Node


class Runtime:
    """The shared parts of one engine."""

    registry: ModelRegistry
    """The configuration in force; a reload puts another one in its place."""

    def __init__(
        self,
        make_host: Callable[[Runtime], Host],
        *,
        clock: Clock,
        registry: ModelRegistry,
        store: Store | None,
        prices: PriceTable,
        ship_to: str | None,
        cluster: Cluster | None,
        ships_before_reply: bool,
        capture: Capture | None,
        middleware: Chain,
        budgets: Sequence[Budget],
        limits: Limits,
        timeouts: Timeouts,
    ) -> None:
        self.clock = clock
        self.registry = registry
        self.store = store
        self.capture = capture
        self.keeps_all_content = capture is not None and not capture.redacts
        """Whether everything that is said may be stored as it is."""
        self.middleware = middleware
        self.limits = limits
        self.timeouts = timeouts
        self.bus = Bus(clock=clock)
        if cluster is not None:
            from_file = store is not None and server_store(store) is None
            ship_to = cluster.ships_to(ship_to, from_file=from_file)
        self.shipper = None if ship_to is None else shipper_for(store, ship_to, self.bus, clock, prices)
        self.ships_before_reply = ships_before_reply and self.shipper is not None
        self.streams = StreamChannel(
            clock=clock, retain_seconds=limits.retain_streams_seconds, max_bytes=limits.retain_streams_bytes
        )
        self.availability = AvailabilityTable()
        self.node = None if cluster is None else self._join(cluster)
        self.frames = None if self.node is None else self.node.frames
        self.in_flight = InFlight()
        self.rate_limits = RateLimits(None if self.node is None else self.node.share_limits(self.bus, clock))
        if self.node is not None and self.node.learned is not None:
            self.node.learned.share(self.rate_limits)
        self.host = make_host(self)
        self.adapters = AdapterPool(self.host, lambda: self.registry, clock)
        ownership = None if self.node is None else self.node.ownership
        self.sessions = OpenSessions(self.bus, store, self.host, captures=capture is not None, ownership=ownership)
        if ownership is not None:
            ownership.local = self.sessions
        self.budgets = Budgets(
            budgets,
            self.bus,
            clock,
            loader(store, self.bus.run_id, self.host.settle),
            None if self.node is None else self.node.share_budgets(budgets, clock),
        )
        self.pricing = Pricing(
            self.bus, store, clock, self.host, self.sessions.states, prices, self.budgets.recount
        )

    def _join(self, cluster: Cluster) -> Node:
        from ..nodes.node import Node

        return Node(
            cluster,
            bus=self.bus,
            clock=self.clock,
            store=self.store,
            streams=self.streams,
            availability=self.availability,
        )

    @property
    def may_go(self) -> Callable[[str, str], Awaitable[bool]] | None:
        """Tells whether a call may go to a provider and model that another node may probe; None without any."""
        return None if self.node is None or self.node.probes is None else self.node.probes.may_go

    @property
    def prices(self) -> PriceTable:
        """The table in force for new calls."""
        return self.pricing.prices
