"""Answers a question from the command line: sends the request and prints the reply."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from functools import reduce
from operator import add
from queue import SimpleQueue
from signal import SIGINT
from threading import Thread
from types import FrameType
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias, TypedDict

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
    TokenUsage,
)
from callboard.bus import CancelledError, Cost
from callboard.bus.values.base import Json, JsonObject

from .. import Engine, ModelRegistry, Reply, Session, ToolLike, TurnOptions
from ..tools import Approve
from .command_line import FAILED
from .conversation_setup import approver, first_model, given_tools, remember
from .options import print_warnings
from .sanitize import note, sanitize
from .screen import print_error
from .table import cost_text, json_text

if TYPE_CHECKING:
    from ..generation.objects import ObjectSchema


# --- Standard output ---
# A separate thread writes the output, so that neither a full pipe nor a stopped terminal blocks the call. If the
# reader closes the pipe, the call is cancelled immediately. The same thread writes thoughts to standard error, so
# that a terminal shows both in order.


class ReplyOutput:
    """Prints a reply, piece by piece.

    At a terminal, characters that could control it are left out. A file or a pipe gets the text unchanged.
    """

    def __init__(self, on_closed: Callable[[], object]) -> None:
        self.closed = False  # whether the reader has closed the output, or the output can't be written
        self.last = ""  # the last character passed to `write`
        self._error: OSError | None = None
        self._on_closed = on_closed
        self._clean: Callable[[str], str] = sanitize if sys.stdout.isatty() else str
        self._shows_thoughts = sys.stderr.isatty()
        self._dim, self._undim = ("", "") if os.environ.get("NO_COLOR") else ("\x1b[2m", "\x1b[0m")
        self._thinks = False  # the line that is being written
        self._pieces: SimpleQueue[tuple[Literal["stdout", "stderr"], str] | None] = SimpleQueue()
        self._thread = Thread(target=self._write_all, name="callboard-stdout", daemon=True)
        self._thread.start()

    def write(self, text: str) -> None:
        """Write more of the reply. Returns immediately."""
        if text:
            self.end_thought()
            self.last = text[-1]
            self._pieces.put(("stdout", text))

    def think(self, text: str) -> None:
        """Write more of the model's reasoning, on a terminal only. Returns immediately."""
        if text and self._shows_thoughts:
            begin = "" if self._thinks else self._dim
            self._thinks = True
            self._pieces.put(("stderr", begin + sanitize(text)))

    def end_thought(self) -> None:
        """End the line of a thought, if there is one."""
        if self._thinks:
            self._thinks = False
            self._pieces.put(("stderr", f"{self._undim}\n"))

    def end_line(self) -> None:
        """End the current line, if it is not empty."""
        if self.last not in ("", "\n"):
            self.write("\n")

    def finish(self) -> None:
        """Wait until everything is written, or the reader has closed the output."""
        self.end_thought()
        self._pieces.put(None)
        self._thread.join()
        if self._error is not None:
            raise self._error

    def _write_all(self) -> None:
        while (piece := self._pieces.get()) is not None:
            output, text = piece
            if output == "stderr":
                with contextlib.suppress(OSError, ValueError):
                    sys.stderr.write(text)
                    sys.stderr.flush()
                continue
            if self.closed:
                continue
            try:
                sys.stdout.write(self._clean(text))
                sys.stdout.flush()
            except (OSError, ValueError) as error:  # ValueError: stdout was closed from the start
                self._error = error if isinstance(error, OSError) else BrokenPipeError()
                self.closed = True
                self._on_closed()


ENDING = (signal.SIGINT, signal.SIGTERM)
"""The signals of Ctrl-C, `kill` and `timeout`."""


@contextmanager
def first_signal(tell: Callable[[int], object]) -> Iterator[None]:
    """Report the first signal instead of ending the process.

    A second signal has its usual effect. Use it only on the main thread.
    """
    before = {number: signal.getsignal(number) for number in ENDING}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def on_signal(number: int, frame: FrameType | None) -> None:
        restore()
        tell(number)

    for number in ENDING:
        signal.signal(number, on_signal)
    try:
        yield
    finally:
        restore()


Which: TypeAlias = Literal["first", "last"]

_FENCE = re.compile(r" {0,3}(?P<fence>`{3,}|~{3,})(?P<info>[^\n]*)")


def code_blocks(text: str) -> list[str]:
    """The code of each fenced block, by the rules of CommonMark. A block ends at a fence of the same character
    that is at least as long, or at the end of the text.
    """
    found: list[str] = []
    lines: list[str] = []
    fence = ""
    for line in text.splitlines(keepends=True):
        match = _FENCE.fullmatch(line.rstrip("\r\n"))
        if not fence:
            if match is not None and not ("`" in match["info"] and match["fence"][0] == "`"):
                fence = match["fence"]
        elif match is not None and match["fence"].startswith(fence) and not match["info"].strip():
            found.append("".join(lines))
            lines, fence = [], ""
        else:
            lines.append(line)
    return [*found, "".join(lines)] if fence else found


def extracted(text: str, which: Which) -> str | None:
    """The first or the last block of code; None if there is none."""
    blocks = code_blocks(text)
    return (blocks[0] if which == "first" else blocks[-1]) if blocks else None


class Pace(NamedTuple):
    """The times of a reply's parts, in seconds on one clock."""

    requested_at: float
    first: float | None  # when the first piece arrived; None if the reply arrived whole
    ended: float  # when the last piece arrived


def usage_line(model: str, usage: TokenUsage, cost: Cost | None, pace: Pace, *, replies: int = 1) -> str:
    cached = f" ({usage.cached_input_tokens:,} cached)" if usage.cached_input_tokens else ""
    parts = [f"{usage.total_input_tokens:,} in{cached}", f"{usage.output_tokens:,} out"]
    if (rate := per_second(usage.output_tokens, pace, replies)) is not None:
        parts.append(f"{rate:,.0f} tokens a second" if rate >= 10 else f"{rate:.1f} tokens a second")
    if pace.first is not None:
        parts.append(f"the first after {pace.first - pace.requested_at:.1f} s")
    parts.append(f"{pace.ended - pace.requested_at:.1f} s in total")
    parts.append(cost_text(cost))
    calls = f" in {replies} calls" if replies > 1 else ""
    return f"{model}{calls}: {', '.join(parts)}"


def per_second(tokens: int, pace: Pace, replies: int) -> float | None:
    """The tokens per second after the reply has started.

    None if it can't be measured: the reply arrived in one piece or instantly, or tools ran during it.
    """
    if pace.first is None or replies > 1 or tokens <= 1 or pace.ended <= pace.first:
        return None
    return (tokens - 1) / (pace.ended - pace.first)


class Question(NamedTuple):
    """A question, and what to do with its reply."""

    content: str | Sequence[ContentBlock]
    model: str | None  # None uses the model of the continued session
    system: str | None
    options: TurnOptions
    tools: Sequence[str] = ()  # the tools, as words of the command line
    asks_always: bool = False  # whether every tool call needs the user's approval
    schema: JsonObject | None = None
    extract: Which | None = None  # the block of code to write; None for the whole reply
    session_id: str | None = None  # the session to continue or to start under this id; None for a new one
    must_exist: bool = False  # whether the session must already exist
    saved: bool = True
    streamed: bool = True
    shows_thoughts: bool = True  # whether a terminal shows the model's reasoning
    shows_usage: bool = False  # whether tokens, pace and cost are shown at the end
    as_json: bool = False  # whether the reply is written as one JSON object with its usage and cost
    key: str | None = None  # the name of the adapter's key to send
    tags: dict[str, str] | None = None  # the tags of the calls
    name: str | None = None  # the name of a new session, for people


def name_of(prompt: str, longest: int = 60) -> str | None:
    """The first words of a prompt, as the name of a new conversation; None if the prompt has no words."""
    words = " ".join(prompt.split())
    return (words if len(words) <= longest else f"{words[:longest].rstrip()}…") or None


# --- Answering ---

SIGNALLED = 128
"""The number that shells add to a signal's number for the exit code."""


class _UnstoredOptions(TypedDict):
    """The options that a session doesn't store. They are passed again each time."""

    system_prompt: str | None
    tools: Sequence[ToolLike]
    approve: Approve | None
    key: str | None


def answer(question: Question, registry: ModelRegistry) -> int:
    """Ask the question, and write the reply. Returns the exit code."""
    answering = _Answering(question, registry)
    try:
        return anyio.run(answering.run)
    finally:
        answering.reply_output.finish()


class _Answering:
    def __init__(self, question: Question, registry: ModelRegistry) -> None:
        self.reply_output = ReplyOutput(self._on_closed_output)
        self._question = question
        self._registry = registry
        self._schema: ObjectSchema[Json] | None = None
        if question.schema is not None:
            from ..generation.objects import ObjectSchema

            self._schema = ObjectSchema(question.schema)
        made_of_all = question.schema is not None or question.extract is not None or question.as_json
        self._writes_at_end = made_of_all or not question.streamed
        self._loop: asyncio.AbstractEventLoop | None = None
        self._session: Session | None = None
        self._stopped_by: int | None = None
        self._stopping: asyncio.Task[None] | None = None
        self._first: float | None = None

    async def run(self) -> int:
        """Start an engine, answer one question, and close the engine. Returns the exit code."""
        self._loop = asyncio.get_running_loop()
        with first_signal(lambda number: self._loop_calls(self._stop, number)), anyio.CancelScope() as self._scope:
            engine = Engine(models=self._registry, capture_content=self._question.saved)
            async with engine, AsyncExitStack() as life:
                return await self._ask(engine, life)
        return self._stopped()

    # --- The question ---

    async def _ask(self, engine: Engine, life: AsyncExitStack) -> int:
        question = self._question
        tools = await given_tools(question.tools, life)
        session = self._session = await self._open(engine, tools)
        requested_at = time.perf_counter()
        try:
            reply = await self._reply(session)
        except CancelledError as error:
            if self._stopped_by is None:
                raise
            return self._stopped(error)
        finally:
            self.reply_output.end_line()
            if question.saved and session.messages:
                remember(session.id, question.tools)
        pace = Pace(requested_at, self._first, time.perf_counter())
        code = self._write(reply)
        self._report(session, reply, pace)
        return code

    async def _open(self, engine: Engine, tools: Sequence[ToolLike]) -> Session:
        question = self._question
        approve = approver(tools, asks_always=question.asks_always) if tools else None
        options: _UnstoredOptions = {
            "system_prompt": question.system,
            "tools": tools,
            "approve": approve,
            "key": question.key,
        }
        if question.session_id is None:
            model = question.model or first_model(self._registry)
            return engine.session(model, tags=question.tags, name=question.name, **options)
        store = engine.store
        stored = store is not None and await store.saved_session(question.session_id) is not None
        if question.must_exist or stored:
            return await engine.resume(question.session_id, model=question.model, **options)
        model = question.model or first_model(self._registry)
        return await engine.open_session(question.session_id, model=model, tags=question.tags, **options)

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
                        self.reply_output.write(event.text)
                elif isinstance(event, ThinkingDelta):
                    if question.shows_thoughts:
                        self.reply_output.think(event.text)
                elif isinstance(event, MessageStart):
                    self.reply_output.end_line()  # end the line of the text before a round of tools
                else:
                    self.reply_output.end_thought()
            return await turn.message()

    def _write(self, reply: Reply) -> int:
        """Write the text that has not been written yet. Returns the exit code."""
        question = self._question
        try:
            text = wanted_text(reply, self._schema, question.extract, as_json=question.as_json)
        except ValueError as error:
            print_error(str(error))
            if reply.text:  # stdout is only for the requested text
                sys.stderr.write(sanitize(reply.text).rstrip("\n") + "\n")
            return FAILED
        if self._writes_at_end:
            self.reply_output.write(text)
            self.reply_output.end_line()
        if reply.status == "awaiting_tools":
            names = ", ".join(call.name for call in reply.tool_uses)
            print_error(f"the model called {names}, and the call was not run")
            return FAILED
        return 0

    def _report(self, session: Session, reply: Reply, pace: Pace) -> None:
        """Write the reply's warnings, tokens, pace and cost to stderr."""
        print_warnings(reply.warnings)
        if reply.metadata.stop_reason is StopReason.MAX_TOKENS:
            note("(cut off at the output limit; raise it with -o max_output_tokens N)")
        if reply.metadata.stop_reason is StopReason.TOOL_USE and reply.status != "awaiting_tools":
            note("(the model requested more tool calls; allow them with -o max_tool_rounds N)")
        if self._question.shows_usage:
            replies = replies_of_turn(session.messages)
            usage = reduce(add, (each.usage for each in replies))
            cost = reduce(add, (each.cost for each in replies))
            note(usage_line(reply.model, usage, cost, pace, replies=len(replies)))

    def _on_closed_output(self) -> None:
        """Handle a closed output. This runs in the output's thread."""
        self._loop_calls(self._stop, 0)

    def _loop_calls(self, function: Callable[[int], None], number: int) -> None:
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed, so the call has ended
                self._loop.call_soon_threadsafe(function, number)

    def _stop(self, number: int) -> None:
        if self._stopping is None and self._loop is not None:
            self._stopped_by = number
            self._stopping = self._loop.create_task(self._cancel())

    async def _cancel(self) -> None:
        if self._session is None or not await self._session.cancel():
            self._scope.cancel()

    def _stopped(self, error: CancelledError | None = None) -> int:
        """The exit code after a signal. Shows the cost of the cancelled call."""
        if self._stopped_by and error is not None:
            some, none = "the part that arrived is above, and", "no output arrived; the call"
            note(f"stopped; {some if self.reply_output.last else none} cost {cost_text(error.cost)}")
        return SIGNALLED + (self._stopped_by or SIGINT)


def replies_of_turn(messages: Sequence[Message]) -> list[MessageMetadata]:
    """The metadata of the replies since the last question."""
    found: list[MessageMetadata] = []
    for message in reversed(messages):
        if message.role is Role.USER and not message.steers:
            break
        if message.metadata is not None:
            found.append(message.metadata)
    return found


# --- The reply's output ---


def wanted_text(reply: Reply, schema: ObjectSchema[Json] | None, extract: Which | None, *, as_json: bool) -> str:
    """The text to write for a complete reply."""
    if schema is not None:
        from ..generation.objects import read_json

        try:
            value = schema.read(read_json(reply.text))
        except ValueError as error:
            raise ValueError(f"the reply does not follow the schema: {error}") from error
        if as_json:
            return json_text({"output": value, **reply.to_dict()})
        return msgspec.json.format(json_text(value), indent=2) if sys.stdout.isatty() else json_text(value)
    if as_json:
        return json_text(reply.to_dict())
    if extract is None:
        return reply.text
    block = extracted(reply.text, extract)
    if block is None:
        raise ValueError("the reply has no code block")
    return block
