"""The event catalogue: every event that Callboard itself publishes.

An event's topic is its tag. Fields are only ever added, with defaults; a changed meaning is a new topic. Where a
stored event needs more than a default to be read today, its class counts its `SCHEMA` up, and the trace store's
`upcast` says how the old form becomes the new one. No event of `llm.*` carries message content: content travels in
`session.message_appended`, by reference, and is persisted only if the host asks for it.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from ..values.call_settings import CallSettings
from ..values.messages import Message, RoutingDecision, SessionSetup
from ..values.usage import Cost, StopReason, TokenUsage
from .budget import BudgetLow, BudgetRefused, BudgetReserved, BudgetSettled
from .envelope import Event

# -- llm.*: one request to one (provider, model). Each attempt starts, and ends in exactly one of the other two.


class LlmCallStarted(Event, frozen=True, kw_only=True, tag="llm.call_started"):
    """An attempt is about to be sent.

    An operation other than ``chat`` has no stop reason of its own; ``end_turn`` stands for it. A call of the
    operation ``video_create`` makes a job. The job's end is a call of its own, of the operation ``video``.
    """

    provider: str
    """The adapter's name."""
    model: str
    """The model as routed, ``provider:name``."""
    requested_model: str
    """The model as the caller named it."""
    streamed: bool
    """Whether the reply is asked for as a stream."""
    reason: str = "first"
    """``first``, ``retry``, ``repair``, or ``key`` after a refused key."""
    routing: RoutingDecision | None = None
    """The way by which the call came to its model; set on a first attempt only."""
    estimated_input_tokens: int | None = None
    """Our own estimate of the input, before the provider counts."""
    priced_as: str | None = None
    """The ``provider:name`` whose published prices apply, if it is not `model`."""
    operation: str = "chat"
    """``chat``, ``embeddings``, ``image``, ``video_create`` or ``video``."""
    settings: CallSettings | None = None
    """The settings that the attempt is sent with."""
    trace_parent: str | None = None
    """The host's span around a call that belongs to no turn, as W3C writes it."""
    reserved_nano_usd: int | None = None
    """The money that budgets reserved for the attempt, in nano-USD; None if none was reserved."""
    reserved_tokens: int | None = None
    """The tokens that budgets reserved for the attempt; None if none were reserved."""
    key: str | None = None
    """The name of the key that is sent, never its value; None for the adapter's own key, which has no name."""


class LlmCallCompleted(Event, frozen=True, kw_only=True, tag="llm.call_completed"):
    """The attempt ended well, and with it the call.

    Both times begin with the call, so that waiting for a slot and earlier attempts are included.
    """

    provider: str
    """The adapter's name."""
    model: str
    """The model as routed, ``provider:name``."""
    served_model: str
    """The model that the provider says it ran, ``provider:name``."""
    stop_reason: StopReason
    """The reason why the reply ended."""
    raw_stop_reason: str | None
    """The provider's own word for the stop reason; None if it gave none."""
    usage: TokenUsage
    """The tokens of the call."""
    cost: Cost
    """The cost at the prices of the attempt's start, or the cost that the provider states."""
    latency_ms: int
    """Milliseconds from the beginning of the call to its end."""
    first_token_ms: int | None = None
    """Milliseconds from the beginning of the call to its first content."""
    response_id: str | None = None
    """The provider's identifier of the response."""
    provider_request_id: str | None = None
    """The provider's identifier of the request, for its support."""
    warnings: tuple[str, ...] = ()
    """The codes of the call's `CallWarning` values."""
    resent: bool = False
    """Whether the attempt's request was sent twice, see `AttemptResent`."""


class LlmCallFailed(Event, frozen=True, kw_only=True, tag="llm.call_failed"):
    """The attempt failed or was cancelled."""

    provider: str
    """The adapter's name."""
    model: str
    """The model as routed, ``provider:name``."""
    error_class: str
    """A value of `ErrorClass`."""
    error_type: str
    """The name of the exception's class."""
    message: str
    """The exception's text, at most 2000 characters."""
    will_retry: bool
    """Whether another attempt follows, after `delay_seconds`."""
    retry_count: int
    """The number of retries before this attempt."""
    delay_seconds: float = 0.0
    """The wait until the next attempt, in seconds."""
    provider_status: int | None = None
    """The HTTP status; None if there was none."""
    provider_code: str | None = None
    """The provider's own code for the error."""
    provider_request_id: str | None = None
    """The provider's identifier of the request, for its support."""
    retry_after_seconds: float | None = None
    """The provider's hint how long to wait, in seconds."""
    usage: TokenUsage | None = None
    """The tokens that were used before the failure; None if they are not known."""
    cost: Cost | None = None
    """The cost of those tokens; None if it is not known."""
    latency_ms: int = 0
    """Milliseconds from the beginning of the call to its end."""
    first_token_ms: int | None = None
    """Milliseconds from the beginning of the call to its first content."""
    resent: bool = False
    """Whether the attempt's request was sent twice, see `AttemptResent`."""
    key: str | None = None
    """The name of the key that was sent, see `LlmCallStarted`."""


# -- actor.*: the life of actors under their supervisors.


class ActorStarted(Event, frozen=True, kw_only=True, tag="actor.started"):
    """An actor is up."""

    actor: str
    """The actor's name in the tree of supervision."""


class ActorCrashed(Event, frozen=True, kw_only=True, tag="actor.crashed"):
    """An actor has crashed, or has failed to start."""

    actor: str
    """The actor's name in the tree of supervision."""
    error: str
    """The type and the text of the exception that it raised."""
    failures: int
    """The number of failures in a row, without healthy uptime between them."""


class ActorRestarted(Event, frozen=True, kw_only=True, tag="actor.restarted"):
    """An actor is up again after a failure."""

    actor: str
    """The actor's name in the tree of supervision."""
    restarts: int
    """The number of restarts, this one included."""


class ActorStopped(Event, frozen=True, kw_only=True, tag="actor.stopped"):
    """An actor has ended, and will not be restarted."""

    actor: str
    """The actor's name in the tree of supervision."""
    reason: str
    """The reason why it ended, in words."""


class ActorEscalated(Event, frozen=True, kw_only=True, tag="actor.escalated"):
    """The supervisor gave up on an actor and handed the failure to its own parent."""

    actor: str
    """The actor's name in the tree of supervision."""
    reason: str
    """The reason why the supervisor gave up, in words."""


# -- provider.*


class ProviderAvailabilityChanged(Event, frozen=True, kw_only=True, tag="provider.availability_changed"):
    """The availability of a provider, or of one of its models, has changed; see `engine.availability`."""

    provider: str
    """The adapter's name."""
    model: str | None
    """The model, ``provider:name``; None for the provider as a whole."""
    previous: str
    """The state before: ``available``, ``degraded``, ``unavailable`` or ``probing``."""
    current: str
    """The state from now on, one of the same words."""
    reason: str
    """The reason for the change, in words."""
    retry_at_us: int | None = None
    """The time at which the next try is allowed, in microseconds since the epoch."""


# -- config.*


class ConfigReloaded(Event, frozen=True, kw_only=True, tag="config.reloaded"):
    """The configuration was read again; the fields list the differences."""

    source: str
    """The file that was read, or the other source of the configuration."""
    adapters_added: tuple[str, ...] = ()
    """The names of adapters that are new."""
    adapters_removed: tuple[str, ...] = ()
    """The names of adapters that are gone."""
    adapters_changed: tuple[str, ...] = ()
    """The names of adapters with other settings."""
    models_added: tuple[str, ...] = ()
    """The ids of models that are new."""
    models_removed: tuple[str, ...] = ()
    """The ids of models that are gone."""
    models_changed: tuple[str, ...] = ()
    """The ids of models with other settings."""


# -- session.*


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


TurnStatus: TypeAlias = Literal["completed", "awaiting_tools", "max_tool_rounds", "stopped", "cancelled", "failed"]
"""How a turn ended. ``completed``: with a reply. ``awaiting_tools``: with calls that its caller answers.
``max_tool_rounds``: with calls that were not run, as there were so many rounds already. ``stopped``: after tools,
by `stop_when`. ``cancelled``: by somebody. ``failed``: with an error.
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
    message: Message
    """The message, by reference."""


# -- tool.*


class ToolStarted(Event, frozen=True, kw_only=True, tag="tool.started"):
    """A tool is about to run, or its call is about to be refused."""

    tool_use_id: str
    """The id of the call in the message."""
    tool_name: str
    """The tool's name."""


class ToolProgress(Event, frozen=True, kw_only=True, tag="tool.progress"):
    """A running tool reports its progress.

    The report is in the tool's own words and may quote content. So the trace store keeps the event without its
    message.
    """

    tool_use_id: str
    """The id of the call in the message."""
    tool_name: str
    """The tool's name."""
    message: str | None = None
    """The tool's own words."""
    fraction: float | None = None
    """The part of the work that is done, from 0 to 1; None if the tool can't tell."""


class ToolFinished(Event, frozen=True, kw_only=True, tag="tool.finished"):
    """A tool has answered, or was given up."""

    tool_use_id: str
    """The id of the call in the message."""
    tool_name: str
    """The tool's name."""
    is_error: bool
    """Whether the tool failed, was refused, or took too long."""
    latency_ms: int
    """Milliseconds that the tool ran, without waiting for an approval."""


# -- job.*: what a provider works on for minutes. `job_id` is the provider's; with it anybody can come back to it.


class JobCreated(Event, frozen=True, kw_only=True, tag="job.created"):
    """A provider has accepted a job."""

    job_id: str
    """The provider's identifier of the job."""
    kind: str
    """The kind of the job, ``video``."""
    provider: str
    """The adapter's name."""
    model: str
    """The model as routed, ``provider:name``."""
    status: str
    """The status as the provider gave it, mostly ``queued``."""
    seconds: int | None = None
    """The length of the result in seconds, if it is known."""
    size: str | None = None
    """The size of the result, if it is known."""
    audio: bool | None = None
    """Whether the result has sound, if that is known."""
    key: str | None = None
    """The name of the key that the job was created with; None for the adapter's own key."""


class JobProgress(Event, frozen=True, kw_only=True, tag="job.progress"):
    """A job's status or its progress was seen to change."""

    job_id: str
    """The provider's identifier of the job."""
    kind: str
    """The kind of the job, ``video``."""
    provider: str
    """The adapter's name."""
    model: str
    """The model as routed, ``provider:name``."""
    status: str
    """``queued``, ``in_progress``, ``completed``, ``failed`` or ``cancelled``."""
    progress: float | None = None
    """The part of the work that is done, from 0 to 1; None if nobody says."""


class JobCompleted(Event, frozen=True, kw_only=True, tag="job.completed"):
    """The result of a job can be downloaded."""

    job_id: str
    """The provider's identifier of the job."""
    kind: str
    """The kind of the job, ``video``."""
    provider: str
    """The adapter's name."""
    model: str
    """The model as routed, ``provider:name``."""
    cost_nano_usd: int | None = None
    """The job's cost in nano-USD, counted with a call of the operation ``video``; None if it is unknown."""
    expires_at: int | None = None
    """The end of the time for downloading, in seconds since the epoch, if it is known."""


class JobFailed(Event, frozen=True, kw_only=True, tag="job.failed"):
    """A job ended without a result."""

    job_id: str
    """The provider's identifier of the job."""
    kind: str
    """The kind of the job, ``video``."""
    provider: str
    """The adapter's name."""
    model: str
    """The model as routed, ``provider:name``."""
    status: str
    """``failed`` or ``cancelled``."""
    error_type: str
    """The class of the error that says why."""
    message: str
    """The text of that error."""


# -- pricing.*, store.*


class PricingTableLoaded(Event, frozen=True, kw_only=True, tag="pricing.table_loaded"):
    """A price table is in use."""

    pricing_version: str
    """The table's version: 12 hex digits of its hash."""
    label: str
    """The table's name, for people."""
    rows: int
    """The number of rows in the table."""


class PricingRepriced(Event, frozen=True, kw_only=True, tag="pricing.repriced"):
    """Stored calls have other costs from now on.

    Both sums are over the calls that have a cost before and after.
    """

    pricing_version: str
    """The version of the price table that gave the new costs."""
    calls: int
    """The number of calls that the repricing was about."""
    unpriced: int
    """The number of these calls without a price in this version."""
    sum_before_nano_usd: int
    """The sum of the old costs, in nano-USD."""
    sum_after_nano_usd: int
    """The sum of the new costs, in nano-USD."""
    estimated: int = 0
    """The number of these calls with usage that was estimated."""
    unknown: int = 0
    """The number of further calls of which not even the usage is known."""


class StoreStateChanged(Event, frozen=True, kw_only=True, tag="store.state_changed"):
    """The state of the trace's writer has changed.

    ``ok``: the writer writes. ``retrying``: the store fails, and events wait in memory. ``spilling``: events go to
    a file beside the store. ``dropping``: there is no room for them in that file either.
    """

    previous: Literal["ok", "retrying", "spilling", "dropping"]
    """The state before."""
    current: Literal["ok", "retrying", "spilling", "dropping"]
    """The state from now on."""
    reason: str
    """The text of the last failure."""
    lost: int = 0
    """The number of events so far that nobody has any more."""


CatalogueEvent: TypeAlias = (
    LlmCallStarted
    | LlmCallCompleted
    | LlmCallFailed
    | ActorStarted
    | ActorCrashed
    | ActorRestarted
    | ActorStopped
    | ActorEscalated
    | ProviderAvailabilityChanged
    | ConfigReloaded
    | SessionCreated
    | SessionConfigured
    | SessionModelChanged
    | SessionRenamed
    | SessionTurnStarted
    | SessionTurnCompleted
    | SessionMessageAppended
    | ToolStarted
    | ToolProgress
    | ToolFinished
    | JobCreated
    | JobProgress
    | JobCompleted
    | JobFailed
    | PricingTableLoaded
    | PricingRepriced
    | BudgetReserved
    | BudgetSettled
    | BudgetRefused
    | BudgetLow
    | StoreStateChanged
)
"""Every event of the bus that Callboard itself publishes."""
