"""Two versions of the schema: shippers and stores of which one is newer."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from callboard.bus.errors import StoreError
from callboard.tracestore import PostgresStore, TraceShipper, TraceStore
from callboard.tracestore.postgres import schema as migrations
from tests.support.postgres_server import PostgresServer

from .test_shipping import everything, of_run

pytestmark = pytest.mark.anyio

LATER_STEP = (
    "of tomorrow",
    (
        "ALTER TABLE events ADD COLUMN flavour bigint NOT NULL DEFAULT 0",
        "ALTER TABLE calls ADD COLUMN colour text",
        "ALTER TABLE shipping ADD COLUMN weather text",
        "CREATE TABLE more (id bigint PRIMARY KEY)",
    ),
)


@contextmanager
def version_with(steps: tuple[tuple[str, tuple[str, ...]], ...]) -> Iterator[None]:
    """Within the block this is a Callboard that knows these steps."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(migrations, "MIGRATIONS", steps)
        patch.setattr(migrations, "SCHEMA_VERSION", len(steps))
        yield


def newer() -> tuple[tuple[str, tuple[str, ...]], ...]:
    return (*migrations.MIGRATIONS, LATER_STEP)


async def migrated(dsn: str, folder: Path) -> None:
    async with PostgresStore(dsn, path=folder / "shared"):
        pass


async def assert_all_there(local: TraceStore, dsn: str, folder: Path) -> None:
    with version_with(newer()):
        async with PostgresStore(dsn, path=folder / "shared") as store:
            assert await everything(store) == await everything(local)


async def test_a_shipper_of_the_version_before_ships_on(
    local: TraceStore, trace: Path, shared: str, tmp_path: Path
) -> None:
    """A newer version brings the store up to date meanwhile. Also after its connection broke."""
    shipper = TraceShipper(trace, shared)
    try:
        await local.write(of_run("one", 20))
        await shipper.ship()
        with version_with(newer()):
            await migrated(shared, tmp_path)
        for run in ("two", "three"):
            await local.write(of_run(run, 20))
            await shipper.ship()
    finally:
        await shipper.close()
    await assert_all_there(local, shared, tmp_path)


async def test_a_shipper_that_meets_a_newer_store_when_it_starts_says_so_and_keeps_all(
    local: TraceStore, trace: Path, shared: str, tmp_path: Path
) -> None:
    with version_with(newer()):
        await migrated(shared, tmp_path)
    await local.write(of_run("one", 20))
    shipper = TraceShipper(trace, shared)
    with pytest.raises(StoreError, match="update Callboard"):
        await shipper.ship()
    assert shipper.statistics().state == "retrying"
    assert shipper.statistics().behind == len(of_run("one", 20))
    await shipper.close()
    with version_with(newer()):
        shipper = TraceShipper(trace, shared)
        await shipper.ship()
        await shipper.close()
    await assert_all_there(local, shared, tmp_path)


async def test_a_newer_shipper_brings_an_older_store_up_to_date(
    local: TraceStore, trace: Path, postgres_dsn: str, tmp_path: Path
) -> None:
    """Of every version that there was."""
    for version in range(1, len(migrations.MIGRATIONS)):
        with version_with(migrations.MIGRATIONS[:version]):
            async with PostgresStore(postgres_dsn, schema=f"v{version}", path=tmp_path / "shared"):
                pass
        async with PostgresStore(postgres_dsn, schema=f"v{version}", path=tmp_path / "shared") as store:
            await store.write(of_run("one", 20))
            assert len(await store.calls()) == 20


async def test_whoever_may_not_bring_a_store_up_to_date_says_who_may(
    local: TraceStore, trace: Path, postgres_server: PostgresServer, tmp_path: Path
) -> None:
    """The host's role doesn't own the tables. When their owner has done it, the shipper goes on by itself."""
    await local.write(of_run("one", 20))
    role = "callboard_test_host"
    with postgres_server.clean_database() as dsn:
        name = dsn.rpartition("/")[2]
        with version_with(migrations.MIGRATIONS[:2]):
            await migrated(dsn, tmp_path)
        postgres_server.execute(
            f"DROP ROLE IF EXISTS {role}",
            f"CREATE ROLE {role} LOGIN PASSWORD 'secret'",
            f"GRANT USAGE ON SCHEMA callboard TO {role}",
            f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA callboard TO {role}",
            f"GRANT USAGE ON ALL SEQUENCES IN SCHEMA callboard TO {role}",
            f"GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA callboard TO {role}",
            f"ALTER DEFAULT PRIVILEGES IN SCHEMA callboard GRANT ALL ON TABLES TO {role}",
            database=name,
        )
        shipper = TraceShipper(trace, postgres_server.dsn_of(name, user=role, password="secret"))
        try:
            with pytest.raises(StoreError, match=r"of schema version 2.*their owner"):
                await shipper.ship()
            await migrated(dsn, tmp_path)
            shipper._course.state = "asking"  # the wait is over
            await shipper.ship()
        finally:
            await shipper.close()
        async with PostgresStore(dsn, path=tmp_path / "shared") as store:
            assert await everything(store) == await everything(local)
        postgres_server.execute(f"DROP OWNED BY {role}", f"DROP ROLE {role}", database=name)
