"""The slots of a provider: the number of calls that it gets at once, and the order of the calls that wait.

Slots are given in the order of turns, not of requests. The second call of a turn that began earlier goes before
the first call of a later turn, so newcomers can't starve a turn that was let in. Within a turn, the call that came
first goes first. A waiting call can be cancelled at any moment; a slot that it was just given goes to the next
call.
"""

from __future__ import annotations

import heapq
import itertools

import anyio

arrival = itertools.count().__next__
"""Returns the next place in the order in which turns were asked for."""


class _Waiter:
    def __init__(self) -> None:
        self.given = anyio.Event()


class CallSlots:
    """The slots of one provider."""

    def __init__(self, total: int) -> None:
        self.total = total
        """The number of slots. `resize` changes it, also while calls wait."""
        self.used = 0
        """The number of slots that are taken."""
        self._numbers = itertools.count()
        self._queue: list[tuple[int, int, _Waiter]] = []

    @property
    def waiting(self) -> int:
        """The number of calls that wait."""
        return len(self._queue)

    def try_acquire(self) -> bool:
        """Take a slot if one is free. Nobody waits then."""
        if self.used < self.total:
            self.used += 1
            return True
        return False

    async def acquire(self, turn: int = 0) -> None:
        """Wait for a slot, which must be released.

        Args:
            turn: The place of the turn, from `arrival`. The lowest goes first.
        """
        if self.try_acquire():
            return
        waiter = _Waiter()
        entry = (turn, next(self._numbers), waiter)
        heapq.heappush(self._queue, entry)
        try:
            await waiter.given.wait()
        except BaseException:
            if waiter.given.is_set():
                self.release()
            else:
                self._queue.remove(entry)
                heapq.heapify(self._queue)
            raise

    def release(self) -> None:
        """Give a slot back."""
        self.used -= 1
        self._hand_out()

    def resize(self, total: int) -> None:
        """Change the number of slots. Calls under way go on, also if there are fewer slots than calls."""
        self.total = total
        self._hand_out()

    def _hand_out(self) -> None:
        while self._queue and self.used < self.total:
            _, _, waiter = heapq.heappop(self._queue)
            self.used += 1
            waiter.given.set()
