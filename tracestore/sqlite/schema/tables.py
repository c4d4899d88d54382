"""The tables of a trace file and their triggers, step by step, but for those of sums and repricings.

A step, once released, is never changed: a correction is a further step.
"""

from __future__ import annotations

INITIAL = (
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

PRICE_DIMENSIONS = (
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

QUERIES = (
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
RUNS_END = (
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
PRUNING = (
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

OPERATIONS = (
    # What kind of call: chat, embeddings and so on. NULL in what an earlier version wrote, and that is chat.
    "ALTER TABLE calls ADD COLUMN operation TEXT",
)

KEYS = (
    # The name of the key that the attempt was sent with; NULL where it was the adapter's own.
    "ALTER TABLE calls ADD COLUMN key TEXT",
)

RESENT = (
    # 1 where the attempt's request was sent twice, else NULL.
    "ALTER TABLE calls ADD COLUMN resent INTEGER",
)

RESERVED = (
    # What budgets reserved for the attempt; NULL where none did.
    "ALTER TABLE calls ADD COLUMN reserved_nano INTEGER",
    "ALTER TABLE calls ADD COLUMN reserved_tokens INTEGER",
)

CONTENT_TABLES = (
    """
    CREATE TABLE content (
        id       INTEGER PRIMARY KEY,
        hash     BLOB NOT NULL UNIQUE,    -- SHA-256 of the body
        last_us  INTEGER NOT NULL,        -- when it was last said
        body     BLOB NOT NULL            -- JSON, or the bytes of an image, a recording, a document
    ) STRICT
    """,
    "CREATE INDEX content_by_age ON content (last_us)",
    """
    CREATE TABLE session_messages (
        session_id  TEXT NOT NULL,
        position    INTEGER NOT NULL,
        run         INTEGER NOT NULL,
        seq         INTEGER NOT NULL,
        ts_us       INTEGER NOT NULL,
        hash        BLOB,                 -- NULL: not stored
        message_id  TEXT,
        metadata    TEXT,
        withheld    TEXT,                 -- why it isn't
        PRIMARY KEY (session_id, position)
    ) STRICT, WITHOUT ROWID
    """,
    "CREATE INDEX session_messages_by_age ON session_messages (ts_us)",
    """
    CREATE TABLE session_setups (
        session_id  TEXT PRIMARY KEY,
        run         INTEGER NOT NULL,
        seq         INTEGER NOT NULL,
        ts_us       INTEGER NOT NULL,
        history     INTEGER NOT NULL,
        hash        BLOB,
        withheld    TEXT                  -- why the system prompt isn't stored
    ) STRICT, WITHOUT ROWID
    """,
)
"""The tables of content, see `tracestore.sql.content`."""

JOBS = ("CREATE INDEX calls_of_jobs ON calls (response_id) WHERE operation IN ('video_create', 'video')",)
"""An index for jobs: the trace of a busy host has millions of calls and few jobs."""

ERASURES = (
    """
    CREATE TABLE erasures (
        id          INTEGER PRIMARY KEY,
        key         TEXT NOT NULL UNIQUE,
        at_us       INTEGER NOT NULL,
        event       INTEGER NOT NULL,     -- the last one that the file had by then
        session_id  TEXT,                 -- the session that was deleted, or
        before_us   INTEGER,              -- the moment before which content was
        runs        TEXT NOT NULL         -- those that said something in the session, as JSON
    ) STRICT
    """,
    "CREATE INDEX erasures_by_session ON erasures (session_id) WHERE session_id IS NOT NULL",
)
"""The record of deletions, see `tracestore.sql.upkeep.erasures`."""

EPOCHS = (
    "ALTER TABLE session_setups ADD COLUMN epoch INTEGER NOT NULL DEFAULT 0",
    "ALTER TABLE session_messages ADD COLUMN epoch INTEGER NOT NULL DEFAULT 0",
)
"""The number of the claim under which content was said, in a cluster."""
