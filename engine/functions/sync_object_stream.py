"""`stream_object_sync`: an ObjectStream of the sync thread, seen from another one."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from types import TracebackType
from typing import Generic, Self, TypeVar

from bus.values.json import Json

from ..objects.generate import ObjectResult
from ..objects.stream import ObjectStream
from .sync_host import SyncHost

T = TypeVar("T")
P = TypeVar("P")


class SyncObjectStream(Generic[T]):
    """Like `ObjectStream`, for one thread at a time: iterable, and a context manager that cancels on leaving.

    with stream_object_sync("sonnet", "Ten recipes.", schema=list[Recipe]) as stream:
        for partial in stream:
            print(f"{len(partial)} recipes so far")
    recipes = stream.object()
    """

    def __init__(self, host: SyncHost, stream: ObjectStream[T]) -> None:
        self._host = host
        self._stream = stream

    @property
    def stream_id(self) -> str:
        """What `Engine.attach` takes, for further readers."""
        return self._stream.stream_id

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

    def cancel(self) -> bool:
        """See `ObjectStream.cancel`. From any thread."""
        return self._host.run(self._stream.cancel)

    def close(self) -> None:
        """Cancel what still runs, and wait until it has ended. Idempotent."""
        self._host.run(self._stream.aclose)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
