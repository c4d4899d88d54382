"""Random faults of all parts, by seed: each event arrives exactly once, and each run is in order."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path

import anyio
import pytest

from callboard.bus import AdmissionError, Envelope, Lossless
from callboard.engine import Engine, RemoteBus
from tests.support.cluster_engines import node_engine
from tests.support.depth import first_is_quick
from tests.support.nats_server import NatsServer, why_no_nats
from tests.support.postgres_server import StartedServer, own_server, why_not
from tests.support.scripted import Say

pytestmark = [
    pytest.mark.timeout(120),
    pytest.mark.skipif(bool(why_no_nats() or why_not()), reason=str(why_no_nats() or why_not())),
]

ACTS = 12
NODES = ("a", "b", "c")
FAULTS = ("killed", "wiped", "hangs", "database restarts", "connections cut", "nothing")


@pytest.fixture
def postgres() -> Iterator[StartedServer]:
    with own_server() as server:
        yield server


@asynccontextmanager
async def reading(remote: RemoteBus) -> AsyncIterator[list[Envelope]]:
    """A list that collects all events as they arrive."""
    got: list[Envelope] = []

    async def read() -> None:
        async for envelope in subscription:
            got.append(envelope)  # noqa: PERF401 - others look at it meanwhile

    with remote.subscribe(">", policy=Lossless()) as subscription:
        async with remote, anyio.create_task_group() as group:
            group.start_soon(read)
            yield got
            group.cancel_scope.cancel()


async def act(what: str, server: NatsServer, postgres: StartedServer) -> None:
    """Cause one fault and end it."""
    match what:
        case "killed":
            server.stop()
            await anyio.sleep(0.1)
            server.start()
        case "wiped":
            server.stop()
            server.wipe()
            await anyio.sleep(0.3)
            server.start()
        case "hangs":
            with server.hanging():
                await anyio.sleep(0.5)
        case "database restarts":
            await anyio.to_thread.run_sync(postgres.restart, "immediate")
        case "connections cut":
            await anyio.to_thread.run_sync(postgres.cut_connections)
        case _:
            await anyio.sleep(0.05)


@pytest.mark.deep("days of faults; test_remote_bus has each fault once")
@pytest.mark.parametrize("seed", first_is_quick([1, 2, 3], "more seeds"))
async def test_readers_have_every_event_once_and_in_order(
    server: NatsServer, postgres: StartedServer, tmp_path: Path, seed: int
) -> None:
    """The broker is killed, wiped and suspended, and the database restarts. One reader starts first."""
    chance = random.Random(seed)
    done = anyio.Event()

    async def talk(engine: Engine) -> None:
        while not done.is_set():
            with suppress(AdmissionError):  # While the database is down, a new session can't be opened.
                await engine.session("s:m").send("Hi")
            await anyio.sleep(0.02)

    async def faults() -> None:
        for _ in range(ACTS // 2):
            await act(chance.choice(FAULTS), server, postgres)

    def remote() -> RemoteBus:
        return RemoteBus(server.url, store=postgres.dsn, since=0, sweep_seconds=0.5)

    async with AsyncExitStack() as stack:
        engines = [
            await stack.enter_async_context(
                node_engine(name, postgres.dsn, tmp_path, *[Say("Hello.")] * 5000, cluster={"nats": server.url})
            )
            for name in NODES
        ]
        first, second = remote(), remote()
        async with reading(first) as early, anyio.create_task_group() as group:
            for engine in engines:
                group.start_soon(talk, engine)
            await faults()
            async with reading(second) as late:
                await faults()
                done.set()
                await anyio.sleep(0.5)
                wanted = {engine.bus.run_id: await stored(engine) for engine in engines}
                for got in (early, late):
                    await has(got, wanted)
        assert first.remote_statistics().passed_over == second.remote_statistics().passed_over == 0


async def stored(engine: Engine) -> list[int]:
    """The numbers of all events of an engine, from its trace."""
    await engine.flush()
    return [each.seq for each in await engine.store.events(run_id=engine.bus.run_id, limit=None)]


async def has(got: list[Envelope], wanted: dict[str, list[int]]) -> None:
    """Wait until a reader has the last event of each run, and check the events before it."""
    with anyio.fail_after(60):
        for run_id, seqs in wanted.items():
            while not any(each.run_id == run_id and each.seq >= seqs[-1] for each in got):  # noqa: ASYNC110
                await anyio.sleep(0.05)
            assert [each.seq for each in got if each.run_id == run_id][: len(seqs)] == seqs
