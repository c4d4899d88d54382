"""The end of a life, and the handling of a life that doesn't end.

    asked        the life was asked to stop; it has 5 s
    cancelled    its scope was cancelled; it has 1 s, and 1 s more while its `stopping` runs
    stuck        it still runs, and is reported, because a task can't be abandoned
    ended        nothing of it runs any more; this may follow each of the others

The stack of a stuck life is logged at once and every 5 s. The code that ends a life goes on when the life is
stuck. Code that needs the life to be over waits for `ended`.
"""

from __future__ import annotations

import anyio
import anyio.abc

from ..log import Log
from .actor import STOPPING_SECONDS, Incarnation
from .child import Life, SupervisorLife

STOP_GRACE_SECONDS = 5.0
KILL_GRACE_SECONDS = 1.0
STUCK_LOG_SECONDS = 5.0

_log = Log("bus.supervisor")


class Endings:
    """The endings of lives in one run of a supervisor.

    Args:
        group: The task group in which the lives are tasks.
    """

    def __init__(self, group: anyio.abc.TaskGroup) -> None:
        self.deadline = float("inf")
        """The time of `anyio.current_time` from which on there is no grace."""
        self._group = group
        self._stuck: dict[str, Life] = {}

    @property
    def stuck(self) -> tuple[str, ...]:
        """The names of tasks that did not end when they were told to, and still run."""
        return tuple(name for name, life in self._stuck.items() if not life.ended.is_set())

    async def end(self, life: Life, reason: str) -> int:
        """End a life. It returns when the life has ended, or is reported as stuck.

        Returns:
            The number of messages lost below the life.
        """
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
        """Watch a life that closes although nobody asked it to stop, perhaps after a crash. Its tasks may be stuck
        all the same.
        """
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
