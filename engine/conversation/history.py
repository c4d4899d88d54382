"""What a turn adds to its session's history: all of it, or nothing until the model has said something.

The messages enter the history when the first content of the assistant exists. Before that, a turn that fails
leaves the history as it was.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from adapters import Message, Role, ToolResultBlock
from bus import Bus, Clock, SessionMessageAppended

from ..sessions.state import SessionState


class TurnHistory:
    """pending: what the turn has said that isn't in the session's history yet."""

    def __init__(self, state: SessionState, bus: Bus, clock: Clock, turn_id: str) -> None:
        self.pending: list[Message] = []
        self._state = state
        self._bus = bus
        self._clock = clock
        self._turn_id = turn_id

    @property
    def messages(self) -> tuple[Message, ...]:
        """All that was said, with what is pending."""
        return (*self._state.messages, *self.pending)

    def begin(self, new: Sequence[Message]) -> None:
        """Take in what the turn says, each message with an id."""
        self.pending = [
            message if message.id else msgspec.structs.replace(message, id=self._clock.new_id("msg"))
            for message in new
        ]

    def add(self, message: Message) -> None:
        """With the assistant's first content the whole turn enters the history."""
        self.pending.append(message)
        if message.content:
            pending, self.pending = self.pending, []
            for entry in pending:
                self._commit(entry)

    def add_results(self, results: tuple[ToolResultBlock, ...]) -> None:
        """What tools have answered, as one message."""
        if results:
            self.add(Message(Role.TOOL, results, id=self._clock.new_id("msg")))

    def _commit(self, message: Message) -> None:
        state = self._state
        state.messages.append(message)
        if state.id:
            self._bus.publish(
                SessionMessageAppended(position=len(state.messages) - 1, message=message),
                session_id=state.id,
                turn_id=self._turn_id,
                message_id=message.id,
            )
