"""What an address of a shared store may say besides: a pooler that works by the transaction, a schema, hosts."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import anyio
import psycopg
import pytest

from callboard.bus.errors import StoreError, StoreUnavailable
from callboard.bus.values.messages import Message
from tests.support.pooler import pooler
from tests.support.postgres_server import PostgresServer
from tests.tracestore.content_making import appended, captured
from tests.tracestore.trace_making import Maker
from callboard.tracestore import PostgresStore, PriceTable, ShippingOptions, TraceShipper, TraceStore
from callboard.tracestore.postgres.connection import Address, address_of
from callboard.tracestore.shipping.marks import marks

from .test_erasures import say
from .test_shipping import everything, of_run
from .test_ways import lose_marks

pytestmark = pytest.mark.anyio


def database_of(dsn: str) -> str:
    return dsn.rpartition("/")[2]


def set_role(dsn: str, schema: str = "callboard") -> None:
    """The settings that a role needs behind a pooler, here for the whole database."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        for setting in (f"search_path = {schema}", "timezone = 'UTC'"):
            connection.execute(f'ALTER DATABASE "{database_of(dsn)}" SET {setting}'.encode())


@pytest.fixture
def pooled(shared: str) -> Iterator[str]:
    """The address of a pooler before an empty shared store."""
    set_role(shared)
    with pooler(shared) as dsn:
        yield dsn


async def ship(trace: Path, dsn: str, batch: int = 2000) -> None:
    shipper = TraceShipper(trace, dsn, options=ShippingOptions(batch_events=batch))
    try:
        await shipper.ship()
    finally:
        await shipper.close()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("postgresql://u@h/d", ("postgresql://u@h/d", None, False)),
        ("postgresql://u@h/d?schema=a", ("postgresql://u@h/d", "a", False)),
        ("postgresql://h/d?schema=a&sslmode=require", ("postgresql://h/d?sslmode=require", "a", False)),
        ("postgresql://h/d?sslmode=require&schema=a", ("postgresql://h/d?sslmode=require", "a", False)),
        ("postgresql://h/d?pooler=transaction&schema=a", ("postgresql://h/d", "a", True)),
        ("postgres://h/d?application_name=schema=x", ("postgres://h/d?application_name=schema=x", None, False)),
        ("host=h dbname=d", ("host=h dbname=d", None, False)),
        ("schema=a host=h  pooler=transaction dbname=d", ("host=h  dbname=d", "a", True)),
    ],
)
def test_an_address_is_taken_apart(text: str, expected: tuple[str, str | None, bool]) -> None:
    assert address_of(text) == Address(*expected)


def test_what_an_address_says_of_us_must_make_sense() -> None:
    with pytest.raises(StoreError, match="pooler=transaction"):
        PostgresStore("postgresql://h/d?pooler=session")
    with pytest.raises(ValueError, match="the address says team_b"):
        PostgresStore("postgresql://h/d?schema=team_b", schema="team_a")
    assert PostgresStore("postgresql://h/d?schema=team_b").schema == "team_b"


async def test_a_lock_is_held_through_a_pooler(pooled: str, tmp_path: Path) -> None:
    """However many transactions go on meanwhile, over the same connections."""
    entered = anyio.Event()

    async def enter(store: PostgresStore) -> None:
        async with store.exclusive("night"):
            entered.set()

    async with (
        PostgresStore(pooled, path=tmp_path / "one") as one,
        PostgresStore(pooled, path=tmp_path / "other") as other,
        anyio.create_task_group() as group,
    ):
        async with one.exclusive("night"):
            group.start_soon(enter, other)
            for _ in range(20):
                await one.last_event_id()
            assert not entered.is_set()


async def test_everything_arrives_through_a_pooler(
    local: TraceStore, trace: Path, shared: str, pooled: str
) -> None:
    """Directly, and staged; captured content too, and deletions."""
    make = Maker("run_said")
    await local.write(of_run("one", 40))
    await say(local, make, "gone", Message.user("A secret."))
    await ship(trace, pooled, batch=11)
    await local.delete_session("gone")
    await say(local, make, "kept", Message.user("Hello."))
    await local.write(captured(*appended(make, [Message.assistant("Hi.")], "kept", 1)))
    await ship(trace, pooled)
    lose_marks(trace)
    await local.write(of_run("two", 40))
    await ship(trace, pooled, batch=11)
    for dsn in (pooled, shared):
        async with PostgresStore(dsn, path=trace.with_name("shared")) as store:
            assert await everything(store) == await everything(local)
            assert await store.messages("kept") == await local.messages("kept")


async def test_a_store_works_through_a_pooler_but_for_repricing(
    local: TraceStore, trace: Path, pooled: str
) -> None:
    """A statement is repeated more often than it takes psycopg to have it prepared."""
    events = of_run("one", 40)
    async with PostgresStore(pooled, path=trace.with_name("one")) as store:
        for begin in range(0, len(events), 3):
            await store.write(events[begin : begin + 3])
            await store.calls(limit=1)
        await local.write(events)
        assert await everything(store) == await everything(local)
        assert (await store.sql("SELECT count(*) FROM calls")).rows == ((40,),)
        assert (await store.sql("SHOW search_path")).rows == (("callboard",),)
        assert (await store.prune(before=events[20].ts_us)).events > 0
        with pytest.raises(StoreError, match="name the server itself"):
            await store.reprice(PriceTable(()))


async def test_a_role_without_the_settings_is_told_which(shared: str, trace: Path) -> None:
    with pooler(shared) as dsn:
        with pytest.raises(StoreUnavailable, match=r'ALTER ROLE "\w+" SET search_path = callboard'):
            async with PostgresStore(dsn, path=trace):
                pass


async def test_one_file_goes_to_two_schemas_of_one_database(local: TraceStore, trace: Path, shared: str) -> None:
    """Each has a mark of its own, and neither sees the other's rows."""
    teams = [f"{shared}?schema=team_{letter}" for letter in "ab"]
    await local.write(of_run("one", 10))
    await ship(trace, teams[0])
    await local.write(of_run("two", 10))
    await ship(trace, teams[1])
    assert sorted(mark.target.rpartition("?")[2] for mark in marks(trace)) == ["schema=team_a", "schema=team_b"]
    async with PostgresStore(teams[0], path=trace.with_name("a")) as store:
        assert {event.run_id for event in await store.events(limit=None)} == {"one"}
    await ship(trace, teams[0])
    for team in teams:
        async with PostgresStore(team, path=trace.with_name("team")) as store:
            assert await everything(store) == await everything(local)
    async with PostgresStore(shared, path=trace.with_name("other")) as store:
        assert await store.events(limit=None) == []


async def test_of_two_hosts_the_one_that_takes_writes_is_used(
    request: pytest.FixtureRequest, local: TraceStore, trace: Path, shared: str
) -> None:
    """The first refuses connections, as a primary that has failed over; then the roles change."""
    server: PostgresServer = request.getfixturevalue("postgres_server")
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # bound, and not listened to
        dead = nobody.getsockname()[1]
        access, _, place = shared.rpartition("@")
        dsn = f"{access}@127.0.0.1:{dead},{place}?target_session_attrs=read-write"
        await local.write(of_run("one", 10))
        shipper = TraceShipper(trace, dsn)
        await shipper.ship()
        database = database_of(shared)
        setting = f'ALTER DATABASE "{database}" SET default_transaction_read_only'
        server.execute(f"{setting} = on")  # what a standby says of itself
        with psycopg.connect(server.dsn, autocommit=True) as admin:
            admin.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", (database,))
        await local.write(of_run("two", 10))
        with pytest.raises(StoreError):
            await shipper.ship()
        server.execute(f"{setting} = off")
        shipper._course.state = "asking"  # its time to wait is over
        await shipper.ship()
        await shipper.close()
    async with PostgresStore(shared, path=trace.with_name("shared")) as store:
        assert await everything(store) == await everything(local)
