"""A log line for each call."""

from __future__ import annotations

from adapters import CanonicalRequest
from bus.clock import SYSTEM_CLOCK, Clock
from bus.log import Log

from ..call import CallOutcome
from .chain import Middleware, Next

_log = Log("engine.calls")


class LogCalls(Middleware):
    """``call_done`` with model, tokens, cost and milliseconds; ``call_failed`` with the error. Never content."""

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock

    async def call(self, request: CanonicalRequest, next: Next) -> CallOutcome:
        began = self._clock.monotonic_ns()
        about: dict[str, object] = {"model": request.model, "request_id": request.request_id}
        if request.session_id:
            about["session_id"] = request.session_id
        try:
            outcome = await next(request)
        except Exception as error:
            took = self._milliseconds(began)
            _log.warning("call_failed", **about, error=type(error).__name__, message=str(error)[:200], ms=took)
            raise
        usage, cost = outcome.usage, outcome.cost.usd
        _log.info(
            "call_done",
            **about,
            input_tokens=usage.total_input_tokens,
            output_tokens=usage.output_tokens,
            cost_usd=None if cost is None else str(cost),
            stop_reason=str(outcome.response.stop_reason),
            ms=self._milliseconds(began),
        )
        return outcome

    def _milliseconds(self, began: int) -> int:
        return (self._clock.monotonic_ns() - began) // 1_000_000
