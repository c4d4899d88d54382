"""The connection of a node to the database that it shares with others."""

from __future__ import annotations

import asyncio

import anyio
import anyio.lowlevel
import pytest

from callboard.tracestore.postgres.nodes import SharedDatabase
from tests.support.postgres_server import why_not

pytestmark = [pytest.mark.anyio, pytest.mark.skipif(why_not() is not None, reason=str(why_not()))]


async def test_whoever_comes_while_the_tables_are_made_waits_for_them(postgres_dsn: str) -> None:
    """All parts of a node ask at once when it starts; one of them makes the connection."""
    database = SharedDatabase(postgres_dsn)
    first = asyncio.create_task(database.statement("SELECT count(*) FROM nodes"))
    with anyio.fail_after(20):
        while not database._database.is_open:
            await anyio.lowlevel.checkpoint()
        assert await database.statement("SELECT count(*) FROM ledger_accounts") == [(0,)]
    assert await first == [(0,)]
    await database.close()


async def test_a_process_that_is_suspended_in_a_transaction_holds_up_others_for_seconds_only(
    postgres_dsn: str,
) -> None:
    """The server ends it, and with it its locks: otherwise nobody could renew a lease or take a session."""
    database = SharedDatabase(postgres_dsn)
    ((seconds,),) = await database.statement("SELECT current_setting('idle_in_transaction_session_timeout')")
    assert seconds == "10s"
    await database.close()
