"""OpenTelemetry: one span for each request, with the engine's spans below it.

A host that has OpenTelemetry set up already needs only `engine_spans`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter

from callboard import Engine, Lossless, OtelExporter


@contextmanager
def spans_in(path: Path) -> Iterator[None]:
    """Write spans to a file, one to a line. Put an OTLP exporter here instead."""
    provider = TracerProvider()
    with path.open("a") as file:
        lines = ConsoleSpanExporter(out=file, formatter=lambda span: span.to_json(indent=None) + "\n")
        provider.add_span_processor(BatchSpanProcessor(lines, schedule_delay_millis=500))
        trace.set_tracer_provider(provider)
        try:
            yield
        finally:
            provider.shutdown()


async def engine_spans(engine: Engine) -> None:
    """Turn the engine's events into spans. The span of a turn is below the span of its request."""
    exporter = OtelExporter()
    async with engine.bus.subscribe(*exporter.topics, policy=Lossless(), name="otel") as events:
        await exporter.run(events)
