"""Envelopes of captured content."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from callboard.bus.events import Envelope
from callboard.bus.events.sessions import SessionConfigured, SessionMessageAppended
from callboard.bus.values.content import ImageBlock, TextBlock
from callboard.bus.values.messages import Message, MessageMetadata, Role, SessionSetup, ToolDefinition
from callboard.bus.values.usage import Cost, CostSource, StopReason, TokenUsage
from callboard.tracestore import Capture, TraceStore

from .trace_making import Maker, sql

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


SETUP = SessionSetup(
    model=["sonnet", "llama"],
    system_prompt="You are brief.",
    tools=(
        ToolDefinition("weather", "Tells it.", {"type": "object", "properties": {"city": {"type": "string"}}}),
    ),
    fallback=("llama",),
    requires={"capabilities": ["supports_tools"], "min_context_tokens": 1000},
)


def configured(make: Maker, session: str = "s", history: int = 0, setup: SessionSetup = SETUP) -> Envelope:
    return make(SessionConfigured(history=history, setup=setup, begins=not history), session_id=session)


def count(store: TraceStore, query: str) -> int:
    ((found,),) = sql(store.path, query)
    return int(found)


def everything(store: TraceStore) -> bytes:
    """All bytes of the trace file and of its write-ahead log."""
    return b"".join(path.read_bytes() for path in sorted(store.path.parent.iterdir()))


CONVERSATION = [
    Message(Role.USER, (TextBlock("What is this?"), ImageBlock(data=PICTURE)), id="msg_1"),
    Message(Role.ASSISTANT, (TextBlock("A picture."),), id="msg_2", metadata=METADATA),
]
