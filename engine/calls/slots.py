"""How many calls a provider gets at once, and who is next.

Slots are given in the order of turns, not of requests: the second call of a turn that began earlier goes before
the first call of a later one, so a turn that was let in is not starved by newcomers. Within a turn, first come,
first served. A waiting call can be cancelled at any moment; a slot that was just given to it goes to the next.
"""

from __future__ import annotations

import heapq
import itertools

import anyio

arrival = itertools.count().__next__
"""The place of a turn in the order in which turns were asked for."""


class _Waiter:
    def __init__(self) -> None:
        self.given = anyio.Event()


class CallSlots:
    """total: how many there are; `resize` changes it, also while calls wait."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.used = 0
        self._numbers = itertools.count()
        self._queue: list[tuple[int, int, _Waiter]] = []

    @property
    def waiting(self) -> int:
        return len(self._queue)

    def try_acquire(self) -> bool:
        """Take a slot if one is free: then nobody waits."""
        if self.used < self.total:
            self.used += 1
            return True
        return False

    async def acquire(self, turn: int = 0) -> None:
        """Wait for a slot; it must be released. turn: from `arrival`, lower goes first."""
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
        self.used -= 1
        self._hand_out()

    def resize(self, total: int) -> None:
        """Calls under way are not touched; with fewer slots than calls, the next wait until enough have ended."""
        self.total = total
        self._hand_out()

    def _hand_out(self) -> None:
        while self._queue and self.used < self.total:
            _, _, waiter = heapq.heappop(self._queue)
            self.used += 1
            waiter.given.set()
