"""A shared store that is put back to an older backup gets all that it lacks, as far as the files still have it."""

from __future__ import annotations

from pathlib import Path

import pytest

from callboard.bus.values.messages import Message
from tests.support.postgres_server import PostgresServer
from tests.tracestore.trace_making import Maker
from callboard.tracestore import PostgresStore, TraceShipper, TraceStore

from .test_erasures import say
from .test_shipping import everything, of_run

pytestmark = pytest.mark.anyio


def copy(server: PostgresServer, name: str, copied: str) -> None:
    """As pg_dump and pg_restore do."""
    _cut(server, name)
    server.execute(f'CREATE DATABASE "{copied}" TEMPLATE "{name}"')


def put_back(server: PostgresServer, name: str, copied: str) -> None:
    server.execute(f'DROP DATABASE "{name}" WITH (FORCE)', f'ALTER DATABASE "{copied}" RENAME TO "{name}"')


def _cut(server: PostgresServer, name: str) -> None:
    server.execute(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'")


@pytest.mark.parametrize("restarted", [True, False])
@pytest.mark.parametrize("empty", [True, False])
async def test_the_shipper_goes_on_from_there(
    local: TraceStore, trace: Path, postgres_server: PostgresServer, tmp_path: Path, restarted: bool, empty: bool
) -> None:
    """Whether it runs through it all or begins anew; deletions that the backup doesn't know of are done again."""
    make = Maker("run_said")
    with postgres_server.clean_database() as dsn:
        name = dsn.rpartition("/")[2]
        shipper = TraceShipper(trace, dsn)
        await shipper._target.open()
        if not empty:
            await local.write(of_run("one", 20))
            await say(local, make, "s", Message.user("A secret"))
            await shipper.ship()
        copy(postgres_server, name, f"{name}_copy")
        await local.write(of_run("two", 20))
        await say(local, make, "t", Message.user("Another"))
        await shipper.ship()
        await local.delete_session("s")
        await local.write(of_run("three", 20))
        await shipper.ship()
        put_back(postgres_server, name, f"{name}_copy")
        if restarted:
            await shipper.close()
            shipper = TraceShipper(trace, dsn)
        await local.write(of_run("four", 20))
        await shipper.ship()
        await shipper.close()
        async with PostgresStore(dsn, path=tmp_path / "shared") as store:
            assert await everything(store) == await everything(local)
            assert await store.saved_session("s") is None
            assert await store.saved_session("t") == await local.saved_session("t") is not None


async def test_a_deletion_alone_that_the_backup_lacks_is_done_again(
    local: TraceStore, trace: Path, postgres_server: PostgresServer, tmp_path: Path
) -> None:
    """No event came between the backup and the deletion."""
    with postgres_server.clean_database() as dsn:
        name = dsn.rpartition("/")[2]
        shipper = TraceShipper(trace, dsn)
        await say(local, Maker("run_said"), "s", Message.user("A secret"))
        await shipper.ship()
        copy(postgres_server, name, f"{name}_copy")
        await local.delete_session("s")
        await shipper.ship()
        put_back(postgres_server, name, f"{name}_copy")
        await local.write(of_run("one", 3))
        await shipper.ship()
        await shipper.close()
        async with PostgresStore(dsn, path=tmp_path / "shared") as store:
            assert await store.saved_session("s") is None
