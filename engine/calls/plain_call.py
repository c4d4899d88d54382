"""Calls that are no conversation: one question, one answer, nothing streamed. Embeddings, images, jobs.

Each is published like every call, and goes to the first of the models that may serve it that works.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable
from typing import TypeVar

import anyio

from adapters import AdapterError, AttemptObserver, ContextOverflowError, StopReason
from adapters.actor import start_work
from adapters.contract import ProviderAdapter
from bus import ActorRef, CallboardError, ConfigurationError, Cost, LlmCallCompleted
from bus.errors import CancelledError

from ..routing.candidates import Named, Option, Plan, Route, choose, failures_after, may_fall_back
from ..runtime.runtime import Runtime
from .events import CallEvents, CallInfo, EventScene, Served
from .slots import CallSlots

S = TypeVar("S", bound=Served)
T = TypeVar("T")


class PlainCall(CallEvents):
    """One question, with all its attempts. Run it once, in the task whose end is to end it.

    grace: for so many seconds an answer that is on its way is still awaited when the call is cancelled, because it
    says what is paid for; `on_answer` is told it then as well.
    """

    def __init__(
        self,
        operation: str,
        request_id: str,
        scene: EventScene,
        *,
        grace: float = 0.0,
        on_answer: Callable[[Served], object] | None = None,
    ) -> None:
        super().__init__(scene, request_id, None, streamed=False)
        self.operation = operation
        self._grace = grace
        self._on_answer = on_answer
        self._late: Served | None = None

    async def run(
        self,
        adapter: ActorRef,
        slots: CallSlots,
        order: int,
        work: Callable[[ProviderAdapter, AttemptObserver], Awaitable[S]],
    ) -> tuple[S, Cost]:
        """What `work` gives, and its cost. Raises AdapterError.

        order: of who asked; whoever did so first gets a slot first.
        """
        self.begin()
        terminal: LlmCallCompleted | None = None
        error: AdapterError = CancelledError("the call was cancelled", request_id=self._request_id)
        try:
            response = await self._ask(adapter, slots, order, work)
            cost = self.price(response.usage, response.model)
            terminal = self.completed(response, cost, StopReason.END_TURN)
            return response, cost
        except AdapterError as failure:
            error = failure
            raise
        finally:
            if self._late is not None:
                cost = self.price(self._late.usage, self._late.model)
                terminal = self.completed(self._late, cost, StopReason.END_TURN)
            self.over = True
            self.publish_terminal(terminal, error)
            await self.secured()

    async def _ask(
        self,
        ref: ActorRef,
        slots: CallSlots,
        order: int,
        work: Callable[[ProviderAdapter, AttemptObserver], Awaitable[S]],
    ) -> S:
        await slots.acquire(order)
        try:
            handle = start_work(ref, self._request_id, lambda adapter: work(adapter, self.on_attempt))
            try:
                return self._noted(await handle.wait())
            except anyio.get_cancelled_exc_class():
                with anyio.CancelScope(shield=True, deadline=anyio.current_time() + self._grace):
                    with contextlib.suppress(AdapterError):
                        self._late = self._noted(await handle.wait())
                raise
            finally:
                handle.kill()  # which does nothing if it is done
        finally:
            slots.release()

    def _noted(self, answer: S) -> S:
        if self._on_answer is not None:
            self._on_answer(answer)
        return answer


async def first_that_works(
    runtime: Runtime,
    operation: str,
    plan: Plan,
    examine: Callable[[Named], Option],
    call: Callable[[Route, str, str | None], Awaitable[T]],
) -> T:
    """What `call` gives for the first of the plan's models that can and does serve.

    examine: whether a model can, and how it stands. call: gets the route, the id of the request, and that of the
    one which failed before it. Middleware is asked before each. Raises AdapterError, ConfigurationError: the last
    failure, or why there is no model; and what middleware raises.
    """
    failed: dict[str, str] = {}
    failure: CallboardError | None = None
    caused_by: str | None = None
    while True:
        options = [examine(named) for named in plan.named]
        try:
            route = choose(plan, options, failed=failed)
        except CallboardError as refusal:
            raise failure or refusal from None
        request_id = runtime.clock.new_id("req")
        about = CallInfo(operation=operation, model=route.decision.model, request_id=request_id)
        await runtime.middleware.admit(about)
        try:
            return await call(route, request_id, caused_by)
        except AdapterError as error:
            if isinstance(error, ContextOverflowError) or not may_fall_back(error):
                raise  # a text that is too long is too long elsewhere
            failed.update(failures_after(error, route.option, options))
            failure, caused_by = error, request_id
        except ConfigurationError as error:
            failed[route.decision.model] = str(error)
            failure = failure or error
