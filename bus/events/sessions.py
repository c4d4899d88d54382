"""Events of sessions, their turns and their messages: `session.*`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol, TypeAlias

import msgspec

from ..values.content import ToolResultBlock
from ..values.messages import Message, SessionSetup
from ..values.usage import Cost, StopReason, TokenUsage
from . import Event


class SessionCreated(Event, frozen=True, kw_only=True, tag="session.created"):
    """A session was created."""

    model: str
    """The model as requested, as text."""
    tags: dict[str, str] = msgspec.field(default_factory=dict)
    """The tags of the session's calls."""
    name: str | None = None
    """The session's name, for people."""
    forked_from: str | None = None
    """The id of the session that this one was forked from."""


class SessionRenamed(Event, frozen=True, kw_only=True, tag="session.renamed"):
    """A session has another name."""

    name: str
    """The new name, for people."""


class SessionConfigured(Event, frozen=True, kw_only=True, tag="session.configured"):
    """A session's setup has changed. The event is published only if content is captured."""

    history: int
    """The number of messages in the session."""
    begins: bool = False
    """Whether the session is new. It then replaces any session stored under the same id."""
    epoch: int = 0
    """The number of claims of the session so far; 0 outside of a cluster."""
    setup: SessionSetup | None = None
    """The new setup, by reference, for the store; None in an event that was stored."""


class SessionModelChanged(Event, frozen=True, kw_only=True, tag="session.model_changed"):
    """A session's model was changed. The next turn uses it."""

    previous: str
    """The former model as requested, as text."""
    current: str
    """The new model as requested, as text."""


class SessionTurnStarted(Event, frozen=True, kw_only=True, tag="session.turn_started"):
    """A turn has started. Its id is in the envelope."""

    model: str
    """The model as requested."""
    trace_parent: str | None = None
    """The host's span around the turn, in the traceparent format of W3C."""
    parent_call_id: str | None = None
    """The request whose reply called the tool that made this turn; None outside of a tool's run."""
    parent_tool_use_id: str | None = None
    """The id of that tool's call in the reply."""
    parent_turn_id: str | None = None
    """The turn that ran the tool."""
    root_turn_id: str | None = None
    """The turn at the root of the tree of turns. None for the root's own calls."""
    depth: int | None = None
    """The number of turns above the turn; None outside of a tool's run."""


TurnStatus: TypeAlias = Literal[
    "completed", "awaiting_tools", "max_tool_rounds", "stopped", "cancelled", "failed", "outcome_unknown"
]
"""How a turn ended. ``completed``: with a reply. ``awaiting_tools``: with tool calls for the caller.
``max_tool_rounds``: with calls that were not run, because of the limit on rounds. ``stopped``: after tools, by
`stop_when`. ``cancelled``: by request. ``failed``: with an error. ``outcome_unknown``: in a cluster, the node that
ran it died or lost the session, so the outcome of its last call is unknown.
"""


class SessionTurnCompleted(Event, frozen=True, kw_only=True, tag="session.turn_completed"):
    """A turn has ended."""

    status: TurnStatus
    """How the turn ended, as `TurnStatus` lists the values."""
    calls: int
    """The number of calls to models, failed ones included."""
    cost_nano_usd: int | None = None
    """The cost of all calls of the turn, in nano-USD; None if any cost is unknown."""
    error: str | None = None
    """The type and the text of the exception that a failed or cancelled turn raised."""
    attempts: int = 0
    """The number of attempts of the turn's calls."""
    known_nano_usd: int = 0
    """The sum of the known costs of the attempts, in nano-USD."""
    estimated: int = 0
    """The number of attempts with estimated usage, as in `CostSum`."""
    unpriced: int = 0
    """The number of attempts with usage and without a cost, as in `CostSum`."""
    unknown: int = 0
    """The number of attempts with unknown usage, as in `CostSum`."""


class SessionMessageAppended(Event, frozen=True, kw_only=True, tag="session.message_appended"):
    """A message was added to a session's history.

    The content leaves the process only if the host enables this: with `capture_content` for the trace, or for the
    spans of OpenTelemetry.
    """

    position: int
    """The message's place in the history, from 0."""
    epoch: int = 0
    """The number of claims of the session so far; 0 outside of a cluster."""
    message: Message
    """The message, by reference."""


# --- The turn of an error ---


class StepSoFar(Protocol):
    """One reply of the model, with the answers of its tools. Its class is `engine.StepResult`."""

    @property
    def message(self) -> Message:
        """The reply as in the history."""

    @property
    def tool_results(self) -> tuple[ToolResultBlock, ...]:
        """The answers of the tools in the order of their calls."""

    @property
    def stop_reason(self) -> StopReason:
        """How the reply ended."""

    @property
    def usage(self) -> TokenUsage:
        """The tokens of the reply."""

    @property
    def cost(self) -> Cost:
        """The cost of the reply."""


class TurnSoFar(Protocol):
    """A turn that ended in an error."""

    @property
    def id(self) -> str:
        """The turn's id, ``trn_<ulid>``."""

    @property
    def status(self) -> TurnStatus:
        """How the turn ended: ``failed`` or ``cancelled``."""

    @property
    def steps(self) -> Sequence[StepSoFar]:
        """The replies that were complete before the error."""

    @property
    def messages(self) -> tuple[Message, ...]:
        """The conversation, including all messages that the turn added."""

    @property
    def undelivered(self) -> tuple[Message, ...]:
        """The steering messages that are not in the history."""

    @property
    def cost(self) -> Cost:
        """The cost of the turn's calls, failed ones included; unknown if any cost is unknown."""
