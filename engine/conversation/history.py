"""The messages that a turn adds to the history: all of them, or none until the model has said something.

The messages enter the history when the first content of the assistant exists. A turn that fails before that leaves
the history as it was.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from callboard.adapters import Message, Role, ToolResultBlock
from callboard.bus import SessionMessageAppended

from ..runtime.runtime import Runtime
from ..sessions.state import SessionState


class TurnHistory:
    """The conversation as one turn sees it and adds to it. It doesn't refer to the turn, which refers to it: a
    session that nobody holds any more must be gone at once.
    """

    def __init__(self, runtime: Runtime, state: SessionState, turn_id: str) -> None:
        self.pending: list[Message] = []
        """The messages of the turn that have not entered the session's history yet."""
        self._kept_ahead = 0  # so many of the pending messages are stored, for whoever takes up the reply to them
        self._runtime = runtime
        self._state = state
        self._turn_id = turn_id

    @property
    def messages(self) -> tuple[Message, ...]:
        """All messages, with those that are pending."""
        return (*self._state.messages, *self.pending)

    def begin(self, new: Sequence[Message]) -> None:
        """Take in the messages that the turn says, each with an id; the first one has the turn's ULID."""
        own = _own_id(self._turn_id)
        self.pending = [
            message if message.id else msgspec.structs.replace(message, id=self._new_id() if place else own)
            for place, message in enumerate(new)
        ]

    def await_reply(self, messages: Sequence[Message]) -> None:
        """Add messages that enter the history with the next reply."""
        self.pending.extend(messages)

    def add(self, message: Message) -> None:
        """Add a message. The first one that has content takes all pending messages into the history."""
        self.pending.append(message)
        if message.content:
            pending, self.pending = self.pending, []
            kept, self._kept_ahead = self._kept_ahead, 0
            for place, entry in enumerate(pending):
                self._commit(entry, stored=place < kept)

    def add_results(self, results: tuple[ToolResultBlock, ...]) -> None:
        """Add the answers of tools as one message."""
        if results:
            self.add(Message(Role.TOOL, results, id=self._new_id()))

    def keep_ahead(self, accepted: bool) -> None:
        """Have the pending messages stored before they are history, for whoever takes up the reply to them; or
        take them back, where that reply is no more.
        """
        if not self._state.id:
            return
        if not accepted:
            self.forget_ahead()
            return
        for place in range(self._kept_ahead, len(self.pending)):
            self._publish(len(self._state.messages) + place, self.pending[place])
        self._kept_ahead = len(self.pending)

    def forget_ahead(self) -> None:
        """Take back what was stored and did not become history."""
        if self._kept_ahead:
            self._kept_ahead = 0
            self._runtime.sessions.publish_setup(self._state)

    def forget_question(self, turn_id: str) -> None:
        """Take back what an earlier turn had stored ahead, as the reply to it was taken up and came to nothing."""
        messages = self._state.messages
        own = _own_id(turn_id)
        start = next((place for place, message in enumerate(messages) if message.id == own), len(messages))
        if start < len(messages) and all(message.role is Role.USER for message in messages[start:]):
            del messages[start:]
            self._runtime.sessions.publish_setup(self._state)

    def _new_id(self) -> str:
        return self._runtime.clock.new_id("msg")

    def _commit(self, message: Message, *, stored: bool) -> None:
        state = self._state
        state.messages.append(message)
        if state.id:
            if not stored:
                self._publish(len(state.messages) - 1, message)
            if (frames := self._runtime.frames) is not None:
                frames.sender.appended(self._turn_id, len(state.messages) - 1, message)

    def _publish(self, position: int, message: Message) -> None:
        self._runtime.bus.publish(
            SessionMessageAppended(position=position, message=message, epoch=self._state.epoch),
            session_id=self._state.id,
            turn_id=self._turn_id,
            message_id=message.id,
        )


def _own_id(turn_id: str) -> str:
    """The id of a turn's first message."""
    return "msg" + turn_id.removeprefix("trn")
