"""The book of repricings: what each did, how far it came, what it replaced; and going back.

A run is begun before its first cost is written and finished in the transaction that makes its version the current
one. Between the two it says how far it has come; one that never finished was interrupted, or is under way.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from bus.errors import StoreError

from .database import Database, Statements
from .queries import CallFilter


class ModelReprice(msgspec.Struct, frozen=True):
    """What a repricing did to one model's calls. model: ``provider:name`` as routed. calls: how many.

    unpriced: calls without a cost now; unpriced_before: without one until now. before_nano_usd, after_nano_usd:
    sums over the calls that have a cost. estimated: calls with usage that was estimated. unknown: calls beside
    them of which not even the usage is known.
    """

    model: str
    calls: int
    unpriced: int
    before_nano_usd: int
    after_nano_usd: int
    unpriced_before: int = 0
    estimated: int = 0
    unknown: int = 0


class DayReprice(msgspec.Struct, frozen=True):
    """What a repricing did to the calls of one day. day: an ISO date, UTC.

    calls, unpriced, before_nano_usd, after_nano_usd, unpriced_before, estimated,
    unknown: as in `ModelReprice`.
    """

    day: str
    calls: int
    unpriced: int
    before_nano_usd: int
    after_nano_usd: int
    unpriced_before: int = 0
    estimated: int = 0
    unknown: int = 0


class SessionReprice(msgspec.Struct, frozen=True):
    """What a repricing did to the calls of one session; of those without one, the id is empty.

    calls, unpriced, before_nano_usd, after_nano_usd, unpriced_before, estimated,
    unknown: as in `ModelReprice`.
    """

    session_id: str
    calls: int
    unpriced: int
    before_nano_usd: int
    after_nano_usd: int
    unpriced_before: int = 0
    estimated: int = 0
    unknown: int = 0


class RepriceReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a repricing did, or would do.

    version: the price table's, 12 hex digits; label: its name for people. calls: those with usage that match the
    filter. unpriced: those of them without a cost in this version; unpriced_before: without one until now.
    estimated, unknown: as in `ModelReprice`. sum_before_nano_usd, sum_after_nano_usd: over the calls that have a
    cost. as_model: what they were priced as,
    if that was asked for. models: the same by
    routed model, the greatest sum first; days: by day, in order; sessions: the greatest sum first, empty unless
    they were asked for. previous_version: what was current before; `undo_reprice()` goes back to it.
    run_id: its number in the history; None if it was only tried.
    """

    version: str
    label: str
    dry_run: bool
    calls: int
    unpriced: int
    unpriced_before: int
    sum_before_nano_usd: int
    sum_after_nano_usd: int
    models: tuple[ModelReprice, ...]
    days: tuple[DayReprice, ...] = ()
    sessions: tuple[SessionReprice, ...] = ()
    as_model: str | None = None
    previous_version: str | None = None
    run_id: int | None = None
    estimated: int = 0
    unknown: int = 0


class RepriceRun(msgspec.Struct, frozen=True, kw_only=True):
    """One repricing in the file's history.

    id: its number. version, label: the price table's. where: only these calls. started_us, finished_us, undone_us:
    microseconds UTC; finished_us is None if it never came to its end. calls, unpriced, estimated, unknown,
    sum_before_nano_usd, sum_after_nano_usd: as in `RepriceReport`; None until it is finished. last_call: the
    number of the last call that it is to price; done: of the last that it has priced. replaced: the versions that
    were current before, in their order; None if it isn't finished. by_session: whether sessions are to be compared
    as well.
    """

    id: int
    version: str
    where: CallFilter
    started_us: int
    finished_us: int | None
    calls: int | None
    unpriced: int | None
    sum_before_nano_usd: int | None
    sum_after_nano_usd: int | None
    label: str = ""
    last_call: int | None = None
    done: int = 0
    by_session: bool = False
    replaced: tuple[str, ...] | None = None
    undone_us: int | None = None
    estimated: int | None = None
    unknown: int | None = None

    @property
    def state(self) -> Literal["interrupted", "finished", "undone"]:
        """``interrupted`` is also one that is under way now."""
        if self.finished_us is None:
            return "interrupted"
        return "finished" if self.undone_us is None else "undone"

    def current_after(self) -> list[str]:
        """The versions that were current once it had finished."""
        if self.where == CallFilter():
            return [self.version]
        return [self.version, *(version for version in self.replaced or () if version != self.version)]


class CurrentPrices(msgspec.Struct, frozen=True):
    """Which costs are current. versions: the first that has a cost for a call goes; none: those at call time.

    run: the latest repricing that finished.
    """

    versions: tuple[str, ...]
    run: RepriceRun | None

    @property
    def run_id(self) -> int:
        """The number of `run`; 0 if there is none."""
        return self.run.id if self.run is not None else 0


def begin(
    statements: Statements, version: str, where: CallFilter, now_us: int, last_call: int, *, by_session: bool
) -> int:
    """Enter a run; its number."""
    ((run_id,),) = statements.run(
        """
        INSERT INTO reprice_run (version, filter, started_us, last_call, by_session)
        VALUES (?, ?, ?, ?, ?)
        RETURNING id
        """,
        (version, msgspec.json.encode(where).decode(), now_us, last_call, by_session),
    )
    return int(run_id)


def note_progress(statements: Statements, run_id: int, low: int, high: int) -> None:
    """Move a run on; to be called in the transaction of the chunk. Raises StoreError if another moved it."""
    if not statements.run(
        "UPDATE reprice_run SET done = ? WHERE id = ? AND done = ? AND finished_us IS NULL RETURNING id",
        (high, run_id, low),
    ):
        raise StoreError(f"repricing {run_id} is being carried on by somebody else; nothing was changed here")


async def finish(database: Database, run_id: int, report: RepriceReport, where: CallFilter, now_us: int) -> None:
    """Enter what a run did, and make its version the current one; both or neither."""
    sums = (report.calls, report.unpriced, report.sum_before_nano_usd, report.sum_after_nano_usd)
    counts = (report.estimated, report.unknown)

    def work(statements: Statements) -> None:
        replaced = _current(statements)
        if not statements.run(
            """
            UPDATE reprice_run
               SET finished_us = ?, calls = ?, unpriced = ?, sum_before = ?, sum_after = ?,
                   estimated = ?, unknown = ?, replaced = ?
             WHERE id = ? AND finished_us IS NULL
            RETURNING id
            """,
            (now_us, *sums, *counts, msgspec.json.encode(replaced).decode(), run_id),
        ):
            raise StoreError(f"repricing {run_id} was finished by somebody else")
        kept = [] if where == CallFilter() else [version for version in replaced if version != report.version]
        _make_current(statements, [report.version, *kept])

    await database.write(work)


async def undo(database: Database, now_us: int) -> RepriceRun:
    """Take the latest repricing back; the run as it stands now. Its costs stay in the file.

    Raises StoreError if there is none, if other prices were chosen since, and if its version was current before:
    a version has one cost for a call, so there is nothing to go back to.
    """
    run = next((run for run in await history(database) if run.state == "finished"), None)
    if run is None or run.replaced is None:
        raise StoreError(f"{database.path}: there is no repricing to undo")
    if run.version in run.replaced:
        raise StoreError(
            f"{database.path}: repricing {run.id} only went further with price version {run.version}, which was "
            "current before it; the costs that it added can't be told from those. Choose a version, or those at "
            "call time"
        )
    replaced, expected = list(run.replaced), run.current_after()

    def work(statements: Statements) -> None:
        if _current(statements) != expected:
            raise StoreError(
                f"{database.path}: other costs were chosen after repricing {run.id}, so undoing it would not lead "
                "back to them; choose a version, or those at call time"
            )
        _make_current(statements, replaced)
        statements.run("UPDATE reprice_run SET undone_us = ? WHERE id = ?", (now_us, run.id))

    await database.write(work)
    return msgspec.structs.replace(run, undone_us=now_us)


async def interrupted(database: Database, run_id: int | None) -> RepriceRun:
    """The run of that number, or the latest, that did not finish. Raises StoreError if there is none."""
    open_runs = [
        run for run in await history(database) if run.state == "interrupted" and run.last_call is not None
    ]
    for run in open_runs:
        if run_id is None or run.id == run_id:
            return run
    there = ", ".join(str(run.id) for run in open_runs) or "none"
    which = "" if run_id is None else f" with the number {run_id}"
    raise StoreError(f"{database.path}: there is no interrupted repricing{which}; interrupted are: {there}")


async def history(database: Database) -> list[RepriceRun]:
    """All repricings, the newest first."""
    rows = await database.read(
        """
        SELECT r.id, r.version, r.filter, r.started_us, r.finished_us, r.calls, r.unpriced, r.sum_before,
               r.sum_after, coalesce(v.label, ''), r.last_call, r.done, r.by_session, r.replaced, r.undone_us,
               r.estimated, r.unknown
          FROM reprice_run AS r
          LEFT JOIN price_version AS v ON v.version = r.version
         ORDER BY r.id DESC
        """
    )
    fields = RepriceRun.__struct_fields__
    found = []
    for row in rows:
        named = dict(zip(fields, row, strict=True))
        named["where"] = msgspec.json.decode(named["where"], type=CallFilter)
        named["by_session"] = bool(named["by_session"])
        if named["replaced"] is not None:
            named["replaced"] = msgspec.json.decode(named["replaced"], type=tuple[str, ...])
        found.append(RepriceRun(**named))
    return found


async def current_prices(database: Database) -> CurrentPrices:
    """Two reads of tables with a few rows."""
    versions = await database.read("SELECT version FROM current_version ORDER BY position")
    run = next((run for run in await history(database) if run.finished_us is not None), None)
    return CurrentPrices(tuple(version for (version,) in versions), run)


def _current(statements: Statements) -> list[str]:
    return [version for (version,) in statements.run("SELECT version FROM current_version ORDER BY position")]


def _make_current(statements: Statements, versions: list[str]) -> None:
    statements.run("DELETE FROM current_version")
    statements.run_many("INSERT INTO current_version (position, version) VALUES (?, ?)", enumerate(versions))
