"""One reply to a `CanonicalRequest` as it is: routed, traced and priced. No tools are run."""

from __future__ import annotations

from collections.abc import Mapping

from callboard.adapters import CanonicalRequest, CanonicalResponse

from ..conversation.options import said_by
from ..conversation.turn import Turn, own
from ..conversation.turn_context import FirstIds
from ..runtime.runtime import Runtime
from ..sessions.state import SessionState
from ..tools import Tool


def turn_of(
    runtime: Runtime, request: CanonicalRequest, *, tags: Mapping[str, str] | None, streamed: bool
) -> Turn:
    """The one turn of a conversation without a session that asks just what the request asks."""
    state = SessionState(
        "", request.model, request.system_prompt, [Tool(tool) for tool in request.tools], dict(tags or {})
    )
    turn = Turn(
        runtime=runtime,
        state=state,
        new=request.messages,
        model=None,
        options=said_by(request),
        streamed=streamed,
        first_ids=FirstIds(request.request_id, request.message_id),
        max_pauses=0,
    )
    turn.steering.close(
        "a CanonicalRequest is answered with one reply; say stream(model, messages=[...]) to steer"
    )
    return turn


async def complete(
    runtime: Runtime, request: CanonicalRequest, *, tags: Mapping[str, str] | None = None
) -> CanonicalResponse:
    """One reply to a request; see `Engine.complete`."""
    turn = turn_of(runtime, request, tags=tags, streamed=False)
    await own(turn, await runtime.host.start_turn(turn))
    return turn.steps[-1].response
