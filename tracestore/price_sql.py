"""`PriceTable.explain` as SQL, for a million calls at once; a property test holds the two together.

`compile_table` resolves every distinct way in which the calls name a model into segments (boxes of time, hours and
size with one price row each) in temporary tables. `PRICE_CHUNK` joins calls with segments, and leaves in
`reprice_cost` the cost of each, or the reason why there is none.

What usage counts apart (`usage_details`) is there for few calls; for the others not one expression looks at it.
"""

from __future__ import annotations

from bus.usage import USAGE_PARTS

from .database import Statements
from .insert import SqlValue
from .price_rows import MAX_INT64
from .prices import INCONSISTENT, MOST_PICO, TOO_LARGE, PriceTable, tier_words

TEMPORARY_TABLES = (
    """
    CREATE TEMP TABLE IF NOT EXISTS reprice_model (
        key        INTEGER PRIMARY KEY,
        provider   TEXT NOT NULL,
        model      TEXT NOT NULL,
        served     TEXT NOT NULL,
        priced_as  TEXT NOT NULL,
        tier       TEXT NOT NULL,
        name       TEXT NOT NULL,
        no_price   TEXT NOT NULL,
        UNIQUE (model, provider, served, priced_as, tier)
    )
    """,
    """
    CREATE TEMP TABLE IF NOT EXISTS reprice_segment (
        id              INTEGER PRIMARY KEY,
        key             INTEGER NOT NULL,
        since           INTEGER NOT NULL,
        until           INTEGER NOT NULL,
        above           INTEGER NOT NULL,
        up_to           INTEGER NOT NULL,
        daily_from      INTEGER NOT NULL,
        daily_to        INTEGER NOT NULL,
        input           INTEGER,
        output          INTEGER,
        reasoning       INTEGER,
        cache_read      INTEGER,
        cache_write_5m  INTEGER,
        cache_write_1h  INTEGER,
        per_request     INTEGER NOT NULL
    )
    """,
    "CREATE INDEX IF NOT EXISTS temp.reprice_segment_key ON reprice_segment (key, since)",
    """
    CREATE TEMP TABLE IF NOT EXISTS reprice_rate (
        segment  INTEGER NOT NULL,
        name     TEXT NOT NULL,
        rate     INTEGER NOT NULL,
        PRIMARY KEY (segment, name)
    ) WITHOUT ROWID
    """,
    """
    CREATE TEMP TABLE IF NOT EXISTS reprice_cost (
        id      INTEGER PRIMARY KEY,
        model   TEXT NOT NULL,
        nano    INTEGER,
        reason  TEXT
    )
    """,
    "DELETE FROM reprice_model",
    "DELETE FROM reprice_segment",
    "DELETE FROM reprice_rate",
)

_INSERT_MODEL = """
    INSERT INTO reprice_model (key, provider, model, served, priced_as, tier, name, no_price)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?)
"""
_INSERT_SEGMENT = f"INSERT INTO reprice_segment VALUES ({', '.join('?' * 15)})"
_INSERT_RATE = "INSERT INTO reprice_rate (segment, name, rate) VALUES (?, ?, ?)"

_NEAR_64_BITS = 9.1e18
"""sum() fails where 64 bits end, so it is not asked for what total() finds to be near that."""


def _part_of(bucket: str) -> str:
    """What details have of a bucket's tokens."""
    names = [name for name, whole in USAGE_PARTS.items() if whole == bucket]
    terms = [f"coalesce(json_extract(c.usage_details, '$.{name}'), 0)" for name in names]
    return f"CASE WHEN c.usage_details IS NULL THEN 0 ELSE {' + '.join(terms)} END"


_DETAILS = "json_each(m.usage_details) AS d"
_RATED = f"{_DETAILS} LEFT JOIN temp.reprice_rate AS x ON x.segment = m.segment AND x.name = d.key"

# The buckets of a call, then the rates of its segment, then the reason or the pico-USD. An integer product that
# leaves 64 bits becomes a REAL in SQLite, which typeof() gives away.
PRICE_CHUNK = f"""
    INSERT INTO temp.reprice_cost (id, model, nano, reason)
    WITH counted AS (
        SELECT c.id, c.model, c.served_model, c.priced_as, c.service_tier, c.ts_us, c.provider, c.usage_details,
               coalesce(c.input_tokens, 0) - {_part_of("input")} AS n_input,
               coalesce(c.output_tokens, 0) - coalesce(c.reasoning_tokens, 0) - {_part_of("output")} AS n_output,
               coalesce(c.reasoning_tokens, 0) AS n_reasoning,
               coalesce(c.cached_input_tokens, 0) - {_part_of("cache_read")} AS n_cache_read,
               coalesce(c.cache_creation_input_tokens, 0)
                   - coalesce(c.cache_creation_1h_input_tokens, 0) AS n_cache_write_5m,
               coalesce(c.cache_creation_1h_input_tokens, 0) AS n_cache_write_1h,
               coalesce(c.input_tokens, 0) + coalesce(c.cached_input_tokens, 0)
                   + coalesce(c.cache_creation_input_tokens, 0) AS n_total
          FROM calls AS c
         WHERE c.id > ? AND c.id <= ? AND c.usage_source IS NOT NULL AND ({{condition}})
    ),
    matched AS (
        SELECT n.*, m.name, m.no_price, s.id AS segment,
               s.input AS r_input,
               s.output AS r_output,
               coalesce(s.reasoning, s.output) AS r_reasoning,
               s.cache_read AS r_cache_read,
               s.cache_write_5m AS r_cache_write_5m,
               s.cache_write_1h AS r_cache_write_1h,
               s.per_request AS r_request
          FROM counted AS n
          JOIN temp.reprice_model AS m
            ON m.model = n.model AND m.provider = n.provider AND m.served = coalesce(n.served_model, '')
           AND m.priced_as = coalesce(n.priced_as, '') AND m.tier = coalesce(n.service_tier, '')
          LEFT JOIN temp.reprice_segment AS s
            ON s.key = m.key
           AND n.ts_us >= s.since AND n.ts_us < s.until
           AND n.n_total > s.above AND (n.n_total <= s.up_to OR s.up_to = {MAX_INT64})
           AND n.ts_us % 86400000000 >= s.daily_from AND n.ts_us % 86400000000 < s.daily_to
    ),
    summed AS (
        SELECT m.id, m.model,
               CASE
                   WHEN min(n_input, n_output, n_reasoning, n_cache_read, n_cache_write_5m, n_cache_write_1h) < 0
                       THEN '{INCONSISTENT}'
                   WHEN usage_details IS NOT NULL AND EXISTS (SELECT 1 FROM {_DETAILS} WHERE d.value < 0)
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
                               FROM {_DETAILS}
                              WHERE d.value > 0
                                AND NOT EXISTS (SELECT 1 FROM temp.reprice_rate AS x
                                                 WHERE x.segment = m.segment AND x.name = d.key))
               END AS missing,
               n_input * coalesce(r_input, 0)
                   + n_output * coalesce(r_output, 0)
                   + n_reasoning * coalesce(r_reasoning, 0)
                   + n_cache_read * coalesce(r_cache_read, 0)
                   + n_cache_write_5m * coalesce(r_cache_write_5m, 0)
                   + n_cache_write_1h * coalesce(r_cache_write_1h, 0)
                   + coalesce(r_request, 0)
                   + CASE WHEN usage_details IS NULL THEN 0
                          ELSE (SELECT CASE WHEN total(d.value * x.rate) > {_NEAR_64_BITS} THEN 1e20
                                            ELSE coalesce(sum(d.value * x.rate), 0)
                                       END
                                  FROM {_RATED})
                     END AS pico
          FROM matched AS m
    )
    SELECT id, model,
           CASE WHEN missing IS NULL AND typeof(pico) = 'integer' AND pico <= {MOST_PICO}
                THEN pico / 1000 + (pico % 1000 >= 500)
           END,
           CASE WHEN missing IS NULL AND (typeof(pico) <> 'integer' OR pico > {MOST_PICO}) THEN '{TOO_LARGE}'
                ELSE missing
           END
      FROM summed
"""
"""Its parameters are the calls' ids, from exclusive to inclusive, and those of the condition."""


def compile_table(
    statements: Statements, table: PriceTable, condition: str, values: list[SqlValue], as_model: str | None
) -> None:
    """Resolve every distinct model of the calls once, into the temporary tables."""
    for sql in TEMPORARY_TABLES:
        statements.run(sql)
    models = statements.run(
        f"""
        SELECT DISTINCT c.provider, c.model, coalesce(c.served_model, ''), coalesce(c.priced_as, ''),
               coalesce(c.service_tier, '')
          FROM calls AS c
         WHERE c.usage_source IS NOT NULL AND ({condition})
        """,
        values,
    )
    details = _details(statements, condition, values)
    named: list[list[SqlValue]] = []
    segments: list[list[SqlValue]] = []
    rates: list[list[SqlValue]] = []
    for key, (provider, model, served, priced_as, tier) in enumerate(models):
        name = as_model or model
        named.append([key, provider, model, served, priced_as, tier, name, name + tier_words(tier)])
        served_as, published = (None, None) if as_model else (served or None, priced_as or None)
        for part in table.segments(name, served_as, published, tier or None):
            row = part.row
            box = [key, part.since, part.until, part.above, part.up_to, part.daily_from, part.daily_to]
            buckets = [row.input, row.output, row.reasoning]
            buckets += [row.cache_read, row.cache_write_5m, row.cache_write_1h, row.per_request]
            extra = [(detail, row.rate(detail)) for detail in details]
            rates += [[len(segments), detail, rate] for detail, rate in extra if rate is not None]
            segments.append([len(segments), *box, *buckets])
    statements.run_many(_INSERT_MODEL, named)
    statements.run_many(_INSERT_SEGMENT, segments)
    statements.run_many(_INSERT_RATE, rates)


def _details(statements: Statements, condition: str, values: list[SqlValue]) -> list[str]:
    """The names of all that the calls' usage counts apart."""
    rows = statements.run(
        f"""
        SELECT DISTINCT d.key
          FROM calls AS c, json_each(c.usage_details) AS d
         WHERE c.usage_details IS NOT NULL AND ({condition})
        """,
        values,
    )
    return sorted(str(name) for (name,) in rows)
