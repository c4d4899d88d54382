"""Several create one batch at once, or one after the other: it is sent once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from subprocess import Popen

import anyio
import pytest

from callboard.adapters import CanonicalRequest
from callboard.adapters.batches import BatchLimits
from callboard.adapters.operations.batches import HttpBatches
from callboard.bus.errors import OutcomeUnknownError
from callboard.engine import BatchHandle, Engine
from callboard.tracestore import CallFilter
from tests.support.batch_engines import OFTEN, TEXTS, engine_at, nano_of, requests_of
from tests.support.batch_server import BatchServer, batch_server
from tests.support.batch_wires import MODELS
from tests.support.programs import started
from tests.support.virtual_time import backend

pytestmark = pytest.mark.anyio

CREATES = """
    import sys
    import anyio
    from tests.support.batch_engines import run_to_the_end

    print("begun", flush=True)
    print(anyio.run(run_to_the_end, *sys.argv[1:]).cost.nano_usd)
"""


@pytest.fixture
def anyio_backend() -> object:
    return backend("asyncio")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[BatchServer]:
    with batch_server(tmp_path) as running:
        yield running


async def created_by_all(engines: list[Engine], requests: list[CanonicalRequest]) -> list[BatchHandle]:
    """The batch as each of the engines has it, in each of which two tasks create it."""
    handles = []

    async def create(engine: Engine) -> None:
        handles.append(await engine.create_batch(requests, batch_id="night", polling=OFTEN))

    async with anyio.create_task_group() as group:
        for engine in engines * 2:
            group.start_soon(create, engine)
    return handles


@pytest.mark.parametrize("wire", MODELS)
async def test_many_engines_at_once_send_it_once(server: BatchServer, tmp_path: Path, wire: str) -> None:
    """They share a trace file, and all of them have the batch in the end."""
    async with AsyncExitStack() as stack:
        engines = [await stack.enter_async_context(engine_at(server.url, tmp_path / "trace.db")) for _ in range(3)]
        handles = await created_by_all(engines, requests_of(wire, "one", "two"))
        assert len({handle.jobs[0].id for handle in handles if handle.jobs[0]}) == 1
        for handle in handles:
            assert (await handle.wait()).cost.nano_usd == nano_of(wire, "one", "two")
    assert len(server.books()["jobs"]) == 1
    async with engine_at(server.url, tmp_path / "trace.db") as engine:
        await engine.start()
        assert engine.store is not None
        assert len(await engine.store.calls(CallFilter(operation="batch_create"))) == 1


async def test_so_do_engines_that_share_a_database(
    server: BatchServer, tmp_path: Path, postgres_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on several machines: nothing is shared but the database."""
    async with AsyncExitStack() as stack:
        engines = []
        for host in range(3):
            monkeypatch.setenv("CALLBOARD_HOME", str(tmp_path / f"host-{host}"))
            engines.append(await stack.enter_async_context(engine_at(server.url, postgres_dsn)))
        handles = await created_by_all(engines, requests_of("openai", "one", "two"))
        for handle in handles:
            assert (await handle.wait()).cost.nano_usd == nano_of("openai", "one", "two")
    assert len(server.books()["jobs"]) == 1


async def test_two_tasks_of_an_engine_without_a_trace_send_it_once(server: BatchServer) -> None:
    """What was sent is remembered in the engine."""
    async with engine_at(server.url) as engine:
        handles = await created_by_all([engine], requests_of("anthropic", "one"))
        assert handles[0] is handles[1]
    assert len(server.books()["jobs"]) == 1


@pytest.mark.parametrize("wire", ["anthropic", "openai"])
async def test_who_waits_goes_on_where_one_was_killed(server: BatchServer, tmp_path: Path, wire: str) -> None:
    """A program is killed before its answer comes, while two others wait for their turn; the job is found."""
    server.fail("hold create")

    def start() -> Popen[str]:
        return started(CREATES, server.url, tmp_path / "trace.db", wire, "night")

    with start() as killed:
        while not server.books()["jobs"]:
            assert killed.poll() is None
        others = [start(), start()]
        for program in others:
            assert program.stdout is not None
            program.stdout.readline()
        killed.kill()
    for program in others:
        said, errors = program.communicate(timeout=60)
        assert said, errors
    assert len(server.books()["jobs"]) == 1
    assert len(server.books()["billed"]) == len(TEXTS) - 1


async def test_what_another_has_sent_since_is_not_sent_again(
    server: BatchServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An engine leaves off at the first of three parts, another one sends them all, and the first one goes on."""
    monkeypatch.setattr(HttpBatches, "limits", BatchLimits(max_requests=1, max_bytes=10**6))
    monkeypatch.setattr(HttpBatches, "split", lambda _, items: (1,) * len(items))
    requests = requests_of("openai", "one", "two", "three")
    trace = tmp_path / "trace.db"
    async with engine_at(server.url, trace) as first, engine_at(server.url, trace) as second:
        server.fail("drop create")
        with pytest.raises(OutcomeUnknownError):
            await first.create_batch(requests, batch_id="night", settle_seconds=0.0)
        for engine in (second, first):
            batch = await engine.create_batch(requests, batch_id="night", settle_seconds=0.0, polling=OFTEN)
            assert (await batch.wait()).cost.nano_usd == nano_of("openai", "one", "two", "three")
    assert sum(job["mark"].startswith("night/") for job in server.books()["jobs"]) == 3
