"""An engine whose server takes connections and answers nothing: calls go on, and nobody waits for it for long."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import anyio
import pytest

from callboard.engine import Engine, tool
from callboard.engine.cli.command_line import main
from callboard.engine.runtime import lifecycle
from callboard.tracestore import PostgresStore, TraceStore
from callboard.tracestore.postgres.receiver import Receiver
from callboard.tracestore.shipping.marks import backlogs

from ...support.engines import registry
from ...support.postgres_server import StartedServer, own_server, why_not
from ...support.scripted import Say
from .test_ship_to import local_seqs, seqs

pytestmark = pytest.mark.skipif(why_not(own=True) is not None, reason=str(why_not(own=True)))


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CALLBOARD_HOME", str(tmp_path / "home"))


@pytest.fixture(scope="module")
def server() -> Iterator[StartedServer]:
    with own_server() as started:
        yield started


@tool
def look() -> str:
    """Look."""
    return "seen"


def engine_for(path: Path, dsn: str, ship: Literal["behind", "before_reply"]) -> Engine:
    replies = (Say("One."), Say("I look.", calls=[("look", {})]), Say("Two."), Say("Three."))
    return Engine(models=registry(*replies), store=path, ship_to=dsn, ship=ship)


async def until_it_ships(engine: Engine) -> None:
    """Wait until its shipper waits for the server."""
    shipper = engine._runtime.shipper
    target = shipper._target
    assert isinstance(target, Receiver)
    with anyio.fail_after(30):
        while not target._database._writer.waiting:  # noqa: ASYNC110 (it tells nobody)
            await anyio.sleep(0.01)


async def test_calls_go_on_and_the_engine_ends_soon(server: StartedServer, tmp_path: Path) -> None:
    """The rest is in its file, and the next one that ships the file brings it."""
    path = tmp_path / "trace.db"
    with server.database() as dsn:
        async with engine_for(path, dsn, "before_reply") as engine:
            await engine.session(model="s:m").send("Hi")  # the server has it when this returns
        engine = engine_for(path, dsn, "behind")
        async with engine:
            session = engine.session(model="s:m", tools=[look])
            shipper = engine._runtime.shipper
            assert await shipper.shipped(30)  # it is connected, so that it is a statement that gets no answer
            with server.hanging():
                for _ in range(2):
                    with anyio.fail_after(30):
                        await session.send("Hi")
                await engine.flush()
                await until_it_ships(engine)
                began = time.monotonic()
                await engine.aclose()
                assert time.monotonic() - began < 15
        (backlog,) = await backlogs(path)
        assert backlog.behind > 10
        async with TraceStore(path) as store:
            assert len(await store.calls()) == 4
        async with Engine(models=registry(Say("x")), store=path, ship_to=dsn) as engine:
            await engine.session(model="s:m").send("Hi")
        assert await seqs(dsn, tmp_path) == await local_seqs(path)


async def test_a_turn_waits_once_however_many_calls_it_has(
    server: StartedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would wait at the end of each call, before its tools, and at its end: four times."""
    monkeypatch.setattr(lifecycle, "SHIPPING_SECONDS", 2.0)
    with server.database() as dsn:
        async with engine_for(tmp_path / "trace.db", dsn, "before_reply") as engine:
            session = engine.session(model="s:m", tools=[look])
            await session.send("Hi")
            with server.hanging():
                began = time.monotonic()
                async with session.stream("Look.") as turn:
                    async for _ in turn:
                        pass
                assert 2.0 <= time.monotonic() - began < 8.0  # which is four waits
                await engine.aclose()


# An engine that ships its file deletes a session in the shared store, too, at once or when that is back.


def engine_on(path: Path, dsn: str, **options: Any) -> Engine:
    return Engine(models=registry(*[Say("Hello.")] * 9), store=path, ship_to=dsn, capture_content=True, **options)


async def said(dsn: str, folder: Path) -> dict[str, int]:
    """The number of messages of each session that is stored."""
    async with PostgresStore(dsn, path=folder / "shared") as store:
        return {row.session_id: row.messages for row in await store.sessions(None)}


async def test_a_deletion_reaches_the_server(postgres_dsn: str, tmp_path: Path) -> None:
    path = tmp_path / "trace.db"
    async with engine_on(path, postgres_dsn, ship="before_reply") as engine:
        gone, stays = engine.session(model="s:m"), engine.session(model="s:m")
        for session in (gone, stays):
            await session.send("Hi")
        assert await said(postgres_dsn, tmp_path) == {gone.id: 2, stays.id: 2}
        assert await engine.delete_session(gone.id)
    assert await said(postgres_dsn, tmp_path) == {stays.id: 2}


async def test_a_deletion_without_the_server_is_done_when_it_is_back(tmp_path: Path) -> None:
    """By the next engine with that file. What was never shipped arrives without what was said in it."""
    path = tmp_path / "trace.db"
    with own_server() as server, server.database() as dsn:
        async with engine_on(path, dsn) as engine:
            known = engine.session(model="s:m")
            await known.send("Hi")
        assert await said(dsn, tmp_path) == {known.id: 2}
        server.stop()
        async with engine_on(path, dsn) as engine:
            unknown = engine.session(model="s:m")
            await unknown.send("Hi")
            assert await engine.delete_session(unknown.id)
            assert await engine.delete_session(known.id)
        server.start()
        async with engine_on(path, dsn):
            pass
        assert await said(dsn, tmp_path) == {}
        async with PostgresStore(dsn, path=tmp_path / "shared") as store:
            assert {call.session_id for call in await store.calls()} == {known.id, unknown.id}
            assert (await store.sql("SELECT count(*) FROM content")).rows == ((0,),)


def test_the_command_says_where_else_it_goes(
    postgres_dsn: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import anyio

    path = tmp_path / "trace.db"

    async def talk() -> str:
        async with engine_on(path, postgres_dsn) as engine:
            session = engine.session(model="s:m")
            await session.send("Hi")
            return session.id

    session_id = anyio.run(talk)
    assert main(["sessions", session_id, "--delete", "--db", str(path)]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "The next shipping deletes it from postgresql://" in told
    assert "@" not in told
    assert main(["ship", "--db", str(path), "--store", postgres_dsn, "--once"]) == 0
    assert anyio.run(said, postgres_dsn, tmp_path) == {}
