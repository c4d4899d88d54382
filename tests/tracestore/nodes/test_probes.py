"""Who probes a provider: the same cases on the model of the rows and on PostgreSQL."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from callboard.tracestore.nodes import ProbeTables
from callboard.tracestore.postgres.nodes import PostgresProbes, SharedDatabase
from tests.support.shared_tables import ProbeModel

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["model", "postgres"])
async def probes(request: Any) -> AsyncIterator[ProbeTables]:
    if request.param == "model":
        yield ProbeModel()
        return
    database = SharedDatabase(request.getfixturevalue("postgres_dsn"))
    yield PostgresProbes(database, "callboard")
    await database.close()


async def test_one_node_has_the_lease_until_it_lets_go(probes: ProbeTables) -> None:
    """Of each provider and each model. It may take it for longer; the others learn how long it lasts."""
    left = await asyncio.gather(*(probes.take(node, "p", "", 30.0) for node in "abc"))
    assert [each == 0 for each in left].count(True) == 1
    owner = "abc"[left.index(0)]
    other = "abc".replace(owner, "")[0]
    assert await probes.take(owner, "p", "", 60.0) == 0
    assert 30 < await probes.take(other, "p", "", 30.0) <= 60
    assert await probes.take(other, "p", "p:m", 30.0) == 0
    await probes.release(other, "p", "")
    assert await probes.take(other, "p", "", 30.0) > 0, "it was not its own to let go of"
    await probes.release(owner, "p", "")
    assert await probes.take(other, "p", "", 30.0) == 0


async def test_a_lease_that_is_over_is_free(probes: ProbeTables) -> None:
    """Its node may be dead."""
    assert await probes.take("a", "p", "", 0.0) == 0
    assert await probes.take("b", "p", "", 30.0) == 0
    assert await probes.take("a", "p", "", 30.0) > 0
