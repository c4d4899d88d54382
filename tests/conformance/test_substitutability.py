"""Any adapter can stand in for any other: one conversation, whoever the provider is.

What each adapter must do by itself is in the conformance kit (`test_kits`); this is what only several can show.
"""

from __future__ import annotations

import itertools

import pytest

from callboard.adapters.conformance import TOOLS
from callboard.adapters.contract import CanonicalRequest
from callboard.bus.errors import AdapterError
from callboard.bus.streams.events import StreamEvent
from callboard.bus.values.messages import Message

from ..support.fake_http import FakeReply, FakeTransport
from ..support.virtual_time import FakeClock
from ..support.wires import CALLING_WIRES, WIRES, Wire

pytestmark = pytest.mark.anyio

each = pytest.mark.parametrize("wire", WIRES, ids=lambda wire: wire.name)

REPLIES = [
    ("Hello, ☃!", 0, "end"),
    ("", 1, "tools"),
    ("Let me look.", 1, "tools"),
    ("Let me look.", 2, "tools"),
    ("Once upon a", 0, "length"),
    ("", 0, "end"),
]


def ask(wire: Wire, *messages: Message, **changes: object) -> CanonicalRequest:
    fields: dict[str, object] = {
        "request_id": "req_1",
        "messages": messages or (Message.user("Hello"),),
        "model": f"{wire.name}:some-model",
        "max_output_tokens": 64,
        "tools": TOOLS if wire.calls_tools else (),
        "message_id": "msg_1",
        **changes,
    }
    return CanonicalRequest(**fields)  # type: ignore[arg-type]


async def read(wire: Wire, reply: FakeReply) -> tuple[list[StreamEvent], AdapterError | None]:
    adapter = wire.make(FakeTransport(reply), FakeClock(), max_retries=0)
    events: list[StreamEvent] = []
    try:
        async for event in adapter.stream(ask(wire)):
            events.append(event)  # noqa: PERF401  (what came before an error counts)
    except AdapterError as error:
        return events, error
    return events, None


@pytest.mark.parametrize(("text", "calls", "stop"), REPLIES)
async def test_the_same_reply_is_the_same_events(text: str, calls: int, stop: str) -> None:
    """Type by type and index by index, with the same text; only fragments of arguments may be fewer."""
    sequences = []
    for wire in WIRES if not calls else CALLING_WIRES:
        events, error = await read(wire, wire.streamed(text, calls, stop))
        assert error is None
        sequence = [
            (event.type, getattr(event, "content_block_index", None), getattr(event, "text", None))
            for event in events
        ]
        sequences.append([one for one, _ in itertools.groupby(sequence)])
    for one, other in itertools.pairwise(sequences):
        assert one == other
