"""How long a streamed reply may bring no event. Pure: told of each wait, it says how long the next may be."""

from __future__ import annotations

from bus.errors import RequestTimeoutError

from .attempts import Limit

KEPT_ALIVE = 5
"""So many limits may pass without an event while comments and pings say that the server is still there."""


class EventWait:
    """The time limit of a stream that waits for an event. limit: seconds in which nothing at all may come."""

    def __init__(self, limit: float) -> None:
        self._limit = limit
        self._silent = 0.0

    def event(self) -> None:
        """An event came: everything counts anew."""
        self._silent = 0.0

    def sign_of_life(self, seconds: float) -> None:
        """Something else came, after a wait of so many seconds."""
        self._silent += seconds

    def left(self) -> Limit:
        """How long the next wait may take. Raises RequestTimeoutError if there is no time left."""
        most = self._limit * KEPT_ALIVE
        left = most - self._silent
        if left >= self._limit:
            return Limit(self._limit, self._limit)
        if left <= 0:
            raise RequestTimeoutError(f"no next event within {most:g} s")
        return Limit(left, most)
