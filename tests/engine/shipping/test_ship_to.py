"""An engine that ships its trace file to a server: behind its calls or before its replies, server or no server."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest

from callboard.bus import ConfigurationError
from callboard.bus.events.operation import StoreShippingChanged
from callboard.engine import Engine
from callboard.engine.watching.health import check_store
from callboard.tracestore import PostgresStore, TraceStore
from callboard.tracestore.shipping import source
from tests.support.engines import registry
from tests.support.postgres_server import own_server, why_not
from tests.support.scripted import Say

pytestmark = pytest.mark.skipif(why_not() is not None, reason=str(why_not()))


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CALLBOARD_HOME", str(tmp_path / "home"))


async def seqs(dsn: str, folder: Path) -> list[tuple[str, int]]:
    async with PostgresStore(dsn, path=folder / "shared") as store:
        return sorted((event.run_id, event.seq) for event in await store.events(limit=None))


async def local_seqs(path: Path) -> list[tuple[str, int]]:
    async with TraceStore.open_readonly(path) as store:
        return sorted((event.run_id, event.seq) for event in await store.events(limit=None))


async def test_a_trace_is_on_the_server_when_the_engine_has_ended(postgres_dsn: str, tmp_path: Path) -> None:
    path = tmp_path / "trace.db"
    async with Engine(models=registry(Say("Hello.")), store=path, ship_to=postgres_dsn) as engine:
        await engine.session(model="s:m").send("Hi")
    assert await seqs(postgres_dsn, tmp_path) == await local_seqs(path)
    async with PostgresStore(postgres_dsn, path=tmp_path / "shared") as store:
        ((ended,),) = (await store.sql("SELECT count(*) FROM runs WHERE ending = 'closed'")).rows
    assert ended == 1


async def test_an_engine_ships_what_it_has_just_written_without_reading_it(
    postgres_dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[object] = []
    monkeypatch.setattr(source, "_events", lambda *arguments: read.append(arguments))
    path = tmp_path / "trace.db"
    async with Engine(
        models=registry(Say("One."), Say("Two.")), store=path, ship_to=postgres_dsn, ship="before_reply"
    ) as engine:
        session = engine.session(model="s:m")
        await session.send("Hi")
        await session.send("Hi")
    assert read == []
    assert await seqs(postgres_dsn, tmp_path) == await local_seqs(path)


async def test_an_answer_is_on_the_server_before_it_is_handed_over(postgres_dsn: str, tmp_path: Path) -> None:
    path = tmp_path / "trace.db"
    async with Engine(
        models=registry(Say("One."), Say("Two.")), store=path, ship_to=postgres_dsn, ship="before_reply"
    ) as engine:
        session = engine.session(model="s:m")
        for turn in (1, 2):
            await session.send("Hi")
            async with PostgresStore(postgres_dsn, path=tmp_path / "shared") as store:
                calls = await store.calls()
                done = await store.events(topic="session.turn_completed")
            assert [call.status for call in calls] == ["completed"] * turn
            assert len(done) == turn


async def test_calls_go_on_without_the_server_and_the_backlog_is_told_and_shipped(tmp_path: Path) -> None:
    path = tmp_path / "trace.db"
    with own_server() as server, server.database() as dsn:
        server.stop()
        engine = Engine(models=registry(*[Say("Hello.")] * 9), store=path, ship_to=dsn, ship="before_reply")
        with engine.bus.subscribe("store.shipping_changed") as told:
            async with engine:
                session = engine.session(model="s:m")
                with anyio.fail_after(20):
                    await session.send("Hi")
                    first = (await anext(aiter(told))).data
                assert isinstance(first, StoreShippingChanged)
                assert (first.previous, first.current) == ("shipping", "retrying")
                assert "@" not in first.target + first.reason
                await engine.flush()
                (check,) = [each for each in await check_store(engine.store) if each.name == "store:shipping"]
                assert not check.ok
                assert "wait for postgresql://" in check.detail
                server.start()
                with anyio.fail_after(60):
                    second = (await anext(aiter(told))).data
                assert isinstance(second, StoreShippingChanged)
                assert (second.previous, second.current) == ("retrying", "shipping")
        assert await seqs(dsn, tmp_path) == await local_seqs(path)
        (check,) = [each for each in await check_store(TraceStore(path)) if each.name == "store:shipping"]
        assert check.ok


async def test_the_file_of_a_dead_process_is_shipped_by_the_next_one(postgres_dsn: str, tmp_path: Path) -> None:
    from callboard.tracestore.shipping.marks import LookForFiles
    from callboard.tracestore.shipping.shipper import receiver
    from tests.tracestore.trace_making import Maker

    dead = tmp_path / "dead.db"
    make = Maker("run_dead")
    async with TraceStore(dead) as store:
        await store.write([make.started("req_1"), make.completed("req_1"), make.started("req_2")])
    name = receiver(postgres_dsn).name
    LookForFiles(tmp_path / "home" / "shipping", dead, name, None).register()
    path = tmp_path / "trace.db"
    async with Engine(models=registry(Say("Hello.")), store=path, ship_to=postgres_dsn) as engine:
        await engine.session(model="s:m").send("Hi")
        with anyio.fail_after(20):
            while ("run_dead", 4) not in await seqs(postgres_dsn, tmp_path):  # noqa: ASYNC110
                await anyio.sleep(0.1)
    assert list((tmp_path / "home" / "shipping").iterdir()) == []


def test_only_a_file_can_be_shipped(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="must be a file"):
        Engine(models=registry(Say("x")), trace=False, ship_to="postgresql://u@127.0.0.1:1/d")
