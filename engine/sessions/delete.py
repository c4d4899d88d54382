"""The deletion of a session, here and in the trace."""

from __future__ import annotations

from typing import TYPE_CHECKING

from callboard.bus import SessionBusy

from ..conversation.context import WHOLE
from ..runtime.runtime import Runtime

if TYPE_CHECKING:
    from callboard.tracestore import Store

    from ..nodes.node import Node
    from ..nodes.ownership.ownership import Ownership


async def deleted(runtime: Runtime, session_id: str) -> bool:
    """Forget a session; see `Engine.delete_session`."""
    await runtime.host.start()
    found = await _deleted_everywhere(runtime, session_id)
    runtime.streams.forget_session(session_id)
    if runtime.frames is not None:
        await runtime.frames.forget(session_id)
    return found


async def _deleted_everywhere(runtime: Runtime, session_id: str) -> bool:
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
    node = runtime.node
    if node is None or node.ownership is None:
        return await runtime.store.delete_session(session_id)
    return await _deleted_in_cluster(runtime.store, node, node.ownership, session_id)


async def _deleted_in_cluster(store: Store, node: Node, ownership: Ownership, session_id: str) -> bool:
    """Delete a session here and in the shared store. It must be this node's, so that nobody goes on with it."""
    known = await ownership.tables.owner(session_id) is not None
    before = ownership.epoch_of(session_id)
    if known and not before:
        await ownership.claim(session_id, waits=False)
    try:
        here = await store.delete_session(session_id)
        shared = await node.delete_shared(session_id)
        ownership.deleted(session_id)
        return here or shared
    finally:
        if not before:
            await ownership.release(session_id)
