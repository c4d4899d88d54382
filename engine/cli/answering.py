"""A question of the command line, from the request to the printed reply."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from functools import reduce
from operator import add
from signal import SIGINT
from typing import TYPE_CHECKING, NamedTuple, TypedDict

import anyio
import msgspec

from callboard.adapters import (
    ContentBlock,
    Message,
    MessageMetadata,
    MessageStart,
    Role,
    StopReason,
    TextDelta,
    ThinkingDelta,
)
from callboard.bus import CancelledError
from callboard.bus.values.base import Json, JsonObject
from callboard.engine import Engine, ModelRegistry, Reply, Session, Tool, TurnOptions
from callboard.engine.tools import Approve

from .command_line import FAILED
from .common.figures import cost_text
from .common.harmless import harmless, note
from .common.options import tell_warnings
from .common.screen import complain
from .common.table import json_text
from .conversation_setup import approver, first_model, given_tools, remember
from .reply_output import Outlet, Pace, Which, extracted, first_signal, usage_line

if TYPE_CHECKING:
    from ..objects.generate import ObjectSchema


class Question(NamedTuple):
    """A question, and the handling of its reply."""

    content: str | Sequence[ContentBlock]  # the prompt, or blocks
    model: str | None  # The model; None is that of the continued session.
    system: str | None  # the system prompt
    options: TurnOptions  # the options of the turn
    tools: Sequence[str] = ()  # the tools, as words
    asks_always: bool = False  # whether the person is asked about every call of a tool
    schema: JsonObject | None = None  # the schema of the reply
    extract: Which | None = None  # the block of code that is wanted; None is the whole reply
    session_id: str | None = None  # the session that goes on, or starts under this id; None is a new one
    must_exist: bool = False  # whether the session must be there already
    saved: bool = True  # Whether the conversation is saved.
    streamed: bool = True  # whether the reply is streamed
    shows_thoughts: bool = True  # whether a terminal shows what the model thinks
    shows_usage: bool = False  # Whether tokens, pace and cost are shown at the end.
    as_json: bool = False  # whether the reply is written as one JSON object with its usage and cost
    key: str | None = None  # the name of the adapter's key to send
    tags: dict[str, str] | None = None  # the tags of the calls
    name: str | None = None  # the name of a new session, for people


def name_of(prompt: str, longest: int = 60) -> str | None:
    """The first words of a prompt, as the name of the conversation that it starts; None if it has none."""
    words = " ".join(prompt.split())
    return (words if len(words) <= longest else f"{words[:longest].rstrip()}…") or None


# --- Answering ---

SIGNALLED = 128
"""The number that shells add to a signal's number."""


class _Said(TypedDict):
    """The options that a session doesn't store, so they are passed again each time."""

    system_prompt: str | None
    tools: Sequence[Tool]
    approve: Approve | None
    key: str | None


def answer(question: Question, registry: ModelRegistry) -> int:
    """Ask, and write the reply. Returns the exit code."""
    answering = _Answering(question, registry)
    try:
        return anyio.run(answering.run)
    finally:
        answering.outlet.finish()


class _Answering:
    def __init__(self, question: Question, registry: ModelRegistry) -> None:
        self.outlet = Outlet(self._nobody_reads)
        self._question = question
        self._registry = registry
        self._schema: ObjectSchema[Json] | None = None
        if question.schema is not None:
            from ..objects.generate import ObjectSchema

            self._schema = ObjectSchema(question.schema)
        made_of_all = question.schema is not None or question.extract is not None or question.as_json
        self._writes_at_end = made_of_all or not question.streamed
        self._loop: asyncio.AbstractEventLoop | None = None
        self._session: Session | None = None
        self._stopped_by: int | None = None
        self._stopping: asyncio.Task[None] | None = None
        self._first: float | None = None

    async def run(self) -> int:
        """The whole life of an engine that answers one question."""
        self._loop = asyncio.get_running_loop()
        with first_signal(lambda number: self._loop_calls(self._stop, number)), anyio.CancelScope() as self._scope:
            async with self._engine() as engine, AsyncExitStack() as life:
                return await self._ask(engine, life)
        return self._stopped()

    def _engine(self) -> Engine:
        return Engine(models=self._registry, capture_content=self._question.saved)

    # --- The question ---

    async def _ask(self, engine: Engine, life: AsyncExitStack) -> int:
        question = self._question
        tools = await given_tools(question.tools, life)
        session = self._session = await self._open(engine, tools)
        asked = time.perf_counter()
        try:
            reply = await self._reply(session)
        except CancelledError as error:
            if self._stopped_by is None:
                raise
            return self._stopped(error)
        finally:
            self.outlet.end_line()
            if question.saved and session.messages:
                remember(session.id, question.tools)
        pace = Pace(asked, self._first, time.perf_counter())
        code = self._write(reply)
        self._tell(session, reply, pace)
        return code

    async def _open(self, engine: Engine, tools: Sequence[Tool]) -> Session:
        question = self._question
        approve = approver(tools, asks_always=question.asks_always) if tools else None
        if question.session_id is None:
            return engine.session(
                question.model or first_model(self._registry),
                system_prompt=question.system,
                tools=tools,
                tags=question.tags,
                approve=approve,
                key=question.key,
                name=question.name,
            )
        said: _Said = {"system_prompt": question.system, "tools": tools, "approve": approve, "key": question.key}
        if question.must_exist or await _is_stored(engine, question.session_id):
            return await engine.resume(question.session_id, model=question.model, **said)
        model = question.model or first_model(self._registry)
        return await engine.open_session(question.session_id, model=model, tags=question.tags, **said)

    async def _reply(self, session: Session) -> Reply:
        question = self._question
        options = question.options
        if self._schema is not None:
            options = {"schema_mode": "auto", **options, "output_schema": self._schema.sent}
        if not question.streamed:
            return await session.send(question.content, **options)
        async with session.stream(question.content, **options) as turn:
            async for event in turn:
                if isinstance(event, TextDelta):
                    if self._first is None:
                        self._first = time.perf_counter()
                    if not self._writes_at_end:
                        self.outlet.write(event.text)
                elif isinstance(event, ThinkingDelta):
                    if question.shows_thoughts:
                        self.outlet.think(event.text)
                elif isinstance(event, MessageStart):
                    self.outlet.end_line()  # of the text before a round of tools
                else:
                    self.outlet.end_thought()
            return await turn.message()

    def _write(self, reply: Reply) -> int:
        """Write what has not been written as it came. Gives the exit code."""
        question = self._question
        try:
            text = wanted_text(reply, self._schema, question.extract, as_json=question.as_json)
        except ValueError as error:
            complain(str(error))
            note_text(reply.text)
            return FAILED
        if self._writes_at_end:
            self.outlet.write(text)
            self.outlet.end_line()
        if reply.status == "awaiting_tools":
            names = ", ".join(call.name for call in reply.tool_uses)
            complain(f"the model calls {names}, and the call was not run")
            return FAILED
        return 0

    def _tell(self, session: Session, reply: Reply, pace: Pace) -> None:
        """Write the warnings and facts of the reply to stderr."""
        tell_warnings(reply.warnings)
        if reply.metadata.stop_reason is StopReason.MAX_TOKENS:
            note("(cut off at the output limit; -o max_output_tokens N raises it)")
        if reply.metadata.stop_reason is StopReason.TOOL_USE and reply.status != "awaiting_tools":
            note("(the model wants to call tools again; -o max_tool_rounds N lets it)")
        if self._question.shows_usage:
            replies = replies_of_turn(session.messages)
            usage = reduce(add, (each.usage for each in replies))
            cost = reduce(add, (each.cost for each in replies))
            note(usage_line(reply.model, usage, cost, pace, replies=len(replies)))

    def _nobody_reads(self) -> None:
        """Called in the outlet's thread."""
        self._loop_calls(self._stop, 0)

    def _loop_calls(self, function: Callable[[int], None], number: int) -> None:
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed, and all is over
                self._loop.call_soon_threadsafe(function, number)

    def _stop(self, number: int) -> None:
        if self._stopping is None and self._loop is not None:
            self._stopped_by = number
            self._stopping = self._loop.create_task(self._cancel())

    async def _cancel(self) -> None:
        if self._session is None or not await self._session.cancel():
            self._scope.cancel()

    def _stopped(self, error: CancelledError | None = None) -> int:
        """The exit code of a question that a signal has ended. Its cost is shown."""
        if self._stopped_by and error is not None:
            arrived = "what had arrived is above, and" if self.outlet.last else "nothing had arrived yet; it"
            note(f"stopped; {arrived} cost {cost_text(error.cost)}")
        return SIGNALLED + (self._stopped_by or SIGINT)


async def _is_stored(engine: Engine, session_id: str) -> bool:
    return engine.store is not None and await engine.store.saved_session(session_id) is not None


def replies_of_turn(messages: Sequence[Message]) -> list[MessageMetadata]:
    """The replies since the last question, each with its usage and cost."""
    found: list[MessageMetadata] = []
    for message in reversed(messages):
        if message.role is Role.USER and not message.steers:
            break
        if message.metadata is not None:
            found.append(message.metadata)
    return found


# --- The reply's output ---


def wanted_text(reply: Reply, schema: ObjectSchema[Json] | None, extract: Which | None, *, as_json: bool) -> str:
    """The text to write for a reply that has ended."""
    if schema is not None:
        value = _read(reply.text, schema)
        if as_json:
            return json_text({"output": value, **reply.to_dict()})
        return json_text(value) if not sys.stdout.isatty() else _in_lines(value)
    if as_json:
        return json_text(reply.to_dict())
    if extract is None:
        return reply.text
    block = extracted(reply.text, extract)
    if block is None:
        raise ValueError("there is no block of code in the reply")
    return block


def _read(text: str, schema: ObjectSchema[Json]) -> Json:
    from ..objects.generate import read_json

    try:
        return schema.read(read_json(text))
    except ValueError as error:
        raise ValueError(f"the reply doesn't follow the schema: {error}") from error


def _in_lines(value: Json) -> str:
    return msgspec.json.format(json_text(value), indent=2)


def note_text(text: str) -> None:
    """Write a reply of several lines to stderr, because it is not what stdout is for."""
    if text:
        sys.stderr.write(harmless(text).rstrip("\n") + "\n")
