"""The text of a stream alone, in the pieces in which it comes, whichever reader of the stream it is taken from."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Generic, Self, TypeVar

from callboard.adapters import MessageComplete, TextBlock, TextDelta
from callboard.bus import StreamReset
from callboard.bus.streams.events import TurnEvent

E = TypeVar("E")


class TextPieces(Generic[E]):
    """The text that a reader gives. It shares the reader's place.

    Args:
        events: The reader.
    """

    def __init__(self, events: AsyncIterator[E]) -> None:
        self._events = events
        self._given = 0

    def __aiter__(self) -> Self:
        aiter(self._events)
        return self

    async def __anext__(self) -> str:
        while True:
            event = await anext(self._events)
            piece = ""
            if isinstance(event, TextDelta):
                piece = event.text
            elif isinstance(event, StreamReset):  # the log was folded meanwhile
                piece = _text_of(event.snapshot)[self._given :]
            if piece:
                self._given += len(piece)
                return piece


def _text_of(events: Sequence[TurnEvent]) -> str:
    """All text of a folded stream: whole messages, and the deltas of one that is still open."""
    texts: dict[str, str] = {}
    for event in events:
        match event:
            case TextDelta():
                texts[event.message_id] = texts.get(event.message_id, "") + event.text
            case MessageComplete():
                blocks = (block.text for block in event.final_content if isinstance(block, TextBlock))
                texts[event.message_id] = "".join(blocks)
            case _:
                pass
    return "".join(texts.values())
