"""Calls other than conversations: one request and one answer, without streaming.

Embeddings, images, videos and batches use them. Each is published like every call. The first model that can serve
it and succeeds is used.

The answer for a video or a part of a batch is a job, which continues at its provider without this process:

submitting  one call creates the job. The start of the call is in the journal before the request is sent. The job's
            id follows as soon as it is known. A cancelled creation waits `GRACE_SECONDS` for that id.
running     only the job's handle checks it, with the provider's current adapter (`with_adapter`). An engine has
            one handle for each job.
over        the end is published as a separate call (`EndedCall`), priced when it is first seen. The trace is
            queried before that, so that an end published by another process is not counted again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypedDict, TypeVar, cast
from weakref import WeakKeyDictionary

import anyio
import msgspec

from callboard.adapters import (
    AdapterError,
    AttemptObserver,
    ContextOverflowError,
    RetryPolicy,
    StopReason,
    TokenUsage,
)
from callboard.adapters.actor import start_work
from callboard.adapters.contract import AttemptStarted, ProviderAdapter
from callboard.bus import CallboardError, Cost, LlmCallCompleted, RoutingDecision
from callboard.bus.log import TIME_LIMITS, with_new_names
from callboard.bus.values.base import Json
from callboard.bus.values.messages import CallWarning

from ..budgets.ledger import Amount
from ..budgets.worst_case import Priced, worst_case
from ..calls.events import CallEvents, Served
from ..calls.outcome import CallInfo, without_quotes
from ..calls.preparation import BorrowedAdapters, CallContext, Fallbacks, examined
from ..models.catalogue import nearest
from ..models.entries import ModelEntry
from ..models.registry import published_name
from ..routing.availability import Readiness
from ..routing.candidates import Named, Option, Route, expand, may_fall_back
from ..runtime.adapters import arrival
from ..runtime.runtime import Runtime
from ..tree import PARENT_ENDED, caller_here, tags_here

if TYPE_CHECKING:
    from callboard.adapters.batches import BatchJob
    from callboard.adapters.videos import VideoJob

S = TypeVar("S", bound=Served)
J = TypeVar("J", bound="VideoJob | BatchJob")
T = TypeVar("T")
A = TypeVar("A")

MostOf = Callable[[Priced], Amount]
"""Returns the maximum cost of a call. The argument identifies its price."""

Models = str | Sequence[str] | None
"""A model by any of its names, or several in the order in which they may serve. None is the configured default."""


class CallOptions(TypedDict, total=False):
    """The options of all calls except conversations. If an option is omitted, the adapter's value applies."""

    fallback: Sequence[str] | None
    """The names of other models, tried in order. If omitted, the fallbacks of models.yaml are tried."""
    key: str | None
    """The name of one of the adapter's keys, see `AdapterConfig.keys`. An adapter without a key of that name is
    skipped."""
    provider_options: Mapping[str, Json]
    """Options for one provider, by the name of a protocol or an adapter."""
    max_retries: int | None
    retry: RetryPolicy | None
    timeout: float | None
    """Seconds for each call with its attempts."""
    tags: Mapping[str, str]
    """Tags of the calls in the trace. They are never sent."""


OptionsT = TypeVar("OptionsT", bound=CallOptions)


def require_known(options: OptionsT, kind: type[OptionsT]) -> OptionsT:
    """Check the names of options. Returns them by their new names. Raises TypeError."""
    if options.keys() & TIME_LIMITS.keys():
        options = cast("OptionsT", with_new_names(options, TIME_LIMITS))
    fields = kind.__annotations__
    for name in options:
        if name not in fields:
            near = nearest(name, fields)
            hint = f"did you mean {near[0]}=?" if near else f"see the fields of {kind.__name__}"
            raise TypeError(f"{name}= is not an argument: {hint}")
    return options


class RequestBasics(TypedDict):
    request_id: str
    key: str | None
    provider_options: Mapping[str, Json]
    max_retries: int | None
    retry: RetryPolicy | None
    timeout_seconds: float | None


class PlainCall(CallEvents, Generic[S]):
    """One request with all its attempts. Run it once. Cancelling its task cancels it."""

    def __init__(
        self,
        operation: str,
        context: CallContext,
        *,
        most: Sequence[TokenUsage] | MostOf = (),
        grace: float = 0.0,
        on_answer: Callable[[S], object] | None = None,
        sent_texts: Callable[[], Iterable[str]] = tuple,
    ) -> None:
        super().__init__(context, streamed=False)
        self.operation = operation
        self._most = most
        self._grace = grace
        self._on_answer = on_answer
        self._sent_texts = sent_texts
        self._late: S | None = None

    def _published(self, text: str) -> str:
        return text if self.context.runtime.keeps_all_content else without_quotes(text, self._sent_texts())

    async def run(self, work: Callable[[ProviderAdapter, AttemptObserver], Awaitable[S]]) -> tuple[S, Cost]:
        """The answer that `work` returns, and its cost. Raises AdapterError or BudgetExceededError."""
        most = self._most
        await self.reserve(most if callable(most) else lambda priced: worst_case(priced, most))
        self.begin()
        in_flight = self.context.runtime.in_flight
        in_flight.plain[self] = None
        end: LlmCallCompleted | AdapterError | None = None
        try:
            answer = await self._answer(work)
            end, cost = self._completed_by(answer)
            return answer, cost
        except AdapterError as failure:
            end = failure
            raise
        finally:
            if self._late is not None:
                end, _ = self._completed_by(self._late)
            self.over = True
            in_flight.plain.pop(self, None)
            self.publish_end(end or self.cancelled_error())
            await self.secured()

    def _completed_by(self, answer: S) -> tuple[LlmCallCompleted, Cost]:
        cost = self.price(answer.usage, answer.model)
        return self.completed(answer, cost, StopReason.END_TURN), cost

    async def _answer(self, work: Callable[[ProviderAdapter, AttemptObserver], Awaitable[S]]) -> S:
        running = self.context.running
        assert running is not None
        slots = await self._slot_and_turn(running)
        try:
            handle = start_work(
                running.ref, self.context.request_id, lambda adapter: work(adapter, self.on_attempt)
            )
            try:
                return self._noted(await handle.wait())
            except anyio.get_cancelled_exc_class():
                with anyio.CancelScope(shield=True, deadline=anyio.current_time() + self._grace):
                    with contextlib.suppress(AdapterError):
                        self._late = self._noted(await handle.wait())
                raise
            finally:
                handle.kill()
        finally:
            slots.release()

    def _noted(self, answer: S) -> S:
        if self._on_answer is not None:
            self._on_answer(answer)
        return answer


class PlainCalls(Generic[A]):
    """The calls of one operation. Each part is served by the first model that can serve it and succeeds."""

    def __init__(
        self,
        operation: str,
        runtime: Runtime,
        model: Models,
        options: CallOptions,
        adapter_of: Callable[[ProviderAdapter, Named], A],
        sent_texts: Callable[[], Iterable[str]] = tuple,
    ) -> None:
        self.operation = operation
        self.runtime = runtime
        self.plan = expand(runtime.registry, model, options.get("fallback"))
        """The models that may serve, in order."""
        self._registry = runtime.registry
        self._options = options
        self._adapter_of = adapter_of
        self._sent_texts = sent_texts
        self._adapters = BorrowedAdapters(runtime)
        self._order = arrival()

    async def run(self, work: Callable[[], Awaitable[T]]) -> T:
        """Do all work, once the engine admits it. Closing the engine cancels the work.

        Raises AdmissionError or CancelledError.
        """
        runtime = self.runtime
        await runtime.host.start()
        await runtime.host.admit()
        runtime.pricing.notice()
        caller = caller_here()
        try:
            if caller is None:
                with runtime.in_flight.call():
                    return await work()
            if caller.carried:
                runtime.cluster.reach(caller)
            with runtime.in_flight.call(PARENT_ENDED) as cancel:
                caller.start(self, cancel)
                return await work()
        finally:
            if caller is not None:
                caller.node.release(self)
            self._adapters.end()

    def adapter(self, named: Named) -> A:
        """The adapter of a model, for facts that need no network.

        Raises ConfigurationError or CapabilityError.
        """
        return self._adapter_of(self.runtime.adapters.consult(self._registry.adapter_of(named.entry)), named)

    def basics(self, entry: ModelEntry, request_id: str) -> RequestBasics:
        options = self._options
        retries = options.get("max_retries")
        return {
            "request_id": request_id,
            "key": options.get("key"),
            "provider_options": options.get("provider_options", {}),
            "max_retries": entry.max_retries if retries is None else retries,
            "retry": options.get("retry") or entry.retry,
            "timeout_seconds": options.get("timeout"),
        }

    def examine(self, named: Named, check: Callable[[A, Named], object]) -> Option:
        def judge(adapter: ProviderAdapter, readiness: Readiness) -> Option:
            check(self._adapter_of(adapter, named), named)
            return Option(named=named, readiness=readiness)

        return examined(self.runtime, self._registry, named, judge, self._options.get("key"))

    async def first_that_works(
        self,
        check: Callable[[A, Named], object],
        call: Callable[[Route, str, str | None], Awaitable[T]],
    ) -> T:
        """Return the result of the first model that can serve and succeeds. Middleware is called before each call.

        Raises AdapterError, ConfigurationError or CapabilityError.
        """
        caused_by: str | None = None

        # A text that is too long is too long for every model.
        def may_retry_elsewhere(error: AdapterError) -> bool:
            return may_fall_back(error) and not isinstance(error, ContextOverflowError)

        fallbacks = Fallbacks(
            self.runtime, self.plan, lambda named: self.examine(named, check), may_retry_elsewhere
        )
        while True:
            route = await fallbacks.next()
            request_id = self.runtime.clock.new_id("req")
            about = CallInfo(operation=self.operation, model=route.decision.model, request_id=request_id)
            await self.runtime.middleware.admit(about)
            try:
                return await call(route, request_id, caused_by)
            except CallboardError as error:
                if not fallbacks.go_on_after(error):
                    raise
                if isinstance(error, AdapterError):
                    caused_by = request_id

    async def ask(
        self,
        route: Route,
        request_id: str,
        caused_by: str | None,
        work: Callable[[A, AttemptObserver], Awaitable[S]],
        *,
        estimated_input_tokens: int | None = None,
        most: Sequence[TokenUsage] | MostOf = (),
        grace: float = 0.0,
        on_answer: Callable[[S], object] | None = None,
    ) -> tuple[S, Cost]:
        """Make one call, see `PlainCall`. Returns the answer and its cost. Raises AdapterError."""
        named = route.option.named
        running = await self._adapters.ready(route.decision, request_id)
        context = CallContext(
            runtime=self.runtime,
            request_id=request_id,
            routing=route.decision,
            priced_as=running.published_name(named.entry),
            running=running,
            caused_by=caused_by,
            tags=tags_here(self._options.get("tags")),
            order=self._order,
            estimated_input_tokens=estimated_input_tokens,
            key=self._options.get("key"),
            spills_to=route.others,
        )
        call = PlainCall(
            self.operation, context, most=most, grace=grace, on_answer=on_answer, sent_texts=self._sent_texts
        )
        return await call.run(lambda adapter, report: work(self._adapter_of(adapter, named), report))


# --- Jobs ---

GRACE_SECONDS = 10.0
"""Seconds that a cancelled creation waits for the job's id, so that the job isn't lost."""


class JobOrigin(msgspec.Struct, frozen=True, kw_only=True):
    decision: RoutingDecision
    wire_model: str
    priced_as: str | None
    """The provider whose published prices apply."""
    tags: dict[str, str] | None = None

    @property
    def model(self) -> str:
        """The model as ``provider:name``, by its name at the provider."""
        return f"{self.decision.provider}:{self.wire_model}"


def priced_as(runtime: Runtime, named: Named) -> str | None:
    return published_name(runtime.registry.adapter_of(named.entry), named.entry)


def decision_of(named: Named, requested: str) -> RoutingDecision:
    """The routing decision for a model without alternatives."""
    return RoutingDecision(
        requested=requested,
        model=named.model,
        provider=named.entry.adapter,
        resolved_by=named.resolved_by,
        candidates=(),
    )


class JobAnswer(msgspec.Struct, Generic[J], frozen=True):
    """A job as the answer of a call. The call that creates a job has no usage; the job's end has the usage."""

    job: J
    model: str
    """The model as ``provider:name``."""
    usage: TokenUsage = TokenUsage()

    @property
    def response_id(self) -> str | None:
        return self.job.id

    @property
    def provider_request_id(self) -> str | None:
        return self.job.provider_request_id

    @property
    def warnings(self) -> tuple[CallWarning, ...]:
        return self.job.warnings


class EndedCall(CallEvents):
    """A call without an adapter.

    Its start and its end are published together; its duration counts from `begin`.
    """

    sends = False

    def __init__(
        self, runtime: Runtime, operation: str, origin: JobOrigin, request_id: str, caused_by: str | None
    ) -> None:
        context = CallContext(
            runtime=runtime,
            request_id=request_id,
            routing=origin.decision,
            priced_as=origin.priced_as,
            caused_by=caused_by,
            tags=origin.tags,
        )
        super().__init__(context, streamed=False)
        self.operation = operation
        self.begin()

    def complete(
        self,
        answer: Served,
        key: str | None,
        cost: Cost | None = None,
        stop_reason: StopReason = StopReason.END_TURN,
        raw_stop_reason: str | None = None,
    ) -> Cost:
        """Publish a successful end. If no cost is passed, it is computed with the current prices."""
        self.on_attempt(AttemptStarted(1, key=key))
        cost = self.price(answer.usage, answer.model) if cost is None else cost
        self.publish_end(self.completed(answer, cost, stop_reason, raw_stop_reason))
        return cost

    def fail(self, error: AdapterError, key: str | None) -> None:
        """Publish a failed end. It costs nothing, unless the error has usage."""
        self.on_attempt(AttemptStarted(1, key=key))
        self.publish_end(error)


class PerEngine(Generic[T]):
    """One object for each engine. It is dropped when the engine is."""

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._made: WeakKeyDictionary[Runtime, T] = WeakKeyDictionary()

    def __getitem__(self, runtime: Runtime) -> T:
        return self._made.setdefault(runtime, self._make())


async def with_adapter(runtime: Runtime, provider: str, work: Callable[[Any], Awaitable[T]]) -> T:
    """Run a function with a provider's current adapter, and return its result.

    An earlier adapter may have been replaced or have crashed. The error of a crashed adapter is retryable, because
    the next try uses another adapter.
    """
    with runtime.in_flight.call():
        running = await runtime.adapters.acquire(provider)
        try:
            handle = start_work(running.ref, runtime.clock.new_id("req"), work)
            try:
                return await handle.wait()
            except AdapterError as error:
                if type(error) is AdapterError and error.provider_status is None:
                    error.retryable = True
                raise
            finally:
                handle.kill()
        finally:
            running.release()
