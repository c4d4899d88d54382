"""The open sessions of an engine, the actor below which their turns run, and their events."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import TypeAlias
from weakref import WeakValueDictionary

import anyio
import msgspec

from callboard.bus import (
    Actor,
    ActorContext,
    Bus,
    CallboardError,
    Cost,
    Message,
    SessionCreated,
    SessionMessageAppended,
    SessionModelChanged,
    SessionTakenOver,
    StoreError,
)
from callboard.tracestore import CallFilter, SavedSession, Store

from ..conversation.options import StoredTurnOptions
from ..routing.model_choice import Model, model_text
from ..runtime.adapters import Host
from .state import SessionState, configured

_COMMIT_SECONDS = 2.0
"""The maximum number of seconds that the end of a turn waits for the store."""

Restored: TypeAlias = Callable[[SavedSession | None], SessionState]
"""A function that makes a session's state from its stored data. Raises CallboardError or ConfigurationError."""


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
