"""The parts of a chat that live on the event loop: the engine, the session, and the reply under way."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import NamedTuple

from callboard.adapters import ContentBlock
from callboard.engine import Engine, ModelRegistry, Reply, RequestPreview, Session, Tool, TurnOptions, TurnStream

from ..answer.approving import approver
from ..given.model import first_model
from ..given.tools import given_tools
from .replies import ReplyWriter


class Setting(NamedTuple):
    """What the chat begins with."""

    model: str | None
    """The model; None is the default one, or that of the session that goes on."""
    system: str | None
    """The system prompt."""
    key: str | None
    """The name of the adapter's key to send."""
    resumed: str | None
    """The session that goes on; None is a new one."""
    saved: bool
    """Whether what is said is kept from the beginning."""
    options: TurnOptions
    """The options of each turn."""
    tools: Sequence[str] = ()
    """The tools, as words."""
    asks_always: bool = False
    """Whether the person is asked about every call of a tool."""


class Backstage:
    """The engine and the session. They are made, used and ended on the event loop, in one task.

    Raises:
        CallboardError: There can be no chat: the model, its key, a tool or the session can't be had.
    """

    engine: Engine
    session: Session

    def __init__(self, registry: ModelRegistry, setting: Setting) -> None:
        self.saved = setting.saved or setting.resumed is not None
        """Whether what is said is kept."""
        self._registry = registry
        self._setting = setting
        self._life = AsyncExitStack()
        self._tools: Sequence[Tool] = ()

    async def __aenter__(self) -> Backstage:
        try:
            self._tools = await given_tools(self._setting.tools, self._life)
            self.engine = Engine(models=self._registry, capture_content=self.saved)
            self._life.push_async_callback(self._close)
            await self._begin()
        except BaseException:
            await self._life.aclose()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._life.aclose()

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
        """Give the session another model.

        Raises:
            ConfigurationError: There is no such model, or its key is missing.
        """
        self._require(name)
        self.session.model = name

    async def preview(self, name: str, content: Sequence[ContentBlock]) -> RequestPreview:
        """The request that a model would be sent, if the person said that.

        Raises:
            ConfigurationError: There is no such model.
        """
        said = content or "…"
        return await self.engine.preview(self.session, said, model=name or None, **self._setting.options)

    def back_to(self, count: int) -> None:
        """Go on as if only so many messages had been said: in a session of its own, with the same beginning."""
        if len(self.session.messages) > count:
            self.session = self.session.fork(at=count)

    async def save(self) -> None:
        """Keep what was said, and what will be. A second call does nothing.

        Raises:
            CallboardError: It can't be kept.
        """
        if self.saved:
            return
        document = self.session.export()
        await self.engine.aclose()
        self.engine = Engine(models=self._registry, capture_content=True)
        self.session = await self.engine.import_session(document, tools=self._tools, key=self._setting.key)
        await self.engine.flush()
        self.saved = True


class ReplyUnderWay:
    """One turn, from the loop's side, that the main thread may cancel at any time."""

    def __init__(
        self, session: Session, content: str | Sequence[ContentBlock], options: TurnOptions, writer: ReplyWriter
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
        """End the turn; what had arrived is kept."""
        self._cancelled = True
        if self._turn is not None:
            await self._turn.cancel()
