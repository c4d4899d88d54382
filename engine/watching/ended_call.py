"""A call that has ended, as one value and as one line."""

from __future__ import annotations

from typing import Literal, TypeAlias

from callboard.adapters import ErrorClass, TokenUsage
from callboard.bus import Cost, Envelope, Gap, LlmCallCompleted, LlmCallFailed, LlmCallStarted
from callboard.bus.values.shown import Shown

CallEnding: TypeAlias = Literal["completed", "failed", "cancelled"]


class EndedCall(Shown, frozen=True, kw_only=True):
    """A call of some engine of this process that has ended, with all its attempts. As text it is one line."""

    run_id: str
    """The run of the engine, as in the trace."""
    request_id: str
    """The id of the call."""
    operation: str | None
    """``chat``, ``embeddings``, ``image``, ``video_create`` or ``video``; None if nobody watched when it began."""
    provider: str
    """The adapter's name."""
    model: str
    """The model as routed, ``provider:name``."""
    status: CallEnding
    """The way it ended."""
    usage: TokenUsage | None
    """The tokens of its last attempt; None if nothing is known of them."""
    cost: Cost | None
    """The cost of those tokens; None if nothing is known of them."""
    latency_ms: int
    """Milliseconds from its beginning to its end."""
    first_token_ms: int | None
    """Milliseconds from its beginning to its first content."""
    attempts: int
    """The number of its attempts."""
    error: str | None
    """The type and the text of the exception that ended it."""
    session_id: str | None
    """The session that it belongs to."""
    turn_id: str | None
    """The turn that it belongs to."""
    tags: dict[str, str]
    """The tags of the call or of its session."""
    ended_us: int
    """The time of its end, in microseconds since the epoch, UTC."""
    skipped: int = 0
    """The number of calls that were dropped before this one, because they were not read in time."""

    def __str__(self) -> str:
        kind = "" if self.operation in (None, "chat") else f" {self.operation}"
        parts = [f"{self.model}{kind} {self.status}"]
        if self.error is not None:
            parts.append(self.error.split("\n", 1)[0][:200])
        if self.usage is not None:
            parts.append(f"{self.usage.total_input_tokens:,} + {self.usage.output_tokens:,} tokens")
            usd = None if self.cost is None else self.cost.usd
            parts.append("unpriced" if usd is None else f"${usd:f}")
        parts.append(f"{self.latency_ms / 1000:.1f} s")
        if self.skipped:
            parts.append(f"{self.skipped} more before it were not shown")
        return ", ".join(parts)


class CallsOfEngine:
    """Makes of an engine's events the calls that ended. It remembers what only the start of a call says."""

    def __init__(self) -> None:
        self._operations: dict[str, str] = {}
        self._skipped = 0

    def process(self, envelope: Envelope) -> EndedCall | None:
        """The call that an event ends; None if another attempt follows, or if it ends none."""
        request_id = envelope.request_id or ""
        match envelope.data:
            case LlmCallStarted() as start:
                self._operations[request_id] = start.operation
                return None
            case LlmCallFailed(will_retry=True):
                return None
            case LlmCallCompleted() | LlmCallFailed() as end:
                skipped, self._skipped = self._skipped, 0
                return _ended(envelope, end, self._operations.pop(request_id, None), skipped)
            case Gap():
                self._skipped += envelope.data.count  # at most: starts are among them
                self._operations.clear()
                return None
            case _:
                return None


def _ended(
    envelope: Envelope, end: LlmCallCompleted | LlmCallFailed, operation: str | None, skipped: int
) -> EndedCall:
    status: CallEnding = "completed"
    error = None
    if isinstance(end, LlmCallFailed):
        status = "cancelled" if end.error_class == ErrorClass.CANCELLED else "failed"
        error = f"{end.error_type}: {end.message}"
    return EndedCall(
        run_id=envelope.run_id,
        request_id=envelope.request_id or "",
        operation=operation,
        provider=end.provider,
        model=end.model,
        status=status,
        usage=end.usage,
        cost=end.cost,
        latency_ms=end.latency_ms,
        first_token_ms=end.first_token_ms,
        attempts=envelope.attempt or 1,
        error=error,
        session_id=envelope.session_id,
        turn_id=envelope.turn_id,
        tags=dict(envelope.tags or {}),
        ended_us=envelope.ts_us,
        skipped=skipped,
    )
