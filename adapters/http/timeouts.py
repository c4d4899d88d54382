"""Time limits of streamed replies: how long a stream may bring no event, and longer limits for slow machines."""

from __future__ import annotations

import msgspec

from callboard.bus.errors import RequestTimeoutError

from ..config import AdapterConfig
from .attempts import Limit

KEPT_ALIVE = 5
"""So many limits may pass without an event while comments and pings say that the server is still there."""

SLOW_MACHINE_SECONDS = 300.0
"""How long a model near by may be silent: a CPU reads slowly, and weights may have to be loaded first."""


class EventWait:
    """The time that a stream may take to its next event. Pure: told of each wait, it limits the next one.

    Args:
        limit: Seconds in which nothing at all may come.
    """

    def __init__(self, limit: float) -> None:
        self._limit = limit
        self._whole = Limit(limit, limit)
        self._silent = 0.0

    def event(self) -> None:
        """An event came: everything counts anew."""
        self._silent = 0.0

    def sign_of_life(self, seconds: float) -> None:
        """Something else than an event came, after a wait of so many seconds."""
        self._silent += seconds

    def left(self) -> Limit:
        """How long the next wait may take.

        Raises:
            RequestTimeoutError: No time is left.
        """
        most = self._limit * KEPT_ALIVE
        left = most - self._silent
        if left >= self._limit:
            return self._whole
        if left <= 0:
            raise RequestTimeoutError(f"no next event within {most:g} s")
        return Limit(left, most)


def with_long_timeouts(config: AdapterConfig) -> AdapterConfig:
    """The configuration with longer waits for the first and the next event, unless it sets its own."""
    default = AdapterConfig()
    longer = {
        field: SLOW_MACHINE_SECONDS
        for field in ("first_event_timeout", "stream_read_timeout")
        if getattr(config, field) == getattr(default, field)
    }
    return msgspec.structs.replace(config, **longer)
