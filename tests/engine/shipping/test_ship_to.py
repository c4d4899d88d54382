"""An engine that ships its trace file to a server, after its calls or before its replies. The server may be
down.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import anyio
import pytest

from callboard.bus import ConfigurationError
from callboard.engine import Engine, tool
from callboard.engine.cli.command_line import main
from callboard.engine.runtime import lifecycle
from callboard.engine.watching.health import check_store
from callboard.tracestore import PostgresStore, TraceShipper, TraceStore
from callboard.tracestore.shipping import source
from callboard.tracestore.shipping.marks import backlogs
from tests.support.engines import registry
from tests.support.postgres_server import own_server, why_not
from tests.support.scripted import Say
from tests.tracestore.trace_making import Maker

from ...support.postgres_server import StartedServer

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


async def test_a_reply_is_on_the_server_before_it_is_returned(
    postgres_dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The new events are shipped without reading the file."""
    read: list[object] = []
    monkeypatch.setattr(source, "_events", lambda *arguments: read.append(arguments))
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
    assert read == []


async def test_calls_continue_without_the_server_and_the_backlog_is_reported_and_shipped(tmp_path: Path) -> None:
    path = tmp_path / "trace.db"
    with own_server() as server, server.database() as dsn:
        server.stop()
        engine = Engine(models=registry(*[Say("Hello.")] * 9), store=path, ship_to=dsn, ship="before_reply")
        with engine.bus.subscribe("store.shipping_changed") as changes:
            async with engine:
                session = engine.session(model="s:m")
                with anyio.fail_after(20):
                    await session.send("Hi")
                    first = (await anext(aiter(changes))).data
                assert (first.previous, first.current) == ("shipping", "retrying")
                assert "@" not in first.target + first.reason
                await engine.flush()
                (check,) = [each for each in await check_store(engine.store) if each.name == "store:shipping"]
                assert not check.ok
                assert "wait for postgresql://" in check.detail
                server.start()
                with anyio.fail_after(60):
                    second = (await anext(aiter(changes))).data
                assert (second.previous, second.current) == ("retrying", "shipping")
        assert await seqs(dsn, tmp_path) == await local_seqs(path)
        (check,) = [each for each in await check_store(TraceStore(path)) if each.name == "store:shipping"]
        assert check.ok


async def test_the_file_of_a_dead_process_is_shipped_by_the_next_one(postgres_dsn: str, tmp_path: Path) -> None:
    from callboard.tracestore.shipping.marks import RegisteredFiles
    from callboard.tracestore.shipping.shipper import receiver
    from tests.tracestore.trace_making import Maker

    dead = tmp_path / "dead.db"
    make = Maker("run_dead")
    async with TraceStore(dead) as store:
        await store.write([make.started("req_1"), make.completed("req_1"), make.started("req_2")])
    RegisteredFiles(tmp_path / "home" / "shipping", dead, receiver(postgres_dsn).name, None).register()
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


# An engine with a server that accepts connections and sends no answer: calls continue, and the waits are short.


of_our_own = pytest.mark.skipif(why_not(own=True) is not None, reason=str(why_not(own=True)))


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
    """Wait until the shipper waits for the server."""
    target = engine._runtime.shipper._target
    with anyio.fail_after(30):
        while not target._database._writer.waiting:  # noqa: ASYNC110 (no event reports it)
            await anyio.sleep(0.01)


@pytest.mark.deep("another outage of the target")
@of_our_own
async def test_calls_continue_and_the_engine_ends_soon(server: StartedServer, tmp_path: Path) -> None:
    """The trace file keeps the other events, and the next engine ships them."""
    path = tmp_path / "trace.db"
    with server.database() as dsn:
        async with engine_for(path, dsn, "before_reply") as engine:
            await engine.session(model="s:m").send("Hi")  # The server has the events when this call returns.
        engine = engine_for(path, dsn, "behind")
        async with engine:
            session = engine.session(model="s:m", tools=[look])
            shipper = engine._runtime.shipper
            assert await shipper.shipped(30)  # The shipper is connected, so a statement will get no answer.
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


@pytest.mark.deep("another outage of the target")
@of_our_own
async def test_a_turn_with_several_calls_waits_once(
    server: StartedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the limit, the turn would wait four times: after each call, before its tools, and at its end."""
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
                assert 2.0 <= time.monotonic() - began < 8.0  # Four waits would take 8 seconds.
                await engine.aclose()


# An engine that ships its file also deletes a session in the shared store, immediately or when the store is back.


def engine_on(path: Path, dsn: str, **options: Any) -> Engine:
    return Engine(models=registry(*[Say("Hello.")] * 9), store=path, ship_to=dsn, capture_content=True, **options)


async def said(dsn: str, folder: Path) -> dict[str, int]:
    """The number of stored messages of each session."""
    async with PostgresStore(dsn, path=folder / "shared") as store:
        return {row.session_id: row.messages for row in await store.sessions(None)}


@of_our_own
async def test_a_deletion_reaches_the_server(postgres_dsn: str, tmp_path: Path) -> None:
    path = tmp_path / "trace.db"
    async with engine_on(path, postgres_dsn, ship="before_reply") as engine:
        gone, stays = engine.session(model="s:m"), engine.session(model="s:m")
        for session in (gone, stays):
            await session.send("Hi")
        assert await said(postgres_dsn, tmp_path) == {gone.id: 2, stays.id: 2}
        assert await engine.delete_session(gone.id)
    assert await said(postgres_dsn, tmp_path) == {stays.id: 2}


@pytest.mark.deep("another outage of the target")
@of_our_own
async def test_a_deletion_without_the_server_happens_when_it_is_back(tmp_path: Path) -> None:
    """The next engine with that file deletes the session on the server."""
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


@of_our_own
def test_the_delete_command_names_the_shared_store(
    postgres_dsn: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import anyio

    path = tmp_path / "trace.db"

    async def talk() -> str:
        async with engine_on(path, postgres_dsn) as engine:
            session = engine.session(model="s:m")
            await session.send("Hi")
            return session.id

    assert main(["sessions", anyio.run(talk), "--delete", "--db", str(path)]) == 0
    output_text = " ".join(capsys.readouterr().out.split())
    assert "The next shipping deletes it from postgresql://" in output_text
    assert "@" not in output_text
    assert main(["ship", "--db", str(path), "--store", postgres_dsn, "--once"]) == 0
    assert anyio.run(said, postgres_dsn, tmp_path) == {}


# A shared store to which a file is no longer shipped: pruning does not wait for it.


async def write(trace: Path, number: int) -> None:
    make = Maker(f"run_{number}")
    async with TraceStore(trace) as store:
        for call in range(3):
            request = f"req_{number}_{call}"
            await store.write([make.started(request), make.completed(request)])
        await store.close_lost_runs()


def output(capsys: pytest.CaptureFixture[str]) -> str:
    return " ".join(capsys.readouterr().out.split())


def test_prune_reports_events_kept_for_a_store_and_the_command_to_release_them(
    postgres_dsn: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = tmp_path / "trace.db"
    anyio.run(write, trace, 1)
    assert main(["ship", "--db", str(trace), "--store", postgres_dsn, "--once"]) == 0
    anyio.run(write, trace, 2)
    output(capsys)
    prune = ["prune", "--db", str(trace), "--max-size", "1"]
    for arguments in ([*prune, "--dry-run"], prune):
        assert main(arguments) == 0
        printed = output(capsys)
        assert "Kept 6 events that postgresql://" in printed
        assert "callboard ship --forget" in printed
        assert "@" not in printed
    assert main(["ship", "--db", str(trace), "--store", postgres_dsn, "--forget"]) == 0
    assert "no longer copied" in output(capsys)
    assert main(prune) == 0
    assert "Kept" not in output(capsys)
    assert main(["ship", "--db", str(trace), "--store", postgres_dsn, "--forget"]) == 1


def test_a_store_that_is_shipped_to_now_is_not_forgotten(
    postgres_dsn: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = tmp_path / "trace.db"

    async def shipping() -> TraceShipper:
        await write(trace, 1)
        shipper = TraceShipper(trace, postgres_dsn)
        await shipper._step()
        return shipper

    shipper = anyio.run(shipping)
    try:
        assert main(["ship", "--db", str(trace), "--store", postgres_dsn, "--forget"]) != 0
        assert "Stop it first" in " ".join(capsys.readouterr().err.split())
    finally:
        shipper._turn.give_up()
