"""The nodes of a cluster in PostgreSQL: a shared database, named locks, probes, and the ownership of sessions."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from hashlib import sha256
from typing import TYPE_CHECKING, TypeVar

import anyio

from callboard.bus.clock import SYSTEM_CLOCK, Clock

from ..gateway import GatewayTables
from ..nodes import Claimed, HeldSession, NodeInfo, NodeRow, Owner, Renewed, TurnEnding
from ..sql.connection import Patience, Row, SqlValue, bounded, shielded
from .connection import translated_errors
from .database import SCHEMA, Database, Link, ServerReachability
from .schema import open_migrated
from .statements import SECONDS_LEFT, Statements

if TYPE_CHECKING:
    import psycopg


# --- Owners of sessions ---
#
# This section implements `tracestore.nodes.OwnershipTables`. A decision about a node's lease and the node's
# renewal both lock the node's row. If the renewal is first, the node keeps its sessions. Otherwise the renewal
# reports the loss. All transactions lock a session before a node, and a renewal locks no session, so there are no
# deadlocks.
#
# After a start of the server, no lease expires before its node has had time to renew it. Unneeded rows are
# deleted: a node's row after a day without renewal, and a session's rows together with the session.


WANTED_SECONDS = 30.0
"""The longest time that a node waits for a session, in seconds. Older requests are ignored."""

FORGOTTEN_SECONDS = 86_400.0
"""Seconds after which a stopped node is removed."""

_RENEW = """
    INSERT INTO nodes (node, cluster, name, lease, lease_seconds, lease_until)
    VALUES (:node, :cluster, :name, :known + 1, :seconds, clock_timestamp() + make_interval(secs => :seconds))
    ON CONFLICT (node) DO UPDATE SET
        lease = nodes.lease + CASE WHEN nodes.lease_until <= clock_timestamp() THEN 1 ELSE 0 END,
        lease_seconds = excluded.lease_seconds, lease_until = excluded.lease_until
    RETURNING lease, CASE WHEN xmax = 0 THEN 1 ELSE 0 END
"""
"""Renews a lease. An expired lease gets a new number.

The extra time after a restart of the server is ignored here, because sessions may have been taken over before the
restart. The second column is True for an unknown node.
"""
_OWNED = "SELECT session_id, epoch FROM session_owners WHERE node = ? AND released = 0"
_FORGET = "DELETE FROM nodes WHERE lease_until < clock_timestamp() - make_interval(secs => ?)"
_WANTED = """
    SELECT session_id FROM session_owners
     WHERE node = ? AND released = 0 AND wanted_at > clock_timestamp() - make_interval(secs => ?)
"""
_WANT = "UPDATE session_owners SET wanted_at = clock_timestamp() WHERE session_id = ?"
_TAKE_NEW = """
    INSERT INTO session_owners (session_id, node, epoch, taken_at)
    SELECT ?, ?, nextval('session_epochs'), clock_timestamp()
     WHERE NOT EXISTS (SELECT 1 FROM session_owners WHERE session_id = ?)
    ON CONFLICT DO NOTHING
    RETURNING epoch
"""
_TAKE = """
    UPDATE session_owners
       SET node = ?, epoch = greatest(epoch + 1, nextval('session_epochs')), released = 0,
           taken_at = clock_timestamp(), wanted_at = NULL
     WHERE session_id = ?
    RETURNING epoch
"""
_RELEASE = """
    UPDATE session_owners SET released = 1, wanted_at = NULL WHERE session_id = ? AND node = ? AND epoch = ?
"""
_FORGET_SESSION = "DELETE FROM session_owners WHERE session_id = ? AND node = ? AND epoch = ?"
_ENDING = "SELECT stream_id, session_id, epoch, status, decided_by FROM turn_endings WHERE stream_id = ?"
_END = """
    INSERT INTO turn_endings (stream_id, session_id, epoch, status, decided_by, decided_at)
    VALUES (?, ?, ?, ?, ?, clock_timestamp())
    ON CONFLICT DO NOTHING
"""
NODES = f"""
    SELECT n.node, n.cluster, n.name, {SECONDS_LEFT},
           (SELECT count(*) FROM session_owners AS s WHERE s.node = n.node AND s.released = 0)
      FROM nodes AS n ORDER BY 4 DESC, n.node
"""
"""The query for all nodes, running nodes first."""


class PostgresOwnership:
    def __init__(self, database: SharedDatabase) -> None:
        self._database = database

    async def renew(self, node: NodeInfo, previous_lease: int) -> Renewed:
        values: dict[str, SqlValue] = {"node": node.node, "cluster": node.cluster, "name": node.name}
        values |= {"seconds": node.lease_seconds, "known": previous_lease}

        def work(statements: Statements) -> Renewed:
            ((lease, is_new),) = statements.run(_RENEW, values)
            requested = _requested_sessions(statements, node.node)
            if lease == previous_lease:
                return Renewed(lease=lease, wanted=requested)
            statements.run(_FORGET, (FORGOTTEN_SECONDS,))
            # If a node was removed, a takeover of its sessions has no row of the node to lock. So this query waits
            # for the takeover.
            owned = statements.run(f"{_OWNED} FOR SHARE" if is_new else _OWNED, (node.node,))
            return Renewed(lease=lease, owned=dict(owned), wanted=requested)

        return await self._database.brief(work)

    async def leave(self, node: str) -> None:
        await self._database.statement("DELETE FROM nodes WHERE node = ?", (node,))

    async def claim(self, session_id: str, node: str, *, request_takeover: bool = False) -> Claimed | HeldSession:
        def work(statements: Statements) -> Claimed | HeldSession | None:
            owner = _owner(statements, session_id, lock=True)
            if owner is None:
                return None  # the session has just been deleted
            if owner.node != node and owner.lives and not owner.released:
                if request_takeover:
                    statements.run(_WANT, (session_id,))
                return HeldSession(by=owner)
            ((epoch,),) = statements.run(_TAKE, (node, session_id))
            return Claimed(epoch=epoch, previous=owner)

        while True:
            if new := await self._database.statement(_TAKE_NEW, (session_id, node, session_id)):
                return Claimed(epoch=new[0][0])
            if (found := await self._database.brief(work)) is not None:
                return found

    async def requested_sessions(self, node: str) -> Sequence[str]:
        rows = await self._database.statement(_WANTED, (node, WANTED_SECONDS))
        return [session_id for (session_id,) in rows]

    async def release(self, node: str, sessions: Mapping[str, int]) -> None:
        # One session at a time, because a writer of messages may lock several sessions in any order.
        for session_id, epoch in sessions.items():
            await self._database.statement(_RELEASE, (session_id, node, epoch))

    async def forget(self, node: str, session_id: str, epoch: int) -> None:
        await self._database.statement(_FORGET_SESSION, (session_id, node, epoch))

    async def owner(self, session_id: str) -> Owner | None:
        return await self._database.brief(lambda statements: _owner(statements, session_id))

    async def ending(self, stream_id: str) -> TurnEnding | None:
        return await self._database.brief(lambda statements: _ending(statements, stream_id))

    async def end_turn(self, ending: TurnEnding, owner: str) -> TurnEnding | None:
        def work(statements: Statements) -> TurnEnding | None:
            decided = _ending(statements, ending.stream_id)
            if decided is not None or _may_end(statements, ending, owner):
                return decided
            values = (ending.stream_id, ending.session_id, ending.epoch, ending.status, ending.decided_by)
            statements.run(_END, values)
            return _ending(statements, ending.stream_id)

        return await self._database.brief(work)

    async def nodes(self) -> list[NodeRow]:
        return node_rows(await self._database.statement(NODES))


def node_rows(rows: Iterable[Row]) -> list[NodeRow]:
    return [
        NodeRow(
            node=node,
            cluster=cluster,
            name=name,
            lives=seconds_left > 0,
            seconds_left=float(seconds_left),
            sessions=sessions,
        )
        for node, cluster, name, seconds_left, sessions in rows
    ]


# --- Within a transaction ---


def _requested_sessions(statements: Statements, node: str) -> list[str]:
    return [session_id for (session_id,) in statements.run(_WANTED, (node, WANTED_SECONDS))]


def _owner(statements: Statements, session_id: str, *, lock: bool = False) -> Owner | None:
    rows = statements.run(
        f"SELECT node, epoch, released FROM session_owners WHERE session_id = ? {'FOR UPDATE' if lock else ''}",
        (session_id,),
    )
    if not rows:
        return None
    ((node, epoch, released),) = rows
    named = statements.run(
        f"SELECT name, {SECONDS_LEFT} FROM nodes WHERE node = ? {'FOR UPDATE' if lock else ''}", (node,)
    )
    name, seconds_left = named[0] if named else ("", 0.0)
    return Owner(
        node=node,
        name=name,
        epoch=epoch,
        lives=seconds_left > 0,
        seconds_left=float(seconds_left),
        released=bool(released),
    )


def _ending(statements: Statements, stream_id: str) -> TurnEnding | None:
    rows = statements.run(_ENDING, (stream_id,))
    if not rows:
        return None
    stream, session_id, epoch, status, by = rows[0]
    return TurnEnding(stream_id=stream, session_id=session_id, epoch=epoch, status=status, decided_by=by)


def _may_end(statements: Statements, ending: TurnEnding, owner: str) -> bool:
    """Whether the turn's owner may still end the turn itself."""
    if ending.session_id:
        found = _owner(statements, ending.session_id, lock=True)
        if found is not None and (found.node, found.epoch) != (owner, ending.epoch):
            return False
    # the row is locked, so that the node can't renew its lease meanwhile
    rows = statements.run(f"SELECT {SECONDS_LEFT} FROM nodes WHERE node = ? FOR UPDATE", (owner,))
    return bool(rows) and rows[0][0] > 0


def take_from_cluster(statements: Statements, session_id: str, run_id: str) -> bool:
    """Give a session that a node has or had to an engine outside of any cluster."""
    owner = _owner(statements, session_id, lock=True)
    if owner is None:
        return True
    if owner.lives and not owner.released:
        return False
    statements.run(_TAKE, (run_id, session_id))
    return True


# --- A shared database ---
#
# A node uses the shared database for short transactions, if the database is reachable.


_T = TypeVar("_T")

PATIENCE = Patience(work=5.0, cancelled=1.0)
"""Seconds for an answer. A slower server is treated as unreachable."""


class SharedDatabase:
    """One connection to the database. The first use connects and upgrades the schema."""

    def __init__(self, dsn: str, schema: str = SCHEMA, clock: Clock = SYSTEM_CLOCK) -> None:
        self._database = Database(dsn, schema=schema, single=True, patience=PATIENCE)
        self._clock = clock
        self._opening = anyio.Lock()
        self._ready = False  # Whether the connection is open and the schema is current.

    @property
    def name(self) -> str:
        """The name of the database in messages, without user and password."""
        return self._database.name

    async def statement(self, sql: str, parameters: Sequence[SqlValue] = ()) -> list[Row]:
        """Run one statement in its own transaction. If the connection breaks, it may run twice."""
        await self._open()
        return await self._database.read(sql, parameters)

    async def brief(self, work: Callable[[Statements], _T]) -> _T:
        """Run `work` in one short transaction, READ COMMITTED.

        The transaction doesn't wait for writers of the trace. `work` must lock the rows on which its decision
        depends.
        """
        await self._open()
        return await self._database.brief(work)

    @property
    def gateway(self) -> GatewayTables:
        return GatewayTables(self.brief, self.brief)

    async def close(self) -> None:
        """Close the connection. The next work connects again."""
        self._ready = False
        await self._database.close()

    async def _open(self) -> None:
        if self._ready:
            return
        async with self._opening:
            if self._ready:
                return
            await open_migrated(self._database, self._clock.now_us())
            self._ready = True


_TURN_SECONDS = 0.25
"""Seconds between two attempts to take a lock that may be held for minutes."""


@asynccontextmanager
async def named_lock(database: Database, name: str) -> AsyncIterator[None]:
    """Wait for the lock, and hold it during the block.

    The lock belongs to a transaction on its own connection, so it works behind a pooler. It ends with the
    connection, even if the server is restarted or cut off. The holder is not notified.
    """
    key = int.from_bytes(sha256(f"{database.schema}\0{name}".encode()).digest()[:8], "big", signed=True)

    def try_lock(connection: psycopg.Connection) -> bool:
        connection.execute("BEGIN")
        connection.execute("SET LOCAL idle_in_transaction_session_timeout = 0")
        found = connection.execute(f"SELECT pg_try_advisory_xact_lock({key})").fetchone()
        if found is not None and found[0]:
            return True
        connection.execute("ROLLBACK")
        return False

    # The lock is tried repeatedly, because a waiting statement could exceed the role's time limit, and would
    # occupy a connection of a pooler.
    link = Link(database.dsn, database.schema, "callboard-postgres-lock", ServerReachability())
    try:
        with translated_errors(database.name):
            while not await bounded(link.alone(try_lock), PATIENCE, link.give_up):  # noqa: ASYNC110 - see above
                await anyio.sleep(_TURN_SECONDS)
        yield
    finally:
        await shielded(bounded(link.close(), PATIENCE, link.cut))


_TAKE_PROBE = """
    INSERT INTO provider_probes (cluster, provider, model, node, lease_until)
    VALUES (?, ?, ?, ?, clock_timestamp() + make_interval(secs => ?))
    ON CONFLICT (cluster, provider, model) DO UPDATE
       SET node = excluded.node, lease_until = excluded.lease_until
     WHERE provider_probes.node = excluded.node OR provider_probes.lease_until <= clock_timestamp()
    RETURNING node
"""
_LEFT = """
    SELECT extract(epoch FROM lease_until - clock_timestamp())
      FROM provider_probes WHERE cluster = ? AND provider = ? AND model = ?
"""
_RELEASE_PROBE = "DELETE FROM provider_probes WHERE cluster = ? AND provider = ? AND model = ? AND node = ?"

_LEAST_SECONDS = 0.05
"""The shortest time that is reported for a lease that is about to end."""


class PostgresProbes:
    def __init__(self, database: SharedDatabase, cluster: str) -> None:
        self._database = database
        self._cluster = cluster

    async def take(self, node: str, provider: str, model: str, seconds: float) -> float:
        def work(statements: Statements) -> float:
            if statements.run(_TAKE_PROBE, (self._cluster, provider, model, node, seconds)):
                return 0.0
            found = statements.run(_LEFT, (self._cluster, provider, model))
            return max(_LEAST_SECONDS, float(str(found[0][0]))) if found else _LEAST_SECONDS

        return await self._database.brief(work)

    async def release(self, node: str, provider: str, model: str) -> None:
        await self._database.statement(_RELEASE_PROBE, (self._cluster, provider, model, node))
