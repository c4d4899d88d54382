"""In a cluster: a session that another node had, or this one earlier, is taken over."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bus import CallboardError, StoreError

from ...runtime.runtime import Runtime
from ..resuming import Wanted, show_costs, state_of_saved
from ..state import SessionState

if TYPE_CHECKING:
    from ...nodes.node import Node
    from ...nodes.ownership.ownership import Ownership


async def taken_over(runtime: Runtime, node: Node, ownership: Ownership, wanted: Wanted) -> SessionState:
    """The state of a session of the shared store, which is this node's from now on.

    It is read when it is this node's: until then its owner may add something. A session that no node ever had must
    be stored, so that a mistaken id is not claimed.

    Raises:
        CallboardError: There is no such session that is stored as a whole, or it is open here.
        SessionBusy: Another node is at work on it.
        ConfigurationError: The session's model is not known here.
        AdmissionError: The shared store can't be asked whose it is.
        StoreError: The shared store can't be read.
    """
    session_id = wanted.session_id
    with runtime.sessions.opening(session_id):
        if not await runtime.host.share() and ownership.holding.epoch_of(session_id):
            raise StoreError(f"what was said in session {session_id!r} here can't be brought to the shared store")
        store = await node.shared_trace()
        if await ownership.tables.owner(session_id) is None:
            state_of_saved(runtime, wanted, await store.saved_session(session_id))
        claimed = await ownership.claim(session_id, waits=True)
        try:
            state = state_of_saved(runtime, wanted, await store.saved_session(session_id))
            await show_costs(store, state)
        except (CallboardError, LookupError, ValueError):
            await ownership.release(session_id)
            raise
        state.epoch = claimed.epoch
        state.resumed = True
        return state
