"""A turn's right to act for its session in a cluster, and the setup that a new owner needs.

The setup is sent with the frames of the session's turns. So another node can take over a session that is not in
the store yet.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import anyio
import msgspec

from callboard.bus import AdmissionError, Log, SessionSetup, SessionTakenOver, StoreError
from callboard.tracestore import SavedSession
from callboard.tracestore.rows import NOTHING_SAID

from ..conversation.options import AskedWith, asked_with_of
from .state import SessionState, setup_of

if TYPE_CHECKING:
    from ..nodes.frames.retained import Retained
    from ..nodes.ownership import Ownership
    from .state import SessionState

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
    """The options of the last turn that a dead owner started; None if they can't be read."""
    saved = saved_of("", packed)
    return None if saved is None or saved.setup is None else asked_with_of(saved.setup.asked_with)


def in_its_first_turn(saved: SavedSession, kept: Retained) -> SavedSession:
    """A session whose owner died in its first turn. Its messages are in the frames."""
    turn = kept.unfinished
    begun = bool(kept.beyond(0)) or (turn is not None and turn.history == 0)
    if saved.messages or saved.missing != (NOTHING_SAID,) or not begun:
        return saved
    return msgspec.structs.replace(saved, missing=())


# --- The right of one turn ---


_ASK_SECONDS = 0.25


class Tenure:
    """A turn's right to act.

    While the node's lease never expired, no check is needed. After an expiry another node may have the session,
    and may have ended the turn for its readers.

    Args:
        ownership: The node's ownership.
        state: The session.
        stream_id: The turn.
    """

    def __init__(self, ownership: Ownership, state: SessionState, stream_id: str) -> None:
        self._ownership = ownership
        self._state = state
        self._stream_id = stream_id
        self._breaks = ownership.holding.breaks

    async def require(self) -> None:
        """Return if the turn may go on. Raises SessionTakenOver or AdmissionError."""
        if self._state.lost:
            raise SessionTakenOver(self._state.lost)
        await self._ownership.require(self._state.id, self._state.epoch)

    async def confirm(self) -> None:
        """Return if this turn may report how it ended. It retries for the length of a lease.

        Raises SessionTakenOver.
        """
        ownership, state = self._ownership, self._state
        if ownership.holding.breaks == self._breaks and ownership.holds(state.id, state.epoch):
            return
        if not await self._asked(self.require):
            raise SessionTakenOver(
                f"the shared store can't be asked whether session {state.id!r} is still this node's; what was "
                "said in this turn is kept, and belongs to the session if no other node has gone on with it"
            )
        ending = await ownership.tables.ending(self._stream_id)
        if ending is not None:
            raise SessionTakenOver(f"another node has ended this turn of session {state.id!r} as {ending.status}")

    async def is_ended_elsewhere(self) -> bool:
        """Whether another node has reported how this lost turn ended.

        If none has, this reports an unknown outcome.
        """
        ownership, state = self._ownership, self._state
        try:
            ending = await ownership.end_of_turn(
                self._stream_id, state.id, ownership.info.node, state.epoch, "outcome_unknown"
            )
        except StoreError:
            return False
        return ending is not None and ending.decided_by != ownership.info.node

    async def _asked(self, ask: Callable[[], Awaitable[None]]) -> bool:
        """Ask until there is an answer, for at most the length of a lease. Returns whether there was one."""
        until = anyio.current_time() + self._ownership.info.lease_seconds
        while True:
            try:
                await ask()
            except (AdmissionError, StoreError):
                if anyio.current_time() >= until:
                    return False
                await anyio.sleep(_ASK_SECONDS)
            else:
                return True
