"""A streamed turn and its readers.

The turn starts when a reader first needs it, and is cancelled when no reader needs it. Each reader has its own
position, and starts at the first event. An `EventReader` yields the turn's events from its log. A `ViewReader`
yields the view of `stream()`. At the end, each reader raises the turn's exception, if there is one.
"""

from __future__ import annotations

import asyncio
import contextlib
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from types import TracebackType
from typing import Generic, Literal, NoReturn, Self, TypeAlias, TypedDict, TypeVar, Unpack, cast

import anyio
import msgspec

from callboard.adapters import (
    CallWarning,
    CanonicalResponse,
    ContentBlock,
    Message,
    MessageComplete,
    TextBlock,
    TextDelta,
    ThinkingDelta,
    TokenUsage,
    ToolUseInputDelta,
)
from callboard.adapters.replies.whole import spelled_out
from callboard.bus import (
    CallboardError,
    NoTurnRunning,
    RoutingDecision,
    StreamReader,
    StreamReset,
    TaskHandle,
    ToolProgress,
    TurnStatus,
    UnknownStream,
    WrongLoop,
)
from callboard.bus.streams.channel import StreamChannel
from callboard.bus.streams.events import MessageStart, StepFinish, TurnComplete, TurnEvent

from ..calls.outcome import NOTHING_SPENT
from ..conversation.results import GenerateResult, Reply
from ..conversation.turn import Turn
from ..runtime.runtime import Runtime
from ..tree import streams_elsewhere
from .arguments import result_of
from .view import Progress, TurnView, UsageSoFar
from .view_events import Finish, StreamFailed, ViewEvent


class Ownership:
    """Cancels a stream's turn when the last reference to the stream is gone.

    An Ownership must not refer to the turn's task. The task's error refers to its frames and therefore to the
    stream, so the stream would never be freed.

    Args:
        turn: The turn.
    """

    def __init__(self, turn: Turn) -> None:
        self.is_active = True
        """Whether leaving the stream cancels the turn."""
        self.loop: asyncio.AbstractEventLoop | None = None
        """The event loop on which the turn was started; None before the start."""
        self._turn = turn

    def abandon(self) -> None:
        """Cancel the turn, because no reader is left. Any thread may call this."""
        if self.is_active and self.loop is not None and self._turn.ended_as is None:
            with contextlib.suppress(RuntimeError):  # the loop is closed, and all its tasks have ended
                self.loop.call_soon_threadsafe(self._turn.cancel)


class StreamedTurn:
    """A turn, its task once it has started, and whether it may continue without its stream."""

    def __init__(self, runtime: Runtime, turn: Turn) -> None:
        self.turn = turn
        self.ownership = Ownership(turn)
        self._runtime = runtime
        self._closed = False
        self._progress: Progress | None = None
        self._task: TaskHandle[Reply] | None = None
        self._starting: anyio.Lock | None = None  # Set while a reader starts the turn.

    async def start(self) -> TaskHandle[Reply]:
        """Start the turn if it hasn't started, and return its task. Raises WrongLoop or CallboardError."""
        if self._task is not None:
            self.require_loop()
            return self._task
        if self._starting is None:
            self._starting = anyio.Lock()
        async with self._starting:
            if self._task is None:
                if self._closed:
                    raise CallboardError("this stream was closed before it started. Start another one")
                self.ownership.loop = asyncio.get_running_loop()
                self._task = await self._runtime.host.start_turn(self.turn)
                self._progress = Progress(self.turn)
                if self._closed:  # the stream was closed while this call waited
                    self.turn.cancel()
                self._starting = None  # Waiting readers still hold the lock.
        return self._task

    def require_loop(self) -> None:
        """Check that the turn was not started on another event loop.

        Raises WrongLoop.
        """
        loop = self.ownership.loop
        if loop is not None and loop is not asyncio.get_running_loop():
            raise WrongLoop("this stream belongs to another event loop; read it in the loop that started it")

    async def reply(self) -> Reply:
        """The last message, when the turn has ended. An exception of the turn is raised here."""
        return await (await self.start()).wait()

    async def result(self) -> GenerateResult:
        """The result of the turn, when it has ended. An exception of the turn is raised here."""
        await self.reply()
        return result_of(self.turn)

    def attach(self, stream_id: str) -> StreamReader[TurnEvent]:
        """A reader of the turn's stream, or of a child's. Raises UnknownStream."""
        return self._runtime.streams.attach(stream_id, any_owner=True)

    def attach_remote(self, stream_id: str) -> StreamReader[TurnEvent] | None:
        """A reader of a child's stream on another node; None outside of a cluster. Its first read may fail."""
        return self._runtime.cluster.streams.attach(
            stream_id,
            self._runtime.host.start,
            from_seq=0,
            coalesce=False,
            min_interval=0.0,
            owner=None,
            any_owner=True,
        )

    def steer(self, content: str | Sequence[ContentBlock]) -> Message:
        """Send another message to the model. Raises NoTurnRunning if the turn no longer accepts one."""
        if self._closed:
            raise NoTurnRunning("this stream was closed, which ended its turn")
        return self.turn.steer(content)

    @property
    def partial_response(self) -> CanonicalResponse | None:
        """The part of the last message that has arrived; None before it has started."""
        return self._progress.response if self._progress is not None else None

    @property
    def usage(self) -> UsageSoFar:
        """The tokens used up to now, and their cost."""
        return self._progress.usage if self._progress is not None else UsageSoFar(TokenUsage(), NOTHING_SPENT)

    @property
    def routing(self) -> RoutingDecision | None:
        """The routing decision of the last call; None before a call is made."""
        route = self.turn.route
        return None if route is None else route.decision

    @property
    def model(self) -> str | None:
        """``provider:name`` of the model of the last call; None before a call is made."""
        decision = self.routing
        if self._is_whole:
            return self.turn.steps[-1].message.model
        return None if decision is None else decision.model

    @property
    def warnings(self) -> tuple[CallWarning, ...]:
        """The warnings of all replies, and the warnings of a call that is in progress or failed."""
        turn = self.turn
        of_steps = tuple(warning for step in turn.steps for warning in step.warnings)
        return of_steps if self._is_whole or turn.route is None else (*of_steps, *turn.route.option.warnings)

    @property
    def status(self) -> TurnStatus | None:
        """How the turn ended; None while it is in progress."""
        return "cancelled" if self._closed and self._task is None else self.turn.ended_as

    @property
    def _is_whole(self) -> bool:
        """Whether the last reply came from the last call."""
        turn = self.turn
        return turn.call is None and bool(turn.steps) and turn.steps[-1].message.routing is self.routing

    def ending(self) -> Finish | StreamFailed:
        """The last event of the view. Call it when the turn's task is done."""
        assert self._task is not None
        try:
            self._task.result()
        except Exception as error:
            return StreamFailed(error)
        result = result_of(self.turn)
        return Finish(
            stop_reason=result.stop_reason,
            usage=result.total_usage,
            cost=result.total_cost,
            response=result.response,
            status=result.status,
        )

    async def close(self) -> None:
        """Cancel the turn if it is in progress, and wait for its end. Raises WrongLoop on another event loop."""
        self.require_loop()
        self._closed = True
        if self._task is None:
            return
        self.turn.cancel()
        with anyio.CancelScope(shield=True):  # limited: a cancelled turn ends within its grace period
            with contextlib.suppress(
                Exception
                # A reader that iterated has raised the error. A reader that leaves early doesn't need it.
            ):
                await self._task.wait()


E = TypeVar("E")

# --- Readers of a stream ---


_ONE_TASK_EACH = (
    "two tasks read this stream concurrently. Give each task its own reader: stream.reader() or engine.attach()"
)


class Reader(ABC, Generic[E]):
    """An async iterator over batches of events. Only one task may use it at a time.

    Raises:
        CallboardError: A second task reads while the first one waits here.
    """

    def __init__(self) -> None:
        self._ready: Sequence[E] = ()
        self._index = 0
        self._reading = False

    @abstractmethod
    async def _next(self) -> Sequence[E]:
        """The next events, at least one. Raises StopAsyncIteration when the stream has ended."""

    def close(self) -> None:
        """Stop reading."""
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
        """A batch of events that have arrived.

        Waits for at least one event. Returns an empty list when the stream has ended.
        """
        try:
            first = await anext(self)
        except StopAsyncIteration:
            return []
        rest, self._index = self._ready[self._index :], len(self._ready)
        return [first, *rest]

    @property
    def text_stream(self) -> AsyncIterator[str]:
        """Only the text, piece by piece. Iterating the reader skips events that the text has already read."""
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


class TextPieces(Generic[E]):
    """The text of a reader. It shares the reader's position.

    Args:
        events: The reader.
        run: The turn that is read, if it runs in this engine.
    """

    def __init__(self, events: AsyncIterator[E], run: StreamedTurn | None = None) -> None:
        self._events = events
        self._run = run
        self._delivered = 0

    def __call__(self, *, tree: Literal[True]) -> TreeText:
        """The text of the turn, together with the text of all turns that its tools start.

        It reads each turn from its start, with its own position.

        Args:
            tree: True.

        Raises:
            CallboardError: This is not a reader of a turn in this engine.
        """
        if self._run is None:
            raise CallboardError("text_stream(tree=True) is for the stream of a turn that this engine runs")
        return TreeText(self._run)

    def __aiter__(self) -> Self:
        aiter(self._events)
        return self

    async def __anext__(self) -> str:
        while True:
            event = await anext(self._events)
            piece = ""
            if isinstance(event, TextDelta):
                piece = event.text
            elif isinstance(event, StreamReset):  # the log was folded after the last read
                piece = _text_of(event.snapshot)[self._delivered :]
            if piece:
                self._delivered += len(piece)
                return piece


class TreePiece(msgspec.Struct, frozen=True):
    """A piece of text of a turn or of one of its descendants."""

    stream_id: str
    """The id of the turn to which the text belongs."""
    depth: int
    """The depth below the turn that is read; 0 for that turn itself."""
    text: str
    """The text."""


class TreeText:
    """The live text of a turn and its descendants, each from its start.

    The turn's exception is raised at the end. A child's exception is an error of the parent's tool. The text of a
    child on another node arrives over the cluster's broker, and ends early if that node dies. Without a cluster, a
    child in another process is left out.

    Args:
        run: The turn.
    """

    def __init__(self, run: StreamedTurn) -> None:
        self._run = run
        self._started = False
        self._ready: deque[TreePiece] = deque()
        self._waiting: dict[
            asyncio.Task[Sequence[LogEvent]], tuple[StreamReader[TurnEvent] | _Elsewhere, int]
        ] = {}

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> TreePiece:
        if not self._started:
            await self._run.start()
            self._started = True
            self._follow(self._run.turn.id, 0)
        while not self._ready:
            if not self._waiting:
                await self._run.reply()
                raise StopAsyncIteration
            done, _ = await asyncio.wait(self._waiting, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                reader, depth = self._waiting.pop(task)
                if events := _events_of(task, depth):
                    self._take(events, reader, depth)
                    self._wait(reader, depth)
        return self._ready.popleft()

    async def aclose(self) -> None:
        """Stop reading."""
        while self._waiting:
            task, (reader, _) = self._waiting.popitem()
            task.cancel()
            reader.close()

    def _follow(self, stream_id: str, depth: int, above: _TreeReader | None = None) -> None:
        try:
            self._wait(self._run.attach(stream_id), depth)
        except UnknownStream:  # the turn runs in another engine
            if (found := streams_elsewhere(stream_id)) is not None:
                streams, loop = found
                self._wait(_Elsewhere(cast("StreamChannel", streams), loop, stream_id), depth)
            elif isinstance(above, _Elsewhere):
                self._wait(_Elsewhere(above.streams, above.loop, stream_id), depth)
            elif (remote := self._run.attach_remote(stream_id)) is not None:
                self._wait(remote, depth)

    def _wait(self, reader: _TreeReader, depth: int) -> None:
        self._waiting[asyncio.ensure_future(reader.take())] = reader, depth

    def _take(self, events: Sequence[LogEvent], reader: _TreeReader, depth: int) -> None:
        for event in events:
            match event:
                case TextDelta():
                    self._ready.append(TreePiece(reader.stream_id, depth, event.text))
                case StreamReset():
                    self._ready.append(TreePiece(reader.stream_id, depth, _text_of(event.snapshot)))
                case ToolProgress(stream_id=str(child)):
                    self._follow(child, depth + 1, reader)
                case _:
                    pass


def _events_of(read: asyncio.Task[Sequence[LogEvent]], depth: int) -> Sequence[LogEvent]:
    """The events that a read returned. If the stream of a child can't be read, it has no more events."""
    try:
        return read.result()
    except CallboardError:
        if depth == 0:
            raise
        return ()  # the child's node has died, or its stream has expired


class _Elsewhere:
    """A reader of a stream on the event loop of another engine.

    Args:
        streams: The streams of that engine.
        loop: Its event loop.
        stream_id: The stream.
    """

    def __init__(self, streams: StreamChannel, loop: asyncio.AbstractEventLoop, stream_id: str) -> None:
        self.streams = streams
        self.loop = loop
        self.stream_id = stream_id
        self._reader: StreamReader[TurnEvent] | None = None

    async def take(self) -> Sequence[LogEvent]:
        """The next events; empty at the end, or if the stream has expired."""

        async def there() -> Sequence[LogEvent]:
            try:
                if self._reader is None:
                    self._reader = self.streams.attach(self.stream_id, any_owner=True)
                return await self._reader.take()
            except UnknownStream:
                return ()

        if self.loop is asyncio.get_running_loop():
            return await there()
        if self.loop.is_closed():
            return ()
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(there(), self.loop))

    def close(self) -> None:
        """Stop reading."""
        if self._reader is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self.loop.call_soon_threadsafe(self._reader.close)


def _text_of(events: Sequence[TurnEvent]) -> str:
    """All text of a folded stream: whole messages, and the deltas of an open one."""
    texts: dict[str, str] = {}
    for event in events:
        match event:
            case TextDelta():
                texts[event.message_id] = texts.get(event.message_id, "") + event.text
            case MessageComplete():
                blocks = (block.text for block in event.final_content if isinstance(block, TextBlock))
                texts[event.message_id] = "".join(blocks)
            case _:
                pass
    return "".join(texts.values())


LogEvent: TypeAlias = TurnEvent | StreamReset[TurnEvent]
_TreeReader: TypeAlias = StreamReader[TurnEvent] | _Elsewhere


OnUsage: TypeAlias = Callable[[UsageSoFar], object]
"""A function that receives the current usage of a turn."""

DELTAS_PER_ESTIMATE = 16
"""The number of deltas between two calls of `on_usage`."""


class ReaderOptions(TypedDict, total=False):
    coalesce: bool
    """Whether deltas of one block that arrived together are merged."""
    min_interval: float
    """The minimum number of seconds between two batches of events, so that a display is not redrawn for each
    token.
    """
    on_usage: OnUsage | None
    """A function that receives the usage every few deltas and after every step.

    It is an estimate until the provider reports it.
    """


class TurnReader(Reader[E]):
    """A reader of a stream: an async iterator of its events. The stream's `reader()` creates it.

    Use it in one task at a time. The turn's exception is raised at the end. Closing the reader does not affect the
    turn.

    Args:
        run: The turn to read.
        owner: An object that must live as long as this reader is used.
        options: The fields of `ReaderOptions`.

    Raises:
        CallboardError: A second task reads while the first one waits here.
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
        """A reader of the log of the turn, which has started."""

    @abstractmethod
    def _shown(self, events: Sequence[LogEvent]) -> Sequence[E]:
        """The events to yield for these log events."""

    @property
    def text_stream(self) -> TextPieces[E]:
        """Only the text, piece by piece. ``text_stream(tree=True)`` has the text of the tools' turns, too."""
        return TextPieces(self, self._run)

    def close(self) -> None:
        """Stop reading."""
        super().close()
        self._over, self._owner = True, None
        if self._log_reader is not None:
            self._log_reader.close()

    async def _next(self) -> Sequence[E]:
        """The next events, at least one. Raises the turn's error, then StopAsyncIteration."""
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
                    self._report_usage(event, self._on_usage)
        return shown

    async def _end(self) -> NoReturn:
        left_early = self._over
        self.close()
        if not left_early:
            await self._run.reply()
        raise StopAsyncIteration

    def _report_usage(self, event: LogEvent, on_usage: OnUsage) -> None:
        """Report usage when a message starts, after every few deltas, and at the end of a step and of the turn."""
        if isinstance(event, TextDelta | ThinkingDelta | ToolUseInputDelta):
            self._until_usage -= 1
            if self._until_usage > 0:
                return
            self._until_usage = DELTAS_PER_ESTIMATE
        elif not isinstance(event, MessageStart | StepFinish | TurnComplete | StreamReset):
            return
        on_usage(self._run.usage)


class ViewReader(TurnReader[ViewEvent]):
    """A reader of a `StreamResult`. It yields the view from the first event on. `StreamResult.reader()` creates
    it.

    Use it in one task at a time: a second task gets CallboardError. The turn's exception is raised at the end,
    after an event `error`. Closing the reader does not affect the turn.
    """

    def _open(self) -> StreamReader[TurnEvent]:
        self._view = TurnView(self._run.ending)
        return self._run.turn.log.reader(coalesce=self._coalesce, min_interval=self._min_interval)

    def _shown(self, events: Sequence[LogEvent]) -> Sequence[ViewEvent]:
        process = self._view.process
        return [shown for event in events for shown in process(event)]


class EventReader(TurnReader[LogEvent]):
    """A reader of a `TurnStream`. It yields the turn's own events. `TurnStream.reader()` creates it.

    If the log was folded, a reader that has read nothing yet gets the messages with their text in one piece. A
    reader that continues after earlier events gets one StreamReset instead of the events that it missed.
    """

    def _open(self) -> StreamReader[TurnEvent]:
        return self._run.turn.log.reader(
            coalesce=self._coalesce, min_interval=self._min_interval, unfold=spelled_out
        )

    def _shown(self, events: Sequence[LogEvent]) -> Sequence[LogEvent]:
        return events
