"""A turn in progress, as an object that you can iterate, await or cancel.

`StreamResult` and `TurnStream` differ only in their events. A function's stream yields the view, in which
everything has a start and an end. A session's stream yields the turn's own events, as `Engine.attach` does.

A stream owns its turn. Unless the turn was detached, it is cancelled when the stream's context is left, by
`aclose()`, or when there is no more reference to the stream or its readers. The running turn has no reference to
the stream.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from types import TracebackType
from typing import Generic, Self, TypeVar, Unpack

from callboard.adapters import CallWarning, CanonicalResponse, ContentBlock, Message, TokenUsage
from callboard.bus import Cost, RoutingDecision, StreamReader, TurnStatus
from callboard.bus.streams.events import TurnEvent
from callboard.bus.values.usage import CostSum

from ..conversation.results import GenerateResult, Reply
from ..conversation.turn import Turn
from ..runtime.runtime import Runtime
from ..tree import ChildTurn
from .readers import (
    EventReader,
    LogEvent,
    OnUsage,
    Reader,
    ReaderOptions,
    StreamedTurn,
    TextPieces,
    TurnReader,
    ViewReader,
)
from .view import TurnView, UsageSoFar
from .view_events import ViewEvent

E = TypeVar("E")


class _Stream(Generic[E]):
    """The common part of both kinds of stream. Each subclass chooses its reader."""

    def __init__(self, run: StreamedTurn, reader: TurnReader[E]) -> None:
        self._run = run
        self._reader = reader
        self._finalizer = weakref.finalize(self, run.ownership.abandon)
        self._finalizer.atexit = False

    def __repr__(self) -> str:
        return f"{type(self).__name__}(stream_id={self.stream_id!r}, model={self.model!r}, status={self.status!r})"

    @property
    def stream_id(self) -> str:
        """The id of the turn's stream, for `Engine.attach`."""
        return self._run.turn.id

    def __aiter__(self) -> Self:
        self._run.require_loop()
        return self

    async def __anext__(self) -> E:
        return await anext(self._reader)

    async def take(self) -> list[E]:
        """Return the events that have arrived together.

        Returns:
            At least one event, after a wait if needed; an empty list when the stream has ended.
        """
        return await self._reader.take()

    @property
    def text_stream(self) -> TextPieces[E]:
        """Only the text, piece by piece. Iterating the stream skips events that the text has already read.

        ``text_stream(tree=True)`` yields `TreePiece` objects, also for the turns that its tools start.
        """
        return TextPieces(self, self._run)

    # --- State and result ---

    @property
    def partial_response(self) -> CanonicalResponse | None:
        """The received part of the last message, as if the message were cut off now; None before the message has
        started.
        """
        return self._run.partial_response

    @property
    def usage_so_far(self) -> UsageSoFar:
        """The tokens used up to now, and their cost. While a reply arrives, both are estimates."""
        return self._run.usage

    @property
    def usage(self) -> TokenUsage:
        """The tokens that all calls have used up to now. Available at any time, also after the stream was left or
        has failed.
        """
        return self._run.usage.usage

    @property
    def cost(self) -> Cost:
        """The cost of the tokens in `usage`; unknown if the cost of one call is unknown. Available at any time."""
        return self._run.usage.cost

    @property
    def tree_cost(self) -> CostSum:
        """The cost of the turn together with all turns and calls that its tools have made until now."""
        return self._run.turn.tree_cost

    @property
    def children(self) -> tuple[ChildTurn, ...]:
        """The turns that the tools have started, in order. `Engine.attach` reads their streams."""
        return self._run.turn.children

    @property
    def model(self) -> str | None:
        """``provider:name`` of the current or last model; None before a model is chosen."""
        return self._run.model

    @property
    def routing(self) -> RoutingDecision | None:
        """The routing decision of the last call; None before it is made."""
        return self._run.routing

    @property
    def warnings(self) -> tuple[CallWarning, ...]:
        """The warnings of all ended replies, and the current warnings of the call in progress."""
        return self._run.warnings

    @property
    def status(self) -> TurnStatus | None:
        """How the turn ended; None while it is in progress."""
        return self._run.status

    async def message(self) -> Reply:
        """Wait for the turn's end, and return the assistant's last message. An exception of the turn is raised
        here.
        """
        return await self._run.reply()

    async def response(self) -> CanonicalResponse:
        """Wait for the turn's end, and return the last message as the adapter returned it. An exception of the
        turn is raised here.
        """
        return (await self._run.result()).response

    async def result(self) -> GenerateResult:
        """Wait for the end, and return the same result as `generate`. Raises the exception of the turn."""
        return await self._run.result()

    def steer(self, content: str | Sequence[ContentBlock]) -> Message:
        """Send another message to the model while it works. Any thread may call this.

        The turn gets the message before its next step, as in `Session.steer`. The event `user.message` marks its
        position in the stream.

        Args:
            content: Text, or blocks.

        Returns:
            The message, with the id that it has in the history.

        Raises:
            NoTurnRunning: The turn has ended or is about to end, or can have only one reply.
            ValueError: The content is empty.
        """
        return self._run.steer(content)

    @property
    def undelivered(self) -> tuple[Message, ...]:
        """The steering messages that no reply has answered yet. After the turn's end, they stay unanswered."""
        return self._run.turn.undelivered

    async def cancel(self) -> bool:
        """Cancel the turn. Its events still end properly. Then readers get CancelledError."""
        return self._run.turn.cancel()

    def detach(self) -> None:
        """Let the turn run to its end without readers. It is billed in full."""
        self._run.ownership.is_active = False

    async def aclose(self) -> None:
        """Cancel the turn if it is in progress, and wait until it has ended. A second call does nothing."""
        self._reader.close()
        await self._run.close()

    async def __aenter__(self) -> Self:
        await self._run.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._reader.close()
        if self._run.ownership.is_active:
            await self._run.close()


class StreamResult(_Stream[ViewEvent]):
    """A streamed reply. Iterate over it, or over its `text_stream`. The first read starts the call.

        async with stream("sonnet", "A haiku, please.") as result:
            async for text in result.text_stream:
                print(text, end="")
        print((await result.result()).total_cost.usd)

    A new loop continues where the last loop stopped. `reader()` returns another reader that starts from the first
    event. The call is cancelled by `aclose()`, if you leave the context before the end, or if you leave a loop and
    keep no reference to the result. If the call fails, readers get its exception.

    Raises:
        AdapterError: The call failed; `.turn` has the completed part of the turn.
        CancelledError: The call was cancelled by `cancel()`.
        WrongLoop: The stream is read on another event loop.
        CallboardError: Two tasks iterate concurrently, or the stream was closed before it started.
    """

    def __init__(self, runtime: Runtime, turn: Turn, *, on_usage: OnUsage | None = None) -> None:
        run = StreamedTurn(runtime, turn)
        super().__init__(run, ViewReader(run, on_usage=on_usage))

    def reader(self, **options: Unpack[ReaderOptions]) -> ViewReader:
        """Another reader of the whole stream, for example for another task.

        Args:
            options: The fields of `ReaderOptions`.
        """
        return ViewReader(self._run, self, **options)


class TurnStream(_Stream[LogEvent]):
    """A turn of a session in progress. It differs from a `StreamResult` only in its events.

    The stream yields the turn's own events, as `Engine.attach` does. If the stream was folded, a reader that has
    read nothing yet gets the messages with their text in one piece. A reader that continues after earlier events
    gets one StreamReset instead of the events that it missed.
    """

    def __init__(self, runtime: Runtime, turn: Turn) -> None:
        run = StreamedTurn(runtime, turn)
        super().__init__(run, EventReader(run))

    def reader(self, **options: Unpack[ReaderOptions]) -> EventReader:
        """Another reader of the whole stream, for example for another task.

        Args:
            options: The fields of `ReaderOptions`.
        """
        return EventReader(self._run, self, **options)


class AttachedView(Reader[ViewEvent]):
    """Another reader of a turn's stream. ``engine.attach(stream_id, view=True)`` creates it.

    It yields the same events as `stream()`, from the first one on. Its last event is `finish` or `error`. The
    error is only raised for the caller that started the turn, not here. Use the reader in one task at a time.
    Closing it does not affect the turn.

    Args:
        log_reader: A reader of the turn's own events, from the first.
    """

    def __init__(self, log_reader: StreamReader[TurnEvent]) -> None:
        super().__init__()
        self._log_reader = log_reader
        self._view = TurnView()

    def close(self) -> None:
        """Stop reading."""
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
