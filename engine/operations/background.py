"""Turns that start with a reply which another process has requested, and which its provider goes on making."""

from __future__ import annotations

from callboard.bus import CallboardError
from callboard.tracestore import OpenReply

from ..conversation.options import TurnOptions, merged
from ..conversation.turn import Turn
from ..conversation.turn_context import FirstIds
from ..runtime.runtime import Runtime, settled_store
from ..sessions.state import SessionState


async def open_replies(runtime: Runtime, session_id: str | None) -> list[OpenReply]:
    """See `Engine.open_replies`."""
    await runtime.host.start()
    store = await settled_store(runtime)
    if runtime.store is None:
        return []
    node = runtime.node
    if node is not None and node.ownership is not None:
        state = None if session_id is None else runtime.sessions.states.get(session_id)
        shared = await node.shared_trace()
        return await shared.open_replies(session_id, owned=state is not None and bool(state.epoch))
    return [] if store is None else await store.open_replies(session_id)


def turn_of_reply(
    runtime: Runtime, reply: OpenReply, options: TurnOptions, *, streamed: bool, state: SessionState | None = None
) -> Turn:
    """A turn that takes a reply up. It is not run yet."""
    if state is None:
        state = SessionState("", reply.model, None, (), reply.tags or {})
    elif reply.session_id != state.id:
        raise CallboardError(f"reply {reply.response_id} belongs to session {reply.session_id!r}, not to this one")
    return Turn(
        runtime=runtime,
        state=state,
        new=(),
        model=reply.model,
        options=merged(options, {"fallback": ()}),
        streamed=streamed,
        first_ids=FirstIds(reply.request_id, reply.message_id),
        takes_up=reply,
    )
