"""The schema: made once whoever comes first, refused when it is newer, and safe with two versions of the code."""

from __future__ import annotations

import gzip
from pathlib import Path

import anyio
import psycopg
import pytest

from callboard.bus.errors import StoreError
from callboard.tracestore import PostgresStore
from callboard.tracestore.postgres import schema as migrations
from callboard.tracestore.postgres.schema import month_of
from callboard.tracestore.sql.connection import Steps, read_steps
from tests.support.postgres_server import StartedServer
from tests.support.programs import started
from tests.tracestore.trace_making import DAY_US, T0, Maker

pytestmark = pytest.mark.anyio

_OPEN = """
import asyncio, sys
from callboard.tracestore import PostgresStore

async def main() -> None:
    sys.stdin.readline()
    async with PostgresStore(sys.argv[1], path=sys.argv[2]) as store:
        print(await store.last_event_id())

asyncio.run(main())
"""


def test_processes_that_open_a_new_database_at_once_make_its_tables_once(dsn: str, tmp_path: Path) -> None:
    """One of them makes them, and the others find them made."""
    programs = [started(_OPEN, dsn, tmp_path / "trace") for _ in range(4)]
    for program in programs:
        assert program.stdin is not None
        program.stdin.write("go\n")
        program.stdin.flush()
    said = [program.communicate(timeout=60) for program in programs]
    assert said == [("0\n", "")] * 4
    with psycopg.connect(dsn) as connection:
        history = connection.execute("SELECT version, name FROM callboard.schema_history ORDER BY version")
        assert history.fetchall() == [(at, name) for at, (name, _) in enumerate(migrations.MIGRATIONS, 1)]


async def test_a_newer_database_is_refused_and_left_as_it_is(dsn: str, tmp_path: Path) -> None:
    """The error says what to do."""
    async with PostgresStore(dsn, path=tmp_path / "trace"):
        pass
    newer = migrations.SCHEMA_VERSION + 1
    with psycopg.connect(dsn) as connection:
        connection.execute("INSERT INTO callboard.schema_history VALUES (%s, 'of tomorrow', 0)", (newer,))
    for store in (PostgresStore(dsn, path=tmp_path / "trace"), PostgresStore.open_readonly(dsn)):
        with pytest.raises(StoreError, match=f"schema version {newer}.*update Callboard"):
            await store.open()
        assert not store.is_open


async def test_a_schema_of_another_application_is_refused(dsn: str, tmp_path: Path) -> None:
    """A schema that is empty is taken."""
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


async def test_a_reader_makes_no_tables(dsn: str) -> None:
    """It says who does."""
    with pytest.raises(StoreError, match="open it once for writing"):
        await PostgresStore.open_readonly(dsn).open()


async def test_a_step_that_adds_does_not_disturb_who_is_writing(
    dsn: str, tmp_path: Path, make: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The version before goes on writing, while the next one makes columns, tables and indexes."""
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


async def test_a_step_that_fails_leaves_nothing(dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All steps that a database lacks are one transaction."""
    broken = (*migrations.MIGRATIONS, ("broken", ("CREATE TABLE more (id bigint)", "SELECT no_such_thing")))
    with monkeypatch.context() as patch:
        patch.setattr(migrations, "MIGRATIONS", broken)
        patch.setattr(migrations, "SCHEMA_VERSION", len(broken))
        with pytest.raises(StoreError, match="no_such_thing"):
            await PostgresStore(dsn, path=tmp_path / "trace").open()
    with psycopg.connect(dsn) as connection:
        assert connection.execute("SELECT to_regnamespace('callboard')").fetchall() == [(None,)]


async def test_each_month_has_a_partition_and_clocks_that_are_wrong_have_theirs(
    dsn: str, tmp_path: Path, make: Maker
) -> None:
    """Events come back in the order in which they were written, whatever their moments."""
    moments = [T0, T0 + 40 * DAY_US, 5, -(10**15), 5 * 10**15, T0 + 1]
    async with PostgresStore(dsn, path=tmp_path / "trace") as store:
        began = make.started().data
        written = [make(began, ts_us=at, request_id=f"r{place}") for place, at in enumerate(moments)]
        await store.write(written)
        await store.write(written)
        assert await store.events() == written
        found = await store.sql("SELECT DISTINCT CAST(CAST(tableoid AS regclass) AS text) FROM events ORDER BY 1")
    assert [name for (name,) in found.rows] == ["events_202609", "events_202610", "events_after", "events_before"]


def test_months_end_where_the_next_begins() -> None:
    """Over a year's end, too, and nowhere beyond the two centuries' edges."""
    month = month_of(T0)
    assert month is not None
    for _ in range(15):
        following = month_of(month[1])
        assert following is not None
        assert month_of(month[1] - 1) == month
        month = following
    assert month[2] == "events_202712"
    assert month_of(-1) is month_of(10**16) is None


async def test_a_month_is_made_while_somebody_reads(dsn: str, tmp_path: Path, make: Maker) -> None:
    """A reader in a long transaction holds up no writer whose events are the first of a month."""
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


async def test_a_role_that_owns_nothing_can_write_and_one_that_only_reads_can_read(
    server: StartedServer, dsn: str, tmp_path: Path, make: Maker
) -> None:
    """Neither makes tables; a month is made by the owner's function."""
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
    """Another one makes them then."""
    program = started(_OPEN.replace("sys.stdin.readline()", "print('up', flush=True)"), dsn, tmp_path / "trace")
    assert program.stdout is not None
    assert program.stdout.readline() == "up\n"
    program.kill()
    program.communicate()
    with started(_OPEN, dsn, tmp_path / "trace") as again:
        said, _ = again.communicate("go\n", timeout=60)
    assert said == "0\n"


OLD_SCHEMAS = sorted(Path(__file__).with_name("old_schemas").glob("*.sql.gz"))
"""The steps as the code of each version had them."""

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
    """Make the schema as old code made it."""
    with psycopg.connect(dsn) as connection:
        migrations._make_schema(connection, "callboard")
        connection.execute("SET search_path = callboard")
        for number, (name, script) in enumerate(steps, 1):
            for statement in script:
                connection.execute(statement.replace("CALLBOARD_SCHEMA", "'callboard'").encode())
            connection.execute("INSERT INTO schema_history VALUES (%s, %s, 0)", (number, name))


@pytest.mark.parametrize("old", OLD_SCHEMAS, ids=lambda path: path.name.removesuffix(".sql.gz"))
async def test_an_old_database_becomes_like_a_new_one(
    server: StartedServer, dsn: str, tmp_path: Path, make: Maker, old: Path
) -> None:
    """It has the same columns, indexes, views, triggers and functions, and takes events."""
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
