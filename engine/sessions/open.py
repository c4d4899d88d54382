"""The sessions that are open in an engine, and what is published of them besides their turns."""

from __future__ import annotations

from weakref import WeakValueDictionary

from bus import (
    Bus,
    CallboardError,
    SessionCreated,
    SessionMessageAppended,
    SessionModelChanged,
    SessionTakenOver,
    StoreError,
)
from tracestore import Store

from ..routing.choice import Model, in_words
from ..runtime.host import Host
from .setup import configured
from .state import SessionState


class OpenSessions:
    """Each session's state, as long as somebody holds it.

    Args:
        captures: Whether what is said is kept, so that sessions can be resumed.
    """

    states: WeakValueDictionary[str, SessionState]
    """By the sessions' ids."""

    def __init__(self, bus: Bus, store: Store | None, host: Host, *, captures: bool) -> None:
        self.states = WeakValueDictionary()
        self._bus = bus
        self._store = store
        self._host = host
        self._captures = captures

    def open(self, state: SessionState) -> None:
        """Take up a session's state. Raises CallboardError if a session of that id is open."""
        if state.id in self.states:
            raise CallboardError(f"session {state.id!r} is already open; use the Session you have")
        self.states[state.id] = state

    def change_model(self, state: SessionState, model: Model) -> None:
        """Swap a session's model, which there must be."""
        previous, state.model = state.model, model
        if previous != model and self._host.started:
            change = SessionModelChanged(previous=in_words(previous), current=in_words(model))
            self._bus.publish(change, session_id=state.id)
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
            self._bus.publish(created, session_id=state.id)
        self.publish_setup(state, begins=not state.resumed)
        if self._captures and not state.resumed:
            self._publish_history(state)

    def publish_setup(self, state: SessionState, *, begins: bool = False) -> None:
        """Have kept what the session is made of by now. begins: and that it is a new one."""
        if self._captures:
            seq = self._bus.publish(configured(state, begins=begins), session_id=state.id)
            if state.claimed is None:
                state.claimed = seq

    def _publish_history(self, state: SessionState) -> None:
        """Have what a session began with kept like what is said in it."""
        for position, message in enumerate(state.messages):
            appended = SessionMessageAppended(position=position, message=message)
            self._bus.publish(appended, session_id=state.id, message_id=message.id)

    async def require_ownership(self, state: SessionState) -> None:
        """Let a turn begin only if no other run has resumed the session since. Raises SessionTakenOver.

        A store that fails keeps nobody up.
        """
        if not self._captures or self._store is None or state.claimed is None:
            return
        own = self._bus.run_id
        try:
            owner, committed = await self._store.session_owner(state.id, own)
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
