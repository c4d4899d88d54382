"""`stream`: a conversation as it happens, in one result that is iterated, awaited, read by several, or left.

A `StreamResult` owns its turn. When it is left (its context, `aclose()`, or nobody has it any more, neither itself
nor a reader of it), the turn is cancelled, unless it was detached. What runs holds no reference to it.
"""

from __future__ import annotations

import asyncio
import contextlib
import weakref
from collections.abc import AsyncIterator, Callable, Sequence
from types import TracebackType
from typing import Self, TypeAlias

import anyio

from adapters import CanonicalResponse, TextDelta, ThinkingDelta, TokenUsage, ToolUseInputDelta
from bus import CallboardError, StreamReader, StreamReset, TaskHandle, WrongLoop
from bus.streams.events import MessageStart, StepFinish, TurnComplete, TurnEvent

from ..conversation.reply import Reply
from ..conversation.results import GenerateResult
from ..conversation.turn import NOTHING, Turn
from ..runtime.runtime import Runtime
from .generating import result_of
from .progress import Progress, UsageSoFar
from .view import TurnView
from .view_events import Finish, StreamFailed, ViewEvent

OnUsage: TypeAlias = Callable[[UsageSoFar], object]

DELTAS_PER_ESTIMATE = 16
"""How many deltas a reader takes between two calls of its `on_usage`."""


class _Run:
    """A turn that is started by whoever needs it first."""

    def __init__(self, runtime: Runtime, turn: Turn) -> None:
        self.turn = turn
        self.owned = True  # leaving it cancels it
        self.closed = False
        self.progress: Progress | None = None
        self._runtime = runtime
        self._task: TaskHandle[Reply] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._starting = anyio.Lock()

    @property
    def running(self) -> bool:
        return self._task is not None and not self._task.done

    async def start(self) -> TaskHandle[Reply]:
        if self._task is not None:
            if self._loop is not asyncio.get_running_loop():
                raise WrongLoop("this stream belongs to another event loop; read it where it was begun")
            return self._task
        async with self._starting:
            if self._task is None:
                if self.closed:
                    raise CallboardError("this stream was closed before it began; ask for another one")
                self._loop = asyncio.get_running_loop()
                self._task = await self._runtime.host.start_turn(self.turn)
                self.progress = Progress(self.turn)
                if self.closed:  # meanwhile
                    self.turn.cancel()
        return self._task

    async def result(self) -> GenerateResult:
        """Raises what the turn raised."""
        task = await self.start()
        await task.wait()
        return result_of(self.turn)

    def ending(self) -> Finish | StreamFailed:
        """How the turn ended. Its last event comes when its task is done."""
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
        """Cancel what runs, and wait for its end."""
        self.closed = True
        if self._task is None:
            return
        self.turn.cancel()
        with anyio.CancelScope(shield=True):  # bounded: a cancelled turn ends within its grace
            with contextlib.suppress(Exception):  # who iterated has seen it, who leaves early doesn't want it
                await self._task.wait()

    def abandon(self) -> None:
        """Nobody can wait any more. From any thread, as the garbage collector likes."""
        if self.owned and self.running and self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed, and all its tasks are over
                self._loop.call_soon_threadsafe(self.turn.cancel)


class ViewReader:
    """One reader of a stream: an async iterator of its view, from the first event on, at its own pace.

    Made by `StreamResult.reader()`, for one task at a time: a second one that reads meanwhile gets CallboardError.
    What the turn raised is raised at the end, after an event `error`. Its going changes nothing for the turn.
    coalesce, min_interval, on_usage: as given there.
    """

    def __init__(
        self,
        run: _Run,
        *,
        owner: StreamResult | None,
        coalesce: bool = False,
        min_interval: float = 0.0,
        on_usage: OnUsage | None = None,
    ) -> None:
        self._run = run
        self._owner = owner  # which is not left while this is there
        self._coalesce, self._min_interval = coalesce, min_interval
        self._on_usage = on_usage
        self._until_usage = DELTAS_PER_ESTIMATE
        self._log_reader: StreamReader[TurnEvent] | None = None
        self._view = TurnView(run.ending)
        self._failure: Exception | None = None  # to be raised next
        self._ready: Sequence[ViewEvent] = ()
        self._index = 0
        self._reading = False
        self._over = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ViewEvent:
        index = self._index
        if index >= len(self._ready):
            await self._refill()
            index = 0
        self._index = index + 1
        return self._ready[index]

    async def take(self) -> list[ViewEvent]:
        """All events that there are, at least one, which is waited for; an empty list when it is over. Raises as
        iterating does.
        """
        taken: list[ViewEvent] = []
        try:
            while not taken or self._more:
                taken.append(await anext(self))
        except StopAsyncIteration:
            pass
        return taken

    @property
    def _more(self) -> bool:
        """The next event needn't be waited for."""
        reader = self._log_reader
        if self._index < len(self._ready):
            return True
        return self._failure is None and reader is not None and reader.seq + 1 < self._run.turn.log.next_seq

    def close(self) -> None:
        """Read no more."""
        self._over, self._ready, self._index, self._owner = True, (), 0, None
        if self._log_reader is not None:
            self._log_reader.close()

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
            raise CallboardError("two tasks read here at once; give each a reader of its own: stream.reader()")
        self._reading = True
        try:
            self._ready, self._index = await self._next(), 0
        finally:
            self._reading = False

    async def _next(self) -> Sequence[ViewEvent]:
        """At least one event. Raises what the turn raised, then StopAsyncIteration."""
        if self._failure is not None:
            failure, self._failure = self._failure, None
            self.close()
            raise failure
        if self._over:
            raise StopAsyncIteration
        if self._log_reader is None:
            await self._run.start()
            self._log_reader = self._run.turn.log.reader(coalesce=self._coalesce, min_interval=self._min_interval)
        shown: Sequence[ViewEvent] = ()
        while not shown:
            try:
                event = await anext(self._log_reader)
            except StopAsyncIteration:
                self.close()
                raise
            shown = self._view.process(event)
            if self._on_usage is not None:
                self._tell_usage(event, self._on_usage)
        if isinstance(last := shown[-1], StreamFailed):
            self._failure = last.error
        return shown

    def _tell_usage(self, event: TurnEvent | StreamReset[TurnEvent], on_usage: OnUsage) -> None:
        """When a message begins, after so many deltas, and when a step or all is over."""
        if isinstance(event, TextDelta | ThinkingDelta | ToolUseInputDelta):
            self._until_usage -= 1
            if self._until_usage > 0:
                return
            self._until_usage = DELTAS_PER_ESTIMATE
        elif not isinstance(event, MessageStart | StepFinish | TurnComplete | StreamReset):
            return
        assert self._run.progress is not None
        on_usage(self._run.progress.usage)


class StreamResult:
    """A reply as it comes. Iterate it, or its `text_stream`; it begins when it is first asked for anything.

        async with stream("sonnet", "A haiku, please.") as result:
            async for text in result.text_stream:
                print(text, end="")
        print((await result.result()).total_cost.usd)

    Iterating goes on where the last loop stopped; `reader()` gives one more reader that has everything. Leaving
    the context before the end cancels the call; so does leaving a loop when nobody keeps the result, and
    `aclose()`. What failed is raised by whoever iterates or asks: AdapterError with `.turn`; CancelledError after
    `cancel()`; WrongLoop on another event loop; CallboardError where two tasks iterate at once, and for what was
    closed before it began.
    """

    def __init__(self, runtime: Runtime, turn: Turn, *, on_usage: OnUsage | None = None) -> None:
        self._run = _Run(runtime, turn)
        self._reader = ViewReader(self._run, owner=None, on_usage=on_usage)
        self._finalizer = weakref.finalize(self, _Run.abandon, self._run)
        self._finalizer.atexit = False

    @property
    def stream_id(self) -> str:
        """What `Engine.attach` takes, for readers of the turn's own events."""
        return self._run.turn.id

    # -- reading

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ViewEvent:
        return await anext(self._reader)

    async def take(self) -> list[ViewEvent]:
        """All events that there are, at least one, which is waited for; an empty list when it is over."""
        return await self._reader.take()

    @property
    def text_stream(self) -> AsyncIterator[str]:
        """Only the text, piece by piece. What it has read, iterating the result doesn't give again."""
        return _Text(self)

    def reader(
        self, *, coalesce: bool = False, min_interval: float = 0.0, on_usage: OnUsage | None = None
    ) -> ViewReader:
        """One more reader of the whole stream, for another task for example.

        coalesce, min_interval: see `StreamLog.reader`. on_usage: is told what was used, every few deltas and
        after every step; estimated until the provider has said it.
        """
        return ViewReader(self._run, owner=self, coalesce=coalesce, min_interval=min_interval, on_usage=on_usage)

    # -- what there is, now and in the end

    @property
    def partial_response(self) -> CanonicalResponse | None:
        """The last message as far as it has come, as if it were cut off now; None before it has begun."""
        progress = self._run.progress
        return progress.response if progress is not None else None

    @property
    def usage_so_far(self) -> UsageSoFar:
        """What was used until now; `estimated` while a reply comes."""
        progress = self._run.progress
        return progress.usage if progress is not None else UsageSoFar(TokenUsage(), NOTHING)

    async def response(self) -> CanonicalResponse:
        """The last message, when all is over. Raises what the turn raised."""
        return (await self._run.result()).response

    async def result(self) -> GenerateResult:
        """What `generate` would have returned, when all is over. Raises what the turn raised."""
        return await self._run.result()

    # -- the end

    async def cancel(self) -> bool:
        """Cancel it; its events still end properly, then CancelledError is raised. False if it is over."""
        return self._run.turn.cancel()

    def detach(self) -> None:
        """Let it run to its end, whoever leaves; what it costs is paid in any case."""
        self._run.owned = False

    async def aclose(self) -> None:
        """Cancel what still runs, and wait until it has ended. Idempotent."""
        self._reader.close()
        await self._run.close()

    async def __aenter__(self) -> Self:
        await self._run.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._reader.close()
        if self._run.owned:
            await self._run.close()


class _Text:
    """The text of a stream, in the pieces in which it comes; it shares the stream's place."""

    def __init__(self, stream: StreamResult) -> None:
        self._stream = stream

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> str:
        while True:
            event = await anext(self._stream)
            if isinstance(event, TextDelta) and event.text:
                return event.text
