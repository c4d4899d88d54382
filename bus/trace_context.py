"""The host's own trace, so that spans exported to OpenTelemetry belong to it.

An exporter reads events in a task of its own, where the host's span is not the current one. So the code that
publishes the first event of a turn or a call notes the span that is current then, as W3C writes it
(``traceparent``).
"""

from __future__ import annotations

import sys


def current_trace() -> str | None:
    """The host's current span; None if there is none, or if the host doesn't use OpenTelemetry."""
    trace = sys.modules.get("opentelemetry.trace")  # never imported by us: without it there is no current span
    if trace is None:
        return None
    context = trace.get_current_span().get_span_context()
    if not context.is_valid:
        return None
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"
