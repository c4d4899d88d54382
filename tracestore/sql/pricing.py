"""Prices in a trace: stored tables, and the pricing of many calls."""

from __future__ import annotations

import msgspec

from callboard.bus.errors import ConfigurationError, StoreError

from ..prices.rows import BUCKETS, DAY_SECONDS, MAX_INT64, US_PER_SECOND, PriceAlias, PriceRow
from ..prices.table import PriceTable, Segment, tier_words
from .connection import Database, PricingDialect, Row, Sql, SqlValue, Statements, placeholders
from .price_statements import DAYS, INSERT_MODEL, INSERT_PLAIN, INSERT_RATE, INSERT_SEGMENT, price_statements
from .sums import make_current, runs_of

# --- Stored price tables ---
#
# A trace stores each version once and never changes it. It also stores which costs are current.


_ROW_COLUMNS = tuple(PriceRow.__struct_fields__)


def save_table(statements: Statements, table: PriceTable, now_us: int) -> None:
    """Store a price table. A version that is already stored is not changed."""
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
            VALUES (?, ?, {placeholders(len(_ROW_COLUMNS))})
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


def table_of(statements: Statements, version: str) -> PriceTable:
    """A price table of the trace. Raises StoreError if the table is missing or incomplete."""
    labels = statements.run("SELECT label FROM price_version WHERE version = ?", (version,))
    rows = statements.run(
        f"SELECT {', '.join(_ROW_COLUMNS)} FROM price_row WHERE version = ? ORDER BY position", (version,)
    )
    aliases = statements.run(
        "SELECT pattern, target, reference FROM price_alias WHERE version = ? ORDER BY position", (version,)
    )
    try:
        return PriceTable(
            map(_row_of, rows),
            label=labels[0][0],
            aliases=[PriceAlias(pattern, target, bool(flag)) for pattern, target, flag in aliases],
        )
    except (ConfigurationError, IndexError) as error:
        raise StoreError(f"price version {version} is damaged: {error}") from error


async def stored_table(database: Database, version: str) -> PriceTable:
    """A price table of the trace. Raises StoreError for an unknown version; the text lists the known versions."""
    if not await database.read("SELECT 1 FROM price_version WHERE version = ?", (version,)):
        await _refuse_unknown(database, version)
    return await database.look(lambda statements: table_of(statements, version))


async def stored_tables(database: Database) -> list[PriceTable]:
    """All price tables of the trace, the oldest first."""
    versions = await database.read("SELECT version FROM price_version ORDER BY loaded_us, version")
    return [await stored_table(database, version) for (version,) in versions]


def current_version(statements: Statements) -> str | None:
    """The version that sets the current costs; None if these are the costs at call time."""
    rows = statements.run(
        "SELECT r.version FROM current_run AS c JOIN reprice_run AS r ON r.id = c.run ORDER BY c.position LIMIT 1"
    )
    return str(rows[0][0]) if rows else None


async def use_prices(database: Database, version: str | None) -> None:
    """Make the costs under one version the current costs; None means the costs at call time."""
    if version is not None and not await database.read(
        "SELECT 1 FROM price_version WHERE version = ?", (version,)
    ):
        await _refuse_unknown(database, version)

    def work(statements: Statements) -> None:
        runs = [] if version is None else runs_of(statements, version)
        if version is not None and not runs:
            raise StoreError(f"{database.name}: no repricing under price version {version!r} has finished")
        make_current(statements, runs)

    await database.write(work)


async def _refuse_unknown(database: Database, version: str) -> None:
    versions = await database.read("SELECT version, label FROM price_version ORDER BY loaded_us DESC LIMIT 10")
    names = ", ".join(f"{name} ({label})" for name, label in versions) or "none yet"
    raise StoreError(f"{database.name} has no price version {version!r}. It has {names}")


# --- Pricing many calls ---
#
# `PriceTable.explain` as SQL; a property test compares the two. Calls name their model in many ways. Each distinct
# way is resolved once, in Python, into segments: ranges of time, hours and size with one price row each. Segments
# are in temporary tables, which are joined with the calls. `reprice_cost` contains the nano-USD of each call, or
# the reason why the call has no cost. The statements are in `price_statements`: `plain` prices almost every call,
# and `any` the rest.


_EVER = (-MAX_INT64, MAX_INT64, -1, MAX_INT64, 0, DAY_SECONDS * US_PER_SECOND)


class Pricer:
    """Prices calls under one table, some thousands at a time. The pricer's temporary tables belong to one
    connection.
    """

    def __init__(
        self, table: PriceTable, dialect: PricingDialect, which: Sql, as_model: str | None, *, by_session: bool
    ) -> None:
        self._table = table
        condition, self._values = which
        self._sql = price_statements(dialect)
        self._unknown_rate = dialect.unknown_rate
        self._as_model = as_model
        self.by_session = by_session
        session = "coalesce(c.session_id, '')" if by_session else "NULL"
        self._plain = self._sql.plain.format(session=session, condition=condition)
        self._rows: list[PriceRow] = []  # the price rows of the segments, by their numbers
        self._details: list[str] = []
        self._models: list[tuple[str, str]] = []  # provider and model of each key

    def prepare(self, statements: Statements) -> None:
        """Create the temporary tables, or empty them."""
        for sql in self._sql.prepare:
            statements.run(sql)

    def price(self, statements: Statements, low: int, high: int) -> None:
        """Fill `reprice_cost` with the calls from `low`, exclusive, to `high`."""
        self._price_plain(statements, low, high)
        if not statements.run(self._sql.unpriced):
            return
        if self._learn_models(statements):
            self._price_plain(statements, low, high)
        self._learn_details(statements)
        statements.run(self._sql.any)

    def model_and_day(self, place: int) -> tuple[str, str, int]:
        """Return provider, model and day of a `reprice_cost.place`."""
        key, day = divmod(place + DAYS // 2, DAYS)
        return *self._models[key], day - DAYS // 2

    def _price_plain(self, statements: Statements, low: int, high: int) -> None:
        statements.run(self._sql.empty)
        statements.run(self._plain, [low, high, *self._values])

    def _learn_models(self, statements: Statements) -> bool:
        """Resolve new models to segments. Return whether there were any."""
        found = statements.run(self._sql.new_models)
        for names in found:
            self._add_model(statements, names)
        for sql in self._sql.learned if found else ():
            statements.run(sql)
        return bool(found)

    def _add_model(self, statements: Statements, names: Row) -> None:
        provider, model, served, priced_as, tier = names
        key = len(self._models)
        self._models.append((provider, model))
        name = self._as_model or model
        statements.run(INSERT_MODEL, [key, *names, name, name + tier_words(tier)])
        served_as, published = (None, None) if self._as_model else (served or None, priced_as or None)
        for part in self._table.segments(name, served_as, published, tier or None):
            self._add_segment(statements, key, names, part)

    def _add_segment(self, statements: Statements, key: int, names: Row, part: Segment) -> None:
        provider, model, served, priced_as, tier = names
        number, row = len(self._rows), part.row
        self._rows.append(row)
        box = (part.since, part.until, part.above, part.up_to, part.daily_from, part.daily_to)
        rates = [row.rate(bucket) for bucket in BUCKETS]
        as_input = row.as_input("cache_read") + 2 * row.as_input("cache_write_5m")
        statements.run(INSERT_SEGMENT, [number, key, *box, *rates, row.per_request, as_input])
        stored_rates = [self._unknown_rate if rate is None else rate for rate in rates]
        rated = [*stored_rates, row.per_request, as_input]
        statements.run(
            INSERT_PLAIN,
            [
                served,
                model,
                number,
                provider,
                priced_as or None,
                tier or None,
                int(box == _EVER),
                key,
                *rated,
                *box,
            ],
        )
        self._add_rates(statements, number, self._details)

    def _learn_details(self, statements: Statements) -> None:
        """Look up the rates of new token details."""
        new = sorted({str(name) for (name,) in statements.run(self._sql.detail_names)} - {*self._details})
        self._details += new
        for number in range(len(self._rows) if new else 0):
            self._add_rates(statements, number, new)

    def _add_rates(self, statements: Statements, segment: int, names: list[str]) -> None:
        row = self._rows[segment]
        rates = [
            (segment, name, rate, int(row.as_input(name)))
            for name in names
            if (rate := row.rate(name)) is not None
        ]
        statements.run_many(INSERT_RATE, rates)
