"""The adapters that one borrower uses for a while: a turn, or the embedding of many texts."""

from __future__ import annotations

from callboard.adapters import AdapterError
from callboard.bus import CallboardError, RoutingDecision

from ..routing.availability import Changes
from .running_adapter import RunningAdapter
from .runtime import Runtime


class BorrowedAdapters:
    """Adapters that stay with their borrower from the first use to `end()`.

    The borrower keeps an adapter also when a reload replaces it for all others.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._adapters: dict[str, RunningAdapter] = {}

    async def ready(self, decision: RoutingDecision, request_id: str) -> RunningAdapter:
        """The adapter of a routing decision, started if need be. The availability table learns that a call is on
        its way.

        Raises:
            AdapterError: The adapter does not start.
            ConfigurationError: The provider isn't configured.
        """
        runtime = self._runtime
        now_us = runtime.clock.now_us
        self._publish(runtime.availability.begin(decision.provider, decision.model, request_id, now_us()))
        try:
            return await self._adapter(decision.provider)
        except BaseException as error:
            self._publish(runtime.availability.abandon(request_id, now_us()))
            if isinstance(error, CallboardError) and not isinstance(error, AdapterError):
                raise
            if isinstance(error, Exception):
                self._publish(runtime.availability.crashed(decision.provider, now_us()))
                if not isinstance(error, AdapterError):
                    what = f"adapter {decision.provider!r} does not start: {type(error).__name__}: {error}"
                    raise AdapterError(what, provider=decision.provider, request_id=request_id) from error
            raise

    def end(self) -> None:
        """Give all adapters back."""
        while self._adapters:
            self._adapters.popitem()[1].release()

    async def _adapter(self, provider: str) -> RunningAdapter:
        mine = self._adapters.get(provider)
        if mine is not None and mine.ref.running:
            return mine
        running = await self._runtime.adapters.acquire(provider)
        mine = self._adapters.get(provider)  # again: another call of the same borrower may have waited as well
        if mine is not None and mine.ref.running:
            running.release()
            return mine
        if mine is not None:
            mine.release()
        self._adapters[provider] = running
        return running

    def _publish(self, changes: Changes) -> None:
        for change in changes:
            self._runtime.bus.publish(change)
