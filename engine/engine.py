"""The engine: the object that a host makes. It composes bus, adapters, streams, store and prices."""

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
from .conversation.options import TurnOptions
from .conversation.results import GenerateResult
from .generation.asking import Arguments, new_turn
from .generation.generating import generate_on
from .generation.low_level import complete, turn_of
from .generation.reading import OnUsage
from .generation.streaming import StreamResult
from .home import home_folder
from .media.methods import MediaMethods
from .middleware.chain import Chain, MiddlewareLike
from .models.config import load_registry
from .models.configured import ConfiguredModel, configured_models
from .models.entries import AdapterEntry
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

    Or let the first turn start it, and `aclose()` it. It is for one event loop, of asyncio or uvloop: from any
    other its methods raise WrongLoop, and without one CallboardError. Once closed it stays closed.

    The published prices are those of `callboard prices update`, else the shipped ones.

    Args:
        models: A registry, or the path of a models.yaml. None is $CALLBOARD_HOME/models.yaml, else the
            environment's keys.
        store: A trace store, or the path of its file. None is $CALLBOARD_HOME/trace.db.
        trace: Whether to keep a trace.
        capture_content: Whether to keep the content of messages, too, so that sessions can be resumed.
        redact: A function that gets each message before it is stored, and returns the message to store, or None
            for nothing. It gets the system prompt as a message of the system. It runs on the event loop, so it
            must be quick.
        prices: A table, which is used as it is; or the path of a price file, whose rows go before those of the
            published prices. None is $CALLBOARD_HOME/prices.yaml, if there is one.
        middleware: Middleware around calls, the outermost first, see `engine.middleware`.
        limits: Bounds of the engine, see `Limits`.
        timeouts: Time limits of the engine, see `Timeouts`.
        clock: The source of all times, ids and randomness.
        providers: Adapters by their names, besides those that are configured; see `register`.

    Raises:
        ConfigurationError: The configuration, the prices or the arguments are wrong.
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
        """An engine from $CALLBOARD_HOME, or ~/.callboard, and the environment's keys alone.

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
    def store(self) -> TraceStore | None:
        """The trace; None without one."""
        return self._runtime.store

    @property
    def availability(self) -> AvailabilityTable:
        """The state of providers and models."""
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
        """The adapters by name, registered ones included. An adapter that isn't configured lacks its key."""
        return {name: entry.state for name, entry in self.registry.adapters.items()}

    @property
    def default_provider(self) -> str | None:
        """The provider of names that say no other, if there is one: the one of models.yaml, or the first with a
        key.
        """
        return self.registry.default_provider

    def register(self, name: str, adapter: Provider, *, prices_as: str | None = None) -> None:
        """Use an adapter of the host's own. Its models are ``name:model``, whatever their names.

        Turns that begin from now on know it, and a reload leaves it.

        Args:
            name: The name of the adapter.
            adapter: An adapter, or a function that makes one each time. A given adapter is the engine's from now
                on, and is used as it is after a crash, too.
            prices_as: The provider whose published prices its models have, where its class doesn't say it.

        Raises:
            ConfigurationError: The name is taken, or models can't be called by it.
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
        """A new session.

        Args:
            model: Any of a model's names, several of them in order, or a `ModelChoice`; checked now.
            system_prompt: The system prompt of its turns.
            tools: The tools of its turns.
            session_id: An id in place of a new one.
            tags: The tags of its calls, for the trace; never sent.
            fallback: The models to try when the first one fails; None leaves it to models.yaml.
            requires: The abilities that the model must have, besides those that the requests show.
            approve: A function that decides about each call of a tool before it runs.
            context: The policy for a history that has grown too long, see `engine.conversation.context`; None
                always sends all of it.
            name: A name for people.

        Raises:
            ConfigurationError: A name is unknown, or two tools have one name.
            CallboardError: A session of that id is open.
        """
        expand(self.registry, model, fallback)
        state = SessionState(
            session_id or self.clock.new_id("ses"),
            model,
            system_prompt,
            tools,
            tags or {},
            options={"fallback": fallback, "approve": approve, "context": context},
            requires=requires,
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
        """A stored session, with its history as it was. The session may be one of another process, or of one that
        was killed.

        From then on the session is this engine's. With `capture_content`, another engine that had it open learns
        so with its next turn, which raises SessionTakenOver.

        Args:
            session_id: The id of the session.
            tools: The tools with the code that runs them, which is not stored. None takes the stored definitions,
                as passive tools.
            model: A model in place of the stored one.
            system_prompt: A system prompt in place of the stored one.
            fallback: Fallback models in place of the stored ones.
            approve: As in `session`.
            context: As in `session`.

        Raises:
            CallboardError: The session is open, is not stored, or is not stored as a whole.
            ConfigurationError: The session's model is not known here.
            StoreError: The trace can't be read.
        """
        await (await self._host.living()).settle()
        options: TurnOptions = {"fallback": fallback, "approve": approve, "context": context}
        state = await resumed(self._runtime, session_id, tools, model, system_prompt, options)
        session = self._open(state)
        if model is not None:
            self._runtime.sessions.change_model(state, model)
        return session

    async def sessions(self, *, limit: int | None = 1000) -> list[SessionInfo]:
        """The sessions that are open here, and sessions of the trace, the latest first.

        Args:
            limit: The largest number of sessions of the trace; None is all of them.

        Raises:
            StoreError: The trace can't be read.
        """
        return await listed(self._runtime, limit)

    async def delete_session(self, session_id: str) -> bool:
        """Forget a session: the open one, and its stored messages.

        Its calls stay in the trace, and so does their cost. A Session that is still held begins anew with its next
        turn.

        Returns:
            False if there was no such session.

        Raises:
            SessionBusy: A turn of the session runs.
            StoreError: The trace can't be written.
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
        """A session from a document that `Session.export` has written, with its history and settings. The document
        may come from another engine.

        Args:
            document: The document.
            session_id: An id in place of the exported one.
            tools: Tools in place of the exported ones; without them its tools are passive.
            model: A model in place of the exported one.

        Raises:
            CallboardError: The document is no exported session, or a session of that id is open.
            ConfigurationError: The session's model is not known here.
        """
        await self.start()
        state = state_of(self._runtime, imported(document), session_id=session_id, tools=tools, model=model)
        session = self._open(state)
        self._runtime.sessions.announce(state)
        return session

    def attach(self, stream_id: str, *, from_seq: int | Literal["tail"] = 0) -> StreamReader[TurnEvent]:
        """One more reader of a turn's stream. When it comes or leaves, nothing changes for the turn.

        A reader from 0 gets the folded messages whole, with their text in one piece. A reader that goes on after
        earlier events gets a StreamReset instead.

        Args:
            stream_id: The id of the stream.
            from_seq: The seq of the first event to read, from 0; ``"tail"`` for the events that come from now on.

        Raises:
            UnknownStream: The turn has been over for too long.
            ValueError: `from_seq` is beyond the end.
            WrongLoop: The engine belongs to another event loop.
        """
        self._host.require_loop()
        return self.streams.attach(stream_id, from_seq=from_seq, unfold=spelled_out)

    async def reload(self, models: ModelRegistry | Path | None = None) -> ConfigReloaded:
        """Take over a new configuration.

        The configuration is read and checked first: a bad one changes nothing. Turns under way end on the adapters
        and with the registry that they began with. Adapters that have changed or gone are stopped when their last
        turn is over. New turns see the new configuration.

        Args:
            models: A registry, or the path of a models.yaml. None reads this engine's source again.

        Returns:
            The differences.

        Raises:
            ConfigurationError: The new configuration is wrong.
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
        """One reply to a request, without a session. It is routed, traced and priced, and no tools are run.

        It raises the exceptions of `Session.send`.

        Args:
            request: The request. It keeps its ids, unless they are empty.
            tags: The tags of the call, for the trace; never sent.
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
        """See `engine.stream`. For a `CanonicalRequest` it streams one reply, as `complete` gives it; no tools are
        run.

        Raises:
            TypeError: An argument is given that a request can't have besides it.
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
        """The vectors of texts, however many. The texts are cut into batches that the provider takes, several of
        them at once.

        Each batch is a call of its own, and retried by itself. Without texts nothing is sent, and nothing costs.
        Cancelling the task that waits here ends all batches; the vectors that had come are lost, and paid for.

        Args:
            texts: The texts, or one text.
            model: Any of a model's names, or several names of one and the same model; None is the configured
                default.
            options: The fields of `EmbeddingOptions`.

        Raises:
            PartialEmbeddingError: Some texts could not be embedded; the exception has the vectors of the others.
            AdapterError: No text could be embedded.
            ConfigurationError: The configuration is wrong, or the vectors of two models can't be compared.
            AdmissionError: The trace writer is too far behind.
        """
        from .embedding import EmbeddingOptions, embed

        return await embed(self._runtime, texts, model, EmbeddingOptions(**options))

    # -- money

    @property
    def prices(self) -> PriceTable:
        """The price table of new calls. A call has the price of the moment in which its attempt starts."""
        return self._runtime.pricing.prices

    async def use_prices(self, prices: PriceTable | Path | str, *, alone: bool = False) -> PriceTable:
        """Price new calls by another table from now on.

        The costs of earlier calls stay as they are; `reprice` changes them. Other engines keep their tables.

        Args:
            prices: A table, a price file, or the version of a table that the trace knows. Its rows go before those
                of the published prices.
            alone: Whether to use these prices without the published ones; then a model that they don't list is
                unpriced.

        Returns:
            The table in force.

        Raises:
            ConfigurationError: The file is bad.
            StoreError: The version is unknown.
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
        """Price the stored calls by another price table. The report has their costs.

        Unless `dry_run` is set, the new costs are kept, and live messages show them afterwards. New calls go on at
        the prices of this engine's own table.

        Args:
            version: A table, or the version of one that the trace knows.
            where: A filter for the calls to price.
            dry_run: Whether to report only, and to keep the stored costs.
            as_model: A ``provider:name``; the calls are priced as if every call had gone there. Such costs are
                never kept.
            for_new_calls: Whether to price new calls of this engine by that table too, as `use_prices` does.
                `undo_reprice` takes that back as well, if no other table was chosen since.

        Raises:
            StoreError: The version is unknown, or the trace can't be used.
            CallboardError: The engine keeps no trace.
        """
        return await self._runtime.pricing.reprice(
            version, where=where, dry_run=dry_run, as_model=as_model, for_new_calls=for_new_calls
        )

    async def undo_reprice(self) -> RepriceRun:
        """Take the latest repricing back, also in live messages.

        If it was done here with `for_new_calls`, new calls have their former prices again.

        Raises:
            StoreError: There is no repricing to take back.
            CallboardError: The engine keeps no trace.
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
        """Start the engine, if it isn't running. A trace file that can't be used now stops nothing, and `health()`
        reports it.

        Raises:
            CallboardError: The engine is closed, or no asyncio loop runs here.
            WrongLoop: The engine belongs to another event loop.
            StoreError: The trace file isn't ours.
        """
        await self._host.start()

    async def aclose(self) -> ShutdownReport | None:
        """Stop everything in order, and close the store. Any task of the engine's loop may call it, and a second
        call does nothing.

        Calls under way are cancelled: their callers get CancelledError, with the content that had arrived. Nothing
        new may begin any more. It takes `Timeouts.shutdown` at most. An exception that had ended the engine
        before, such as SupervisorEscalated, is raised here.

        Returns:
            The report of the stop; None if the engine had never started.

        Raises:
            WrongLoop: The engine belongs to another event loop.
        """
        self._host.require_loop()
        life = self._host.life
        return await life.stop() if life is not None else None

    async def flush(self) -> None:
        """Return when everything published so far is committed to the trace.

        Raises:
            StoreError: It can't be committed.
        """
        await self._host.flush()

    # -- how it does

    def statistics(self) -> EngineStatistics:
        """A snapshot of everything that counts; cheap, and also before the start and after the end."""
        return collect(self._runtime, self._host.life)

    def models(self) -> list[ConfiguredModel]:
        """The models that can be asked for, with their abilities, costs and availability. No provider is asked.

        The models of models.yaml come first, then the others that the keys open, as far as the catalogue knows
        them.

        Raises:
            ConfigurationError: The price snapshot in $CALLBOARD_HOME can't be read.
        """
        consult = self._runtime.adapters.consult
        return configured_models(self.registry, consult, self.availability, self.prices, self.clock)

    async def health(self, *, offline: bool = False, time_limit: float = 5.0) -> HealthReport:
        """Check configuration, keys, providers and store. It makes, starts and pays for nothing.

        Args:
            offline: Whether to ask no provider.
            time_limit: Seconds for each provider.

        Raises:
            WrongLoop: The engine runs on another loop.
        """
        from .health import examine

        life = self._host.life
        if life is not None and life.state == "running":
            await self.start()
        writer = life.writer.statistics() if life is not None and life.writer is not None else None
        return await examine(self._runtime, writer, offline=offline, time_limit=time_limit)

    @property
    def closed(self) -> bool:
        """True when the engine has been stopped, or has ended by itself. Then another engine is needed."""
        return self._host.closed

    def require_loop(self) -> None:
        """Check that the engine's own event loop runs here.

        Raises:
            WrongLoop: Another event loop runs here.
        """
        self._host.require_loop()

    @property
    def timeouts(self) -> Timeouts:
        """The time limits as they were given."""
        return self._runtime.timeouts


def _make_store(store: TraceStore | Path | None, clock: Clock) -> TraceStore:
    if isinstance(store, TraceStore):
        return store
    return TraceStore(store if store is not None else home_folder() / "trace.db", clock=clock)
