"""The ends of calls as OpenTelemetry's metrics."""

from __future__ import annotations

from typing import TYPE_CHECKING, assert_never

from callboard.bus.events.calls import LlmCallCompleted, LlmCallFailed
from callboard.bus.values.usage import UsageSource

from . import otel_names

if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider


class Metrics:
    """The instruments, with the buckets that the conventions ask for."""

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
