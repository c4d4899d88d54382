"""The view of a turn for a reader that came by the stream's id, and has nothing else of the turn."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from types import TracebackType
from typing import Self

from bus import StreamReader
from bus.streams.events import TurnEvent

from .texts import TextPieces
from .view import TurnView
from .view_events import ViewEvent


class AttachedView:
    """One more reader of a turn's stream, made by ``engine.attach(stream_id, view=True)``.

    It gives what `stream()` gives, from the first event on. Its last event is `finish`, or `error`, which isn't
    raised: that is for whoever began the turn. It is for one task at a time. Closing it changes nothing for the
    turn.

    Args:
        reader: A reader of the turn's own events, from the first.
    """

    def __init__(self, reader: StreamReader[TurnEvent]) -> None:
        self._reader = reader
        self._view = TurnView()
        self._ready: Sequence[ViewEvent] = ()
        self._index = 0

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ViewEvent:
        while self._index >= len(self._ready):
            events = await self._reader.take()
            if not events:
                raise StopAsyncIteration
            self._ready = [shown for event in events for shown in self._view.process(event)]
            self._index = 0
        self._index += 1
        return self._ready[self._index - 1]

    async def take(self) -> list[ViewEvent]:
        """The events that have come together.

        Returns:
            At least one event, which is waited for; an empty list when the stream is over.
        """
        try:
            first = await anext(self)
        except StopAsyncIteration:
            return []
        rest, self._index = self._ready[self._index :], len(self._ready)
        return [first, *rest]

    @property
    def text_stream(self) -> AsyncIterator[str]:
        """Only the text, piece by piece. Iterating the reader doesn't give again what the text has read."""
        return TextPieces(self)

    def close(self) -> None:
        """Read no more."""
        self._ready, self._index = (), 0
        self._reader.close()

    async def aclose(self) -> None:
        """The same as `close`."""
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
