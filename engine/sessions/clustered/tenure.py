"""In a cluster, the right of one turn to act for its session, from its admission to its end."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import anyio

from callboard.bus import AdmissionError, SessionTakenOver, StoreError

if TYPE_CHECKING:
    from ...nodes.ownership.ownership import Ownership
    from ..state import SessionState

_ASK_SECONDS = 0.25


class Tenure:
    """A turn's right to act.

    Nobody is asked as long as the node's lease was never over. Once it was, another node may have the session, and
    may have ended the turn for everybody who reads it.

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
        """Return if the turn may go on.

        Raises:
            SessionTakenOver: Another node has the session.
            AdmissionError: Nobody can be asked whose the session is.
        """
        if self._state.lost:
            raise SessionTakenOver(self._state.lost)
        await self._ownership.require(self._state.id, self._state.epoch)

    async def confirm(self) -> None:
        """Return if it is the turn that says how it ended. For a lease's length it waits for whom it has to ask.

        Raises:
            SessionTakenOver: Another node has the session or has ended the turn, or nobody can be asked.
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
        """Whether another node has said how this lost turn ended, so that this one must not. If nobody has, it is
        said now that its outcome is unknown.
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
        """Ask until somebody answers, for as long as a lease lasts. Returns whether somebody did."""
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
