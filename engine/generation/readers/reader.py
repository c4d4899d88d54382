"""What all readers of a stream have in common: their events one by one, those that came together, or the text."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Sequence
from types import TracebackType
from typing import Generic, Self, TypeVar

from callboard.bus import CallboardError

from .texts import TextPieces

E = TypeVar("E")

_ONE_TASK_EACH = "two tasks read here at once; give each a reader of its own: stream.reader() or engine.attach()"


class Reader(ABC, Generic[E]):
    """An async iterator of events that come several at once. It is for one task at a time.

    Raises:
        CallboardError: A second task reads while one is waiting here.
    """

    def __init__(self) -> None:
        self._ready: Sequence[E] = ()
        self._index = 0
        self._reading = False

    @abstractmethod
    async def _next(self) -> Sequence[E]:
        """The next events, at least one. Raises StopAsyncIteration when the stream is over."""

    def close(self) -> None:
        """Read no more."""
        self._ready, self._index = (), 0

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> E:
        index = self._index
        if index >= len(self._ready):
            await self._refill()
            index = 0
        self._index = index + 1
        return self._ready[index]

    async def take(self) -> list[E]:
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

    async def aclose(self) -> None:
        """The same as `close`."""
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def _refill(self) -> None:
        if self._reading:
            raise CallboardError(_ONE_TASK_EACH)
        self._reading = True
        try:
            self._ready, self._index = await self._next(), 0
        finally:
            self._reading = False
