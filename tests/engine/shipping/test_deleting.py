"""An engine that ships its file deletes a session in the shared store, too, at once or when that is back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from callboard.engine import Engine
from callboard.engine.cli.command_line import main
from tests.support.engines import registry
from tests.support.postgres_server import own_server, why_not
from tests.support.scripted import Say
from callboard.tracestore import PostgresStore

pytestmark = [pytest.mark.anyio, pytest.mark.skipif(why_not(own=True) is not None, reason=str(why_not(own=True)))]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CALLBOARD_HOME", str(tmp_path / "home"))


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
    assert "It goes from postgresql://" in told
    assert "with the next shipping" in told
    assert "@" not in told
    assert main(["ship", "--db", str(path), "--store", postgres_dsn, "--once"]) == 0
    assert anyio.run(said, postgres_dsn, tmp_path) == {}
