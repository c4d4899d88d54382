"""The bounds of an engine: how much it does at once, and for how long."""

from __future__ import annotations

import msgspec


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds of an engine.

    With `retain_streams_bytes` of 0, nothing of a stream outlives its turn and its readers. A reader that is
    behind at the end then gets the rest as a `StreamReset`.
    """

    calls_per_provider: int = 256
    """The largest number of calls at once; further calls wait in order."""
    admit_events: int = 8192
    """The number of events by which the trace writer may be behind. While it is further behind, a new turn waits.
    """
    admit_bytes: int = 16 * 1024 * 1024
    """The number of bytes by which the trace writer may be behind. While it is further behind, a new turn waits.
    """
    admit_seconds: float = 5.0
    """Seconds for which the writer may commit nothing while a turn waits, before AdmissionError."""
    retain_streams_seconds: float = 60.0
    """Seconds for which the stream of a turn that is over can still be attached to, see `bus.streams.channel`."""
    retain_streams_bytes: int = 64 * 1024 * 1024
    """The bytes of memory for all such streams together."""


class Timeouts(msgspec.Struct, frozen=True, kw_only=True):
    """Time limits of an engine, in seconds. The limits of a call are its adapter's, see `AdapterConfig`."""

    shutdown: float = 15.0
    """Seconds for all actors to stop. An actor that has not stopped by then is cancelled and reported."""
    turn: float | None = None
    """Seconds from asking for a turn to its end, waiting included; None is as long as its calls and tools may
    take."""
    tool: float = 60.0
    """Seconds for one call of a tool that has no `timeout_seconds` of its own."""
