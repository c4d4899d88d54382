"""`stream_object`: the partial objects while the reply arrives, and the complete object at the end."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from functools import reduce
from operator import add
from types import TracebackType
from typing import Generic, Self, TypeVar

import anyio
import msgspec

from callboard.adapters import (
    CallWarning,
    ContentBlock,
    Message,
    TextDelta,
    TokenUsage,
    ToolUseInputDelta,
    ToolUseStart,
)
from callboard.bus import CallboardError, Cost, RoutingDecision, TurnStatus
from callboard.bus.errors import CancelledError
from callboard.bus.values.base import Json

from ..conversation.context import ANSWER_TOOL
from ..conversation.turn import Turn
from .objects import THINK_END, THINK_START, ObjectResult, ObjectSchema, ObjectTask
from .partial_json import PartialJson
from .streaming import StreamResult
from .view_events import ViewEvent

T = TypeVar("T")


class ObjectStream(Generic[T]):
    """An object that is streamed. Iterate over it to get partial objects, and await `object()` or `result()`.

        async with stream_object("sonnet", "Ten recipes.", schema=list[Recipe]) as stream:
            async for partial in stream:
                print(f"{len(partial)} recipes so far")
        recipes = await stream.object()

    Each partial is plain JSON, not yet checked, and longer than the previous one. Deltas that arrive together make
    one partial. If the model is called again because of `max_reasks`, partials start again. The call starts at the
    first use. Each loop yields all partials, so any number of tasks may iterate. The call is cancelled by
    `aclose()`, or if you leave the context before the end.
    """

    def __init__(self, task: ObjectTask[T]) -> None:
        self._task = task
        self._attempts: list[tuple[Turn, StreamResult]] = []
        self._judging = anyio.Lock()
        self._result: ObjectResult[T] | None = None
        self._failure: CallboardError | None = None
        self._closed = False
        self._add(task.first)

    def __aiter__(self) -> AsyncIterator[Json]:
        return self._partials()

    @property
    def text_stream(self) -> AsyncIterator[str]:
        """The text of the replies, piece by piece."""
        return self._texts()

    @property
    def stream_id(self) -> str:
        """The id of the current reply's stream, for `Engine.attach`."""
        return self._attempts[-1][1].stream_id

    @property
    def usage(self) -> TokenUsage:
        """The tokens that all replies have used until now; see `StreamResult.usage`."""
        return reduce(add, (stream.usage for _, stream in self._attempts))

    @property
    def cost(self) -> Cost:
        """The cost of the tokens in `usage`; see `StreamResult.cost`."""
        return reduce(add, (stream.cost for _, stream in self._attempts))

    @property
    def model(self) -> str | None:
        """The current or last model, as ``provider:name``; None before a model is chosen."""
        return self._attempts[-1][1].model

    @property
    def routing(self) -> RoutingDecision | None:
        """The routing decision of the last call; None until it is made."""
        return self._attempts[-1][1].routing

    @property
    def warnings(self) -> tuple[CallWarning, ...]:
        """The warnings of all ended replies, and the current warnings of the call in progress."""
        return tuple(warning for _, stream in self._attempts for warning in stream.warnings)

    @property
    def status(self) -> TurnStatus | None:
        """How the last turn ended; None while it runs. A turn that ended normally may have produced no object."""
        return self._attempts[-1][1].status

    async def object(self) -> T:
        """Wait for the complete object. An exception of the call is raised here.

        Raises:
            NoObjectGeneratedError: The reply does not match the schema.
        """
        return (await self.result()).output

    async def result(self) -> ObjectResult[T]:
        """Wait for the object with its text, usage, cost and steps. The exceptions are the same as for
        `object()`.
        """
        number = 0
        while await self._has_next(number):
            number += 1
        assert self._result is not None
        return self._result

    def steer(self, content: str | Sequence[ContentBlock]) -> Message:
        """Send another message to the model while it works; see `StreamResult.steer`."""
        return self._attempts[-1][1].steer(content)

    @property
    def undelivered(self) -> tuple[Message, ...]:
        """The steering messages that no reply has answered."""
        return self._attempts[-1][1].undelivered

    async def cancel(self) -> bool:
        """Cancel the call. Readers get CancelledError.

        Returns:
            False if the call has ended.
        """
        return await self._attempts[-1][1].cancel()

    async def aclose(self) -> None:
        """Cancel the call if it is in progress, and wait until it has ended. A second call does nothing."""
        self._closed = True
        for _, stream in self._attempts:
            await stream.aclose()

    async def __aenter__(self) -> Self:
        await self._attempts[0][1].__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    def _add(self, turn: Turn) -> None:
        self._attempts.append((turn, StreamResult(self._task.runtime, turn)))

    async def _has_next(self, number: int) -> bool:
        """Wait for the end of an attempt. Return whether another attempt follows."""
        turn, stream = self._attempts[number]
        await stream.result()
        async with self._judging:
            if number + 1 < len(self._attempts):
                return True
            if self._failure is not None:
                raise self._failure
            if self._result is None:
                try:
                    judged = self._task.judge(turn)
                except CallboardError as error:
                    self._failure = error
                    raise
                if isinstance(judged, Turn):
                    if self._closed:
                        raise CancelledError("the stream was closed before the request was repeated")
                    self._add(judged)
                    return True
                self._result = judged
            return False

    async def _partials(self) -> AsyncIterator[Json]:
        number, more = 0, True
        while more:
            growing = _Growing(self._task.schema, lenient=self._task.may_repair)
            async for message_id, piece in self._pieces(number):
                value = growing.feed(message_id, piece)
                if value is not msgspec.UNSET:
                    yield value
            more = await self._has_next(number)
            number += 1

    async def _texts(self) -> AsyncIterator[str]:
        number, more = 0, True
        while more:
            async for _, piece in self._pieces(number):
                yield piece
            more = await self._has_next(number)
            number += 1

    async def _pieces(self, number: int) -> AsyncIterator[tuple[str, str]]:
        """The text of an attempt's replies as it arrives, each piece with its message's id."""
        pieces = _Pieces(may_be_forced=not self._task.has_tools)
        async with self._attempts[number][1].reader(coalesce=True) as reader:
            async for event in reader:
                if (piece := pieces.of(event)) is not None:
                    yield piece


class _Growing(Generic[T]):
    """Reads an object as it grows. A turn with tools may have several replies; the object starts again with
    each.
    """

    def __init__(self, schema: ObjectSchema[T], *, lenient: bool) -> None:
        self._schema = schema
        self._lenient = lenient
        self._message_id = ""
        self._machine = self._new_machine()
        self._reasoning = _Reasoning()

    def feed(self, message_id: str, piece: str) -> Json | msgspec.UnsetType:
        """The value if it has grown; otherwise UNSET."""
        if message_id != self._message_id:
            self._message_id, self._machine = message_id, self._new_machine()
            self._reasoning = _Reasoning()
        piece, restart = self._reasoning.passed(piece, self._machine)
        if restart:
            self._machine = self._new_machine()
        return self._schema.unwrapped(self._machine.value) if self._machine.feed(piece) else msgspec.UNSET

    def _new_machine(self) -> PartialJson:
        return PartialJson(embedded=True, opening="{", lenient=self._lenient)


class _Reasoning:
    """Finds the reasoning at the start of streamed text. Reasoning is not a part of the object."""

    def __init__(self) -> None:
        self._undecided: str | None = ""  # the start of the text, until it is clear whether it is reasoning
        self._inside = False
        self._tail = ""  # the last characters read, for a mark that is split between two pieces

    def passed(self, piece: str, machine: PartialJson) -> tuple[str, bool]:
        """A piece of text without its reasoning, and whether the object starts again with this piece."""
        if self._undecided is not None:
            self._undecided += piece
            start = self._undecided.lstrip()
            if len(start) < len(THINK_START) and THINK_START.startswith(start):
                return "", False
            piece, self._undecided, self._inside = self._undecided, None, start.startswith(THINK_START)
        text = self._tail + piece
        self._tail = text[1 - len(THINK_END) :]
        before, end, after = text.rpartition(THINK_END)
        outside = machine.complete or (not machine.started and "{" not in before)
        if end and (self._inside or outside):
            self._inside, self._tail = False, ""
            return after, True
        return ("" if self._inside else piece), False


class _Pieces:
    """Extracts text from events: from deltas, and from the arguments of the tool call that replaces a reply."""

    def __init__(self, *, may_be_forced: bool) -> None:
        self._may_be_forced = may_be_forced
        self._answers: set[str] = set()

    def of(self, event: ViewEvent) -> tuple[str, str] | None:
        """The message's id and a piece of its text; None if the event has no text."""
        match event:
            case TextDelta():
                return event.message_id, event.text
            case ToolUseStart(tool_name=name) if self._may_be_forced and name == ANSWER_TOOL:
                self._answers.add(event.tool_use_id)
            case ToolUseInputDelta() if event.tool_use_id in self._answers:
                return event.message_id, event.partial_json
            case _:
                pass
        return None
