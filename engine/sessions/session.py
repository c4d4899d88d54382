"""A session: one conversation, whose provider may change from turn to turn.

`SessionState` is the conversation itself, a plain object that outlives any task or actor that works on it.
`Session` is the host's handle: it sends, streams, swaps the model, cancels. The caller who starts a turn owns it:
cancelling the task that awaits `send`, or leaving `async with session.stream(...)` early, cancels the turn.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from types import MappingProxyType, TracebackType
from typing import Self, Unpack

import anyio

from adapters import ContentBlock, Message, MessageComplete, TextBlock, TextDelta, ToolUseBlock
from adapters.replies.whole import spelled_out
from bus import CallboardError, SessionRenamed, StreamReader, StreamReset, TaskHandle
from bus.streams.events import TurnEvent

from ..conversation.options import TurnOptions, options_among
from ..conversation.reply import Reply
from ..conversation.turn import Turn, own
from ..routing.candidates import expand
from ..routing.choice import Model
from ..runtime.runtime import Runtime
from ..tools import Answer, Tool, open_calls, require_distinct
from .state import SessionState
from .whole import exported, fork_of

_ADVICE = {
    "timeout": "it is called timeout_seconds=",
    "system": "it is the session's: session.system_prompt = '...'",
    "system_prompt": "it is the session's: session.system_prompt = '...'",
    "tools": "they are the session's: session.tools = [...]",
    "messages": "a session has its own history; engine.generate(messages=[...]) takes any",
    "schema": "use engine.generate_object(); output_schema= asks for JSON text",
    "response_format": "use engine.generate_object(); output_schema= asks for JSON text",
}


class Session:
    """The host's handle of a conversation, made by `Engine.session()`.

    It is for the engine's event loop. Its turns run one after the other, and at most 16 wait.
    """

    def __init__(self, runtime: Runtime, state: SessionState) -> None:
        self._runtime = runtime
        self._state = state

    @property
    def id(self) -> str:
        """The session's id: ``ses_`` and a ULID, unless it was given another."""
        return self._state.id

    @property
    def model(self) -> Model:
        """The model of the next turn, as it was given. Assigning takes effect with the next turn.

        Any of a model's names, a sequence of them, or a `ModelChoice` may be assigned.

        Raises:
            ConfigurationError: No model has the assigned name.
        """
        return self._state.model

    @model.setter
    def model(self, model: Model) -> None:
        expand(self._runtime.registry, model)
        self._runtime.sessions.change_model(self._state, model)

    @property
    def name(self) -> str | None:
        """The session's name, for people; None if it has none."""
        return self._state.name

    @property
    def tags(self) -> Mapping[str, str]:
        """The tags that its calls carry, for `callboard cost --by`."""
        return MappingProxyType(self._state.tags)

    @property
    def system_prompt(self) -> str | None:
        """The system prompt of the next turn."""
        return self._state.system_prompt

    @system_prompt.setter
    def system_prompt(self, text: str | None) -> None:
        self._state.system_prompt = text
        self._changed()

    @property
    def tools(self) -> tuple[Tool, ...]:
        """The tools of the next turn. Assigning two of one name raises ConfigurationError."""
        return self._state.tools

    @tools.setter
    def tools(self, tools: Sequence[Tool]) -> None:
        require_distinct(tools)
        self._state.tools = tuple(tools)
        self._changed()

    @property
    def messages(self) -> tuple[Message, ...]:
        """The history as it is now. Its costs are those of the current price table."""
        return tuple(self._state.messages)

    async def send(
        self,
        content: str | Sequence[ContentBlock],
        *,
        model: Model | None = None,
        **options: Unpack[TurnOptions],
    ) -> Reply:
        """One turn, not streamed. Cancelling the task that waits here cancels the turn.

        Exceptions of the host's own middleware, hooks and policies are raised here, too. An exception of a turn
        has `.turn`, with its `steps`, `messages` and `cost` so far. The content may be sent again: a turn that
        nothing answered leaves the history as it was.

        Args:
            content: Text, or blocks.
            model: A model for this turn alone.
            options: The fields of `TurnOptions`.

        Returns:
            The assistant's last message.

        Raises:
            AdapterError: A call failed; it has many classes.
            CancelledError: The turn was cancelled by `cancel()`. The class is ours.
            RequestTimeoutError: The turn's time is up.
            ConfigurationError: A model or an option is wrong.
            SessionBusy: Too many turns wait.
            SessionTakenOver: Another engine has resumed the session.
            AdmissionError: The trace writer is too far behind.
            StoreError: The trace can't be used.
        """
        turn = self._new_turn(content, model, streamed=False, options=options)
        task = await self._runtime.host.start_turn(turn)
        return await own(turn, task)

    def stream(
        self,
        content: str | Sequence[ContentBlock],
        *,
        model: Model | None = None,
        **options: Unpack[TurnOptions],
    ) -> TurnStream:
        """One turn, streamed: `async with session.stream("…") as turn: async for event in turn: …`.

        It begins when it is entered. The arguments are as in `send`. The exceptions of `send` are raised on
        entering and by iterating.
        """
        turn = self._new_turn(content, model, streamed=True, options=options)
        return TurnStream(self._runtime, turn)

    def rename(self, name: str) -> None:
        """Give the session another name.

        Raises:
            ValueError: The name is empty.
        """
        if not name:
            raise ValueError("a session's name can't be empty")
        self._state.name = name
        if self._state.announced:
            self._runtime.bus.publish(SessionRenamed(name=name), session_id=self.id)

    def fork(self, *, at: int | None = None, session_id: str | None = None) -> Session:
        """Another session that begins with this one's history.

        Model, tools, system prompt, tags and name are the same. From here on both go their own ways.

        Args:
            at: The number of messages to begin with; None for all.
            session_id: An id in place of a new one.

        Raises:
            CallboardError: There is no such message, or a session of that id is open.
        """
        state = fork_of(self._state, session_id or self._runtime.clock.new_id("ses"), at)
        self._runtime.sessions.open(state)
        return Session(self._runtime, state)

    def export(self) -> bytes:
        """The whole session as a JSON document, for `Engine.import_session`. It contains all content of the
        session.
        """
        return exported(self._state)

    def _changed(self) -> None:
        if self._state.announced:
            self._runtime.sessions.publish_setup(self._state)

    @property
    def pending_calls(self) -> tuple[ToolUseBlock, ...]:
        """The calls of the last reply that wait for an answer: calls of passive tools, and calls that nobody has
        approved.

        Empty while a turn runs.
        """
        return () if self._state.running is not None else open_calls(self._state.messages)

    async def submit(
        self, answers: Mapping[str, Answer], *, model: Model | None = None, **options: Unpack[TurnOptions]
    ) -> Reply:
        """Answer open calls, and go on with the turn.

        While some calls are left open, nothing is asked of the model. An empty mapping goes on after a turn that
        failed when all calls were answered. The exceptions of `send` are raised here, too.

        Args:
            answers: The answers by the calls' ids: `Approved()` to run a call, `Denied(reason)`, or the call's
                result. A result is a value that the tool would give back, a `ToolError`, or a ToolResultBlock.
            model: As in `send`.
            options: As in `send`.

        Returns:
            The assistant's last message.

        Raises:
            CallboardError: An answer belongs to no open call, or is no answer; then nothing has been run.
        """
        turn = self._continued(answers, model, streamed=False, options=options)
        task = await self._runtime.host.start_turn(turn)
        return await own(turn, task)

    def submit_stream(
        self, answers: Mapping[str, Answer], *, model: Model | None = None, **options: Unpack[TurnOptions]
    ) -> TurnStream:
        """`submit`, streamed: `async with session.submit_stream({...}) as turn: async for event in turn: …`."""
        return TurnStream(self._runtime, self._continued(answers, model, streamed=True, options=options))

    async def cancel(self) -> bool:
        """Cancel the running turn. A second call does nothing.

        Returns:
            False if no turn is running.

        Raises:
            WrongLoop: The engine belongs to another event loop.
        """
        turn = self._state.running
        return turn.cancel() if turn is not None else False

    def _new_turn(
        self,
        content: str | Sequence[ContentBlock],
        model: Model | None,
        *,
        streamed: bool,
        options: TurnOptions,
    ) -> Turn:
        return Turn(
            runtime=self._runtime,
            state=self._state,
            new=(Message.user(content),),
            model=model,
            options=options_among(options, advice=_ADVICE),
            streamed=streamed,
        )

    def _continued(
        self, answers: Mapping[str, Answer], model: Model | None, *, streamed: bool, options: TurnOptions
    ) -> Turn:
        return Turn(
            runtime=self._runtime,
            state=self._state,
            new=(),
            model=model,
            options=options_among(options, advice=_ADVICE),
            streamed=streamed,
            answers=dict(answers),
        )


class TurnStream:
    """A turn as it happens: an async context manager, and an async iterator of its events.

    Leaving early cancels the turn, unless it was detached; then the session runs it to its end. A reader that
    comes back after the stream was folded gets one StreamReset in place of the events it missed. A reader that has
    read nothing yet gets the messages, their text in one piece. An exception of the turn is raised when its events
    have been read.

    Raises:
        CallboardError: The stream is read before it is entered.
    """

    def __init__(self, runtime: Runtime, turn: Turn) -> None:
        self._runtime = runtime
        self._turn = turn
        self._task: TaskHandle[Reply] | None = None
        self._reader: StreamReader[TurnEvent] | None = None
        self._detached = False

    @property
    def stream_id(self) -> str:
        """The id that `Engine.attach` takes, for further readers of the same turn."""
        return self._turn.id

    async def __aenter__(self) -> Self:
        self._task = await self._runtime.host.start_turn(self._turn)
        self._reader = self._turn.log.reader(unfold=spelled_out)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        task = self._task
        self._runtime.host.require_loop()
        if self._reader is not None:
            self._reader.close()
        if task is None or self._detached:
            return
        if not task.done:
            self._turn.cancel()
        with anyio.CancelScope(shield=True):  # bounded: a cancelled turn ends within its grace
            with contextlib.suppress(CallboardError):  # who iterated has seen it; who left early doesn't want it
                await task.wait()

    def __aiter__(self) -> AsyncIterator[TurnEvent | StreamReset[TurnEvent]]:
        return self._events()

    async def _events(self) -> AsyncIterator[TurnEvent | StreamReset[TurnEvent]]:
        async for event in self._started_reader():
            yield event
        assert self._task is not None
        await self._task.wait()

    @property
    def text_stream(self) -> AsyncIterator[str]:
        """Only the text, piece by piece."""
        return self._text()

    async def _text(self) -> AsyncIterator[str]:
        given = 0
        async for event in self:
            piece = ""
            if isinstance(event, TextDelta):
                piece = event.text
            elif isinstance(event, StreamReset):  # this reader was so slow that the log was folded meanwhile
                piece = _text_of(event.snapshot)[given:]
            if piece:
                given += len(piece)
                yield piece

    async def message(self) -> Reply:
        """The assistant's last message, once the turn is over. An exception of the turn is raised here."""
        self._started_reader()
        assert self._task is not None
        return await self._task.wait()

    async def cancel(self) -> bool:
        """Cancel the turn; its events still end properly.

        Returns:
            False if the turn is over.
        """
        return self._turn.cancel()

    def detach(self) -> None:
        """Let the session own the turn: leaving this context no longer cancels it."""
        self._detached = True

    def _started_reader(self) -> StreamReader[TurnEvent]:
        if self._reader is None:
            raise CallboardError("enter the stream first: async with session.stream(...) as turn")
        self._runtime.host.require_loop()
        return self._reader


def _text_of(events: Sequence[TurnEvent]) -> str:
    """All text of a folded stream: whole messages, and the deltas of one that is still open."""
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
