"""The sessions that are open in an engine, and what is published of them besides their turns."""

from __future__ import annotations

from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from bus import (
    CallboardError,
    SessionCreated,
    SessionMessageAppended,
    SessionModelChanged,
    SessionTakenOver,
    StoreError,
)

from ..routing.candidates import expand
from ..routing.choice import Model, in_words
from .resuming import configured
from .session import Session
from .state import SessionState

if TYPE_CHECKING:
    from ..engine import Engine


class OpenSessions:
    """Each session's state by its id, as long as somebody holds it."""

    def __init__(self, engine: Engine) -> None:
        self.states: WeakValueDictionary[str, SessionState] = WeakValueDictionary()
        self._engine = engine

    def open(self, state: SessionState) -> Session:
        """Take up a session's state. Raises CallboardError if a session of that id is open."""
        if state.id in self.states:
            raise CallboardError(f"session {state.id!r} is already open; use the Session you have")
        self.states[state.id] = state
        return Session(self._engine, state)

    def change_model(self, state: SessionState, model: Model) -> None:
        """Swap a session's model. Raises ConfigurationError if there is none of that name."""
        expand(self._engine.registry, model)
        previous, state.model = state.model, model
        if previous != model and self._engine.hosted is not None:
            change = SessionModelChanged(previous=in_words(previous), current=in_words(model))
            self._engine.bus.publish(change, session_id=state.id)
            if state.announced:
                self.publish_setup(state)

    def announce(self, state: SessionState) -> None:
        """Publish that a session exists, before its first turn."""
        if state.announced or not state.id:
            return
        state.announced = True
        if not state.resumed:
            created = SessionCreated(
                model=in_words(state.model), tags=state.tags, name=state.name, forked_from=state.forked_from
            )
            self._engine.bus.publish(created, session_id=state.id)
        self.publish_setup(state, begins=not state.resumed)
        if self._engine.capture is not None and not state.resumed:
            self._publish_history(state)

    def publish_setup(self, state: SessionState, *, begins: bool = False) -> None:
        """Have kept what the session is made of by now. begins: and that it is a new one."""
        if self._engine.capture is not None:
            seq = self._engine.bus.publish(configured(state, begins=begins), session_id=state.id)
            if state.claimed is None:
                state.claimed = seq

    def _publish_history(self, state: SessionState) -> None:
        """Have what a session began with kept like what is said in it."""
        for position, message in enumerate(state.messages):
            appended = SessionMessageAppended(position=position, message=message)
            self._engine.bus.publish(appended, session_id=state.id, message_id=message.id)

    async def require_ownership(self, state: SessionState) -> None:
        """Let a turn begin only if no other run has resumed the session since. Raises SessionTakenOver.

        A store that fails keeps nobody up.
        """
        engine = self._engine
        if engine.capture is None or engine.store is None or state.claimed is None:
            return
        own = engine.bus.run_id
        try:
            owner, committed = await engine.store.session_owner(state.id, own)
        except StoreError:
            return  # the writer says so; what is said here meanwhile is not mixed into the other's
        if owner is None or owner == own or committed < state.claimed:
            return
        if self.states.get(state.id) is state:
            del self.states[state.id]  # so that it can be resumed here, too
        raise SessionTakenOver(
            f"session {state.id!r} was resumed by another engine ({owner}), which goes on with it. "
            f"Resume it here to go on where that one is; what was said here since is kept as '{state.id}.{own}'"
        )
