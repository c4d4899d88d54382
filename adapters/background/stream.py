"""The stream of a background reply, as the iterator that its reader pulls."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self

from callboard.bus.streams.events import StreamEvent

from ..contract import AttemptObserver, CanonicalRequest, CanonicalResponse
from ..http.client import HttpClient
from .call import BackgroundCall
from .wire import BackgroundWire


class BackgroundStream:
    """A streamed reply; see `adapters.contract.AdapterStream` for what it promises.

    Whoever leaves it early leaves the reply to the provider; only `cancel()` of the adapter ends the reply.
    """

    def __init__(self, call: BackgroundCall) -> None:
        self._call = call
        self._pieces = call.pieces()
        self._ready: deque[StreamEvent] = deque()
        self._over = False
        self._response: CanonicalResponse | None = None
        call.on_cancel = self._cancelled_unread

    @property
    def response(self) -> CanonicalResponse | None:
        return self._response

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> StreamEvent:
        while not self._ready:
            if not await self._fill():
                raise StopAsyncIteration
        return self._ready.popleft()

    async def pump(self, sink: Callable[[Sequence[StreamEvent]], object]) -> None:
        """Read to the end; see `adapters.contract.PumpedStream`."""
        while self._ready or await self._fill():
            if self._ready:
                ready = list(self._ready)
                self._ready.clear()
                sink(ready)

    async def _fill(self) -> bool:
        """Read the next piece; False at the end."""
        if self._over:
            return False
        try:
            self._ready += await anext(self._pieces)
        except StopAsyncIteration:
            self._over = True
            return False
        except BaseException:
            self._over = True
            raise
        self._response = self._call.response_of_stream()
        return True

    async def _cancelled_unread(self) -> None:
        """The call was cancelled while nobody read: the reply ends here."""
        call = self._call
        if self._over or call.left:
            return
        self._over = True
        self._ready += await call.cancelled_end()
        self._response = call.response_of_stream()
        call.ended = True
        await self._pieces.aclose()

    async def aclose(self) -> None:
        """Close the socket, and leave an unfinished reply to the provider. Idempotent."""
        if not self._call.ended:
            await self._call.cancel(at_once=True)
            self._call.ended = True
        self._over = True
        self._ready.clear()
        await self._pieces.aclose()
        await self._call.close_connection()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()


def background_stream(
    client: HttpClient, wire: BackgroundWire, request: CanonicalRequest, on_attempt: AttemptObserver | None
) -> BackgroundStream:
    """The stream of a call that has not begun."""
    return BackgroundStream(BackgroundCall(client, wire, request, on_attempt, stream=True))
