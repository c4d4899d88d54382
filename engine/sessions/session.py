"""The handle of one conversation. Its provider may change from turn to turn.

`SessionState` is the conversation itself, a plain object that outlives its tasks and actors. `Session` is the
host's handle: it sends, streams, changes the model, and cancels. The caller that starts a turn owns it. Cancelling
the task that awaits `send`, or leaving `async with session.stream(...)` early, cancels the turn.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Unpack

from callboard.adapters import ContentBlock, Message, ToolUseBlock
from callboard.bus import CallboardError, NoTurnRunning, SessionRenamed
from callboard.bus.values.base import short
from callboard.tracestore import OpenReply

from ..conversation.options import TurnOptions, options_among
from ..conversation.results import Reply
from ..conversation.turn import Turn, run_turn
from ..generation.streaming import TurnStream
from ..routing.candidates import expand
from ..routing.model_choice import Model
from ..runtime.runtime import Runtime
from ..tools import Answer, Approved, Denied, Tool, ToolLike, open_calls
from .open import SessionState
from .stored import exported


def fork_of(state: SessionState, session_id: str, at: int | None) -> SessionState:
    """The state of a new session that starts with the same messages."""
    if at is not None and not 0 <= at <= len(state.messages):
        raise CallboardError(f"session {state.id} has {len(state.messages)} messages; it can't be forked at {at}")
    fork = SessionState(
        session_id,
        state.model,
        state.system_prompt,
        state.given_tools,
        dict(state.tags),
        options=state.options,
        requires=state.requires,
        name=state.name,
        forked_from=state.id,
    )
    fork.messages.extend(state.messages[:at])
    fork.waiting_options = state.waiting_options
    fork.refused_reasoning = state.refused_reasoning.copy()
    if at is None or state.context.start < at:
        fork.context = state.context
    return fork


_ADVICE = {
    "system": "it belongs to the session: session.system_prompt = '...'",
    "system_prompt": "it belongs to the session: session.system_prompt = '...'",
    "tools": "they belong to the session: session.tools = [...]",
    "messages": "a session has its own history; for other messages, use engine.generate(messages=[...])",
    "schema": "use engine.generate_object(); output_schema= asks for JSON text",
    "response_format": "use engine.generate_object(); output_schema= asks for JSON text",
}


class Session:
    """A conversation. `Engine.session()` creates it.

    Use it on the engine's event loop. Its turns run one after the other, and at most 16 may wait.
    """

    def __init__(self, runtime: Runtime, state: SessionState) -> None:
        self._runtime = runtime
        self._state = state

    def __repr__(self) -> str:
        return f"Session(id={self.id!r}, model={short(self.model)}, messages=<{len(self._state.messages)}>)"

    @property
    def id(self) -> str:
        """The session's id: the id that it was created with, or ``ses_`` and a ULID."""
        return self._state.id

    @property
    def model(self) -> Model:
        """The model of the next turn, as assigned. An assignment takes effect with the next turn.

        Assign any name of a model, a sequence of names, or a `ModelChoice`.

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
        """The tags of the session's calls, for example for `callboard cost --by`."""
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
        """The tools of the next turn. You may also assign plain functions, as in `Engine.session`."""
        return self._state.tools

    @tools.setter
    def tools(self, tools: Sequence[ToolLike]) -> None:
        self._state.use_tools(tools)
        self._changed()

    @property
    def messages(self) -> tuple[Message, ...]:
        """The current history, with costs from the current price table."""
        return tuple(self._state.messages)

    async def send(
        self,
        content: str | Sequence[ContentBlock],
        *,
        model: Model | None = None,
        **options: Unpack[TurnOptions],
    ) -> Reply:
        """Run one turn, and return its reply. If the task that awaits this is cancelled, the turn is cancelled.

        Exceptions of your own middleware, hooks and policies are raised here, too. An exception of a turn has
        `.turn`, with the turn's `steps`, `messages` and `cost` so far. If the turn had no reply, the history is
        unchanged, and you may send the content again.

        Args:
            content: Text, or blocks.
            model: A model for this turn only.
            options: The fields of `TurnOptions`.

        Returns:
            The assistant's last message.

        Raises:
            AdapterError: A call failed. Its subclasses have the reason.
            CancelledError: The turn was cancelled by `cancel()`. This is Callboard's own class, not asyncio's.
            RequestTimeoutError: The turn's time limit was reached.
            ConfigurationError: A model or an option is wrong.
            SessionBusy: Too many turns wait.
            SessionTakenOver: Another engine has resumed the session.
            AdmissionError: The trace writer is too far behind, or the session's owner in a cluster is unknown.
            StoreError: The trace can't be used.
        """
        turn = self._new_turn((Message.user(content),), model, streamed=False, options=options)
        return await run_turn(turn)

    def send_sync(
        self,
        content: str | Sequence[ContentBlock],
        *,
        model: Model | None = None,
        **options: Unpack[TurnOptions],
    ) -> Reply:
        """Run `send` without an event loop: the engine runs on the thread of the sync functions.

        ``with Engine() as engine`` starts it there. Otherwise the first turn starts it, and the engine is closed
        when the program ends. Ctrl-C cancels the turn. Arguments, result and exceptions are as in `send`.

        Raises:
            WrongLoop: The engine belongs to another event loop, or an async tool called this method, which would
                be a deadlock.
        """
        from ..sync import sync_host

        host = sync_host()

        async def sent() -> Reply:
            host.keep(self._runtime.host)
            return await self.send(content, model=model, **options)

        return host.run(sent, name="send_sync()")

    def stream(
        self,
        content: str | Sequence[ContentBlock],
        *,
        model: Model | None = None,
        **options: Unpack[TurnOptions],
    ) -> TurnStream:
        """Stream one turn: `async with session.stream("…") as turn: async for event in turn: …`.

        The turn starts when the stream is entered or first used. The arguments are those of `send`. Entering and
        iterating raise the exceptions of `send`.
        """
        turn = self._new_turn((Message.user(content),), model, streamed=True, options=options)
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
        """Create another session that starts with the history of this session.

        Model, tools, system prompt, tags and name are copied. Later changes in one session do not affect the
        other.

        Args:
            at: The number of messages to start with; None for all.
            session_id: The id of the new session; a new one is made by default.

        Raises:
            CallboardError: `at` is outside the history, or a session of that id is open.
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
        """The calls of the last reply that wait for a result or an approval. Empty while a turn runs."""
        return () if self._state.running is not None else open_calls(self._state.messages)

    async def submit(
        self, answers: Mapping[str, Answer], *, model: Model | None = None, **options: Unpack[TurnOptions]
    ) -> Reply:
        """Answer open calls, and continue the turn.

        The model is called once all open calls are answered. Pass an empty mapping to continue a turn that failed
        after all calls were answered. The exceptions of `send` are raised here, too.

        Args:
            answers: The answers by the calls' ids: `Approved()` to run a call, `Denied(reason)`, or the call's
                result. A result is a value that the tool would return, a `ToolError`, or a ToolResultBlock.
            model: As in `send`.
            options: As in `send`.

        Returns:
            The assistant's last message.

        Raises:
            CallboardError: An answer belongs to no open call, or is not an answer. No call was run.
        """
        turn = self._new_turn((), model, streamed=False, options=options, answers=dict(answers))
        return await run_turn(turn)

    async def approve(self, *calls: ToolUseBlock, **options: Unpack[TurnOptions]) -> Reply:
        """Approve and run waiting tool calls, and continue the turn.

        This is `submit` with `Approved()` for each call.

        Pass each call from `pending_calls`. A call with other arguments is refused, so only
        reviewed calls run.

        Args:
            calls: The calls, at least one.
            options: As in `send`.

        Returns:
            The assistant's last message.

        Raises:
            CallboardError: A call doesn't wait, or waits with other arguments.
            ValueError: There is no call.
        """
        return await self.submit(self._shown(calls, Approved()), **options)

    async def deny(self, *calls: ToolUseBlock, why: str = "", **options: Unpack[TurnOptions]) -> Reply:
        """Report to the model that calls are not approved, and continue the turn.

        The exceptions are as in `approve`.

        Args:
            calls: The calls, at least one, from `pending_calls`.
            why: The reason, for the model.
            options: As in `send`.

        Returns:
            The assistant's last message.
        """
        return await self.submit(self._shown(calls, Denied(why)), **options)

    def approve_stream(self, *calls: ToolUseBlock, **options: Unpack[TurnOptions]) -> TurnStream:
        """Stream `approve`. Raises the errors of `approve` immediately."""
        return self.submit_stream(self._shown(calls, Approved()), **options)

    def deny_stream(self, *calls: ToolUseBlock, why: str = "", **options: Unpack[TurnOptions]) -> TurnStream:
        """Stream `deny`. Raises the errors of `deny` immediately."""
        return self.submit_stream(self._shown(calls, Denied(why)), **options)

    def _shown(self, calls: Sequence[ToolUseBlock], answer: Answer) -> dict[str, Answer]:
        """The answer for each call. Raises CallboardError if a call isn't waiting, or waits with other
        arguments.
        """
        if not calls:
            raise ValueError("pass the ids of the calls. session.pending_calls lists the waiting ones")
        waiting = {call.id: call for call in self.pending_calls}
        for call in calls:
            if waiting.get(call.id) != call:
                other = (
                    ("is waiting with other arguments now")
                    if call.id in waiting
                    else "is not waiting for an answer"
                )
                raise CallboardError(f"call {call.id!r} of {call.name!r} {other}. See session.pending_calls")
        return {call.id: answer for call in calls}

    def submit_stream(
        self, answers: Mapping[str, Answer], *, model: Model | None = None, **options: Unpack[TurnOptions]
    ) -> TurnStream:
        """Stream `submit`: `async with session.submit_stream({...}) as turn: async for event in turn: …`."""
        turn = self._new_turn((), model, streamed=True, options=options, answers=dict(answers))
        return TurnStream(self._runtime, turn)

    async def open_reply(self) -> OpenReply | None:
        """The background reply that an earlier process requested for this session; None if there is none.

        Such a reply was requested with ``background=True``. Pass it to `take_up`.

        Raises:
            StoreError: The trace can't be read.
        """
        from ..operations.methods import open_replies

        found = await open_replies(self._runtime, self.id)
        return found[-1] if found and self._state.running is None else None

    async def take_up(self, reply: OpenReply, **options: Unpack[TurnOptions]) -> Reply:
        """Continue a turn of a process that has ended: wait for its background reply, without requesting it again.

        Then the turn continues like any other: the reply enters the history, and the session's tools run. It also
        raises the exceptions of `send`.

        Args:
            reply: The reply, as returned by `open_reply`.
            options: As in `send`.

        Returns:
            The assistant's last message.

        Raises:
            CallboardError: The reply belongs to another session.
            OutcomeUnknownError: The provider no longer has the reply.
        """
        turn = self._resumed_turn(reply, options, streamed=False)
        return await run_turn(turn)

    def take_up_stream(self, reply: OpenReply, **options: Unpack[TurnOptions]) -> TurnStream:
        """Stream `take_up`. The stream has the reply from its beginning, then live."""
        return TurnStream(self._runtime, self._resumed_turn(reply, options, streamed=True))

    def _resumed_turn(self, reply: OpenReply, options: TurnOptions, *, streamed: bool) -> Turn:
        from ..operations.methods import turn_of_reply

        turn_options = options_among(options, advice=_ADVICE)
        return turn_of_reply(self._runtime, reply, turn_options, streamed=streamed, state=self._state)

    def steer(self, content: str | Sequence[ContentBlock]) -> Message:
        """Send another message to the model while it works. Any thread may call this.

        The turn in progress gets the message before its next step: after the tools that run now, and before the
        next request. If the current reply would be the last, the turn adds one more step. If the turn still waits
        in the queue, the message is sent with the turn's own message.

        The message enters the history when the model has answered it. The turn may end before that: by an error,
        by `cancel()`, or because it waits for an answer. Then the message is never sent. It is in `undelivered` of
        the reply, or of the exception's `turn`.

        Args:
            content: Text, or blocks.

        Returns:
            The message, with the id that it has in the history.

        Raises:
            NoTurnRunning: No turn of the session is in progress, or it is about to end: `send` the message.
            ValueError: The content is empty.
        """
        state = self._state
        in_progress = (state.running, *state.queue)
        refused: NoTurnRunning | None = None
        for turn in in_progress:
            try:
                if turn is not None:
                    return turn.steer(content)
            except NoTurnRunning as error:
                refused = error
        raise refused or NoTurnRunning(f"no turn of session {state.id!r} is in progress. Use send()")

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
        new: Sequence[Message],
        model: Model | None,
        *,
        streamed: bool,
        options: TurnOptions,
        answers: Mapping[str, Answer] | None = None,
    ) -> Turn:
        state, turn_options = self._state, None
        turn_settings = options_among(options, advice=_ADVICE)
        if answers is not None:  # an earlier turn continues with its own options
            turn_options = state.waiting_options.continued(state.id, state.options, model, turn_settings)
            model, turn_settings = turn_options.model, turn_options.options
        return Turn(
            runtime=self._runtime,
            state=state,
            new=new,
            model=model,
            options=turn_settings,
            turn_options=turn_options,
            streamed=streamed,
            answers=answers,
        )
