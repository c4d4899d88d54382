"""The part of a turn that its steps and tools share, its steering messages, and its history.

Steering messages come from any thread and wait for the turn's next step. The turn closes their queue when no step
follows. So each message is refused, delivered, or reported as undelivered. None is lost.

The messages of a turn enter the history when the assistant's first content exists. A turn that fails before that
leaves the history as it was.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple, cast

import msgspec

from callboard.adapters import ContentBlock, Message, OpaqueBlock, Role, TextBlock, ToolResultBlock
from callboard.bus import (
    NoTurnRunning,
    SessionMessageAppended,
    SessionTurnCompleted,
    SessionTurnStarted,
    StreamLog,
    ToolFinished,
    ToolProgress,
    ToolStarted,
)
from callboard.bus.streams.events import TurnEvent
from callboard.bus.values.messages import as_blocks
from callboard.tracestore import OpenReply

from ..calls.outcome import Spending
from ..routing.candidates import Route
from ..runtime.adapters import arrival
from ..runtime.in_flight import TurnScope
from ..runtime.runtime import Runtime
from ..sessions.state import SessionState
from .options import TurnOptions

if TYPE_CHECKING:
    from ..sessions.state import SessionState


class FirstIds(NamedTuple):
    """The ids that a caller wants for the first call of a turn. An empty id is made up."""

    request_id: str
    message_id: str


OWN_IDS = FirstIds("", "")


class TurnContext:
    """The facts of a turn that are fixed at its start.

    Args:
        runtime: The parts of the engine.
        state: The conversation.
        options: The turn's options, all levels merged.
        streamed: Whether the replies are streamed.
    """

    log: StreamLog[TurnEvent]
    """The turn's stream, from the moment at which the turn is queued."""
    takes_up: OpenReply | None = None
    """The reply that is being made in the background, with which the turn starts in place of a new one."""
    on_accepted: Callable[[bool], object] | None = None
    """Called when a provider continues a reply in the background, as in `CallEvents`.

    It must not refer to the turn.
    """

    def __init__(self, runtime: Runtime, state: SessionState, options: TurnOptions, *, streamed: bool) -> None:
        self.id = runtime.clock.new_id("trn")
        """The turn's id, ``trn_<ulid>``. Its stream has the same id."""
        self.runtime = runtime
        self.state = state
        self.options = options
        self.streamed = streamed
        self.order = arrival()
        """The turn's place in the order in which turns were asked for."""
        self.spending = Spending()
        """The tokens and costs of the turn's calls so far."""
        self.route: Route | None = None
        """The way of the turn's last call."""
        self.tags: dict[str, str] = {**state.tags, **(options.get("tags") or {})}
        """The tags of the turn's calls: the session's, and over them the turn's own."""
        seconds = cast("float | None", options.get("timeout", runtime.timeouts.turn))
        self.scope = TurnScope(seconds, options.get("signal"), runtime.in_flight)

    def publish(
        self, event: SessionTurnStarted | SessionTurnCompleted | ToolStarted | ToolProgress | ToolFinished
    ) -> None:
        self.runtime.bus.publish(event, session_id=self.state.id or None, turn_id=self.id)


# --- Steering messages ---


class SteeringQueue:
    """The messages that wait for the next step of one turn, in the order of `steer`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: list[Message] = []
        self._closed: str | None = None

    @property
    def waiting(self) -> tuple[Message, ...]:
        """The messages that no step has taken."""
        return tuple(self._waiting)

    def add(self, message: Message) -> None:
        """Add a message. Raises NoTurnRunning."""
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
        """Take no more messages."""
        with self._lock:
            self._closed = self._closed or why

    def close_if_empty(self, why: str) -> bool:
        """Take no more messages, unless some wait. Returns whether the queue was empty, and is closed."""
        with self._lock:
            if not self._waiting:
                self._closed = self._closed or why
            return not self._waiting


def steering_message(content: str | Sequence[ContentBlock], message_id: str) -> Message:
    """A message of the user that steers a turn. Raises ValueError."""
    blocks = as_blocks(content)
    if all(isinstance(block, TextBlock) and not block.text.strip() for block in blocks):
        raise ValueError("a message that steers a turn can't be empty")
    return Message(Role.USER, blocks, id=message_id, steers=True)


def provider_waits(reply: Message) -> bool:
    """Whether a tool of the provider has started in a reply and has no result yet.

    The provider continues when it gets the results of the host's tools. Before that it accepts no other message.
    """
    kinds = [block.kind for block in reply.content if isinstance(block, OpaqueBlock)]
    begun = sum(kind.endswith("tool_use") for kind in kinds)
    return begun > sum(kind.endswith("tool_result") for kind in kinds)


# --- The turn's history ---


class TurnHistory:
    """The conversation as one turn sees it and adds to it.

    It must not refer to the turn, which refers to it. A session without references must be freed immediately, not
    by the garbage collector.
    """

    def __init__(self, runtime: Runtime, state: SessionState, turn_id: str) -> None:
        self.pending: list[Message] = []
        """The messages of the turn that have not entered the session's history yet."""
        self._kept_ahead = 0  # The number of pending messages that are stored for a reply that is taken up later.
        self._runtime = runtime
        self._state = state
        self._turn_id = turn_id

    @property
    def messages(self) -> tuple[Message, ...]:
        """All messages, with those that are pending."""
        return (*self._state.messages, *self.pending)

    def begin(self, new: Sequence[Message]) -> None:
        """Add the messages of the turn, each with an id. The first one has the turn's ULID."""
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
        """Store the pending messages early, for a reply that is taken up later.

        If the provider didn't accept the reply, they are removed again.
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
