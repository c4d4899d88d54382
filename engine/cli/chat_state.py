"""The engine's side of a chat: the session, the reply in progress, its display, and the handling of Ctrl-C."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from types import FrameType
from typing import NamedTuple, Self

from callboard import adapters
from callboard.bus import StepFinish, StreamReset, TurnComplete
from callboard.bus.streams.events import TurnEvent

from .. import (
    Engine,
    GenerateResult,
    ModelRegistry,
    Reply,
    RequestPreview,
    Session,
    ToolLike,
    TurnOptions,
    TurnStream,
)
from ..mcp.hooks import SamplingRequest
from .conversation_setup import approver, first_model, given_tools
from .screen import Screen


class Setting(NamedTuple):
    model: str | None  # the model; None uses the default model, or the model of the continued session
    system: str | None  # the system prompt
    key: str | None  # the name of the adapter's key to send
    resumed: str | None  # the id of the session to continue; None for a new session
    saved: bool  # Whether the chat is saved from the start.
    options: TurnOptions  # the options of each turn
    tools: Sequence[str] = ()  # the tools, as words of the command line
    asks_always: bool = False  # whether the user is asked about every tool call


class ChatEngine:
    """The engine and the session of a chat. Everything runs on the event loop, in one task."""

    engine: Engine
    session: Session

    def __init__(self, registry: ModelRegistry, setting: Setting) -> None:
        self.saved = setting.saved or setting.resumed is not None
        self._registry = registry
        self._setting = setting
        self._life = AsyncExitStack()
        self._tools: Sequence[ToolLike] = ()

    async def __aenter__(self) -> ChatEngine:
        try:
            self._tools = await given_tools(self._setting.tools, self._life, self._generate)
            self.engine = Engine(models=self._registry, capture_content=self.saved)
            self._life.push_async_callback(self._close)
            await self._begin()
        except BaseException:
            await self._life.aclose()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._life.aclose()

    async def _generate(self, request: SamplingRequest) -> GenerateResult:
        """Generate a reply with the chat's model, for an MCP server that requested it."""
        from ..mcp.requests import sampled_by

        return await sampled_by(self.session.model, self.engine)(request)

    async def _close(self) -> None:
        await self.engine.aclose()

    async def _begin(self) -> None:
        setting = self._setting
        approve = approver(self._tools, asks_always=setting.asks_always, tells=False) if self._tools else None
        if setting.resumed is not None:
            self.session = await self.engine.resume(
                setting.resumed,
                model=setting.model,
                system_prompt=setting.system,
                tools=self._tools,
                approve=approve,
                key=setting.key,
            )
            return
        model = setting.model or first_model(self._registry)
        self._require(model)
        self.session = self.engine.session(
            model, system_prompt=setting.system, tools=self._tools, approve=approve, key=setting.key
        )
        await self.engine.start()

    def _require(self, model: str) -> None:
        registry = self.engine.registry
        registry.adapter_of(registry.resolve(model).model)

    def swap(self, name: str) -> None:
        """Change the model of the session."""
        self._require(name)
        self.session.model = name

    async def preview(self, name: str, content: Sequence[adapters.ContentBlock]) -> RequestPreview:
        """The request that would be sent to a model for this message."""
        text = content or "…"
        return await self.engine.preview(self.session, text, model=name or None, **self._setting.options)

    def back_to(self, count: int) -> None:
        """Keep only the first messages, up to this number, and continue in a new session with them."""
        if len(self.session.messages) > count:
            self.session = self.session.fork(at=count)

    async def save(self) -> None:
        """Save the conversation, and all later messages. A second call does nothing."""
        if self.saved:
            return
        document = self.session.export()
        await self.engine.aclose()
        self.engine = Engine(models=self._registry, capture_content=True)
        self.session = await self.engine.import_session(document, tools=self._tools, key=self._setting.key)
        await self.engine.flush()
        self.saved = True


class ReplyInProgress:
    """A turn in progress on the event loop. The main thread may cancel it at any time."""

    def __init__(
        self,
        session: Session,
        content: str | Sequence[adapters.ContentBlock],
        options: TurnOptions,
        writer: ReplyWriter,
    ) -> None:
        self._session = session
        self._content = content
        self._options = options
        self._writer = writer
        self._turn: TurnStream | None = None
        self._cancelled = False

    async def run(self) -> Reply:
        try:
            async with self._session.stream(self._content, **self._options) as turn:
                self._turn = turn
                if self._cancelled:
                    await turn.cancel()
                async for event in turn:
                    self._writer.feed(event)
                return await turn.message()
        finally:
            self._writer.end()

    async def cancel(self) -> None:
        """Cancel the turn; the part that has arrived is kept."""
        self._cancelled = True
        if self._turn is not None:
            await self._turn.cancel()


# --- Replies on the screen ---


class ReplyWriter:
    """Shows a turn's events on a screen."""

    def __init__(self, screen: Screen, label: str, *, before: Callable[[], None] = lambda: None) -> None:
        self._screen = screen
        self._label = label
        self._before = before
        self._writing: str | None = None  # the style of the line that is being written

    def feed(self, event: TurnEvent | StreamReset[TurnEvent]) -> None:
        match event:
            case adapters.MessageStart():
                self._before()
            case adapters.ThinkingDelta():
                if self._screen.console.is_terminal:
                    self._write(event.text, "dim")
            case adapters.TextDelta():
                self._write(event.text)
            case adapters.ToolUseStart():
                self._write(f"calls {event.tool_name} with ")
            case adapters.ToolUseInputDelta():
                self._write(event.partial_json)
            case adapters.ToolUseEnd():
                self._write(" (cut off)" if event.incomplete else "")
            case adapters.MessageComplete() | StepFinish() | TurnComplete():
                self.end()
            case _:
                pass

    def end(self) -> None:
        """End the current line, if there is one. A second call does nothing."""
        if self._writing is not None:
            self._writing = None
            self._screen.end_reply()

    def _write(self, text: str, style: str = "green") -> None:
        if text and self._writing != style:
            self.end()
            self._writing = style
            self._screen.begin_reply("thinks> " if style == "dim" else self._label, style)
        self._screen.text(text)


# --- Ctrl-C in a chat ---
#   idle       nothing immediately: the next reading starts with KeyboardInterrupt, and the chat ends
#   reading    KeyboardInterrupt, in the middle of reading
#   replying   the reply is cancelled; a second one raises KeyboardInterrupt
#
# Between these, Python would raise KeyboardInterrupt anywhere in the main thread: also in a callback of the
# garbage collector, where it is shown and lost.


class Interrupts:
    """A context that defines the effect of Ctrl-C. Use it only on the main thread."""

    def __init__(self) -> None:
        self._reading = False
        self._waiting = False
        self._cancel: Callable[[], object] | None = None

    def __enter__(self) -> Self:
        self._before = signal.signal(signal.SIGINT, self._on_interrupt)
        return self

    def __exit__(self, *_: object) -> None:
        signal.signal(signal.SIGINT, self._before)

    @contextmanager
    def reading(self) -> Iterator[None]:
        try:
            self._reading = True
            if self._waiting:
                raise KeyboardInterrupt
            yield
        finally:
            self._reading = self._waiting = False

    @contextmanager
    def replying(self, cancel: Callable[[], object]) -> Iterator[None]:
        self._cancel = cancel
        try:
            yield
        finally:
            self._cancel, self._reading = None, False

    def _on_interrupt(self, number: int, frame: FrameType | None) -> None:
        cancel, self._cancel = self._cancel, None
        if cancel is not None:
            self._reading = True  # a second Ctrl-C raises KeyboardInterrupt
            cancel()
        elif self._reading:
            raise KeyboardInterrupt
        else:
            self._waiting = True
