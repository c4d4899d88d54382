"""Readers of a turn that is streamed: each has its own pace, and its own place from the first event on.

An `EventReader` gives the turn's events as they stand in its log, a `ViewReader` the view that `stream()` gives.
Any reader starts the turn if nobody has started it, and raises at the end what the turn raised.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import NoReturn, TypeAlias, TypedDict, TypeVar, Unpack

from callboard.adapters import TextDelta, ThinkingDelta, ToolUseInputDelta
from callboard.adapters.replies.whole import spelled_out
from callboard.bus import StreamReader, StreamReset
from callboard.bus.streams.events import MessageStart, StepFinish, TurnComplete, TurnEvent

from ..progress import UsageSoFar
from ..streamed_turn import StreamedTurn
from ..view import TurnView
from ..view_events import ViewEvent
from .reader import Reader

LogEvent: TypeAlias = TurnEvent | StreamReset[TurnEvent]

E = TypeVar("E")

OnUsage: TypeAlias = Callable[[UsageSoFar], object]
"""Gets what a turn has used so far."""

DELTAS_PER_ESTIMATE = 16
"""The number of deltas that a reader takes between two calls of its `on_usage`."""


class ReaderOptions(TypedDict, total=False):
    """The options of a reader."""

    coalesce: bool
    """Whether deltas of one block that came together are given as one."""
    min_interval: float
    """Seconds from one batch of events to the next, so that a display is not redrawn for each token."""
    on_usage: OnUsage | None
    """A function that is told what was used, every few deltas and after every step; an estimate until the provider
    has said it."""


class TurnReader(Reader[E]):
    """One reader of a stream: an async iterator of its events, made by the stream's `reader()`.

    It is for one task at a time. What the turn raised is raised at the end. Closing it changes nothing for the
    turn.

    Args:
        run: The turn to read.
        owner: An object that must live as long as this reader is used.
        options: The fields of `ReaderOptions`.

    Raises:
        CallboardError: A second task reads while one is waiting here.
    """

    def __init__(self, run: StreamedTurn, owner: object = None, **options: Unpack[ReaderOptions]) -> None:
        super().__init__()
        self._run = run
        self._owner = owner
        self._coalesce, self._min_interval = options.get("coalesce", False), options.get("min_interval", 0.0)
        self._on_usage = options.get("on_usage")
        self._until_usage = DELTAS_PER_ESTIMATE
        self._log_reader: StreamReader[TurnEvent] | None = None
        self._over = False

    @abstractmethod
    def _open(self) -> StreamReader[TurnEvent]:
        """A reader of the log of the turn, which has begun."""

    @abstractmethod
    def _shown(self, events: Sequence[LogEvent]) -> Sequence[E]:
        """The events to give for some events of the log."""

    def close(self) -> None:
        """Read no more."""
        super().close()
        self._over, self._owner = True, None
        if self._log_reader is not None:
            self._log_reader.close()

    async def _next(self) -> Sequence[E]:
        """At least one event. Raises what the turn raised, then StopAsyncIteration."""
        if self._over:
            raise StopAsyncIteration
        if self._log_reader is None:
            await self._run.start()
            self._log_reader = self._open()
        shown: Sequence[E] = ()
        while not shown:
            events = await self._log_reader.take()
            if not events:
                await self._end()
            shown = self._shown(events)
            if self._on_usage is not None:
                for event in events:
                    self._tell_usage(event, self._on_usage)
        return shown

    async def _end(self) -> NoReturn:
        left_early = self._over
        self.close()
        if not left_early:
            await self._run.reply()
        raise StopAsyncIteration

    def _tell_usage(self, event: LogEvent, on_usage: OnUsage) -> None:
        """Tell it when a message begins, after so many deltas, and when a step or all is over."""
        if isinstance(event, TextDelta | ThinkingDelta | ToolUseInputDelta):
            self._until_usage -= 1
            if self._until_usage > 0:
                return
            self._until_usage = DELTAS_PER_ESTIMATE
        elif not isinstance(event, MessageStart | StepFinish | TurnComplete | StreamReset):
            return
        on_usage(self._run.usage)


class ViewReader(TurnReader[ViewEvent]):
    """One reader of a `StreamResult`: its view from the first event on, made by `StreamResult.reader()`.

    It is for one task at a time: a second one that reads meanwhile gets CallboardError. What the turn raised is
    raised at the end, after an event `error`. Closing it changes nothing for the turn.
    """

    def _open(self) -> StreamReader[TurnEvent]:
        self._view = TurnView(self._run.ending)
        return self._run.turn.log.reader(coalesce=self._coalesce, min_interval=self._min_interval)

    def _shown(self, events: Sequence[LogEvent]) -> Sequence[ViewEvent]:
        process = self._view.process
        return [shown for event in events for shown in process(event)]


class EventReader(TurnReader[LogEvent]):
    """One reader of a `TurnStream`: the turn's own events, made by `TurnStream.reader()`.

    After the log was folded, a reader that has read nothing yet gets the messages, their text in one piece. A
    reader that goes on after earlier events gets one StreamReset in place of the events that it missed.
    """

    def _open(self) -> StreamReader[TurnEvent]:
        return self._run.turn.log.reader(
            coalesce=self._coalesce, min_interval=self._min_interval, unfold=spelled_out
        )

    def _shown(self, events: Sequence[LogEvent]) -> Sequence[LogEvent]:
        return events
