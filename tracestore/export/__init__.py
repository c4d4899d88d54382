"""Exports: OpenTelemetry spans and metrics from a bus, and calls as CSV, JSON lines or Parquet."""

from __future__ import annotations

from .calls import FORMATS, Format, export_calls
from .otel import OtelExporter

__all__ = ["FORMATS", "Format", "OtelExporter", "export_calls"]
