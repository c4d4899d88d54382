"""Recomputing what stored calls cost, set-based and append-only.

1. Every distinct (provider, model, served model) among the calls is resolved once, in Python, into segments:
   boxes of time and size with one price row each (`price_sql`). They go into a temporary table.
2. 10,000 calls at a time are joined with segments; their costs, or the reasons why there are none, go into a
   temporary table and from there into the file, and are added up on the way: the calls themselves, whose rows are
   large, are read once. Between two of these transactions other writers get their turn.
3. Only when all are written does the version become the current one. A repricing that dies half-way has changed
   nothing that anyone sees. The file says how far it came, in the transaction of the costs themselves, so that
   `resume` goes on from there and ends with the same report (`reprice_runs` keeps that book).

Nothing is ever edited: neither events, nor the costs at call time, nor a cost under a version, because the same
version always gives the same cost. The SQL (`tracestore.price_sql`) follows `PriceTable.explain` case by case; a
property test holds the two together to the nano-dollar.

A repricing of *some* calls puts its version in front of the current one: the other calls keep the cost they had.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import msgspec

from bus.clock import Clock
from bus.errors import ConfigurationError, StoreError

from .call_sums import RepricedGroup, add_repriced
from .database import Database, Row, Statements
from .insert import SqlValue
from .price_rows import PriceAlias, PriceRow
from .price_sql import Pricer, key_and_day
from .prices import PriceTable
from .queries import CURRENT_VERSION_OF_CALL, CallFilter
from .reprice_runs import RepriceReport, RepriceRun, begin, finish, note_progress, sums_of

CHUNK = 10_000
"""Calls per transaction, which takes some 30 ms: so few that what is worked on stays in the processor's cache."""


_ROW_COLUMNS = tuple(PriceRow.__struct_fields__)
OnProgress: TypeAlias = Callable[[int, int], None]
"""Told the number of the last call that is done and of the last there is, between chunks. What it raises stops
the repricing there, as a kill would: it can be resumed."""


_SUMS_TABLE = (
    """
    CREATE TEMP TABLE IF NOT EXISTS reprice_sum (
        run              INTEGER NOT NULL,
        model            TEXT NOT NULL,
        day              INTEGER NOT NULL,
        session          TEXT NOT NULL,
        calls            INTEGER NOT NULL,
        unpriced         INTEGER NOT NULL,
        after            INTEGER NOT NULL,
        unpriced_before  INTEGER NOT NULL,
        before           INTEGER NOT NULL,
        PRIMARY KEY (run, model, day, session)
    ) WITHOUT ROWID
    """,
    "DELETE FROM temp.reprice_sum",
)

# Of each group: calls, those with a cost and its sum; the same of the costs at call time, and of those before.
_SUMS = """
    SELECT a.place, {session}, count(*), count(a.nano), coalesce(sum(a.nano), 0),
           count(a.at_call), coalesce(sum(a.at_call), 0),
           {before}
      FROM {source}
     GROUP BY a.place{also}
"""

# Where the costs before are: with the calls; under one version, for all of these calls; or to be looked for.
_AT_CALL = ("temp.reprice_cost AS a", "count(a.at_call), coalesce(sum(a.at_call), 0)")
_UNDER_VERSION = (
    """(SELECT k.call_id, k.cost_nano FROM call_cost AS k
         WHERE k.price_version = (SELECT version FROM current_version) AND k.call_id > ? AND k.call_id <= ?) AS k
       CROSS JOIN temp.reprice_cost AS a ON a.id = k.call_id""",
    "count(k.cost_nano), coalesce(sum(k.cost_nano), 0)",
)
_BEFORE = "CASE WHEN k.call_id IS NULL THEN a.at_call ELSE k.cost_nano END"
_ANYWHERE = (
    f"""temp.reprice_cost AS a
        LEFT JOIN call_cost AS k
          ON k.call_id = a.id AND k.price_version = {CURRENT_VERSION_OF_CALL.replace("c.id", "a.id")}""",
    f"count({_BEFORE}), coalesce(sum({_BEFORE}), 0)",
)

_ADD_SUMS = """
    INSERT INTO {table} (run, model, day, session, calls, unpriced, after, unpriced_before, before)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)
        ON CONFLICT (run, model, day, session) DO UPDATE SET
           calls = calls + excluded.calls,
           unpriced = unpriced + excluded.unpriced,
           after = after + excluded.after,
           unpriced_before = unpriced_before + excluded.unpriced_before,
           before = before + excluded.before
"""

_KEEP = """
    INSERT INTO call_cost (price_version, call_id, cost_nano, reason)
    SELECT ?, a.id, a.nano, a.reason FROM temp.reprice_cost AS a
"""
_KEPT = "call_cost AS k WHERE k.price_version = ? AND k.call_id > ? AND k.call_id <= ?"
_KEPT_DIFFERENTLY = f"""
    SELECT 1 FROM temp.reprice_cost AS a, {_KEPT} AND k.call_id = a.id AND k.cost_nano IS NOT a.nano LIMIT 1
"""


class _Group(NamedTuple):
    """Sums over calls of one model, day and session."""

    place: int
    session: str
    calls: int
    priced: int
    after: int
    priced_at_call: int
    at_call: int
    priced_before: int
    before: int


class Repricing:
    """One repricing of one store. by_session: sums are kept for each session as well."""

    def __init__(
        self,
        database: Database,
        clock: Clock,
        table: PriceTable,
        where: CallFilter,
        as_model: str | None,
        *,
        by_session: bool = False,
        progress: OnProgress | None = None,
    ) -> None:
        self._database = database
        self._clock = clock
        self._table = table
        self._where = where
        self._as_model = as_model
        self._by_session = by_session
        self._progress = progress
        self._pricer = Pricer(table, *where.condition(), as_model, by_session=by_session)

    async def run(self, *, dry: bool) -> RepriceReport:
        """Price all calls up to now; with `dry` nothing is written."""
        previous = await current_version(self._database)
        last = await self._last_call()
        run_id = 0 if dry else await self._begin(last)
        return await self._go_on(run_id, 0, last, dry, previous)

    async def resume(self, run: RepriceRun) -> RepriceReport:
        """Go on with one that was interrupted, from the first chunk that was not committed."""
        previous = await current_version(self._database)
        return await self._go_on(run.id, run.done, run.last_call or 0, False, previous)

    async def _go_on(self, run_id: int, done: int, last: int, dry: bool, previous: str | None) -> RepriceReport:
        await self._either(dry, self._prepare)
        for low in range(done, last, CHUNK):
            high = min(low + CHUNK, last)

            def work(statements: Statements, low: int = low, high: int = high) -> None:
                (self._measure if dry else self._price)(statements, run_id, low, high)

            await self._either(dry, work)
            if self._progress is not None:
                self._progress(high, last)
        report = RepriceReport(
            version=self._table.version,
            label=self._table.label,
            dry_run=dry,
            as_model=self._as_model,
            previous_version=previous,
            run_id=run_id or None,
            **await sums_of(self._database, "temp.reprice_sum" if dry else "main.reprice_sum", run_id),
        )
        if not dry:
            await finish(self._database, run_id, report, self._where, self._clock.now_us())
        return report

    async def _either(self, dry: bool, work: Callable[[Statements], None]) -> None:
        await (self._database.look(work) if dry else self._database.write(work))

    async def _last_call(self) -> int:
        ((last,),) = await self._database.read("SELECT coalesce(max(id), 0) FROM calls")
        return int(last)

    def _prepare(self, statements: Statements) -> None:
        self._pricer.prepare(statements)
        for sql in _SUMS_TABLE:
            statements.run(sql)

    async def _begin(self, last: int) -> int:
        table, where, now = self._table, self._where, self._clock.now_us()

        def work(statements: Statements) -> int:
            save_table(statements, table, now)
            return begin(statements, table.version, where, now, last, by_session=self._by_session)

        return await self._database.write(work)

    def _measure(
        self, statements: Statements, run_id: int, low: int, high: int, kept: str = "temp."
    ) -> list[_Group]:
        """Work out the costs of one chunk, and add to the sums what its calls cost now and what they would."""
        self._pricer.price(statements, low, high)
        groups = self._sums(statements, low, high)
        rows: list[list[SqlValue]] = []
        for group in groups:
            (_, model), day = self._model_and_day(group)
            unpriced, unpriced_before = group.calls - group.priced, group.calls - group.priced_before
            sums = (group.calls, unpriced, group.after, unpriced_before, group.before)
            rows.append([run_id, model, day, group.session, *sums])
        statements.run_many(_ADD_SUMS.format(table=f"{kept}reprice_sum"), rows)
        return groups

    def _model_and_day(self, group: _Group) -> tuple[tuple[str, str], int]:
        key, day = key_and_day(group.place)
        return self._pricer.models[key], day

    def _sums(self, statements: Statements, low: int, high: int) -> list[_Group]:
        ((versions,),) = statements.run("SELECT count(*) FROM current_version")
        if not versions:
            return self._grouped(statements, _AT_CALL)
        if versions == 1:
            # Mostly all of a chunk was repriced before or nothing; then it needn't be looked for call by call.
            groups = self._grouped(statements, _UNDER_VERSION, (low, high))
            ((calls,),) = statements.run("SELECT count(*) FROM temp.reprice_cost")
            if sum(group.calls for group in groups) == calls:
                return groups
        return self._grouped(statements, _ANYWHERE)

    def _grouped(
        self, statements: Statements, before: tuple[str, str], values: tuple[int, ...] = ()
    ) -> list[_Group]:
        source, sums = before
        session, also = ("a.session", ", a.session") if self._by_session else ("''", "")
        return [
            _Group(*row)
            for row in statements.run(_SUMS.format(source=source, before=sums, session=session, also=also), values)
        ]

    def _price(self, statements: Statements, run_id: int, low: int, high: int) -> None:
        """Keep the costs of one chunk."""
        groups = self._measure(statements, run_id, low, high, "main.")
        version = self._table.version
        kept = (version, low, high)
        if statements.run(f"SELECT 1 FROM {_KEPT} LIMIT 1", kept):
            if statements.run(_KEPT_DIFFERENTLY, kept):
                raise StoreError(
                    f"{self._database.path}: the costs stored under price version {version} for calls {low + 1} "
                    f"to {high} are not what its prices give; nothing was changed"
                )
            statements.run(f"DELETE FROM temp.reprice_cost WHERE id IN (SELECT k.call_id FROM {_KEPT})", kept)
            groups = self._grouped(statements, _AT_CALL)
        statements.run(_KEEP, [version])
        more: list[RepricedGroup] = []
        for group in groups:
            (provider, model), day = self._model_and_day(group)
            unpriced = group.priced_at_call - group.priced
            more.append((day, provider, model, group.calls, group.after - group.at_call, unpriced))
        add_repriced(statements, version, more)
        note_progress(statements, run_id, low, high)


# -- Versions


def save_table(statements: Statements, table: PriceTable, now_us: int) -> None:
    """Keep a table in the file; a version that is there already stays as it is."""
    added = statements.run(
        """
        INSERT INTO price_version (version, label, loaded_us) VALUES (?, ?, ?)
        ON CONFLICT (version) DO NOTHING
        RETURNING version
        """,
        (table.version, table.label, now_us),
    )
    if added:
        statements.run_many(
            f"""
            INSERT INTO price_row (version, position, {", ".join(_ROW_COLUMNS)})
            VALUES (?, ?, {", ".join("?" * len(_ROW_COLUMNS))})
            """,
            [
                [table.version, position, *(_stored(getattr(row, name)) for name in _ROW_COLUMNS)]
                for position, row in enumerate(table.rows)
            ],
        )
        statements.run_many(
            "INSERT INTO price_alias (version, position, pattern, target, reference) VALUES (?, ?, ?, ?, ?)",
            [
                [table.version, position, alias.pattern, alias.target, int(alias.reference)]
                for position, alias in enumerate(table.aliases)
            ],
        )


def _stored(value: object) -> SqlValue:
    if isinstance(value, dict):
        return msgspec.json.encode(value, order="deterministic").decode()
    assert value is None or isinstance(value, str | int)
    return int(value) if isinstance(value, bool) else value


def _row_of(values: Row) -> PriceRow:
    fields = dict(zip(_ROW_COLUMNS, values, strict=True))
    fields["extra"] = msgspec.json.decode(fields["extra"])
    fields["reference"] = bool(fields["reference"])
    return PriceRow(**fields)


async def stored_table(database: Database, version: str) -> PriceTable:
    """A price table of the file. Raises StoreError, naming the known ones, if it isn't there."""
    labels = await database.read("SELECT label FROM price_version WHERE version = ?", (version,))
    if not labels:
        await _refuse_unknown(database, version)
    rows = await database.read(
        f"SELECT {', '.join(_ROW_COLUMNS)} FROM price_row WHERE version = ? ORDER BY position", (version,)
    )
    aliases = await database.read(
        "SELECT pattern, target, reference FROM price_alias WHERE version = ? ORDER BY position", (version,)
    )
    try:
        return PriceTable(
            map(_row_of, rows),
            label=labels[0][0],
            aliases=[PriceAlias(pattern, target, bool(flag)) for pattern, target, flag in aliases],
        )
    except ConfigurationError as error:
        raise StoreError(f"{database.path}: price version {version} is damaged: {error}") from error


async def stored_tables(database: Database) -> list[PriceTable]:
    """All price tables of the file, the oldest first."""
    versions = await database.read("SELECT version FROM price_version ORDER BY loaded_us, version")
    return [await stored_table(database, version) for (version,) in versions]


async def current_version(database: Database) -> str | None:
    """The version whose costs go first; None if those at call time are the current ones."""
    rows = await database.read("SELECT version FROM current_version ORDER BY position LIMIT 1")
    return str(rows[0][0]) if rows else None


async def use_prices(database: Database, version: str | None) -> None:
    """Make the costs of one repriced version the current ones; None: those at call time."""
    if version is not None and not await database.read(
        "SELECT 1 FROM price_version WHERE version = ?", (version,)
    ):
        await _refuse_unknown(database, version)

    def work(statements: Statements) -> None:
        statements.run("DELETE FROM current_version")
        if version is not None:
            statements.run("INSERT INTO current_version (position, version) VALUES (0, ?)", (version,))

    await database.write(work)


async def _refuse_unknown(database: Database, version: str) -> None:
    known = await database.read("SELECT version, label FROM price_version ORDER BY loaded_us DESC LIMIT 10")
    names = ", ".join(f"{name} ({label})" for name, label in known) or "none yet"
    raise StoreError(f"{database.path} knows no price version {version!r}; it knows {names}")
