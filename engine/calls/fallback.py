"""Try the allowed models of a call in order, each with a borrowed adapter."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TypeVar

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


T = TypeVar("T")


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


async def first_that_works(
    plan: Plan,
    examine: Callable[[Named], Option],
    attempt: Callable[[Route], Awaitable[T]],
    *,
    may_retry_elsewhere: Callable[[AdapterError], bool] = may_fall_back,
    admit: Callable[[Route], Awaitable[None]] | None = None,
    failed: dict[str, str] | None = None,
    stay_with: str | None = None,
    cached_at: str | None = None,
    may_go: Callable[[str, str], Awaitable[bool]] | None = None,
) -> T:
    """Return the result of the first model that can serve and succeeds. Raises AdapterError or CallboardError."""
    failed = {} if failed is None else failed
    failure: CallboardError | None = None
    while True:
        options = [examine(named) for named in plan.named]
        try:
            route = _choose(plan, options, failed, stay_with, cached_at)
        except CallboardError as refusal:
            raise failure or refusal from None
        if may_go is not None and not await may_go(route.decision.provider, route.decision.model):
            continue
        if admit is not None:
            await admit(route)
        try:
            return await attempt(route)
        except AdapterError as error:
            if not may_retry_elsewhere(error):
                raise
            failed.update(failures_after(error, route.option, options))
            failure = error
        except ConfigurationError as error:
            failed[route.decision.model] = str(error)
            failure = failure or error
        except BudgetExceededError as error:  # the budget had room when the model was examined
            if error.budget.when_full != "cheaper":
                raise
            failed[route.decision.model] = str(error)
            failure = failure or error


def _choose(
    plan: Plan,
    options: Sequence[Option],
    failed: Mapping[str, str],
    stay_with: str | None,
    cached_at: str | None,
) -> Route:
    """The model to use, among the models for which the budgets have room. Raises BudgetExceededError."""
    too_dear = {
        option.named.model: BudgetExceededError(option.too_dear)
        for option in options
        if option.too_dear is not None and option.named.model not in failed
    }
    out = {**failed, **{model: str(error) for model, error in too_dear.items()}} if too_dear else failed
    try:
        return choose(plan, options, failed=out, stay_with=stay_with, cached_at=cached_at)
    except NoModelAvailable as refusal:
        raise next(iter(too_dear.values()), refusal) from None
