"""The session manager: the actor below which all turns run, each in a task of its own.

It works on `SessionState` objects that the engine owns, so that a restarted manager finds every session as it was.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from adapters import Message
from bus import Actor, ActorContext, ActorRef, Cost, TaskHandle

from ..conversation.reply import Reply
from ..conversation.turn import Turn
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


def start_turn(manager: ActorRef, turn: Turn) -> TaskHandle[Reply]:
    """Run a turn below the manager, now. Raises ActorStopped if the manager isn't running."""
    return manager.spawn(turn.run, name=f"turn {turn.id}")


def reprice_messages(history: list[Message], costs: Mapping[str, Cost]) -> int:
    """Replace the costs of a history's messages in place; how many changed. Messages themselves are frozen."""
    changed = 0
    for position, message in enumerate(history):
        metadata = message.metadata
        cost = costs.get(metadata.request_id or "") if metadata is not None else None
        if metadata is not None and cost is not None and cost != metadata.cost:
            priced = msgspec.structs.replace(metadata, cost=cost)
            history[position] = msgspec.structs.replace(message, metadata=priced)
            changed += 1
    return changed
