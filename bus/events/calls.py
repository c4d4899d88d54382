"""Events of calls, tools, jobs and batches.

Each attempt of a call has one start and exactly one end: completed or failed.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Self

import msgspec

from ..values.content import ContentBlock
from ..values.messages import CallSettings, Message, RoutingDecision, ToolDefinition
from ..values.usage import Cost, StopReason, TokenUsage
from . import Event

# --- Calls: `llm.*` ---


def current_trace() -> str | None:
    """The host's current OpenTelemetry span, in the format of `trace_parent`; None if there is none."""
    # not imported here: if OpenTelemetry is not loaded, there is no current span
    trace = sys.modules.get("opentelemetry.trace")
    if trace is None:
        return None
    context = trace.get_current_span().get_span_context()
    if not context.is_valid:
        return None
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"


class _CallEvent(Event, frozen=True, kw_only=True):
    """An event of one call of a model."""

    provider: str
    """The adapter's name."""
    model: str
    """The model as routed, ``provider:name``."""


class CallContent(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The content of a request, by reference, for an observer in the same process."""

    messages: Sequence[Message]
    """The whole conversation that was sent."""
    system_prompt: str | None = None
    """The system text; None if there is none."""
    tools: Sequence[ToolDefinition] = ()
    """The tools that the model may call."""


class LlmCallStarted(_CallEvent, frozen=True, kw_only=True, dict=True, gc=True, tag="llm.call_started"):
    """An attempt is about to be sent.

    Operations other than ``chat`` always end with the stop reason ``end_turn``. ``video_create`` makes a job. The
    end of the job is a separate call with the operation ``video``. ``batch_create`` makes a batch. Each of its
    requests is a call of the operation ``batch``, published when its result is read.
    """

    requested_model: str
    """The model as the caller named it."""
    streamed: bool
    """Whether the reply is requested as a stream."""
    reason: str = "first"
    """``first``, ``retry``, ``repair``, ``key`` after a rejected key, ``taken_up`` for a resumed background reply,
    or ``continued`` after a broken stream.
    """
    routing: RoutingDecision | None = None
    """How the call was routed to its model; set on a first attempt only."""
    estimated_input_tokens: int | None = None
    """Callboard's estimate of the input, in tokens, before the provider counts."""
    priced_as: str | None = None
    """The ``provider:name`` of the prices, if it differs from `model`."""
    operation: str = "chat"
    """``chat``, ``embeddings``, ``image``, ``video_create``, ``video``, ``batch_create`` or ``batch``."""
    settings: CallSettings | None = None
    """The settings that the attempt is sent with."""
    trace_parent: str | None = None
    """The host's span around a call outside of any turn, in the traceparent format of W3C."""
    reserved_nano_usd: int | None = None
    """The money that budgets reserved for the attempt, in nano-USD; None if none was reserved."""
    reserved_tokens: int | None = None
    """The tokens that budgets reserved for the attempt; None if none were reserved."""
    key: str | None = None
    """The name of the key that is sent, never its value; None for the adapter's own key, which has no name."""
    parent_call_id: str | None = None
    """The request whose reply called the tool that made this call; None outside of a tool's run."""
    parent_tool_use_id: str | None = None
    """The id of that tool's call in the reply."""
    parent_turn_id: str | None = None
    """The turn that ran the tool."""
    root_turn_id: str | None = None
    """The turn at the root of the tree of turns. None for the root's own calls."""
    depth: int | None = None
    """The number of turns above the call's own turn; None outside of a tool's run."""

    # The content is not a field, so no codec, store or journal can write it.
    @property
    def content(self) -> CallContent | None:
        """The content of the request. None for an event that was stored, or that came from another process."""
        content: CallContent | None = self.__dict__.get("content_")
        return content

    def with_content(self, content: CallContent) -> LlmCallStarted:
        """Attach the content of the request, for observers in this process. Returns the same event."""
        self.__dict__["content_"] = content
        return self


class LlmCallAccepted(_CallEvent, frozen=True, kw_only=True, tag="llm.call_accepted"):
    """The provider has accepted the call and generates the reply in the background.

    If the process ends during the call, another process can resume the reply by its `response_id`. The call then
    has a second start event, with the same request and attempt.
    """

    response_id: str
    """The provider's identifier of the response."""


class LlmCallGuarded(_CallEvent, frozen=True, kw_only=True, tag="llm.call_guarded"):
    """A guardrail of the host changed or stopped a piece of the reply.

    The event contains neither the text of the piece nor its replacement.
    """

    guardrail: str
    """The guardrail's name."""
    action: str
    """``changed``, or ``stopped`` if the guardrail ended the reply."""
    content_block_index: int
    """The place of the block in the reply, from 0."""
    held_characters: int
    """The length of the piece in characters."""
    passed_characters: int
    """The length of the replacement in characters."""
    reason: str = ""
    """The reason of a stop, in the guardrail's words."""


class _EndOfCall(_CallEvent, frozen=True, kw_only=True, dict=True, gc=True):
    """The end of an attempt, with the reply for observers in this process."""

    @property
    def reply(self) -> Sequence[ContentBlock] | None:
        """The content of the reply, or the part that arrived. None for an event that was stored, or that came from
        another process."""
        reply: Sequence[ContentBlock] | None = self.__dict__.get("reply_")
        return reply

    def with_reply(self, reply: Sequence[ContentBlock]) -> Self:
        """Attach the content of the reply, for observers in this process. Returns the same event."""
        self.__dict__["reply_"] = reply
        return self


class LlmCallCompleted(_EndOfCall, frozen=True, kw_only=True, dict=True, gc=True, tag="llm.call_completed"):
    """The attempt and its call succeeded.

    `latency_ms` and `first_token_ms` are measured from the start of the call, so they include earlier attempts and
    the wait for a slot.
    """

    served_model: str
    """The model that the provider reports, ``provider:name``."""
    stop_reason: StopReason
    """How the reply ended."""
    raw_stop_reason: str | None
    """The provider's own word for the stop reason; None if it gave none."""
    usage: TokenUsage
    """The tokens of the call."""
    cost: Cost
    """The cost at the prices of the attempt's start, or the cost that the provider states."""
    latency_ms: int
    """Milliseconds from the start of the call to its end."""
    first_token_ms: int | None = None
    """Milliseconds from the start of the call to its first content."""
    response_id: str | None = None
    """The provider's identifier of the response."""
    provider_request_id: str | None = None
    """The provider's identifier of the request, to report to its support."""
    warnings: tuple[str, ...] = ()
    """The codes of the call's `CallWarning` values."""
    resent: bool = False
    """Whether the attempt's request was sent twice, see `AttemptResent`."""


class LlmCallFailed(_EndOfCall, frozen=True, kw_only=True, dict=True, gc=True, tag="llm.call_failed"):
    """The attempt failed or was cancelled."""

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
    """The provider's identifier of the request, to report to its support."""
    retry_after_seconds: float | None = None
    """The wait that the provider asks for, in seconds."""
    usage: TokenUsage | None = None
    """The tokens used before the failure; None if unknown."""
    cost: Cost | None = None
    """The cost of the tokens used before the failure; None if unknown."""
    latency_ms: int = 0
    """Milliseconds from the start of the call to its end."""
    first_token_ms: int | None = None
    """Milliseconds from the start of the call to its first content."""
    resent: bool = False
    """Whether the attempt's request was sent twice, see `AttemptResent`."""
    key: str | None = None
    """The name of the key that was sent, see `LlmCallStarted`."""
    of_batch: bool = False
    """Whether the call is one request of a batch. Its failure gives no information about the provider's state now.
    """


class LlmCallImported(_CallEvent, frozen=True, kw_only=True, tag="llm.call_imported"):
    """A call that another program made and recorded, and that an import has read from that program's files.

    The event has the time of the call, not the time of the import. If a file corrects a call, another event of the
    same request follows. Only the event with the largest `revision` is used.
    """

    origin: str
    """The source of the call, by its name in `callboard import`."""
    origin_file: str
    """The file that the call was read from."""
    origin_line: int
    """The line in the file, from 1; 0 in a file without lines."""
    revision: int
    """A number that increases with the tokens of the call. An event with a smaller revision than the stored event
    is ignored.
    """
    stop_reason: StopReason | None = None
    """How the reply ended; None if the file does not state it."""
    usage: TokenUsage | None = None
    """The tokens of the call; None if the file does not state them."""
    cost: Cost | None = None
    """The cost at the prices of the call's own time. If these are unknown, it is the stated cost."""
    stated_nano_usd: int | None = None
    """The cost that the file states, in nano-USD; None if it states none."""
    error_class: str | None = None
    """A value of `ErrorClass` for a call that failed."""
    error_type: str | None = None
    """The type of the error, with the name that the file uses."""
    latency_ms: int | None = None
    """Milliseconds of the call; None if unknown."""
    first_token_ms: int | None = None
    """Milliseconds to the first content; None if unknown."""
    response_id: str | None = None
    """The provider's identifier of the response."""
    provider_request_id: str | None = None
    """The provider's identifier of the request."""
    parent_call_id: str | None = None
    """The request whose reply called the tool that made this call."""
    parent_tool_use_id: str | None = None
    """The id of that tool's call in the reply."""
    parent_turn_id: str | None = None
    """The turn that ran the tool."""
    root_turn_id: str | None = None
    """The turn at the root of the tree of turns; None for the root's own calls."""
    depth: int | None = None
    """The number of turns above the call; None outside of a tool's run."""


# --- Tools: `tool.*` ---


class _ToolEvent(Event, frozen=True, kw_only=True):
    """An event of one call of a tool."""

    tool_use_id: str
    """The id of the call in the message."""
    tool_name: str
    """The tool's name."""


class ToolStarted(_ToolEvent, frozen=True, kw_only=True, tag="tool.started"):
    """A tool is about to run, or its call is about to be refused."""


class ToolProgress(_ToolEvent, frozen=True, kw_only=True, tag="tool.progress"):
    """A running tool reports its progress.

    The report may quote content, so the trace store keeps the event without its message.
    """

    message: str | None = None
    """The tool's own words."""
    fraction: float | None = None
    """The completed part of the work, from 0 to 1; None if unknown."""
    stream_id: str | None = None
    """The stream of a turn that the tool has started, for `Engine.attach`; None for any other progress."""


class ToolFinished(_ToolEvent, frozen=True, kw_only=True, tag="tool.finished"):
    """A tool has answered or was abandoned."""

    is_error: bool
    """Whether the tool failed, was refused, or took too long."""
    latency_ms: int
    """Milliseconds that the tool ran, without waiting for an approval."""


# --- Jobs: `job.*` ---


class _JobEvent(Event, frozen=True, kw_only=True):
    """An event of one job, with the provider that works on it."""

    job_id: str
    """The provider's identifier of the job."""
    kind: str
    """The kind of the job, ``video``."""
    provider: str
    """The adapter's name."""
    model: str
    """The model as routed, ``provider:name``."""


class JobCreated(_JobEvent, frozen=True, kw_only=True, tag="job.created"):
    """A provider has accepted a job."""

    status: str
    """The status as the provider gave it, usually ``queued``."""
    seconds: int | None = None
    """The length of the result in seconds, if it is known."""
    size: str | None = None
    """The size of the result, if it is known."""
    audio: bool | None = None
    """Whether the result has sound, if that is known."""
    key: str | None = None
    """The name of the key that the job was created with; None for the adapter's own key."""


class JobProgress(_JobEvent, frozen=True, kw_only=True, tag="job.progress"):
    """A check found that a job's status or progress has changed."""

    status: str
    """``queued``, ``in_progress``, ``completed``, ``failed`` or ``cancelled``."""
    progress: float | None = None
    """The completed part of the work, from 0 to 1; None if the provider reports none."""


class JobCompleted(_JobEvent, frozen=True, kw_only=True, tag="job.completed"):
    """The result of a job can be downloaded."""

    cost_nano_usd: int | None = None
    """The job's cost in nano-USD, counted with a call of the operation ``video``; None if it is unknown."""
    expires_at: int | None = None
    """The time until which the result can be downloaded, in seconds since the epoch; None if unknown."""


class JobFailed(_JobEvent, frozen=True, kw_only=True, tag="job.failed"):
    """A job ended without a result."""

    status: str
    """``failed`` or ``cancelled``."""
    error_type: str
    """The class of the error."""
    message: str
    """The text of that error."""


# --- Batches: `batch.*` ---
#
# The events of a batch have the batch's id as their request. Only `batch.part_ended`
# has the id of the call that created the part, because it releases the budget of that call.


class _BatchEvent(Event, frozen=True, kw_only=True):
    """An event of one batch, with the model that answers it."""

    batch_id: str
    """The batch's id."""
    provider: str
    """The adapter's name."""
    model: str
    """The model as routed, ``provider:name``."""


class BatchPlanned(_BatchEvent, frozen=True, kw_only=True, tag="batch.planned"):
    """A batch is split into jobs, and nothing is sent yet."""

    parts: tuple[int, ...]
    """The number of requests in each part, in their order."""
    digest: str
    """The start of the hash of all requests, which identifies the batch."""
    request_ids: tuple[str, ...] = ()
    """The caller's ids of the requests; empty if the caller gave none."""
    key: str | None = None
    """The name of the key to use; None for the adapter's own key."""


class BatchSubmitting(_BatchEvent, frozen=True, kw_only=True, tag="batch.submitting"):
    """A part of a batch is about to be sent. If no answer arrives, the engine looks for the part in the provider's
    list of jobs.
    """

    part: int
    """The part's number, from 1."""
    call_id: str
    """The id of the call that creates the job."""
    began_at: int
    """The time before sending, in seconds since the epoch, UTC."""


class BatchSubmitted(_BatchEvent, frozen=True, kw_only=True, tag="batch.submitted"):
    """A provider has accepted a part of a batch as a job."""

    part: int
    """The part's number, from 1."""
    job_id: str
    """The provider's identifier of the job."""
    call_id: str
    """The id of the call that created the job."""
    key: str | None = None
    """The name of the key that the job was created with; None for the adapter's own key."""
    certain: bool = True
    """Whether the job certainly belongs to this part; False for a job that was found by its size alone."""


class BatchProgress(_BatchEvent, frozen=True, kw_only=True, tag="batch.progress"):
    """The state of a batch has changed."""

    status: str
    """``queued``, ``in_progress``, ``cancelling``, ``completed``, ``failed``, ``expired`` or ``cancelled``."""
    total: int
    """The number of requests."""
    succeeded: int
    """The number of answered requests, as reported by the provider."""
    failed: int
    """The number of failed requests, as reported by the provider."""


class BatchPartEnded(_BatchEvent, frozen=True, kw_only=True, tag="batch.part_ended"):
    """All results of a part are counted: each is a call of the operation ``batch``."""

    part: int
    """The part's number, from 1."""
    job_id: str
    """The provider's identifier of the job."""
    status: str
    """``completed``, ``failed``, ``expired`` or ``cancelled``."""


class BatchCompleted(_BatchEvent, frozen=True, kw_only=True, tag="batch.completed"):
    """All results of a batch were read and counted."""

    status: str
    """``completed``, ``failed``, ``expired`` or ``cancelled``."""
    succeeded: int
    """The number of requests that were answered."""
    failed: int
    """The number of requests that failed."""
    cost_nano_usd: int
    """The known cost of all requests, in nano-USD."""
    unpriced: int = 0
    """The number of requests with an unknown cost."""
