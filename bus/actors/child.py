"""The children of a supervisor, their lives one after another, and their description."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeAlias

import anyio
import anyio.abc
import msgspec

from ..clock import Clock
from .actor import Actor, ActorRef, ActorStatistics, Incarnation, Phase
from .restart import OnLimit, RestartPolicy, RestartType, Strategy
from .task_handle import unwrapped


class ChildSpec(msgspec.Struct, frozen=True):
    """An actor to supervise."""

    name: str
    """A name that is unique below its supervisor, and better in the whole tree: lifecycle events carry it."""
    factory: Callable[[], Actor]
    """A function that makes a new instance for every life."""
    restart: RestartType = "permanent"
    """``permanent``: always restarted. ``transient``: restarted after a crash only. ``temporary``: never
    restarted."""
    policy: RestartPolicy | None = None
    """The policy for restarts; None for the supervisor's own."""
    on_limit: OnLimit = "escalate"
    """The reaction to too many failures in a row. ``escalate``: the supervisor gives up. ``stop``: the child stays
    stopped, until `restart_child`, and its siblings live on."""


class ShutdownReport(msgspec.Struct, frozen=True):
    """The report of how a supervisor stopped."""

    clean: bool
    """Whether everything has ended."""
    stuck: tuple[str, ...] = ()
    """The names of tasks that still run."""
    lost: int = 0
    """The number of messages that nobody handled."""


class ChildStatistics(msgspec.Struct, frozen=True):
    """A snapshot of one child."""

    name: str
    """The child's name."""
    phase: Phase
    """``starting``, ``running``, ``closing`` or ``ended``."""
    restarts: int
    """The number of restarts in all."""
    failures: int
    """The number of failures in a row, so far."""
    uptime_seconds: float
    """The age of the current life in seconds; 0.0 if there is none."""
    actor: ActorStatistics | None
    """The actor's snapshot; None for a supervisor."""
    supervisor: SupervisorStatistics | None
    """The supervisor's snapshot; None for an actor."""
    last_crash: str | None = None
    """The type and the text of the exception of its latest crash; None if it never crashed."""
    crashed_us: int | None = None
    """The time of that crash, in microseconds since the epoch, UTC."""


class SupervisorStatistics(msgspec.Struct, frozen=True):
    """A snapshot of a tree of supervision."""

    name: str
    """The supervisor's name."""
    strategy: Strategy
    """The supervisor's strategy."""
    running: bool
    """Whether the supervisor runs."""
    children: tuple[ChildStatistics, ...]
    """The snapshots of its children, in their order of starting."""
    stuck: tuple[str, ...]
    """The names of tasks that did not end when they were told to."""


class Supervising(Protocol):
    """A nested `Supervisor`, as the supervisor above sees it."""

    async def run(self, *, task_status: anyio.abc.TaskStatus[None]) -> None: ...
    async def stop(self, *, budget: float) -> ShutdownReport: ...
    def statistics(self) -> SupervisorStatistics: ...


class SupervisorLife(anyio.abc.TaskStatus[None]):
    """One run of a nested supervisor, with the same interface as an actor's `Incarnation`."""

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
        """Called by `Supervisor.run` when all its children are up."""
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
    """A child of a supervisor over all its lives: the values that it was given, and the two facts that are its
    state.
    """

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
        self.last_crash: str | None = None
        self.crashed_us: int | None = None

    def crashed(self, error: str, now_us: int) -> None:
        """Count one more failure, and keep its reason."""
        self.failures += 1
        self.last_crash, self.crashed_us = error, now_us

    @property
    def active(self) -> bool:
        return self.life is not None and not self.life.ended.is_set()

    def statistics(self, clock: Clock) -> ChildStatistics:
        """A snapshot of the child, and of everything below it."""
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
            last_crash=self.last_crash,
            crashed_us=self.crashed_us,
        )
