"""The calls of one adapter that are under way, by the ids of their requests."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol
from weakref import ref

from callboard.bus.values.usage import TokenUsage


class RunningCall(Protocol):
    """A call of any kind that is under way."""

    ended: bool
    """Whether nothing will be waited for again."""

    async def cancel(self, *, at_once: bool = False) -> None:
        """End the call; see `HttpAttempts.cancel`."""

    def usage_so_far(self) -> TokenUsage | None:
        """What the current attempt has used, if it ended here; None if nothing is known of it."""


class RunningCalls:
    """A register that keeps no call alive, so a stream that its reader dropped without closing it is gone.

    The entries of calls that are gone stay until so many are there. A `WeakValueDictionary` takes each out with a
    callback of its own, which costs more than all else that a call does here.
    """

    def __init__(self) -> None:
        self._calls: dict[str, ref[RunningCall]] = {}
        self._look_at = 64

    def __iter__(self) -> Iterator[RunningCall]:
        """The calls that have not ended."""
        found = [entry() for entry in self._calls.values()]
        return iter([call for call in found if call is not None and not call.ended])

    def add(self, request_id: str, call: RunningCall) -> None:
        """Add a call. It takes the place of an earlier one of its id."""
        if len(self._calls) >= self._look_at:
            self._calls = {name: entry for name, entry in self._calls.items() if entry() is not None}
            self._look_at = max(64, 2 * len(self._calls))
        self._calls[request_id] = ref(call)

    def get(self, request_id: str) -> RunningCall | None:
        """The call of an id, also if it has ended; None if it is gone."""
        entry = self._calls.get(request_id)
        return None if entry is None else entry()
