"""Engines with middleware around their calls."""

from __future__ import annotations

from collections.abc import Sequence

from callboard.adapters import CanonicalRequest, CanonicalResponse, StopReason, TextBlock, TokenUsage
from callboard.bus import Cost, CostSource, Subscription
from callboard.bus.events.calls import LlmCallStarted
from callboard.engine.middleware import CallOutcome, MiddlewareLike
from tests.support.engines import running
from tests.support.scripted import Say


def around(*layers: MiddlewareLike, replies: Sequence[Say] = (), **others: list[Say]):  # type: ignore[no-untyped-def]
    return running(*replies, middleware=layers, **others)


def calls_made(events: Subscription) -> list[str]:
    return [e.data.model for e in events.take() if isinstance(e.data, LlmCallStarted)]


def answer(request: CanonicalRequest, text: str) -> CallOutcome:
    provider, _, _ = request.model.partition(":")
    response = CanonicalResponse(
        request_id="req_elsewhere",
        model=request.model,
        provider=provider,
        content=(TextBlock(text),),
        stop_reason=StopReason.END_TURN,
        usage=TokenUsage(),
    )
    return CallOutcome(response=response, cost=Cost(0, CostSource.COMPUTED))
