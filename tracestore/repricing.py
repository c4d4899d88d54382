"""Recomputing what stored calls cost, set-based and append-only.

1. Every distinct (provider, model, served model) among the calls is resolved once, in Python, into segments:
   boxes of time and size with one price row each. They go into a temporary table.
2. One ``INSERT ... SELECT`` per 50,000 calls joins calls with segments and writes a cost, or the reason why there
   is none. Between two of these transactions other writers get their turn.
3. Only when all are written does the version become the current one. A repricing that dies half-way has changed
   nothing that anyone sees; running it again goes on where rows are missing.

Nothing is ever edited: neither events, nor the costs at call time, nor a cost under a version, because the same
version always gives the same cost. The SQL (`tracestore.price_sql`) follows `PriceTable.explain` case by case; a
property test holds the two together to the nano-dollar.

A repricing of *some* calls puts its version in front of the current one: the other calls keep the cost they had.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import msgspec

from bus.clock import Clock
from bus.errors import ConfigurationError, StoreError

from .database import Database, Row, Statements
from .insert import SqlValue
from .price_rows import PriceAlias, PriceRow
from .price_sql import PRICE_CHUNK, compile_table
from .prices import PriceTable
from .queries import CURRENT_VERSION_OF_CALL, CallFilter

CHUNK = 50_000
"""Calls per transaction."""


_ROW_COLUMNS = tuple(PriceRow.__struct_fields__)
_Sums: TypeAlias = dict[str, list[int]]


class ModelReprice(msgspec.Struct, frozen=True):
    """What a repricing did to one model's calls. Sums are nano-USD over the calls that have a cost."""

    model: str
    calls: int
    unpriced: int
    before_nano_usd: int
    after_nano_usd: int
    unpriced_before: int = 0


class RepriceReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a repricing did, or would do.

    calls: those with usage that match the filter. unpriced: those of them without a cost in this version;
    unpriced_before: without one until now. Sums are nano-USD over the calls that have a cost. models: the same by
    routed model, the greatest sum first. previous_version: what to give to `use_prices()` to undo it.
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
    as_model: str | None = None
    previous_version: str | None = None


class RepriceRun(msgspec.Struct, frozen=True, kw_only=True):
    """One repricing in the file's history. finished_us: None if it never came to its end."""

    id: int
    version: str
    where: CallFilter
    started_us: int
    finished_us: int | None
    calls: int | None
    unpriced: int | None
    sum_before_nano_usd: int | None
    sum_after_nano_usd: int | None


_KEEP_CHUNK = """
    INSERT INTO call_cost (price_version, call_id, cost_nano, reason)
    SELECT ?, id, nano, reason FROM temp.reprice_cost WHERE true
    ON CONFLICT (price_version, call_id) DO NOTHING
"""

_WRITTEN = """
    SELECT count(k.call_id), coalesce(sum(k.cost_nano), 0)
      FROM temp.reprice_cost AS a
      LEFT JOIN call_cost AS k ON k.call_id = a.id AND k.price_version = ?
"""

_SUM_BY_MODEL = f"""
    SELECT a.model, count(*),
           sum(a.nano IS NULL), coalesce(sum(a.nano), 0),
           sum(b.nano IS NULL), coalesce(sum(b.nano), 0)
      FROM temp.reprice_cost AS a
      JOIN (
            SELECT c.id, CASE WHEN k.call_id IS NULL THEN c.cost_nano ELSE k.cost_nano END AS nano
              FROM calls AS c
              LEFT JOIN call_cost AS k ON k.call_id = c.id AND k.price_version = {CURRENT_VERSION_OF_CALL}
           ) AS b ON b.id = a.id
     GROUP BY a.model
"""


class Repricing:
    """One repricing of one store."""

    def __init__(
        self, database: Database, clock: Clock, table: PriceTable, where: CallFilter, as_model: str | None
    ) -> None:
        self._database = database
        self._clock = clock
        self._table = table
        self._where = where
        self._as_model = as_model
        self._condition, self._values = where.condition()

    async def run(self, *, dry: bool) -> RepriceReport:
        """Price all calls up to now; with `dry` nothing is written."""
        previous = await current_version(self._database)
        last = await self._last_call()
        await self._either(dry, self._compile)
        sums: _Sums = {}
        run_id = None if dry else await self._begin()
        for low in range(0, last, CHUNK):
            high = min(low + CHUNK, last)

            def work(statements: Statements, low: int = low, high: int = high) -> list[Row]:
                return (self._measure if dry else self._price)(statements, low, high)

            for model, *numbers in await self._either(dry, work):
                sums[model] = [a + b for a, b in zip(sums.get(model, [0] * 5), numbers, strict=True)]
        report = self._report(sums, dry, previous)
        if run_id is not None:
            await self._finish(run_id, report)
        return report

    async def _either(self, dry: bool, work: Callable[[Statements], list[Row]]) -> list[Row]:
        return await (self._database.look(work) if dry else self._database.write(work))

    async def _last_call(self) -> int:
        ((last,),) = await self._database.read("SELECT coalesce(max(id), 0) FROM calls")
        return int(last)

    def _compile(self, statements: Statements) -> list[Row]:
        compile_table(statements, self._table, self._condition, self._values, self._as_model)
        return []

    async def _begin(self) -> int:
        table, where, now = self._table, msgspec.json.encode(self._where).decode(), self._clock.now_us()

        def work(statements: Statements) -> int:
            save_table(statements, table, now)
            ((run_id,),) = statements.run(
                "INSERT INTO reprice_run (version, filter, started_us) VALUES (?, ?, ?) RETURNING id",
                (table.version, where, now),
            )
            return int(run_id)

        return await self._database.write(work)

    def _measure(self, statements: Statements, low: int, high: int) -> list[Row]:
        """Work out the costs of one chunk; by model, what its calls cost now and what they would cost."""
        statements.run("DELETE FROM temp.reprice_cost")
        statements.run(PRICE_CHUNK.format(condition=self._condition), [low, high, *self._values])
        return statements.run(_SUM_BY_MODEL)

    def _price(self, statements: Statements, low: int, high: int) -> list[Row]:
        """Keep the costs of one chunk, and check that what is there now is what was worked out."""
        rows = self._measure(statements, low, high)
        version = self._table.version
        statements.run(_KEEP_CHUNK, [version])
        ((calls, total),) = statements.run(_WRITTEN, [version])
        if (calls, total) != (sum(row[1] for row in rows), sum(row[3] for row in rows)):
            raise StoreError(
                f"{self._database.path}: the costs stored under price version {version} for calls {low + 1} to "
                f"{high} are not what its prices give; nothing was changed"
            )
        return rows

    def _report(self, sums: _Sums, dry: bool, previous: str | None) -> RepriceReport:
        totals = [sum(column) for column in zip(*sums.values(), strict=True)] or [0] * 5
        calls, unpriced, after, unpriced_before, before = totals
        models = [ModelReprice(model, n[0], n[1], n[4], n[2], n[3]) for model, n in sums.items()]
        return RepriceReport(
            version=self._table.version,
            label=self._table.label,
            dry_run=dry,
            calls=calls,
            unpriced=unpriced,
            unpriced_before=unpriced_before,
            sum_before_nano_usd=before,
            sum_after_nano_usd=after,
            models=tuple(sorted(models, key=lambda row: (-row.after_nano_usd, row.model))),
            as_model=self._as_model,
            previous_version=previous,
        )

    async def _finish(self, run_id: int, report: RepriceReport) -> None:
        now = self._clock.now_us()
        sums = (report.calls, report.unpriced, report.sum_before_nano_usd, report.sum_after_nano_usd)

        def work(statements: Statements) -> None:
            statements.run(
                """
                UPDATE reprice_run
                   SET finished_us = ?, calls = ?, unpriced = ?, sum_before = ?, sum_after = ?
                 WHERE id = ?
                """,
                (now, *sums, run_id),
            )
            if self._where == CallFilter():
                statements.run("DELETE FROM current_version")
            else:
                statements.run("DELETE FROM current_version WHERE version = ?", (report.version,))
            statements.run(
                """
                INSERT INTO current_version (position, version)
                SELECT coalesce(min(position), 1) - 1, ? FROM current_version
                """,
                (report.version,),
            )

        await self._database.write(work)


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


async def history(database: Database) -> list[RepriceRun]:
    """All repricings, the newest first."""
    rows = await database.read(
        """
        SELECT id, version, filter, started_us, finished_us, calls, unpriced, sum_before, sum_after
          FROM reprice_run
         ORDER BY id DESC
        """
    )
    return [
        RepriceRun(
            id=row[0],
            version=row[1],
            where=msgspec.json.decode(row[2], type=CallFilter),
            started_us=row[3],
            finished_us=row[4],
            calls=row[5],
            unpriced=row[6],
            sum_before_nano_usd=row[7],
            sum_after_nano_usd=row[8],
        )
        for row in rows
    ]


async def _refuse_unknown(database: Database, version: str) -> None:
    known = await database.read("SELECT version, label FROM price_version ORDER BY loaded_us DESC LIMIT 10")
    names = ", ".join(f"{name} ({label})" for name, label in known) or "none yet"
    raise StoreError(f"{database.path} knows no price version {version!r}; it knows {names}")
