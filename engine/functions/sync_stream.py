"""`stream_sync`: streams of the sync thread, used from another."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Protocol, Self, TypeVar

from callboard.adapters import CallWarning, CanonicalResponse, ContentBlock, Message, TextDelta, TokenUsage
from callboard.bus import Cost, RoutingDecision, TurnStatus

from ..conversation.results import GenerateResult
from ..generation.progress import UsageSoFar
from ..generation.streaming import StreamResult
from ..generation.view_events import ViewEvent
from .sync_host import SyncHost

T = TypeVar("T")


class _Stream(Protocol):
    """A stream of the sync thread."""

    @property
    def stream_id(self) -> str: ...
    @property
    def undelivered(self) -> tuple[Message, ...]: ...
    def steer(self, content: str | Sequence[ContentBlock]) -> Message: ...
    @property
    def usage(self) -> TokenUsage: ...
    @property
    def cost(self) -> Cost: ...
    @property
    def model(self) -> str | None: ...
    @property
    def routing(self) -> RoutingDecision | None: ...
    @property
    def warnings(self) -> tuple[CallWarning, ...]: ...
    @property
    def status(self) -> TurnStatus | None: ...
    async def cancel(self) -> bool: ...
    async def aclose(self) -> None: ...


class SyncStream:
    """A stream that is used from another thread: a context manager that cancels on leaving.

    Args:
        host: The sync thread.
        stream: The stream there.
    """

    def __init__(self, host: SyncHost, stream: _Stream) -> None:
        self._host = host
        self._held = stream

    @property
    def stream_id(self) -> str:
        """The id that `Engine.attach` takes, for further readers."""
        return self._held.stream_id

    def steer(self, content: str | Sequence[ContentBlock]) -> Message:
        """See `StreamResult.steer`. Any thread may call this."""
        return self._held.steer(content)

    @property
    def undelivered(self) -> tuple[Message, ...]:
        """See `StreamResult.undelivered`."""
        return self._held.undelivered

    @property
    def usage(self) -> TokenUsage:
        """See `StreamResult.usage`."""
        return self._look(lambda stream: stream.usage)

    @property
    def cost(self) -> Cost:
        """See `StreamResult.cost`."""
        return self._look(lambda stream: stream.cost)

    @property
    def model(self) -> str | None:
        """See `StreamResult.model`."""
        return self._look(lambda stream: stream.model)

    @property
    def routing(self) -> RoutingDecision | None:
        """See `StreamResult.routing`."""
        return self._look(lambda stream: stream.routing)

    @property
    def warnings(self) -> tuple[CallWarning, ...]:
        """See `StreamResult.warnings`."""
        return self._look(lambda stream: stream.warnings)

    @property
    def status(self) -> TurnStatus | None:
        """See `StreamResult.status`."""
        return self._look(lambda stream: stream.status)

    def _look(self, look: Callable[[_Stream], T]) -> T:
        """A property of the stream, read on its own loop."""

        async def asked() -> T:
            return look(self._held)

        return self._host.run(asked)

    def cancel(self) -> bool:
        """Cancel the call. Any thread may do that.

        Returns:
            False if the call is over.
        """
        return self._host.run(self._held.cancel)

    def close(self) -> None:
        """Cancel what still runs, and wait until it has ended. A second call does nothing."""
        self._host.run(self._held.aclose)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class SyncStreamResult(SyncStream):
    """Like `StreamResult`, for one thread at a time: an iterator, and a context manager that cancels on leaving.

    with stream_sync("sonnet", "A haiku, please.") as result:
        for text in result.text_stream:
            print(text, end="")
    """

    def __init__(self, host: SyncHost, stream: StreamResult) -> None:
        super().__init__(host, stream)
        self._stream = stream
        self._taken: list[ViewEvent] = []
        self._index = 0

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

    def close(self) -> None:
        """Cancel what still runs, and wait until it has ended. A second call does nothing."""
        self._taken, self._index = [], 0
        super().close()
