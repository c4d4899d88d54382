"""Errors that stand in a stream outside its events, on every wire that has events."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from callboard.adapters.replies.decoders import SseDecoder
from callboard.bus.errors import AdapterError, ContextOverflowError, RateLimitError
from callboard.bus.values.base import JsonObject

from ...support.wires import chat
from ...support.wires.anthropic import AnthropicWire
from ...support.wires.gemini import GeminiWire
from ...support.wires.interactions import InteractionsWire
from ...support.wires.reading import read_pieces, read_whole
from ...support.wires.responses import ResponsesWire
from ...support.wires.tgi import TGIWire
from ...support.wires.wire import Wire

WIRES: list[Callable[[], Wire]] = [
    chat.ChatWire, AnthropicWire, ResponsesWire, GeminiWire, InteractionsWire, TGIWire,
]  # fmt: skip
OVER = {"code": 400, "message": "the request exceeds the available context size", "type": "invalid_request_error"}
LIMIT = {"error": {"message": "Rate limit reached", "type": "rate_limit_error", "code": "rate_limit_exceeded"}}
FORMS: list[tuple[str, str, type[AdapterError]]] = [
    ("a field named error", f"error: {json.dumps(OVER)}\n\ndata: [DONE]\n\n", ContextOverflowError),
    ("a field named error, at the end", f"error: {json.dumps(OVER)}", ContextOverflowError),
    ("an error event with a bare line", f"event: error\n{json.dumps({'error': OVER})}\n\n", ContextOverflowError),
    ("an error event without data", "event: error\n\n", AdapterError),
    ("an error event that is a text", "event: error\ndata: no context\n\n", AdapterError),
    ("bare JSON", json.dumps({"error": OVER}), ContextOverflowError),
    ("bare JSON on lines", json.dumps(LIMIT, indent=1), RateLimitError),
    ("a detail", 'data: {"detail": "Rate limit reached"}\n\n', AdapterError),
]


@pytest.mark.parametrize("make", WIRES, ids=lambda make: make.__name__)
@pytest.mark.parametrize(("body", "kind"), [form[1:] for form in FORMS], ids=[form[0] for form in FORMS])
def test_an_error_outside_the_events_is_that_error(make: Callable[[], Wire], body: str, kind: type) -> None:
    """In one piece and byte by byte, with a type that words decide where there is nothing else."""
    data = body.encode()
    for chunks in ([data], [data[at : at + 1] for at in range(len(data))]):
        assert type(read_pieces(make(), chunks).error) is kind


@pytest.mark.parametrize("make", WIRES[:-1], ids=lambda make: make.__name__)
def test_an_error_after_text_is_that_error(make: Callable[[], Wire]) -> None:
    """What was delivered stands, and the error is raised after it."""
    wire = make()
    events = [event for _, event in wire.events("Hi", 0, "end")]
    begun = wire.stream(*events[: max(1, len(events) // 2)])
    for bare in (json.dumps({"error": OVER}), f"error: {json.dumps(OVER)}\n\n"):
        assert isinstance(read_pieces(wire, [begun + bare.encode()]).error, ContextOverflowError)


@pytest.mark.parametrize("make", [*WIRES], ids=lambda make: make.__name__)
def test_a_whole_reply_that_is_an_error_is_that_error(make: Callable[[], Wire]) -> None:
    """With status 200, in shapes that are none of the wire's own."""
    spent: JsonObject = {"code": "x", "message": "Insufficient balance"}
    bodies: list[JsonObject] = [
        {"errors": [spent], "success": False}, {"base_resp": {"status_code": 1008, "status_msg": "no"}}, spent,
    ]  # fmt: skip
    for body in bodies:
        assert type(read_whole(make(), body).error).__name__ == "QuotaExceededError"


def test_lines_of_no_event_stay_aside() -> None:
    """A bare line is the data of an error event only, and only where the event has none."""
    decoder = SseDecoder()
    assert decoder.feed(b"stray\nevent: x\nbare\n\nevent: error\nwhy\n\nevent: error\ndata: 1\n\n") == [
        (b"error", b"why"),
        (b"error", b"1"),
    ]
    assert decoder.stray == b"stray\nbare"
