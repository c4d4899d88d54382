"""What bounds an engine: how much at once, and for how long."""

from __future__ import annotations

import msgspec


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds of an engine.

    calls_per_provider: at once; more wait in order. admit_events, admit_bytes: how far the trace writer may be
    behind, by either, for a new turn to begin, which else waits; admit_seconds: how long the writer may commit
    nothing meanwhile, before AdmissionError.
    retain_streams_seconds, retain_streams_bytes: for how long, and in how much memory together, the streams of
    turns that are over can still be attached to (see `bus.streams.channel`); with 0 bytes nothing of a stream
    outlives its turn and its readers, and one that is behind at the end gets the rest as a `StreamReset`.
    """

    calls_per_provider: int = 256
    admit_events: int = 8192
    admit_bytes: int = 16 * 1024 * 1024
    admit_seconds: float = 5.0
    retain_streams_seconds: float = 60.0
    retain_streams_bytes: int = 64 * 1024 * 1024


class Timeouts(msgspec.Struct, frozen=True, kw_only=True):
    """Time limits of an engine, in seconds. Those of a call are its adapter's, see `AdapterConfig`.

    shutdown: for all actors to stop; what has not stopped by then is cancelled and reported. turn: from asking for
    it to its end, waiting included; None is as long as its calls and tools may take. tool: of one call of a tool
    that has no `timeout_seconds` of its own.
    """

    shutdown: float = 15.0
    turn: float | None = None
    tool: float = 60.0
