"""The engine: the object that a program creates to run sessions and calls.

It composes bus, adapters, streams, store and prices.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Literal, Self

import anyio
import anyio.to_thread

from callboard.bus import SYSTEM_CLOCK, Bus, Clock, ConfigReloaded, ShutdownReport, StreamChannel
from callboard.bus.values.base import short
from callboard.tracestore import Capture, PriceTable, Redact, Store

from .budgets.budget import Budget
from .budgets.ledger import AccountState
from .current_prices import load_prices
from .methods import GenerationMethods, ObjectMethods, PricingMethods
from .middleware.chain import Chain, MiddlewareLike
from .models.configured import ConfiguredModel, HostAdapter, configured_models, entry_of, load_registry
from .models.entries import AdapterEntry
from .models.registry import ModelRegistry
from .operations.methods import OperationMethods
from .routing.availability import AvailabilityTable
from .runtime.lifecycle import EngineHost
from .runtime.runtime import Limits, Runtime, Timeouts, take_over
from .sessions.resuming import SessionMethods, require_capture
from .stores import store_for
from .watching.snapshots import EngineStatistics, WatchingMethods, collect

if TYPE_CHECKING:
    import httpx

    from callboard.tracestore.reports import HealthReport

    from .nodes.node import Cluster


class Engine(
    SessionMethods,
    GenerationMethods,
    ObjectMethods,
    OperationMethods,
    PricingMethods,
    WatchingMethods,
):
    """Runs sessions and calls with the configured models: `async with Engine(...) as engine`.

    Without an event loop, use `with Engine(...) as engine`, see `Session.send_sync`. You may also let the first
    turn start the engine, and call `aclose()` at the end. An engine belongs to one event loop, of asyncio or
    uvloop. On any other loop, its methods raise WrongLoop; without a loop, they raise CallboardError. A closed
    engine cannot be started again.

    Args:
        models: A registry, or the path of a models.yaml. None uses $CALLBOARD_HOME/models.yaml, or without that
            file the keys in the environment.
        store: A trace store, the path of its file, or the address of a PostgreSQL database. None uses
            $CALLBOARD_HOME/trace.db.
        trace: Whether to keep a trace.
        ship_to: The address of a trace on a server, to which the trace file is copied, such as
            ``postgresql://USER@HOST/DATABASE``. While the server can't be reached, calls continue, and events wait
            in the file.
        ship: When events are shipped: ``behind`` the calls, or ``before_reply``. With ``before_reply``, a reply is
            returned after its events are on the server. A turn waits at most 5 seconds in total for that, and not
            at all while the server is known to be unreachable.
        cluster: The cluster of which this engine is a node, see `Cluster`. Every other node can resume its
            sessions and read its streams. A trace in a file is shipped to the cluster's store.
        capture_content: Whether to store the content of messages, too, so that sessions can be resumed.
        redact: A function that receives each message before it is stored, and returns the message to store, or
            None to store nothing. It receives the system prompt as a system message. It runs on the event loop, so
            it must be quick.
        prices: A table, which is used unchanged; or the path of a price file, whose rows take precedence over the
            published prices. None uses $CALLBOARD_HOME/prices.yaml, if it exists.
        middleware: Middleware around calls, the outermost first, see `engine.middleware`.
        budgets: Limits on the spending of calls. All of them must admit a call before it is sent.
        limits: Limits of the engine, see `Limits`.
        timeouts: Time limits of the engine, see `Timeouts`.
        clock: The source of all times, ids and randomness.
        providers: Adapters by their names, in addition to the configured ones; see `register`.
        http_client: The host's own HTTP client for the configured adapters, for example with proxies, certificates
            or a transport. The host closes it after the engine. Adapters in `providers` have their own client, see
            `AdapterConfig.http_client`.

    Raises:
        ConfigurationError: The configuration, the prices or the arguments are wrong.
    """

    def __init__(
        self,
        *,
        models: ModelRegistry | Path | str | None = None,
        store: Store | Path | str | None = None,
        trace: bool = True,
        ship_to: str | None = None,
        ship: Literal["behind", "before_reply"] = "behind",
        cluster: Cluster | None = None,
        capture_content: bool = False,
        redact: Redact | None = None,
        prices: PriceTable | Path | str | None = None,
        middleware: Sequence[MiddlewareLike] = (),
        budgets: Sequence[Budget] = (),
        limits: Limits = Limits(),  # noqa: B008 (frozen)
        timeouts: Timeouts = Timeouts(),  # noqa: B008 (frozen)
        clock: Clock = SYSTEM_CLOCK,
        providers: Mapping[str, HostAdapter] | None = None,
        http_client: httpx.AsyncClient | None = None,
    ) -> None:
        self._http_client = http_client
        require_capture(capture_content, trace, redact)
        self._host: EngineHost
        self._runtime = Runtime(
            self._make_host,
            clock=clock,
            registry=self._read(models),
            store=store_for(store, clock) if trace else None,
            prices=load_prices(prices),
            ship_to=ship_to,
            cluster=cluster,
            ships_before_reply=ship == "before_reply",
            capture=Capture(redact) if capture_content else None,
            middleware=Chain(middleware),
            budgets=budgets,
            limits=limits,
            timeouts=timeouts,
        )
        self._models = models
        self._registered: list[AdapterEntry] = []
        for name, adapter in (providers or {}).items():
            self.register(name, adapter)

    @classmethod
    def from_env(cls) -> Engine:
        """An engine that is configured only by $CALLBOARD_HOME, or ~/.callboard, and the keys in the environment.

        Raises:
            ConfigurationError: The configuration is wrong.
        """
        return cls()

    @property
    def clock(self) -> Clock:
        """The source of all times, ids and randomness."""
        return self._runtime.clock

    @property
    def bus(self) -> Bus:
        """The bus on which everything is published. Subscribe to it."""
        return self._runtime.bus

    @property
    def streams(self) -> StreamChannel:
        """The streams of turns; see `attach`."""
        return self._runtime.streams

    @property
    def store(self) -> Store | None:
        """The trace; None without one."""
        return self._runtime.store

    @property
    def availability(self) -> AvailabilityTable:
        """The availability of providers and models."""
        return self._runtime.availability

    @property
    def registry(self) -> ModelRegistry:
        """The current configuration."""
        return self._runtime.registry

    @property
    def shows_content(self) -> bool:
        """Whether readers other than the host may see content: it is captured, and there is no `redact`
        function.
        """
        capture = self._runtime.capture
        return capture is not None and not capture.redacts

    def _make_host(self, runtime: Runtime) -> EngineHost:
        self._host = EngineHost(runtime)
        return self._host

    def __repr__(self) -> str:
        able = [name for name, state in self.providers.items() if state == "configured"]
        return f"Engine(providers={short(able)}{', closed' if self.closed else ''})"

    # --- Providers ---

    @property
    def providers(self) -> dict[str, Literal["configured", "not_configured"]]:
        """The adapters by name, including registered ones. A provider that isn't configured has no key."""
        return {name: entry.state for name, entry in self.registry.adapters.items()}

    @property
    def default_provider(self) -> str | None:
        """The provider for model names without a provider: the one in models.yaml, or the first provider with a
        key.

        None if there is neither.
        """
        return self.registry.default_provider

    def register(self, name: str, adapter: HostAdapter, *, prices_as: str | None = None) -> None:
        """Add an adapter of your own. Its models are named ``name:model``.

        Turns that start later can use it. A reload keeps it.

        Args:
            name: The name of the adapter.
            adapter: An adapter, or a function that makes an adapter for each start. If you pass an adapter, the
                engine owns it, and also uses it after a crash.
            prices_as: The provider whose published prices apply to its models, if its class doesn't name the
                provider.

        Raises:
            ConfigurationError: The name is already used, or is not valid in a model's name.
        """
        entry = entry_of(name, adapter, prices_as)
        self._runtime.registry = self.registry.with_adapter(entry)
        self._registered.append(entry)

    async def reload(self, models: ModelRegistry | Path | str | None = None) -> ConfigReloaded:
        """Replace the configuration.

        The new configuration is read and checked first: a bad one changes nothing. Turns in progress finish with
        the adapters and the registry that they started with. Changed or removed adapters are stopped when their
        last turn has ended. New turns use the new configuration.

        Args:
            models: A registry, or the path of a models.yaml. None reads the engine's own configuration again.

        Returns:
            The differences.

        Raises:
            ConfigurationError: The new configuration is wrong.
        """
        await self.start()
        source = self._models if models is None else models
        if isinstance(source, ModelRegistry):
            fresh = self._read(source)
        else:
            fresh = await anyio.to_thread.run_sync(self._read, source)
        for entry in self._registered:
            fresh = fresh.with_adapter(entry)
        change = await take_over(self._runtime, fresh)
        self._models = source
        return change

    def _read(self, models: ModelRegistry | Path | str | None) -> ModelRegistry:
        registry = models if isinstance(models, ModelRegistry) else load_registry(models)
        return registry if self._http_client is None else registry.with_http_client(self._http_client)

    # --- Start and end ---

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    def __enter__(self) -> Self:
        """Start the engine on the thread of the sync functions, for code without an event loop.

        Then `Session.send_sync`, ``generate_sync(…, engine=engine)`` and `run_sync` use it.
        """
        from .sync import sync_host

        host = sync_host()

        async def start() -> None:
            host.keep(self._host)
            await self.start()

        host.run(start, name="with Engine()", instead="use `async with Engine()`")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        from .sync import sync_host

        sync_host().run(self.aclose)

    async def start(self) -> None:
        """Start the engine, if it isn't running. A trace file that can't be used doesn't prevent the start;
        `health()` reports it.

        Raises:
            CallboardError: The engine is closed, or no asyncio loop runs here.
            WrongLoop: The engine belongs to another event loop.
            StoreError: The trace file isn't Callboard's.
        """
        await self._host.start()

    async def aclose(self) -> ShutdownReport | None:
        """Stop everything in order, and close the store.

        Any task of the engine's loop may call it. A second call does nothing.

        Calls in progress are cancelled: their callers get CancelledError with the content that had arrived. New
        calls are refused. Closing takes at most `Timeouts.shutdown`. If an exception such as SupervisorEscalated
        has already ended the engine, it is raised here.

        Returns:
            The report of the stop; None if the engine was never started.

        Raises:
            WrongLoop: The engine belongs to another event loop.
        """
        return await self._host.aclose()

    async def flush(self) -> None:
        """Return when everything published so far is committed to the trace.

        Raises:
            StoreError: It can't be committed.
        """
        await self._host.flush()

    # --- State and figures ---

    async def budgets(self) -> list[AccountState]:
        """The current amounts of each budget account: spent, reserved and left.

        Raises:
            StoreError: The trace can't be read, so the amount spent is unknown.
        """
        budgets = self._runtime.budgets
        if budgets:
            await self.start()
            await budgets.loaded()
            await budgets.refresh()
        return budgets.states()

    async def change_budgets(self, *, add: Sequence[Budget] = (), remove: Sequence[Budget] = ()) -> None:
        """Add budgets while the engine runs, and then remove others.

        Earlier spending and calls in progress are counted. To change a budget, add the new budget and remove the
        old one in one call. Budgets that were given to the constructor can't be removed.

        Args:
            add: New budgets. If a budget is already active, it does not change. Without a trace, a new budget
                starts from zero.
            remove: Budgets that were added by this method. Other budgets are ignored.

        Raises:
            StoreError: The trace can't be read, so the amounts spent are unknown. Nothing has changed.
        """
        await self.start()
        await self._runtime.budgets.change(add, remove)

    def statistics(self) -> EngineStatistics:
        """A snapshot of the engine's statistics. It is cheap, and also works before the start and after the
        end.
        """
        return collect(self._runtime, self._host.life)

    def models(self) -> list[ConfiguredModel]:
        """The available models, with their abilities, costs and availability. No provider is contacted.

        The models of models.yaml come first. The catalogue's models for which there is a key come next.

        Raises:
            ConfigurationError: The price snapshot in $CALLBOARD_HOME can't be read.
        """
        consult = self._runtime.adapters.consult
        return configured_models(self.registry, consult, self.availability, self.prices, self.clock)

    async def health(self, *, offline: bool = False, time_limit: float = 5.0) -> HealthReport:
        """Check configuration, keys, providers and store. It creates nothing, starts nothing and costs nothing.

        Args:
            offline: Whether to ask no provider.
            time_limit: Seconds for each provider.

        Raises:
            WrongLoop: The engine runs on another loop.
        """
        from .watching.health import examine

        life = self._host.life
        if life is not None and life.state == "running":
            await self.start()
        writer = life.writer.statistics() if life is not None and life.writer is not None else None
        return await examine(self._runtime, writer, offline=offline, time_limit=time_limit)

    @property
    def closed(self) -> bool:
        """True if the engine was closed, or has ended because of an error. It can't be started again."""
        return self._host.closed

    def require_loop(self) -> None:
        """Check that the running event loop is the engine's.

        Raises:
            WrongLoop: Another event loop runs here.
        """
        self._host.require_loop()

    @property
    def timeouts(self) -> Timeouts:
        """The time limits that were passed."""
        return self._runtime.timeouts
