"""A line in the log for each call."""

from __future__ import annotations

from callboard.adapters import CanonicalRequest, TokenUsage
from callboard.bus import Cost, LlmCallCompleted, LlmCallFailed
from callboard.bus.clock import SYSTEM_CLOCK, Clock
from callboard.bus.log import Log

from ..calls.outcome import CallEnd, CallInfo, CallOutcome
from .contract import Middleware, Next

_log = Log("engine.calls")


class LogCalls(Middleware):
    """Logs ``call_done`` with model, tokens, cost and milliseconds, or ``call_failed`` with the error. Never
    content.

    Calls that are no conversation are logged with their `operation`.
    """

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
        _log.info(
            "call_done",
            **about,
            **_amounts(outcome.usage, outcome.cost),
            stop_reason=str(outcome.response.stop_reason),
            ms=self._milliseconds(began),
        )
        return outcome

    def settle(self, call: CallInfo, end: CallEnd) -> None:
        if call.operation == "chat":
            return  # `call` tells of it, also if it was answered without one
        about = {"operation": call.operation, "model": call.model, "request_id": call.request_id}
        match end:
            case LlmCallFailed():
                told = {"error": end.error_type, "message": end.message[:200], "ms": end.latency_ms}
                _log.warning("call_failed", **about, **told)
            case LlmCallCompleted():
                _log.info("call_done", **about, **_amounts(end.usage, end.cost), ms=end.latency_ms)

    def _milliseconds(self, began: int) -> int:
        return (self._clock.monotonic_ns() - began) // 1_000_000


def _amounts(usage: TokenUsage, cost: Cost) -> dict[str, object]:
    return {
        "input_tokens": usage.total_input_tokens,
        "output_tokens": usage.output_tokens,
        "cost_usd": None if cost.usd is None else str(cost.usd),
    }
