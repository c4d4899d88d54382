"""Sessions as JSON documents: exported from one engine, and imported into another."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Literal, cast

import msgspec

from callboard.adapters import Message
from callboard.bus import CallboardError, ConfigurationError, SessionSetup
from callboard.tracestore import SavedSession, decode_json, encode_json

from ..conversation.options import TurnOptions, asked_with_of
from ..routing.candidates import expand
from ..routing.model_choice import Requirements
from ..runtime.runtime import Runtime
from ..tools import Tool, ToolLike
from .setup import model_of, setup_of
from .state import SessionState

if TYPE_CHECKING:
    from ..routing.model_choice import Model

FORMAT: Literal["callboard.session.1"] = "callboard.session.1"


class ExportedSession(msgspec.Struct, frozen=True, kw_only=True, tag_field="format", tag=FORMAT):
    """A session as a document of its own: `Session.export` writes it, and `Engine.import_session` reads it.

    The messages are whole, with images and signatures, and with the way each reply came about. Of the usage that
    providers reported, the counts are kept and not the original objects.
    """

    session_id: str
    """The session's id."""
    setup: SessionSetup
    """Its model, system prompt, tools and options."""
    messages: tuple[Message, ...]
    """Its history."""
    tags: dict[str, str] = {}
    """The tags of its calls."""
    name: str | None = None
    """Its name, for people."""


def exported(state: SessionState) -> bytes:
    """A session as JSON, UTF-8."""
    return _document(state.id, setup_of(state), state.messages, state.tags, state.name)


def document_of(saved: SavedSession) -> bytes:
    """A stored session as JSON, UTF-8.

    Raises:
        CallboardError: The session isn't stored as a whole.
    """
    if saved.setup is None or saved.missing:
        raise CallboardError(f"session {saved.session_id!r} can't be exported: {', '.join(saved.missing[:3])}")
    return _document(saved.session_id, saved.setup, saved.messages, saved.tags, saved.name)


def _document(
    session_id: str, setup: SessionSetup, messages: Iterable[Message], tags: dict[str, str], name: str | None
) -> bytes:
    whole = tuple(_without_raw_usage(message) for message in messages)
    return encode_json(ExportedSession(session_id=session_id, setup=setup, messages=whole, tags=tags, name=name))


def _without_raw_usage(message: Message) -> Message:
    metadata = message.metadata
    if metadata is None or metadata.usage.raw is None:
        return message
    usage = msgspec.structs.replace(metadata.usage, raw=None)
    return msgspec.structs.replace(message, metadata=msgspec.structs.replace(metadata, usage=usage))


def imported(document: bytes | str) -> ExportedSession:
    """An exported session.

    Raises:
        CallboardError: The document is none.
    """
    data = document.encode() if isinstance(document, str) else document
    try:
        return msgspec.convert(decode_json(data), ExportedSession)
    except (ValueError, msgspec.MsgspecError) as error:
        raise CallboardError(f"this is no exported session of this version ({FORMAT}): {error}") from error


def state_of(
    runtime: Runtime,
    document: ExportedSession,
    *,
    session_id: str | None,
    tools: Sequence[ToolLike] | None,
    model: Model | None,
) -> SessionState:
    """The state of an imported session.

    Raises:
        ConfigurationError: Its model isn't known here.
    """
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
        raise ConfigurationError(f"{error}; give the session a model of this engine with model=") from error
    state.messages.extend(document.messages)
    state.asked, state.asked_stored = asked_with_of(setup.asked_with), setup.asked_with
    return state
