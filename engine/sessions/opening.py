"""A session by its id: the one that is open, else the stored one, else a new one; never one that has lost content.

Each turn of such a session ends with a commit, so that a host of several processes may open it in any of them. A
new session is this engine's before anything is said in it: it is in the trace, and the trace says whose it is.
Of two engines that open a new id at once, one makes the session, and the other resumes it.
"""

from __future__ import annotations

from collections.abc import Callable

from callboard.bus import ConfigurationError, SessionTakenOver

from ..conversation.options import merged
from ..runtime.runtime import Runtime
from .resuming import Wanted, require_nothing_lost, resumed
from .state import SessionState


def require_kept(runtime: Runtime) -> None:
    """Check that what is said in a session is kept, so that it can be opened again.

    Raises:
        ConfigurationError: It isn't.
    """
    if runtime.capture is None:
        raise ConfigurationError(
            "open_session() goes on with what was said before, and this engine doesn't keep it: make it with "
            "Engine(capture_content=True). A session that needn't last is engine.session()"
        )


async def opened(runtime: Runtime, wanted: Wanted, fresh: Callable[[], SessionState]) -> SessionState:
    """The state of a session that is this engine's, as `Engine.open_session` describes it.

    Args:
        runtime: The engine's parts.
        wanted: The session.
        fresh: Makes the state of a new one.
    """
    sessions = runtime.sessions
    await runtime.host.start()
    async with sessions.one_at_a_time(wanted.session_id):
        state = sessions.states.get(wanted.session_id)
        if state is not None and await _is_ours(runtime, state):
            _change(runtime, state, wanted)
            state.commits = runtime.node is None
            return state
        await runtime.host.settle()
        node = runtime.node
        if node is not None and node.ownership is not None:
            from .clustered.taking_over import taken_over

            state = await taken_over(runtime, node, node.ownership, wanted, fresh)
        else:
            state = await _created(runtime, wanted, fresh) or await resumed(runtime, wanted)
        if sessions.states.get(state.id) is not state:
            sessions.open(state)
        _change(runtime, state, wanted)
        state.commits = node is None
        return state


async def _created(runtime: Runtime, wanted: Wanted, fresh: Callable[[], SessionState]) -> SessionState | None:
    """A new session that is this engine's; None if something is stored of it, or another engine was quicker."""
    store, sessions = runtime.store, runtime.sessions
    assert store is not None
    answered = await store.was_answered(wanted.session_id)  # asked first, as others may begin it meanwhile
    if await store.saved_session(wanted.session_id) is not None:
        return None
    require_nothing_lost(wanted.session_id, answered)
    state = fresh()
    sessions.open(state)
    sessions.announce(state, begins=False)
    try:
        await runtime.host.flush()
        owner, _ = await store.session_owner(state.id, runtime.bus.run_id)
    except BaseException:
        sessions.forget(state)
        raise
    if owner == runtime.bus.run_id:
        return state
    sessions.forget(state)
    return None


async def _is_ours(runtime: Runtime, state: SessionState) -> bool:
    """Whether a session that is open here belongs to nobody else by now."""
    try:
        await runtime.sessions.require_own(state)
    except SessionTakenOver:
        runtime.sessions.forget(state)
        return False
    return True


def _change(runtime: Runtime, state: SessionState, wanted: Wanted) -> None:
    """Have the next turns of a session be as the caller says."""
    sessions = runtime.sessions
    state.options = merged(state.options, wanted.options)
    if wanted.model is not None and wanted.model != state.model:
        sessions.change_model(state, wanted.model)
    before = state.system_prompt, state.definitions
    if wanted.tools is not None:
        state.use_tools(wanted.tools)
    if wanted.system_prompt is not None:
        state.system_prompt = wanted.system_prompt
    if state.announced and before != (state.system_prompt, state.definitions):
        sessions.publish_setup(state)
