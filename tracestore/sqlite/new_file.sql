-- A new trace file of the newest version. scripts/make_new_file.py writes this from steps.sql.
--
-- A line with nothing but a semicolon ends each statement.

CREATE TABLE schema_history (
    version     INTEGER PRIMARY KEY,
    name        TEXT NOT NULL,
    applied_us  INTEGER NOT NULL
) STRICT
;

CREATE TABLE runs (
    id             INTEGER PRIMARY KEY,
    run_id         TEXT NOT NULL UNIQUE,
    first_us       INTEGER NOT NULL,
    last_us        INTEGER NOT NULL,
    committed_seq  INTEGER NOT NULL
, ended_us INTEGER, ending TEXT CHECK (ending IN ('closed', 'process_lost', 'unknown'))) STRICT
;

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
;

CREATE INDEX events_by_session ON events (session_id, ts_us) WHERE session_id IS NOT NULL
;

CREATE INDEX events_by_request ON events (request_id) WHERE request_id IS NOT NULL
;

CREATE TRIGGER events_are_append_only BEFORE UPDATE ON events
BEGIN SELECT RAISE(ABORT, 'events are append-only'); END
;

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
    cost_reason                     TEXT, priced_as TEXT, service_tier TEXT, usage_details TEXT, cost_computed_nano INTEGER, operation TEXT, resent INTEGER, reserved_nano INTEGER, reserved_tokens INTEGER, key TEXT, parent_call_id TEXT, parent_tool_use_id TEXT, parent_turn_id TEXT, root_turn_id TEXT, depth INTEGER, origin TEXT, origin_file TEXT, origin_line INTEGER, revision INTEGER, stated_nano_usd INTEGER,
    UNIQUE (request_id, attempt)
) STRICT
;

CREATE INDEX calls_by_session ON calls (session_id, ts_us) WHERE session_id IS NOT NULL
;

CREATE INDEX calls_by_day ON calls (day, provider, model)
;

CREATE INDEX calls_by_time ON calls (ts_us)
;

CREATE TABLE call_tags (
    key      TEXT NOT NULL,
    value    TEXT NOT NULL,
    call_id  INTEGER NOT NULL,
    PRIMARY KEY (key, value, call_id)
) STRICT, WITHOUT ROWID
;

CREATE TABLE sessions (
    session_id  TEXT PRIMARY KEY,
    first_us    INTEGER NOT NULL,
    last_us     INTEGER NOT NULL,
    model       TEXT,
    tags        TEXT
, name TEXT) STRICT, WITHOUT ROWID
;

CREATE INDEX sessions_by_time ON sessions (last_us)
;

CREATE TABLE price_version (
    version    TEXT PRIMARY KEY,
    label      TEXT NOT NULL,
    loaded_us  INTEGER NOT NULL
) STRICT, WITHOUT ROWID
;

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
    note            TEXT NOT NULL, extra TEXT NOT NULL DEFAULT '{}', service_tier TEXT NOT NULL DEFAULT '', daily_from INTEGER, daily_to INTEGER, reference INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (version, position)
) STRICT, WITHOUT ROWID
;

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
, last_call INTEGER, done INTEGER NOT NULL DEFAULT 0, by_session INTEGER NOT NULL DEFAULT 0, replaced TEXT, undone_us INTEGER, estimated INTEGER, unknown INTEGER, base INTEGER, finished_no INTEGER, in_flight INTEGER, add_up_again INTEGER NOT NULL DEFAULT 0) STRICT
;

CREATE TRIGGER price_version_is_immutable BEFORE UPDATE ON price_version
BEGIN SELECT RAISE(ABORT, 'price versions are immutable'); END
;

CREATE TRIGGER price_row_is_immutable BEFORE UPDATE ON price_row
BEGIN SELECT RAISE(ABORT, 'price versions are immutable'); END
;

CREATE TABLE price_alias (
    version    TEXT NOT NULL REFERENCES price_version (version),
    position   INTEGER NOT NULL,
    pattern    TEXT NOT NULL,
    target     TEXT NOT NULL,
    reference  INTEGER NOT NULL,
    PRIMARY KEY (version, position)
) STRICT, WITHOUT ROWID
;

CREATE TRIGGER price_alias_is_immutable BEFORE UPDATE ON price_alias
BEGIN SELECT RAISE(ABORT, 'price versions are immutable'); END
;

CREATE INDEX calls_by_error ON calls (error_class, ts_us) WHERE error_class IS NOT NULL
;

CREATE TABLE reprice_sum (
    run              INTEGER NOT NULL REFERENCES reprice_run (id),
    model            TEXT NOT NULL,
    day              INTEGER NOT NULL,
    session          TEXT NOT NULL,   -- empty where it was not asked for, or the call has none
    calls            INTEGER NOT NULL,
    unpriced         INTEGER NOT NULL,
    after            INTEGER NOT NULL,
    unpriced_before  INTEGER NOT NULL,
    before           INTEGER NOT NULL, newly_priced INTEGER NOT NULL DEFAULT 0, newly_priced_nano INTEGER NOT NULL DEFAULT 0, no_longer_priced INTEGER NOT NULL DEFAULT 0, no_longer_priced_nano INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (run, model, day, session)
) STRICT, WITHOUT ROWID
;

CREATE INDEX calls_without_end ON calls (run) WHERE status = 'started'
;

CREATE TABLE pruning (before_us INTEGER NOT NULL) STRICT
;

CREATE TRIGGER events_go_by_pruning BEFORE DELETE ON events
WHEN OLD.ts_us >= coalesce((SELECT before_us FROM pruning), OLD.ts_us)
BEGIN SELECT RAISE(ABORT, 'events are append-only'); END
;

CREATE TABLE content (
    id       INTEGER PRIMARY KEY,
    hash     BLOB NOT NULL UNIQUE,    -- SHA-256 of the body
    last_us  INTEGER NOT NULL,        -- when it was last said
    body     BLOB NOT NULL            -- JSON, or the bytes of an image, a recording, a document
) STRICT
;

CREATE INDEX content_by_age ON content (last_us)
;

CREATE TABLE session_messages (
    session_id  TEXT NOT NULL,
    position    INTEGER NOT NULL,
    run         INTEGER NOT NULL,
    seq         INTEGER NOT NULL,
    ts_us       INTEGER NOT NULL,
    hash        BLOB,                 -- NULL: not stored
    message_id  TEXT,
    metadata    TEXT,
    withheld    TEXT, epoch INTEGER NOT NULL DEFAULT 0,                 -- why it isn't
    PRIMARY KEY (session_id, position)
) STRICT, WITHOUT ROWID
;

CREATE INDEX session_messages_by_age ON session_messages (ts_us)
;

CREATE TABLE session_setups (
    session_id  TEXT PRIMARY KEY,
    run         INTEGER NOT NULL,
    seq         INTEGER NOT NULL,
    ts_us       INTEGER NOT NULL,
    history     INTEGER NOT NULL,
    hash        BLOB,
    withheld    TEXT                  -- why the system prompt isn't stored
, epoch INTEGER NOT NULL DEFAULT 0) STRICT, WITHOUT ROWID
;

CREATE TABLE call_sums (
    day       INTEGER NOT NULL,
    provider  TEXT NOT NULL,
    model     TEXT NOT NULL,
    calls INTEGER NOT NULL, total_input_tokens INTEGER NOT NULL, output_tokens INTEGER NOT NULL,
        cost_nano INTEGER NOT NULL, unpriced INTEGER NOT NULL, estimated INTEGER NOT NULL,
        cached_input_tokens INTEGER NOT NULL, cache_creation_input_tokens INTEGER NOT NULL,
        reasoning_tokens INTEGER NOT NULL, unknown INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (day, provider, model)
) WITHOUT ROWID
;

CREATE TABLE summed_calls (up_to INTEGER NOT NULL) STRICT
;

CREATE INDEX calls_of_jobs ON calls (response_id) WHERE operation IN ('video_create', 'video')
;

CREATE INDEX calls_without_usage ON calls (model, day) WHERE usage_source IS NULL
;

CREATE INDEX calls_estimated ON calls (model, day) WHERE usage_source = 'estimated'
;

CREATE INDEX reprice_run_by_base ON reprice_run (base) WHERE finished_us IS NULL AND base IS NOT NULL
;

CREATE INDEX reprice_run_by_finish ON reprice_run (finished_us)
;

CREATE TABLE current_run (position INTEGER PRIMARY KEY, run INTEGER NOT NULL UNIQUE) STRICT
;

CREATE TABLE call_cost (
    run        INTEGER NOT NULL,
    call_id    INTEGER NOT NULL,
    cost_nano  INTEGER,
    reason     TEXT,
    PRIMARY KEY (run, call_id)
) STRICT, WITHOUT ROWID
;

CREATE INDEX call_cost_unpriced ON call_cost (run, call_id) WHERE cost_nano IS NULL
;

CREATE TABLE repriced_sums (
    run       INTEGER NOT NULL,
    day       INTEGER NOT NULL,
    provider  TEXT NOT NULL,
    model     TEXT NOT NULL,
    calls INTEGER NOT NULL, cost_nano INTEGER NOT NULL, unpriced INTEGER NOT NULL,
    PRIMARY KEY (run, day, provider, model)
) WITHOUT ROWID
;

CREATE TRIGGER call_cost_is_append_only BEFORE UPDATE ON call_cost
BEGIN SELECT RAISE(ABORT, 'costs are append-only'); END
;

CREATE TRIGGER call_cost_goes_by_pruning BEFORE DELETE ON call_cost
WHEN NOT EXISTS (SELECT 1 FROM pruning)
BEGIN SELECT RAISE(ABORT, 'costs are append-only'); END
;

CREATE TABLE erasures (
    id          INTEGER PRIMARY KEY,
    key         TEXT NOT NULL UNIQUE,
    at_us       INTEGER NOT NULL,
    event       INTEGER NOT NULL,     -- the last one that the file had by then
    session_id  TEXT,                 -- the session that was deleted, or
    before_us   INTEGER,              -- the moment before which content was
    runs        TEXT NOT NULL         -- those that said something in the session, as JSON
) STRICT
;

CREATE INDEX erasures_by_session ON erasures (session_id) WHERE session_id IS NOT NULL
;

CREATE TRIGGER summed_call_changes
AFTER UPDATE OF day, provider, model, usage_source, cost_nano, input_tokens, output_tokens, cached_input_tokens,
    cache_creation_input_tokens, reasoning_tokens, status, error_class, provider_status ON calls
WHEN OLD.id <= (SELECT up_to FROM summed_calls)
BEGIN
UPDATE call_sums SET calls = call_sums.calls - 1, total_input_tokens = call_sums.total_input_tokens - CASE WHEN
    (CAST(OLD.input_tokens AS numeric) + OLD.cached_input_tokens + OLD.cache_creation_input_tokens) BETWEEN
    -9007199254740992 AND 9007199254740992 THEN (CAST(OLD.input_tokens AS numeric) + OLD.cached_input_tokens +
    OLD.cache_creation_input_tokens) ELSE coalesce((CAST(OLD.input_tokens AS numeric) + OLD.cached_input_tokens
    + OLD.cache_creation_input_tokens) * 1.0, 0) END, output_tokens = call_sums.output_tokens - CASE WHEN
    OLD.output_tokens BETWEEN -9007199254740992 AND 9007199254740992 THEN OLD.output_tokens
    ELSE coalesce(OLD.output_tokens * 1.0, 0) END, cost_nano = call_sums.cost_nano - coalesce(OLD.cost_nano, 0),
    unpriced = call_sums.unpriced - CASE WHEN OLD.usage_source IS NOT NULL AND OLD.cost_nano IS NULL THEN 1
    ELSE 0 END, estimated = call_sums.estimated - CASE WHEN OLD.usage_source = 'estimated' THEN 1 ELSE 0 END,
    cached_input_tokens = call_sums.cached_input_tokens - CASE WHEN OLD.cached_input_tokens BETWEEN
    -9007199254740992 AND 9007199254740992 THEN OLD.cached_input_tokens
    ELSE coalesce(OLD.cached_input_tokens * 1.0, 0) END, cache_creation_input_tokens =
    call_sums.cache_creation_input_tokens - CASE WHEN OLD.cache_creation_input_tokens BETWEEN -9007199254740992
    AND 9007199254740992 THEN OLD.cache_creation_input_tokens
    ELSE coalesce(OLD.cache_creation_input_tokens * 1.0, 0) END,
    reasoning_tokens = call_sums.reasoning_tokens - CASE WHEN OLD.reasoning_tokens BETWEEN -9007199254740992
    AND 9007199254740992 THEN OLD.reasoning_tokens ELSE coalesce(OLD.reasoning_tokens * 1.0, 0) END,
    unknown = call_sums.unknown - CASE WHEN (OLD.usage_source IS NULL AND OLD.cost_nano IS NULL
    AND (OLD.status = 'started' OR coalesce(OLD.error_class, '') IN ('cancelled', 'network',
    'process_lost') OR (coalesce(OLD.error_class, '') IN ('other',
    'server_error') AND OLD.provider_status IS NULL))) THEN 1 ELSE 0 END
    WHERE day = OLD.day AND provider = OLD.provider AND model = OLD.model;
DELETE FROM call_sums WHERE day = OLD.day AND provider = OLD.provider AND model = OLD.model AND calls = 0;
    INSERT INTO call_sums (day, provider, model, calls, total_input_tokens, output_tokens, cost_nano, unpriced,
        estimated, cached_input_tokens, cache_creation_input_tokens, reasoning_tokens, unknown) VALUES (NEW.day,
        NEW.provider, NEW.model, 1, CASE WHEN (CAST(NEW.input_tokens AS numeric) + NEW.cached_input_tokens +
        NEW.cache_creation_input_tokens) BETWEEN -9007199254740992 AND 9007199254740992
        THEN (CAST(NEW.input_tokens AS numeric) + NEW.cached_input_tokens + NEW.cache_creation_input_tokens)
        ELSE coalesce((CAST(NEW.input_tokens AS numeric) + NEW.cached_input_tokens +
        NEW.cache_creation_input_tokens) * 1.0, 0) END, CASE WHEN NEW.output_tokens BETWEEN -9007199254740992
        AND 9007199254740992 THEN NEW.output_tokens ELSE coalesce(NEW.output_tokens * 1.0, 0) END,
        coalesce(NEW.cost_nano, 0), CASE WHEN NEW.usage_source IS NOT NULL AND NEW.cost_nano IS NULL THEN 1
        ELSE 0 END, CASE WHEN NEW.usage_source = 'estimated' THEN 1 ELSE 0 END,
        CASE WHEN NEW.cached_input_tokens BETWEEN -9007199254740992 AND 9007199254740992
        THEN NEW.cached_input_tokens ELSE coalesce(NEW.cached_input_tokens * 1.0, 0) END,
        CASE WHEN NEW.cache_creation_input_tokens BETWEEN -9007199254740992 AND 9007199254740992
        THEN NEW.cache_creation_input_tokens ELSE coalesce(NEW.cache_creation_input_tokens * 1.0, 0) END,
        CASE WHEN NEW.reasoning_tokens BETWEEN -9007199254740992 AND 9007199254740992 THEN NEW.reasoning_tokens
        ELSE coalesce(NEW.reasoning_tokens * 1.0, 0) END, CASE WHEN (NEW.usage_source IS NULL
        AND NEW.cost_nano IS NULL AND (NEW.status = 'started' OR coalesce(NEW.error_class, '') IN ('cancelled',
        'network', 'process_lost') OR (coalesce(NEW.error_class, '') IN ('other',
        'server_error') AND NEW.provider_status IS NULL))) THEN 1 ELSE 0 END) ON CONFLICT (day, provider,
        model) DO UPDATE SET calls = call_sums.calls + excluded.calls,
        total_input_tokens = call_sums.total_input_tokens + excluded.total_input_tokens,
        output_tokens = call_sums.output_tokens + excluded.output_tokens,
        cost_nano = call_sums.cost_nano + excluded.cost_nano, unpriced = call_sums.unpriced + excluded.unpriced,
        estimated = call_sums.estimated + excluded.estimated,
        cached_input_tokens = call_sums.cached_input_tokens + excluded.cached_input_tokens,
        cache_creation_input_tokens = call_sums.cache_creation_input_tokens +
        excluded.cache_creation_input_tokens, reasoning_tokens = call_sums.reasoning_tokens +
        excluded.reasoning_tokens, unknown = call_sums.unknown + excluded.unknown;
END
;

CREATE TRIGGER summed_call_goes AFTER DELETE ON calls
   WHEN OLD.id <= (SELECT up_to FROM summed_calls)
   BEGIN
   UPDATE call_sums SET calls = call_sums.calls - 1, total_input_tokens = call_sums.total_input_tokens - CASE
       WHEN (CAST(OLD.input_tokens AS numeric) + OLD.cached_input_tokens + OLD.cache_creation_input_tokens)
       BETWEEN -9007199254740992 AND 9007199254740992
       THEN (CAST(OLD.input_tokens AS numeric) + OLD.cached_input_tokens + OLD.cache_creation_input_tokens)
       ELSE coalesce((CAST(OLD.input_tokens AS numeric) + OLD.cached_input_tokens +
       OLD.cache_creation_input_tokens) * 1.0, 0) END, output_tokens = call_sums.output_tokens - CASE WHEN
       OLD.output_tokens BETWEEN -9007199254740992 AND 9007199254740992 THEN OLD.output_tokens
       ELSE coalesce(OLD.output_tokens * 1.0, 0) END, cost_nano = call_sums.cost_nano - coalesce(OLD.cost_nano,
       0), unpriced = call_sums.unpriced - CASE WHEN OLD.usage_source IS NOT NULL AND OLD.cost_nano IS NULL
       THEN 1 ELSE 0 END, estimated = call_sums.estimated - CASE WHEN OLD.usage_source = 'estimated' THEN 1
       ELSE 0 END, cached_input_tokens = call_sums.cached_input_tokens - CASE WHEN OLD.cached_input_tokens
       BETWEEN -9007199254740992 AND 9007199254740992 THEN OLD.cached_input_tokens
       ELSE coalesce(OLD.cached_input_tokens * 1.0, 0) END, cache_creation_input_tokens =
       call_sums.cache_creation_input_tokens - CASE WHEN OLD.cache_creation_input_tokens BETWEEN
       -9007199254740992 AND 9007199254740992 THEN OLD.cache_creation_input_tokens
       ELSE coalesce(OLD.cache_creation_input_tokens * 1.0, 0) END,
       reasoning_tokens = call_sums.reasoning_tokens - CASE WHEN OLD.reasoning_tokens BETWEEN -9007199254740992
       AND 9007199254740992 THEN OLD.reasoning_tokens ELSE coalesce(OLD.reasoning_tokens * 1.0, 0) END,
       unknown = call_sums.unknown - CASE WHEN (OLD.usage_source IS NULL AND OLD.cost_nano IS NULL
       AND (OLD.status = 'started' OR coalesce(OLD.error_class, '') IN ('cancelled', 'network',
       'process_lost') OR (coalesce(OLD.error_class, '') IN ('other',
       'server_error') AND OLD.provider_status IS NULL))) THEN 1 ELSE 0 END
       WHERE day = OLD.day AND provider = OLD.provider AND model = OLD.model;
   DELETE FROM call_sums WHERE day = OLD.day AND provider = OLD.provider AND model = OLD.model AND calls = 0;
END
;

CREATE TRIGGER repriced_call_changes
AFTER UPDATE OF day, provider, model, usage_source, cost_nano ON calls
WHEN OLD.usage_source IS NOT NULL AND (OLD.day, OLD.provider, OLD.model, OLD.cost_nano,
    OLD.usage_source) IS NOT (NEW.day, NEW.provider, NEW.model, NEW.cost_nano, NEW.usage_source)
BEGIN
    UPDATE repriced_sums SET calls = repriced_sums.calls - 1,
        cost_nano = repriced_sums.cost_nano - (coalesce(k.cost_nano, 0) - coalesce(OLD.cost_nano, 0)),
        unpriced = repriced_sums.unpriced - (CASE WHEN k.cost_nano IS NULL THEN 1
        ELSE 0 END - CASE WHEN OLD.usage_source IS NOT NULL AND OLD.cost_nano IS NULL THEN 1 ELSE 0 END)
      FROM call_cost AS k
     WHERE k.run = repriced_sums.run AND k.call_id = OLD.id
       AND (repriced_sums.day, repriced_sums.provider, repriced_sums.model) = (OLD.day, OLD.provider,
           OLD.model);
    INSERT INTO repriced_sums (run, day, provider, model, calls, cost_nano, unpriced) SELECT k.run, NEW.day,
        NEW.provider, NEW.model, 1, (coalesce(k.cost_nano, 0) - coalesce(NEW.cost_nano, 0)),
        (CASE WHEN k.cost_nano IS NULL THEN 1 ELSE 0 END - CASE WHEN NEW.usage_source IS NOT NULL
        AND NEW.cost_nano IS NULL THEN 1 ELSE 0 END)  FROM call_cost AS k WHERE k.run IN (SELECT id
        FROM reprice_run) AND k.call_id = NEW.id ON CONFLICT (run, day, provider,
        model) DO UPDATE SET calls = repriced_sums.calls + excluded.calls,
        cost_nano = repriced_sums.cost_nano + excluded.cost_nano,
        unpriced = repriced_sums.unpriced + excluded.unpriced;
    DELETE FROM repriced_sums WHERE day = OLD.day AND provider = OLD.provider AND model = OLD.model
        AND calls = 0;
    UPDATE reprice_run SET add_up_again = 1
     WHERE finished_us IS NULL
       AND EXISTS (SELECT 1 FROM call_cost AS k WHERE k.run = reprice_run.id AND k.call_id = OLD.id);
END
;

CREATE TRIGGER repriced_call_goes AFTER DELETE ON call_cost
BEGIN
    UPDATE repriced_sums SET calls = repriced_sums.calls - 1,
        cost_nano = repriced_sums.cost_nano - (coalesce(OLD.cost_nano, 0) - coalesce(c.cost_nano, 0)),
        unpriced = repriced_sums.unpriced - (CASE WHEN OLD.cost_nano IS NULL THEN 1
        ELSE 0 END - CASE WHEN c.usage_source IS NOT NULL AND c.cost_nano IS NULL THEN 1 ELSE 0 END)
      FROM calls AS c
     WHERE c.id = OLD.call_id AND repriced_sums.run = OLD.run
       AND (repriced_sums.day, repriced_sums.provider, repriced_sums.model) = (c.day, c.provider, c.model);
    DELETE FROM repriced_sums WHERE run = OLD.run AND calls = 0;
    UPDATE reprice_run SET add_up_again = 1 WHERE id = OLD.run AND finished_us IS NULL;
END
;

CREATE TRIGGER call_to_reprice_changes
AFTER UPDATE OF day, model, usage_source, cost_nano ON calls
WHEN OLD.usage_source IS NOT NULL
 AND (OLD.day, OLD.model, OLD.usage_source, OLD.cost_nano)
     IS NOT (NEW.day, NEW.model, NEW.usage_source, NEW.cost_nano)
BEGIN
    INSERT INTO reprice_sum (run, model, day, session, calls, unpriced, after, unpriced_before, before)
    SELECT r.id, OLD.model, OLD.day, '', 0, 0, 0, -(CASE WHEN k.cost_nano IS NULL THEN 1
        ELSE 0 END - CASE WHEN OLD.usage_source IS NOT NULL AND OLD.cost_nano IS NULL THEN 1 ELSE 0 END),
        -(coalesce(k.cost_nano, 0) - coalesce(OLD.cost_nano, 0))
      FROM reprice_run AS r
      JOIN call_cost AS k ON k.run = r.base AND k.call_id = OLD.id WHERE r.base IS NOT NULL
       AND r.finished_us IS NULL AND NOT EXISTS (SELECT 1 FROM call_cost AS own
           WHERE own.run = r.id AND own.call_id = k.call_id)
        ON CONFLICT (run, model, day, session) DO UPDATE SET
           unpriced_before = unpriced_before + excluded.unpriced_before,
           before = before + excluded.before;
    INSERT INTO reprice_sum (run, model, day, session, calls, unpriced, after, unpriced_before, before)
    SELECT r.id, NEW.model, NEW.day, '', 0, 0, 0, (CASE WHEN k.cost_nano IS NULL THEN 1
        ELSE 0 END - CASE WHEN NEW.usage_source IS NOT NULL AND NEW.cost_nano IS NULL THEN 1 ELSE 0 END),
        (coalesce(k.cost_nano, 0) - coalesce(NEW.cost_nano, 0))
      FROM reprice_run AS r
      JOIN call_cost AS k ON k.run = r.base AND k.call_id = OLD.id WHERE r.base IS NOT NULL
       AND r.finished_us IS NULL AND NOT EXISTS (SELECT 1 FROM call_cost AS own
           WHERE own.run = r.id AND own.call_id = k.call_id)
        ON CONFLICT (run, model, day, session) DO UPDATE SET
           unpriced_before = unpriced_before + excluded.unpriced_before,
           before = before + excluded.before;
END
;

CREATE TRIGGER call_to_reprice_goes AFTER DELETE ON call_cost
BEGIN
    INSERT INTO reprice_sum (run, model, day, session, calls, unpriced, after, unpriced_before, before)
    SELECT r.id, c.model, c.day, '', 0, 0, 0, -(CASE WHEN OLD.cost_nano IS NULL THEN 1
        ELSE 0 END - CASE WHEN c.usage_source IS NOT NULL AND c.cost_nano IS NULL THEN 1 ELSE 0 END),
        -(coalesce(OLD.cost_nano, 0) - coalesce(c.cost_nano, 0))
      FROM reprice_run AS r
      JOIN calls AS c ON c.id = OLD.call_id WHERE r.base = OLD.run
       AND r.finished_us IS NULL AND NOT EXISTS (SELECT 1 FROM call_cost AS own
           WHERE own.run = r.id AND own.call_id = OLD.call_id)
        ON CONFLICT (run, model, day, session) DO UPDATE SET
           unpriced_before = unpriced_before + excluded.unpriced_before,
           before = before + excluded.before
; END
;

CREATE INDEX calls_by_root ON calls (root_turn_id) WHERE root_turn_id IS NOT NULL
;

CREATE INDEX calls_by_parent ON calls (parent_turn_id) WHERE parent_turn_id IS NOT NULL
;

CREATE TABLE gateway_clients (
    name        TEXT PRIMARY KEY NOT NULL,
    settings    TEXT NOT NULL,           -- budget, models and rates, as JSON
    created_us  INTEGER NOT NULL,
    revoked_us  INTEGER
) STRICT
;

CREATE TABLE gateway_keys (
    hash        BLOB PRIMARY KEY NOT NULL,  -- SHA-256 of the key
    client      TEXT NOT NULL,
    prefix      TEXT NOT NULL,           -- the beginning of the key, for people
    created_us  INTEGER NOT NULL,
    expires_us  INTEGER
) STRICT
;

CREATE TABLE gateway_kept (
    id          INTEGER PRIMARY KEY,
    client      TEXT NOT NULL,
    kind        TEXT NOT NULL,           -- reply, chain or response
    key         BLOB NOT NULL,
    session_id  TEXT NOT NULL,
    body        BLOB NOT NULL,
    bytes       INTEGER NOT NULL,        -- of the body
    ts_us       INTEGER NOT NULL
) STRICT
;

CREATE INDEX gateway_kept_by_key ON gateway_kept (client, kind, key)
;

CREATE INDEX gateway_kept_by_session ON gateway_kept (session_id)
;

CREATE INDEX gateway_kept_by_age ON gateway_kept (ts_us)
;

CREATE TABLE gateway_changes (
    what    TEXT PRIMARY KEY NOT NULL,   -- clients, or forgotten for deleted content
    number  INTEGER NOT NULL
) STRICT
;

CREATE INDEX calls_by_origin ON calls (origin, ts_us) WHERE origin IS NOT NULL
;

CREATE TABLE imported_calls (
    request_id  TEXT PRIMARY KEY,     -- of every call that was imported, pruned ones included
    revision    INTEGER NOT NULL
) STRICT, WITHOUT ROWID
;

CREATE TABLE imported_files (
    source      TEXT NOT NULL,
    path        TEXT NOT NULL,
    size        INTEGER NOT NULL,     -- of the file when it was read, and
    mtime_ns    INTEGER NOT NULL,
    inode       INTEGER NOT NULL,
    read_to     INTEGER NOT NULL,     -- the number of bytes that need not be read again
    line        INTEGER NOT NULL,     -- the number of lines in these bytes
    digest      TEXT NOT NULL,        -- of the first and the last of these bytes
    state       TEXT NOT NULL,        -- the source's own state at that place
    PRIMARY KEY (source, path)
) STRICT, WITHOUT ROWID
;

CREATE VIEW call_rows AS SELECT id AS call_id, run_id, request_id, attempt, session_id, turn_id, message_id,
    caused_by, started_us, finished_us, first_token_ms, latency_ms, status, key, reason, provider, model,
    requested_model, served_model, streamed, stop_reason, raw_stop_reason, response_id, provider_request_id,
    error_class, error_type, error_message, provider_status, provider_code, retry_count, will_retry,
    delay_seconds, retry_after_seconds, input_tokens, cached_input_tokens, cache_creation_input_tokens,
    cache_creation_1h_input_tokens, output_tokens, reasoning_tokens, usage_source, usage_raw, usage_details,
    service_tier, priced_as, routing, estimated_input_tokens, tags, warnings,
    input_tokens + cached_input_tokens + cache_creation_input_tokens AS total_input_tokens, coalesce(operation,
    'chat') AS operation, coalesce(resent, 0) AS resent, now_nano AS cost_nano_usd, now_source AS cost_source,
    now_version AS cost_pricing_version, now_reason AS cost_reason, now_computed_nano AS cost_computed_nano_usd,
    cost_nano AS at_call_time_nano_usd, cost_source AS at_call_time_source,
    cost_version AS at_call_time_pricing_version, cost_reason AS at_call_time_reason,
    cost_computed_nano AS at_call_time_computed_nano_usd,
    parent_call_id, parent_tool_use_id, parent_turn_id, root_turn_id, depth,
    origin, origin_file, origin_line, revision, stated_nano_usd FROM (
    SELECT c.*, r.run_id,
           CASE WHEN cc.call_id IS NULL THEN c.cost_version
                ELSE (SELECT v.version FROM reprice_run AS v WHERE v.id = cc.run)
           END AS now_version,
           (CASE WHEN cc.call_id IS NULL THEN c.cost_nano ELSE cc.cost_nano END) AS now_nano,
           CASE WHEN cc.call_id IS NULL THEN c.cost_reason ELSE cc.reason END AS now_reason,
           CASE WHEN cc.call_id IS NULL THEN c.cost_source
                WHEN cc.cost_nano IS NULL THEN 'unpriced'
                ELSE 'computed'
           END AS now_source,
           CASE WHEN cc.call_id IS NULL THEN c.cost_computed_nano END AS now_computed_nano
      FROM calls AS c
      JOIN runs AS r ON r.id = c.run
      LEFT JOIN call_cost AS cc
        ON cc.call_id = c.id
       AND cc.run = (
        SELECT cr.run
          FROM current_run AS cr
          JOIN call_cost AS k ON k.run = cr.run AND k.call_id = c.id
         ORDER BY cr.position
         LIMIT 1
    )
) AS priced
;

CREATE INDEX calls_by_turn ON calls (turn_id) WHERE turn_id IS NOT NULL
;

INSERT INTO "gateway_changes" VALUES('clients',0)
;

INSERT INTO "gateway_changes" VALUES('forgotten',0)
;

INSERT INTO "summed_calls" VALUES(0)
;
