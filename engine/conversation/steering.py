"""The messages that steer a turn under way, on their way from the host to the turn.

    open       messages are taken from any thread, and wait for the turn's next step
    closed     no more are taken; those that wait then were never delivered

The turn closes the queue at the moment at which it decides that no step follows. So a message is either refused,
or delivered, or left over at the end; it is never lost between the two sides.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

from callboard.adapters import ContentBlock, Message, OpaqueBlock, Role, TextBlock
from callboard.bus import NoTurnRunning
from callboard.bus.values.messages import as_blocks


class SteeringQueue:
    """The messages that wait for the next step of one turn, in the order in which they were said."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: list[Message] = []
        self._closed: str | None = None

    @property
    def waiting(self) -> tuple[Message, ...]:
        """The messages that no step has taken."""
        return tuple(self._waiting)

    def add(self, message: Message) -> None:
        """Add a message.

        Raises:
            NoTurnRunning: The queue is closed; the text has the reason.
        """
        with self._lock:
            if self._closed is not None:
                raise NoTurnRunning(self._closed)
            self._waiting.append(message)

    def take(self) -> tuple[Message, ...]:
        """All messages that wait, which then wait no more."""
        if not self._waiting:  # nearly always: without the lock
            return ()
        with self._lock:
            taken, self._waiting = tuple(self._waiting), []
            return taken

    def close(self, why: str) -> None:
        """Take no more messages.

        Args:
            why: The text of the error for whoever adds one. The first reason stays.
        """
        with self._lock:
            self._closed = self._closed or why

    def close_if_empty(self, why: str) -> bool:
        """Take no more messages, unless some wait.

        Returns:
            Whether the queue was empty, and is closed.
        """
        with self._lock:
            if not self._waiting:
                self._closed = self._closed or why
            return not self._waiting


def steering_message(content: str | Sequence[ContentBlock], message_id: str) -> Message:
    """A message of the user that steers a turn.

    Raises:
        ValueError: There is nothing in it.
    """
    blocks = as_blocks(content)
    if all(isinstance(block, TextBlock) and not block.text.strip() for block in blocks):
        raise ValueError("a message that steers a turn can't be empty")
    return Message(Role.USER, blocks, id=message_id, steers=True)


def provider_waits(reply: Message) -> bool:
    """Whether a tool of the provider's own has begun in a reply, and has no result yet.

    It goes on when it gets the results of the host's tools. A provider allows nothing to be said before that.
    """
    kinds = [block.kind for block in reply.content if isinstance(block, OpaqueBlock)]
    begun = sum(kind.endswith("tool_use") for kind in kinds)
    return begun > sum(kind.endswith("tool_result") for kind in kinds)
