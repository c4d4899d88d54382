"""The SQL that prices calls: `PriceTable.explain` as statements over many calls at once.

There are two statements for this. `PLAIN` prices a call with one look into one table and one row of products. It
knows no reasons, and leaves calls that it can't price: calls of a new model, without a price, with contradictory
usage, or with counts apart (`usage_details`). `ANY` prices these few. It knows every case, and takes several times
as long.
"""

from __future__ import annotations

from bus.values.usage import USAGE_PARTS, UsageSource

from ...prices.rows import MAX_INT64, NO_CACHE_RATE
from ...prices.table import INCONSISTENT, MOST_PICO, TOO_LARGE

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
        per_request     INTEGER NOT NULL,
        as_input        INTEGER NOT NULL
    )
    """,
    "CREATE INDEX IF NOT EXISTS temp.reprice_segment_key ON reprice_segment (key, since)",
    """
    CREATE TEMP TABLE IF NOT EXISTS reprice_rate (
        segment   INTEGER NOT NULL,
        name      TEXT NOT NULL,
        rate      INTEGER NOT NULL,
        as_input  INTEGER NOT NULL,
        PRIMARY KEY (segment, name)
    ) WITHOUT ROWID
    """,
    """
    -- The segments again, under the names themselves, for the calls that nothing is unusual about. The key has
    -- only what tells most of them apart: each column in it is compared for each call.
    CREATE TEMP TABLE IF NOT EXISTS reprice_plain (
        served          TEXT NOT NULL,
        model           TEXT NOT NULL,
        segment         INTEGER NOT NULL,
        provider        TEXT NOT NULL,
        priced_as       TEXT,
        tier            TEXT,
        always          INTEGER NOT NULL,  -- whatever the time, the hour and the size
        key             INTEGER NOT NULL,
        input           INTEGER NOT NULL,
        output          INTEGER NOT NULL,
        reasoning       INTEGER NOT NULL,
        cache_read      INTEGER NOT NULL,
        cache_write_5m  INTEGER NOT NULL,
        cache_write_1h  INTEGER NOT NULL,
        per_request     INTEGER NOT NULL,
        as_input        INTEGER NOT NULL,  -- 1: reads of a cache, 2: writes, 3: both
        since           INTEGER NOT NULL,
        until           INTEGER NOT NULL,
        above           INTEGER NOT NULL,
        up_to           INTEGER NOT NULL,
        daily_from      INTEGER NOT NULL,
        daily_to        INTEGER NOT NULL,
        PRIMARY KEY (served, model, segment)
    ) WITHOUT ROWID
    """,
    """
    -- Without a key and without types, each of which costs as much as another column: rows are appended in the
    -- order of the calls, and walked.
    CREATE TEMP TABLE IF NOT EXISTS reprice_cost (
        id,       -- of the call
        place,    -- key of `reprice_model` and day in one, see `DAYS`
        nano,
        at_call,  -- the cost at call time, in nano-USD
        session,  -- NULL unless it is asked for
        reason
    )
    """,
    "DELETE FROM reprice_model",
    "DELETE FROM reprice_segment",
    "DELETE FROM reprice_rate",
    "DELETE FROM reprice_plain",
    "DELETE FROM reprice_cost",
)

INSERT_MODEL = """
    INSERT INTO reprice_model (key, provider, model, served, priced_as, tier, name, no_price)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?)
"""
INSERT_SEGMENT = f"INSERT INTO reprice_segment VALUES ({', '.join('?' * 16)})"
INSERT_PLAIN = f"INSERT INTO reprice_plain VALUES ({', '.join('?' * 22)})"
INSERT_RATE = "INSERT OR IGNORE INTO reprice_rate (segment, name, rate, as_input) VALUES (?, ?, ?, ?)"

NOT_KNOWN = MAX_INT64
"""The number in place of an unknown rate among those that `PLAIN` multiplies with. One such token costs more than
`MOST_PICO`."""

DAYS = 1 << 32
"""A number far above the days that 64 bits of microseconds can count. `place` is the key times this number, plus
the day. Sorting by one number is quicker than by two."""


_PRICED = f"a.nano < {MOST_PICO // 1000}"
"""Whether a row ``a`` of `reprice_cost` is surely finished before `ANY`. A sum beyond 64 bits is a REAL, and
larger."""

_TOTAL = "c.input_tokens + c.cached_input_tokens + c.cache_creation_input_tokens"
_1H = "coalesce(c.cache_creation_1h_input_tokens, 0)"

# Counts that are missing or contradict each other make the sum NULL, and so leave the call to `ANY`.
PLAIN = f"""
    INSERT INTO temp.reprice_cost (id, place, nano, at_call, session, reason)
    SELECT c.id, s.key * {DAYS} + c.day,
           (CASE WHEN c.usage_details IS NULL AND c.usage_source <> '{UsageSource.INCONSISTENT}'
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
           END + 500) / 1000,
           c.cost_nano, {{session}},
           CASE WHEN s.as_input > 0 AND ((s.as_input & 1 AND c.cached_input_tokens > 0)
                                         OR (s.as_input & 2 AND c.cache_creation_input_tokens > 0))
                THEN '{NO_CACHE_RATE}'
           END
      FROM calls AS c
      LEFT JOIN temp.reprice_plain AS s
        ON s.served = coalesce(c.served_model, '') AND s.model = c.model AND s.provider = c.provider
       AND s.priced_as IS c.priced_as AND s.tier IS c.service_tier
       AND (s.always
            OR (    c.ts_us >= s.since AND c.ts_us < s.until
                AND {_TOTAL} > s.above AND {_TOTAL} <= s.up_to
                AND c.ts_us % 86400000000 >= s.daily_from AND c.ts_us % 86400000000 < s.daily_to))
     WHERE c.id > ? AND c.id <= ? AND c.usage_source IS NOT NULL AND ({{condition}})
"""

_NEAR_64_BITS = 9.1e18
"""A limit near the end of 64 bits, where sum() fails. Where total() exceeds it, sum() is not asked."""


def _part_of(bucket: str) -> str:
    """The part of a bucket's tokens that details hold."""
    names = [name for name, whole in USAGE_PARTS.items() if whole == bucket]
    terms = [f"coalesce(json_extract(c.usage_details, '$.{name}'), 0)" for name in names]
    return f"CASE WHEN c.usage_details IS NULL THEN 0 ELSE {' + '.join(terms)} END"


_DETAILS = "json_each(m.usage_details) AS d"
_RATED = f"{_DETAILS} LEFT JOIN temp.reprice_rate AS x ON x.segment = m.segment AND x.name = d.key"

# The buckets of a call, then the rates of its segment, then the reason or the pico-USD. An integer product that
# leaves 64 bits becomes a REAL in SQLite, which typeof() gives away.
ANY = f"""
    WITH counted AS (
        SELECT a.rowid AS number, c.model, c.served_model, c.priced_as, c.service_tier, c.ts_us, c.provider,
               c.usage_details, c.usage_source, c.day,
               coalesce(c.input_tokens, 0) - {_part_of("input")} AS n_input,
               coalesce(c.output_tokens, 0) - coalesce(c.reasoning_tokens, 0) - {_part_of("output")} AS n_output,
               coalesce(c.reasoning_tokens, 0) AS n_reasoning,
               coalesce(c.cached_input_tokens, 0) - {_part_of("cache_read")} AS n_cache_read,
               coalesce(c.cache_creation_input_tokens, 0)
                   - coalesce(c.cache_creation_1h_input_tokens, 0) AS n_cache_write_5m,
               coalesce(c.cache_creation_1h_input_tokens, 0) AS n_cache_write_1h,
               coalesce(c.input_tokens, 0) + coalesce(c.cached_input_tokens, 0)
                   + coalesce(c.cache_creation_input_tokens, 0) AS n_total
          FROM temp.reprice_cost AS a
          JOIN calls AS c ON c.id = a.id
         WHERE {_PRICED} IS NOT TRUE
    ),
    matched AS (
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
          JOIN temp.reprice_model AS m
            ON m.model = n.model AND m.provider = n.provider AND m.served = coalesce(n.served_model, '')
           AND m.priced_as = coalesce(n.priced_as, '') AND m.tier = coalesce(n.service_tier, '')
          LEFT JOIN temp.reprice_segment AS s
            ON s.key = m.key
           AND n.ts_us >= s.since AND n.ts_us < s.until
           AND n.n_total > s.above AND (n.n_total <= s.up_to OR s.up_to = {MAX_INT64})
           AND n.ts_us % 86400000000 >= s.daily_from AND n.ts_us % 86400000000 < s.daily_to
    ),
    summed AS MATERIALIZED (  -- or each value would be worked out wherever it is named
        SELECT m.number, m.key, m.day,
               CASE
                   WHEN usage_source = '{UsageSource.INCONSISTENT}' THEN '{INCONSISTENT}'
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
                     END AS pico,
               (as_input & 1 AND n_cache_read > 0)
                   OR (as_input & 2 AND n_cache_write_5m + n_cache_write_1h > 0)
                   OR (usage_details IS NOT NULL
                       AND EXISTS (SELECT 1 FROM {_RATED} WHERE d.value > 0 AND x.as_input)) AS no_cache_rate
          FROM matched AS m
    )
    UPDATE temp.reprice_cost
       SET place = s.key * {DAYS} + s.day,
           nano = CASE WHEN missing IS NULL AND typeof(pico) = 'integer' AND pico <= {MOST_PICO}
                       THEN (pico + 500) / 1000
                  END,
           reason = CASE WHEN missing IS NULL AND (typeof(pico) <> 'integer' OR pico > {MOST_PICO})
                         THEN '{TOO_LARGE}'
                         WHEN missing IS NULL AND no_cache_rate THEN '{NO_CACHE_RATE}'
                         ELSE missing
                    END
      FROM summed AS s
     WHERE reprice_cost.rowid = s.number
"""

LEFT = f"SELECT 1 FROM temp.reprice_cost AS a WHERE {_PRICED} IS NOT TRUE LIMIT 1"
NEW_MODELS = f"""
    SELECT DISTINCT c.provider, c.model, coalesce(c.served_model, ''), coalesce(c.priced_as, ''),
           coalesce(c.service_tier, '')
      FROM temp.reprice_cost AS a
      JOIN calls AS c ON c.id = a.id
     WHERE {_PRICED} IS NOT TRUE
    EXCEPT
    SELECT provider, model, served, priced_as, tier FROM temp.reprice_model
"""
DETAIL_NAMES = f"""
    SELECT DISTINCT d.key
      FROM temp.reprice_cost AS a
      JOIN calls AS c ON c.id = a.id, json_each(c.usage_details) AS d
     WHERE {_PRICED} IS NOT TRUE AND c.usage_details IS NOT NULL
"""
