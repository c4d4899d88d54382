"""A conversation's data, the open sessions of an engine, and the actor below which their turns run.

The data of a conversation outlives the tasks and actors that work on it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeAlias, cast
from weakref import WeakValueDictionary

import anyio
import msgspec

from callboard.adapters import ContentBlock
from callboard.bus import (
    Actor,
    ActorContext,
    Bus,
    CallboardError,
    Cost,
    Message,
    SessionConfigured,
    SessionCreated,
    SessionMessageAppended,
    SessionModelChanged,
    SessionSetup,
    SessionTakenOver,
    StoreError,
)
from callboard.bus.backend import LoopLock
from callboard.bus.values.base import Json, JsonObject
from callboard.tracestore import CallFilter, SavedSession, Store

from ..conversation.context import WHOLE, RefusedReasoning
from ..conversation.options import NOTHING, StoredTurnOptions, TurnOptions, merged
from ..routing.model_choice import Model, Requirements, model_text, stored_model
from ..runtime.adapters import Host
from ..tools import Tool, ToolLike
from ..tools.definitions import collected

_NO_OPTIONS: TurnOptions = {}


# --- One conversation ---


class TurnInProgress(Protocol):
    """The part of a turn in progress that other modules may use."""

    def cancel(self, why: str = "") -> bool:
        """Request the end of the turn. Returns false if the turn has ended."""

    def steer(self, content: str | Sequence[ContentBlock]) -> Message:
        """Add a message of the user. Raises NoTurnRunning."""


class SessionState:
    """A conversation's data.

    Args:
        session_id: The session's id; empty for a conversation that belongs to no session.
        model: The model of the next turn.
        system_prompt: The system prompt of the next turn.
        tools: The tools of the next turn.
        tags: The tags of the session's calls.
        options: Default options for the session's turns.
        requires: The abilities that the models must have, in addition to the abilities that a
            turn requires.
        name: The session's name, for people.
        forked_from: The id of the session that this session was forked from.

    Raises:
        ConfigurationError: Two tools have one name.
        ToolDefinitionError: A function lacks type hints or descriptions of its parameters.
        TypeError: Something is neither a tool nor a function.
    """

    waiting_options_stored: JsonObject | None = None
    """`waiting_options` as last published for the store."""
    resumed = False
    """Whether the session was restored from the store."""
    commits = False
    """Whether each turn ends with a commit, so that other processes find its messages immediately."""
    epoch = 0
    """In a cluster, the epoch of this node's claim to the session; 0 before the claim."""
    lost = ""
    """In a cluster, the error text for users of this session after another node has taken it over, else empty."""
    opening: tuple[object, bytes] | None = None
    """In a cluster, a cache of the encoded setup for other nodes, with the values from which it was encoded."""
    claimed: int | None = None
    """The seq of the event that makes this engine the session's owner once the event is stored; None if the event
    isn't published.
    """

    def __init__(
        self,
        session_id: str,
        model: Model,
        system_prompt: str | None,
        tools: Sequence[ToolLike],
        tags: dict[str, str],
        *,
        options: TurnOptions = _NO_OPTIONS,
        requires: Requirements | None = None,
        name: str | None = None,
        forked_from: str | None = None,
    ) -> None:
        self.id = session_id
        self.calls_as = session_id
        """The session id in the trace of this conversation's calls. It differs from the conversation's own id if a
        conversation without a session records its calls under a session.
        """
        self.model = model
        self.options = options
        self.requires = requires
        self.system_prompt = system_prompt
        self.use_tools(tools)
        self.tags = tags
        self.messages: list[Message] = []
        self.name = name
        self.forked_from = forked_from
        self.context = WHOLE
        """The part of the history that the context policy currently sends."""
        self.refused_reasoning = RefusedReasoning()
        self.waiting_options: StoredTurnOptions = NOTHING
        """The options of the last turn whose tool calls wait for an answer. The turn with the answers uses these
        options.
        """
        self.turns = LoopLock()
        """Admits one turn at a time, in the order in which they were requested."""
        self.queue: list[TurnInProgress] = []
        """The turns that have started but are not admitted yet, in the order in which they will run."""
        self.running: TurnInProgress | None = None
        self.announced = False
        """Whether the session's existence was published."""

    def use_tools(self, tools: Sequence[ToolLike]) -> None:
        """Set the tools of the next turn. Raises the errors of `SessionState`."""
        self.tools, self.sources, self.definitions = collected(tools)
        self.given_tools: Sequence[ToolLike] = tools if self.sources else self.tools
        """The tools as passed, for a fork."""
        self._read: Sequence[tuple[Tool, ...]] = [each.tools for each in self.sources] if self.sources else ()

    def refresh_tools(self) -> bool:
        """Read the tool sources again. Returns whether their tools have changed."""
        if all(source.tools is read for source, read in zip(self.sources, self._read, strict=True)):
            return False
        self.use_tools(self.given_tools)
        return True

    @property
    def waiting(self) -> int:
        return len(self.queue)

    def options_for(self, model: Model | None) -> TurnOptions:
        """The options that a turn inherits. A turn with its own model doesn't inherit the fallback."""
        return self.options if model is None else merged({**self.options, "fallback": None})


_STORED = ("temperature", "max_output_tokens", "max_tool_rounds")
"""The options of a session that are stored in addition to its fallback models."""


def configured(state: SessionState, *, begins: bool = False) -> SessionConfigured:
    """The event from which the store can restore the session, except for its messages."""
    return SessionConfigured(history=len(state.messages), setup=setup_of(state), begins=begins, epoch=state.epoch)


def setup_of(state: SessionState, waiting: StoredTurnOptions | None = None) -> SessionSetup:
    waiting = state.waiting_options if waiting is None else waiting
    requires, fallback = state.requires, state.options.get("fallback")
    options = cast("Mapping[str, Json]", state.options)
    return SessionSetup(
        model=stored_model(state.model),
        system_prompt=state.system_prompt,
        tools=state.definitions,
        fallback=None if fallback is None else tuple(fallback),
        requires=None if requires is None else msgspec.to_builtins(requires),
        defaults={name: value for name in _STORED if (value := options.get(name)) is not None} or None,
        asked_with=waiting.stored(state.options_for(waiting.model)),
    )


_COMMIT_SECONDS = 2.0
"""The maximum number of seconds that the end of a turn waits for the store."""

Restored: TypeAlias = Callable[[SavedSession | None], SessionState]
"""A function that makes a session's state from its stored data. Raises CallboardError or ConfigurationError."""


# --- Open sessions ---


class TurnRight:
    """The permission of a turn to act for its session. Only in a cluster can a turn lose it."""

    may_be_lost = False
    """Whether another node may take the session while the turn runs."""

    async def require(self) -> None:
        """Return if the turn may continue. Raises SessionTakenOver or AdmissionError."""

    async def confirm(self) -> None:
        """Return if this turn may publish its end. Raises SessionTakenOver."""

    async def is_ended_elsewhere(self) -> bool:
        """Whether another node has published the end of this turn after taking the session over."""
        return False


class OpenSessions:
    """The states of all sessions to which the host has a reference."""

    states: WeakValueDictionary[str, SessionState]
    """By the sessions' ids."""

    commits = True
    """Whether each turn of an opened session ends with a commit, so that other processes find its messages."""

    def __init__(self, bus: Bus, store: Store | None, host: Host, *, captures: bool) -> None:
        self.states = WeakValueDictionary()
        self._bus = bus
        self._store = store
        self._host = host
        self._captures = captures
        self._turnstiles: WeakValueDictionary[str, anyio.Lock] = WeakValueDictionary()

    def one_at_a_time(self, session_id: str) -> anyio.Lock:
        """A lock for each session id, so that concurrent attempts to open a session wait for each other."""
        return self._turnstiles.setdefault(session_id, anyio.Lock())

    def forget(self, state: SessionState) -> None:
        """Close a session. A turn in progress continues."""
        if self.states.get(state.id) is state:
            del self.states[state.id]

    def open(self, state: SessionState) -> None:
        """Open a session with its state. Raises CallboardError."""
        if self.states.setdefault(state.id, state) is not state:
            raise CallboardError(f"session {state.id!r} is already open; use the Session you have")

    def change_model(self, state: SessionState, model: Model) -> None:
        """Replace a session's model."""
        previous, state.model = state.model, model
        if previous != model and self._host.started:
            change = SessionModelChanged(previous=model_text(previous), current=model_text(model))
            self._bus.publish(change, session_id=state.id)
            if state.announced:
                self.publish_setup(state)

    def announce(self, state: SessionState, *, begins: bool = True) -> None:
        """Publish that a session exists, before its first turn."""
        if state.announced or not state.id:
            return
        state.announced = True
        if not state.resumed:
            created = SessionCreated(
                model=model_text(state.model), tags=state.tags, name=state.name, forked_from=state.forked_from
            )
            self._bus.publish(created, session_id=state.id)
        self.publish_setup(state, begins=begins and not state.resumed)
        if self._captures and not state.resumed:
            self._publish_history(state)

    def keep_waiting_options(self, state: SessionState, options: StoredTurnOptions) -> None:
        """Keep the options of a turn whose tool calls wait for an answer, for the turn that answers them."""
        state.waiting_options = options
        if self._captures and state.announced:
            stored = options.stored(state.options_for(options.model))
            if stored != state.waiting_options_stored:
                self.publish_setup(state)

    def publish_setup(self, state: SessionState, *, begins: bool = False) -> None:
        """Store the session's current setup."""
        if self._captures:
            event = configured(state, begins=begins)
            state.waiting_options_stored = None if event.setup is None else event.setup.asked_with
            seq = self._bus.publish(event, session_id=state.id)
            if state.claimed is None:
                state.claimed = seq

    def _publish_history(self, state: SessionState) -> None:
        """Store the messages that a session started with, like later messages."""
        for position, message in enumerate(state.messages):
            appended = SessionMessageAppended(position=position, message=message, epoch=state.epoch)
            self._bus.publish(appended, session_id=state.id, message_id=message.id)

    def append(self, state: SessionState, message: Message, turn_id: str | None) -> None:
        """Add a message to a history, and publish it as a message of a turn."""
        state.messages.append(message)
        self._bus.publish(
            SessionMessageAppended(position=len(state.messages) - 1, message=message, epoch=state.epoch),
            session_id=state.id,
            turn_id=turn_id,
            message_id=message.id,
        )

    async def commit(self) -> None:
        """Commit the published events if that takes at most two seconds. A closing engine commits them itself."""
        with anyio.move_on_after(_COMMIT_SECONDS), contextlib.suppress(CallboardError):
            await self._host.flush()

    async def trace(self) -> Store | None:
        """The trace with the stored sessions. Raises StoreError."""
        return self._store

    async def claim_new(self, state: SessionState) -> None:
        """Claim a new session if another node could own the session. Then publish that the session exists.

        Raises SessionBusy or AdmissionError.
        """

    async def require_own(self, state: SessionState) -> None:
        """Check that no other run has resumed the session. A session that was never published needs no check.

        Raises SessionTakenOver, SessionBusy or AdmissionError.
        """
        await self._require_run(state)

    async def admit_turn(self, state: SessionState, turn_id: str) -> TurnRight:
        """Admit a turn if no other run has resumed the session. A failing store does not delay the turn.

        Raises SessionTakenOver, SessionBusy or AdmissionError.
        """
        await self._require_run(state)
        return TurnRight()

    async def taken_over(
        self, session_id: str, restored: Restored, fresh: Callable[[], SessionState] | None = None
    ) -> SessionState | None:
        """Claim a session from another node, and return the session's state; None outside of a cluster."""
        return None

    async def delete_stored(self, session_id: str) -> bool:
        """Delete a session from the trace. Returns whether it existed."""
        return self._store is not None and await self._store.delete_session(session_id)

    async def _require_run(self, state: SessionState) -> None:
        """Check that no other run is recorded in the store as the session's owner."""
        if not self._captures or self._store is None or state.claimed is None:
            return
        run_id = self._bus.run_id
        try:
            owner, committed = await self._store.session_owner(state.id, run_id)
        except StoreError:
            # The writer reports the failure. If another run owns the session, the messages of this run are stored
            # separately.
            return
        if owner is None or owner == run_id or committed < state.claimed:
            return
        self.forget(state)  # so that the session can be resumed here
        raise SessionTakenOver(
            f"session {state.id!r} was resumed by another engine ({owner}). To continue it here, resume "
            f"it. Messages added here since then are stored as '{state.id}.{run_id}'"
        )


# --- Costs, and the session manager ---


async def costs_of(store: Store, session_id: str) -> dict[str, Cost]:
    """The current costs of a session's calls, by request id."""
    rows = await store.calls(CallFilter(session_id=session_id), limit=None)
    return {row.request_id: row.cost for row in rows if row.cost is not None}


def reprice_messages(history: list[Message], costs: Mapping[str, Cost]) -> int:
    """Replace the costs of a history's messages in place. Messages themselves are frozen.

    Returns the number of messages that changed.
    """
    changed = 0
    for position, message in enumerate(history):
        metadata = message.metadata
        cost = costs.get(metadata.request_id or "") if metadata is not None else None
        if metadata is not None and cost is not None and cost != metadata.cost:
            priced = msgspec.structs.replace(metadata, cost=cost)
            history[position] = msgspec.structs.replace(message, metadata=priced)
            changed += 1
    return changed


async def show_costs(store: Store, state: SessionState) -> None:
    """Set the current costs in a restored history. Raises StoreError."""
    if await store.current_version() is not None:
        reprice_messages(state.messages, await costs_of(store, state.id))


def require_nothing_lost(session_id: str, answered: bool) -> None:
    """Check that a session without stored content has never had content. Raises CallboardError."""
    if answered:
        raise CallboardError(
            f"session {session_id!r} has been used before, and its messages are not stored: it ran "
            f"without capture_content=True, or its content has expired. Use another id, or call "
            f"engine.delete_session({session_id!r}) and start again"
        )


class ApplyCosts(msgspec.Struct, frozen=True):
    """A message to the session manager: update the costs in the histories of open sessions."""

    costs: Mapping[str, Cost]
    """The costs of calls, by their request ids."""


class SessionManager(Actor):
    """The actor that starts the tasks of all turns.

    Args:
        sessions: All live sessions by id. The engine shares them.
    """

    def __init__(self, sessions: Mapping[str, SessionState]) -> None:
        self._sessions = sessions

    async def started(self, context: ActorContext) -> None: ...

    async def receive(self, message: object) -> object:
        match message:
            case ApplyCosts():
                return sum(
                    reprice_messages(state.messages, message.costs) for state in list(self._sessions.values())
                )
            case _:
                raise TypeError(f"the session manager does not accept {type(message).__name__}")
