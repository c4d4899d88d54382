"""Reading a provider's reply: whole, or streamed in any pieces, which must all come to the same."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

import msgspec

from adapters.replies.assembler import Assembler
from adapters.replies.normaliser import StreamNormaliser
from bus.errors import AdapterError
from bus.streams.events import MessageComplete, StreamEvent
from bus.values.content import ContentBlock, ThinkingBlock

from .fake_http import pieces
from .invariants import check_stream


class Reading:
    """What became of a reply. events: all of them. error: what it ended in."""

    def __init__(self, assembler: Assembler, events: Sequence[StreamEvent], error: AdapterError | None) -> None:
        self.assembler = assembler
        self.events = events
        self.error = error

    @property
    def complete(self) -> MessageComplete:
        assert self.error is None, self.error
        return check_stream(self.events)

    @property
    def content(self) -> tuple[ContentBlock, ...]:
        return self.complete.final_content

    @property
    def thinking(self) -> str:
        return "".join(block.text for block in self.content if isinstance(block, ThinkingBlock))

    @property
    def kinds(self) -> list[str]:
        return [event.type for event in self.events]

    @property
    def warnings(self) -> list[str]:
        return [warning.code for warning in self.assembler.warnings]


R = TypeVar("R", bound=Reading)


def feed_all(normaliser: StreamNormaliser, chunks: Iterable[bytes]) -> list[StreamEvent]:
    """The events of a streamed body that arrives in these pieces."""
    events: list[StreamEvent] = []
    for chunk in chunks:
        events += normaliser.feed(chunk)
    return [*events, *normaliser.close()]


def read_every_way(read_pieces: Callable[[Iterable[bytes]], R], body: bytes, *same: bytes) -> R:
    """Read a body whole, byte by byte and at random cuts. same: other bodies that must come to the same."""
    reading = read_pieces([body])
    ways = [pieces(body, range(len(body))), cut_at_random(body)]
    for other in same:
        ways += [[other], cut_at_random(other)]
    for chunks in ways:
        found = read_pieces(chunks)
        assert without_raw(found.events) == without_raw(reading.events)
        assert str(found.error) == str(reading.error)
        assert found.assembler.warnings == reading.assembler.warnings
    return reading


def cut_at_random(body: bytes) -> list[bytes]:
    """The same cuts for bodies of the same length."""
    return pieces(body, random.Random(7).sample(range(len(body)), k=min(len(body), 12)))


def read_refusable(assembler: Assembler, read: Callable[[], None], kind: Callable[..., R]) -> R:
    """What `read` has fed to the assembler, and the AdapterError that it may have ended in."""
    error: AdapterError | None = None
    try:
        read()
    except AdapterError as raised:
        error = raised
    return kind(assembler, assembler.take(), error)


def without_raw(events: Sequence[StreamEvent]) -> list[StreamEvent]:
    """Events without the usage's raw JSON, which is no value to compare."""
    plain: list[StreamEvent] = []
    for item in events:
        if isinstance(item, MessageComplete):
            item = msgspec.structs.replace(item, usage=msgspec.structs.replace(item.usage, raw=None))
        plain.append(item)
    return plain
