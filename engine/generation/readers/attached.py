"""The view of a turn for a reader that came by the stream's id, and has nothing else of the turn."""

from __future__ import annotations

from collections.abc import Sequence

from callboard.bus import StreamReader
from callboard.bus.streams.events import TurnEvent

from ..view import TurnView
from ..view_events import ViewEvent
from .reader import Reader


class AttachedView(Reader[ViewEvent]):
    """One more reader of a turn's stream, made by ``engine.attach(stream_id, view=True)``.

    It gives what `stream()` gives, from the first event on. Its last event is `finish`, or `error`, which isn't
    raised: that is for whoever began the turn. It is for one task at a time. Closing it changes nothing for the
    turn.

    Args:
        log_reader: A reader of the turn's own events, from the first.
    """

    def __init__(self, log_reader: StreamReader[TurnEvent]) -> None:
        super().__init__()
        self._log_reader = log_reader
        self._view = TurnView()

    def close(self) -> None:
        """Read no more."""
        super().close()
        self._log_reader.close()

    async def _next(self) -> Sequence[ViewEvent]:
        shown: Sequence[ViewEvent] = ()
        while not shown:
            events = await self._log_reader.take()
            if not events:
                raise StopAsyncIteration
            shown = [each for event in events for each in self._view.process(event)]
        return shown
