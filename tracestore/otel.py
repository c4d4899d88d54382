"""Events as OpenTelemetry GenAI spans and metrics, on the providers of the host (``callboard[otel]``).

    exporter = OtelExporter()
    async with engine.bus.subscribe(*exporter.topics, policy=Lossless(), name="otel") as events:
        await exporter.run(events)

A turn is a span (`invoke_agent`). Below it, each attempt of a call (`chat MODEL`) and each run of a tool
(`execute_tool NAME`) is a span. If a tool makes a turn or call, the parent is the span of the tool's run.
Otherwise it is the host's current span at the start. A session is the `gen_ai.conversation.id`. An attempt has a
link to the previous one, with the reason in `callboard.link`: `retry`, `repair`, `fallback` or `step`. A cancelled
call is not an error. Metrics have the current time, so turn them off for a replay.

Content is exported only if `content` is set. A replay has no content, because events are stored without it.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import AsyncIterable, Mapping
from typing import TYPE_CHECKING

from callboard.bus.errors import ConfigurationError, ErrorClass
from callboard.bus.events import Envelope
from callboard.bus.events.calls import LlmCallCompleted, LlmCallFailed, LlmCallStarted, ToolFinished, ToolStarted
from callboard.bus.events.sessions import SessionMessageAppended, SessionTurnCompleted, SessionTurnStarted
from callboard.bus.values.content import ToolResultBlock, ToolUseBlock
from callboard.bus.values.messages import Message, Role
from callboard.bus.values.usage import UsageSource

from . import otel_names

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import Link, Span, SpanContext, TracerProvider


_OPEN_KEPT = 10_000
_ENDED_KEPT = 4096

_TRACE_PARENT = re.compile(r"00-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")

_Key = tuple[str, ...]


class _Open:
    """A started span, the event that started it, and the messages of a turn if they are exported."""

    def __init__(self, span: Span, began: Envelope, attributes: otel_names.Attributes) -> None:
        self.span = span
        self.began = began
        self.attributes = attributes
        self.input_messages: list[Message] = []
        self.output_messages: list[Message] = []
        self.end_ns: int | None = None  # The end of a tool's run, while its result is awaited.


class OtelExporter:
    """Turns events into spans and metrics.

    Args:
        tracer_provider: The provider of tracers; None is the global one.
        meter_provider: The provider of meters; None is the global one.
        metrics: Whether to record metrics.
        content: Whether to export messages and the texts of errors.
        provider_names: The conventions' names of the providers behind adapters of models.yaml, by the adapters'
            names. They are added to the known names.

    Raises:
        ConfigurationError: The API of OpenTelemetry is not installed.
    """

    topics = ("llm.*", "session.*", "tool.*")
    """The topics to subscribe to."""

    def __init__(
        self,
        *,
        tracer_provider: TracerProvider | None = None,
        meter_provider: MeterProvider | None = None,
        metrics: bool = True,
        content: bool = False,
        provider_names: Mapping[str, str] | None = None,
    ) -> None:
        try:
            from opentelemetry import trace
        except ImportError:
            raise ConfigurationError(
                'exporting to OpenTelemetry needs its API. Install it with: pip install "callboard[otel]"'
            ) from None
        self._tracer = trace.get_tracer(otel_names.SCOPE, tracer_provider=tracer_provider)
        self._metrics = Metrics(meter_provider) if metrics else None
        self._content = content
        self._names = {**otel_names.provider_names(), **(provider_names or {})}
        self._open: OrderedDict[_Key, _Open] = OrderedDict()
        # By call, for links: the span of its last attempt, and whether that failed.
        self._ended: OrderedDict[_Key, tuple[SpanContext, bool]] = OrderedDict()
        self._last: Envelope | None = None

    async def run(self, events: AsyncIterable[Envelope]) -> None:
        """Export events until there are no more, or until it is cancelled. Spans without an end event then end as
        errors of type ``lost``.

        Args:
            events: The events, as from a subscription.
        """
        try:
            async for envelope in events:
                self.handle(envelope)
        finally:
            self.close()

    def handle(self, envelope: Envelope) -> None:
        """Export one event. Events of other topics are ignored."""
        self._last = envelope
        match envelope.data:
            case LlmCallStarted() as data:
                self._call_started(envelope, data)
            case LlmCallCompleted() | LlmCallFailed() as data:
                self._call_ended(envelope, data)
            case SessionTurnStarted() as data:
                self._turn_started(envelope, data)
            case SessionTurnCompleted() as data:
                self._turn_ended(envelope, data)
            case SessionMessageAppended(message=message) if self._content:
                self._appended(envelope, message)
            case ToolStarted() as data:
                self._tool_started(envelope, data)
            case ToolFinished() as data:
                self._tool_ended(envelope, data)

    def close(self) -> None:
        """End the spans without an end event, each as an error of type ``lost``. Idempotent."""
        while self._open:
            self._lose(self._open.popitem(last=False)[1])

    # --- Calls ---

    def _call_started(self, envelope: Envelope, data: LlmCallStarted) -> None:
        attributes = otel_names.of_call(envelope, data, self._names) | otel_names.of_start(data)
        if self._content and data.content is not None:
            attributes |= otel_names.of_content(data.content)
            self._instruct_turn(envelope, attributes)
        links = self._links(envelope, data.reason)
        self._begin(_call_key(envelope), envelope, attributes, links, parent=data.trace_parent, below=data)

    def _call_ended(self, envelope: Envelope, data: LlmCallCompleted | LlmCallFailed) -> None:
        found = self._open.pop(_call_key(envelope), None)
        if found is None:  # the call's start was not received, or was dropped
            attributes = otel_names.of_call(envelope, data, self._names)
            span = self._span(
                envelope, attributes, (), start_ns=envelope.ts_us * 1000 - data.latency_ms * 1_000_000
            )
            found = _Open(span, envelope, attributes)
            end_ns = envelope.ts_us * 1000
        else:
            end_ns = _end_ns(found.began, envelope)
        replies = found.attributes["gen_ai.operation.name"] in otel_names.CONVERSATIONS
        ended = otel_names.of_end(data, replies=replies)
        found.span.set_attributes(ended)
        if self._content and data.reply is not None:
            found.span.set_attribute("gen_ai.output.messages", otel_names.reply_json(data.reply, data))
        failed = isinstance(data, LlmCallFailed)
        if isinstance(data, LlmCallFailed) and data.error_class != ErrorClass.CANCELLED:
            self._mark_failed(found.span, data.message)
        found.span.end(end_ns)
        if self._metrics is not None:
            self._metrics.record(found.attributes | ended, data)
        if envelope.request_id is not None:
            self._ended[envelope.run_id, envelope.request_id] = (found.span.get_span_context(), failed)
            if len(self._ended) > _ENDED_KEPT:
                self._ended.popitem(last=False)

    def _instruct_turn(self, envelope: Envelope, attributes: otel_names.Attributes) -> None:
        """Copy the call's system text to the turn's span, because the turn's events do not contain this text."""
        turn = self._open.get(_turn_key(envelope))
        if turn is not None and (instructions := attributes.get(otel_names.SYSTEM_INSTRUCTIONS)) is not None:
            turn.span.set_attribute(otel_names.SYSTEM_INSTRUCTIONS, instructions)

    def _links(self, envelope: Envelope, reason: str) -> tuple[Link, ...]:
        from opentelemetry.trace import Link

        again = (envelope.attempt or 1) > 1
        followed = envelope.request_id if again else envelope.caused_by
        if followed is None or (before := self._ended.get((envelope.run_id, followed))) is None:
            return ()
        context, failed = before
        how = reason if again else "fallback" if failed else "step"
        return (Link(context, {"callboard.link": how}),)

    # --- Turns ---

    def _turn_started(self, envelope: Envelope, data: SessionTurnStarted) -> None:
        provider = otel_names.provider_name(data.model.partition(":")[0], self._names)
        attributes: otel_names.Attributes = {
            "gen_ai.operation.name": otel_names.INVOKE_AGENT,
            "gen_ai.provider.name": provider,
            "gen_ai.request.model": otel_names.model_name(data.model),
            "callboard.run.id": envelope.run_id,
        }
        if envelope.session_id is not None:
            attributes["gen_ai.conversation.id"] = envelope.session_id
        if envelope.turn_id is not None:
            attributes["callboard.turn.id"] = envelope.turn_id
        self._begin(_turn_key(envelope), envelope, attributes, parent=data.trace_parent, below=data)

    def _turn_ended(self, envelope: Envelope, data: SessionTurnCompleted) -> None:
        self._end_awaited(envelope)
        found = self._open.pop(_turn_key(envelope), None)
        if found is None:
            return
        span = found.span
        span.set_attributes({"callboard.turn.status": data.status, "callboard.turn.calls": data.calls})
        if data.cost_nano_usd is not None:
            span.set_attribute("callboard.cost.nano_usd", data.cost_nano_usd)
        if found.input_messages:
            span.set_attribute("gen_ai.input.messages", otel_names.input_json(found.input_messages))
        if found.output_messages:
            span.set_attribute("gen_ai.output.messages", otel_names.output_json(found.output_messages))
        if data.status in ("failed", "outcome_unknown"):
            error = data.error or ""
            span.set_attribute("error.type", error.partition(":")[0] or "_OTHER")
            self._mark_failed(span, error)
        span.end(_end_ns(found.began, envelope))

    def _appended(self, envelope: Envelope, message: Message) -> None:
        turn = self._open.get(_turn_key(envelope))
        for block in message.content:
            if isinstance(block, ToolResultBlock):
                self._answered(envelope, block)
        if turn is not None:
            (turn.output_messages if message.role is Role.ASSISTANT else turn.input_messages).append(message)

    # --- Tools ---

    def _tool_started(self, envelope: Envelope, data: ToolStarted) -> None:
        attributes: otel_names.Attributes = {
            "gen_ai.operation.name": otel_names.EXECUTE_TOOL,
            "gen_ai.tool.name": data.tool_name,
            "gen_ai.tool.call.id": data.tool_use_id,
        }
        if envelope.session_id is not None:
            attributes["gen_ai.conversation.id"] = envelope.session_id
        if (call := self._call_of(envelope, data.tool_use_id)) is not None:
            attributes["gen_ai.tool.call.arguments"] = otel_names.value_json(call.input)
        self._begin(_tool_key(envelope, data.tool_use_id), envelope, attributes)

    def _call_of(self, envelope: Envelope, tool_use_id: str) -> ToolUseBlock | None:
        """The call in the turn's last reply, if content is exported."""
        turn = self._open.get(_turn_key(envelope))
        calls = turn.output_messages[-1].tool_uses if turn is not None and turn.output_messages else ()
        return next((call for call in calls if call.id == tool_use_id), None)

    def _tool_ended(self, envelope: Envelope, data: ToolFinished) -> None:
        key = _tool_key(envelope, data.tool_use_id)
        found = self._open.get(key)
        if found is None:
            return
        if data.is_error:
            found.span.set_attribute("error.type", "_OTHER")
            self._mark_failed(found.span, "")
        found.end_ns = _end_ns(found.began, envelope)
        if not self._content:
            self._open.pop(key).span.end(found.end_ns)

    def _answered(self, envelope: Envelope, result: ToolResultBlock) -> None:
        found = self._open.pop(_tool_key(envelope, result.tool_use_id), None)
        if found is not None:
            found.span.set_attribute(
                "gen_ai.tool.call.result", otel_names.value_json(otel_names.result_of(result))
            )
            found.span.end(found.end_ns)

    def _end_awaited(self, envelope: Envelope) -> None:
        """End the spans of a turn's tools without results in the history."""
        turn = _tool_key(envelope, "")[:-1]
        for key in [key for key, found in self._open.items() if key[:-1] == turn and found.end_ns is not None]:
            found = self._open.pop(key)
            found.span.end(found.end_ns)

    # --- Spans ---

    def _begin(
        self,
        key: _Key,
        envelope: Envelope,
        attributes: otel_names.Attributes,
        links: tuple[Link, ...] = (),
        *,
        parent: str | None = None,
        below: LlmCallStarted | SessionTurnStarted | None = None,
    ) -> None:
        if (again := self._open.pop(key, None)) is not None:
            self._lose(again)
        span = self._span(envelope, attributes, links, parent=parent, below=below)
        self._open[key] = _Open(span, envelope, attributes)
        if len(self._open) > _OPEN_KEPT:
            self._lose(self._open.popitem(last=False)[1])

    def _span(
        self,
        envelope: Envelope,
        attributes: otel_names.Attributes,
        links: tuple[Link, ...],
        *,
        start_ns: int | None = None,
        parent: str | None = None,
        below: LlmCallStarted | SessionTurnStarted | None = None,
    ) -> Span:
        from opentelemetry.context import Context
        from opentelemetry.trace import SpanKind, set_span_in_context

        name = str(attributes["gen_ai.operation.name"])
        is_turn, is_tool = name == otel_names.INVOKE_AGENT, name == otel_names.EXECUTE_TOOL
        subject = attributes.get("gen_ai.tool.name" if is_tool else "gen_ai.request.model")
        turn = None if is_turn else self._open.get(_turn_key(envelope))
        if turn is None and below is not None and below.parent_turn_id is not None:
            tool = ("tool", below.parent_turn_id, below.parent_tool_use_id or "")
            turn = self._open.get(tool) or self._open.get(("turn", below.parent_turn_id))
        # An empty context, because the current context belongs to the exporter's task, not to the event.
        context = _host_context(parent) if turn is None else set_span_in_context(turn.span, Context())
        return self._tracer.start_span(
            name if is_turn else f"{name} {subject}",
            context=context,
            kind=SpanKind.INTERNAL if is_turn or is_tool else SpanKind.CLIENT,
            attributes=attributes,
            links=links,
            start_time=envelope.ts_us * 1000 if start_ns is None else start_ns,
        )

    def _lose(self, found: _Open) -> None:
        if found.end_ns is not None:
            found.span.end(found.end_ns)
            return
        found.span.set_attribute("error.type", "lost")
        self._mark_failed(found.span, "")
        last = self._last
        is_same_run = last is not None and last.run_id == found.began.run_id
        found.span.end(_end_ns(found.began, last if is_same_run and last is not None else found.began))

    def _mark_failed(self, span: Span, text: str) -> None:
        from opentelemetry.trace import Status, StatusCode

        # A provider's error may quote the request, so its text is content.
        span.set_status(Status(StatusCode.ERROR, text if self._content and text else None))


def _host_context(trace_parent: str | None) -> Context:
    """A context with the host's span, as `current_trace` recorded it; an empty context without one."""
    from opentelemetry.context import Context
    from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, set_span_in_context

    if trace_parent is None or (parts := _TRACE_PARENT.fullmatch(trace_parent)) is None:
        return Context()
    trace_id, span_id, flags = (int(part, 16) for part in parts.groups())
    span = NonRecordingSpan(SpanContext(trace_id, span_id, is_remote=True, trace_flags=TraceFlags(flags)))
    return set_span_in_context(span, Context())


def _call_key(envelope: Envelope) -> _Key:
    return ("call", envelope.run_id, envelope.request_id or "", str(envelope.attempt or 1))


def _turn_key(envelope: Envelope) -> _Key:
    # The run id is left out, because a tool in a thread may use another engine.
    return ("turn", envelope.turn_id or "")


def _tool_key(envelope: Envelope, tool_use_id: str) -> _Key:
    return ("tool", envelope.turn_id or "", tool_use_id)


def _end_ns(began: Envelope, ended: Envelope) -> int:
    return began.ts_us * 1000 + max(0, ended.mono_ns - began.mono_ns)


# --- Metrics of calls ---


class Metrics:
    """The instruments, with the buckets that the conventions require."""

    def __init__(self, provider: MeterProvider | None) -> None:
        from opentelemetry.metrics import get_meter

        meter = get_meter(otel_names.SCOPE, meter_provider=provider)
        self._tokens = meter.create_histogram(
            otel_names.TOKEN_USAGE,
            "{token}",
            "Number of input and output tokens used.",
            explicit_bucket_boundaries_advisory=otel_names.TOKEN_BUCKETS,
        )
        self._duration = meter.create_histogram(
            otel_names.OPERATION_DURATION,
            "s",
            "GenAI operation duration.",
            explicit_bucket_boundaries_advisory=otel_names.SECONDS_BUCKETS,
        )
        self._first_chunk = meter.create_histogram(
            otel_names.TIME_TO_FIRST_CHUNK,
            "s",
            "Time to receive the first chunk of a streamed reply.",
            explicit_bucket_boundaries_advisory=otel_names.FIRST_CHUNK_BUCKETS,
        )

    def record(self, span: otel_names.Attributes, data: LlmCallCompleted | LlmCallFailed) -> None:
        """Record one attempt. Estimated tokens are left out: the conventions count what the provider reports."""
        attributes = otel_names.for_metrics(span)
        usage = data.usage
        if usage is not None and usage.source is not UsageSource.ESTIMATED:
            counts = {"input": usage.total_input_tokens, "output": usage.output_tokens}
            if span["gen_ai.operation.name"] == otel_names.EMBEDDINGS:
                del counts["output"]  # the operation has no output tokens
            for kind, count in counts.items():
                self._tokens.record(count, {**attributes, "gen_ai.token.type": kind})
        if span.get("gen_ai.request.stream") and data.first_token_ms is not None:
            self._first_chunk.record(data.first_token_ms / 1000, attributes)
        if isinstance(data, LlmCallFailed):
            attributes["error.type"] = data.error_type
        self._duration.record(data.latency_ms / 1000, attributes)
