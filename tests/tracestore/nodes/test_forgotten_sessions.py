"""The shared rows about a session are deleted with the session."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest

from callboard.bus import Envelope
from callboard.bus.events.sessions import SessionCreated
from callboard.tracestore import PostgresStore
from callboard.tracestore.nodes import NodeInfo, Renewed, TurnEnding
from callboard.tracestore.postgres.nodes import PostgresOwnership, SharedDatabase

from ...support.postgres_server import why_not

pytestmark = pytest.mark.skipif(why_not() is not None, reason=str(why_not()))
A = NodeInfo(node="run_a", lease_seconds=600.0)
OLD_US, LATER_US = 1_790_000_000_000_000, 1_795_000_000_000_000
SESSIONS = ("released", "dead", "of no node", "living")


class Rows:
    """A database in which each of the sessions is stored and was claimed."""

    def __init__(self, dsn: str, store: PostgresStore) -> None:
        self.database = SharedDatabase(dsn)
        self.store = store
        self.tables = PostgresOwnership(self.database)

    async def fill(self) -> None:
        last = Envelope(9, "run_x", LATER_US, LATER_US * 1000, SessionCreated(model="s:m"), session_id="young")
        old = [
            Envelope(seq, "run_x", OLD_US, OLD_US * 1000, SessionCreated(model="s:m"), session_id=session_id)
            for seq, session_id in enumerate(SESSIONS, 1)
        ]
        await self.store.write([*old, last])
        await self.tables.renew(A, 0)
        await self.tables.renew(NodeInfo(node="run_b", lease_seconds=600.0), 0)
        for session_id, node in zip(SESSIONS, ("run_a", "run_b", "run_plain", "run_a"), strict=True):
            claimed = await self.tables.claim(session_id, node)
            if session_id == "released":
                await self.tables.release(node, {session_id: claimed.epoch})  # type: ignore[union-attr]
        await self.database.statement(
            "UPDATE nodes SET lease_until = lease_until - interval '1 day', lease_seconds = -86400"
            " WHERE node = 'run_b'"
        )
        for session_id in ("dead", ""):
            ending = TurnEnding(
                stream_id=f"trn_{session_id}",
                session_id=session_id,
                epoch=2,
                status="outcome_unknown",
                decided_by="",
            )
            assert await self.tables.end_turn(ending, "run_b")

    async def known(self) -> set[str]:
        return {name for (name,) in await self.database.statement("SELECT session_id FROM session_owners")}

    async def endings(self) -> set[str]:
        return {name for (name,) in await self.database.statement("SELECT session_id FROM turn_endings")}


@pytest.fixture
async def rows(postgres_dsn: str, tmp_path: Path) -> AsyncIterator[Rows]:
    async with PostgresStore(postgres_dsn, path=tmp_path / "p") as store:
        made = Rows(postgres_dsn, store)
        await made.fill()
        yield made
        await made.database.close()


async def test_rows_of_a_deleted_session_go_unless_a_living_node_owns_it(rows: Rows) -> None:
    """A living node releases its session itself. Until then, no other node can claim the session."""
    for session_id in SESSIONS:
        assert await rows.store.delete_session(session_id)
    assert await rows.known() == {"living"}
    assert await rows.endings() == {""}


async def test_rows_of_a_pruned_session_are_deleted(rows: Rows) -> None:
    """The ends of turns before the cutoff are deleted too, also those of turns without a session."""
    await rows.database.statement("UPDATE turn_endings SET decided_at = to_timestamp(?)", (OLD_US // 1_000_000,))
    await rows.store.prune(before=LATER_US)
    assert await rows.known() == {"living"}
    assert await rows.endings() == set()


async def test_a_deletion_does_not_wait_for_a_locked_session(rows: Rows, postgres_dsn: str) -> None:
    import psycopg

    with psycopg.connect(postgres_dsn, options="-c search_path=callboard") as other, anyio.fail_after(10):
        other.execute("SELECT 1 FROM session_owners WHERE session_id = 'released' FOR SHARE")
        assert await rows.store.delete_session("released")
    assert "released" in await rows.known()


async def test_a_forgotten_node_waits_for_the_takeover_of_its_sessions(rows: Rows, postgres_dsn: str) -> None:
    """The node was away for more than a day, so its row is gone and can't be locked."""
    import psycopg

    await rows.database.statement("DELETE FROM nodes WHERE node = 'run_b'")
    renewed: list[Renewed] = []

    async def renew() -> None:
        renewed.append(await rows.tables.renew(NodeInfo(node="run_b", lease_seconds=600.0), 1))

    with (
        psycopg.connect(postgres_dsn, options="-c search_path=callboard") as taker,
        psycopg.connect(postgres_dsn, autocommit=True) as looker,
    ):
        taker.execute("SELECT 1 FROM session_owners WHERE session_id = 'dead' FOR UPDATE")
        assert taker.execute("SELECT 1 FROM nodes WHERE node = 'run_b' FOR UPDATE").fetchall() == []
        async with anyio.create_task_group() as group:
            group.start_soon(renew)
            waits = (
                "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
            )
            with anyio.fail_after(10):
                while not renewed and not looker.execute(waits).fetchall():
                    await anyio.lowlevel.checkpoint()
            taker.execute("UPDATE session_owners SET node = 'run_c', epoch = 99 WHERE session_id = 'dead'")
            taker.commit()
    assert [each.owned for each in renewed] == [{}]


# The connection of a node to the database that it shares with other nodes.


async def test_statements_wait_until_the_tables_are_created(postgres_dsn: str) -> None:
    """All parts of a node connect concurrently at its start. One of them creates the tables."""
    database = SharedDatabase(postgres_dsn)
    first = asyncio.create_task(database.statement("SELECT count(*) FROM nodes"))
    with anyio.fail_after(20):
        while not database._database.is_open:
            await anyio.lowlevel.checkpoint()
        assert await database.statement("SELECT count(*) FROM ledger_accounts") == [(0,)]
    assert await first == [(0,)]
    await database.close()


async def test_an_idle_transaction_ends_after_ten_seconds(postgres_dsn: str) -> None:
    """PostgreSQL ends a transaction that is idle for 10 s."""
    database = SharedDatabase(postgres_dsn)
    ((seconds,),) = await database.statement("SELECT current_setting('idle_in_transaction_session_timeout')")
    assert seconds == "10s"
    await database.close()
