"""The session manager: the actor below which all turns run, each in a task of its own.

It works on `SessionState` objects that the engine owns, so that a restarted manager finds every session as it was.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from callboard.bus import Actor, ActorContext, Cost

from .costs import reprice_messages
from .state import SessionState


class ApplyCosts(msgspec.Struct, frozen=True):
    """Asks the manager to show some costs in the live histories."""

    costs: Mapping[str, Cost]
    """The costs by the request id of their calls."""


class SessionManager(Actor):
    """The actor below which all turns run.

    Args:
        sessions: All live sessions by id. The engine shares them.
    """

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
