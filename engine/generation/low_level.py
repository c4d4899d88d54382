"""A `CanonicalRequest` as it is: routed, traced and priced, one reply, and no tools are run."""

from __future__ import annotations

from collections.abc import Mapping

from adapters import CanonicalRequest, CanonicalResponse

from ..conversation.journey import FirstIds
from ..conversation.options import TurnOptions
from ..conversation.turn import Turn, own
from ..runtime.runtime import Runtime
from ..sessions.state import SessionState
from ..tools import Tool


def turn_of(
    runtime: Runtime, request: CanonicalRequest, *, tags: Mapping[str, str] | None, streamed: bool
) -> Turn:
    """The one turn of a conversation without a session that asks just this."""
    state = SessionState(
        "", request.model, request.system_prompt, [Tool(tool) for tool in request.tools], dict(tags or {})
    )
    options = TurnOptions(
        max_output_tokens=request.max_output_tokens,
        temperature=request.temperature,
        top_p=request.top_p,
        frequency_penalty=request.frequency_penalty,
        presence_penalty=request.presence_penalty,
        seed=request.seed,
        verbosity=request.verbosity,
        user=request.user,
        stop_sequences=request.stop_sequences,
        output_schema=request.output_schema,
        tool_choice=request.tool_choice,
        parallel_tool_calls=request.parallel_tool_calls,
        reasoning_effort=request.reasoning_effort,
        provider_options=request.provider_options,
        max_tool_rounds=0,
        max_retries=request.max_retries,
        retry=request.retry,
        call_timeout_seconds=request.timeout_seconds,
        drain_for_usage=request.drain_for_usage,
    )
    return Turn(
        runtime=runtime,
        state=state,
        new=request.messages,
        model=None,
        options=options,
        streamed=streamed,
        first_ids=FirstIds(request.request_id, request.message_id),
        max_pauses=0,
    )


async def complete(
    runtime: Runtime, request: CanonicalRequest, *, tags: Mapping[str, str] | None = None
) -> CanonicalResponse:
    """See `Engine.complete`."""
    turn = turn_of(runtime, request, tags=tags, streamed=False)
    await own(turn, await runtime.host.start_turn(turn))
    return turn.steps[-1].response
