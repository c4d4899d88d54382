"""The setup of a session in the frames of its turns, for whoever takes it over before any of it is stored."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from callboard.bus import Log, SessionSetup
from callboard.tracestore import SavedSession
from callboard.tracestore.rows import NOTHING_SAID

from ...conversation.options import AskedWith, asked_with_of
from ..setup import setup_of
from ..state import SessionState

if TYPE_CHECKING:
    from ...nodes.frames.retained import Retained

_log = Log("engine.ownership")

LARGEST_BYTES = 256 * 1024
"""A larger setup, for instance of very many tools, doesn't go out with each turn."""


class Opening(msgspec.Struct, frozen=True):
    """All of a session besides its messages."""

    setup: SessionSetup
    """Its model, system prompt, tools and options."""
    tags: dict[str, str] = {}
    """The tags of its calls."""
    name: str | None = None
    """Its name, for people."""


_decoder = msgspec.msgpack.Decoder(Opening)


def packed_opening(state: SessionState, asked: AskedWith) -> bytes:
    """A session's setup as bytes; nothing if it can't be written. Made once, until it changes."""
    now = (state.model, state.system_prompt, state.tools, state.name, asked)
    if state.opening is None or state.opening[0] != now:
        state.opening = (now, _packed(state, asked))
    return state.opening[1]


def _packed(state: SessionState, asked: AskedWith) -> bytes:
    try:
        packed = msgspec.msgpack.encode(Opening(setup_of(state, asked), state.tags, state.name))
    except (TypeError, ValueError, OverflowError, RecursionError, UnicodeError) as error:
        _log.warning("setup_not_framed", session_id=state.id, error=type(error).__name__)
        return b""
    return packed if len(packed) <= LARGEST_BYTES else b""


def saved_of(session_id: str, packed: bytes) -> SavedSession | None:
    """A session without messages, as a store would have it; None if the bytes can't be read."""
    try:
        opening = _decoder.decode(packed)
    except (msgspec.MsgspecError, ValueError):
        return None
    return SavedSession(
        session_id=session_id,
        setup=opening.setup,
        withheld=None,
        tags=dict(opening.tags),
        name=opening.name,
        messages=(),
        missing=(),
    )


def asked_in(packed: bytes) -> AskedWith | None:
    """The options of the last turn that a dead owner began; None if they can't be read."""
    saved = saved_of("", packed)
    return None if saved is None or saved.setup is None else asked_with_of(saved.setup.asked_with)


def in_its_first_turn(saved: SavedSession, kept: Retained) -> SavedSession:
    """A session whose owner died in its first turn: what was said is in the frames, and not missing."""
    turn = kept.unfinished
    begun = bool(kept.beyond(0)) or (turn is not None and turn.history == 0)
    if saved.messages or saved.missing != (NOTHING_SAID,) or not begun:
        return saved
    return msgspec.structs.replace(saved, missing=())
