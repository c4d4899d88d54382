"""Snapshots of an engine: its work in progress, its statistics, and the methods that return them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Literal, TypeAlias, Unpack

import anyio
import msgspec

from callboard.adapters import ContentBlock, Message, TokenUsage, UsageSource
from callboard.adapters.actor import AdapterActor
from callboard.adapters.contract import ProviderAdapter
from callboard.adapters.health import AdapterStatistics, ReportsStatistics
from callboard.bus import (
    ActorRef,
    Bus,
    BusStatistics,
    CallboardError,
    CostSum,
    DropOldest,
    StreamChannelStatistics,
    SupervisorStatistics,
    TextDelta,
    ThinkingDelta,
    ToolUseInputDelta,
)
from callboard.bus.log import warn_of_old_name
from callboard.bus.streams.events import TurnEvent
from callboard.tracestore import WriterStatistics

from ..calls.call import Call
from ..calls.events import CallEvents
from ..conversation.options import TurnOptions, options_among
from ..conversation.turn import Turn
from ..routing.availability import Availability
from ..routing.model_choice import Model, model_text
from ..routing.rate_limits import RateLimits
from ..routing.rate_slots import RateLimit, RateLimitQueue
from ..runtime.adapters import RunningAdapter
from ..runtime.alone import OwnershipStatistics
from ..runtime.in_flight import InFlight
from ..runtime.lifecycle import Life
from ..runtime.runtime import Runtime
from ..sessions.resuming import SessionToOpen, stored_state

if TYPE_CHECKING:
    from ..sessions.session import Session
    from .preview import RequestPreview


# --- Turns and calls in progress ---
# Nothing is counted until a reader requests it. A `Watcher` reads each event of a stream only once.


CHARACTERS_PER_TOKEN = 4
"""The number of characters for each token, to estimate a reply in progress."""

Stage: TypeAlias = Literal["queued", "working", "waiting", "asking", "replying", "ending"]


class ActiveWork(msgspec.Struct, frozen=True, kw_only=True):
    """A turn that has not ended, or a call without a turn."""

    id: str
    """The id of the turn and of its stream. For a call without a turn, the id of the call."""
    kind: Literal["turn", "call"]
    """``turn``, or ``call`` for a call without a turn, such as embeddings. Such a call can only be cancelled by
    the task that made it.
    """
    operation: str
    """``chat``, ``embeddings``, ``image``, ``video_create``, ``video``, ``batch_create`` or ``batch``."""
    stage: Stage
    """The stage: ``queued`` behind another turn of its session, or ``waiting`` for a slot, a rate limit or a
    budget.

    The next stages are ``asking`` until the first content, ``replying``, and ``working`` between calls, for
    example while tools run. After a cancellation, the stage is ``ending``.
    """
    model: str
    """The model of the call in progress, as ``provider:name``. Without a call in progress, the requested model, as
    text.
    """
    session_id: str | None
    """The session, if there is one."""
    session_name: str | None
    """The name of the session, if it has one."""
    tags: dict[str, str]
    """The tags of the turn's calls."""
    started_us: int | None
    """The time of the request, in microseconds since the epoch; None if the id has no time."""
    request_id: str | None
    """The call in progress, if there is one."""
    attempt: int
    """The number of the current attempt of that call, from 1; 0 before the first."""
    elapsed_ms: int
    """Milliseconds since the start of that call."""
    first_token_ms: int | None
    """Milliseconds from the start of the current call to its first content."""
    steps: int
    """The number of complete replies."""
    calls: int
    """The number of calls that have started."""
    events: int
    """The number of events in the stream."""
    characters: int
    """The number of characters of text, thinking and arguments in the stream."""
    output_tokens: int
    """The output tokens of ended calls, and an estimate for the call in progress."""
    cost: CostSum
    """The cost of ended calls, and an estimate for the call in progress."""
    parent_turn_id: str | None = None
    """The turn whose tool started this turn or call."""
    depth: int = 0
    """The number of turns above this turn or call in the tree."""
    below: CostSum = CostSum()
    """The cost of all ended turns and calls that the tools of this turn have started."""
    readers: int
    """The number of readers of the stream."""
    max_lag: int
    """The number of events that the slowest reader has not read."""


class WorkInProgress(msgspec.Struct, frozen=True, kw_only=True):
    """Everything in progress in an engine."""

    items: tuple[ActiveWork, ...]
    """The turns and calls in the order in which they were requested, limited to the requested number."""
    total: int
    """The total number of turns and calls."""
    characters: int
    """The number of characters in all streams since the first request for this report. The number only grows, so
    two reports give the speed.
    """


class _Read:
    """The position up to which a stream was read."""

    def __init__(self) -> None:
        self.seq = 0
        self.characters = 0
        self.before = 0  # the number of characters of ended calls
        self.request_id = ""


class Watcher:
    """Observes the turns and calls of one engine."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._read: dict[str, _Read] = {}
        self._characters = 0

    def look(self, limit: int | None = None) -> WorkInProgress:
        """The work in progress now."""
        in_flight = self._runtime.in_flight
        turns = [each for each in in_flight if isinstance(each, Turn)]
        plain = [each for each in in_flight.plain if isinstance(each, CallEvents)]
        before = self._read
        self._read = {turn.id: self._counted(turn, before.get(turn.id) or _Read()) for turn in turns}
        items = [self._turn(turn) for turn in turns[:limit]]
        rest = None if limit is None else limit - len(items)
        items += [_plain(call) for call in plain[:rest]]
        return WorkInProgress(items=tuple(items), total=len(turns) + len(plain), characters=self._characters)

    def turn(self, turn_id: str) -> Turn | None:
        found = (each for each in self._runtime.in_flight if isinstance(each, Turn) and each.id == turn_id)
        return next(found, None)

    def _counted(self, turn: Turn, read: _Read) -> _Read:
        call, log = turn.call, turn.log
        if call is not None and call.request.request_id != read.request_id:
            read.request_id, read.before = call.request.request_id, read.characters
        seq = log.next_seq
        if seq > read.seq:
            new = _characters(log.since(read.seq))
            read.seq = seq
            read.characters += new
            self._characters += new
        return read

    def _turn(self, turn: Turn) -> ActiveWork:
        read, call, spent = self._read[turn.id], turn.call, turn.spending
        written = (read.characters - read.before) // CHARACTERS_PER_TOKEN if call is not None else 0
        readers = [reader.lag for reader in turn.log.readers]
        state = turn.state
        return ActiveWork(
            id=turn.id,
            kind="turn",
            operation="chat",
            stage=_stage(turn, call),
            model=call.context.routing.model if call is not None else model_text(turn.model),
            session_id=state.id or None,
            session_name=state.name,
            tags=state.tags,
            started_us=made_us(turn.id),
            request_id=call.request.request_id if call is not None else None,
            attempt=call.attempt if call is not None else 0,
            elapsed_ms=call.elapsed_ms if call is not None else 0,
            first_token_ms=call.first_token_ms if call is not None else None,
            steps=len(turn.steps),
            calls=spent.calls,
            events=turn.log.next_seq,
            characters=read.characters,
            output_tokens=sum(usage.output_tokens for usage in spent.usages) + written,
            cost=spent.sum + _so_far(call, written) if call is not None and call.requested else spent.sum,
            readers=len(readers),
            max_lag=max(readers, default=0),
            parent_turn_id=None if turn.caller is None else turn.caller.node.turn_id,
            depth=0 if turn.node is None else turn.node.depth,
            below=CostSum() if turn.node is None else turn.node.below,
        )


def _characters(events: Sequence[TurnEvent]) -> int:
    characters = 0
    for event in events:
        if isinstance(event, TextDelta | ThinkingDelta):
            characters += len(event.text)
        elif isinstance(event, ToolUseInputDelta):
            characters += len(event.partial_json)
    return characters


def _so_far(call: Call, written: int) -> CostSum:
    """An estimate of a call's cost if it ended now."""
    sent = call.context.estimated_input_tokens or 0
    usage = TokenUsage(sent, written, source=UsageSource.ESTIMATED)
    return CostSum.of_call(usage, call.cost_of(usage))


def _stage(turn: Turn, call: Call | None) -> Stage:
    if turn.scope.cancelled:
        return "ending"
    if turn in turn.state.queue:
        return "queued"
    if call is None:
        return "working"
    if not call.requested:
        return "waiting"
    return "asking" if call.first_token_ms is None else "replying"


def _plain(call: CallEvents) -> ActiveWork:
    context = call.context
    return ActiveWork(
        id=context.request_id,
        kind="call",
        operation=call.operation,
        stage="asking" if call.attempt else "waiting",
        model=context.routing.model,
        session_id=None,
        session_name=None,
        tags=context.tags or {},
        started_us=made_us(context.request_id),
        request_id=context.request_id,
        attempt=call.attempt,
        elapsed_ms=call.elapsed_ms,
        first_token_ms=None,
        steps=0,
        calls=1,
        events=0,
        characters=0,
        output_tokens=0,
        cost=CostSum(calls=1),
        readers=0,
        max_lag=0,
        parent_turn_id=None if call.caller is None else call.caller.node.turn_id,
        depth=0 if call.caller is None else call.caller.node.depth + 1,
    )


_LETTERS = {letter: value for value, letter in enumerate("0123456789ABCDEFGHJKMNPQRSTVWXYZ")}


def made_us(identifier: str) -> int | None:
    """The creation time in an id ``<prefix>_<ulid>``, in microseconds; None for any other text."""
    ulid = identifier.rpartition("_")[2]
    if len(ulid) != 26:
        return None
    milliseconds = 0
    for letter in ulid[:10]:
        value = _LETTERS.get(letter)
        if value is None:
            return None
        milliseconds = milliseconds << 5 | value
    return milliseconds * 1000


# --- Changes ---
# While turns are in progress, streams may grow without an event on the bus, so the streams are checked at
# intervals. Otherwise the watcher sleeps until the next event.


async def _changes(bus: Bus, in_flight: InFlight, min_interval: float) -> AsyncIterator[None]:
    with bus.subscribe(">", policy=DropOldest(1), name="changes") as events:
        while True:
            yield
            if events.closed:
                return
            await anyio.sleep(min_interval)
            if not len(in_flight):
                await events.wait()
            events.take()


# --- Statistics ---


class ProviderStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """A snapshot of one provider: its adapter, its calls and its rate limits."""

    provider: str
    running: bool
    """Whether the provider's adapter runs."""
    in_flight: int
    """The number of calls in progress. Each uses a slot."""
    waiting: int
    """The number of calls that wait for a slot."""
    slots: int
    """The maximum number of concurrent calls."""
    adapter: AdapterStatistics | None
    """The adapter's own counts; None while it does not run, or if it has no counts."""
    rate_limits: tuple[RateLimit, ...] = ()
    """The rate limits that are known, declared or learned."""
    rate_limit_queues: tuple[RateLimitQueue, ...] = ()
    """The calls that wait for rate limits, and the reasons."""


class EngineStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """A snapshot of an engine.

    Before the start, `supervisor` and `writer` are None. After the end, they have their last numbers.
    """

    state: Literal["new", "starting", "running", "closed"]
    uptime_seconds: float
    """Seconds since the start. For a closed engine, seconds from start to end."""
    sessions: int
    """The number of sessions to which the host has a reference."""
    turns_running: int
    """The number of turns in progress."""
    turns_waiting: int
    """The number of turns that wait for an earlier turn of their session."""
    providers: tuple[ProviderStatistics, ...]
    """The providers that calls have used."""
    availability: tuple[Availability, ...]
    """The availability of providers and models in any other state than ``available``."""
    bus: BusStatistics
    streams: StreamChannelStatistics
    """The statistics of the streams of turns."""
    supervisor: SupervisorStatistics | None
    writer: WriterStatistics | None
    """The statistics of the trace's writer; None without a trace."""
    prices_version: str
    """The version of the current price table."""
    budget_waiting: int = 0
    """The number of calls that wait for room in a budget."""
    node: OwnershipStatistics | None = None
    """In a cluster with a shared store, the node's lease and its sessions."""


def collect(runtime: Runtime, life: Life | None) -> EngineStatistics:
    sessions = list(runtime.sessions.states.values())
    supervisor = life.supervisor if life is not None else None
    writer = life.writer if life is not None else None
    return EngineStatistics(
        state=life.state if life is not None else "new",
        uptime_seconds=life.uptime_seconds if life is not None else 0.0,
        sessions=len(sessions),
        turns_running=sum(state.running is not None for state in sessions),
        turns_waiting=sum(state.waiting for state in sessions),
        providers=tuple(
            _provider(name, running, runtime.rate_limits) for name, running in runtime.adapters.running.items()
        ),
        availability=runtime.availability.snapshot(),
        bus=runtime.bus.statistics(),
        streams=runtime.streams.statistics(),
        supervisor=supervisor.statistics() if supervisor is not None else None,
        writer=writer.statistics() if writer is not None else None,
        prices_version=runtime.prices.version,
        budget_waiting=runtime.budgets.waiting,
        node=runtime.cluster.statistics(),
    )


def live_adapter(ref: ActorRef) -> ProviderAdapter | None:
    """The adapter of a running actor; None while the actor is down."""
    actor = ref.actor
    return actor.made if ref.running and isinstance(actor, AdapterActor) else None


def _provider(name: str, running: RunningAdapter, limits: RateLimits) -> ProviderStatistics:
    slots = running.slots
    adapter: object = live_adapter(running.ref)
    return ProviderStatistics(
        provider=name,
        running=running.ref.running,
        in_flight=slots.used,
        waiting=slots.waiting,
        slots=slots.total,
        adapter=adapter.statistics() if isinstance(adapter, ReportsStatistics) else None,
        rate_limits=tuple(limits.of(name)),
        rate_limit_queues=tuple(limits.queues(name)),
    )


# --- Methods of the engine ---


class WatchingMethods:
    _runtime: Runtime

    @cached_property
    def _watcher(self) -> Watcher:
        return Watcher(self._runtime)

    def in_progress(self, *, limit: int | None = None) -> WorkInProgress:
        """The turns and calls that have not ended, with their content and cost so far.

        Each event of a stream is read only once, even if you call this often.

        Args:
            limit: The maximum number of turns and calls to describe. The rest are only counted.

        Raises:
            WrongLoop: The engine belongs to another event loop.
        """
        self._runtime.host.require_loop()
        return self._watcher.look(limit)

    def under_way(self, *, limit: int | None = None) -> WorkInProgress:
        """Deprecated: use `in_progress`, which has the same `limit`."""
        warn_of_old_name("Engine.under_way() is deprecated: use Engine.in_progress()")
        return self.in_progress(limit=limit)

    async def cancel(self, turn_id: str, *, owner: str | None = None) -> bool:
        """Cancel a turn by its id. The turn's caller gets CancelledError, with the content that has arrived.

        In a cluster, the turn may run on another node, which then cancels it.

        Args:
            turn_id: The id of the turn and its stream.
            owner: The owner that the stream must have, as in `attach`; None cancels the turn of any owner.

        Returns:
            False if no such turn of that owner is in progress, or its node does not answer.

        Raises:
            WrongLoop: The engine belongs to another event loop.
        """
        self._runtime.host.require_loop()
        turn = self._watcher.turn(turn_id)
        if turn is not None:
            return (owner is None or turn.log.owner == owner) and turn.cancel()
        return await self._runtime.cluster.streams.cancel(turn_id, owner)

    def changes(self, *, min_interval: float = 0.5) -> AsyncIterator[None]:
        """Yield an item immediately, and then whenever the engine's statistics may have changed.

        Call `statistics()` or `in_progress()` after each item. If the engine is idle, this uses no CPU. The
        iteration ends when the engine is closed.

        Args:
            min_interval: The minimum time between two items, in seconds.
        """
        return _changes(self._runtime.bus, self._runtime.in_flight, min_interval)

    async def preview(
        self,
        session: Session | str,
        content: str | Sequence[ContentBlock] = "…",
        *,
        model: Model | None = None,
        **options: Unpack[TurnOptions],
    ) -> RequestPreview:
        """The request of a session's next turn, as it would be sent to the model's provider.

        The `losses` of the result list the parts that would not be sent. The session must be open here, or stored
        with all its content. Nothing is sent, and the session does not change. The context policy and middleware
        do not run.

        Args:
            session: The session, or its id.
            content: The content of the turn, text or blocks.
            model: The model; None uses the session's model.
            options: The fields of `TurnOptions` for the turn.

        Raises:
            CallboardError: The session does not exist, or its content is missing.
            ConfigurationError: No model has that name.
            StoreError: The trace can't be read.
            TypeError: The option does not exist.
        """
        from .preview import preview

        runtime = self._runtime
        session_id = session if isinstance(session, str) else session.id
        turn_options = options_among(options, advice={})
        state = runtime.sessions.states.get(session_id)
        if state is None:
            await runtime.host.start()
            state = await stored_state(runtime, SessionToOpen(session_id=session_id, model=model))
        if not content:
            raise CallboardError("the message of a turn can't be empty")
        return preview(runtime, state, model, Message.user(content), turn_options)

    def preview_sync(
        self,
        session: Session | str,
        content: str | Sequence[ContentBlock] = "…",
        *,
        model: Model | None = None,
        **options: Unpack[TurnOptions],
    ) -> RequestPreview:
        """Run `preview` without an event loop; see `Session.send_sync`.

        Raises:
            WrongLoop: The engine belongs to another event loop.
        """
        from ..sync import sync_host

        host = sync_host()

        async def shown() -> RequestPreview:
            host.keep(self._runtime.host)
            return await self.preview(session, content, model=model, **options)

        return host.run(shown, name="preview_sync()")


# --- Renamed classes ---

OLD_CLASSES = {"UnderWay": ActiveWork, "WorkUnderWay": WorkInProgress}
"""The renamed public classes, by their old names."""


def old_class(name: str) -> object:
    """A renamed class, with a warning. Raises KeyError for other names."""
    new = OLD_CLASSES[name]
    warn_of_old_name(f"{name} is deprecated: use {new.__name__}")
    return new
