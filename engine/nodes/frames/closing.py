"""The last events of a stream whose owner did not get to say them."""

from __future__ import annotations

from collections.abc import Iterable

from callboard.bus import StopReason, TokenUsage, UsageSource
from callboard.bus.streams.events import TurnComplete, TurnEvent

from ...calls.accumulator import StreamAccumulator
from .wire.frame import Ending


def closing_events(events: Iterable[TurnEvent], ending: Ending) -> list[TurnEvent]:
    """The end of a message that had begun, with what has come of it, and the end of the turn.

    Args:
        events: The events of the stream so far.
        ending: The way the turn ended.
    """
    accumulator = StreamAccumulator()
    for event in events:
        accumulator.process(event)
    unknown = TokenUsage(source=UsageSource.PARTIAL)
    return [
        *accumulator.closing_events(StopReason.ERROR, unknown),
        TurnComplete(ending.status, ending.error),
    ]
