"""The owner of a session: the same cases on the model of the rows and on PostgreSQL."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from callboard.tracestore.nodes import Claimed, HeldSession, NodeInfo, ProbeTables, TurnEnding
from callboard.tracestore.postgres.nodes import PostgresOwnership, PostgresProbes, SharedDatabase

from ...support.shared_tables import ProbeModel
from .conftest import Place

A = NodeInfo(node="run_a", name="a", lease_seconds=10.0)
B = NodeInfo(node="run_b", name="b", lease_seconds=10.0)


def ending(by: NodeInfo, *, session: str = "s", epoch: int = 1) -> TurnEnding:
    return TurnEnding(
        stream_id="trn_1", session_id=session, epoch=epoch, status="outcome_unknown", decided_by=by.node
    )


@pytest.fixture
async def owned(place: Place) -> Place:
    """Rows in which node A owns the session s."""
    await place.tables.renew(A, 0)
    await place.tables.claim("s", A.node)
    return place


async def test_a_lease_is_renewed_until_it_runs_out(place: Place) -> None:
    """After the lease ran out, the next lease has a new number. A repeated request gets the same result."""
    assert (await place.tables.renew(A, 0)).lease == 1
    await place.tables.claim("s", A.node)
    await place.passes(9)
    assert (await place.tables.renew(A, 1)).owned is None
    await place.passes(11)
    assert (await place.tables.renew(A, 1)).lease == 2
    again = await place.tables.renew(A, 1)
    assert (again.lease, again.owned) == (2, {"s": 1})
    assert (await place.tables.renew(A, 2)).owned is None
    await place.tables.leave(A.node)
    assert (await place.tables.renew(A, 2)).lease == 3


async def test_a_session_has_one_owner_while_its_lease_lasts(place: Place) -> None:
    """Another claim returns the owner and the remaining time of its lease."""
    await place.tables.renew(A, 0)
    await place.tables.renew(B, 0)
    assert await place.tables.claim("s", A.node) == Claimed(epoch=1)
    refused = await place.tables.claim("s", B.node)
    assert isinstance(refused, HeldSession)
    assert (refused.by.node, refused.by.name, refused.by.epoch, refused.by.lives) == ("run_a", "a", 1, True)
    assert 0 < refused.by.seconds_left <= 10
    owner = await place.tables.owner("s")
    assert owner.node == A.node


async def test_a_session_is_taken_over_after_the_lease_of_its_owner(place: Place) -> None:
    """The old owner's next renewal returns the sessions that it still owns."""
    await place.tables.renew(A, 0)
    for session in ("s", "kept"):
        await place.tables.claim(session, A.node)
    await place.passes(11)
    await place.tables.renew(B, 0)
    taken = await place.tables.claim("s", B.node)
    assert isinstance(taken, Claimed)
    assert (taken.epoch, taken.previous.node, taken.previous.lives) == (3, A.node, False)
    renewed = await place.tables.renew(A, 0)
    assert renewed.owned == {"kept": 2}
    assert isinstance(await place.tables.claim("kept", B.node), HeldSession)


async def test_a_lease_that_ran_out_before_a_restart_is_not_extended(place: Place) -> None:
    """After a restart of the server, leases last longer, because no node could renew them. Sessions that were
    taken before stay taken.
    """
    await place.tables.renew(A, 0)
    for session in ("s", "kept"):
        await place.tables.claim(session, A.node)
    await place.passes(11)
    await place.tables.renew(B, 0)
    assert isinstance(await place.tables.claim("s", B.node), Claimed)
    await place.restarts()
    renewed = await place.tables.renew(A, 1)
    assert (renewed.lease, renewed.owned) == (2, {"kept": 2})


async def test_a_released_session_can_be_claimed_immediately(place: Place) -> None:
    """A node cannot release a session that another node has taken."""
    await place.tables.renew(A, 0)
    await place.tables.renew(B, 0)
    await place.tables.claim("s", A.node)
    await place.tables.release(A.node, {"s": 2})
    assert isinstance(await place.tables.claim("s", B.node), HeldSession)
    await place.tables.release(A.node, {"s": 1, "other": 1})
    taken = await place.tables.claim("s", B.node)
    assert isinstance(taken, Claimed)
    assert taken.epoch == 2
    await place.tables.release(A.node, {"s": 1})
    await place.tables.release(A.node, {"s": 2})
    assert isinstance(await place.tables.claim("s", A.node), HeldSession)


async def test_a_forgotten_session_keeps_raising_its_epoch(place: Place) -> None:
    await place.tables.renew(A, 0)
    assert [(await place.tables.claim("s", A.node)).epoch for _ in range(3)] == [1, 2, 3]
    await place.tables.forget(A.node, "s", 2)
    await place.tables.forget(B.node, "s", 3)
    assert await place.tables.owner("s") is not None
    await place.tables.forget(A.node, "s", 3)
    assert await place.tables.owner("s") is None
    assert await place.tables.claim("s", B.node) == Claimed(epoch=4)


async def test_a_node_that_leaves_is_no_longer_listed(owned: Place) -> None:
    await owned.tables.leave(A.node)
    assert isinstance(await owned.tables.claim("s", B.node), Claimed)
    assert await owned.tables.nodes() == []


async def test_an_owner_is_notified_of_takeover_requests(place: Place) -> None:
    """The owner gets the request for 30 seconds, or until it has released the session."""
    await place.tables.renew(A, 0)
    for session in ("s", "t", "u"):
        await place.tables.claim(session, A.node)
    await place.tables.claim("s", B.node, request_takeover=True)
    await place.tables.claim("u", B.node)
    assert list(await place.tables.requested_sessions(A.node)) == ["s"]
    assert list((await place.tables.renew(A, 0)).wanted) == ["s"]
    await place.tables.release(A.node, {"s": 1})
    assert list(await place.tables.requested_sessions(A.node)) == []
    await place.tables.claim("t", B.node, request_takeover=True)
    await place.passes(31)
    assert list((await place.tables.renew(A, 0)).wanted) == []


async def test_the_end_of_a_turn_is_decided_once(owned: Place) -> None:
    """While the owner's lease lasts and it owns the session, no other node can end its turn."""
    assert await owned.tables.end_turn(ending(B), A.node) is None
    assert await owned.tables.ending("trn_1") is None
    await owned.passes(11)
    assert await owned.tables.end_turn(ending(B), A.node) == ending(B)
    await owned.tables.renew(A, 0)
    assert await owned.tables.end_turn(ending(A), A.node) == ending(B)
    assert await owned.tables.ending("trn_1") == ending(B)


async def test_the_turn_of_a_former_owner_can_be_ended(owned: Place) -> None:
    """Another node owns the session, so the former owner can't end the turn itself."""
    await owned.passes(11)
    await owned.tables.renew(B, 0)
    await owned.tables.claim("s", B.node)
    await owned.tables.renew(A, 0)
    assert await owned.tables.end_turn(ending(B), A.node) == ending(B)


async def test_a_turn_without_a_session_can_be_ended_after_its_node_s_lease(place: Place) -> None:
    await place.tables.renew(A, 0)
    assert await place.tables.end_turn(ending(B, session=""), A.node) is None
    await place.passes(11)
    assert await place.tables.end_turn(ending(B, session=""), A.node) == ending(B, session="")


async def test_living_nodes_are_listed_first_and_dead_ones_for_a_day(owned: Place) -> None:
    await owned.passes(11)
    await owned.tables.renew(B, 0)
    rows = await owned.tables.nodes()
    assert [(row.node, row.lives, row.sessions) for row in rows] == [(B.node, True, 0), (A.node, False, 1)]
    await owned.passes(86_500)
    await owned.tables.renew(B, 0)
    assert [row.node for row in await owned.tables.nodes()] == [B.node]
    assert isinstance(await owned.tables.claim("s", B.node), Claimed)


async def test_after_a_start_of_the_server_leases_last_longer(owned: Place) -> None:
    await owned.passes(11)
    await owned.restarts()
    assert isinstance(await owned.tables.claim("s", B.node), HeldSession)


async def test_of_many_concurrent_claims_one_succeeds(postgres_dsn: str) -> None:
    databases = [SharedDatabase(postgres_dsn) for _ in range(4)]
    nodes = [PostgresOwnership(database) for database in databases]
    for number, tables in enumerate(nodes):
        await tables.renew(NodeInfo(node=f"run_{number}", lease_seconds=600.0), 0)
    for _ in range(5):
        found = await asyncio.gather(*(tables.claim("s", f"run_{n}") for n, tables in enumerate(nodes)))
        won = [(n, claim.epoch) for n, claim in enumerate(found) if isinstance(claim, Claimed)]
        assert len(won) == 1
        held = {claim.by.epoch for claim in found if isinstance(claim, HeldSession)}
        assert held <= {won[0][1]}
        await nodes[0].release(f"run_{won[0][0]}", {"s": won[0][1]})
    for database in databases:
        await database.close()


# The lease for probing a provider: the same cases on the model of the rows and on PostgreSQL.


@pytest.fixture(params=["model", "postgres"])
async def probes(request: Any) -> AsyncIterator[ProbeTables]:
    if request.param == "model":
        yield ProbeModel()
        return
    database = SharedDatabase(request.getfixturevalue("postgres_dsn"))
    yield PostgresProbes(database, "callboard")
    await database.close()


async def test_one_node_has_the_lease_until_it_releases_it(probes: ProbeTables) -> None:
    left = await asyncio.gather(*(probes.take(node, "p", "", 30.0) for node in "abc"))
    assert [each == 0 for each in left].count(True) == 1
    owner = "abc"[left.index(0)]
    other = "abc".replace(owner, "")[0]
    assert await probes.take(owner, "p", "", 60.0) == 0
    assert 30 < await probes.take(other, "p", "", 30.0) <= 60
    assert await probes.take(other, "p", "p:m", 30.0) == 0
    await probes.release(other, "p", "")
    assert await probes.take(other, "p", "", 30.0) > 0, "only the owner can release the lease"
    await probes.release(owner, "p", "")
    assert await probes.take(other, "p", "", 30.0) == 0


async def test_a_lease_that_ran_out_is_free(probes: ProbeTables) -> None:
    assert await probes.take("a", "p", "", 0.0) == 0
    assert await probes.take("b", "p", "", 30.0) == 0
    assert await probes.take("a", "p", "", 30.0) > 0
