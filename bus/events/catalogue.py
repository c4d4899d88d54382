"""The event catalogue, and the envelope in which events travel.

An event's topic is its tag. Fields are only ever added, with defaults; a changed meaning is a new topic. Where a
stored event needs more than a default to be read today, its class counts its `SCHEMA` up, and the trace store's
`upcast` says how the old form becomes the new one. No event of `llm.*` carries message content: content travels in
`session.message_appended`, by reference, and is persisted only if the host asks for it.
"""

from __future__ import annotations

from typing import ClassVar, Literal, TypeAlias

import msgspec

from ..call_settings import CallSettings
from ..values.messages import Message, RoutingDecision, SessionSetup
from ..values.usage import Cost, StopReason, TokenUsage


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """Base of all events. Subclass with ``tag="<topic>"`` to publish your own."""

    SCHEMA: ClassVar[int] = 1
    """The form of the fields; stored with the event if it isn't 1."""

    @classmethod
    def topic_of(cls) -> str:
        """The topic that this type of event is published under. Raises TypeError if it has none."""
        tag = cls.__struct_config__.tag
        if not isinstance(tag, str):
            raise TypeError(f"{cls.__name__} has no topic: declare it with tag='...'")
        return tag

    @property
    def type(self) -> str:
        """The topic, under the name that stream events have for theirs."""
        return self.topic_of()


# -- llm.*: one request to one (provider, model). Each attempt starts, and ends in exactly one of the other two.


class LlmCallStarted(Event, frozen=True, kw_only=True, tag="llm.call_started"):
    """An attempt is about to be sent.

    provider: the adapter's name. model: ``provider:name`` as routed. requested_model: as the caller named it.
    reason: ``first``, ``retry`` or ``repair``. routing: how it came to its model; of a first attempt only.
    estimated_input_tokens: our estimate, before the provider counts. priced_as: the ``provider:name`` whose
    published prices it has, where that is another.
    operation: ``chat``, or ``embeddings``, ``image``, ``video_create`` or ``video``, whose ends have no stop
    reason of their own (``end_turn`` stands for it). A ``video_create`` makes a job, and the job's end is a
    ``video`` of its own.
    settings: what it was sent with. trace_parent: the host's span around a call that belongs to no turn, as W3C
    writes it.
    """

    provider: str
    model: str
    requested_model: str
    streamed: bool
    reason: str = "first"
    routing: RoutingDecision | None = None
    estimated_input_tokens: int | None = None
    priced_as: str | None = None
    operation: str = "chat"
    settings: CallSettings | None = None
    trace_parent: str | None = None


class LlmCallCompleted(Event, frozen=True, kw_only=True, tag="llm.call_completed"):
    """The attempt, and with it the call, ended well.

    model: ``provider:name`` as routed. served_model: ``provider:name`` of the one that the provider says it ran.
    usage: of the call. cost: at the prices of the attempt's start, or what the provider says. first_token_ms,
    latency_ms: milliseconds from the call's begin to its first content and to its end; waiting for a slot and
    earlier attempts are in them. response_id, provider_request_id: the provider's, for its support. warnings: the
    codes of `CallWarning`. resent: the attempt's request was sent twice, see `AttemptResent`.
    """

    provider: str
    model: str
    served_model: str
    stop_reason: StopReason
    raw_stop_reason: str | None
    usage: TokenUsage
    cost: Cost
    latency_ms: int
    first_token_ms: int | None = None
    response_id: str | None = None
    provider_request_id: str | None = None
    warnings: tuple[str, ...] = ()
    resent: bool = False


class LlmCallFailed(Event, frozen=True, kw_only=True, tag="llm.call_failed"):
    """The attempt failed or was cancelled; with `will_retry` another attempt follows after `delay_seconds`.

    error_class: a value of `ErrorClass`. error_type: the exception's class. message: its text, at most 2000
    characters. retry_count: retries before this attempt. provider_status: the HTTP status. provider_code: the
    provider's own code. retry_after_seconds: its hint. usage, cost: what had been used all the same; None if that
    is not known. first_token_ms, latency_ms, resent: as in `LlmCallCompleted`.
    """

    provider: str
    model: str
    error_class: str
    error_type: str
    message: str
    will_retry: bool
    retry_count: int
    delay_seconds: float = 0.0
    provider_status: int | None = None
    provider_code: str | None = None
    provider_request_id: str | None = None
    retry_after_seconds: float | None = None
    usage: TokenUsage | None = None
    cost: Cost | None = None
    latency_ms: int = 0
    first_token_ms: int | None = None
    resent: bool = False


# -- actor.*: the life of actors under their supervisors.


class ActorStarted(Event, frozen=True, kw_only=True, tag="actor.started"):
    """An actor is up. actor: its name in the tree of supervision."""

    actor: str


class ActorCrashed(Event, frozen=True, kw_only=True, tag="actor.crashed"):
    """An actor has crashed, or failed to start. actor: its name. error: type and text of what it raised.

    failures: how many in a row, without healthy uptime between them.
    """

    actor: str
    error: str
    failures: int


class ActorRestarted(Event, frozen=True, kw_only=True, tag="actor.restarted"):
    """An actor is up again after a failure. restarts: how many, this one included."""

    actor: str
    restarts: int


class ActorStopped(Event, frozen=True, kw_only=True, tag="actor.stopped"):
    """An actor has ended, and is not about to be restarted. reason: why, in words."""

    actor: str
    reason: str


class ActorEscalated(Event, frozen=True, kw_only=True, tag="actor.escalated"):
    """The supervisor gave up on an actor and handed the failure to its parent. reason: why, in words."""

    actor: str
    reason: str


# -- provider.*


class ProviderAvailabilityChanged(Event, frozen=True, kw_only=True, tag="provider.availability_changed"):
    """Whether a provider, or one of its models, is called has changed; see `engine.availability`.

    model: ``provider:name``; None for the provider as a whole. previous, current: ``available``, ``degraded``,
    ``unavailable`` or ``probing``. reason: why, in words. retry_at_us: when it may be tried again, in microseconds
    since the epoch.
    """

    provider: str
    model: str | None
    previous: str
    current: str
    reason: str
    retry_at_us: int | None = None


# -- config.*


class ConfigReloaded(Event, frozen=True, kw_only=True, tag="config.reloaded"):
    """The configuration was read anew, and this is what differs. source: the file, or where else it came from.

    adapters_added, adapters_removed, adapters_changed: names.
    models_added, models_removed, models_changed: ids.
    """

    source: str
    adapters_added: tuple[str, ...] = ()
    adapters_removed: tuple[str, ...] = ()
    adapters_changed: tuple[str, ...] = ()
    models_added: tuple[str, ...] = ()
    models_removed: tuple[str, ...] = ()
    models_changed: tuple[str, ...] = ()


# -- session.*


class SessionCreated(Event, frozen=True, kw_only=True, tag="session.created"):
    """A session exists. model: as it was asked for, in words. tags: what its calls carry. name: for people.

    forked_from: the session whose history it begins with.
    """

    model: str
    tags: dict[str, str] = msgspec.field(default_factory=dict)
    name: str | None = None
    forked_from: str | None = None


class SessionRenamed(Event, frozen=True, kw_only=True, tag="session.renamed"):
    """A session has another name, for people."""

    name: str


class SessionConfigured(Event, frozen=True, kw_only=True, tag="session.configured"):
    """What a session is made of, from now on; published only where content is captured.

    history: how many messages it has by now. setup: by reference, for the store; None in an event that was stored.
    begins: it is a new session, and not the one that may be stored under its id.
    """

    history: int
    begins: bool = False
    setup: SessionSetup | None = None


class SessionModelChanged(Event, frozen=True, kw_only=True, tag="session.model_changed"):
    """A session's next turn goes to another model. previous, current: as they were given, in words."""

    previous: str
    current: str


class SessionTurnStarted(Event, frozen=True, kw_only=True, tag="session.turn_started"):
    """A turn begins; its id is the envelope's. model: as it was asked for.

    trace_parent: the host's span around it, as W3C writes it.
    """

    model: str
    trace_parent: str | None = None


TurnStatus: TypeAlias = Literal["completed", "awaiting_tools", "max_tool_rounds", "stopped", "cancelled", "failed"]
"""How a turn ended. ``completed``: with a reply. ``awaiting_tools``: with calls that its caller answers.
``max_tool_rounds``: with calls that were not run, as there were so many rounds already. ``stopped``: after tools,
by `stop_when`. ``cancelled``: by somebody. ``failed``: with an error.
"""


class SessionTurnCompleted(Event, frozen=True, kw_only=True, tag="session.turn_completed"):
    """A turn has ended. status: as `TurnStatus` lists them.

    calls: of models, failed ones included. cost_nano_usd: of all of them; None as soon as one is unknown.
    error: type and text of what a failed or cancelled turn raised. attempts: of those calls. known_nano_usd: over
    the attempts whose cost is known. estimated, unpriced, unknown: how many attempts are so, as in `CostSum`.
    """

    status: TurnStatus
    calls: int
    cost_nano_usd: int | None = None
    error: str | None = None
    attempts: int = 0
    known_nano_usd: int = 0
    estimated: int = 0
    unpriced: int = 0
    unknown: int = 0


class SessionMessageAppended(Event, frozen=True, kw_only=True, tag="session.message_appended"):
    """A session's history has one message more. position: in the history, from 0.

    message: by reference. Its content leaves the process only where that is asked for: into the trace with
    `capture_content`, and with OpenTelemetry's spans.
    """

    position: int
    message: Message


# -- tool.*


class ToolStarted(Event, frozen=True, kw_only=True, tag="tool.started"):
    """A tool is about to run, or its call to be refused. tool_use_id: that of the call in the message."""

    tool_use_id: str
    tool_name: str


class ToolProgress(Event, frozen=True, kw_only=True, tag="tool.progress"):
    """What a tool that runs says of itself. fraction: how far it is, from 0 to 1; None if it can't tell.

    The message is the tool's own words and may quote content: the trace store keeps the event without it.
    """

    tool_use_id: str
    tool_name: str
    message: str | None = None
    fraction: float | None = None


class ToolFinished(Event, frozen=True, kw_only=True, tag="tool.finished"):
    """A tool has answered, or was given up. is_error: it failed, was refused, or took too long.

    latency_ms: milliseconds that it ran; waiting for an approval is not in them.
    """

    tool_use_id: str
    tool_name: str
    is_error: bool
    latency_ms: int


# -- job.*: what a provider works on for minutes. `job_id` is the provider's; with it anybody can come back to it.


class JobCreated(Event, frozen=True, kw_only=True, tag="job.created"):
    """A provider has taken on a job. job_id: the provider's. kind: ``video``. model: ``provider:name`` as routed.

    status: as the provider gave it, ``queued`` mostly. seconds, size, audio: of what it makes, as far as is known.
    """

    job_id: str
    kind: str
    provider: str
    model: str
    status: str
    seconds: int | None = None
    size: str | None = None
    audio: bool | None = None


class JobProgress(Event, frozen=True, kw_only=True, tag="job.progress"):
    """A job's status or its progress has changed, as we saw it. progress: from 0 to 1; None if nobody says.

    status: ``queued``, ``in_progress``, ``completed``, ``failed`` or ``cancelled``.
    """

    job_id: str
    kind: str
    provider: str
    model: str
    status: str
    progress: float | None = None


class JobCompleted(Event, frozen=True, kw_only=True, tag="job.completed"):
    """What a job made can be downloaded. expires_at: until when, in seconds since the epoch, if that is known.

    cost_nano_usd: what it cost, counted with a call of the operation ``video``; None if it is unknown.
    """

    job_id: str
    kind: str
    provider: str
    model: str
    cost_nano_usd: int | None = None
    expires_at: int | None = None


class JobFailed(Event, frozen=True, kw_only=True, tag="job.failed"):
    """A job ended without a result. status: ``failed`` or ``cancelled``.

    error_type, message: class and text of the error that says why.
    """

    job_id: str
    kind: str
    provider: str
    model: str
    status: str
    error_type: str
    message: str


# -- pricing.*, store.*


class PricingTableLoaded(Event, frozen=True, kw_only=True, tag="pricing.table_loaded"):
    """A price table is in use. pricing_version: 12 hex digits of its hash. label: for people. rows: how many."""

    pricing_version: str
    label: str
    rows: int


class PricingRepriced(Event, frozen=True, kw_only=True, tag="pricing.repriced"):
    """Stored calls have other costs from now on. pricing_version: the price table's that gave them.

    calls: all that it was about. unpriced: those of them without a price in this version. estimated: those of them
    with usage that was estimated. unknown: calls beside them of which not even the usage is known.
    sum_before_nano_usd, sum_after_nano_usd: over the calls that have a cost before and after.
    """

    pricing_version: str
    calls: int
    unpriced: int
    sum_before_nano_usd: int
    sum_after_nano_usd: int
    estimated: int = 0
    unknown: int = 0


class StoreStateChanged(Event, frozen=True, kw_only=True, tag="store.state_changed"):
    """How the trace's writer stands. ``ok``: it writes. ``retrying``: the store fails, events wait in memory.
    ``spilling``: they go to a file beside it. ``dropping``: there is no room for them either.

    previous, current: these words. reason: of the last failure. lost: events that nobody has any more, so far.
    """

    previous: Literal["ok", "retrying", "spilling", "dropping"]
    current: Literal["ok", "retrying", "spilling", "dropping"]
    reason: str
    lost: int = 0


class UnknownEvent(Event, frozen=True, kw_only=True, tag="unknown"):
    """A stored event of a topic that this version doesn't know. topic: its own. raw: its JSON, as stored."""

    topic: str
    raw: msgspec.Raw


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
    | StoreStateChanged
)
"""Every event of the bus that Callboard itself publishes."""


class Envelope(msgspec.Struct, frozen=True):
    """An event on its way: where it stands in the order, when it happened, and what it belongs to.

    seq: gapless per bus, from 1. run_id: of the bus. ts_us: microseconds since the epoch, UTC. mono_ns:
    nanoseconds, of which only differences mean anything. data: the event. session_id, turn_id, request_id,
    message_id: what it belongs to; None where it belongs to none. attempt: of its request, from 1.
    caused_by: the request before it: the one whose failure a fallback follows, whose tools' results a further call
    takes back, or that created the job. tags: the session's or the call's.
    """

    seq: int
    run_id: str
    ts_us: int
    mono_ns: int
    data: Event
    session_id: str | None = None
    turn_id: str | None = None
    request_id: str | None = None
    attempt: int | None = None
    message_id: str | None = None
    caused_by: str | None = None
    tags: dict[str, str] | None = None

    @property
    def topic(self) -> str:
        """What it was published under, also if the event is of a topic that this version doesn't know."""
        return self.data.topic if isinstance(self.data, UnknownEvent) else type(self.data).topic_of()

    @property
    def event_id(self) -> str:
        """Unique everywhere: the key that makes storing an event twice harmless."""
        return f"{self.run_id}-{self.seq}"
