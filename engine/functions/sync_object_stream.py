"""`stream_object_sync`: an `ObjectStream` of the sync thread, seen from another one."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Generic, TypeVar

from callboard.bus.values.json import Json

from ..objects.generate import ObjectResult
from ..objects.stream import ObjectStream
from .sync_host import SyncHost
from .sync_stream import SyncStream

T = TypeVar("T")
P = TypeVar("P")


class SyncObjectStream(SyncStream, Generic[T]):
    """Like `ObjectStream`, for one thread at a time: iterable, and a context manager that cancels on leaving.

    with stream_object_sync("sonnet", "Ten recipes.", schema=list[Recipe]) as stream:
        for partial in stream:
            print(f"{len(partial)} recipes so far")
    recipes = stream.object()
    """

    def __init__(self, host: SyncHost, stream: ObjectStream[T]) -> None:
        super().__init__(host, stream)
        self._stream = stream

    def __iter__(self) -> Iterator[Json]:
        return self._through(self._stream.__aiter__())

    @property
    def text_stream(self) -> Iterator[str]:
        """See `ObjectStream.text_stream`."""
        return self._through(self._stream.text_stream)

    def _through(self, pieces: AsyncIterator[P]) -> Iterator[P]:
        async def following() -> tuple[P] | None:
            async for piece in pieces:
                return (piece,)
            return None

        try:
            while (found := self._host.run(following)) is not None:
                yield found[0]
        except KeyboardInterrupt:
            self.close()
            raise

    def object(self) -> T:
        """See `ObjectStream.object`."""
        return self._host.run(self._stream.object)

    def result(self) -> ObjectResult[T]:
        """See `ObjectStream.result`."""
        return self._host.run(self._stream.result)
