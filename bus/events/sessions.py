"""`session.*`: the life of a session, of its turns and of its messages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol, TypeAlias

import msgspec

from ..values.content import ToolResultBlock
from ..values.messages import Message, SessionSetup
from ..values.usage import Cost, StopReason, TokenUsage
from .envelope import Event


class SessionCreated(Event, frozen=True, kw_only=True, tag="session.created"):
    """A session exists."""

    model: str
    """The model as it was asked for, in words."""
    tags: dict[str, str] = msgspec.field(default_factory=dict)
    """The tags that the session's calls carry."""
    name: str | None = None
    """The session's name, for people."""
    forked_from: str | None = None
    """The id of the session whose history this one begins with."""


class SessionRenamed(Event, frozen=True, kw_only=True, tag="session.renamed"):
    """A session has another name."""

    name: str
    """The new name, for people."""


class SessionConfigured(Event, frozen=True, kw_only=True, tag="session.configured"):
    """A session's setup has changed. The event is published only where content is captured."""

    history: int
    """The number of messages that the session has by now."""
    begins: bool = False
    """Whether the session is new, and not the one that may be stored under its id."""
    epoch: int = 0
    """In a cluster, the number of times that the session was claimed until now; 0 outside of one."""
    setup: SessionSetup | None = None
    """The setup from now on, by reference, for the store; None in an event that was stored."""


class SessionModelChanged(Event, frozen=True, kw_only=True, tag="session.model_changed"):
    """A session's next turn goes to another model."""

    previous: str
    """The former model as it was given, in words."""
    current: str
    """The new model as it was given, in words."""


class SessionTurnStarted(Event, frozen=True, kw_only=True, tag="session.turn_started"):
    """A turn begins. Its id is in the envelope."""

    model: str
    """The model as it was asked for."""
    trace_parent: str | None = None
    """The host's span around the turn, as W3C writes it."""


TurnStatus: TypeAlias = Literal[
    "completed", "awaiting_tools", "max_tool_rounds", "stopped", "cancelled", "failed", "outcome_unknown"
]
"""How a turn ended. ``completed``: with a reply. ``awaiting_tools``: with calls that its caller answers.
``max_tool_rounds``: with calls that were not run, as there were so many rounds already. ``stopped``: after tools,
by `stop_when`. ``cancelled``: by somebody. ``failed``: with an error. ``outcome_unknown``: in a cluster, the node
that ran it died or lost the session meanwhile, and nobody knows how far its last call came.
"""


class SessionTurnCompleted(Event, frozen=True, kw_only=True, tag="session.turn_completed"):
    """A turn has ended."""

    status: TurnStatus
    """The way it ended, as `TurnStatus` lists them."""
    calls: int
    """The number of calls to models, failed ones included."""
    cost_nano_usd: int | None = None
    """The cost of all these calls, in nano-USD; None as soon as one cost is unknown."""
    error: str | None = None
    """The type and the text of the exception that a failed or cancelled turn raised."""
    attempts: int = 0
    """The number of attempts of these calls."""
    known_nano_usd: int = 0
    """The cost of the attempts whose cost is known, in nano-USD."""
    estimated: int = 0
    """The number of attempts whose usage was estimated, as in `CostSum`."""
    unpriced: int = 0
    """The number of attempts with usage and without a cost, as in `CostSum`."""
    unknown: int = 0
    """The number of attempts of which not even the usage is known, as in `CostSum`."""


class SessionMessageAppended(Event, frozen=True, kw_only=True, tag="session.message_appended"):
    """A session's history has one message more.

    The message's content leaves the process only where the host asks for it: into the trace with
    `capture_content`, and with the spans of OpenTelemetry.
    """

    position: int
    """The message's place in the history, from 0."""
    epoch: int = 0
    """As in `SessionConfigured`."""
    message: Message
    """The message, by reference."""


# The part of a turn that an error shows when it has ended that turn.


class StepSoFar(Protocol):
    """One reply of the model, with the answers of its tools. It is an `engine.StepResult`."""

    @property
    def message(self) -> Message:
        """The reply as it stands in the history."""

    @property
    def tool_results(self) -> tuple[ToolResultBlock, ...]:
        """The answers of the tools in the order of their calls."""

    @property
    def stop_reason(self) -> StopReason:
        """The reason why the reply ended."""

    @property
    def usage(self) -> TokenUsage:
        """The tokens of the reply."""

    @property
    def cost(self) -> Cost:
        """The cost of the reply."""


class TurnSoFar(Protocol):
    """A turn that has ended in an error."""

    @property
    def id(self) -> str:
        """The turn's id, ``trn_<ulid>``."""

    @property
    def status(self) -> TurnStatus:
        """The way the turn ended: ``failed`` or ``cancelled``."""

    @property
    def steps(self) -> Sequence[StepSoFar]:
        """The replies that ended before the error."""

    @property
    def messages(self) -> tuple[Message, ...]:
        """The conversation, with everything that the turn added."""

    @property
    def undelivered(self) -> tuple[Message, ...]:
        """The messages that were to steer the turn, and are not in the history."""

    @property
    def cost(self) -> Cost:
        """The cost of the turn's calls, failed ones included; unknown as soon as one cost is."""
