"""Envelopes of what was said, as they are captured."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from bus.events.envelope import Envelope
from bus.events.sessions import SessionMessageAppended
from bus.values.messages import Message, MessageMetadata
from bus.values.usage import Cost, CostSource, StopReason, TokenUsage
from tracestore import Capture

from .trace_making import Maker

PICTURE = b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 40


METADATA = MessageMetadata(
    provider="openai",
    model="openai:gpt-5",
    usage=TokenUsage(10, 5, raw=msgspec.Raw(b'{"prompt_tokens":10}')),
    cost=Cost(1234, CostSource.COMPUTED, "000000000000"),
    stop_reason=StopReason.END_TURN,
    request_id="req_1",
)


def captured(*envelopes: Envelope, capture: Capture | None = None) -> list[Envelope]:
    return [(capture or Capture()).apply(envelope) for envelope in envelopes]


def appended(
    make: Maker, said: Sequence[Message], session: str = "s", first: int = 0, **options: int
) -> list[Envelope]:
    return [
        make(SessionMessageAppended(position=position, message=message), session_id=session, **options)
        for position, message in enumerate(said, first)
    ]
