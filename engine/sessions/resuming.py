"""A session from the store: its parts read, and put together again."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import cast

import msgspec

from callboard.bus import CallboardError, ConfigurationError, Log, SessionSetup, StoreUnavailable
from callboard.tracestore import Redact, SavedSession, Store

from ..conversation.options import TurnOptions, asked_with_of, merged
from ..routing.candidates import expand
from ..routing.model_choice import Model, Requirements, model_of
from ..runtime.runtime import Runtime
from ..tools import Tool, ToolLike
from .open import costs_of, reprice_messages
from .state import SessionState

_log = Log("engine.resuming")


def require_capture(capture_content: bool, trace: bool, redact: Redact | None) -> None:
    """Check that the arguments about content go together. Raises ConfigurationError."""
    if capture_content and not trace:
        raise ConfigurationError("capture_content needs the trace to keep content in; leave trace=True")
    if redact is not None and not capture_content:
        raise ConfigurationError("redact is for content that is stored; it needs capture_content=True")
    if inspect.iscoroutinefunction(redact):
        raise ConfigurationError("redact must be a plain function: it runs between an event and its commit")


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """A stored session that is to be had, and what is said of it otherwise than it is stored."""

    session_id: str
    """Its id."""
    tools: Sequence[ToolLike] | None = None
    """Tools in place of the stored ones."""
    model: Model | None = None
    """A model in place of the stored one; it is only checked here."""
    system_prompt: str | None = None
    """A system prompt in place of the stored one."""
    options: TurnOptions = msgspec.field(default_factory=lambda: TurnOptions())
    """The options of its turns."""


async def resumed(runtime: Runtime, wanted: Wanted) -> SessionState:
    """The state of a stored session, as `Engine.resume` describes it. It raises what `stored_state` raises."""
    state = await stored_state(runtime, wanted)
    store = runtime.store
    assert store is not None
    state.resumed = True
    if runtime.capture is not None:
        await _claim(runtime, store, state)
    await show_costs(store, state)
    return state


async def stored_state(runtime: Runtime, wanted: Wanted) -> SessionState:
    """The state of a stored session for whoever only looks: nobody else learns of it.

    Raises CallboardError, ConfigurationError or StoreError.
    """
    store = runtime.store
    if store is None:
        raise CallboardError("this engine keeps no trace (trace=False), so there is no session to resume")
    if runtime.node is not None and runtime.node.ownership is not None:
        store = await runtime.node.shared_trace()
    return state_of_saved(runtime, wanted, await store.saved_session(wanted.session_id))


def state_of_saved(runtime: Runtime, wanted: Wanted, saved: SavedSession | None) -> SessionState:
    """The state of a session as it is stored. Raises CallboardError or ConfigurationError."""
    setup = _whole(wanted.session_id, saved, wanted.system_prompt is not None)
    assert saved is not None
    requires = None if setup.requires is None else msgspec.convert(setup.requires, Requirements)
    state = SessionState(
        wanted.session_id,
        model_of(setup.model),
        setup.system_prompt if wanted.system_prompt is None else wanted.system_prompt,
        [Tool(definition) for definition in setup.tools] if wanted.tools is None else wanted.tools,
        saved.tags,
        options=merged({"fallback": setup.fallback, **cast("TurnOptions", setup.defaults or {})}, wanted.options),
        requires=requires,
        name=saved.name,
    )
    model = state.model if wanted.model is None else wanted.model
    expand(runtime.registry, model, state.options.get("fallback"))
    state.messages.extend(saved.messages)
    state.asked, state.asked_stored = asked_with_of(setup.asked_with), setup.asked_with
    return state


def require_nothing_lost(session_id: str, answered: bool) -> None:
    """Check that a session of which no content is stored never had any. Raises CallboardError."""
    if answered:
        raise CallboardError(
            f"session {session_id!r} has been used before, and nothing of what was said is stored: it was held "
            "without capture_content=True, or its content has expired. Take another id, or begin it anew after "
            f"engine.delete_session({session_id!r})"
        )


async def show_costs(store: Store, state: SessionState) -> None:
    """Show the current costs in a history that was stored. Raises StoreError."""
    if await store.current_version() is not None:
        reprice_messages(state.messages, await costs_of(store, state.id))


async def _claim(runtime: Runtime, store: Store, state: SessionState) -> None:
    """Note in the trace that the session is this engine's now. CallboardError if somebody writes it at this
    moment.
    """
    bus = runtime.bus
    try:
        if not await store.claim_session(state.id, bus.run_id, bus.last_seq, len(state.messages)):
            raise CallboardError(
                f"session {state.id!r} is being continued by another engine just now: resume it again"
            )
    except StoreUnavailable as error:
        # It can be read and not written: what is said here is kept under another name, once it can be.
        _log.warning("session_not_claimed", session_id=state.id, error=str(error))
    else:
        state.claimed = 0


def _whole(session_id: str, saved: SavedSession | None, has_prompt: bool) -> SessionSetup:
    """The setup of a session that can go on as it was. CallboardError if it can't."""
    if saved is None:
        raise CallboardError(
            f"nothing is stored of session {session_id!r}: was it held with capture_content=True? "
            "`callboard sessions` lists those that can be resumed"
        )
    if saved.missing or saved.setup is None:
        more = f", and {len(saved.missing) - 3} more" if len(saved.missing) > 3 else ""
        raise CallboardError(f"session {session_id!r} can't be resumed: {', '.join(saved.missing[:3])}{more}")
    if saved.withheld is not None and not has_prompt:
        raise CallboardError(
            f"session {session_id!r} had a system prompt that was not stored ({saved.withheld}): "
            "give it as system_prompt="
        )
    return saved.setup
