"""The engine: what a host makes, and what composes bus, adapters, streams, store and prices for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Literal, Self, Unpack, overload

import anyio
import anyio.to_thread

from adapters import CanonicalRequest, CanonicalResponse, ContentBlock
from adapters.replies.whole import spelled_out
from bus import (
    SYSTEM_CLOCK,
    Bus,
    Clock,
    ConfigReloaded,
    ShutdownReport,
    StreamChannel,
    StreamReader,
)
from bus.streams.events import TurnEvent
from tracestore import CallFilter, Capture, PriceTable, Redact, RepriceReport, RepriceRun, TraceStore

from .conversation.context import ContextPolicy
from .conversation.results import GenerateResult
from .generation.asking import Arguments, new_turn
from .generation.generating import generate_on
from .generation.low_level import complete, turn_of
from .generation.streaming import OnUsage, StreamResult
from .home import home_folder
from .media.methods import MediaMethods
from .middleware.chain import Chain, MiddlewareLike
from .models.config import load_registry
from .models.entries import AdapterEntry
from .models.offered import ConfiguredModel, configured_models
from .models.registering import Provider, entry_of
from .models.registry import ModelRegistry
from .models.reloading import difference
from .objects.methods import ObjectMethods
from .pricing.pricing import load_prices
from .routing.availability import AvailabilityTable
from .routing.candidates import expand
from .routing.choice import Model, Requirements
from .runtime.adapter_pool import make_spare
from .runtime.life import EngineHost
from .runtime.limits import Limits, Timeouts
from .runtime.runtime import Runtime
from .sessions.resuming import require_capture, resumed
from .sessions.session import Session
from .sessions.state import SessionState
from .sessions.whole import SessionInfo, deleted, imported, listed, state_of
from .statistics import EngineStatistics, collect
from .tools import Approve, Tool

if TYPE_CHECKING:
    from .embedding import EmbeddingArguments, EmbeddingResult
    from .health import HealthReport


class Engine(ObjectMethods, MediaMethods):
    """Sessions and calls over the configured models: `async with Engine(...) as engine`.

    Or let the first turn start it, and `aclose()` it. For one event loop, of asyncio or uvloop: from any other its
    methods raise WrongLoop, and without one CallboardError. Once closed it stays closed.

    models: a registry, or the path of a models.yaml; None is $CALLBOARD_HOME/models.yaml, else the environment's
    keys. store: None is $CALLBOARD_HOME/trace.db; trace=False keeps no trace. capture_content: keep what is said,
    too, so that sessions can be resumed. redact: gets each message, and the system prompt as one of the system's,
    before it is stored, and returns what to store, None for nothing; it runs on the event loop, so it must be
    quick. prices: a table, which is taken as it is; or the path of a price file, whose rows go before those of the
    published prices; None is $CALLBOARD_HOME/prices.yaml, if there is one. The published prices are those of
    `callboard prices update`, else the shipped ones. middleware: around calls, the outermost first, see
    `engine.middleware`. limits, timeouts: see `Limits` and `Timeouts`. clock: of all times, ids and randomness.
    providers: adapters by their names, besides those that are configured; see `register`.
    Raises ConfigurationError.

    bus: where everything is published; subscribe to it. streams: of turns, see `attach`. availability: how
    providers and models stand. registry: the configuration in force. store: the trace; None without one.
    """

    def __init__(
        self,
        *,
        models: ModelRegistry | Path | None = None,
        store: TraceStore | Path | None = None,
        trace: bool = True,
        capture_content: bool = False,
        redact: Redact | None = None,
        prices: PriceTable | Path | None = None,
        middleware: Sequence[MiddlewareLike] = (),
        limits: Limits = Limits(),  # noqa: B008 (frozen)
        timeouts: Timeouts = Timeouts(),  # noqa: B008 (frozen)
        clock: Clock = SYSTEM_CLOCK,
        providers: Mapping[str, Provider] | None = None,
    ) -> None:
        require_capture(capture_content, trace, redact)
        self._host: EngineHost
        self._runtime = Runtime(
            self._make_host,
            clock=clock,
            registry=models if isinstance(models, ModelRegistry) else load_registry(models),
            store=_make_store(store, clock) if trace else None,
            prices=load_prices(prices),
            capture=Capture(redact) if capture_content else None,
            middleware=Chain(middleware),
            limits=limits,
            timeouts=timeouts,
        )
        self._models = models
        self._registered: list[AdapterEntry] = []
        for name, adapter in (providers or {}).items():
            self.register(name, adapter)

    @classmethod
    def from_env(cls) -> Engine:
        """An engine from $CALLBOARD_HOME, or ~/.callboard, and the environment's keys alone. Raises
        ConfigurationError.
        """
        return cls()

    @property
    def clock(self) -> Clock:
        """Of all times, ids and randomness."""
        return self._runtime.clock

    @property
    def bus(self) -> Bus:
        """Where everything is published. Subscribe to it."""
        return self._runtime.bus

    @property
    def streams(self) -> StreamChannel:
        """The streams of turns; see `attach`."""
        return self._runtime.streams

    @property
    def store(self) -> TraceStore | None:
        """The trace; None without one."""
        return self._runtime.store

    @property
    def availability(self) -> AvailabilityTable:
        """How providers and models stand."""
        return self._runtime.availability

    @property
    def registry(self) -> ModelRegistry:
        """The configuration in force."""
        return self._runtime.registry

    def _make_host(self, runtime: Runtime) -> EngineHost:
        self._host = EngineHost(runtime)
        return self._host

    # -- providers

    @property
    def providers(self) -> dict[str, Literal["configured", "not_configured"]]:
        """The adapters by name, registered ones included; what isn't configured lacks its key."""
        return {name: entry.state for name, entry in self.registry.adapters.items()}

    @property
    def default_provider(self) -> str | None:
        """The provider of names that say no other, if there is one: models.yaml's, or the first with a key."""
        return self.registry.default_provider

    def register(self, name: str, adapter: Provider, *, prices_as: str | None = None) -> None:
        """Use an adapter of the host's own: its models are ``name:model``, whatever their names.

        Turns that begin from now on know it, and a reload leaves it. adapter: one that is made, which is the
        engine's from now on, and used as it is after a crash, too; or what makes one each time. prices_as: the
        provider whose published prices its models have, where its class doesn't say it.
        Raises ConfigurationError for a name that is taken, or that models can't be called by.
        """
        entry = entry_of(name, adapter, prices_as)
        self._runtime.registry = self.registry.with_adapter(entry)
        self._registered.append(entry)

    # -- sessions

    def session(
        self,
        model: Model,
        *,
        system_prompt: str | None = None,
        tools: Sequence[Tool] = (),
        session_id: str | None = None,
        tags: dict[str, str] | None = None,
        fallback: Sequence[str] | None = None,
        requires: Requirements | None = None,
        approve: Approve | None = None,
        context: ContextPolicy | None = None,
        name: str | None = None,
    ) -> Session:
        """A new session. model: any of its names, several of them in order, or a `ModelChoice`; checked now.

        tools: of its turns. session_id: instead of a new one. tags: of its calls, for the trace; never sent.
        fallback: the models to try when the first one fails; None leaves it to models.yaml. requires: what the
        model must be able to do, besides what the requests show. approve: decides about each call of a tool before
        it runs. context: what to send of a history that has grown too long, see
        `engine.conversation.context`; None always sends all of it. name: for people. Raises ConfigurationError,
        also for two tools of one name;
        CallboardError if a session of that id is open.
        """
        expand(self.registry, model, fallback)
        state = SessionState(
            session_id or self.clock.new_id("ses"),
            model,
            system_prompt,
            tools,
            tags or {},
            fallback=fallback,
            requires=requires,
            approve=approve,
            policy=context,
            name=name,
        )
        return self._open(state)

    def _open(self, state: SessionState) -> Session:
        self._runtime.sessions.open(state)
        return Session(self._runtime, state)

    async def resume(
        self,
        session_id: str,
        *,
        tools: Sequence[Tool] | None = None,
        model: Model | None = None,
        system_prompt: str | None = None,
        fallback: Sequence[str] | None = None,
        approve: Approve | None = None,
        context: ContextPolicy | None = None,
    ) -> Session:
        """A stored session, with its history as it was; also one of another process, or of one that was killed.

        From then on the session is this engine's. With `capture_content`, another engine that had it open learns
        so with its next turn, which raises SessionTakenOver.

        tools: with what runs them, which is not stored; None takes the stored definitions, as passive tools.
        model, system_prompt, fallback: instead of the stored ones. approve, context: as in `session`.
        Raises CallboardError if the session is open, is not stored, or not as a whole; ConfigurationError if its
        model is not known here; StoreError.
        """
        await (await self._host.living()).settle()
        state = await resumed(self._runtime, session_id, tools, model, system_prompt, fallback)
        state.policy = context
        state.approve = approve
        session = self._open(state)
        if model is not None:
            self._runtime.sessions.change_model(state, model)
        return session

    async def sessions(self, *, limit: int | None = 1000) -> list[SessionInfo]:
        """The sessions that are open here, and at most `limit` of the trace, the latest first; None is all of
        them. Raises StoreError.
        """
        return await listed(self._runtime, limit)

    async def delete_session(self, session_id: str) -> bool:
        """Forget a session: the open one, and what is stored of it; False if there was none.

        Its calls stay in the trace, and so does what they cost. A Session that is still held begins anew with its
        next turn. Raises SessionBusy while a turn runs, StoreError.
        """
        return await deleted(self._runtime, session_id)

    async def import_session(
        self,
        document: bytes | str,
        *,
        session_id: str | None = None,
        tools: Sequence[Tool] | None = None,
        model: Model | None = None,
    ) -> Session:
        """A session that `Session.export` has written, also of another engine, with its history and settings.

        session_id, tools, model: instead of the exported ones; without `tools` its tools are passive. Raises
        CallboardError if it is no exported session or one of that id is open, ConfigurationError if its model is
        not known here.
        """
        await self.start()
        state = state_of(self._runtime, imported(document), session_id=session_id, tools=tools, model=model)
        session = self._open(state)
        self._runtime.sessions.announce(state)
        return session

    def attach(self, stream_id: str, *, from_seq: int | Literal["tail"] = 0) -> StreamReader[TurnEvent]:
        """One more reader of a turn's stream; its coming and going changes nothing for the turn.

        Of what was folded, it gets whole messages with their text in one piece, if it reads from 0; a reader that
        goes on after what it has read gets a StreamReset instead.

        from_seq: the first event that is wanted, from 0; ``"tail"``: what comes from now on. Raises UnknownStream
        for a turn that is over for too long, ValueError for a seq beyond the end, WrongLoop.
        """
        self._host.require_loop()
        return self.streams.attach(stream_id, from_seq=from_seq, unfold=spelled_out)

    async def reload(self, models: ModelRegistry | Path | None = None) -> ConfigReloaded:
        """Take over a new configuration; what changed. None reads anew where this engine's came from.

        It is read and checked first: a bad one raises ConfigurationError and changes nothing. Turns under way end
        on the adapters and with the registry they began with; adapters that have changed or gone are stopped when
        their last turn is over; new turns see the new configuration.
        """
        await self.start()
        source = self._models if models is None else models
        if isinstance(source, ModelRegistry):
            fresh = source
        else:
            fresh = await anyio.to_thread.run_sync(load_registry, source)
        for entry in self._registered:
            fresh = fresh.with_adapter(entry)
        change = difference(self.registry, fresh)
        for name in (*change.adapters_added, *change.adapters_changed):
            if fresh.adapters[name].missing_key is None:
                make_spare(fresh.adapters[name], self.clock)
        self._runtime.registry, self._models = fresh.succeeding(self.registry), source
        await self._runtime.adapters.replace((*change.adapters_changed, *change.adapters_removed))
        now_us = self.clock.now_us()
        for moved in self.availability.reloaded(change.adapters_changed, change.adapters_removed, now_us):
            self.bus.publish(moved)
        self.bus.publish(change)
        return change

    async def complete(
        self, request: CanonicalRequest, *, tags: Mapping[str, str] | None = None
    ) -> CanonicalResponse:
        """One reply to a request, without a session: routed, traced and priced, and no tools are run.

        The request keeps its ids, unless they are empty. tags: for the trace, never sent. Raises what
        `Session.send` raises.
        """
        return await complete(self._runtime, request, tags=tags)

    # -- without a session

    async def generate(
        self,
        model: Model | None = None,
        prompt: str | Sequence[ContentBlock] | None = None,
        **arguments: Unpack[Arguments],
    ) -> GenerateResult:
        """See `engine.generate`."""
        return await generate_on(self._runtime, model, prompt, **arguments)

    @overload
    def stream(
        self,
        model: CanonicalRequest,
        /,
        *,
        tags: Mapping[str, str] | None = None,
        on_usage: OnUsage | None = None,
    ) -> StreamResult: ...

    @overload
    def stream(
        self,
        model: Model | None = None,
        prompt: str | Sequence[ContentBlock] | None = None,
        *,
        on_usage: OnUsage | None = None,
        **arguments: Unpack[Arguments],
    ) -> StreamResult: ...

    def stream(
        self,
        model: CanonicalRequest | Model | None = None,
        prompt: str | Sequence[ContentBlock] | None = None,
        *,
        on_usage: OnUsage | None = None,
        **arguments: Unpack[Arguments],
    ) -> StreamResult:
        """See `engine.stream`. Of a `CanonicalRequest`: one reply, as `complete` gives it; no tools are run.

        Raises TypeError for arguments that a request can't have besides it.
        """
        if isinstance(model, CanonicalRequest):
            if prompt is not None or arguments.keys() - {"tags"}:
                raise TypeError(
                    "a CanonicalRequest says all there is to ask; besides it there are tags=, on_usage="
                )
            turn = turn_of(self._runtime, model, tags=arguments.get("tags"), streamed=True)
        else:
            turn = new_turn(self._runtime, model, prompt, streamed=True, **arguments)
        return StreamResult(self._runtime, turn, on_usage=on_usage)

    # -- embeddings

    async def embed(
        self,
        texts: Sequence[str] | str,
        *,
        model: str | Sequence[str] | None = None,
        **options: Unpack[EmbeddingArguments],
    ) -> EmbeddingResult:
        """The vectors of texts, however many: cut into batches that the provider takes, several of them at once.

        Each batch is a call of its own, and retried by itself. Without texts nothing is sent, and nothing costs.
        Cancelling the task that waits here ends all batches; the vectors that had come are lost, and paid for.
        model: any of its names, or several names of one and the same model; None is the configured default.
        options: the fields of `EmbeddingOptions`.
        Raises PartialEmbeddingError if some texts could not be embedded, with the vectors of the others;
        AdapterError if none could; ConfigurationError, also for two models whose vectors can't be compared;
        AdmissionError.
        """
        from .embedding import EmbeddingOptions, embed

        return await embed(self._runtime, texts, model, EmbeddingOptions(**options))

    # -- money

    @property
    def prices(self) -> PriceTable:
        """The table of new calls: a call has the price of the moment in which its attempt starts."""
        return self._runtime.pricing.prices

    async def use_prices(self, prices: PriceTable | Path | str, *, alone: bool = False) -> PriceTable:
        """Price new calls by another table from now on; the table in force, which is also returned.

        What calls that were made cost stays as it is: that is `reprice`. Other engines keep their tables.
        prices: a table, a price file, or the version of a table that the trace knows. Its rows go before those of
        the published prices; alone: it is all there is, and what it doesn't list is unpriced.
        Raises ConfigurationError for a bad file; StoreError for an unknown version.
        """
        return await self._runtime.pricing.use_prices(prices, alone=alone)

    async def reprice(
        self,
        version: str | PriceTable,
        *,
        where: CallFilter | None = None,
        dry_run: bool = False,
        as_model: str | None = None,
        for_new_calls: bool = False,
    ) -> RepriceReport:
        """What the stored calls cost under another price table, and unless `dry_run`, what they cost from now on.

        Live messages show the new costs afterwards. New calls go on at the prices of this engine's own table.
        version: a table, or the version of one that the trace knows. where: only these calls. as_model: as if
        every call had gone to that ``provider:name``; never kept. for_new_calls: price new calls of this engine by
        that table too, as `use_prices` does; `undo_reprice` takes that back as well, if no other was chosen since.
        Raises StoreError; CallboardError without a trace.
        """
        return await self._runtime.pricing.reprice(
            version, where=where, dry_run=dry_run, as_model=as_model, for_new_calls=for_new_calls
        )

    async def undo_reprice(self) -> RepriceRun:
        """Take the latest repricing back, also in live messages.

        If it was done here with `for_new_calls`, new calls have the prices of before again. Raises StoreError if
        there is none, CallboardError without a trace.
        """
        return await self._runtime.pricing.undo_reprice()

    # -- the life of the engine

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def start(self) -> None:
        """Start, if it isn't running. A trace file that can't be used now stops nothing, and `health()` says so.

        Raises CallboardError once it is closed, or where no asyncio loop runs; WrongLoop from another loop than
        its first; StoreError if the trace file isn't ours.
        """
        await self._host.start()

    async def aclose(self) -> ShutdownReport | None:
        """Stop everything in order, and close the store; what was stopped, None if it had never started.

        What is under way is cancelled: whoever waits for it gets CancelledError, with what had arrived. Nothing
        new may begin any more. It takes `Timeouts.shutdown` at most, and is idempotent; from any task of the
        engine's loop. Raises WrongLoop, and what had ended the engine before, such as SupervisorEscalated.
        """
        self._host.require_loop()
        life = self._host.life
        return await life.stop() if life is not None else None

    async def flush(self) -> None:
        """Return when everything published so far is committed to the trace. Raises StoreError if it can't be."""
        await self._host.flush()

    # -- how it does

    def statistics(self) -> EngineStatistics:
        """A snapshot of everything that counts; cheap, and also before the start and after the end."""
        return collect(self._runtime, self._host.life)

    def models(self) -> list[ConfiguredModel]:
        """The models that can be asked for, with what they can do and cost, and how they stand. Asks nobody.

        First those of models.yaml, then what else the keys open, as far as the catalogue knows it. Raises
        ConfigurationError if the price snapshot in $CALLBOARD_HOME can't be read.
        """
        consult = self._runtime.adapters.consult
        return configured_models(self.registry, consult, self.availability, self.prices, self.clock)

    async def health(self, *, offline: bool = False, time_limit: float = 5.0) -> HealthReport:
        """Check configuration, keys, providers and store. Makes, starts and pays for nothing.

        offline: ask no provider. time_limit: seconds, for each provider. Raises WrongLoop if the engine runs on
        another loop.
        """
        from .health import examine

        life = self._host.life
        if life is not None and life.state == "running":
            await self.start()
        writer = life.writer.statistics() if life is not None and life.writer is not None else None
        return await examine(self._runtime, writer, offline=offline, time_limit=time_limit)

    @property
    def closed(self) -> bool:
        """True when it has been stopped, or has ended of itself: then another one is needed."""
        return self._host.closed

    def require_loop(self) -> None:
        """Raises WrongLoop on another event loop than its own."""
        self._host.require_loop()

    @property
    def timeouts(self) -> Timeouts:
        """As they were given."""
        return self._runtime.timeouts


def _make_store(store: TraceStore | Path | None, clock: Clock) -> TraceStore:
    if isinstance(store, TraceStore):
        return store
    return TraceStore(store if store is not None else home_folder() / "trace.db", clock=clock)
