"""Before a call: its facts, and the model and the adapter that serve it.

`CallContext` has the facts that are known before the call starts: its place in the tree, its payer, and its
published settings. `Fallbacks` chooses the models in order. `BorrowedAdapters` keeps the adapters that one caller
uses.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import TypedDict
from urllib.parse import urlsplit

import msgspec

from callboard.adapters import AdapterError, CanonicalRequest, CapabilityError
from callboard.adapters.actor import AdapterActor
from callboard.adapters.contract import ProviderAdapter
from callboard.bus import CallboardError, ConfigurationError, NoModelAvailable, RoutingDecision
from callboard.bus.values.messages import CallSettings

from ..budgets.budget import Payer
from ..budgets.ledger import BudgetExceededError
from ..models.registry import ModelRegistry
from ..routing.availability import LIMITED, READY, Changes, Readiness, readiness_of_key
from ..routing.candidates import Named, Option, Plan, Route, choose, failures_after, may_fall_back
from ..runtime.adapters import RunningAdapter
from ..runtime.runtime import Runtime
from ..tree import Caller, TreeNode
from .outcome import Spending


class CallContext(msgspec.Struct, frozen=True, kw_only=True):
    """The facts of a call that are known before it starts. The call and its events share them."""

    runtime: Runtime
    request_id: str
    routing: RoutingDecision
    priced_as: str | None = None
    """The provider that publishes the model's prices, see `published_name`."""
    running: RunningAdapter | None = None
    """The adapter that makes the call. None for the end of a video's job, which no adapter makes."""
    session_id: str | None = None
    turn_id: str | None = None
    message_id: str | None = None
    caused_by: str | None = None
    """The id of the call that led to this one."""
    tags: dict[str, str] | None = None
    order: int = 0
    """The caller's position in the queue, from `runtime.adapters.arrival`. The lowest number gets a slot first."""
    estimated_input_tokens: int | None = None
    spending: Spending | None = None
    """The turn's sum, to which the cost of the call is added."""
    key: str | None = None
    """The name of the caller's key; None leaves the choice to the adapter."""
    spills_to: tuple[str, ...] = ()
    """The models that may serve instead if this model's rate limits are used up."""
    caller: Caller | None = None
    """The tool run that started the call's turn. A call without a turn finds it itself."""
    node: TreeNode | None = None
    """The node of the call's turn in its tree; None for a root without limits that has run no tool."""


def payer_of(
    model: str, session_id: str | None, tags: dict[str, str] | None, turn_id: str, node: TreeNode | None
) -> Payer:
    """The payer of a call. A call without a turn is its own root, with its own id."""
    if node is None:
        return Payer(model, session_id or "", tags or {}, turn_id, turn_id)
    return Payer(model, session_id or "", tags or {}, node.turn_id, node.root_turn_id, node.accounts)


class Place(TypedDict):
    """The fields of an event that contain the place of a call or turn in the tree."""

    parent_call_id: str | None
    parent_tool_use_id: str | None
    parent_turn_id: str | None
    root_turn_id: str | None
    depth: int | None


def place_below(caller: Caller) -> Place:
    """The place of a call or a turn that a tool has started."""
    node = caller.node
    return {
        "parent_call_id": caller.call_id,
        "parent_tool_use_id": caller.tool_use_id,
        "parent_turn_id": node.turn_id,
        "root_turn_id": node.root_turn_id,
        "depth": node.depth + 1,
    }


# --- The published settings ---

_PORTS = {"http": 80, "https": 443}


def server_of(running: RunningAdapter | None) -> str | None:
    """The server address of an adapter. None if it has none or doesn't report it."""
    actor = None if running is None else running.ref.actor
    url = getattr(actor.made, "base_url", None) if isinstance(actor, AdapterActor) else None
    return url if isinstance(url, str) else None


def settings_of(server: str | None, request: CanonicalRequest | None = None) -> CallSettings | None:
    address, port = (None, None) if server is None else _parts(server)
    if request is None:
        return None if address is None else CallSettings(server_address=address, server_port=port)
    return CallSettings(
        server_address=address,
        server_port=port,
        max_output_tokens=request.max_output_tokens,
        temperature=request.temperature,
        top_p=request.top_p,
        frequency_penalty=request.frequency_penalty,
        presence_penalty=request.presence_penalty,
        seed=request.seed,
        stop_sequences=request.stop_sequences,
        reasoning_effort=request.reasoning_effort,
        output_type=None if request.output_schema is None else "json",
    )


@lru_cache(maxsize=256)
def _parts(url: str) -> tuple[str | None, int | None]:
    try:
        parts = urlsplit(url)
        return parts.hostname, parts.port or _PORTS.get(parts.scheme)
    except ValueError:  # from the host's own adapter
        return None, None


# --- The model and its adapter ---


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
