"""`stream_sync`: a StreamResult of the sync thread, seen from another one."""

from __future__ import annotations

from collections.abc import Iterator
from types import TracebackType
from typing import Self

from adapters import CanonicalResponse, TextDelta

from ..conversation.results import GenerateResult
from ..generation.progress import UsageSoFar
from ..generation.streaming import StreamResult
from ..generation.view_events import ViewEvent
from .sync_host import SyncHost


class SyncStreamResult:
    """Like `StreamResult`, for one thread at a time: an iterator, and a context manager that cancels on leaving.

    with stream_sync("sonnet", "A haiku, please.") as result:
        for text in result.text_stream:
            print(text, end="")
    """

    def __init__(self, host: SyncHost, stream: StreamResult) -> None:
        self._host = host
        self._stream = stream
        self._taken: list[ViewEvent] = []
        self._index = 0

    @property
    def stream_id(self) -> str:
        """What `Engine.attach` takes, for further readers."""
        return self._stream.stream_id

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> ViewEvent:
        if self._index >= len(self._taken):
            try:
                self._taken, self._index = self._host.run(self._stream.take), 0
            except KeyboardInterrupt:
                self.close()
                raise
            if not self._taken:
                raise StopIteration
        self._index += 1
        return self._taken[self._index - 1]

    @property
    def text_stream(self) -> Iterator[str]:
        """Only the text, piece by piece."""
        return (event.text for event in self if isinstance(event, TextDelta) and event.text)

    @property
    def partial_response(self) -> CanonicalResponse | None:
        """See `StreamResult.partial_response`."""

        async def look() -> CanonicalResponse | None:
            return self._stream.partial_response

        return self._host.run(look)

    @property
    def usage_so_far(self) -> UsageSoFar:
        """See `StreamResult.usage_so_far`."""

        async def look() -> UsageSoFar:
            return self._stream.usage_so_far

        return self._host.run(look)

    def response(self) -> CanonicalResponse:
        """See `StreamResult.response`."""
        return self._host.run(self._stream.response)

    def result(self) -> GenerateResult:
        """See `StreamResult.result`."""
        return self._host.run(self._stream.result)

    def cancel(self) -> bool:
        """See `StreamResult.cancel`. From any thread."""
        return self._host.run(self._stream.cancel)

    def close(self) -> None:
        """Cancel what still runs, and wait until it has ended. Idempotent."""
        self._taken, self._index = [], 0
        self._host.run(self._stream.aclose)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
