"""The session manager: the actor below which all turns run, each in a task of its own.

It works on `SessionState` objects that the engine owns, so that a restarted manager finds every session as it was.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from bus import Actor, ActorContext, Cost

from .costs import reprice_messages
from .state import SessionState


class ApplyCosts(msgspec.Struct, frozen=True):
    """Ask the manager to show these costs in the live histories. costs: by the request_id of a call."""

    costs: Mapping[str, Cost]


class SessionManager(Actor):
    """sessions: all live ones, by id; shared with the engine."""

    def __init__(self, sessions: Mapping[str, SessionState]) -> None:
        self._sessions = sessions

    async def started(self, context: ActorContext) -> None:
        """Nothing to do: the sessions are there already."""

    async def receive(self, message: object) -> object:
        match message:
            case ApplyCosts():
                return sum(
                    reprice_messages(state.messages, message.costs) for state in list(self._sessions.values())
                )
            case _:
                raise TypeError(f"the session manager takes no {type(message).__name__}")
