"""How patient a writer is, in which state its store is, and what follows from a failure: values and decisions."""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

StoreState: TypeAlias = Literal["ok", "retrying", "spilling", "dropping"]
"""As `tracestore.writing.writer` describes them."""


class WriterOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Sizes in events and bytes, times in seconds.

    batch_events, batch_seconds: of a commit, and how long an event waits for others to share it.
    first_retry, longest_retry: the wait after a failure doubles from one to the other.
    spill_after: failures in a row before events go to the spill file. memory_events, memory_bytes: that may wait
    in memory while the store fails, messages that they refer to included. spill_bytes: size of the spill file.
    """

    batch_events: int = 256
    batch_seconds: float = 0.1
    first_retry: float = 1.0
    longest_retry: float = 30.0
    spill_after: int = 3
    memory_events: int = 8192
    memory_bytes: int = 64 * 1024 * 1024
    spill_bytes: int = 64 * 1024 * 1024


class WriterStatistics(msgspec.Struct, frozen=True):
    """A snapshot of a writer, in events. state: ``ok``, ``retrying``, ``spilling`` or ``dropping``.

    waiting: published and not committed, spilled ones included. spilled: of those, in the spill file.
    waiting_bytes: roughly what those in memory keep alive, messages that they only refer to included.

    committed: events since the start. lost: events that nobody has any more; their seq lies between
    `lost_first_seq` and `lost_last_seq`. failures: in a row. reason: of the last failure.
    unsecured: why what waits would go with this process if it ended now, answers that were handed over among it;
    None if it would not.
    """

    state: StoreState
    waiting: int
    spilled: int
    committed: int
    lost: int
    lost_first_seq: int | None
    lost_last_seq: int | None
    failures: int
    reason: str | None
    waiting_bytes: int = 0
    unsecured: str | None = None


def retry_delay(failures: int, options: WriterOptions) -> float:
    """Seconds until the next attempt after so many failures in a row."""
    return min(options.first_retry * 2.0 ** min(failures - 1, 30), options.longest_retry)


def after_failure(state: StoreState, failures: int, options: WriterOptions, *, may_spill: bool) -> StoreState:
    """The state after so many failures in a row, the latest included. may_spill: there is a spill file."""
    match state:
        case "ok":
            return "retrying"
        case "retrying" if failures >= options.spill_after:
            return "spilling"
        case "dropping" if may_spill:
            return "spilling"  # there may be room again; if not, that is found out at once
        case _:
            return state
