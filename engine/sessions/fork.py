"""A session with the same beginning as another one."""

from __future__ import annotations

from callboard.bus import CallboardError

from .state import SessionState


def fork_of(state: SessionState, session_id: str, at: int | None) -> SessionState:
    """The state of another session with the same beginning.

    Raises:
        CallboardError: The session has fewer messages.
    """
    if at is not None and not 0 <= at <= len(state.messages):
        raise CallboardError(f"session {state.id} has {len(state.messages)} messages; it can't be forked at {at}")
    fork = SessionState(
        session_id,
        state.model,
        state.system_prompt,
        state.tools,
        dict(state.tags),
        options=state.options,
        requires=state.requires,
        name=state.name,
        forked_from=state.id,
    )
    fork.messages.extend(state.messages[:at])
    fork.asked = state.asked
    fork.refused_reasoning = state.refused_reasoning.copy()
    if at is None or state.context.start < at:
        fork.context = state.context
    return fork
