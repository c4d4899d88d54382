"""`stream_object`: the object as it grows, and at the end the whole one."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterable
from types import TracebackType
from typing import Generic, Self, TypeVar

import anyio
import msgspec

from adapters import (
    ContentBlock,
    MessageComplete,
    TextBlock,
    TextDelta,
    ToolUseBlock,
    ToolUseInputDelta,
    ToolUseStart,
)
from bus import CallboardError, StreamReset
from bus.json_types import Json
from bus.stream_events import TurnEvent

from ..schema_means import ANSWER_TOOL, arguments_text
from ..session import TurnStream
from ..turn import Turn
from .object_schema import ObjectSchema
from .objects import ObjectResult, ObjectTask
from .partial_json import PartialJson

T = TypeVar("T")


class ObjectStream(Generic[T]):
    """An object as it grows: an async context manager, and an async iterator of what there is of it.

    Each partial is plain JSON, not yet checked, and says more than the one before; several deltas that came
    together make one. `object()` and `result()` are the checked and typed end. With `max_reasks`, partials begin
    anew when the model is asked again. Any number of tasks may iterate. Leaving early cancels the call.
    """

    def __init__(self, task: ObjectTask[T]) -> None:
        self._task = task
        self._attempts: list[tuple[Turn, TurnStream]] = []
        self._exits = contextlib.AsyncExitStack()
        self._judging = anyio.Lock()
        self._result: ObjectResult[T] | None = None
        self._failure: CallboardError | None = None

    async def __aenter__(self) -> Self:
        await self._open(self._task.first)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._exits.__aexit__(kind, error, trace)

    def __aiter__(self) -> AsyncIterator[Json]:
        return self._partials()

    @property
    def text_stream(self) -> AsyncIterator[str]:
        """The text of the replies, piece by piece."""
        return self._texts()

    async def object(self) -> T:
        """The whole object. Raises NoObjectGeneratedError, and what the call raised."""
        return (await self.result()).output

    async def result(self) -> ObjectResult[T]:
        """The object with its text, usage, cost and steps. Raises as `object()` does."""
        number = 0
        while await self._has_next(number):
            number += 1
        assert self._result is not None
        return self._result

    async def cancel(self) -> bool:
        """Cancel the call; whoever iterates gets CancelledError. False if it is over."""
        return await self._attempt(-1)[1].cancel()

    @property
    def stream_id(self) -> str:
        """What `Engine.attach` takes, for readers of all events of the reply that comes just now."""
        return self._attempt(-1)[0].id

    # -- attempts

    async def _open(self, turn: Turn) -> None:
        stream = await self._exits.enter_async_context(TurnStream(self._task.engine, turn))
        self._attempts.append((turn, stream))

    def _attempt(self, number: int) -> tuple[Turn, TurnStream]:
        if not self._attempts:
            raise CallboardError("enter the stream first: async with engine.stream_object(...) as stream")
        return self._attempts[number]

    async def _has_next(self, number: int) -> bool:
        """Wait for the end of an attempt; whether another one follows it. Raises what ended the last one."""
        turn, stream = self._attempt(number)
        async with self._judging:
            if number + 1 < len(self._attempts):
                return True
            if self._failure is not None:
                raise self._failure
            if self._result is not None:
                return False
            try:
                await stream.message()
                judged = self._task.judge(turn)
                if isinstance(judged, ObjectResult):
                    self._result = judged
                    return False
                await self._open(judged)
            except CallboardError as error:
                self._failure = error
                raise
            return True

    # -- readers

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
        """The replies' text as it comes, each piece with its message's id."""
        reader = self._attempt(number)[0].log.reader(coalesce=True)
        pieces = _Pieces(may_be_forced=not self._task.has_tools)
        try:
            async for event in reader:
                for piece in pieces.of(event):
                    yield piece
        finally:
            reader.close()


class _Growing(Generic[T]):
    """What there is of an object. A turn may have several replies, if tools are run between: each begins anew."""

    def __init__(self, schema: ObjectSchema[T], *, lenient: bool) -> None:
        self._schema = schema
        self._lenient = lenient
        self._message_id = ""
        self._machine = self._new_machine()

    def feed(self, message_id: str, piece: str) -> Json | msgspec.UnsetType:
        """The value, if it has grown; else UNSET."""
        if message_id != self._message_id:
            self._message_id, self._machine = message_id, self._new_machine()
        return self._schema.unwrapped(self._machine.value) if self._machine.feed(piece) else msgspec.UNSET

    def _new_machine(self) -> PartialJson:
        return PartialJson(embedded=True, opening="{", lenient=self._lenient)


class _Pieces:
    """Text in events: deltas, and the arguments of the tool call that stands for a reply.

    Of a stream that was folded meanwhile, what this reader hasn't got comes in one piece for each message.
    """

    def __init__(self, *, may_be_forced: bool) -> None:
        self._may_be_forced = may_be_forced
        self._answers: set[str] = set()
        self._given: dict[str, int] = {}

    def of(self, event: TurnEvent | StreamReset[TurnEvent]) -> list[tuple[str, str]]:
        """The pieces, each with its message's id."""
        if isinstance(event, StreamReset):
            texts = self._texts(event.snapshot)
            found = [(message_id, text[self._given.get(message_id, 0) :]) for message_id, text in texts.items()]
        else:
            piece = self._delta(event)
            found = [] if piece is None else [piece]
        for message_id, text in found:
            self._given[message_id] = self._given.get(message_id, 0) + len(text)
        return found

    def _texts(self, events: Iterable[TurnEvent]) -> dict[str, str]:
        texts: dict[str, str] = {}
        for event in events:
            if isinstance(event, MessageComplete):
                texts[event.message_id] = "".join(self._said(block) for block in event.final_content)
            elif (piece := self._delta(event)) is not None:
                texts[piece[0]] = texts.get(piece[0], "") + piece[1]
        return texts

    def _delta(self, event: TurnEvent) -> tuple[str, str] | None:
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

    def _said(self, block: ContentBlock) -> str:
        match block:
            case TextBlock():
                return block.text
            case ToolUseBlock(name=name) if self._may_be_forced and name == ANSWER_TOOL:
                return arguments_text(block)
            case _:
                return ""
