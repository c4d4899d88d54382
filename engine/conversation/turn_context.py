"""The part of a turn that its steps and tools share, its steering messages, and its history."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import reduce
from operator import add
from typing import NamedTuple, cast

import msgspec

from callboard.adapters import (
    CanonicalRequest,
    ContentBlock,
    Message,
    OpaqueBlock,
    Role,
    TextBlock,
    TokenUsage,
    ToolResultBlock,
)
from callboard.adapters.replies.usage import NOTHING_USED
from callboard.bus import (
    Cost,
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
from callboard.bus.values.usage import CostSum
from callboard.tracestore import OpenReply

from ..calls.outcome import Spending
from ..routing.candidates import Route
from ..runtime.adapters import arrival
from ..runtime.in_flight import TurnScope
from ..runtime.runtime import Runtime
from ..sessions.open import SessionState
from ..tree import Caller, ChildTurn, TreeNode, caller_here
from .options import TurnOptions


class FirstIds(NamedTuple):
    """The ids for the first call of a turn, if the caller chose them. An empty id is replaced by a new one."""

    request_id: str
    message_id: str


OWN_IDS = FirstIds("", "")


class TurnContext:
    """The data of a turn that its steps and tools share.

    Args:
        runtime: The parts of the engine.
        state: The conversation.
        options: The turn's options, all levels merged.
        streamed: Whether the replies are streamed.
        caller: The tool run that starts the turn; None uses the tool run of the current task, if any.
    """

    log: StreamLog[TurnEvent]
    """The turn's stream. It exists from the moment when the turn is queued."""
    takes_up: OpenReply | None = None
    """The background reply that the turn resumes instead of requesting a new one."""
    client_request: CanonicalRequest | None = None
    """The caller's request; None if the caller passed messages and options."""
    node: TreeNode | None = None
    """The turn's node in its tree; None for a root without limits that has run no tool."""
    route: Route | None = None
    on_accepted: Callable[[bool], object] | None = None
    """Called when a provider continues a reply in the background, as in `CallEvents`.

    It must not refer to the turn.
    """

    def __init__(
        self,
        runtime: Runtime,
        state: SessionState,
        options: TurnOptions,
        *,
        streamed: bool,
        caller: Caller | None = None,
    ) -> None:
        self.id = runtime.clock.new_id("trn")
        """The turn's id, ``trn_<ulid>``. Its stream has the same id."""
        self.runtime = runtime
        self.state = state
        self.options = options
        self.streamed = streamed
        self.order = arrival()
        """The turn's place in the order in which turns were requested."""
        self.spending = Spending()
        """The tokens and costs of the turn's calls."""
        seconds = cast("float | None", options.get("timeout", runtime.timeouts.turn))
        self.caller = caller_here() if caller is None else caller
        """The tool run that started the turn; None for a root."""
        if self.caller is not None and self.caller.carried:
            runtime.cluster.reach(self.caller)
        own_tags = {**state.tags, **(options.get("tags") or {})}
        self.tags: dict[str, str] = own_tags if self.caller is None else {**self.caller.tags, **own_tags}
        """The tags of the turn's calls. The turn's own tags override the session's tags. The session's tags
        override the tags of the calling turn.
        """
        limits = options.get("limits")
        if self.caller is not None or limits is not None:
            self.node = TreeNode(self.id, self.caller, limits)
            seconds = self.node.seconds(seconds)
        self.scope = TurnScope(seconds, options.get("signal"), runtime.in_flight)

    @property
    def of_client(self) -> bool:
        """Whether a gateway's client wrote the request. The client may not know the limits of the model that
        serves it.
        """
        return self.client_request is not None and self.client_request.wire is not None

    @property
    def cost(self) -> Cost:
        """The cost of all calls of the turn; unknown if one cost is unknown."""
        return self.spending.cost

    @property
    def tree_cost(self) -> CostSum:
        """The cost of all calls of the turn and its descendants."""
        own_cost = self.spending.sum
        return own_cost if self.node is None or not self.node.spends_below else own_cost + self.node.below

    @property
    def tree_usage(self) -> TokenUsage:
        """The tokens of all attempts of the turn and its descendants."""
        usages = self.spending.usages
        own_usage = usages[0] if len(usages) == 1 else reduce(add, usages, NOTHING_USED)
        return own_usage if self.node is None or not self.node.spends_below else own_usage + self.node.below_usage

    @property
    def children(self) -> tuple[ChildTurn, ...]:
        """The turns that the tools of this turn have started, in order."""
        return () if self.node is None else tuple(self.node.children)

    def in_tree(self) -> TreeNode:
        """Return the turn's node in its tree, and create it if needed."""
        if self.node is None:
            self.node = TreeNode(self.id)
        self.node.deadline = self.scope.deadline
        return self.node

    def publish(
        self, event: SessionTurnStarted | SessionTurnCompleted | ToolStarted | ToolProgress | ToolFinished
    ) -> None:
        self.runtime.bus.publish(event, session_id=self.state.calls_as or None, turn_id=self.id)


# --- Steering messages ---


class SteeringQueue:
    """The messages that wait for the next step of one turn, in the order of `steer`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: list[Message] = []
        self._closed: str | None = None

    @property
    def waiting(self) -> tuple[Message, ...]:
        """The messages that no step has taken yet."""
        return tuple(self._waiting)

    def add(self, message: Message) -> None:
        """Add a message. Raises NoTurnRunning."""
        with self._lock:
            if self._closed is not None:
                raise NoTurnRunning(self._closed)
            self._waiting.append(message)

    def take(self) -> tuple[Message, ...]:
        """Remove and return all waiting messages."""
        if not self._waiting:  # the usual case, without taking the lock
            return ()
        with self._lock:
            messages, self._waiting = tuple(self._waiting), []
            return messages

    def close(self, why: str) -> None:
        """Reject new messages: they raise NoTurnRunning with this text."""
        with self._lock:
            self._closed = self._closed or why

    def close_if_empty(self, why: str) -> bool:
        """Close the queue if it is empty, so that new messages are rejected. Return whether it is closed."""
        with self._lock:
            if not self._waiting:
                self._closed = self._closed or why
            return not self._waiting


def steering_message(content: str | Sequence[ContentBlock], message_id: str) -> Message:
    """A message of the user that steers a turn. Raises ValueError."""
    blocks = as_blocks(content)
    if all(isinstance(block, TextBlock) and not block.text.strip() for block in blocks):
        raise ValueError("a steering message can't be empty")
    return Message(Role.USER, blocks, id=message_id, steers=True)


def provider_waits(reply: Message) -> bool:
    """Whether a tool of the provider has started in a reply and has no result yet.

    The provider continues when it gets the results of the host's tools. Until then it accepts no other message.
    """
    kinds = [block.kind for block in reply.content if isinstance(block, OpaqueBlock)]
    started = sum(kind.endswith("tool_use") for kind in kinds)
    return started > sum(kind.endswith("tool_result") for kind in kinds)


# --- The history ---


class TurnHistory:
    """The conversation as one turn reads it and extends it.

    A history must not refer to its turn: the reference cycle would keep a dropped session in memory until the
    garbage collector runs.
    """

    def __init__(self, runtime: Runtime, state: SessionState, turn_id: str) -> None:
        self.pending: list[Message] = []
        """The messages of the turn that have not entered the session's history yet."""
        # The number of pending messages that were stored early, for a reply that is resumed later.
        self._kept_ahead = 0
        self._runtime = runtime
        self._state = state
        self._turn_id = turn_id

    @property
    def messages(self) -> tuple[Message, ...]:
        """All messages, including pending ones."""
        return (*self._state.messages, *self.pending)

    def begin(self, new: Sequence[Message]) -> None:
        """Add the messages of the turn, each with an id. The first one has the turn's ULID."""
        question_id = _own_id(self._turn_id)
        self.pending = [
            message
            if message.id
            else msgspec.structs.replace(message, id=self._new_id() if place else question_id)
            for place, message in enumerate(new)
        ]

    def await_reply(self, messages: Sequence[Message]) -> None:
        """Add messages that enter the history together with the next reply."""
        self.pending.extend(messages)

    def add(self, message: Message) -> None:
        """Add a message. The first message with content moves all pending messages into the history."""
        self.pending.append(message)
        if message.content:
            pending, self.pending = self.pending, []
            stored_ahead, self._kept_ahead = self._kept_ahead, 0
            for place, entry in enumerate(pending):
                self._commit(entry, stored=place < stored_ahead)

    def add_results(self, results: tuple[ToolResultBlock, ...]) -> None:
        """Add the answers of tools as one message."""
        if results:
            self.add(Message(Role.TOOL, results, id=self._new_id()))

    def keep_ahead(self, accepted: bool) -> None:
        """Store the pending messages early, for a reply that is resumed later.

        If `accepted` is False, they are removed again.
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
        """Remove the messages that were stored early and did not enter the history."""
        if self._kept_ahead:
            self._kept_ahead = 0
            self._runtime.sessions.publish_setup(self._state)

    def forget_question(self, turn_id: str) -> None:
        """Remove messages that an earlier turn stored early, because its continued reply failed."""
        messages = self._state.messages
        question_id = _own_id(turn_id)
        start = next((place for place, message in enumerate(messages) if message.id == question_id), len(messages))
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
            self._runtime.cluster.streams.appended(self._turn_id, len(state.messages) - 1, message)

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
