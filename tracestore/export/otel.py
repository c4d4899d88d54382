"""Events as OpenTelemetry GenAI spans and metrics, for the collector that a host already has.

    exporter = OtelExporter()
    async with engine.bus.subscribe(*exporter.topics, policy=Lossless(), name="otel") as events:
        await exporter.run(events)

It reads a subscription, so it works the same on a live bus and on a replay, and holds nobody up. Its providers are
the host's own, or the global ones. The package is an extra: ``pip install "callboard[otel]"``.

**Spans.** A turn is a span (`invoke_agent`, internal) and the root of its trace; below it each attempt of each
call (`chat MODEL`, client) and each run of a tool (`execute_tool NAME`). A session has no end: it is no span but
the `gen_ai.conversation.id` of all of them. An attempt links to the one that it followed: `callboard.link` says
whether as `retry` or `repair`, as `fallback` on another model after a failure, or as the next `step` after tools.
Times are those of the events, and durations the monotonic clock's. A cancelled call or turn is no error.

**Metrics** are of now, whatever the time of the events; for a replay of history they are best left out.

**Content** is left out unless `content` asks for it: then a turn's span has its messages, and errors their text. A
replay has no content, because events are stored without it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import AsyncIterable, Mapping
from typing import TYPE_CHECKING, assert_never

from bus.errors import ConfigurationError, ErrorClass
from bus.events import (
    Envelope,
    LlmCallCompleted,
    LlmCallFailed,
    LlmCallStarted,
    SessionMessageAppended,
    SessionTurnCompleted,
    SessionTurnStarted,
    ToolFinished,
    ToolStarted,
)
from bus.messages import Message, Role
from bus.usage import UsageSource

from . import genai

if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import Link, Span, SpanContext, TracerProvider

_OPEN_KEPT = 10_000
_ENDED_KEPT = 4096
_SCOPE = "callboard"

_Key = tuple[str, ...]


class _Open:
    """A span that has begun, the event that began it, and the messages of a turn if they are wanted."""

    def __init__(self, span: Span, began: Envelope, attributes: genai.Attributes) -> None:
        self.span = span
        self.began = began
        self.attributes = attributes
        self.asked: list[Message] = []
        self.said: list[Message] = []


class OtelExporter:
    """Turns the events that it is given into spans and metrics.

    tracer_provider, meter_provider: None takes the global one. metrics: whether to record any. content: whether
    messages and the texts of errors may be exported. provider_names: names of adapters in models.yaml, and the
    conventions' names of the providers behind them, beside those that are known.
    Raises ConfigurationError if OpenTelemetry's API is not installed.
    """

    topics = ("llm.*", "session.*", "tool.*")
    """What to subscribe to."""

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
                'exporting to OpenTelemetry needs its API; install it with: pip install "callboard[otel]"'
            ) from None
        self._tracer = trace.get_tracer(_SCOPE, tracer_provider=tracer_provider)
        self._metrics = _Metrics(meter_provider) if metrics else None
        self._content = content
        self._names = {**genai.PROVIDERS, **(provider_names or {})}
        self._open: OrderedDict[_Key, _Open] = OrderedDict()
        # By call, for links: the span of its last attempt, and whether that failed.
        self._ended: OrderedDict[_Key, tuple[SpanContext, bool]] = OrderedDict()
        self._last: Envelope | None = None

    async def run(self, events: AsyncIterable[Envelope]) -> None:
        """Export events until there are no more, or until cancelled; what is open then ends as `lost`."""
        try:
            async for envelope in events:
                self.handle(envelope)
        finally:
            self.close()

    def handle(self, envelope: Envelope) -> None:
        """Export one event; topics of no interest are passed over."""
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
            case _:
                pass

    def close(self) -> None:
        """End the spans whose end never came, each as an error of type ``lost``. Idempotent."""
        while self._open:
            self._lose(self._open.popitem(last=False)[1])

    # -- calls

    def _call_started(self, envelope: Envelope, data: LlmCallStarted) -> None:
        attributes = genai.of_call(envelope, data, self._names) | genai.of_start(data)
        self._begin(_call_key(envelope), envelope, attributes, self._links(envelope, data.reason))

    def _call_ended(self, envelope: Envelope, data: LlmCallCompleted | LlmCallFailed) -> None:
        found = self._open.pop(_call_key(envelope), None)
        if found is None:  # its start was not for us, or dropped
            attributes = genai.of_call(envelope, data, self._names)
            span = self._span(
                envelope, attributes, (), start_ns=envelope.ts_us * 1000 - data.latency_ms * 1_000_000
            )
            found = _Open(span, envelope, attributes)
            end_ns = envelope.ts_us * 1000
        else:
            end_ns = _end_ns(found.began, envelope)
        replies = found.attributes["gen_ai.operation.name"] in genai.CONVERSATIONS
        ended = genai.of_end(data, replies=replies)
        found.span.set_attributes(ended)
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

    def _links(self, envelope: Envelope, reason: str) -> tuple[Link, ...]:
        from opentelemetry.trace import Link

        again = (envelope.attempt or 1) > 1
        followed = envelope.request_id if again else envelope.caused_by
        if followed is None or (before := self._ended.get((envelope.run_id, followed))) is None:
            return ()
        context, failed = before
        how = reason if again else "fallback" if failed else "step"
        return (Link(context, {"callboard.link": how}),)

    # -- turns

    def _turn_started(self, envelope: Envelope, data: SessionTurnStarted) -> None:
        provider = genai.provider_name(data.model.partition(":")[0], self._names)
        attributes: genai.Attributes = {
            "gen_ai.operation.name": genai.INVOKE_AGENT,
            "gen_ai.provider.name": provider,
            "gen_ai.request.model": genai.model_name(data.model),
            "callboard.run.id": envelope.run_id,
        }
        if envelope.session_id is not None:
            attributes["gen_ai.conversation.id"] = envelope.session_id
        if envelope.turn_id is not None:
            attributes["callboard.turn.id"] = envelope.turn_id
        self._begin(_turn_key(envelope), envelope, attributes)

    def _turn_ended(self, envelope: Envelope, data: SessionTurnCompleted) -> None:
        found = self._open.pop(_turn_key(envelope), None)
        if found is None:
            return
        span = found.span
        span.set_attributes({"callboard.turn.status": data.status, "callboard.turn.calls": data.calls})
        if data.cost_nano_usd is not None:
            span.set_attribute("callboard.cost.nano_usd", data.cost_nano_usd)
        if found.asked:
            span.set_attribute("gen_ai.input.messages", genai.messages_json(found.asked))
        if found.said:
            span.set_attribute("gen_ai.output.messages", genai.messages_json(found.said))
        if data.status == "failed":
            error = data.error or ""
            span.set_attribute("error.type", error.partition(":")[0] or "_OTHER")
            self._mark_failed(span, error)
        span.end(_end_ns(found.began, envelope))

    def _appended(self, envelope: Envelope, message: Message) -> None:
        turn = self._open.get(_turn_key(envelope))
        if turn is not None:
            (turn.said if message.role is Role.ASSISTANT else turn.asked).append(message)

    # -- tools

    def _tool_started(self, envelope: Envelope, data: ToolStarted) -> None:
        attributes: genai.Attributes = {
            "gen_ai.operation.name": genai.EXECUTE_TOOL,
            "gen_ai.tool.name": data.tool_name,
            "gen_ai.tool.call.id": data.tool_use_id,
        }
        if envelope.session_id is not None:
            attributes["gen_ai.conversation.id"] = envelope.session_id
        self._begin(_tool_key(envelope, data.tool_use_id), envelope, attributes)

    def _tool_ended(self, envelope: Envelope, data: ToolFinished) -> None:
        found = self._open.pop(_tool_key(envelope, data.tool_use_id), None)
        if found is None:
            return
        if data.is_error:
            found.span.set_attribute("error.type", "_OTHER")
            self._mark_failed(found.span, "")
        found.span.end(_end_ns(found.began, envelope))

    # -- spans

    def _begin(
        self, key: _Key, envelope: Envelope, attributes: genai.Attributes, links: tuple[Link, ...] = ()
    ) -> None:
        if (again := self._open.pop(key, None)) is not None:
            self._lose(again)
        self._open[key] = _Open(self._span(envelope, attributes, links), envelope, attributes)
        if len(self._open) > _OPEN_KEPT:
            self._lose(self._open.popitem(last=False)[1])

    def _span(
        self,
        envelope: Envelope,
        attributes: genai.Attributes,
        links: tuple[Link, ...],
        *,
        start_ns: int | None = None,
    ) -> Span:
        from opentelemetry.context import Context
        from opentelemetry.trace import SpanKind, set_span_in_context

        name = str(attributes["gen_ai.operation.name"])
        is_turn, is_tool = name == genai.INVOKE_AGENT, name == genai.EXECUTE_TOOL
        subject = attributes.get("gen_ai.tool.name" if is_tool else "gen_ai.request.model")
        turn = None if is_turn else self._open.get(_turn_key(envelope))
        # A context of its own: the one around is the exporter's task's, and has nothing to do with the event.
        context = Context() if turn is None else set_span_in_context(turn.span, Context())
        return self._tracer.start_span(
            name if is_turn else f"{name} {subject}",
            context=context,
            kind=SpanKind.INTERNAL if is_turn or is_tool else SpanKind.CLIENT,
            attributes=attributes,
            links=links,
            start_time=envelope.ts_us * 1000 if start_ns is None else start_ns,
        )

    def _lose(self, found: _Open) -> None:
        found.span.set_attribute("error.type", "lost")
        self._mark_failed(found.span, "")
        last = self._last
        seen = last is not None and last.run_id == found.began.run_id
        found.span.end(_end_ns(found.began, last if seen and last is not None else found.began))

    def _mark_failed(self, span: Span, text: str) -> None:
        from opentelemetry.trace import Status, StatusCode

        # A provider's error may quote what it was sent, so its text counts as content.
        span.set_status(Status(StatusCode.ERROR, text if self._content and text else None))


class _Metrics:
    """The instruments, with the buckets that the conventions ask for."""

    def __init__(self, provider: MeterProvider | None) -> None:
        from opentelemetry.metrics import get_meter

        meter = get_meter(_SCOPE, meter_provider=provider)
        self._tokens = meter.create_histogram(
            genai.TOKEN_USAGE,
            "{token}",
            "Number of input and output tokens used.",
            explicit_bucket_boundaries_advisory=genai.TOKEN_BUCKETS,
        )
        self._duration = meter.create_histogram(
            genai.OPERATION_DURATION,
            "s",
            "GenAI operation duration.",
            explicit_bucket_boundaries_advisory=genai.SECONDS_BUCKETS,
        )
        self._first_chunk = meter.create_histogram(
            genai.TIME_TO_FIRST_CHUNK,
            "s",
            "Time to receive the first chunk of a streamed reply.",
            explicit_bucket_boundaries_advisory=genai.FIRST_CHUNK_BUCKETS,
        )

    def record(self, span: genai.Attributes, data: LlmCallCompleted | LlmCallFailed) -> None:
        """Record one attempt. Estimated tokens are left out: the conventions count what the provider reports."""
        attributes = genai.for_metrics(span)
        usage = data.usage
        if usage is not None and usage.source is not UsageSource.ESTIMATED:
            counts = {"input": usage.total_input_tokens, "output": usage.output_tokens}
            if span["gen_ai.operation.name"] == genai.EMBEDDINGS:
                del counts["output"]  # there is none to count
            for kind, count in counts.items():
                self._tokens.record(count, {**attributes, "gen_ai.token.type": kind})
        if span.get("gen_ai.request.stream") and data.first_token_ms is not None:
            self._first_chunk.record(data.first_token_ms / 1000, attributes)
        match data:
            case LlmCallCompleted():
                pass
            case LlmCallFailed():
                attributes["error.type"] = data.error_type
            case _:
                assert_never(data)
        self._duration.record(data.latency_ms / 1000, attributes)


def _call_key(envelope: Envelope) -> _Key:
    return ("call", envelope.run_id, envelope.request_id or "", str(envelope.attempt or 1))


def _turn_key(envelope: Envelope) -> _Key:
    return ("turn", envelope.run_id, envelope.turn_id or "")


def _tool_key(envelope: Envelope, tool_use_id: str) -> _Key:
    return ("tool", envelope.run_id, envelope.turn_id or "", tool_use_id)


def _end_ns(began: Envelope, ended: Envelope) -> int:
    return began.ts_us * 1000 + max(0, ended.mono_ns - began.mono_ns)
