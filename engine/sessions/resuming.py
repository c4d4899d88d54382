"""A session by its id: the open one, else the stored one, else a new one.

A session that has lost content is refused. Each turn of such a session ends with a commit, so any process of the
host may open it next. A new session is claimed in the trace before its first message. If two engines open a new id
at the same time, one creates the session and the other resumes it.

In a cluster a session can be taken over from another node. If the node released it, everything is in the shared
store. If the node died, the frames' additional messages are added to the stored history under this node's claim,
and the interrupted turn ends with an unknown outcome. No model is asked again.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, cast

import msgspec

from callboard.adapters import Message
from callboard.bus import (
    CallboardError,
    ConfigurationError,
    Log,
    SessionSetup,
    SessionTakenOver,
    StoreError,
    StoreUnavailable,
)
from callboard.tracestore import Redact, SavedSession, Store

from ..conversation.options import TurnOptions, merged, stored_turn_options
from ..routing.candidates import expand
from ..routing.model_choice import Model, Requirements, model_of
from ..runtime.runtime import Runtime
from ..tools import Tool, ToolLike
from ..tools.waiting_calls import agent_now
from .open import costs_of, reprice_messages
from .state import SessionState, asked_in, in_its_first_turn, saved_of

if TYPE_CHECKING:
    from callboard.tracestore.nodes import Owner

    from ..nodes.frames.retained_turns import RetainedTurns
    from ..nodes.node import Node
    from ..nodes.ownership import Ownership


# --- A session from the store ---

_log = Log("engine.resuming")


def require_capture(capture_content: bool, trace: bool, redact: Redact | None) -> None:
    """Check that the arguments about content go together. Raises ConfigurationError."""
    if capture_content and not trace:
        raise ConfigurationError("capture_content stores content in the trace. Leave trace=True")
    if redact is not None and not capture_content:
        raise ConfigurationError("redact changes stored content and needs capture_content=True")
    if inspect.iscoroutinefunction(redact):
        raise ConfigurationError("redact must be a sync function: it runs between an event and its commit")


class SessionToOpen(msgspec.Struct, frozen=True, kw_only=True):
    """A stored session to open, and the settings that replace stored ones."""

    session_id: str
    tools: Sequence[ToolLike] | None = None
    """Tools in place of the stored ones."""
    model: Model | None = None
    """A model in place of the stored one; it is only checked here."""
    system_prompt: str | None = None
    """A system prompt in place of the stored one."""
    options: TurnOptions = msgspec.field(default_factory=lambda: TurnOptions())


async def resumed(runtime: Runtime, settings: SessionToOpen) -> SessionState:
    """The state of a stored session, as `Engine.resume` describes it. It raises the errors of `stored_state`."""
    state = await stored_state(runtime, settings)
    store = runtime.store
    assert store is not None
    state.resumed = True
    if runtime.capture is not None:
        await _claim(runtime, store, state)
    await show_costs(store, state)
    return state


async def stored_state(runtime: Runtime, settings: SessionToOpen) -> SessionState:
    """The state of a stored session for reading only. No other process notices.

    Raises CallboardError, ConfigurationError or StoreError.
    """
    store = runtime.store
    if store is None:
        raise CallboardError("this engine keeps no trace (trace=False), so it can't resume a session")
    if runtime.node is not None and runtime.node.ownership is not None:
        store = await runtime.node.shared_trace()
    return state_of_saved(runtime, settings, await store.saved_session(settings.session_id))


def state_of_saved(runtime: Runtime, settings: SessionToOpen, saved: SavedSession | None) -> SessionState:
    """The state of a session as stored. Raises CallboardError or ConfigurationError."""
    setup = _whole(settings.session_id, saved, settings.system_prompt is not None)
    assert saved is not None
    settings = _after_handoffs(settings, saved.messages)
    requires = None if setup.requires is None else msgspec.convert(setup.requires, Requirements)
    state = SessionState(
        settings.session_id,
        model_of(setup.model),
        setup.system_prompt if settings.system_prompt is None else settings.system_prompt,
        [Tool(definition) for definition in setup.tools] if settings.tools is None else settings.tools,
        saved.tags,
        options=merged(
            {"fallback": setup.fallback, **cast("TurnOptions", setup.defaults or {})}, settings.options
        ),
        requires=requires,
        name=saved.name,
    )
    model = state.model if settings.model is None else settings.model
    expand(runtime.registry, model, state.options.get("fallback"))
    state.messages.extend(saved.messages)
    state.asked, state.asked_stored = stored_turn_options(setup.asked_with), setup.asked_with
    return state


def require_nothing_lost(session_id: str, answered: bool) -> None:
    """Check that a session without stored content never had any. Raises CallboardError."""
    if answered:
        raise CallboardError(
            f"session {session_id!r} has been used before, and its messages are not stored: it ran "
            f"without capture_content=True, or its content has expired. Use another id, or call "
            f"engine.delete_session({session_id!r}) and start again"
        )


async def show_costs(store: Store, state: SessionState) -> None:
    """Show the current costs in a history that was stored. Raises StoreError."""
    if await store.current_version() is not None:
        reprice_messages(state.messages, await costs_of(store, state.id))


async def _claim(runtime: Runtime, store: Store, state: SessionState) -> None:
    """Record in the trace that this engine owns the session.

    Raises CallboardError if another process writes it at this moment.
    """
    bus = runtime.bus
    try:
        if not await store.claim_session(state.id, bus.run_id, bus.last_seq, len(state.messages)):
            raise CallboardError(f"session {state.id!r} is being resumed by another engine. Try again")
    except StoreUnavailable as error:
        # The store can be read but not written. The session's messages are stored under another id later.
        _log.warning("session_not_claimed", session_id=state.id, error=str(error))
    else:
        state.claimed = 0


def _whole(session_id: str, saved: SavedSession | None, has_prompt: bool) -> SessionSetup:
    """The setup of a session that can continue. Raises CallboardError if it can't."""
    if saved is None:
        raise CallboardError(
            f"session {session_id!r} has no stored messages. Was it created with capture_content=True? "
            f"`callboard sessions` lists sessions that can be resumed"
        )
    if saved.missing or saved.setup is None:
        more = f", and {len(saved.missing) - 3} more" if len(saved.missing) > 3 else ""
        raise CallboardError(f"session {session_id!r} can't be resumed: {', '.join(saved.missing[:3])}{more}")
    if saved.withheld is not None and not has_prompt:
        raise CallboardError(
            f"session {session_id!r} had a system prompt that was not stored ({saved.withheld}). Pass it "
            f"as system_prompt="
        )
    return saved.setup


_opening_log = Log("engine.ownership")


def require_kept(runtime: Runtime) -> None:
    """Check that the content of sessions is kept, so that they can be opened again. Raises ConfigurationError."""
    if runtime.capture is None:
        raise ConfigurationError(
            "open_session() continues stored messages, and this engine does not store any. Use "
            "Engine(capture_content=True), or engine.session() for a session that need not last"
        )


class NewSession(msgspec.Struct, frozen=True, kw_only=True):
    """The fields that only a new session takes; all others are in `SessionToOpen`."""

    tags: dict[str, str] | None = None
    requires: Requirements | None = None
    """The abilities that its model must have."""
    name: str | None = None
    """Its name, for people."""

    def state(self, settings: SessionToOpen) -> SessionState:
        if settings.model is None:
            raise ConfigurationError(f"session {settings.session_id!r} is new: pass model=")
        return SessionState(
            settings.session_id,
            settings.model,
            settings.system_prompt,
            settings.tools or (),
            self.tags or {},
            options=settings.options,
            requires=self.requires,
            name=self.name,
        )


async def opened(runtime: Runtime, settings: SessionToOpen, new: NewSession) -> SessionState:
    """The state of a session that this engine owns, as `Engine.open_session` describes it."""
    fresh = partial(new.state, settings)
    sessions = runtime.sessions
    await runtime.host.start()
    async with sessions.one_at_a_time(settings.session_id):
        state = sessions.states.get(settings.session_id)
        if state is not None and await _is_ours(runtime, state):
            _change(runtime, state, settings)
            state.commits = runtime.node is None
            return state
        await runtime.host.settle()
        node = runtime.node
        if node is not None and node.ownership is not None:
            state = await taken_over(runtime, node, node.ownership, settings, fresh)
        else:
            state = await _created(runtime, settings, fresh) or await resumed(runtime, settings)
        if sessions.states.get(state.id) is not state:
            sessions.open(state)
        _change(runtime, state, settings)
        state.commits = node is None
        return state


async def _created(
    runtime: Runtime, settings: SessionToOpen, fresh: Callable[[], SessionState]
) -> SessionState | None:
    """A new session of this engine; None if a part of it is stored, or another engine was faster."""
    store, sessions = runtime.store, runtime.sessions
    assert store is not None
    answered = await store.was_answered(settings.session_id)  # asked first, as others may start it meanwhile
    if await store.saved_session(settings.session_id) is not None:
        return None
    require_nothing_lost(settings.session_id, answered)
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
    """Whether a session that is open here still belongs to this engine."""
    try:
        await runtime.sessions.require_own(state)
    except SessionTakenOver:
        runtime.sessions.forget(state)
        return False
    return True


def _change(runtime: Runtime, state: SessionState, settings: SessionToOpen) -> None:
    """Apply the caller's settings to the next turns of a session."""
    sessions = runtime.sessions
    settings = _after_handoffs(settings, state.messages)
    state.options = merged(state.options, settings.options)
    if settings.model is not None and settings.model != state.model:
        sessions.change_model(state, settings.model)
    before = state.system_prompt, state.definitions
    if settings.tools is not None:
        state.use_tools(settings.tools)
    if settings.system_prompt is not None:
        state.system_prompt = settings.system_prompt
    if state.announced and before != (state.system_prompt, state.definitions):
        sessions.publish_setup(state)


def _after_handoffs(settings: SessionToOpen, messages: Sequence[Message]) -> SessionToOpen:
    """The settings of the agent that has the conversation, if the caller passed those of the first agent."""
    agent = None if settings.tools is None else agent_now(settings.tools, messages)
    if agent is None:
        return settings
    return msgspec.structs.replace(
        settings, model=agent.model, system_prompt=agent.system_prompt, tools=agent.tools
    )


# --- Taking over in a cluster ---


async def taken_over(
    runtime: Runtime,
    node: Node,
    ownership: Ownership,
    settings: SessionToOpen,
    fresh: Callable[[], SessionState] | None = None,
) -> SessionState:
    """Claim a session of the shared store for this node. Returns its state.

    The state is read after the claim, because the owner may add messages before. A session without any owner so
    far must be stored, unless a new one is allowed. So a mistaken id is not claimed.

    Raises CallboardError, SessionBusy, ConfigurationError, AdmissionError or StoreError.
    """
    session_id = settings.session_id
    with runtime.sessions.opening(session_id):
        if not await runtime.host.share() and ownership.epoch_of(session_id):
            raise StoreError(f"the messages of session {session_id!r} can't be sent to the shared store")
        store = await node.shared_trace()
        owner = await ownership.tables.owner(session_id)
        if fresh is not None:
            await _require_known(node, store, session_id, owner)
        elif owner is None:
            state_of_saved(runtime, settings, await store.saved_session(session_id))
        claimed = await ownership.claim(session_id, waits=True)
        try:
            saved = await store.saved_session(session_id)
            died = claimed.previous
            if died is None or died.released or died.node == node.id:
                died = None
            kept = None if died is None else await _kept(node, session_id)
            if saved is None and kept is not None and kept.opening:
                saved = saved_of(session_id, kept.opening)
            if saved is not None and kept is not None:
                saved = in_its_first_turn(saved, kept)
            if saved is None and fresh is not None and died is None:
                return await _resumed_here(runtime, store, fresh(), claimed.epoch)
            state = state_of_saved(runtime, settings, saved)
            await show_costs(store, state)
            state.epoch, state.resumed = claimed.epoch, True
            if died is not None:
                runtime.sessions.announce(state)
                await _continue(runtime, node, state, kept)
                ended = set() if kept is None else {turn.stream_id for turn in kept.turns}
                for turn_id in await _open_turns(store, session_id, died.node):
                    if turn_id not in ended:
                        await _end(node, session_id, turn_id, died.node, died.epoch)
        except (CallboardError, LookupError, ValueError):
            await ownership.release(session_id)
            raise
        return state


async def _require_known(node: Node, store: Store, session_id: str, owner: Owner | None) -> None:
    """Check that a session with nothing stored is a new one.

    The check precedes the claim, which replaces the owner.

    Raises CallboardError.
    """
    if owner is None or owner.released or owner.lives or owner.node == node.id:
        return
    kept = await _kept(node, session_id)
    if (kept is None or not kept.opening) and await store.saved_session(session_id) is None:
        raise CallboardError(
            f"session {session_id!r} was owned by node {owner.name or owner.node}, which died before it "
            f"shared any message. Start that node again, or call engine.delete_session({session_id!r}) and "
            f"start the session again"
        )


async def _resumed_here(runtime: Runtime, store: Store, state: SessionState, epoch: int) -> SessionState:
    """A new session. If possible now, it is shared before its first message."""
    require_nothing_lost(state.id, await store.was_answered(state.id))
    state.epoch = epoch
    runtime.sessions.announce(state, begins=False)
    await runtime.host.share()
    return state


async def _continue(runtime: Runtime, node: Node, state: SessionState, kept: RetainedTurns | None) -> None:
    """Add a dead owner's messages that are not in the stored history, and end its interrupted turn."""
    if kept is None:
        return
    beyond = kept.beyond(len(state.messages))
    if any(message.tool_uses for message in beyond) and (asked := asked_in(kept.opening)) is not None:
        runtime.sessions.keep_asked(state, asked)
    of_turns = {place: each.stream_id for each in kept.turns for place in each.appended}
    for message in beyond:
        runtime.sessions.append(state, message, of_turns.get(len(state.messages)))
    turn = kept.unfinished
    if turn is None:
        return
    known = {message.id for message in state.messages}
    if turn.history is not None and turn.history <= len(state.messages):
        for message in turn.left:
            if message.id not in known:
                runtime.sessions.append(state, message, turn.stream_id)
    await _end(node, state.id, turn.stream_id, turn.node, turn.epoch)


async def _kept(node: Node, session_id: str) -> RetainedTurns | None:
    """The content of a session's frames; None without a broker or while it can't be reached."""
    if node.frames is None:
        return None
    try:
        return await node.frames.retained_turns(session_id)
    except OSError as error:
        _opening_log.warning("frames_not_read", session_id=session_id, error=str(error))
        return None


async def _open_turns(store: Store, session_id: str, run_id: str) -> list[str]:
    """The turns of a session that a run started and never ended, according to the store."""
    events = await store.events(run_id=run_id, session_id=session_id, topic="session.turn_*", limit=None)
    started = dict.fromkeys(each.turn_id for each in events if each.topic == "session.turn_started")
    for each in events:
        if each.topic == "session.turn_completed":
            started.pop(each.turn_id, None)
    return [turn_id for turn_id in started if turn_id is not None]


async def _end(node: Node, session_id: str, turn_id: str, run_by: str, epoch: int) -> None:
    """Decide how a turn ended, and publish that to its readers."""
    assert node.ownership is not None
    ending = await node.ownership.ending_of(turn_id, session_id, run_by, epoch)
    if ending is not None and node.frames is not None:
        node.frames.sender.announce(turn_id, session_id, ending)
