"""Stored sessions: listing, deletion, and JSON documents for moving a session to another engine."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, cast

import msgspec

from callboard.adapters import Message
from callboard.bus import CallboardError, ConfigurationError, SessionBusy, SessionSetup
from callboard.tracestore import SavedSession, SessionRow, decode_json, encode_json

from ..conversation.context import WHOLE
from ..conversation.options import TurnOptions, stored_turn_options
from ..routing.candidates import expand
from ..routing.model_choice import Model, Requirements, model_of, model_text
from ..runtime.runtime import Runtime
from ..tools import Tool, ToolLike
from .open import SessionState, setup_of


class SessionInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A session that is open here, stored, or both."""

    session_id: str
    """The session's id."""
    name: str | None
    """The session's name, for people."""
    model: str
    """The model of the session's next turn, as text."""
    tags: dict[str, str]
    """The tags of the session's calls."""
    open: bool
    """Whether the session is open in this engine."""
    stored: SessionRow | None = None
    """The session's row in the trace; None if the session is not stored yet."""


async def listed(runtime: Runtime, limit: int | None, tags: Mapping[str, str] | None = None) -> list[SessionInfo]:
    """The sessions with these tags that are open, then those of the trace, the latest first."""
    tag_items = dict(tags or {}).items()
    await runtime.host.start()
    live = {name: state for name, state in runtime.sessions.states.items() if tag_items <= state.tags.items()}
    rows: dict[str, SessionRow] = {}
    if runtime.store is not None:
        await runtime.host.flush()
        store = await runtime.sessions.trace() or runtime.store
        rows = {row.session_id: row for row in await store.sessions(limit, tags=tags)}
    found = [
        SessionInfo(
            session_id=state.id,
            name=state.name,
            model=model_text(state.model),
            tags=state.tags,
            open=True,
            stored=rows.pop(state.id, None),
        )
        for state in live.values()
    ]
    found += [
        SessionInfo(
            session_id=row.session_id, name=row.name, model=row.model or "", tags=row.tags, open=False, stored=row
        )
        for row in rows.values()
    ]
    return found[:limit]


# --- Deletion ---


PARENT_TAG = "callboard.parent_session"
"""The tag of a sub-agent's session, with the id of the session whose tool runs the agent."""


async def deleted(runtime: Runtime, session_id: str) -> bool:
    """Delete a session and the sessions of its sub-agents; see `Engine.delete_session`."""
    await runtime.host.start()
    found = await _deleted_everywhere(runtime, session_id)
    for agent in await listed(runtime, None, {PARENT_TAG: session_id}):
        await deleted(runtime, agent.session_id)
    runtime.streams.forget_session(session_id)
    await runtime.cluster.streams.forget(session_id)
    return found


async def _deleted_everywhere(runtime: Runtime, session_id: str) -> bool:
    state = runtime.sessions.states.get(session_id)
    if state is None:
        return await _deleted_from_store(runtime, session_id)
    if state.running is not None or state.waiting:
        raise SessionBusy(f"a turn of session {session_id!r} is in progress. Cancel it first")
    async with state.turns:  # a turn that is requested during the deletion starts the session again
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
    return await runtime.sessions.delete_stored(session_id)


# --- Session documents ---


FORMAT: Literal["callboard.session.1"] = "callboard.session.1"


class ExportedSession(msgspec.Struct, frozen=True, kw_only=True, tag_field="format", tag=FORMAT):
    """An exported session: the document that `Session.export` writes and `Engine.import_session` reads.

    The messages are complete, with images, signatures and the metadata of each reply. Usage has only the counts,
    without the providers' original objects.
    """

    session_id: str
    """The session's id."""
    setup: SessionSetup
    """The model, system prompt, tools and options."""
    messages: tuple[Message, ...]
    """The session's history."""
    tags: dict[str, str] = {}
    """The tags of the session's calls."""
    name: str | None = None
    """The session's name, for people."""


def exported(state: SessionState) -> bytes:
    """A session as JSON, UTF-8."""
    return _document(state.id, setup_of(state), state.messages, state.tags, state.name)


def document_of(saved: SavedSession) -> bytes:
    """A stored session as JSON, UTF-8. Raises CallboardError."""
    if saved.setup is None or saved.missing:
        raise CallboardError(f"session {saved.session_id!r} can't be exported: {', '.join(saved.missing[:3])}")
    return _document(saved.session_id, saved.setup, saved.messages, saved.tags, saved.name)


def _document(
    session_id: str, setup: SessionSetup, messages: Iterable[Message], tags: dict[str, str], name: str | None
) -> bytes:
    complete = tuple(_without_raw_usage(message) for message in messages)
    return encode_json(
        ExportedSession(session_id=session_id, setup=setup, messages=complete, tags=tags, name=name)
    )


def _without_raw_usage(message: Message) -> Message:
    metadata = message.metadata
    if metadata is None or metadata.usage.raw is None:
        return message
    usage = msgspec.structs.replace(metadata.usage, raw=None)
    return msgspec.structs.replace(message, metadata=msgspec.structs.replace(metadata, usage=usage))


def imported(document: bytes | str) -> ExportedSession:
    """An exported session. Raises CallboardError."""
    data = document.encode() if isinstance(document, str) else document
    try:
        return msgspec.convert(decode_json(data), ExportedSession)
    except (ValueError, msgspec.MsgspecError) as error:
        raise CallboardError(f"this is not an exported session of this version ({FORMAT}): {error}") from error


def state_of(
    runtime: Runtime,
    document: ExportedSession,
    *,
    session_id: str | None,
    tools: Sequence[ToolLike] | None,
    model: Model | None,
) -> SessionState:
    """The state of an imported session. Raises ConfigurationError."""
    setup = document.setup
    requires = None if setup.requires is None else msgspec.convert(setup.requires, Requirements)
    state = SessionState(
        session_id or document.session_id,
        model_of(setup.model) if model is None else model,
        setup.system_prompt,
        [Tool(definition) for definition in setup.tools] if tools is None else tools,
        dict(document.tags),
        options={"fallback": setup.fallback, **cast("TurnOptions", setup.defaults or {})},
        requires=requires,
        name=document.name,
    )
    try:
        expand(runtime.registry, state.model, setup.fallback)
    except ConfigurationError as error:
        raise ConfigurationError(f"{error}. Pass a model of this engine with model=") from error
    state.messages.extend(document.messages)
    state.waiting_options, state.waiting_options_stored = stored_turn_options(setup.asked_with), setup.asked_with
    return state
