"""The results of a batch that a handle has read: kept until they are asked for, or handed out one by one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable

from callboard.bus.errors import CallboardError
from callboard.bus.values.cost_sum import CostSum

from .results import BatchResult

OnResult = Callable[[BatchResult], Awaitable[object] | object]


class HandOutFailedError(Exception):
    """What the caller's own function raised, which nobody must take for a fault of the provider."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


class CollectedResults:
    """The results by their places in the batch. Of one that was handed out only its cost is left."""

    def __init__(self, batch_id: str) -> None:
        self._batch_id = batch_id
        self._kept: dict[int, BatchResult] = {}
        self._handed_out: dict[int, tuple[bool, CostSum]] = {}  # whether it is an answer, and its cost

    def __len__(self) -> int:
        return len(self._kept) + len(self._handed_out)

    def __contains__(self, place: int) -> bool:
        return place in self._kept or place in self._handed_out

    def get(self, place: int) -> BatchResult | None:
        """The result at a place; None if it is not there yet, or was handed out."""
        return self._kept.get(place)

    @property
    def answered(self) -> int:
        """The number of results that are answers."""
        kept = sum(result.response is not None for result in self._kept.values())
        return kept + sum(is_answer for is_answer, _ in self._handed_out.values())

    @property
    def cost(self) -> CostSum:
        """The cost of all results, handed out or not."""
        kept = [result.cost_sum for result in self._kept.values()]
        return sum((*kept, *(spent for _, spent in self._handed_out.values())), CostSum())

    def all(self) -> tuple[BatchResult, ...]:
        """All results in the order of the requests.

        Raises:
            CallboardError: Some were handed out.
        """
        if self._handed_out:
            raise CallboardError(
                f"results of batch {self._batch_id} were handed out by for_each(), and none of them is kept"
            )
        return tuple(self._kept[place] for place in sorted(self._kept))

    def forget(self, places: Iterable[int]) -> None:
        """Forget the results at some places, since there will be others."""
        for place in places:
            self._kept.pop(place, None)
            self._handed_out.pop(place, None)

    async def add(self, place: int, result: BatchResult, on_result: OnResult | None) -> None:
        """Keep a result, or hand it out.

        Raises:
            HandOutFailedError: `on_result` raised. The result is not here.
        """
        if on_result is None:
            self._kept[place] = result
        else:
            await self._hand_out(place, result, on_result)

    async def hand_out_kept(self, on_result: OnResult) -> None:
        """Hand out what was kept, in the order of the requests.

        Raises:
            HandOutFailedError: `on_result` raised. That result is still kept, and those after it.
        """
        for place in sorted(self._kept):
            await self._hand_out(place, self._kept[place], on_result)
            del self._kept[place]

    async def _hand_out(self, place: int, result: BatchResult, on_result: OnResult) -> None:
        try:
            given = on_result(result)
            if isinstance(given, Awaitable):
                await given
        except Exception as error:
            raise HandOutFailedError(error) from error
        self._handed_out[place] = result.response is not None, result.cost_sum
