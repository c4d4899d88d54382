"""The reports of a store: repricings, prunings, free statements, a trace's condition, and a writer's state."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Literal, TypeAlias

import msgspec

from callboard.bus.values.usage import usd_of

from .call_columns import CallFilter


class Check(msgspec.Struct, frozen=True):
    """One finding of a health check."""

    name: str
    """The subject of the check."""
    ok: bool
    """Whether there is no problem."""
    detail: str
    """The finding in words."""
    fix: str = ""
    """The remedy for a problem. Without a problem, a way to enable more, or an empty text."""
    unused: bool = False
    """Whether the check is `ok` only because its subject is not used. An example is a provider without a key that
    models.yaml does not name.
    """


class HealthReport(msgspec.Struct, frozen=True):
    """The findings of `Engine.health`."""

    ok: bool
    """Whether every check is ok."""
    checks: tuple[Check, ...]
    """The checks in the order in which they were made."""


def report_of(checks: Sequence[Check]) -> HealthReport:
    return HealthReport(all(check.ok for check in checks), tuple(checks))


StoreState: TypeAlias = Literal["ok", "retrying", "spilling", "dropping"]
"""The state of a store from its writer's view. `tracestore.writing.writer` describes the four states."""


class WriterOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The sizes and time limits of a writer."""

    batch_events: int = 1024
    """The largest number of events in a commit."""
    batch_seconds: float = 0.1
    """Seconds that an event may wait, so that several events share a commit."""
    first_retry: float = 1.0
    """The wait after a first failure, in seconds. It doubles with each further failure."""
    longest_retry: float = 30.0
    """The longest wait after a failure, in seconds."""
    spill_after: int = 3
    """The number of failures in a row after which events are written to the spill file."""
    memory_events: int = 8192
    """The largest number of events that wait in memory while the store fails."""
    memory_bytes: int = 64 * 1024 * 1024
    """The largest size of the events that wait in memory, in bytes, including the messages that they refer to."""
    spill_bytes: int = 64 * 1024 * 1024
    """The largest size of the spill file, in bytes."""


class WriterStatistics(msgspec.Struct, frozen=True):
    """A snapshot of a writer. Counts are events."""

    state: StoreState
    """``ok``, ``retrying``, ``spilling`` or ``dropping``."""
    waiting: int
    """The number of events that are published and not committed, spilled events included."""
    spilled: int
    """The number of waiting events that are in the spill file."""
    committed: int
    """The number of events that were committed since the start."""
    lost: int
    """The number of lost events."""
    lost_first_seq: int | None
    """The `seq` of the first lost event; None if none was lost."""
    lost_last_seq: int | None
    """The `seq` of the last lost event; None if none was lost."""
    failures: int
    """The number of failures in a row."""
    reason: str | None
    """The text of the last failure; None if there was none."""
    waiting_bytes: int = 0
    """The approximate size of the events in memory, in bytes, including the messages that they refer to."""
    unsecured: str | None = None
    """The reason why waiting events would be lost if this process ended now; None if they are safe. Such events
    may belong to replies that were already returned.
    """


def retry_delay(failures: int, options: WriterOptions) -> float:
    """Seconds until the next attempt after a number of failures in a row."""
    return min(options.first_retry * 2.0 ** min(failures - 1, 30), options.longest_retry)


def after_failure(state: StoreState, failures: int, options: WriterOptions, *, may_spill: bool) -> StoreState:
    match state:
        case "ok":
            return "retrying"
        case "retrying" if failures >= options.spill_after:
            return "spilling"
        case "dropping" if may_spill:
            return "spilling"  # the spill file may have room again; otherwise the next write fails immediately
        case _:
            return state


Delivered: TypeAlias = Callable[[str, str], Awaitable[int]]
"""A function that returns the number of output tokens of a message that readers in other processes have received,
or 0. The arguments are the ids of the turn and of the message.
"""

OnProgress: TypeAlias = Callable[[int, int], None]
"""A function that is called between chunks with the number of the last priced call, and of the last call.

If the function raises, the repricing is interrupted and can be resumed.
"""


class _RepricedCalls(msgspec.Struct, frozen=True, kw_only=True):
    """The counts of a repricing over some calls, and the amounts that are not in its two sums."""

    calls: int
    """The number of calls with usage."""
    unpriced: int
    """The number of calls with usage and without a cost now."""
    unpriced_before: int
    """The number of calls with usage and without a cost before."""
    newly_priced: int = 0
    """The number of calls that had no cost before and have one now."""
    newly_priced_nano_usd: int = 0
    """The cost of the newly priced calls, in nano-USD."""
    no_longer_priced: int = 0
    """The number of calls that had a cost before and have none now."""
    no_longer_priced_nano_usd: int = 0
    """The earlier cost of the calls that are no longer priced, in nano-USD."""
    estimated: int = 0
    """The number of calls with estimated usage."""
    unknown: int = 0
    """The number of other calls with unknown usage."""


class RepriceSums(_RepricedCalls, frozen=True, kw_only=True):
    """The effect of a repricing on some calls.

    The two sums cover the same calls, which have a cost before and after. So the difference of the sums is
    meaningful. Calls with a cost on one side only are counted separately.
    """

    before_nano_usd: int
    """The sum before, over the calls with a cost before and after."""
    after_nano_usd: int
    """The sum after, over the calls with a cost before and after."""

    @property
    def compared(self) -> int:
        """The number of calls in the two sums."""
        return self.calls - self.unpriced - self.newly_priced

    @property
    def before_usd(self) -> Decimal:
        """The sum of the costs before the repricing, in US dollars, exactly."""
        return usd_of(self.before_nano_usd)

    @property
    def after_usd(self) -> Decimal:
        """The sum of the costs after the repricing, in US dollars, exactly."""
        return usd_of(self.after_nano_usd)

    @property
    def all_before_nano_usd(self) -> int:
        """The sum over every call with a cost before, even if the call has none now."""
        return self.before_nano_usd + self.no_longer_priced_nano_usd

    @property
    def all_after_nano_usd(self) -> int:
        """The sum over every call with a cost now, even if the call had none before."""
        return self.after_nano_usd + self.newly_priced_nano_usd


class ModelReprice(RepriceSums, frozen=True, kw_only=True):
    """The effect of a repricing on one model's calls."""

    model: str
    """The model as routed, ``provider:name``."""


class DayReprice(RepriceSums, frozen=True, kw_only=True):
    """The effect of a repricing on the calls of one day."""

    day: str
    """An ISO date, UTC."""


class SessionReprice(RepriceSums, frozen=True, kw_only=True):
    """The effect of a repricing on the calls of one session."""

    session_id: str
    """The session; empty for the calls without one."""


class RepriceReport(_RepricedCalls, frozen=True, kw_only=True):
    """The effect of a repricing or of a dry run.

    Counts and sums are as in `RepriceSums`, over the filtered calls.
    """

    version: str
    """The version of the price table, 12 hex digits."""
    label: str
    """The name of the price table, for people."""
    dry_run: bool
    """Whether the repricing was a dry run."""
    sum_before_nano_usd: int
    """The sum before in nano-USD, over the calls with a cost before and after."""
    sum_after_nano_usd: int
    """The sum after in nano-USD, over the calls with a cost before and after."""
    models: tuple[ModelReprice, ...]
    """The sums of each routed model, the greatest sum first."""
    in_flight: int = 0
    """The number of calls in progress at the end of the repricing. They get their new costs when they end."""
    days: tuple[DayReprice, ...] = ()
    """The sums of each day, in order."""
    sessions: tuple[SessionReprice, ...] = ()
    """The sums of each session, the greatest sum first; empty unless sessions were requested."""
    as_model: str | None = None
    """The model that the calls were priced as, if that was requested."""
    previous_version: str | None = None
    """The price version that was current before. `undo_reprice()` makes it current again."""
    run_id: int | None = None
    """The number of the repricing in the history; None for a dry run."""

    @property
    def before_usd(self) -> Decimal:
        """The sum of the costs before the repricing, in US dollars, exactly."""
        return usd_of(self.sum_before_nano_usd)

    @property
    def after_usd(self) -> Decimal:
        """The sum of the costs after the repricing, in US dollars, exactly."""
        return usd_of(self.sum_after_nano_usd)

    @property
    def total(self) -> RepriceSums:
        """The sums over all calls."""
        same = {name: getattr(self, name) for name in _RepricedCalls.__struct_fields__}
        same |= {"before_nano_usd": self.sum_before_nano_usd, "after_nano_usd": self.sum_after_nano_usd}
        return RepriceSums(**same)


class RepriceRun(msgspec.Struct, frozen=True, kw_only=True):
    """One repricing in the history of a trace.

    Counts and sums are as in `RepriceReport`, and None until the run is finished.
    """

    id: int
    """The number of the run."""
    version: str
    """The version of the price table."""
    where: CallFilter
    """The filter of the calls that the run reprices."""
    started_us: int
    """The start, in microseconds UTC."""
    finished_us: int | None
    """The end, in microseconds UTC; None if the run never ended."""
    calls: int | None
    """The number of calls with usage."""
    unpriced: int | None
    """The number of calls with usage and without a cost now."""
    sum_before_nano_usd: int | None
    """The sum before in nano-USD, over the calls with a cost before and after."""
    sum_after_nano_usd: int | None
    """The sum after in nano-USD, over the calls with a cost before and after."""
    label: str = ""
    """The name of the price table, for people."""
    last_call: int | None = None
    """The number of the last call that the run will price; None if not known yet."""
    done: int = 0
    """The number of the last call that the run has priced."""
    by_session: bool = False
    """Whether the run also compares sessions."""
    replaced: tuple[int, ...] | None = None
    """The runs that were current before, in order; None in a run of an early version."""
    undone_us: int | None = None
    """The time at which the run was undone, in microseconds UTC."""
    finished_no: int | None = None
    """The position among the finished runs."""
    in_flight: int | None = None
    """The number of calls in progress at the end of the run."""
    estimated: int | None = None
    """The number of calls with estimated usage."""
    unknown: int | None = None
    """The number of calls with unknown usage."""

    @property
    def state(self) -> Literal["interrupted", "finished", "undone"]:
        """``finished``, ``undone``, or ``interrupted``. A run in progress is ``interrupted``, too."""
        if self.finished_us is None:
            return "interrupted"
        return "finished" if self.undone_us is None else "undone"

    def current_after(self, before: tuple[int, ...]) -> list[int]:
        """Return the runs that are current after this run has finished, from the runs that were current before."""
        return [self.id] if self.where == CallFilter() else [self.id, *(run for run in before if run != self.id)]


class CurrentPrices(msgspec.Struct, frozen=True):
    """The repricings that set the current costs."""

    runs: tuple[int, ...]
    """The runs in order of precedence. The first one that covers a call sets its cost."""
    versions: tuple[str, ...]
    """The price versions of `runs`, in the same order."""
    run: RepriceRun | None
    """The latest repricing that finished."""

    @property
    def run_id(self) -> int:
        """The number of `run`; 0 if there is none."""
        return self.run.id if self.run is not None else 0


class PruneReport(msgspec.Struct, frozen=True, kw_only=True):
    """The rows that a pruning deleted, or with `dry_run` would delete."""

    dry_run: bool
    """Whether the rows were only counted."""
    before_us: int
    """The cutoff, in microseconds UTC; 0 without a cutoff."""
    attempts: int = 0
    """The number of attempts of calls."""
    events: int = 0
    """The number of events."""
    costs: int = 0
    """The number of deleted costs of repricings."""
    sessions: int = 0
    """The number of deleted sessions. A dry run does not count them, so it has 0."""
    runs: int = 0
    """The number of deleted runs."""
    bodies: int = 0
    """The number of deleted bodies of captured content."""
    bytes_before: int = 0
    """The size of the pages in use before the pruning, in bytes."""
    bytes_after: int = 0
    """The size of the pages in use after the pruning, in bytes."""
    file_bytes: int = 0
    """The size of the database file afterwards, in bytes."""


class StoreCondition(msgspec.Struct, frozen=True, kw_only=True):
    living: int
    """The number of runs with living processes."""
    lost: int
    """The number of runs with dead processes. The next writer closes these runs when it starts."""
    open_calls: int
    """The number of calls in lost runs that have no end."""
    spilled: tuple[tuple[Path, int], ...]
    """The files of dead processes, and their sizes in bytes. The next writer adopts the files when it starts."""
    file_bytes: int
    """The size of the database file, in bytes."""
    free_bytes: int
    """The size of the empty pages, in bytes."""
    shrinkable: bool
    """Whether a pruning can return empty pages to the disk without rewriting the file."""

    def leftovers(self, where: str) -> list[Check]:
        """The check that reports data of dead processes. It is no problem, because the next start handles it."""
        lost = f", {self.lost} lost with {self.open_calls} calls without an end" if self.lost else ", none lost"
        spilled = ", ".join(f"{path.name} ({size:,} bytes)" for path, size in self.spilled)
        start = f"The next start that writes to {where}"
        ends, stores = (f"{start} ends them." if self.lost else ""), (f"{start} stores it." if spilled else "")
        return [
            Check("store:runs", True, f"{self.living} live{lost}", ends),
            Check("store:spill", True, spilled or "no files left over", stores),
        ]


class SqlResult(msgspec.Struct, frozen=True):
    """The result of an SQL statement."""

    columns: tuple[str, ...]
    """The names of the columns."""
    rows: tuple[tuple[str | int | float | bytes | None, ...], ...]
    truncated: bool
    """Whether there were more rows than requested."""
