"""The schema in PostgreSQL, its connections and its writers."""

from __future__ import annotations

import gzip
import os
from collections.abc import AsyncIterator, Iterator, Sequence
from functools import partial
from pathlib import Path

import anyio
import psycopg
import pytest

from callboard.bus.errors import StoreError
from callboard.bus.events import Envelope
from callboard.bus.events.operation import ActorStarted
from callboard.bus.values.messages import Message
from callboard.tracestore import CallFilter, PostgresStore, TraceShipper, TraceStore
from callboard.tracestore.postgres import schema as migrations
from callboard.tracestore.postgres.schema import month_of
from callboard.tracestore.postgres.statements import POSTGRES
from callboard.tracestore.sql.call_rows import condition
from callboard.tracestore.sql.connection import Steps, read_steps
from callboard.tracestore.sql.expiry import delete_sessions, delete_unneeded, needed_bodies
from tests.support.depth import each_nth_is_quick

from ...support.certificate import local_certificate
from ...support.postgres_server import NOBODY, StartedServer, own_server, why_not
from ...support.programs import started
from ...support.virtual_time import FakeClock
from ..content_making import appended, captured, configured
from ..shipping.test_shipping import of_run
from ..trace_making import DAY_US, T0, Maker

# The schema: created once by the first process, refused if it is newer, and usable by two versions of the code.

_OPEN = """
import asyncio, sys
from callboard.tracestore import PostgresStore

async def main() -> None:
    sys.stdin.readline()
    async with PostgresStore(sys.argv[1], path=sys.argv[2]) as store:
        print(await store.last_event_id())

asyncio.run(main())
"""


@pytest.mark.deep("several processes")
def test_processes_that_open_a_new_database_create_its_tables_once(dsn: str, tmp_path: Path) -> None:
    """One process creates the tables. The others wait and then use them."""
    programs = [started(_OPEN, dsn, tmp_path / "trace") for _ in range(4)]
    for program in programs:
        program.stdin.write("go\n")
        program.stdin.flush()
    said = [program.communicate(timeout=60) for program in programs]
    assert said == [("0\n", "")] * 4
    with psycopg.connect(dsn) as connection:
        history = connection.execute("SELECT version, name FROM callboard.schema_history ORDER BY version")
        assert history.fetchall() == [(at, name) for at, (name, _) in enumerate(migrations.MIGRATIONS, 1)]


async def test_a_newer_database_is_refused_and_left_as_it_is(dsn: str, tmp_path: Path) -> None:
    async with PostgresStore(dsn, path=tmp_path / "trace"):
        pass
    newer = migrations.SCHEMA_VERSION + 1
    with psycopg.connect(dsn) as connection:
        connection.execute("INSERT INTO callboard.schema_history VALUES (%s, 'of tomorrow', 0)", (newer,))
    for store in (PostgresStore(dsn, path=tmp_path / "trace"), PostgresStore.open_readonly(dsn)):
        with pytest.raises(StoreError, match=f"schema version {newer}.*Update Callboard"):
            await store.open()
        assert not store.is_open


async def test_a_schema_of_another_application_is_refused(dsn: str, tmp_path: Path) -> None:
    """An empty schema is used. A reader creates no tables, and its error asks for a writing store."""
    with pytest.raises(StoreError, match="Open it once for writing"):
        await PostgresStore.open_readonly(dsn).open()
    with psycopg.connect(dsn) as connection:
        connection.execute("CREATE SCHEMA mine")
        connection.execute("CREATE SCHEMA theirs")
        connection.execute("CREATE TABLE theirs.orders (id int)")
    with pytest.raises(StoreError, match="another application"):
        await PostgresStore(dsn, schema="theirs", path=tmp_path / "trace").open()
    async with PostgresStore(dsn, schema="mine", path=tmp_path / "trace") as store:
        assert await store.calls() == []
    with pytest.raises(ValueError, match="schema"):
        PostgresStore(dsn, schema='x"; DROP', path=tmp_path / "trace")


async def test_new_columns_stop_no_writer(
    dsn: str, tmp_path: Path, make: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The old version keeps writing while the new version adds columns, tables and indexes."""
    step = (
        "ALTER TABLE calls ADD COLUMN colour text",
        "ALTER TABLE events ADD COLUMN flavour bigint NOT NULL DEFAULT 0",
        "CREATE INDEX calls_by_colour ON calls (colour)",
    )
    old = PostgresStore(dsn, path=tmp_path / "trace")
    async with old, anyio.create_task_group() as group:
        done = anyio.Event()
        written = 0

        async def write() -> None:
            nonlocal written
            while not done.is_set() or written < 20:
                await old.write([make.started(f"req_{written}")])
                written += 1

        group.start_soon(write)
        await anyio.sleep(0.05)
        with monkeypatch.context() as patch:
            patch.setattr(migrations, "MIGRATIONS", (*migrations.MIGRATIONS, ("more", step)))
            patch.setattr(migrations, "SCHEMA_VERSION", migrations.SCHEMA_VERSION + 1)
            async with PostgresStore(dsn, path=tmp_path / "new") as new:
                await new.write([Maker("run_new").started("req_new")])
                done.set()
                await anyio.sleep(0.05)
    with psycopg.connect(dsn) as connection:
        ((calls, events),) = connection.execute(
            "SELECT (SELECT count(*) FROM callboard.calls), (SELECT count(*) FROM callboard.events)"
        ).fetchall()
    assert calls == events == written + 1


async def test_a_failed_step_is_rolled_back(dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = (*migrations.MIGRATIONS, ("broken", ("CREATE TABLE more (id bigint)", "SELECT no_such_thing")))
    with monkeypatch.context() as patch:
        patch.setattr(migrations, "MIGRATIONS", broken)
        patch.setattr(migrations, "SCHEMA_VERSION", len(broken))
        with pytest.raises(StoreError, match="no_such_thing"):
            await PostgresStore(dsn, path=tmp_path / "trace").open()
    with psycopg.connect(dsn) as connection:
        assert connection.execute("SELECT to_regnamespace('callboard')").fetchall() == [(None,)]


async def test_months_and_impossible_times_have_partitions(dsn: str, tmp_path: Path, make: Maker) -> None:
    """Events are read back in the order of writing, for times of any month and for impossible times."""
    moments = [T0, T0 + 40 * DAY_US, 5, -(10**15), 5 * 10**15, T0 + 1]
    async with PostgresStore(dsn, path=tmp_path / "trace") as store:
        began = make.started().data
        written = [make(began, ts_us=at, request_id=f"r{place}") for place, at in enumerate(moments)]
        await store.write(written)
        await store.write(written)
        assert await store.events() == written
        found = await store.sql("SELECT DISTINCT CAST(CAST(tableoid AS regclass) AS text) FROM events ORDER BY 1")
    assert [name for (name,) in found.rows] == ["events_202609", "events_202610", "events_after", "events_before"]


def test_a_month_ends_at_the_start_of_the_next() -> None:
    """December ends at the start of the next year. Times outside of two centuries have no month."""
    month = month_of(T0)
    assert month is not None
    for _ in range(15):
        following = month_of(month[1])
        assert following is not None
        assert month_of(month[1] - 1) == month
        month = following
    assert month[2] == "events_202712"
    assert month_of(-1) is month_of(10**16) is None


async def test_a_partition_is_created_during_a_read(dsn: str, tmp_path: Path, make: Maker) -> None:
    """A reader in a long transaction does not delay a writer whose events are the first of a month."""
    async with PostgresStore(dsn, path=tmp_path / "trace") as store:
        await store.write([make.started()])
        with psycopg.connect(dsn) as reader:
            reader.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            assert reader.execute("SELECT count(*) FROM callboard.events").fetchall() == [(1,)]
            with anyio.fail_after(10):
                await store.write([make(make.started().data, ts_us=T0 + 40 * DAY_US, request_id="r2")])
            assert reader.execute("SELECT count(*) FROM callboard.events").fetchall() == [(1,)]


WRITER_RIGHTS = (
    "CREATE ROLE {role} LOGIN PASSWORD 'w'",
    "GRANT USAGE ON SCHEMA callboard TO {role}",
    "GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA callboard TO {role}",
    "GRANT USAGE ON ALL SEQUENCES IN SCHEMA callboard TO {role}",
    "GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA callboard TO {role}",
)


async def test_roles_without_tables_write_or_read(
    server: StartedServer, dsn: str, tmp_path: Path, make: Maker
) -> None:
    """Neither role creates tables. A function of the owner creates a new month."""
    async with PostgresStore(dsn, path=tmp_path / "owner"):
        pass
    name = dsn.rpartition("/")[2]
    server.execute(*(right.format(role="trace_writer") for right in WRITER_RIGHTS), database=name)
    server.execute(
        "CREATE ROLE trace_reader LOGIN PASSWORD 'r'",
        "GRANT USAGE ON SCHEMA callboard TO trace_reader",
        "GRANT SELECT ON ALL TABLES IN SCHEMA callboard TO trace_reader",
        database=name,
    )
    try:
        writer = PostgresStore(server.dsn_of(name, user="trace_writer", password="w"), path=tmp_path / "trace")
        async with writer:
            writer.hold_run(make.run_id)
            await writer.write([make.started(session_id="s", tags={"a": "b"}), make.completed(session_id="s")])
            assert len(await writer.calls()) == 1
            assert await writer.close_lost_runs() == []
            await writer.write([make(make.started().data, ts_us=T0 + 40 * DAY_US, request_id="r2")])
        reader = PostgresStore.open_readonly(server.dsn_of(name, user="trace_reader", password="r"))
        async with reader:
            assert len(await reader.calls()) == len(await reader.events()) - 1 == 2
            assert len(await reader.costs()) == len(await reader.sessions()) == 1
            with pytest.raises(StoreError, match="for reading only"):
                await reader.write([make.started("r3")])
    finally:
        for role in ("trace_writer", "trace_reader"):
            server.execute(f"DROP OWNED BY {role}", f"DROP ROLE {role}", database=name)


def test_the_tables_are_made_in_one_process_that_dies_half_way(dsn: str, tmp_path: Path) -> None:
    program = started(_OPEN.replace("sys.stdin.readline()", "print('up', flush=True)"), dsn, tmp_path / "trace")
    assert program.stdout.readline() == "up\n"
    program.kill()
    program.communicate()
    with started(_OPEN, dsn, tmp_path / "trace") as again:
        said, _ = again.communicate("go\n", timeout=60)
    assert said == "0\n"


OLD_SCHEMAS = sorted(Path(__file__).with_name("old_schemas").glob("*.sql.gz"))
"""The steps of the schema in the code of each version."""

_CATALOGUE = (
    """
    SELECT c.relname || '.' || a.attname, format_type(a.atttypid, a.atttypmod) || ' ' || a.attnotnull
           || ' ' || coalesce(pg_get_expr(d.adbin, d.adrelid), '')
      FROM pg_attribute AS a
      JOIN pg_class AS c ON c.oid = a.attrelid
      LEFT JOIN pg_attrdef AS d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
     WHERE c.relnamespace = CAST('callboard' AS regnamespace) AND a.attnum > 0 AND NOT a.attisdropped
    """,
    "SELECT indexname, indexdef FROM pg_indexes WHERE schemaname = 'callboard'",
    "SELECT viewname, definition FROM pg_views WHERE schemaname = 'callboard'",
    """
    SELECT t.tgname || c.relname, pg_get_triggerdef(t.oid)
      FROM pg_trigger AS t JOIN pg_class AS c ON c.oid = t.tgrelid
     WHERE c.relnamespace = CAST('callboard' AS regnamespace) AND NOT t.tgisinternal
    """,
    """
    SELECT proname, pg_get_functiondef(oid) FROM pg_proc
     WHERE pronamespace = CAST('callboard' AS regnamespace)
    """,
)


def catalogue(dsn: str) -> dict[str, str]:
    """Columns, indexes, views, triggers and functions of the schema, without white space."""
    with psycopg.connect(dsn) as connection:
        rows = [row for query in _CATALOGUE for row in connection.execute(query).fetchall()]
    return {str(name): "".join(str(said).split()) for name, said in rows}


def make_old(dsn: str, steps: Steps) -> None:
    """Create the schema as old code did."""
    with psycopg.connect(dsn) as connection:
        migrations._make_schema(connection, "callboard")
        connection.execute("SET search_path = callboard")
        for number, (name, script) in enumerate(steps, 1):
            for statement in script:
                connection.execute(statement.replace("CALLBOARD_SCHEMA", "'callboard'").encode())
            connection.execute("INSERT INTO schema_history VALUES (%s, %s, 0)", (number, name))


@pytest.mark.parametrize(
    "old",
    each_nth_is_quick(OLD_SCHEMAS, 4, "each old version"),
    ids=lambda path: path.name.removesuffix(".sql.gz"),
)
async def test_old_databases_are_upgraded(
    server: StartedServer, dsn: str, tmp_path: Path, make: Maker, old: Path
) -> None:
    """The database has the same columns, indexes, views, triggers and functions, and stores events."""
    with gzip.open(old, "rt") as packed:
        make_old(dsn, read_steps(packed.read()))
    async with PostgresStore(dsn, path=tmp_path / "trace"):
        pass
    with server.database() as other:
        async with PostgresStore(other, path=tmp_path / "new"):
            pass
        assert catalogue(dsn) == catalogue(other)
    async with PostgresStore(dsn, path=tmp_path / "trace") as store:
        await store.write([make.started(), make.completed()])
        assert [call.status for call in await store.calls()] == ["completed"]


# SQL of users only reads, with limits on time and rows.


@pytest.fixture
async def store(dsn: str, tmp_path: Path) -> AsyncIterator[PostgresStore]:
    async with PostgresStore(dsn, path=tmp_path / "trace") as opened:
        await opened.write([Maker().started("r1")])
        yield opened


async def test_sql_only_reads(store: PostgresStore) -> None:
    for statement in (
        *("DELETE FROM calls", "CREATE TEMP TABLE t (a int)", "EXPLAIN ANALYZE DELETE FROM calls", "COMMIT"),
        "WITH gone AS (DELETE FROM calls RETURNING id) SELECT * FROM gone",
        *("SELECT 1; DELETE FROM calls", "SELECT 1; COMMIT; DELETE FROM calls"),
        *("SET transaction_read_only = off", "SELECT set_config('transaction_read_only', 'off', true)"),
        *("COPY calls TO '/tmp/calls'", "SELECT nextval('events_id_seq')", "SELECT ?", "no SQL at all", ""),
    ):
        with pytest.raises(StoreError):
            await store.sql(statement)
        assert len(await store.calls()) == 1, statement


async def test_sql_returns_columns_and_rows(store: PostgresStore) -> None:
    found = await store.sql("SELECT request_id, '%?' AS sign FROM calls WHERE request_id = ?", ["r1"])
    assert (found.columns, found.rows) == (("request_id", "sign"), (("r1", "%?"),))
    assert (await store.sql("SELECT 100 % 7 AS rest")).rows == ((2,),)
    assert "Scan" in str((await store.sql("EXPLAIN SELECT * FROM calls")).rows[0][0])
    found = await store.sql("SELECT generate_series(1, 100000)", limit=3)
    assert (found.rows, found.truncated) == (((1,), (2,), (3,)), True)
    assert (await store.sql("SELECT date '2026-01-02', 1.5, sum(3::bigint)")).rows == (("2026-01-02", 1.5, 3),)
    with pytest.raises(ValueError, match="limit"):
        await store.sql("SELECT 1", limit=-1)


async def test_the_calls_of_a_tree_are_found_by_indexes(store: PostgresStore, dsn: str) -> None:
    """The plan uses an index for the calls of the root turn, and one for the calls below it."""
    which, values = condition(CallFilter(root_turn_id="trn_1"), POSTGRES)
    options = "-c search_path=callboard -c enable_seqscan=off"  # few rows are read without any index
    with psycopg.connect(dsn, options=options) as connection:
        query = f"EXPLAIN SELECT * FROM calls AS c WHERE {which.replace('?', '%s')}"
        plan = "\n".join(row[0] for row in connection.execute(query, values))
    assert "Seq Scan" not in plan
    assert "turn_id = 'trn_1'" in plan
    assert "root_turn_id = 'trn_1'" in plan


# Unused content is deleted. A message that is stored again during the deletion stays, for any clock.

SAID = [Message.user("What everybody asks. " * 100)]


@pytest.mark.parametrize("again", [True, False])
async def test_a_body_that_comes_again_during_the_deletion_stays(dsn: str, tmp_path: Path, again: bool) -> None:
    """The new message has the same time as the old one, like an event that arrives late."""
    async with PostgresStore(dsn, path=tmp_path / "trace") as store:
        one, other = Maker("run_a"), Maker("run_b")
        await store.write(captured(configured(one, "a"), *appended(one, SAID, "a", ts_us=T0)))
        await store._database.write(lambda statements: delete_sessions(statements, ["a"]))
        needed = await store._database.look(lambda statements: needed_bodies(statements, T0 + 1))
        if again:
            await store.write(captured(configured(other, "b"), *appended(other, SAID, "b", ts_us=T0)))
        gone, _ = await store._database.write(partial(delete_unneeded, before_us=T0 + 1, needed=needed, after=0))
        assert gone == (0 if again else 2)  # the message and the setup
        if again:
            assert await store.messages("b") == SAID


@pytest.mark.parametrize("how", ["deleted", "pruned", "deleted by a clock that is behind"])
async def test_unused_content_is_always_deleted(dsn: str, tmp_path: Path, how: str) -> None:
    """An open transaction of another program makes every later body look like a new one."""
    clock = FakeClock(epoch_us=T0) if how.endswith("behind") else FakeClock(epoch_us=T0 + 10**9)
    async with PostgresStore(dsn, path=tmp_path / "trace", clock=clock) as store:
        with psycopg.connect(dsn) as other:
            other.execute("CREATE TABLE public.of_another_application (id bigint)")
            make = Maker("run_a")
            await store.write(captured(configured(make), *appended(make, SAID, ts_us=T0 + 10**8)))
            if how == "pruned":
                await store.write([make(ActorStarted(actor="x"), ts_us=T0 + 10**9)])
                assert (await store.prune(before=T0 + 10**9)).bodies == 3
            else:
                assert await store.delete_session("s")
            other.rollback()
        assert (await store.sql("SELECT count(*) FROM content")).rows == ((0,),)


# An encrypted connection to a server whose certificate must have its name.


@pytest.fixture(scope="module")
def secure() -> Iterator[tuple[StartedServer, Path]]:
    """A server that only accepts encrypted connections, and its certificate."""
    if (reason := why_not(own=True)) is not None:
        pytest.skip(reason)
    with own_server() as server:
        with psycopg.connect(server.dsn) as asked:
            if asked.execute("SHOW ssl_library").fetchall() == [("",)]:
                pytest.skip("this PostgreSQL server is built without TLS, as that of the wheel")
        certificate = server.data / "server.pem"
        certificate.write_bytes(local_certificate())
        certificate.chmod(0o600)
        if os.getuid() == 0:
            os.chown(certificate, NOBODY, NOBODY)
        with (server.data / "postgresql.auto.conf").open("a") as settings:
            settings.write("ssl = on\nssl_cert_file = 'server.pem'\nssl_key_file = 'server.pem'\n")
        (server.data / "pg_hba.conf").write_text("hostssl all all 127.0.0.1/32 scram-sha-256\n")
        server.restart()
        yield server, certificate


def encrypted(server: StartedServer, mode: str, root: Path | None = None) -> str:
    return f"{server.dsn}?sslmode={mode}" + ("" if root is None else f"&sslrootcert={root}")


async def test_a_valid_certificate_is_accepted(secure: tuple[StartedServer, Path], tmp_path: Path) -> None:
    server, certificate = secure
    dsn = encrypted(server, "verify-full", certificate)
    async with TraceStore(tmp_path / "trace.db") as local:
        await local.write(of_run("one", 3))
    shipper = TraceShipper(tmp_path / "trace.db", dsn)
    await shipper.ship()
    await shipper.close()
    async with PostgresStore(dsn, path=tmp_path / "shared") as store:
        assert len(await store.calls()) == 3
        found = await store.sql("SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()")
        assert found.rows == ((True,),)


@pytest.mark.parametrize("wrong", ["certificate", "localhost", "no encryption"])
async def test_an_invalid_certificate_is_refused(
    secure: tuple[StartedServer, Path], tmp_path: Path, wrong: str
) -> None:
    """The certificate has another signer, or the server has another name than 127.0.0.1."""
    server, certificate = secure
    (tmp_path / "other.pem").write_bytes(local_certificate())
    dsn = {
        "certificate": encrypted(server, "verify-full", tmp_path / "other.pem"),
        "localhost": encrypted(server, "verify-full", certificate).replace("127.0.0.1", "localhost")
        + "&hostaddr=127.0.0.1",
        "no encryption": encrypted(server, "disable"),
    }[wrong]
    with pytest.raises(StoreError, match=wrong):
        await PostgresStore(dsn, path=tmp_path / "shared").open()


# Several processes and stores that write one trace concurrently.

_WRITE = """
import asyncio, sys
from callboard.tracestore import PostgresStore
from tests.tracestore.trace_making import Maker

async def main() -> None:
    make = Maker(sys.argv[3])
    async with PostgresStore(sys.argv[1], path=sys.argv[2]) as store:
        store.hold_run(make.run_id)
        for number in range(100):
            name = f"{make.run_id}_{number}"
            # The session and the tags are everybody's, in an order of each one's own.
            shared = [f"s{(number * 7 + len(name) + place) % 5}" for place in range(3)]
            batch = [make.started(f"{name}_{at}", session_id=at, tags={"team": at}) for at in shared]
            await store.write(batch + [make.completed(f"{name}_{at}", session_id=at) for at in shared])

asyncio.run(main())
"""


@pytest.mark.deep("several processes")
async def test_concurrent_processes_lose_no_event(dsn: str, tmp_path: Path) -> None:
    """A reader that continues after the last event number sees every event once."""
    async with PostgresStore(dsn, path=tmp_path / "reader") as store:
        seen: list[Envelope] = []
        last = 0
        programs = [started(_WRITE, dsn, tmp_path / f"p{number}", f"run_{number}") for number in range(3)]
        with anyio.fail_after(60):
            while len(seen) < 3 * 600:
                found = await store.numbered_events(after_id=last, limit=50)
                if not found:
                    assert all(program.poll() in (None, 0) for program in programs)
                    await anyio.sleep(0.01)
                    continue
                seen += [envelope for _, envelope in found]
                last = found[-1][0]
        assert [program.communicate() for program in programs] == [("", "")] * 3
        for number in range(3):
            of_run = [envelope.seq for envelope in seen if envelope.run_id == f"run_{number}"]
            assert of_run == list(range(1, 601))
        assert await store.numbered_events(after_id=last) == []
        calls = await store.calls(limit=None)
        assert len(calls) == 900
        assert {call.status for call in calls} == {"completed"}
        assert sorted(row.calls for row in await store.sessions()) == sorted(
            sum(call.session_id == f"s{at}" for call in calls) for at in range(5)
        )
        assert (await store.sql("SELECT DISTINCT ending FROM runs")).rows == (("closed",),)


def said(make: Maker, session: str, texts: Sequence[str]) -> list[Envelope]:
    """A session's setup and messages, as captured events."""
    messages = [Message.user(text) for text in texts]
    return captured(configured(make, session), *appended(make, messages, session))


async def test_a_body_that_several_hosts_write_is_stored_once(dsn: str, tmp_path: Path) -> None:
    texts = [f"{number} " * 600 for number in range(20)]
    stores = [PostgresStore(dsn, path=tmp_path / f"p{number}") for number in range(3)]
    for store in stores:
        await store.open()
    async with anyio.create_task_group() as group:
        for number, store in enumerate(stores):
            turned = texts[number:] + texts[:number]
            group.start_soon(store.write, said(Maker(f"run_{number}"), f"ses_{number}", turned))
    for number, store in enumerate(stores):
        messages = await store.messages(f"ses_{number}")
        assert [message.text for message in messages] == texts[number:] + texts[:number]
    large = await stores[0].sql("SELECT count(*) FROM content WHERE length(body) > 1000")
    assert large.rows == ((20,),)
    for store in stores:
        await store.close()


async def test_a_session_that_two_hosts_resume_is_continued_twice(dsn: str, tmp_path: Path) -> None:
    """The last claim owns the session. The messages of the other host go to a branch."""
    first, one, two = Maker("run_first"), Maker("run_one"), Maker("run_two")
    async with (
        PostgresStore(dsn, path=tmp_path / "one") as here,
        PostgresStore(dsn, path=tmp_path / "two") as there,
    ):
        await here.write(said(first, "ses", ["Hello."]))
        assert await here.claim_session("ses", "run_one", 0, 1)
        assert await there.claim_session("ses", "run_two", 0, 1)
        assert await here.session_owner("ses", "run_one") == ("run_two", 0)
        await here.write(captured(*appended(one, [Message.user("From one.")], "ses", first=1)))
        await there.write(captured(*appended(two, [Message.user("From two.")], "ses", first=1)))
        assert [message.text for message in await here.messages("ses")] == ["Hello.", "From two."]
        assert [message.text for message in await there.messages("ses.run_one")] == ["Hello.", "From one."]
        assert not await here.claim_session("ses", "run_one", 0, 1)
