"""The deletion of a session, here and in the trace."""

from __future__ import annotations

from bus import SessionBusy

from ..conversation.context import WHOLE
from ..runtime.runtime import Runtime


async def deleted(runtime: Runtime, session_id: str) -> bool:
    """Forget a session; see `Engine.delete_session`."""
    await runtime.host.start()
    state = runtime.sessions.states.get(session_id)
    if state is None:
        return await _deleted_from_store(runtime, session_id)
    if state.running is not None or state.waiting:
        raise SessionBusy(f"a turn of session {session_id!r} is under way; cancel it first")
    async with state.turns:  # one that is asked for meanwhile begins the session anew
        await _deleted_from_store(runtime, session_id)
        if runtime.sessions.states.get(session_id) is state:
            del runtime.sessions.states[session_id]
        state.messages.clear()
        state.announced = state.resumed = False
        state.context, state.claimed = WHOLE, None
        if state.waiting:
            runtime.sessions.announce(state)
    return True


async def _deleted_from_store(runtime: Runtime, session_id: str) -> bool:
    if runtime.store is None:
        return False
    await runtime.host.flush()
    return await runtime.store.delete_session(session_id)
