"""The session methods of `Engine`. Opening an id returns the open session, else the stored session, else a new
one.

A stored session with missing content raises CallboardError. Each turn of a session opened by id ends with a
commit, so another process of the host can open it next. A new session is claimed in the trace before its first
message. If two engines open a new id at the same time, one creates the session and the other resumes it.

In a cluster a session can be taken over from another node, see `nodes.takeover`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Unpack, cast

import msgspec

from callboard.adapters import Message
from callboard.bus import (
    CallboardError,
    ConfigurationError,
    Log,
    SessionSetup,
    SessionTakenOver,
    StoreUnavailable,
)
from callboard.tracestore import Redact, SavedSession, Store

from ..conversation.options import SessionOptions, TurnOptions, merged, session_options, stored_turn_options
from ..routing.candidates import expand
from ..routing.model_choice import Model, Requirements, model_of
from ..runtime.runtime import Runtime
from ..tools import Tool, ToolLike, as_tools
from ..tools.calls import agent_now
from .open import SessionState, require_nothing_lost, show_costs
from .session import Session
from .stored import SessionInfo, deleted, imported, listed, state_of

# --- A session from the store ---

_log = Log("engine.resuming")


def require_capture(capture_content: bool, trace: bool, redact: Redact | None) -> None:
    """Check that the arguments about content are consistent. Raises ConfigurationError."""
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
    """Tools that replace the stored ones."""
    model: Model | None = None
    """A model that replaces the stored one. It is only checked here."""
    system_prompt: str | None = None
    """A system prompt that replaces the stored one."""
    options: TurnOptions = msgspec.field(default_factory=lambda: TurnOptions())


async def resumed(runtime: Runtime, settings: SessionToOpen) -> SessionState:
    """The state of a stored session, as `Engine.resume` describes it. It raises the errors of `stored_state`."""
    claimed = await runtime.sessions.taken_over(settings.session_id, partial(state_of_saved, runtime, settings))
    if claimed is not None:
        return claimed
    state = await stored_state(runtime, settings)
    store = runtime.store
    assert store is not None
    state.resumed = True
    if runtime.capture is not None:
        await _claim(runtime, store, state)
    await show_costs(store, state)
    return state


async def stored_state(runtime: Runtime, settings: SessionToOpen) -> SessionState:
    """The state of a stored session for reading only. The session's owner does not change.

    Raises CallboardError, ConfigurationError or StoreError.
    """
    store = await runtime.sessions.trace() if runtime.store is not None else None
    if store is None:
        raise CallboardError("this engine keeps no trace (trace=False), so it can't resume a session")
    return state_of_saved(runtime, settings, await store.saved_session(settings.session_id))


def state_of_saved(runtime: Runtime, settings: SessionToOpen, saved: SavedSession | None) -> SessionState:
    """The state of a session as stored. Raises CallboardError or ConfigurationError."""
    setup = _complete_setup(settings.session_id, saved, settings.system_prompt is not None)
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
    state.waiting_options, state.waiting_options_stored = stored_turn_options(setup.asked_with), setup.asked_with
    return state


async def _claim(runtime: Runtime, store: Store, state: SessionState) -> None:
    """Record in the trace that this engine owns the session.

    Raises CallboardError if another process writes to the session at the same time.
    """
    bus = runtime.bus
    try:
        if not await store.claim_session(state.id, bus.run_id, bus.last_seq, len(state.messages)):
            raise CallboardError(f"session {state.id!r} is being resumed by another engine. Try again")
    except StoreUnavailable as error:
        # The store can be read but not written. New messages of the session will be stored under another id.
        _log.warning("session_not_claimed", session_id=state.id, error=str(error))
    else:
        state.claimed = 0


def _complete_setup(session_id: str, saved: SavedSession | None, has_prompt: bool) -> SessionSetup:
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


def require_kept(runtime: Runtime) -> None:
    """Check that the content of sessions is kept, so that they can be opened again. Raises ConfigurationError."""
    if runtime.capture is None:
        raise ConfigurationError(
            "open_session() continues stored messages, and this engine does not store any. Use "
            "Engine(capture_content=True), or engine.session() for a session that need not last"
        )


class NewSession(msgspec.Struct, frozen=True, kw_only=True):
    """The settings that apply only to a new session. All others are in `SessionToOpen`."""

    tags: dict[str, str] | None = None
    requires: Requirements | None = None
    """The abilities that the session's model must have."""
    name: str | None = None
    """The session's name, for people."""

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
            state.commits = sessions.commits
            return state
        await runtime.host.settle()
        restored = partial(state_of_saved, runtime, settings)
        state = await sessions.taken_over(settings.session_id, restored, fresh)
        if state is None:
            state = await _created(runtime, settings, fresh) or await resumed(runtime, settings)
        if sessions.states.get(state.id) is not state:
            sessions.open(state)
        _change(runtime, state, settings)
        state.commits = sessions.commits
        return state


async def _created(
    runtime: Runtime, settings: SessionToOpen, fresh: Callable[[], SessionState]
) -> SessionState | None:
    """A new session of this engine; None if the session is already stored in part, or if another engine created it
    first.
    """
    store, sessions = runtime.store, runtime.sessions
    assert store is not None
    # Checked first, because another engine may start the session during the next steps.
    answered = await store.was_answered(settings.session_id)
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
    """After a handoff, use the settings of the agent that now has the conversation, in place of the first
    agent's.
    """
    agent = None if settings.tools is None else agent_now(settings.tools, messages)
    if agent is None:
        return settings
    return msgspec.structs.replace(
        settings, model=agent.model, system_prompt=agent.system_prompt, tools=agent.tools
    )


class SessionMethods:
    """The methods of `Engine` for sessions."""

    _runtime: Runtime

    def session(
        self,
        model: Model,
        *,
        system_prompt: str | None = None,
        tools: Sequence[ToolLike] = (),
        session_id: str | None = None,
        tags: dict[str, str] | None = None,
        requires: Requirements | None = None,
        name: str | None = None,
        **options: Unpack[SessionOptions],
    ) -> Session:
        """A new session.

        Args:
            model: Any of a model's names, several of them in order, or a `ModelChoice`; checked now.
            system_prompt: The system prompt of the session's turns.
            tools: The tools of the session's turns, or plain functions with type hints and docstrings.
            session_id: The session's id; a new id is made by default.
            tags: The tags of the session's calls, for the trace; never sent.
            requires: The abilities that the model must have, in addition to the abilities that the
                requests need.
            name: A name for people.
            options: Default options for the session's turns; a turn's own options override them. The fields of
                `SessionOptions` (fallback, approve, context, key, temperature, max_output_tokens,
                max_tool_rounds).

        Raises:
            ConfigurationError: A name is unknown, or two tools have one name.
            ToolDefinitionError: A function lacks type hints or descriptions of its parameters.
            CallboardError: A session of that id is open.
        """
        expand(self._runtime.registry, model, options.get("fallback"))
        state = SessionState(
            session_id or self._runtime.clock.new_id("ses"),
            model,
            system_prompt,
            tools,
            tags or {},
            options=session_options(options),
            requires=requires,
            name=name,
        )
        return self._open(state)

    async def open_session(
        self,
        session_id: str,
        *,
        model: Model | None = None,
        system_prompt: str | None = None,
        tools: Sequence[ToolLike] | None = None,
        tags: dict[str, str] | None = None,
        requires: Requirements | None = None,
        name: str | None = None,
        **options: Unpack[SessionOptions],
    ) -> Session:
        """Return the open session with this id, else the stored session with its history, else a new session.

        The engine must have `capture_content=True`, so that the session can be opened again later. Afterwards this
        engine owns the session, as after `resume`. The arguments replace the stored settings from the next turn
        on; None keeps a stored setting.

        Args:
            session_id: An id that the host chooses, for example from the ids of a tenant and a conversation.
            model: As in `session`; a new session needs one.
            system_prompt: As in `session`.
            tools: As in `session`. The code of tools is not stored, so pass them each time: without them, the
                tools of a stored session are passive.
            tags: As in `session`, for a new session.
            requires: As in `session`, for a new session.
            name: As in `session`, for a new session.
            options: As in `session`.

        Raises:
            CallboardError: Some content of the session is missing from the trace.
            SessionBusy: Another node of the cluster runs a turn of the session.
            ConfigurationError: A name is unknown, two tools have one name, a new session has no model, or the
                engine doesn't keep content.
            ToolDefinitionError: A function lacks type hints or descriptions of its parameters.
            AdmissionError: In a cluster, the owner of the session can't be determined.
            StoreError: The trace can't be used.
        """
        runtime = self._runtime
        require_kept(runtime)
        if model is not None:
            expand(runtime.registry, model, options.get("fallback"))
        to_open = SessionToOpen(
            session_id=session_id,
            tools=None if tools is None else as_tools(tools),
            model=model,
            system_prompt=system_prompt,
            options=session_options(options),
        )
        return Session(
            runtime, await opened(runtime, to_open, NewSession(tags=tags, requires=requires, name=name))
        )

    def _open(self, state: SessionState) -> Session:
        self._runtime.sessions.open(state)
        return Session(self._runtime, state)

    async def resume(
        self,
        session_id: str,
        *,
        tools: Sequence[ToolLike] | None = None,
        model: Model | None = None,
        system_prompt: str | None = None,
        **options: Unpack[SessionOptions],
    ) -> Session:
        """A stored session with its history. The session may belong to another process, even a killed one.

        This engine then owns the session. With `capture_content`, the next turn in the engine that had the
        session open raises SessionTakenOver.

        In a cluster the session comes from the shared store. If another node holds it and runs no turn of it,
        that node hands it over. If the node has died, this waits until its lease has expired.

        Args:
            session_id: The id of the session.
            tools: The tools with their code, which is not stored. With None, the session has the stored
                definitions as passive tools.
            model: A model in place of the stored one.
            system_prompt: A system prompt in place of the stored one.
            options: As in `session`, in place of the stored ones.

        Raises:
            CallboardError: The session is open, not stored, or not stored completely.
            SessionBusy: Another node of the cluster runs a turn of the session.
            ConfigurationError: The session's model is not known here.
            StoreError: The trace can't be read.
        """
        await self._runtime.host.settle()
        to_open = SessionToOpen(
            session_id=session_id,
            tools=tools,
            model=model,
            system_prompt=system_prompt,
            options=session_options(options),
        )
        session = self._open(await resumed(self._runtime, to_open))
        state = session._state
        if model is not None:
            self._runtime.sessions.change_model(state, model)
        return session

    async def sessions(
        self, *, limit: int | None = 1000, tags: Mapping[str, str] | None = None
    ) -> list[SessionInfo]:
        """The sessions that are open here, and sessions of the trace, the latest first.

        Args:
            limit: The maximum number of sessions from the trace; None returns all.
            tags: Tags that the sessions must all have, such as ``{"tenant": "red"}``.

        Raises:
            StoreError: The trace can't be read.
        """
        return await listed(self._runtime, limit, tags)

    async def delete_session(self, session_id: str) -> bool:
        """Delete a session: the open one, and its stored messages.

        Its calls and their costs stay in the trace. If you still use the `Session` object, the next turn starts a
        new, empty session with this id. Copies in another store are deleted as soon as that store can be reached.

        Returns:
            False if there was no such session.

        Raises:
            SessionBusy: A turn of the session runs, or another node of the cluster holds it.
            StoreError: The trace can't be written.
        """
        return await deleted(self._runtime, session_id)

    async def import_session(
        self,
        document: bytes | str,
        *,
        session_id: str | None = None,
        tools: Sequence[ToolLike] | None = None,
        model: Model | None = None,
        key: str | None = None,
    ) -> Session:
        """A session from a document that `Session.export` has written, with its history and settings. The document
        may come from another engine.

        Args:
            document: The document.
            session_id: The id of the new session; the exported id by default.
            tools: Tools that replace the exported ones; without them, the exported tools are passive.
            model: A model that replaces the exported one.
            key: As in `session`; the key is not exported.

        Raises:
            CallboardError: The document is not an exported session, or a session of that id is open.
            ConfigurationError: The session's model is not known here.
        """
        await self._runtime.host.start()
        state = state_of(self._runtime, imported(document), session_id=session_id, tools=tools, model=model)
        state.options = merged(state.options, {"key": key})
        session = self._open(state)
        await self._runtime.sessions.claim_new(state)
        self._runtime.sessions.announce(state)
        return session
