"""Children of a supervisor: their specifications, their lives, and the decision to restart them.

    how it ended    permanent   transient   temporary
    crashed         restart     restart     stay
    normally        restart     stay        stay

A child that failed `max_failures` times in a row is not restarted. A normal end of a permanent child is also
counted. The count returns to zero when a child has run for `healthy_after` seconds. A limit such as five failures
within five seconds would never apply, because the waits between restarts take seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, Protocol, TypeAlias

import anyio
import anyio.abc
import msgspec

from .actor import STOPPING_SECONDS, Actor, ActorRef, ActorStatistics, Incarnation, Phase
from .clock import Clock
from .log import Log
from .tasks import unwrapped

RestartType: TypeAlias = Literal["permanent", "transient", "temporary"]
"""The ends after which a child is restarted. ``permanent``: every end. ``transient``: crashes only. ``temporary``:
none.
"""

Strategy: TypeAlias = Literal["one_for_one", "one_for_all", "rest_for_one"]
"""The children that are restarted after a failure. ``one_for_one``: the failed child. ``one_for_all``: all
children. ``rest_for_one``: the failed child and all children that were started after it.
"""

OnLimit: TypeAlias = Literal["escalate", "stop"]
"""The reaction to too many failures in a row. ``escalate``: the supervisor gives up. ``stop``: the child stays
stopped.
"""

Verdict: TypeAlias = Literal["stay", "restart", "limit"]


class RestartPolicy(msgspec.Struct, frozen=True):
    """The time limits of a supervisor.

    Raises:
        ValueError: `max_failures` is below 1.
    """

    max_failures: int = 5
    """The number of failures in a row at which the child is not restarted; 1 means no restart.

    A failed start is also a failure.
    """
    healthy_after: float = 30.0
    """Seconds of life after which the failure count of a child returns to zero."""
    backoff_base: float = 0.1
    """The longest wait before the first restart, in seconds. Restart n in a row waits a random time below
    ``min(backoff_cap, backoff_base * 2 ** (n - 1))``.
    """
    backoff_cap: float = 5.0
    """The longest wait before any restart, in seconds."""

    def __post_init__(self) -> None:
        if self.max_failures < 1:
            raise ValueError(f"RestartPolicy(max_failures={self.max_failures}): must be at least 1")

    def delay(self, failures: int, randomness: float) -> float:
        """The seconds to wait before the next restart.

        Args:
            failures: The number of failures in a row.
            randomness: A number in [0, 1).
        """
        exponent = min(max(failures - 1, 0), 60)  # a larger exponent overflows
        return float(min(self.backoff_cap, self.backoff_base * 2**exponent) * randomness)


def verdict(restart: RestartType, policy: RestartPolicy, *, crashed: bool, failures: int) -> Verdict:
    """Decide whether to restart a child that ended without a request. `failures` includes this end."""
    if restart == "temporary" or (restart == "transient" and not crashed):
        return "stay"
    return "limit" if failures >= policy.max_failures else "restart"


def affected(strategy: Strategy, children: Sequence[str], failed: str) -> tuple[str, ...]:
    """The children to restart when one child has ended, in the order in which they were started.

    Args:
        strategy: The supervisor's strategy.
        children: The names of all children, in the order in which they were started.
        failed: The name of the child that has ended.

    Raises:
        ValueError: `failed` is not among the children.
    """
    position = children.index(failed)
    match strategy:
        case "one_for_one":
            return (failed,)
        case "one_for_all":
            return tuple(children)
        case "rest_for_one":
            return tuple(children[position:])


class ChildSpec(msgspec.Struct, frozen=True):
    """The specification of a supervised actor: how it is made, restarted and named."""

    name: str
    """A name that is unique among the supervisor's children. Lifecycle events contain it, so prefer a name that is
    unique in the tree.
    """
    factory: Callable[[], Actor]
    """A function that makes a new instance for every life."""
    restart: RestartType = "permanent"
    """The ends after which the child is restarted; see `RestartType`."""
    policy: RestartPolicy | None = None
    """The policy for restarts; None uses the supervisor's policy."""
    on_limit: OnLimit = "escalate"
    """The reaction to too many failures in a row. ``escalate``: the supervisor gives up. ``stop``: the child stays
    stopped until `restart_child`, and its siblings continue.
    """


class ShutdownReport(msgspec.Struct, frozen=True):
    """The report of how a supervisor stopped."""

    clean: bool
    """Whether all tasks have ended."""
    stuck: tuple[str, ...] = ()
    """The names of tasks that are still running."""
    lost: int = 0
    """The number of messages that were not handled."""


class ChildStatistics(msgspec.Struct, frozen=True):
    """A snapshot of one child."""

    name: str
    """The child's name."""
    phase: Phase
    """``starting``, ``running``, ``closing`` or ``ended``."""
    restarts: int
    """The total number of restarts."""
    failures: int
    """The present number of failures in a row."""
    uptime_seconds: float
    """The seconds since the start of the current life; 0.0 if there is none."""
    actor: ActorStatistics | None
    """The actor's snapshot; None for a supervisor."""
    supervisor: SupervisorStatistics | None
    """The supervisor's snapshot; None for an actor."""
    last_crash: str | None = None
    """The type and text of the latest crash's exception; None if it never crashed."""
    crashed_us: int | None = None
    """The time of that crash, in microseconds since the epoch, UTC."""


class SupervisorStatistics(msgspec.Struct, frozen=True):
    """A snapshot of a supervision tree."""

    name: str
    """The supervisor's name."""
    strategy: Strategy
    """The supervisor's strategy."""
    running: bool
    """Whether the supervisor runs."""
    children: tuple[ChildStatistics, ...]
    """The snapshots of the supervisor's children, in the order in which they were started."""
    stuck: tuple[str, ...]
    """The names of tasks that did not end when they were cancelled."""


class Supervising(Protocol):
    """The methods of a nested `Supervisor` that its parent calls."""

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
    """A child and its state, which persists over restarts."""

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

    @property
    def active(self) -> bool:
        return self.life is not None and not self.life.ended.is_set()

    def statistics(self, clock: Clock) -> ChildStatistics:
        """Return a snapshot of the child and of all actors below it."""
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


# --- Ending lives ---

STOP_GRACE_SECONDS = 5.0
KILL_GRACE_SECONDS = 1.0
STUCK_LOG_SECONDS = 5.0

_log = Log("bus.supervisor")


class Endings:
    """Ends the lives of one supervisor run, and reports lives that do not end."""

    def __init__(self, group: anyio.abc.TaskGroup) -> None:
        self.deadline = float("inf")
        """The time after which lives get no grace, on the clock of `anyio.current_time`."""
        self._group = group
        self._stuck: dict[str, Life] = {}

    @property
    def stuck(self) -> tuple[str, ...]:
        """The names of tasks that were cancelled and still run."""
        return tuple(name for name, life in self._stuck.items() if not life.ended.is_set())

    async def end(self, life: Life, reason: str) -> int:
        """End a life. Return when it has ended or was reported as stuck."""
        life.stop_reason = reason
        remaining = max(0.0, self.deadline - anyio.current_time())
        if isinstance(life, SupervisorLife):
            report = await life.supervisor.stop(budget=remaining)
            self._stuck.update(dict.fromkeys(report.stuck, life))
            if report.clean:
                await life.ended.wait()
            return report.lost
        life.ask_to_stop()
        if await _ends_within(life, min(STOP_GRACE_SECONDS, remaining)):
            return 0
        _log.warning("actor.cancelled_at_stop", actor=life.ref.name, reason=reason)
        life.scope.cancel()
        if await _ends_within(life, KILL_GRACE_SECONDS):
            return 0
        if life.hook_running and await _ends_within(life, STOPPING_SECONDS):
            return 0
        self._report_stuck(life)
        return 0

    def closing(self, life: Incarnation) -> None:
        """Watch a life that ends without a request, for example after a crash, because its tasks may be stuck."""
        if life.stop_reason is None and life.tasks:
            self._group.start_soon(self._watch_closing, life)

    async def _watch_closing(self, life: Incarnation) -> None:
        with anyio.CancelScope(shield=True):
            if not await _ends_within(life, KILL_GRACE_SECONDS + STOPPING_SECONDS):
                self._report_stuck(life)

    def _report_stuck(self, life: Incarnation) -> None:
        if not any(stuck is life for stuck in self._stuck.values()):
            self._stuck.update(dict.fromkeys(life.stacks(), life))
            self._group.start_soon(self._watch_stuck, life)

    async def _watch_stuck(self, life: Incarnation) -> None:
        with anyio.CancelScope(shield=True):
            while not life.ended.is_set():
                for name, stack in life.stacks().items():
                    _log.error("task.stuck", task=name, where=stack)
                await _ends_within(life, STUCK_LOG_SECONDS)
        for name in [name for name, stuck in self._stuck.items() if stuck is life]:
            del self._stuck[name]


async def _ends_within(life: Life, seconds: float) -> bool:
    with anyio.move_on_after(seconds):
        await life.ended.wait()
    return life.ended.is_set()
