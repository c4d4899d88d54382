"""Virtual time, hosts that fail, and a network that does: everything by one seed.

A host runs processes one after another. What is on its way to a process that has died is dropped; what comes to
one that is stopped is taken in when it goes on, in the order in which it came. Its clocks have nothing to do with
those of others: they are wrong by hours, and its wall clock jumps.
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
"""The time after which a question to the database counts as failed."""

LATE_SECONDS = 60.0
"""How late a statement may be carried out whose client has long given up."""


class BrokenPromise(AssertionError):
    """An invariant does not hold."""


class Kernel:
    """The time, the events to come, and the chance.

    Args:
        seed: The seed of all that happens.
    """

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.now = 0.0
        self.steps = 0
        self._heap: list[tuple[float, int, Act]] = []
        self._count = 0

    def after(self, seconds: float, act: Act) -> None:
        """Have something done after so many seconds."""
        self._count += 1
        heapq.heappush(self._heap, (self.now + seconds, self._count, act))

    def run(self, steps: int, until: float = float("inf")) -> None:
        """Do what comes next, so many times at most, and nothing later than `until`."""
        for _ in range(steps):
            if not self._heap or self._heap[0][0] > until:
                return
            self.now, _, act = heapq.heappop(self._heap)
            self.steps += 1
            act()

    def chance(self, probability: float) -> bool:
        """Whether something happens that happens so often."""
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
        """The number of processes that it has run, the one of now included."""
        self.side = 0
        """The side of the network on which it is; the database and the broker are on side 0."""
        self._kernel = kernel
        self._deferred: list[tuple[int, Act]] = []
        self._monotonic_ahead = round(kernel.random.uniform(0, 1000 * HOUR) * 1e9)
        self._wall_ahead = 0
        self.set_clock()

    @property
    def run_id(self) -> str:
        """The identity of its process."""
        return f"run_{self.number}_{self.lives}"

    def monotonic_ns(self) -> int:
        """The time of its monotonic clock."""
        return round(self._kernel.now * 1e9) + self._monotonic_ahead

    def now_us(self) -> int:
        """The time of its wall clock."""
        return round(self._kernel.now * 1e6) + self._wall_ahead

    def set_clock(self) -> None:
        """Have the wall clock be wrong by other hours from now on."""
        self._wall_ahead = round(self._kernel.random.uniform(-5 * HOUR, 5 * HOUR) * 1e6)

    def soon(self, seconds: float, act: Act) -> None:
        """Have the process of now do something after so many seconds, if it still runs then."""
        life = self.lives
        self._kernel.after(seconds, lambda: self._take(life, act))

    def stop(self) -> None:
        """Stop the process, as SIGSTOP does."""
        self.state = "stopped"

    def go_on(self) -> None:
        """Have the process go on, with all that has come meanwhile."""
        self.state = "up"
        waiting, self._deferred = self._deferred, []
        for life, act in waiting:
            self._take(life, act)

    def die(self) -> None:
        """Kill the process."""
        self.state = "down"
        self._deferred.clear()

    def restart(self) -> None:
        """Run a new process."""
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
    """Messages that are lost, doubled, late, and out of order; and two servers that may be out of reach.

    Args:
        kernel: The kernel.
    """

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.bad = 1.0
        """How often messages suffer, in proportion; 0 is a network that loses nothing."""
        self.database_up = self.broker_up = True

    def ask(self, host: Host, work: Callable[[], T], answered: Callable[[T], None], failed: Act) -> None:
        """Have the database carry out a statement for a host, which gets the answer, or hears that there is none.

        A statement that has failed, for all that its host knows, may have been carried out, or may be later.
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
        """Send a message, which may get lost, or arrive twice. None is the broker.

        Args:
            sender: The sender.
            receiver: The receiver.
            act: What its arrival does.
            doubled: What a second arrival does; the same by default.
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
        """The seconds that a message takes."""
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
    """What a coroutine that never waits returns."""
    try:
        work.send(None)
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]
    raise AssertionError("it waits")
