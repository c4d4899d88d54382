"""A reply of one wire and its expected reading: the rows of the tables in this folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import pytest

from callboard.bus.values.base import JsonObject
from callboard.bus.values.usage import StopReason

from ...support.wires import WIRES, ChatWire, Wire
from ...support.wires import anthropic as a
from ...support.wires import chat as c
from ...support.wires import gemini as g
from ...support.wires import interactions as i
from ...support.wires import ollama as o
from ...support.wires import responses as r
from ...support.wires import tgi as t
from ...support.wires.reading import Reading, read
from ...support.wires.wire import Event

__all__ = [
    "CHAT", "CLAUDE", "EACH", "GEMINI", "HI", "INTERACTIONS", "OLLAMA", "OVER", "RESPONSES", "TGI", "Case",
    "check", "quirky", "table",
]  # fmt: skip

CLAUDE, RESPONSES, _, GEMINI, OLLAMA, TGI, INTERACTIONS = WIRES
CHAT = ChatWire("default")
EACH = pytest.mark.parametrize("wire", WIRES, ids=lambda wire: wire.name)


HI: dict[str, list[JsonObject]] = {
    "anthropic": [a.message_start(), *a.text(0, "Hi")[:2]],
    "openai": [r.CREATED, r.added(0, r.message("Hi")), r.text_delta(0, "Hi")],
    "openai_compatible": [c.chunk(content="Hi")],
    "gemini": [g.chunk(g.text("Hi"))],
    "interactions": [i.start(0, type="model_output"), i.delta(0, "text", text="Hi")],
    "ollama": [o.line(content="Hi")],
    "tgi": [t.token("Hi")],
}
"""The start of a stream with the text Hi."""

OVER: dict[str, list[JsonObject | bytes]] = {
    "anthropic": [*a.ending()], "openai": [r.ending()], "openai_compatible": [c.STOP, c.DONE], "gemini": [g.END],
    "interactions": [i.stop(0), i.completed()], "ollama": [o.last()], "tgi": [t.end("Hi", t.details())],
}  # fmt: skip
"""The regular end of the stream."""


def quirky(quirks: str) -> ChatWire:
    """The Chat Completions wire of a server with quirks."""
    return ChatWire(quirks)


class Case(msgspec.Struct, frozen=True):
    """The events of a stream and the expected values. A value of None is not checked."""

    wire: Wire
    name: str
    """The oddity of the case."""

    events: Sequence[Event]
    said: Sequence[object]
    """The expected content in short form (see `in_short`)."""

    stop: StopReason | None = None
    kept: Sequence[JsonObject | None] | None = None
    """The provider data that the blocks keep."""

    fragments: Sequence[str] | None = None
    """The pieces in which the arguments of the calls are delivered."""

    deltas: Sequence[str] | None = None
    warnings: Sequence[str] = ()
    changes: Mapping[str, Any] = {}
    """Changes of the request. `config` changes the adapter."""


def table(*cases: Case) -> pytest.MarkDecorator:
    """Parametrise a test by its `case`."""
    return pytest.mark.parametrize("case", cases, ids=[f"{case.wire.name}-{case.name}" for case in cases])


def check(case: Case) -> Reading:
    """Read a case in every way and compare the results."""
    reading = read(case.wire, *case.events, **case.changes)
    assert reading.error is None, reading.error
    assert reading.said == list(case.said)
    if case.stop is not None:
        assert reading.last.stop_reason is case.stop
    for name in ("kept", "fragments", "deltas"):
        expected = getattr(case, name)
        assert expected is None or getattr(reading, name) == list(expected), name
    assert reading.warnings == list(case.warnings)
    return reading
