"""Content that nobody needs is deleted, and never what somebody says again meanwhile, whatever its clock."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import psycopg
import pytest

from callboard.bus.events.operation import ActorStarted
from callboard.bus.values.messages import Message
from callboard.tracestore import PostgresStore
from callboard.tracestore.sql.expiry import delete_sessions, delete_unneeded, needed_bodies
from tests.support.virtual_time import FakeClock
from tests.tracestore.content_making import appended, captured, configured
from tests.tracestore.trace_making import T0, Maker

pytestmark = pytest.mark.anyio

SAID = [Message.user("What everybody asks. " * 100)]


@pytest.mark.parametrize("again", [True, False])
async def test_a_body_that_comes_again_during_the_deletion_stays(dsn: str, tmp_path: Path, again: bool) -> None:
    """Its time is the same, as of an event that was on its way for long."""
    async with PostgresStore(dsn, path=tmp_path / "trace") as store:
        one, other = Maker("run_a"), Maker("run_b")
        await store.write(captured(configured(one, "a"), *appended(one, SAID, "a", ts_us=T0)))
        await store._database.write(lambda statements: delete_sessions(statements, ["a"]))
        needed = await store._database.look(lambda statements: needed_bodies(statements, T0 + 1))
        if again:
            await store.write(captured(configured(other, "b"), *appended(other, SAID, "b", ts_us=T0)))
        gone, _ = await store._database.write(partial(delete_unneeded, before_us=T0 + 1, needed=needed, after=0))
        assert gone == (0 if again else 2)  # what was said, and the setup
        if again:
            assert await store.messages("b") == SAID


@pytest.mark.parametrize("how", ["deleted", "pruned"])
async def test_nothing_is_spared_for_good(dsn: str, tmp_path: Path, how: str) -> None:
    """A transaction of somebody else that goes on makes every younger body look as if it had come since."""
    async with PostgresStore(dsn, path=tmp_path / "trace") as store:
        with psycopg.connect(dsn) as other:
            other.execute("CREATE TABLE public.of_another_application (id bigint)")
            make = Maker("run_a")
            await store.write(captured(configured(make), *appended(make, SAID, ts_us=T0)))
            if how == "deleted":
                assert await store.delete_session("s")
            else:
                await store.write([make(ActorStarted(actor="x"), ts_us=T0 + 10**9)])
                assert (await store.prune(before=T0 + 10**9)).bodies == 3
            other.rollback()
        assert (await store.sql("SELECT count(*) FROM content")).rows == ((0,),)


async def test_the_clock_of_whoever_deletes_may_be_behind(dsn: str, tmp_path: Path) -> None:
    """What was said has a time to come, by that clock."""
    store = PostgresStore(dsn, path=tmp_path / "trace", clock=FakeClock(epoch_us=T0))
    async with store:
        make = Maker("run_a")
        await store.write(captured(configured(make), *appended(make, SAID, ts_us=T0 + 10**9)))
        assert await store.delete_session("s")
        assert (await store.sql("SELECT count(*) FROM content")).rows == ((0,),)
