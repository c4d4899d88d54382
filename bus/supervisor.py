"""Supervisors: start, restart and stop children in order.

    wanted  life           the child is
    yes     not ended      starting, running or closing
    yes     ended          waiting for its restart, which a recovery task does
    no      ended, none    stopped, until restart_child

Every life runs in a separate task that raises nothing, so no child can cancel another. `_ended` handles each end:
an end that was not requested is a failure. Under one_for_all and rest_for_one, only one recovery runs at a time.
Two lives of one child never overlap, so a restart waits for a stuck life. `stop` does not wait for a stuck life,
but lists it in its report. Lives are shielded: if the host cancels `run`, the supervisor stops its children one
after the other. A supervisor that gives up stops its children, and `run` raises `SupervisorEscalated`. A parent
supervisor counts this as a crash.
"""

from __future__ import annotations

from contextlib import AsyncExitStack
from functools import partial

import anyio
import anyio.abc

from .actor import ActorRef, Incarnation
from .bus import Bus
from .child import (
    Child,
    ChildSpec,
    Endings,
    Life,
    RestartPolicy,
    ShutdownReport,
    Strategy,
    SupervisorLife,
    SupervisorStatistics,
    affected,
    verdict,
)
from .clock import Clock
from .errors import ActorStopped, SupervisorEscalated
from .events import operation as events
from .log import Log
from .tasks import describe, unwrapped

_log = Log("bus.supervisor")


class Supervisor:
    """Starts children and restarts them according to a strategy and a policy. A supervisor runs on asyncio or
    trio, in one thread.

    Run it in a task group of your own: ``await group.start(supervisor.run)``. All other methods may then be called
    from any task of the same loop.

    Args:
        name: The supervisor's name, in logs and events.
        bus: The bus for the events of its children.
        clock: The clock; defaults to the bus's own.
        strategy: Which children are restarted together.
        policy: The policy for restarts; defaults to `RestartPolicy()`.
    """

    def __init__(
        self,
        name: str,
        *,
        bus: Bus,
        clock: Clock | None = None,
        strategy: Strategy = "one_for_one",
        policy: RestartPolicy | None = None,
    ) -> None:
        self.name = name
        self.strategy: Strategy = strategy
        self.policy = RestartPolicy() if policy is None else policy
        self._bus = bus
        self._clock = bus.clock if clock is None else clock
        self._children: dict[str, Child] = {}  # in the order in which they were started
        self._group: anyio.abc.TaskGroup | None = None
        self._report = ShutdownReport(clean=True)

    # --- Its own life ---

    async def run(self, *, task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Supervise until `stop` or a cancellation. Children of an earlier run are started first, in order.

        `run` returns when all children have ended. If a child of an earlier run does not start, `run` raises the
        child's exception.

        Raises:
            SupervisorEscalated: The supervisor gave up.
            RuntimeError: The supervisor runs already.
        """
        if self._group is not None:
            raise RuntimeError(f"supervisor {self.name} is already running")
        self._bus.check_thread()
        self._stopping = False
        self._escalation: str | None = None
        self._lost = 0
        self._recoveries: set[anyio.CancelScope] = set()
        self._turn = anyio.Lock()  # with a group strategy, only one recovery runs at a time
        self._until_stopped = anyio.CancelScope()
        self._stopped = anyio.Event()
        try:
            async with anyio.create_task_group() as group:
                self._group, self._endings = group, Endings(group)
                try:
                    with self._until_stopped:
                        await self._start_again()
                        task_status.started()
                        await anyio.sleep_forever()
                finally:
                    with anyio.CancelScope(shield=True):
                        await self._stop_all()
        except ExceptionGroup as error:
            raise unwrapped(error) from None
        finally:
            self._group = None
        if self._escalation is not None:
            raise SupervisorEscalated(self._escalation)

    async def stop(self, *, budget: float = 15.0) -> ShutdownReport:
        """Stop all children, last first, and then the supervisor.

        `stop` returns when every task has ended or is reported as stuck.

        Args:
            budget: Seconds for all children together. Afterwards, the remaining children are cancelled
                immediately.
        """
        if self._group is not None:
            self._endings.deadline = min(self._endings.deadline, anyio.current_time() + budget)
            self._until_stopped.cancel()
            await self._stopped.wait()
        return self._report

    # --- Its children ---

    async def start_child(self, spec: ChildSpec) -> ActorRef:
        """Add an actor, start it, and return when its started() has returned.

        If the first start fails, there is no retry: the child is not added, and its exception is raised here.

        Raises:
            ValueError: The name is taken.
            ActorStopped: The supervisor is not running.
        """
        ref = ActorRef(spec.name, self._bus)

        def make_life() -> Life:
            return Incarnation(ref, spec.factory, self._bus, self._clock)

        policy = spec.policy or self.policy
        await self._add(Child(spec.name, make_life, spec.restart, policy, spec.on_limit, ref))
        return ref

    async def start_supervisor(
        self, name: str, *, strategy: Strategy = "one_for_one", policy: RestartPolicy | None = None
    ) -> Supervisor:
        """Add and start a supervisor as a child of this one. If the new supervisor gives up, this one treats it as
        a crashed child.

        Args:
            name: The name of the new supervisor.
            strategy: The strategy for the children of the new supervisor.
            policy: The policy for the children of the new supervisor; defaults to this supervisor's own.
        """
        nested = Supervisor(
            name, bus=self._bus, clock=self._clock, strategy=strategy, policy=policy or self.policy
        )

        def make_life() -> Life:
            return SupervisorLife(nested, self._clock)

        await self._add(Child(name, make_life, "permanent", self.policy, "escalate", None))
        return nested

    async def stop_child(self, name: str) -> None:
        """Stop a child until `restart_child`. Return when the child has ended or was reported as stuck."""
        child = self._child(name)
        # Stopping takes a limited time. If it were interrupted, the child would be half stopped.
        with anyio.CancelScope(shield=True):
            await self._end(child, "stopped")
        self._close(child)

    async def remove_child(self, name: str) -> None:
        """Stop a child and remove it. Afterwards its name may be used again."""
        await self.stop_child(name)
        del self._children[name]

    async def restart_child(self, name: str) -> None:
        """Start a stopped child again and reset its failure count.

        If the child runs or waits for its restart, nothing changes. If the start fails, the child stays stopped,
        and its exception is raised here.
        """
        child = self._child(name)
        if child.wanted:
            return
        if child.active:
            assert child.life is not None
            await child.life.ended.wait()
        await self._first_start(child)

    def child(self, name: str) -> ActorRef:
        """The ref of an actor; it stays valid over restarts.

        Raises:
            LookupError: No actor has this name.
        """
        ref = self._child(name).ref
        if ref is None:
            raise LookupError(f"{name} below supervisor {self.name} is a supervisor, not an actor")
        return ref

    def statistics(self) -> SupervisorStatistics:
        """Return a snapshot of this supervisor and of its whole tree."""
        return SupervisorStatistics(
            name=self.name,
            strategy=self.strategy,
            running=self._group is not None,
            children=tuple(child.statistics(self._clock) for child in self._children.values()),
            stuck=() if self._group is None else self._endings.stuck,
        )

    # --- Starting ---

    async def _add(self, child: Child) -> None:
        if child.name in self._children:
            raise ValueError(f"supervisor {self.name} already has a child {child.name!r}")
        self._children[child.name] = child
        try:
            await self._first_start(child)
        except BaseException:
            del self._children[child.name]
            raise

    async def _first_start(self, child: Child) -> None:
        self._running_group()
        child.wanted = child.first_start = True
        child.failures = 0
        started = False
        try:
            life = await self._start(child)
            if life.stop_reason is not None:
                raise ActorStopped(f"{child.name} was stopped while it started")
            if life.error is not None and not life.was_started:
                raise life.error
            started = True
        finally:
            child.first_start = False
            if not started:
                with anyio.CancelScope(shield=True):
                    await self._end(child, "start cancelled")
                self._close(child)

    async def _start_again(self) -> None:
        """Start the children of an earlier run."""
        for child in self._children.values():
            if child.wanted:
                child.failures = 0
                life = await self._start(child)
                if life.error is not None and not life.was_started:
                    raise life.error

    async def _start(self, child: Child, *, again: bool = False) -> Life:
        """Start a new life, and wait until it is up or has failed. The caller handles the result."""
        group = self._running_group()
        if child.ref is not None:
            child.ref._open = True
        life = child.life = child.make_life()
        life.on_up = partial(self._started, child, again)
        if isinstance(life, Incarnation):
            life.on_closing = partial(self._endings.closing, life)
        group.start_soon(self._host, child, life, name=child.name)
        await life.up.wait()
        return life

    def _started(self, child: Child, again: bool) -> None:
        # The life itself calls this, so the event comes before the first message, which may crash the actor.
        child.first_start = False
        if again:
            child.restarts += 1
            self._bus.publish(events.ActorRestarted(actor=child.name, restarts=child.restarts))
        else:
            self._bus.publish(events.ActorStarted(actor=child.name))

    async def _host(self, child: Child, life: Life) -> None:
        await life.run()
        try:
            self._ended(child, life)
        finally:
            life.ended.set()

    # --- Ends and their consequences ---

    def _ended(self, child: Child, life: Life) -> None:
        uptime_ns = self._clock.monotonic_ns() - life.started_ns
        if life.was_started and uptime_ns >= child.policy.healthy_after * 1e9:
            child.failures = 0
        if life.error is not None:
            child.failures += 1
            child.last_crash, child.crashed_us = describe(life.error), self._clock.now_us()
            self._bus.publish(
                events.ActorCrashed(actor=child.name, error=describe(life.error), failures=child.failures)
            )
        if life.stop_reason is not None:
            self._bus.publish(events.ActorStopped(actor=child.name, reason=life.stop_reason))
        elif life.cancelled:
            self._retire(child, "cancelled")
        elif self._stopping:
            pass  # `_stop_all` ends it
        elif life.was_started:  # otherwise `_start` waits and handles the failure
            if life.error is None and child.restart == "permanent":
                child.failures += 1
            if self._restart_due(child, life):
                self._running_group().start_soon(self._recover, child, life)

    def _restart_due(self, child: Child, life: Life) -> bool:
        """Decide whether to restart a child that ended without a request. If not, retire the child or escalate.
        Never waits.
        """
        crashed = life.error is not None
        match verdict(child.restart, child.policy, crashed=crashed, failures=child.failures):
            case "restart":
                return True
            case "stay":
                self._retire(child, "crashed" if crashed else "normal")
            case "limit":
                if child.on_limit == "stop":
                    self._retire(child, "restart limit")
                else:
                    self._escalate(child, life)
        return False

    def _escalate(self, child: Child, life: Life) -> None:
        last = "" if life.error is None else f", most recently with {describe(life.error)}"
        reason = f"{child.name} ended {child.failures} times in a row{last}"
        if self._escalation is None and not self._stopping:
            self._escalation = reason
            _log.error("supervisor.escalated", supervisor=self.name, reason=reason)
            self._bus.publish(events.ActorEscalated(actor=child.name, reason=reason))
            self._until_stopped.cancel()

    def _retire(self, child: Child, reason: str) -> None:
        """Mark an ended child as stopped."""
        self._close(child)
        self._bus.publish(events.ActorStopped(actor=child.name, reason=reason))

    def _close(self, child: Child) -> None:
        child.wanted = False
        if child.ref is not None:
            self._lost += child.ref._close()

    async def _recover(self, child: Child, life: Life) -> None:
        if self._stopping:
            return
        with anyio.CancelScope(shield=True) as scope:
            self._recoveries.add(scope)
            try:
                async with AsyncExitStack() as turn:
                    if self.strategy != "one_for_one":
                        await turn.enter_async_context(self._turn)
                    # Another recovery may have restarted the child while this recovery waited for its turn.
                    if child.life is life and child.wanted:
                        await self._restart(child)
            finally:
                self._recoveries.discard(scope)

    async def _restart(self, failed: Child) -> None:
        """Stop the affected children, wait, and start them in order. Try again while one of them fails to
        start.
        """
        while True:
            names = affected(self.strategy, tuple(self._children), failed.name)
            members = [self._children[name] for name in names]
            members = [child for child in members if child.wanted and not child.first_start]
            for child in reversed(members):
                if child.active and child is not failed:
                    await self._end(child, f"restart of {failed.name}")
                    if child.restart == "temporary":
                        self._close(child)
            await anyio.sleep(failed.policy.delay(failed.failures, self._clock.random()))
            again = await self._start_members(members)
            if again is None:
                return
            failed = again

    async def _start_members(self, members: list[Child]) -> Child | None:
        """Start stopped children that should run, in order. Return a child that failed and must be retried."""
        for child in members:
            if child.life is not None and child.life.stop_reason is not None:
                await child.life.ended.wait()  # wait for a stuck life, because two lives must not overlap
            if self._stopping:  # the cancellation has not arrived yet
                return None
            if not child.wanted or child.active:
                continue
            life = await self._start(child, again=True)
            if life.was_started or life.stop_reason is not None:
                continue
            if self._restart_due(child, life):
                return child
            if self._escalation is not None:
                return None
        return None

    # --- Stopping ---

    async def _stop_all(self) -> None:
        self._stopping = True
        for scope in self._recoveries:
            scope.cancel()
        reason = "supervisor stopped" if self._escalation is None else "supervisor escalated"
        for child in reversed(tuple(self._children.values())):
            await self._end(child, reason)
            if child.ref is not None:
                self._lost += child.ref._close()
        stuck = self._endings.stuck
        self._report = ShutdownReport(clean=not stuck, stuck=stuck, lost=self._lost)
        self._stopped.set()

    async def _end(self, child: Child, reason: str) -> None:
        """End a child's life. Return when the life has ended or was reported as stuck."""
        life = child.life
        if life is None or life.ended.is_set():
            if child.wanted and not child.first_start and self._group is not None:  # a restart was due
                self._bus.publish(events.ActorStopped(actor=child.name, reason=reason))
            return
        lost = await self._endings.end(life, reason)
        self._lost += lost  # added after the wait, because other tasks change the sum during the wait

    def _running_group(self) -> anyio.abc.TaskGroup:
        if self._group is None or self._stopping:
            raise ActorStopped(
                f"supervisor {self.name} is not running; start it with 'await group.start(supervisor.run)'"
            )
        return self._group

    def _child(self, name: str) -> Child:
        child = self._children.get(name)
        if child is None:
            names = ", ".join(self._children) or "none"
            raise LookupError(f"supervisor {self.name} has no child {name!r}; it has: {names}")
        return child
