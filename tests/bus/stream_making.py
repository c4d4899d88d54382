"""Helpers that fill and read streams."""

from __future__ import annotations

from callboard.bus import (
    MessageComplete,
    MessageStart,
    StopReason,
    StreamLog,
    StreamReader,
    StreamReset,
    TextBlock,
    TextDelta,
    TokenUsage,
    TurnComplete,
    TurnEvent,
)

MEBIBYTE = 1024 * 1024


def complete(text: str) -> MessageComplete:
    return MessageComplete((TextBlock(text),), StopReason.END_TURN, "end", TokenUsage(), "m")


def reply(*texts: str) -> list[TurnEvent]:
    deltas = [TextDelta(text, 0, "m") for text in texts]
    return [MessageStart("m", "model", "p"), *deltas, complete("".join(texts)), TurnComplete("completed")]


def filled(log: StreamLog[TurnEvent], events: list[TurnEvent]) -> StreamLog[TurnEvent]:
    for event in events:
        log.append(event)
    log.close()
    return log


async def read(reader: StreamReader[TurnEvent]) -> list[TurnEvent | StreamReset[TurnEvent]]:
    return [event async for event in reader]


def text_of(events: list[TurnEvent | StreamReset[TurnEvent]]) -> str:
    return "".join(event.text for event in events if isinstance(event, TextDelta))
