"""Virtual time, failing hosts and a failing network, all derived from one seed.

A host runs processes one after another. Messages to a dead process are dropped. Messages to a stopped process are
handled in order when it continues. The clocks of hosts are independent: they are wrong by hours, and the wall
clock jumps.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Coroutine
from random import Random
from typing import Literal, TypeAlias, TypeVar

T = TypeVar("T")

Act: TypeAlias = Callable[[], None]

HOUR = 3600.0

ANSWER_SECONDS = 2.0
"""The time after which a statement to the database counts as failed."""

LATE_SECONDS = 60.0
"""The maximum delay of a statement that the database runs after its client has given up."""


class BrokenPromise(AssertionError):
    """An invariant was violated."""


class Kernel:
    """The virtual time, the scheduled events, and the random generator.

    Args:
    seed: The seed of the simulation.
    """

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.now = 0.0
        self.steps = 0
        self._heap: list[tuple[float, int, Act]] = []
        self._count = 0

    def after(self, seconds: float, act: Act) -> None:
        """Schedule an action after this number of seconds."""
        self._count += 1
        heapq.heappush(self._heap, (self.now + seconds, self._count, act))

    def run(self, steps: int, until: float = float("inf")) -> None:
        """Run the scheduled actions, at most this number of steps, and none later than `until`."""
        for _ in range(steps):
            if not self._heap or self._heap[0][0] > until:
                return
            self.now, _, act = heapq.heappop(self._heap)
            self.steps += 1
            act()

    def chance(self, probability: float) -> bool:
        """Return True with this probability."""
        return self.random.random() < probability


class Host:
    """A machine, and the process that runs on it.

    Args:
    kernel: The kernel.
    number: The host's number.
    """

    def __init__(self, kernel: Kernel, number: int) -> None:
        self.number = number
        self.state: Literal["up", "stopped", "down"] = "up"
        self.lives = 1
        """The number of processes so far, including the current one."""
        self.side = 0
        """The host's side of a network partition; the database and the broker are on side 0."""
        self._kernel = kernel
        self._deferred: list[tuple[int, Act]] = []
        self._monotonic_ahead = round(kernel.random.uniform(0, 1000 * HOUR) * 1e9)
        self._wall_ahead = 0
        self.set_clock()

    @property
    def run_id(self) -> str:
        """The run id of the current process."""
        return f"run_{self.number}_{self.lives}"

    def monotonic_ns(self) -> int:
        """The time of its monotonic clock."""
        return round(self._kernel.now * 1e9) + self._monotonic_ahead

    def now_us(self) -> int:
        """The time of its wall clock."""
        return round(self._kernel.now * 1e6) + self._wall_ahead

    def set_clock(self) -> None:
        """Set the wall clock to another error of some hours."""
        self._wall_ahead = round(self._kernel.random.uniform(-5 * HOUR, 5 * HOUR) * 1e6)

    def soon(self, seconds: float, act: Act) -> None:
        """Schedule an action of the current process after this number of seconds. It is dropped if the process
        ends before.
        """
        life = self.lives
        self._kernel.after(seconds, lambda: self._take(life, act))

    def stop(self) -> None:
        """Stop the process, as SIGSTOP does."""
        self.state = "stopped"

    def go_on(self) -> None:
        """Continue the process and handle all waiting messages."""
        self.state = "up"
        waiting, self._deferred = self._deferred, []
        for life, act in waiting:
            self._take(life, act)

    def die(self) -> None:
        """Kill the process."""
        self.state = "down"
        self._deferred.clear()

    def restart(self) -> None:
        """Start a new process."""
        self.lives += 1
        self.state = "up"

    def _take(self, life: int, act: Act) -> None:
        if life != self.lives or self.state == "down":
            return
        if self.state == "stopped":
            self._deferred.append((life, act))
        else:
            act()


class Network:
    """A network that loses, duplicates, delays and reorders messages, with two servers that may be unreachable.

    Args:
    kernel: The kernel.
    """

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.bad = 1.0
        """The relative frequency of faults; 0 is a network that loses no message."""
        self.database_up = self.broker_up = True

    def ask(self, host: Host, work: Callable[[], T], answered: Callable[[T], None], failed: Act) -> None:
        """Run a statement in the database for a host. The host gets the result or a failure.

        A statement that failed for its host may have run, or may run later.
        """
        kernel, fate = self.kernel, self.kernel.random.random()
        if fate < 0.02 * self.bad or not self._reaches_database(host):
            host.soon(ANSWER_SECONDS, failed)
            if fate < 0.01 * self.bad:
                kernel.after(kernel.random.uniform(0, LATE_SECONDS), lambda: self._late(work))
            return
        is_answer_lost = kernel.chance(0.02 * self.bad)

        def carry_out() -> None:
            if not self._reaches_database(host):
                host.soon(ANSWER_SECONDS, failed)
                return
            answer = work()
            if is_answer_lost:
                host.soon(ANSWER_SECONDS, failed)
            else:
                host.soon(self.delay(), lambda: answered(answer))

        kernel.after(self.delay(), carry_out)

    def send(self, sender: Host | None, receiver: Host | None, act: Act, doubled: Act | None = None) -> None:
        """Send a message, which may be lost or arrive twice. None as sender or receiver is the broker.

        Args:
        sender: The sender.
        receiver: The receiver.
        act: The action on arrival.
        doubled: The action on a second arrival; by default the same.
        """
        if not self.broker_up or any(each is not None and each.side for each in (sender, receiver)):
            return
        fate = self.kernel.random.random()
        if fate < 0.03 * self.bad:
            return
        self._deliver(receiver, act)
        if fate > 1 - 0.03 * self.bad:
            self._deliver(receiver, doubled or act)

    def delay(self) -> float:
        """The delay of a message in seconds."""
        random = self.kernel.random
        return random.uniform(0.0005, 0.005) if random.random() > 0.05 * self.bad else random.uniform(0, 1.5)

    def _deliver(self, receiver: Host | None, act: Act) -> None:
        if receiver is None:
            self.kernel.after(self.delay(), act)
        else:
            receiver.soon(self.delay(), act)

    def _late(self, work: Callable[[], object]) -> None:
        if self.database_up:
            work()

    def _reaches_database(self, host: Host) -> bool:
        return self.database_up and host.side == 0


def result(work: Coroutine[object, None, T]) -> T:
    """Run a coroutine that never waits, and return its result."""
    try:
        work.send(None)
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]
    raise AssertionError("it waits")
