"""An engine's life on one event loop: its root task and its actors.

The store is the outer context, and the supervised actors are the inner one. They start in this order: trace
writer, shipper, cluster parts, availability, session manager, adapters. They stop in reverse. First, all work is
cancelled; the stop starts when it has ended, or after half of the shutdown time. Events published during the stop
are written before the store closes. The root is a separate task, so that any task can close the engine.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Literal

import anyio
import anyio.abc

from callboard.adapters.actor import AdapterActor
from callboard.bus import (
    ActorRef,
    ActorStopped,
    CallboardError,
    ChildSpec,
    Cost,
    Envelope,
    Lossless,
    PricingTableLoaded,
    ProviderAvailabilityChanged,
    ShutdownReport,
    StoreError,
    StoreUnavailable,
    Supervisor,
    TaskHandle,
)
from callboard.bus.actor import WorkActor
from callboard.bus.log import Log
from callboard.bus.tasks import unwrapped
from callboard.tracestore import Store

from ..conversation.results import Reply
from ..models.entries import AdapterEntry
from ..routing.availability import report_crashes
from ..sessions.open import ApplyCosts, SessionManager
from ..tree import current_tool
from .adapters import CallSlots, RunningAdapter, Startable, wait_for_restart
from .in_flight import require_asyncio, require_loop
from .process import RunningEngine, engines
from .runtime import Admission, Runtime

if TYPE_CHECKING:
    from callboard.tracestore import WriterCore


_log = Log("engine.hosting")

MEMORY_US = 24 * 3600 * 1_000_000
"""The age in microseconds above which stored changes of availability are ignored after a restart."""

MEMORY_EVENTS = 100_000
"""The maximum number of the latest events that are searched for these changes, so that starting with a large trace
is fast.
"""

SHIPPING_SECONDS = 5.0
"""The maximum time in seconds that one turn waits for the shared store, if replies wait for it. A call without a
turn has the same limit.
"""

LAST_SHIPPING_SECONDS = 2.0
"""Seconds for shipping the remaining events when the engine ends."""


def _take_exception(task: asyncio.Task[None]) -> None:
    """Mark the task's exception as retrieved, to avoid asyncio's warning. It is logged, and raised in callers that
    start, use or close the engine.
    """
    if not task.cancelled():
        task.exception()


class Life:
    """An engine's life on one event loop: its root task and everything that runs below it."""

    def __init__(self, runtime: Runtime, forget: Callable[[], None]) -> None:
        self.loop = asyncio.get_running_loop()
        self.manager: ActorRef
        self._runtime = runtime
        self._forget = forget  # called if the start fails, so that the next start tries again
        self.supervisor: Supervisor | None = None
        self._adapters: Supervisor
        self._group: anyio.abc.TaskGroup
        self._providers: dict[str, str] = {}  # the providers of the adapters' actors, by actor name
        self._started = 0
        self._waited: dict[str, float] = {}  # seconds that each running turn has waited for the shared store
        self.writer: WriterCore | None = None
        self._noted: RunningEngine | None = None  # the entry of this engine in the process's registry
        self._up = asyncio.Event()
        self._stop = asyncio.Event()
        self._report: ShutdownReport | None = None
        self._started_ns = runtime.clock.monotonic_ns()
        self._stopped_ns: int | None = None
        self._task = asyncio.create_task(self._root(), name="callboard engine")
        self._task.add_done_callback(_take_exception)

    @property
    def state(self) -> Literal["starting", "running", "closed"]:
        if self._task.done():
            return "closed"
        return "running" if self._up.is_set() else "starting"

    @property
    def uptime_seconds(self) -> float:
        """Seconds since the creation; after the end, the seconds that the engine ran."""
        until = self._runtime.clock.monotonic_ns() if self._stopped_ns is None else self._stopped_ns
        return (until - self._started_ns) / 1e9

    @property
    def runs_here(self) -> bool:
        """Whether the engine runs on the current event loop."""
        is_up = self._up.is_set() and not (self._stop.is_set() or self._task.done())
        return is_up and asyncio.get_running_loop() is self.loop

    async def ready(self) -> None:
        """Wait until the engine runs. Raises the exception of a failed start, or CallboardError if the engine is
        closed.
        """
        if self._up.is_set() or self._stop.is_set():
            self._require_open()
            return
        up = asyncio.ensure_future(self._up.wait())
        try:
            await asyncio.wait((up, self._task), return_when=asyncio.FIRST_COMPLETED)
        finally:
            up.cancel()
        if not self._up.is_set():
            self._forget()
            self._task.result()
        self._require_open()

    def _require_open(self) -> None:
        if self._stop.is_set() or self._task.done():
            error = self._task.exception() if self._task.done() and not self._task.cancelled() else None
            why = "" if error is None else f" ({error})"
            raise CallboardError(f"this engine is closed{why}. Create a new one")

    async def stop(self) -> ShutdownReport | None:
        """Stop, and wait for the end. Raises SupervisorEscalated."""
        self._stop.set()
        if not self._task.done():
            await asyncio.wait((self._task,))
        if not self._task.cancelled() and (error := self._task.exception()) is not None:
            raise error
        return self._report

    async def flush(self) -> None:
        if self.writer is not None:
            await self.writer.flush()

    async def settle(self) -> bool:
        if self.writer is None:
            return True
        adopted = await self.writer.adopted()
        await self.writer.flush()
        return adopted

    async def ship(self, turn_id: str | None, *, last: bool) -> None:
        """Wait until all published events are in the shared store, or the store is unreachable."""
        waited = 0.0 if turn_id is None else self._waited.pop(turn_id, 0.0)
        began = anyio.current_time()
        if waited < SHIPPING_SECONDS:
            await self._shipped(SHIPPING_SECONDS - waited)
        if turn_id is not None and not last:
            self._waited[turn_id] = waited + anyio.current_time() - began

    async def share(self) -> bool:
        """Wait until all published events are in the shared store. Return whether they are."""
        if self._runtime.shipper is not None:
            return await self._shipped(SHIPPING_SECONDS, "not_shared_in_time")
        try:
            await self.flush()
        except StoreError:
            return False
        return True

    async def _shipped(self, seconds: float, otherwise: str = "not_shipped_before_reply") -> bool:
        shipper = self._runtime.shipper
        if shipper is None or self.writer is None:
            return True
        why = "it took too long"
        with anyio.move_on_after(seconds):
            try:
                await self.writer.flush()
            except StoreError as error:
                why = str(error)
            else:
                if await shipper.shipped(seconds):
                    return True
                why = shipper.statistics().reason or why
        _log.warning(otherwise, error=why)
        return False

    async def _root(self) -> None:
        try:
            await self._live()
        finally:
            with anyio.CancelScope(shield=True):
                await self._runtime.middleware.aclose()
            self._stopped_ns = self._runtime.clock.monotonic_ns()

    async def _live(self) -> None:
        store = self._runtime.store
        if store is not None:
            try:
                await store.open()
            except StoreUnavailable as error:
                # Calls continue. The writer keeps the events as long as it has room.
                _log.error("store_not_open", error=str(error))
        try:
            await self._supervise()
        finally:
            with anyio.CancelScope(shield=True):
                await self._end(store)

    async def _end(self, store: Store | None) -> None:
        node, shipper = self._runtime.cluster, self._runtime.shipper
        if self.writer is not None:
            await self.writer.close()  # events published while the actors stopped must be written, too
        await node.drain()
        if store is not None:
            await store.close()
        shipped = shipper is None or await shipper.finish(LAST_SHIPPING_SECONDS)
        await node.close(shared=shipped)

    async def _supervise(self) -> None:
        runtime = self._runtime
        try:
            async with anyio.create_task_group() as group:
                self._group = group
                root = self.supervisor = Supervisor("callboard", bus=runtime.bus, clock=runtime.clock)
                await group.start(root.run)
                budget = runtime.timeouts.shutdown
                try:
                    await self._start_children(root)
                    self._noted = engines().note(RunningEngine(runtime.bus, self.loop, runtime.store, self.flush))
                    self._up.set()
                    await self._stop.wait()
                    began = anyio.current_time()
                    await runtime.in_flight.end(budget / 2)
                    budget -= anyio.current_time() - began
                finally:
                    with anyio.CancelScope(shield=True):
                        self._report = await root.stop(budget=budget)
        except ExceptionGroup as error:
            raise unwrapped(error) from None
        finally:
            if self._up.is_set():  # if the start fails, the next start uses it
                runtime.bus.close()

    async def _start_children(self, root: Supervisor) -> None:
        runtime = self._runtime
        bus, clock = runtime.bus, runtime.clock
        if runtime.store is not None:
            from callboard.tracestore import TraceWriter, WriterCore

            core = self.writer = WriterCore.for_bus(
                runtime.store,
                bus,
                capture=runtime.capture,
                prices=runtime.prices,
                delivered=runtime.cluster.delivered,
            )
            runtime.cluster.follow(core)
            await root.start_child(ChildSpec("trace writer", lambda: TraceWriter(core)))
        if (shipper := runtime.shipper) is not None:
            shipper.use_delivered(runtime.cluster.delivered)
            await root.start_child(
                ChildSpec("trace shipper", lambda: WorkActor(shipper.run, "trace shipper"), on_limit="stop")
            )
        await runtime.cluster.start(root)
        await self._restore_availability()
        stopped = bus.subscribe("actor.stopped", policy=Lossless(), name="availability")
        report = partial(report_crashes, runtime.availability, stopped, bus, clock, self._providers.get)
        await root.start_child(ChildSpec("availability", lambda: WorkActor(report, "availability")))
        self.manager = await root.start_child(
            ChildSpec("session manager", lambda: SessionManager(runtime.sessions.states))
        )
        self._adapters = await root.start_supervisor("adapters")
        prices = runtime.prices
        bus.publish(PricingTableLoaded(pricing_version=prices.version, label=prices.label, rows=len(prices.rows)))

    async def start_adapter(self, entry: AdapterEntry) -> RunningAdapter:
        """Start the actor of an adapter. Raises the exception of the adapter's start."""
        clock = self._runtime.clock
        actor = entry.name
        if actor in self._providers:  # the previous actor is still stopping
            self._started += 1
            actor = f"{entry.name}, reload {self._started}"

        def make() -> AdapterActor:
            return AdapterActor(lambda: entry.create(clock))

        self._providers[actor] = entry.name
        try:
            ref = await self._adapters.start_child(ChildSpec(actor, make, on_limit="stop"))
        except BaseException:
            del self._providers[actor]
            raise
        return RunningAdapter(entry, ref, self._slots(entry))

    def _slots(self, entry: AdapterEntry) -> CallSlots:
        return CallSlots(entry.max_concurrency or self._runtime.limits.calls_per_provider)

    async def revive_adapter(self, running: RunningAdapter) -> None:
        """Restart the actor of an adapter that exhausted its restarts. Raises the error of its start."""
        await self._adapters.restart_child(running.ref.name)

    def retire(self, running: RunningAdapter) -> None:
        """Stop an adapter when the last turn or call that uses it has ended."""
        self._group.start_soon(self._retire, running, name=f"retire {running.ref.name}")

    async def _retire(self, running: RunningAdapter) -> None:
        await running.wait_idle()  # this also ends at shutdown, because turns end before the session manager
        await self._adapters.remove_child(running.ref.name)
        self._providers.pop(running.ref.name, None)

    async def _restore_availability(self) -> None:
        """Restore the last state of each provider. Events older than a day are ignored."""
        runtime = self._runtime
        if runtime.store is None:
            return
        now_us = runtime.clock.now_us()
        topic = ProviderAvailabilityChanged.topic_of()
        try:
            after = await runtime.store.last_event_id() - MEMORY_EVENTS
            history = await runtime.store.events(
                topic=topic, since=now_us - MEMORY_US, after_id=max(after, 0), limit=None
            )
        except StoreError as error:
            _log.warning("availability_not_restored", error=str(error))
            return
        adapters = runtime.registry.adapters
        events = (envelope for envelope in history if getattr(envelope.data, "provider", None) in adapters)
        runtime.availability.restore(events, now_us)


class EngineHost:
    """The `Host` of one engine: its life, once it has started."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._life: Life | None = None
        self._admission = Admission(runtime.limits)

    @property
    def life(self) -> Life | None:
        """The engine's life; None before the first start. It is kept after the end."""
        return self._life

    @property
    def started(self) -> bool:
        return self._life is not None

    @property
    def closed(self) -> bool:
        return self._life is not None and self._life.state == "closed"

    @property
    def runs_here(self) -> bool:
        return self._life is not None and self._life.runs_here

    def require_loop(self, instead: str = "") -> None:
        if self._life is not None and not self.closed:
            require_loop(self._life.loop, instead)

    async def start(self) -> None:
        await self.running_life()

    async def aclose(self) -> ShutdownReport | None:
        self.require_loop()
        return await self._life.stop() if self._life is not None else None

    async def running_life(self) -> Life:
        """The life of the engine. It is started if needed. The exceptions are the same as for `start`."""
        require_asyncio()
        if self._life is None:
            # If a tool starts the engine, the engine's tasks must not inherit the tool's context, because other
            # code also uses the engine.
            around = contextvars.copy_context()
            around.run(current_tool.set, None)
            self._life = around.run(Life, self._runtime, self._forget)
        life = self._life
        require_loop(life.loop)
        await life.ready()
        return life

    def _forget(self) -> None:
        self._life = None

    async def watch_commits(self, callback: Callable[[Sequence[Envelope]], object]) -> None:
        if (writer := (await self.running_life()).writer) is not None:
            writer.watch_commits(callback)

    async def start_turn(self, turn: Startable) -> TaskHandle[Reply]:
        life = self._life
        if life is None or not life.runs_here:
            life = await self.running_life()
        manager = life.manager
        await wait_for_restart(manager)
        turn.enter_queue()
        try:
            return manager.spawn(turn.run, name=f"turn {turn.id}")
        except ActorStopped as error:
            turn.leave_queue(error)
            raise

    async def admit(self) -> None:
        if self._runtime.budgets:
            await self._runtime.budgets.loaded()
        writer = self._life.writer if self._life is not None else None
        if writer is not None:
            await self._admission.admit(writer)

    async def secure(self, turn_id: str | None = None, *, last: bool = False) -> None:
        writer = self._life.writer if self._life is not None else None
        if writer is not None:
            await writer.secure()
        if self._life is not None and self._runtime.ships_before_reply:
            await self._life.ship(turn_id, last=last)

    def secure_now(self) -> None:
        writer = self._life.writer if self._life is not None else None
        if writer is not None:
            writer.secure_now()

    async def flush(self) -> None:
        await (await self.running_life()).flush()

    async def share(self) -> bool:
        return await (await self.running_life()).share()

    async def settle(self) -> bool:
        return await (await self.running_life()).settle()

    def spawn(self, work: Callable[[], Awaitable[object]], *, name: str) -> None:
        if self._life is not None:
            self._life.manager.spawn(work, name=name)

    async def show_costs(self, costs: Mapping[str, Cost]) -> None:
        await (await self.running_life()).manager.ask(ApplyCosts(costs))

    async def start_adapter(self, entry: AdapterEntry) -> RunningAdapter:
        return await (await self.running_life()).start_adapter(entry)

    async def revive_adapter(self, running: RunningAdapter) -> None:
        await (await self.running_life()).revive_adapter(running)

    def retire(self, running: RunningAdapter) -> None:
        if self._life is not None:
            self._life.retire(running)
