"""Prices in a trace: stored tables, and the pricing of many calls."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from callboard.bus.errors import ConfigurationError, StoreError
from callboard.bus.values.usage import USAGE_PARTS, UsageSource

from ..prices.rows import BUCKETS, DAY_SECONDS, MAX_INT64, NO_CACHE_RATE, US_PER_SECOND, PriceAlias, PriceRow
from ..prices.table import INCONSISTENT, MOST_PICO, TOO_LARGE, PriceTable, Segment, tier_words
from .connection import (
    ColumnType,
    Database,
    PricingDialect,
    Row,
    Sql,
    SqlValue,
    Statements,
    TemporaryTable,
    placeholders,
)
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
    await _check_known(database, version)
    return await database.look(lambda statements: table_of(statements, version))


async def stored_tables(database: Database) -> list[PriceTable]:
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
    if version is not None:
        await _check_known(database, version)

    def work(statements: Statements) -> None:
        runs = [] if version is None else runs_of(statements, version)
        if version is not None and not runs:
            raise StoreError(f"{database.name}: no repricing under price version {version!r} has finished")
        make_current(statements, runs)

    await database.write(work)


async def _check_known(database: Database, version: str) -> None:
    if await database.read("SELECT 1 FROM price_version WHERE version = ?", (version,)):
        return
    versions = await database.read("SELECT version, label FROM price_version ORDER BY loaded_us DESC LIMIT 10")
    names = ", ".join(f"{name} ({label})" for name, label in versions) or "none yet"
    raise StoreError(f"{database.name} has no price version {version!r}. It has {names}")


# --- Pricing many calls ---
#
# `PriceTable.explain` as SQL; a property test compares the two. Calls name their model in many ways. Each distinct
# way is resolved once, in Python, into segments: ranges of time, hours and size with one price row each. Segments
# are in temporary tables, which are joined with the calls. `reprice_cost` contains the nano-USD of each call, or
# the reason why the call has no cost.


_EVER = (-MAX_INT64, MAX_INT64, -1, MAX_INT64, 0, DAY_SECONDS * US_PER_SECOND)

_MODEL: dict[str, ColumnType] = {
    "key": "INTEGER",
    **dict.fromkeys(("provider", "model", "served", "priced_as", "tier", "name", "no_price"), "TEXT"),
}
_BOX: dict[str, ColumnType] = dict.fromkeys(
    ("since", "until", "above", "up_to", "daily_from", "daily_to"), "INTEGER"
)
"""The columns for the limits of a segment: times, numbers of input tokens, and hours of the day."""

_PRICES = (*BUCKETS, "per_request")
_SEGMENT: dict[str, ColumnType] = dict.fromkeys(("id", "key", *_BOX, *_PRICES, "as_input"), "INTEGER")
_PLAIN: dict[str, ColumnType] = {
    **{"served": "TEXT", "model": "TEXT", "segment": "INTEGER"},
    **{"provider": "TEXT", "priced_as": "TEXT", "tier": "TEXT"},
    "always": "INTEGER",  # 1 if the segment applies at any time, hour and size
    "key": "INTEGER",
    **dict.fromkeys(_PRICES, "RATE"),
    "as_input": "INTEGER",  # 1: reads from a cache, 2: writes, 3: both
    **_BOX,
}
_TABLES = (
    TemporaryTable("reprice_model", _MODEL, ("model", "provider", "served", "priced_as", "tier")),
    TemporaryTable("reprice_segment", _SEGMENT, ("key", "since", "id")),
    TemporaryTable(
        "reprice_rate",
        {"segment": "INTEGER", "name": "TEXT", "rate": "INTEGER", "as_input": "INTEGER"},
        ("segment", "name"),
    ),
    # The segments by name, for ordinary calls. The key has only the most selective columns, because each is
    # compared for each call.
    TemporaryTable("reprice_plain", _PLAIN, ("served", "model", "segment")),
    # Rows are appended in the order of the calls and only scanned.
    TemporaryTable(
        "reprice_cost",
        {
            "id": "INTEGER",  # the call's id
            "place": "INTEGER",  # the key of `reprice_model` and the day in one number, see `DAYS`
            "nano": "INTEGER",
            "at_call": "INTEGER",  # the cost at call time, in nano-USD
            "session": "TEXT",  # NULL unless sessions were requested
            "reason": "TEXT",
        },
    ),
)

INSERT_MODEL = f"INSERT INTO reprice_model ({', '.join(_MODEL)}) VALUES ({placeholders(len(_MODEL))})"
INSERT_SEGMENT = f"INSERT INTO reprice_segment ({', '.join(_SEGMENT)}) VALUES ({placeholders(len(_SEGMENT))})"
INSERT_PLAIN = f"INSERT INTO reprice_plain ({', '.join(_PLAIN)}) VALUES ({placeholders(len(_PLAIN))})"
INSERT_RATE = """
    INSERT INTO reprice_rate (segment, name, rate, as_input) VALUES (?, ?, ?, ?)
    ON CONFLICT (segment, name) DO NOTHING
"""

DAYS = 1 << 32
"""The factor of a model's key in `place`, which is key times factor plus day. The factor is larger than any day
number of 64-bit microseconds. Sorting by one number is faster than by two.
"""


class Pricer:
    """Prices calls under one table, some thousands at a time. Its temporary tables belong to one connection."""

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
        known_rates = [self._unknown_rate if rate is None else rate for rate in rates]
        rated = [*known_rates, row.per_request, as_input]
        keys = (served, model, number, provider, priced_as or None, tier or None)
        statements.run(INSERT_PLAIN, [*keys, int(box == _EVER), key, *rated, *box])
        self._add_rates(statements, number, self._details)

    def _learn_details(self, statements: Statements) -> None:
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


# --- The statements that price calls ---
#
# `plain` prices almost every call, with one lookup in one table and one row of products. It returns no reasons,
# and skips calls that it can't price: calls of a new model, without a price, with contradictory usage, or with
# separate counts (`usage_details`). `any` prices these few calls. It handles every case, and takes several times
# as long.


class PriceStatements(NamedTuple):
    """The statements for one database. `plain` still has placeholders for the session and the condition."""

    prepare: tuple[str, ...]
    """Statements that create the temporary tables, or empty them."""
    empty: str
    """The statement that deletes the costs of the last calls."""
    learned: tuple[str, ...]
    """The statements to run after models were added."""
    plain: str
    """The statement that prices the calls with numbers above the first parameter and up to the second."""
    unpriced: str
    """The query that returns a row if `plain` has skipped calls."""
    new_models: str
    """The query for the names of new models among the remaining calls."""
    detail_names: str
    """The query for the names of details in the remaining calls."""
    any: str
    """The statement that prices the remaining calls."""


def price_statements(dialect: PricingDialect) -> PriceStatements:
    # A condition: `plain` may not have priced a row `a` of `reprice_cost`, so `any` must price it.
    unpriced = f"(a.nano < {dialect.priced_below}) IS NOT TRUE"
    return PriceStatements(
        prepare=tuple(sql for table in _TABLES for sql in (*dialect.made(table), dialect.emptied(table.name))),
        empty=dialect.emptied("reprice_cost"),
        learned=dialect.surveyed("reprice_plain"),
        plain=_plain(dialect),
        unpriced=f"SELECT 1 FROM reprice_cost AS a WHERE {unpriced} LIMIT 1",
        new_models=_NEW_MODELS.format(unpriced=unpriced),
        detail_names=f"""
            SELECT DISTINCT d.key
              FROM reprice_cost AS a
              JOIN calls AS c ON c.id = a.id, {dialect.each("c.usage_details")}
             WHERE {unpriced} AND c.usage_details IS NOT NULL
        """,
        any=_any(dialect, unpriced),
    )


_NEW_MODELS = """
    SELECT DISTINCT c.provider, c.model, coalesce(c.served_model, ''), coalesce(c.priced_as, ''),
           coalesce(c.service_tier, '')
      FROM reprice_cost AS a
      JOIN calls AS c ON c.id = a.id
     WHERE {unpriced}
    EXCEPT
    SELECT provider, model, served, priced_as, tier FROM reprice_model
"""

_1H = "coalesce(c.cache_creation_1h_input_tokens, 0)"

# Missing or contradictory counts make the sum NULL. Then `any` prices the call.
_PICO = f"""
    CASE WHEN c.usage_details IS NULL AND c.usage_source <> '{UsageSource.INCONSISTENT}'
         AND c.input_tokens >= 0 AND c.cached_input_tokens >= 0
        THEN c.input_tokens * s.input
           + c.cached_input_tokens * s.cache_read
           + CASE WHEN coalesce(c.reasoning_tokens, 0) = 0
                  THEN CASE WHEN c.output_tokens >= 0 THEN c.output_tokens * s.output END
                  WHEN c.reasoning_tokens > 0 AND c.output_tokens >= c.reasoning_tokens
                  THEN (c.output_tokens - c.reasoning_tokens) * s.output + c.reasoning_tokens * s.reasoning
             END
           + CASE WHEN c.cache_creation_input_tokens = 0 AND {_1H} = 0 THEN 0
                  WHEN {_1H} >= 0 AND c.cache_creation_input_tokens >= {_1H}
                  THEN (c.cache_creation_input_tokens - {_1H}) * s.cache_write_5m
                     + {_1H} * s.cache_write_1h
             END
           + s.per_request
    END
"""


def _plain(dialect: PricingDialect) -> str:
    total = f"{dialect.exact('c.input_tokens')} + c.cached_input_tokens + c.cache_creation_input_tokens"
    return f"""
        INSERT INTO reprice_cost (id, place, nano, at_call, session, reason)
        SELECT c.id, s.key * {DAYS} + c.day,
               {dialect.plain_nano(_PICO)},
               c.cost_nano, {{session}},
               CASE WHEN s.as_input > 0 AND (((s.as_input & 1) > 0 AND c.cached_input_tokens > 0)
                                             OR ((s.as_input & 2) > 0 AND c.cache_creation_input_tokens > 0))
                    THEN '{NO_CACHE_RATE}'
               END
          FROM calls AS c
          LEFT JOIN reprice_plain AS s
            ON s.served = coalesce(c.served_model, '') AND s.model = c.model AND s.provider = c.provider
           AND {dialect.same("s.priced_as", "c.priced_as")} AND {dialect.same("s.tier", "c.service_tier")}
           AND (s.always = 1
                OR (    c.ts_us >= s.since AND c.ts_us < s.until
                    AND {total} > s.above AND {total} <= s.up_to
                    AND c.ts_us % 86400000000 >= s.daily_from AND c.ts_us % 86400000000 < s.daily_to))
         WHERE c.id > ? AND c.id <= ? AND c.usage_source IS NOT NULL AND ({{condition}})
    """


def _part_of(dialect: PricingDialect, bucket: str) -> str:
    """The SQL for the tokens of a bucket that are counted in details."""
    names = [name for name, total in USAGE_PARTS.items() if total == bucket]
    terms = [f"coalesce({dialect.part('c.usage_details', name)}, 0)" for name in names]
    return f"CASE WHEN c.usage_details IS NULL THEN 0 ELSE {' + '.join(terms)} END"


# The columns are the buckets of a call, then the rates of its segment, then the reason or the pico-USD.
def _any(dialect: PricingDialect, unpriced: str) -> str:
    return f"""
        WITH counted AS ({_counted(dialect, unpriced)}),
             matched AS ({_MATCHED}),
             summed AS MATERIALIZED (  -- or each value would be worked out wherever it is named
                 {_summed(dialect)}
             )
        UPDATE reprice_cost
           SET place = s.key * {DAYS} + s.day,
               nano = CASE WHEN missing IS NULL AND {dialect.is_integer("pico")} AND pico <= {MOST_PICO}
                           THEN {dialect.nano("pico")}
                      END,
               reason = CASE WHEN missing IS NULL AND (NOT {dialect.is_integer("pico")} OR pico > {MOST_PICO})
                             THEN '{TOO_LARGE}'
                             WHEN missing IS NULL AND no_cache_rate THEN '{NO_CACHE_RATE}'
                             ELSE missing
                        END
          FROM summed AS s
         WHERE reprice_cost.{dialect.row} = s.number
    """


def _counted(dialect: PricingDialect, unpriced: str) -> str:
    def count(column: str) -> str:
        return dialect.exact(f"coalesce(c.{column}, 0)")

    return f"""
        SELECT a.{dialect.row} AS number, c.model, c.served_model, c.priced_as, c.service_tier, c.ts_us,
               c.provider, c.usage_details, c.usage_source, c.day,
               {count("input_tokens")} - {_part_of(dialect, "input")} AS n_input,
               {count("output_tokens")} - {count("reasoning_tokens")}
                   - {_part_of(dialect, "output")} AS n_output,
               {count("reasoning_tokens")} AS n_reasoning,
               {count("cached_input_tokens")} - {_part_of(dialect, "cache_read")} AS n_cache_read,
               {count("cache_creation_input_tokens")}
                   - {count("cache_creation_1h_input_tokens")} AS n_cache_write_5m,
               {count("cache_creation_1h_input_tokens")} AS n_cache_write_1h,
               {count("input_tokens")} + {count("cached_input_tokens")}
                   + {count("cache_creation_input_tokens")} AS n_total
          FROM reprice_cost AS a
          JOIN calls AS c ON c.id = a.id
         WHERE {unpriced}
    """


_MATCHED = f"""
    SELECT n.*, m.key, m.name, m.no_price, s.id AS segment,
           s.input AS r_input,
           s.output AS r_output,
           s.reasoning AS r_reasoning,
           s.cache_read AS r_cache_read,
           s.cache_write_5m AS r_cache_write_5m,
           s.cache_write_1h AS r_cache_write_1h,
           s.per_request AS r_request,
           coalesce(s.as_input, 0) AS as_input
      FROM counted AS n
      JOIN reprice_model AS m
        ON m.model = n.model AND m.provider = n.provider AND m.served = coalesce(n.served_model, '')
       AND m.priced_as = coalesce(n.priced_as, '') AND m.tier = coalesce(n.service_tier, '')
      LEFT JOIN reprice_segment AS s
        ON s.key = m.key
       AND n.ts_us >= s.since AND n.ts_us < s.until
       AND n.n_total > s.above AND (n.n_total <= s.up_to OR s.up_to = {MAX_INT64})
       AND n.ts_us % 86400000000 >= s.daily_from AND n.ts_us % 86400000000 < s.daily_to
"""


def _summed(dialect: PricingDialect) -> str:
    rated = f"{dialect.each('m.usage_details')} {_WITH_RATE}"
    return f"""
        SELECT m.number, m.key, m.day, {_missing(dialect)} AS missing,
               n_input * coalesce(r_input, 0)
                   + n_output * coalesce(r_output, 0)
                   + n_reasoning * coalesce(r_reasoning, 0)
                   + n_cache_read * coalesce(r_cache_read, 0)
                   + n_cache_write_5m * coalesce(r_cache_write_5m, 0)
                   + n_cache_write_1h * coalesce(r_cache_write_1h, 0)
                   + coalesce(r_request, 0)
                   + CASE WHEN usage_details IS NULL THEN 0
                          ELSE (SELECT {dialect.sum_of(f"{dialect.value} * x.rate")} FROM {rated})
                     END AS pico,
               ((as_input & 1) > 0 AND n_cache_read > 0)
                   OR ((as_input & 2) > 0 AND n_cache_write_5m + n_cache_write_1h > 0)
                   OR (usage_details IS NOT NULL
                       AND EXISTS (SELECT 1 FROM {rated} WHERE {dialect.value} > 0 AND x.as_input = 1)
                      ) AS no_cache_rate
          FROM matched AS m
    """


_WITH_RATE = "LEFT JOIN reprice_rate AS x ON x.segment = m.segment AND x.name = d.key"


def _missing(dialect: PricingDialect) -> str:
    """The SQL for the reason why a call has no cost; NULL if nothing is missing."""
    details = dialect.each("m.usage_details")
    return f"""
        CASE
            WHEN usage_source = '{UsageSource.INCONSISTENT}' THEN '{INCONSISTENT}'
            WHEN n_input < 0 OR n_output < 0 OR n_reasoning < 0 OR n_cache_read < 0
                 OR n_cache_write_5m < 0 OR n_cache_write_1h < 0
                THEN '{INCONSISTENT}'
            WHEN usage_details IS NOT NULL
                 AND EXISTS (SELECT 1 FROM {details} WHERE {dialect.value} < 0)
                THEN '{INCONSISTENT}'
            WHEN segment IS NULL THEN 'no price for ' || no_price
            WHEN n_input > 0 AND r_input IS NULL THEN 'no input rate for ' || name
            WHEN n_output > 0 AND r_output IS NULL THEN 'no output rate for ' || name
            WHEN n_reasoning > 0 AND r_reasoning IS NULL THEN 'no reasoning rate for ' || name
            WHEN n_cache_read > 0 AND r_cache_read IS NULL THEN 'no cache_read rate for ' || name
            WHEN n_cache_write_5m > 0 AND r_cache_write_5m IS NULL
                THEN 'no cache_write_5m rate for ' || name
            WHEN n_cache_write_1h > 0 AND r_cache_write_1h IS NULL
                THEN 'no cache_write_1h rate for ' || name
            WHEN usage_details IS NOT NULL
                THEN (SELECT 'no ' || min(d.key) || ' rate for ' || name
                        FROM {details}
                       WHERE {dialect.value} > 0
                         AND NOT EXISTS (SELECT 1 FROM reprice_rate AS x
                                          WHERE x.segment = m.segment AND x.name = d.key))
        END
    """
