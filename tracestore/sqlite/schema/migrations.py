"""The schema, as numbered steps; each runs in one transaction together with its record, in a new file all in one.

A file says whose it is (`application_id`) and how far it has come (`user_version`). A step, once released, is
never changed: a correction is a further step. A file from a newer Callboard is refused rather than guessed at.

How the tables hang together:

* `events` is the truth: append-only, in commit order, one row per envelope, unique by (run, seq).
* `calls` is a projection of `llm.*`, one row per attempt, written in the transaction of its events. Its cost is
  the one at call time and never changes afterwards.
* `price_version`, `price_row` and `price_alias` hold the price tables that were used for repricing, `reprice_run`
  the repricings, `call_cost` what each call costs under each of them: append-only, which triggers enforce.
* `current_run` says which of those costs is *the* cost: that of the first run in it that has a row for the call,
  else the one at call time. It mostly has no row or one; a filtered repricing puts itself before the others.
* `call_sums` and `repriced_sums` are what `calls` and `call_cost` add up to by day and model (see `call_sums`).
* `content`, `session_messages` and `session_setups` have what was said, if the host asks for it (see `content`).

Times are microseconds since the epoch (UTC), money nano-USD, rates pico-USD per unit, days days since the epoch.
"""

from __future__ import annotations

from pathlib import Path

from bus.errors import StoreError

from ...sql.calls.sums import CALL_SUMS, UNKNOWN_SUMS
from ...sql.content import CONTENT_TABLES
from ...sql.jobs import JOBS
from ...sql.repricing.counts import REPRICE_COUNTS
from ...sql.repricing.run_costs import RUN_COSTS
from ..database import APPLICATION_ID, Database, Statements
from .repricing_base import REPRICE_BASE

_M001_INITIAL = (
    """
    CREATE TABLE schema_history (
        version     INTEGER PRIMARY KEY,
        name        TEXT NOT NULL,
        applied_us  INTEGER NOT NULL
    ) STRICT
    """,
    """
    CREATE TABLE runs (
        id             INTEGER PRIMARY KEY,
        run_id         TEXT NOT NULL UNIQUE,
        first_us       INTEGER NOT NULL,
        last_us        INTEGER NOT NULL,
        committed_seq  INTEGER NOT NULL
    ) STRICT
    """,
    """
    CREATE TABLE events (
        id          INTEGER PRIMARY KEY,
        run         INTEGER NOT NULL REFERENCES runs (id),
        seq         INTEGER NOT NULL,
        topic       TEXT NOT NULL,
        ts_us       INTEGER NOT NULL,
        mono_ns     INTEGER NOT NULL,
        session_id  TEXT,
        turn_id     TEXT,
        request_id  TEXT,
        attempt     INTEGER,
        message_id  TEXT,
        caused_by   TEXT,
        tags        TEXT,
        data        TEXT NOT NULL,
        UNIQUE (run, seq)
    ) STRICT
    """,
    "CREATE INDEX events_by_session ON events (session_id, ts_us) WHERE session_id IS NOT NULL",
    "CREATE INDEX events_by_request ON events (request_id) WHERE request_id IS NOT NULL",
    """
    CREATE TRIGGER events_are_append_only BEFORE UPDATE ON events
    BEGIN SELECT RAISE(ABORT, 'events are append-only'); END
    """,
    """
    CREATE TABLE calls (
        id                              INTEGER PRIMARY KEY,
        request_id                      TEXT NOT NULL,
        attempt                         INTEGER NOT NULL,
        run                             INTEGER NOT NULL,
        session_id                      TEXT,
        turn_id                         TEXT,
        message_id                      TEXT,
        caused_by                       TEXT,
        tags                            TEXT,
        ts_us                           INTEGER NOT NULL,  -- of the attempt's start; the price is of this moment
        day                             INTEGER NOT NULL,
        started_us                      INTEGER,
        finished_us                     INTEGER,
        first_token_ms                  INTEGER,
        latency_ms                      INTEGER,
        status                          TEXT NOT NULL
            CHECK (status IN ('started', 'completed', 'failed', 'cancelled')),
        reason                          TEXT,
        provider                        TEXT NOT NULL,
        model                           TEXT NOT NULL,     -- provider:name, as routed
        requested_model                 TEXT,
        served_model                    TEXT,
        streamed                        INTEGER,
        routing                         TEXT,
        estimated_input_tokens          INTEGER,
        stop_reason                     TEXT,
        raw_stop_reason                 TEXT,
        warnings                        TEXT,
        response_id                     TEXT,
        provider_request_id             TEXT,
        error_class                     TEXT,
        error_type                      TEXT,
        error_message                   TEXT,
        provider_status                 INTEGER,
        provider_code                   TEXT,
        retry_count                     INTEGER,
        will_retry                      INTEGER,
        delay_seconds                   REAL,
        retry_after_seconds             REAL,
        input_tokens                    INTEGER,
        output_tokens                   INTEGER,
        cached_input_tokens             INTEGER,
        cache_creation_input_tokens     INTEGER,
        cache_creation_1h_input_tokens  INTEGER,
        reasoning_tokens                INTEGER,
        usage_source                    TEXT,              -- NULL: the call has no usage
        usage_raw                       TEXT,
        cost_nano                       INTEGER,           -- at call time; NULL: unknown
        cost_source                     TEXT,
        cost_version                    TEXT,
        cost_reason                     TEXT,
        UNIQUE (request_id, attempt)
    ) STRICT
    """,
    "CREATE INDEX calls_by_session ON calls (session_id, ts_us) WHERE session_id IS NOT NULL",
    "CREATE INDEX calls_by_day ON calls (day, provider, model)",
    "CREATE INDEX calls_by_time ON calls (ts_us)",
    """
    CREATE TABLE call_tags (
        key      TEXT NOT NULL,
        value    TEXT NOT NULL,
        call_id  INTEGER NOT NULL,
        PRIMARY KEY (key, value, call_id)
    ) STRICT, WITHOUT ROWID
    """,
    """
    CREATE TABLE sessions (
        session_id  TEXT PRIMARY KEY,
        first_us    INTEGER NOT NULL,
        last_us     INTEGER NOT NULL,
        model       TEXT,
        tags        TEXT
    ) STRICT, WITHOUT ROWID
    """,
    "CREATE INDEX sessions_by_time ON sessions (last_us)",
    """
    CREATE TABLE price_version (
        version    TEXT PRIMARY KEY,
        label      TEXT NOT NULL,
        loaded_us  INTEGER NOT NULL
    ) STRICT, WITHOUT ROWID
    """,
    """
    CREATE TABLE price_row (
        version         TEXT NOT NULL REFERENCES price_version (version),
        position        INTEGER NOT NULL,
        model           TEXT NOT NULL,
        valid_from      INTEGER,
        valid_to        INTEGER,
        above           INTEGER NOT NULL,
        input           INTEGER,
        output          INTEGER,
        reasoning       INTEGER,
        cache_read      INTEGER,
        cache_write_5m  INTEGER,
        cache_write_1h  INTEGER,
        per_request     INTEGER NOT NULL,
        note            TEXT NOT NULL,
        PRIMARY KEY (version, position)
    ) STRICT, WITHOUT ROWID
    """,
    """
    CREATE TABLE call_cost (
        price_version  TEXT NOT NULL,
        call_id        INTEGER NOT NULL,
        cost_nano      INTEGER,
        reason         TEXT,
        PRIMARY KEY (price_version, call_id)
    ) STRICT, WITHOUT ROWID
    """,
    """
    CREATE TABLE reprice_run (
        id           INTEGER PRIMARY KEY,
        version      TEXT NOT NULL,
        filter       TEXT NOT NULL,
        started_us   INTEGER NOT NULL,
        finished_us  INTEGER,
        calls        INTEGER,
        unpriced     INTEGER,
        sum_before   INTEGER,
        sum_after    INTEGER
    ) STRICT
    """,
    """
    CREATE TABLE current_version (
        position  INTEGER PRIMARY KEY,
        version   TEXT NOT NULL UNIQUE
    ) STRICT
    """,
    """
    CREATE TRIGGER price_version_is_immutable BEFORE UPDATE ON price_version
    BEGIN SELECT RAISE(ABORT, 'price versions are immutable'); END
    """,
    """
    CREATE TRIGGER price_row_is_immutable BEFORE UPDATE ON price_row
    BEGIN SELECT RAISE(ABORT, 'price versions are immutable'); END
    """,
    """
    CREATE TRIGGER call_cost_is_append_only BEFORE UPDATE ON call_cost
    BEGIN SELECT RAISE(ABORT, 'costs are append-only'); END
    """,
)

_PRICE_DIMENSIONS = (
    "ALTER TABLE calls ADD COLUMN priced_as TEXT",  # provider:name of the published prices, if it isn't `model`
    "ALTER TABLE calls ADD COLUMN service_tier TEXT",
    "ALTER TABLE calls ADD COLUMN usage_details TEXT",  # JSON, see TokenUsage.details; NULL: nothing
    "ALTER TABLE calls ADD COLUMN cost_computed_nano INTEGER",  # beside a cost that the provider reported
    "ALTER TABLE price_row ADD COLUMN extra TEXT NOT NULL DEFAULT '{}'",
    "ALTER TABLE price_row ADD COLUMN service_tier TEXT NOT NULL DEFAULT ''",
    "ALTER TABLE price_row ADD COLUMN daily_from INTEGER",
    "ALTER TABLE price_row ADD COLUMN daily_to INTEGER",
    "ALTER TABLE price_row ADD COLUMN reference INTEGER NOT NULL DEFAULT 0",
    """
    CREATE TABLE price_alias (
        version    TEXT NOT NULL REFERENCES price_version (version),
        position   INTEGER NOT NULL,
        pattern    TEXT NOT NULL,
        target     TEXT NOT NULL,
        reference  INTEGER NOT NULL,
        PRIMARY KEY (version, position)
    ) STRICT, WITHOUT ROWID
    """,
    """
    CREATE TRIGGER price_alias_is_immutable BEFORE UPDATE ON price_alias
    BEGIN SELECT RAISE(ABORT, 'price versions are immutable'); END
    """,
)

_QUERIES = (
    "CREATE INDEX calls_by_error ON calls (error_class, ts_us) WHERE error_class IS NOT NULL",
    # last_call: up to which call it goes; done: up to which it has come. replaced: the versions that were current
    # before, as JSON; undone_us: when they became current again.
    "ALTER TABLE reprice_run ADD COLUMN last_call INTEGER",
    "ALTER TABLE reprice_run ADD COLUMN done INTEGER NOT NULL DEFAULT 0",
    "ALTER TABLE reprice_run ADD COLUMN by_session INTEGER NOT NULL DEFAULT 0",
    "ALTER TABLE reprice_run ADD COLUMN replaced TEXT",
    "ALTER TABLE reprice_run ADD COLUMN undone_us INTEGER",
    # What a repricing did, and how far its sums have come: written in the transaction of the costs they add up.
    """
    CREATE TABLE reprice_sum (
        run              INTEGER NOT NULL REFERENCES reprice_run (id),
        model            TEXT NOT NULL,
        day              INTEGER NOT NULL,
        session          TEXT NOT NULL,   -- empty where it was not asked for, or the call has none
        calls            INTEGER NOT NULL,
        unpriced         INTEGER NOT NULL,
        after            INTEGER NOT NULL,
        unpriced_before  INTEGER NOT NULL,
        before           INTEGER NOT NULL,
        PRIMARY KEY (run, model, day, session)
    ) STRICT, WITHOUT ROWID
    """,
)

# What an earlier version wrote has no lock that would tell whether its run still lives. If none of its calls lacks
# an end, that doesn't matter; the others are closed at the next start of a writer.
_RUNS_END = (
    "ALTER TABLE runs ADD COLUMN ended_us INTEGER",
    "ALTER TABLE runs ADD COLUMN ending TEXT CHECK (ending IN ('closed', 'process_lost', 'unknown'))",
    "CREATE INDEX calls_without_end ON calls (run) WHERE status = 'started'",
    """
    UPDATE runs
       SET ended_us = last_us, ending = 'unknown'
     WHERE NOT EXISTS (SELECT 1 FROM calls AS c WHERE c.run = runs.id AND c.status = 'started')
    """,
)

# A prune's transaction says how far it goes in `pruning`, and has emptied it again when it commits.
_PRUNING = (
    "CREATE TABLE pruning (before_us INTEGER NOT NULL) STRICT",
    """
    CREATE TRIGGER events_go_by_pruning BEFORE DELETE ON events
    WHEN OLD.ts_us >= coalesce((SELECT before_us FROM pruning), OLD.ts_us)
    BEGIN SELECT RAISE(ABORT, 'events are append-only'); END
    """,
    """
    CREATE TRIGGER call_cost_goes_by_pruning BEFORE DELETE ON call_cost
    WHEN NOT EXISTS (SELECT 1 FROM pruning)
    BEGIN SELECT RAISE(ABORT, 'costs are append-only'); END
    """,
)

_OPERATIONS = (
    # What kind of call: chat, embeddings and so on. NULL in what an earlier version wrote, and that is chat.
    "ALTER TABLE calls ADD COLUMN operation TEXT",
)

_RESENT = (
    # 1 where the attempt's request was sent twice, else NULL.
    "ALTER TABLE calls ADD COLUMN resent INTEGER",
)

MIGRATIONS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("initial", _M001_INITIAL),
    ("price dimensions", _PRICE_DIMENSIONS),
    ("queries", _QUERIES),
    ("runs_end", _RUNS_END),
    ("pruning", _PRUNING),
    ("content", CONTENT_TABLES),
    ("session names", ("ALTER TABLE sessions ADD COLUMN name TEXT",)),
    ("call sums", CALL_SUMS),
    ("operations", _OPERATIONS),
    ("jobs", JOBS),
    ("repricing base", REPRICE_BASE),
    ("resent", _RESENT),
    ("calls of unknown cost", (*UNKNOWN_SUMS, *REPRICE_COUNTS)),
    ("costs of runs", RUN_COSTS),
)
"""Name and statements of each step; the step at index i brings a file to version i + 1."""

SCHEMA_VERSION = len(MIGRATIONS)


async def migrate(database: Database, now_us: int) -> None:
    """Bring the file to `SCHEMA_VERSION`, or leave it untouched and raise StoreError if it isn't ours to write."""
    version = await _checked_version(database)
    if version == SCHEMA_VERSION:
        return
    if database.readonly:
        raise StoreError(
            f"{database.path} is of schema version {version}, this Callboard reads version {SCHEMA_VERSION}: "
            "open it once for writing to bring it up to date"
        )
    while version < SCHEMA_VERSION:
        version = await _step(database, now_us)


async def inspect(path: Path) -> None:
    """Raise StoreError if the file isn't ours or is too new, without changing a byte of it.

    A connection that may write would fold the write-ahead log into the file as it closes. A file with a rollback
    journal died while it was being made; only a writer can look into that one.
    """
    if not _readable_as_is(path):
        return
    database = Database(path, readonly=True)
    await database.open(check)
    await database.close()


def _readable_as_is(path: Path) -> bool:
    journal = path.with_name(path.name + "-journal")
    return path.exists() and path.stat().st_size > 0 and not journal.exists()


async def check(database: Database) -> None:
    """Raise StoreError if the open file isn't ours or is too new."""
    await _checked_version(database)


async def _checked_version(database: Database) -> int:
    # Another process may make the file between these reads, in one transaction. Whoever sees its tables or its
    # version must see whose it is as well, so that is read last.
    ((tables,),) = await database.read("SELECT count(*) FROM sqlite_master")
    ((version,),) = await database.read("PRAGMA user_version")
    ((application,),) = await database.read("PRAGMA application_id")
    if application != APPLICATION_ID and (application or version or tables):
        raise StoreError(
            f"{database.path} is a database of another application; give another path, or move that file away"
        )
    if version > SCHEMA_VERSION:
        raise StoreError(
            f"{database.path} is of schema version {version}, this Callboard knows versions up to "
            f"{SCHEMA_VERSION}: update Callboard, or give another path"
        )
    return int(version)


async def _step(database: Database, now_us: int) -> int:
    """Apply the next missing step; another process may have been quicker, so look inside the transaction.

    In a new file these are all steps at once: nothing is there that could be half way.
    """

    def work(statements: Statements) -> int:
        ((version,),) = statements.run("PRAGMA user_version")
        last = int(version) + 1 if version else SCHEMA_VERSION
        for number, (name, script) in enumerate(MIGRATIONS[version:last], int(version) + 1):
            for statement in script:
                statements.run(statement)
            statements.run(
                "INSERT INTO schema_history (version, name, applied_us) VALUES (?, ?, ?)", (number, name, now_us)
            )
            # PRAGMA takes no parameters; both values are our own integers.
            statements.run(f"PRAGMA application_id = {APPLICATION_ID}")
            statements.run(f"PRAGMA user_version = {number}")
        return min(last, SCHEMA_VERSION)

    return await database.write(work)
