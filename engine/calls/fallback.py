"""Try the allowed models of a call in order, each with a borrowed adapter."""

from __future__ import annotations

from collections.abc import Callable

from callboard.adapters import AdapterError, CapabilityError
from callboard.adapters.contract import ProviderAdapter
from callboard.bus import CallboardError, ConfigurationError, NoModelAvailable, RoutingDecision

from ..budgets.ledger import BudgetExceededError
from ..models.registry import ModelRegistry
from ..routing.availability import LIMITED, READY, Changes, Readiness, readiness_of_key
from ..routing.candidates import Named, Option, Plan, Route, choose, failures_after, may_fall_back
from ..runtime.adapters import RunningAdapter
from ..runtime.runtime import Runtime


class BorrowedAdapters:
    """The adapters that one borrower uses from their first use until `end()`.

    If a reload replaces an adapter, the borrower keeps the old one.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._adapters: dict[str, RunningAdapter] = {}

    async def ready(self, decision: RoutingDecision, request_id: str) -> RunningAdapter:
        """The adapter of a routing decision, started if needed. The call is noted in the availability table.

        Raises AdapterError or ConfigurationError.
        """
        runtime = self._runtime
        now_us = runtime.clock.now_us
        self._publish(runtime.availability.begin(decision.provider, decision.model, request_id, now_us()))
        try:
            return await self._adapter(decision.provider)
        except BaseException as error:
            self._publish(runtime.availability.abandon(request_id, now_us()))
            if isinstance(error, CallboardError) and not isinstance(error, AdapterError):
                raise
            if isinstance(error, Exception):
                self._publish(runtime.availability.crashed(decision.provider, now_us()))
                if not isinstance(error, AdapterError):
                    what = f"adapter {decision.provider!r} failed to start: {type(error).__name__}: {error}"
                    raise AdapterError(what, provider=decision.provider, request_id=request_id) from error
            raise

    def end(self) -> None:
        while self._adapters:
            self._adapters.popitem()[1].release()

    async def _adapter(self, provider: str) -> RunningAdapter:
        mine = self._adapters.get(provider)
        if mine is not None and mine.ref.running:
            return mine
        running = await self._runtime.adapters.acquire(provider)
        mine = self._adapters.get(provider)  # checked again: another call of the same borrower may have started it
        if mine is not None and mine.ref.running:
            running.release()
            return mine
        if mine is not None:
            mine.release()
        self._adapters[provider] = running
        return running

    def _publish(self, changes: Changes) -> None:
        for change in changes:
            self._runtime.bus.publish(change)


def examined(
    runtime: Runtime,
    registry: ModelRegistry,
    named: Named,
    judge: Callable[[ProviderAdapter, Readiness], Option],
    key: str | None = None,
) -> Option:
    """Examine a model that may serve: everything that is known before a request is sent."""
    entry = named.entry
    now_us = runtime.clock.now_us()
    readiness = runtime.availability.readiness(entry.adapter, named.model, now_us)
    if readiness is READY and not runtime.rate_limits.is_free(entry.adapter, named.model, key or ""):
        readiness = LIMITED
    try:
        adapter = runtime.adapters.consult(registry.adapter_of(entry))
        return judge(adapter, readiness_of_key(readiness, adapter, key, entry.wire_name, now_us))
    except (ConfigurationError, CapabilityError) as error:
        return Option(named=named, obstacle=error, readiness=readiness)


class Fallbacks:
    """The models of one call in the order in which they are tried.

    The caller takes a `next` route and makes the call. If the call fails, `go_on_after` decides whether the caller
    may take the next one.

    Args:
        runtime: The parts of the engine.
        plan: The models that may serve, in order.
        examine: Examines a model before each choice.
        may_retry_elsewhere: Whether another model may be tried after an error.
        failed: The models that can't be used, each with the reason. Failures are added.
        stay_with: The model to try before all others.
        cached_at: The deployment that has the conversation in its prompt cache.
    """

    def __init__(
        self,
        runtime: Runtime,
        plan: Plan,
        examine: Callable[[Named], Option],
        may_retry_elsewhere: Callable[[AdapterError], bool] = may_fall_back,
        *,
        failed: dict[str, str] | None = None,
        stay_with: str | None = None,
        cached_at: str | None = None,
    ) -> None:
        self._may_go = runtime.cluster.may_go
        self._plan = plan
        self._examine = examine
        self._may_retry_elsewhere = may_retry_elsewhere
        self._failed = {} if failed is None else failed
        self._stay_with = stay_with
        self._cached_at = cached_at
        self._failure: CallboardError | None = None  # the error to raise if no model is left
        self._options: list[Option] = []
        self._route: Route | None = None

    async def next(self) -> Route:
        """The next route. If no model is left, raises the last AdapterError or the reason."""
        while True:
            self._options = [self._examine(named) for named in self._plan.named]
            try:
                route = self._route = self._choose()
            except CallboardError as refusal:
                raise self._failure or refusal from None
            if self._may_go is None or await self._may_go(route.decision.provider, route.decision.model):
                return route

    def go_on_after(self, error: CallboardError) -> bool:
        """Note the failure of the last route. Returns whether another model may be tried."""
        assert self._route is not None
        if isinstance(error, AdapterError):
            if not self._may_retry_elsewhere(error):
                return False
            self._failed.update(failures_after(error, self._route.option, self._options))
            self._failure = error
            return True
        if isinstance(error, BudgetExceededError):  # the budget had room when the model was examined
            if error.budget.when_full != "cheaper":
                return False
        elif not isinstance(error, ConfigurationError):
            return False
        self._failed[self._route.decision.model] = str(error)
        self._failure = self._failure or error
        return True

    def _choose(self) -> Route:
        """The model to use, among the models for which the budgets have room. Raises BudgetExceededError."""
        failed = self._failed
        too_dear = {
            option.named.model: BudgetExceededError(option.too_dear)
            for option in self._options
            if option.too_dear is not None and option.named.model not in failed
        }
        out = {**failed, **{model: str(error) for model, error in too_dear.items()}} if too_dear else failed
        try:
            return choose(
                self._plan, self._options, failed=out, stay_with=self._stay_with, cached_at=self._cached_at
            )
        except NoModelAvailable as refusal:
            raise next(iter(too_dear.values()), refusal) from None
