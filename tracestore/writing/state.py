"""The options and the state of a writer, and the reaction to a failure. Pure values."""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

StoreState: TypeAlias = Literal["ok", "retrying", "spilling", "dropping"]
"""The state of a store as its writer sees it. `tracestore.writing.writer` describes the four states."""


class WriterOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The bounds and the patience of a writer."""

    batch_events: int = 1024
    """The number of events in a commit."""
    batch_seconds: float = 0.1
    """The time that an event waits for others to share its commit."""
    first_retry: float = 1.0
    """The wait after a first failure, in seconds. It doubles with each further failure."""
    longest_retry: float = 30.0
    """The longest such wait, in seconds."""
    spill_after: int = 3
    """The number of failures in a row, after which events go to the spill file."""
    memory_events: int = 8192
    """The number of events that may wait in memory while the store fails."""
    memory_bytes: int = 64 * 1024 * 1024
    """The size of these events, the messages that they refer to included."""
    spill_bytes: int = 64 * 1024 * 1024
    """The size of the spill file."""


class WriterStatistics(msgspec.Struct, frozen=True):
    """A snapshot of a writer. Counts are events."""

    state: StoreState
    """``ok``, ``retrying``, ``spilling`` or ``dropping``."""
    waiting: int
    """Events that are published and not committed, spilled ones included."""
    spilled: int
    """The waiting events that are in the spill file."""
    committed: int
    """Events that were committed since the start."""
    lost: int
    """The number of lost events."""
    lost_first_seq: int | None
    """The number of the first lost event; None if none was lost."""
    lost_last_seq: int | None
    """The number of the last lost event; None if none was lost."""
    failures: int
    """Failures in a row."""
    reason: str | None
    """The reason of the last failure."""
    waiting_bytes: int = 0
    """About the size of the events in memory, the messages that they refer to included."""
    unsecured: str | None = None
    """The reason why waiting events, answers that were handed over among them, would go with this process if it
    ended now; None if they would not."""


def retry_delay(failures: int, options: WriterOptions) -> float:
    """Seconds until the next attempt after so many failures in a row."""
    return min(options.first_retry * 2.0 ** min(failures - 1, 30), options.longest_retry)


def after_failure(state: StoreState, failures: int, options: WriterOptions, *, may_spill: bool) -> StoreState:
    """The state after failures in a row."""
    match state:
        case "ok":
            return "retrying"
        case "retrying" if failures >= options.spill_after:
            return "spilling"
        case "dropping" if may_spill:
            return "spilling"  # there may be room again; if not, that is found out immediately
        case _:
            return state
