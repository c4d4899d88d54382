"""A session: one conversation, whose provider may change from turn to turn.

`SessionState` is the conversation itself, a plain object that outlives any task or actor that works on it.
`Session` is what a host holds: it sends, streams, swaps the model, cancels. Whoever starts a turn owns it:
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

from ..conversation.options import TurnArguments, options_among
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
    """What a host holds of a conversation. Made by `Engine.session()`. For the engine's event loop; its turns run
    one after the other, and at most 16 wait.
    """

    def __init__(self, runtime: Runtime, state: SessionState) -> None:
        self._runtime = runtime
        self._state = state

    @property
    def id(self) -> str:
        """``ses_`` and a ULID, unless it was given another."""
        return self._state.id

    @property
    def model(self) -> Model:
        """The model of the next turn, as it was given. Assigning takes effect with the next turn.

        What may be assigned: any of a model's names, a sequence of them, or a `ModelChoice`. Raises
        ConfigurationError for a name that there isn't.
        """
        return self._state.model

    @model.setter
    def model(self, model: Model) -> None:
        expand(self._runtime.registry, model)
        self._runtime.sessions.change_model(self._state, model)

    @property
    def name(self) -> str | None:
        """For people; None if it has none."""
        return self._state.name

    @property
    def tags(self) -> Mapping[str, str]:
        """What its calls carry, for `callboard cost --by`."""
        return MappingProxyType(self._state.tags)

    @property
    def system_prompt(self) -> str | None:
        """Of the next turn."""
        return self._state.system_prompt

    @system_prompt.setter
    def system_prompt(self, text: str | None) -> None:
        self._state.system_prompt = text
        self._changed()

    @property
    def tools(self) -> tuple[Tool, ...]:
        """Of the next turn. Assigning two of one name raises ConfigurationError."""
        return self._state.tools

    @tools.setter
    def tools(self, tools: Sequence[Tool]) -> None:
        require_distinct(tools)
        self._state.tools = tuple(tools)
        self._changed()

    @property
    def messages(self) -> tuple[Message, ...]:
        """The history as it is now; costs are those of the current price table."""
        return tuple(self._state.messages)

    async def send(
        self,
        content: str | Sequence[ContentBlock],
        *,
        model: Model | None = None,
        **options: Unpack[TurnArguments],
    ) -> Reply:
        """One turn, not streamed; the assistant's last message.

        Cancelling the task that waits here cancels the turn. model: of this turn alone. options: the fields of
        `TurnOptions`.
        Raises AdapterError, of its many classes; CancelledError (ours) after `cancel()`, RequestTimeoutError when
        the turn's time is up; ConfigurationError; SessionBusy if too many turns wait, SessionTakenOver,
        AdmissionError, StoreError; and what middleware, hooks and policies of the host raise. What failed has
        `.turn`, with its `steps`, `messages` and `cost` so far. It may be sent again: a turn that nothing answered
        leaves the history as it was.
        """
        turn = self._new_turn(content, model, streamed=False, options=options)
        task = await self._runtime.host.start_turn(turn)
        return await own(turn, task)

    def stream(
        self,
        content: str | Sequence[ContentBlock],
        *,
        model: Model | None = None,
        **options: Unpack[TurnArguments],
    ) -> TurnStream:
        """One turn, streamed: `async with session.stream("…") as turn: async for event in turn: …`.

        It begins when it is entered. Arguments, and what is raised there and by iterating: as in `send`.
        """
        turn = self._new_turn(content, model, streamed=True, options=options)
        return TurnStream(self._runtime, turn)

    def rename(self, name: str) -> None:
        """Give it another name. Raises ValueError for an empty one."""
        if not name:
            raise ValueError("a session's name can't be empty")
        self._state.name = name
        if self._state.announced:
            self._runtime.bus.publish(SessionRenamed(name=name), session_id=self.id)

    def fork(self, *, at: int | None = None, session_id: str | None = None) -> Session:
        """Another session that begins with this one's history, or its first `at` messages.

        Model, tools, system prompt, tags and name are the same; from here on both go their own ways. session_id:
        instead of a new one. Raises CallboardError if there is no such message, or a session of that id is open.
        """
        state = fork_of(self._state, session_id or self._runtime.clock.new_id("ses"), at)
        self._runtime.sessions.open(state)
        return Session(self._runtime, state)

    def export(self) -> bytes:
        """The whole session as a JSON document, for `Engine.import_session`. It has all that was said."""
        return exported(self._state)

    def _changed(self) -> None:
        if self._state.announced:
            self._runtime.sessions.publish_setup(self._state)

    @property
    def pending_calls(self) -> tuple[ToolUseBlock, ...]:
        """Calls of the last reply that wait for an answer: of passive tools, and such as nobody has approved.

        Empty while a turn runs.
        """
        return () if self._state.running is not None else open_calls(self._state.messages)

    async def submit(
        self, answers: Mapping[str, Answer], *, model: Model | None = None, **options: Unpack[TurnArguments]
    ) -> Reply:
        """Answer open calls, and go on with the turn; the assistant's last message.

        While some are left open, nothing is asked of the model. An empty mapping goes on after a turn that failed
        when all was answered. answers: by the calls' ids, `Approved()` to run one, `Denied(reason)`, or its
        result: what the tool would give back, a `ToolError`, or a ToolResultBlock. model, options: as in `send`.
        Raises what `send` raises, and CallboardError for what is no answer to an open call; then nothing has been
        run.
        """
        turn = self._continued(answers, model, streamed=False, options=options)
        task = await self._runtime.host.start_turn(turn)
        return await own(turn, task)

    def submit_stream(
        self, answers: Mapping[str, Answer], *, model: Model | None = None, **options: Unpack[TurnArguments]
    ) -> TurnStream:
        """`submit`, streamed: `async with session.submit_stream({...}) as turn: async for event in turn: …`."""
        return TurnStream(self._runtime, self._continued(answers, model, streamed=True, options=options))

    async def cancel(self) -> bool:
        """Cancel the running turn. False if none is running. Idempotent. Raises WrongLoop."""
        turn = self._state.running
        return turn.cancel() if turn is not None else False

    def _new_turn(
        self,
        content: str | Sequence[ContentBlock],
        model: Model | None,
        *,
        streamed: bool,
        options: TurnArguments,
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
        self, answers: Mapping[str, Answer], model: Model | None, *, streamed: bool, options: TurnArguments
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
    comes back after the stream was folded gets one StreamReset in place of the events it missed; one that has read
    nothing yet gets the messages, their text in one piece. What the turn
    raised is raised when its events have been read. Reading before it is entered raises CallboardError.
    """

    def __init__(self, runtime: Runtime, turn: Turn) -> None:
        self._runtime = runtime
        self._turn = turn
        self._task: TaskHandle[Reply] | None = None
        self._reader: StreamReader[TurnEvent] | None = None
        self._detached = False

    @property
    def stream_id(self) -> str:
        """What `Engine.attach` takes, for further readers of the same turn."""
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
        """The assistant's last message, once the turn is over. Raises what the turn raised."""
        self._started_reader()
        assert self._task is not None
        return await self._task.wait()

    async def cancel(self) -> bool:
        """Cancel the turn; its events still end properly. False if it is over."""
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
