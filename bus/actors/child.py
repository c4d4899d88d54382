"""What a supervisor has below it: children, their lives one after another, and how they are described."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeAlias

import anyio
import anyio.abc
import msgspec

from ..clock import Clock
from .actor import Actor, ActorRef, ActorStatistics, Incarnation, Phase
from .restart import OnLimit, RestartPolicy, RestartType, Strategy
from .task import unwrapped


class ChildSpec(msgspec.Struct, frozen=True):
    """An actor to supervise.

    name: unique below its supervisor, and better in the whole tree: lifecycle events carry it.
    factory: makes a new instance for every life. restart: ``permanent``, always; ``transient``, after a crash
    only; ``temporary``, never. policy: None for the supervisor's own.
    on_limit: what happens after too many failures in a row. ``escalate``: the supervisor gives up. ``stop``: the
    child stays stopped, until `restart_child`, and its siblings live on.
    """

    name: str
    factory: Callable[[], Actor]
    restart: RestartType = "permanent"
    policy: RestartPolicy | None = None
    on_limit: OnLimit = "escalate"


class ShutdownReport(msgspec.Struct, frozen=True):
    """How a supervisor stopped. clean: everything has ended. stuck: the names of what still runs. lost: messages
    that nobody got to.
    """

    clean: bool
    stuck: tuple[str, ...] = ()
    lost: int = 0


class ChildStatistics(msgspec.Struct, frozen=True):
    """A snapshot of one child. restarts: in all. failures: in a row, so far.

    uptime_seconds: of the current life; 0.0 if there is none. actor: None for a supervisor; supervisor: None for
    an actor.
    """

    name: str
    phase: Phase
    restarts: int
    failures: int
    uptime_seconds: float
    actor: ActorStatistics | None
    supervisor: SupervisorStatistics | None


class SupervisorStatistics(msgspec.Struct, frozen=True):
    """A snapshot of a tree of supervision. children: in the order of their starting.

    stuck: names of tasks that did not end when they were told to.
    """

    name: str
    strategy: Strategy
    running: bool
    children: tuple[ChildStatistics, ...]
    stuck: tuple[str, ...]


class Supervising(Protocol):
    """A nested `Supervisor`, as the one above sees it."""

    async def run(self, *, task_status: anyio.abc.TaskStatus[None]) -> None: ...
    async def stop(self, *, budget: float) -> ShutdownReport: ...
    def statistics(self) -> SupervisorStatistics: ...


class SupervisorLife(anyio.abc.TaskStatus[None]):
    """One run of a nested supervisor, with the same face as an actor's `Incarnation`."""

    def __init__(self, supervisor: Supervising, clock: Clock) -> None:
        self.supervisor = supervisor
        self.phase: Phase = "starting"
        self.error: Exception | None = None
        self.cancelled = False
        self.was_started = False
        self.started_ns = 0
        self.stop_reason: str | None = None
        self.on_up: Callable[[], None] | None = None
        self.up = anyio.Event()
        self.ended = anyio.Event()
        self._clock = clock

    def started(self, value: None = None) -> None:
        """Told by `Supervisor.run` when all its children are up."""
        self.was_started = True
        self.started_ns = self._clock.monotonic_ns()
        self.phase = "running"
        if self.on_up is not None:
            self.on_up()
        self.up.set()

    async def run(self) -> None:
        try:
            with anyio.CancelScope(shield=True):
                await self.supervisor.run(task_status=self)
        except anyio.get_cancelled_exc_class():
            self.cancelled = True  # as in Incarnation.run
        except Exception as error:
            self.error = unwrapped(error)
        finally:
            self.phase = "ended"
            self.up.set()


Life: TypeAlias = Incarnation | SupervisorLife


class Child:
    """A child of a supervisor over all its lives: what it was given, and the two facts that are its state."""

    def __init__(
        self,
        name: str,
        make_life: Callable[[], Life],
        restart: RestartType,
        policy: RestartPolicy,
        on_limit: OnLimit,
        ref: ActorRef | None,
    ) -> None:
        self.name = name
        self.make_life = make_life
        self.restart = restart
        self.policy = policy
        self.on_limit = on_limit
        self.ref = ref
        self.wanted = False
        self.first_start = False
        self.life: Life | None = None
        self.failures = 0
        self.restarts = 0

    @property
    def active(self) -> bool:
        return self.life is not None and not self.life.ended.is_set()

    def statistics(self, clock: Clock) -> ChildStatistics:
        """A snapshot of it, and of all below it."""
        life = self.life
        up = life is not None and life.phase == "running"
        return ChildStatistics(
            name=self.name,
            phase="ended" if life is None else life.phase,
            restarts=self.restarts,
            failures=self.failures,
            uptime_seconds=(clock.monotonic_ns() - life.started_ns) / 1e9 if life and up else 0.0,
            actor=None if self.ref is None else self.ref.statistics(),
            supervisor=life.supervisor.statistics() if isinstance(life, SupervisorLife) else None,
        )
