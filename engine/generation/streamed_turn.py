"""A turn that is streamed: started by whoever needs it first, and cancelled when nobody needs it any more."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence

import anyio

from callboard.adapters import CallWarning, CanonicalResponse, ContentBlock, Message, TokenUsage
from callboard.bus import CallboardError, NoTurnRunning, RoutingDecision, TaskHandle, TurnStatus, WrongLoop

from ..calls.outcome import NOTHING_SPENT
from ..conversation.results import GenerateResult, Reply
from ..conversation.turn import Turn
from ..runtime.runtime import Runtime
from .generate import result_of
from .progress import Progress, UsageSoFar
from .view_events import Finish, StreamFailed


class Ownership:
    """What a stream leaves behind when nobody has it any more: the means to cancel its turn.

    It must not know the turn's task. The error of a task knows the frames that it went through, and with them
    the stream, which would never be left then.

    Args:
        turn: The turn.
    """

    def __init__(self, turn: Turn) -> None:
        self.held = True
        """Whether leaving the stream cancels the turn."""
        self.loop: asyncio.AbstractEventLoop | None = None
        """The event loop on which the turn was begun; None before."""
        self._turn = turn

    def abandon(self) -> None:
        """Cancel the turn, as nobody can wait for it any more. Any thread may call this."""
        if self.held and self.loop is not None and self._turn.ended_as is None:
            with contextlib.suppress(RuntimeError):  # the loop is closed, and all its tasks are over
                self.loop.call_soon_threadsafe(self._turn.cancel)


class StreamedTurn:
    """A turn, its task once it has begun, and whether it may outlive its stream.

    Args:
        runtime: The engine's shared parts.
        turn: The turn to run.
    """

    def __init__(self, runtime: Runtime, turn: Turn) -> None:
        self.turn = turn
        self.ownership = Ownership(turn)
        self._runtime = runtime
        self._closed = False
        self._progress: Progress | None = None
        self._task: TaskHandle[Reply] | None = None
        self._starting: anyio.Lock | None = None  # while somebody starts it

    async def start(self) -> TaskHandle[Reply]:
        """The task of the turn, which begins now if it hasn't begun.

        Raises:
            WrongLoop: The turn was begun on another event loop.
            CallboardError: The stream was closed before it began.
        """
        if self._task is not None:
            self.require_loop()
            return self._task
        if self._starting is None:
            self._starting = anyio.Lock()
        async with self._starting:
            if self._task is None:
                if self._closed:
                    raise CallboardError("this stream was closed before it began; ask for another one")
                self.ownership.loop = asyncio.get_running_loop()
                self._task = await self._runtime.host.start_turn(self.turn)
                self._progress = Progress(self.turn)
                if self._closed:  # meanwhile
                    self.turn.cancel()
                self._starting = None  # whoever waits for it still has it
        return self._task

    def require_loop(self) -> None:
        """Check that the turn, if it has begun, was begun on the event loop that runs here.

        Raises:
            WrongLoop: It was begun on another one.
        """
        loop = self.ownership.loop
        if loop is not None and loop is not asyncio.get_running_loop():
            raise WrongLoop("this stream belongs to another event loop; read it where it was begun")

    async def reply(self) -> Reply:
        """The last message, when the turn is over. An exception of the turn is raised here."""
        return await (await self.start()).wait()

    async def result(self) -> GenerateResult:
        """The result of the turn, when it is over. An exception of the turn is raised here."""
        await self.reply()
        return result_of(self.turn)

    def steer(self, content: str | Sequence[ContentBlock]) -> Message:
        """Say something more to the model. NoTurnRunning is raised if the turn takes it no more."""
        if self._closed:
            raise NoTurnRunning("this stream was closed, which has ended its turn")
        return self.turn.steer(content)

    @property
    def partial_response(self) -> CanonicalResponse | None:
        """The last message as far as it has come; None before it has begun."""
        return self._progress.response if self._progress is not None else None

    @property
    def usage(self) -> UsageSoFar:
        """The tokens that were used until now, and their cost."""
        return self._progress.usage if self._progress is not None else UsageSoFar(TokenUsage(), NOTHING_SPENT)

    @property
    def routing(self) -> RoutingDecision | None:
        """The decision that brought the last call to its model; None before a call is made."""
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
        """The warnings of all replies, and what was known of a call under way or failed when it was sent."""
        turn = self.turn
        of_steps = tuple(warning for step in turn.steps for warning in step.warnings)
        return of_steps if self._is_whole or turn.route is None else (*of_steps, *turn.route.option.warnings)

    @property
    def status(self) -> TurnStatus | None:
        """The way the turn ended; None until it has."""
        return "cancelled" if self._closed and self._task is None else self.turn.ended_as

    @property
    def _is_whole(self) -> bool:
        """Whether the last call gave the last reply."""
        turn = self.turn
        return turn.call is None and bool(turn.steps) and turn.steps[-1].message.routing is self.routing

    def ending(self) -> Finish | StreamFailed:
        """The last event of the view. The last event of a turn comes when its task is done."""
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
        """Cancel what runs, and wait for its end. Another event loop than its own gets WrongLoop."""
        self.require_loop()
        self._closed = True
        if self._task is None:
            return
        self.turn.cancel()
        with anyio.CancelScope(shield=True):  # bounded: a cancelled turn ends within its grace
            with contextlib.suppress(Exception):  # who iterated has seen it, who leaves early doesn't want it
                await self._task.wait()
