"""A batch is sent and paid once: by programs that are killed and started again, and by several at once."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from subprocess import Popen

import anyio
import anyio.lowlevel
import pytest

from callboard.adapters import CanonicalRequest
from callboard.adapters.batches import BatchLimits
from callboard.adapters.operations.batches import HttpBatches
from callboard.bus.errors import OutcomeUnknownError, StoreError
from callboard.engine import BatchHandle, Engine
from callboard.tracestore import CallFilter
from callboard.tracestore.writing import writer
from callboard.tracestore.writing.spill import adopt_leftovers

from ...support.batch_engines import OFTEN, TEXTS, engine_at, nano_of, requests_of, run_to_the_end
from ...support.batch_server import BatchServer, batch_server
from ...support.batch_wires import MODELS
from ...support.programs import ended, started
from ...support.virtual_time import backend

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> object:
    return backend("asyncio")


KILLED_BEFORE_ITS_ANSWER = """
    import json, sys
    from urllib.request import urlopen
    import anyio
    from tests.support.batch_engines import die_when, run_to_the_end

    url, store, wire, name, already = sys.argv[1:]

    def submitted():
        return len(json.load(urlopen(url + "/books"))["jobs"]) > int(already)

    die_when(submitted)
    anyio.run(run_to_the_end, url, store, wire, name)
"""

KILLED_AMONG_ITS_RESULTS = """
    import os, signal, sys
    import anyio
    from tests.support import batch_engines as engines

    url, store, wire, name, _ = sys.argv[1:]

    async def die_at_the_twentieth_result():
        async with engines.engine_at(url, store) as engine:
            batch = await engine.create_batch(
                engines.requests_of(wire, *engines.TEXTS), batch_id=name, polling=engines.OFTEN
            )
            with engine.bus.subscribe("llm.*") as events:
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(batch.wait)
                    ends = 0
                    async for envelope in events:
                        ends += envelope.topic != "llm.call_started"
                        if ends == 20:
                            await engine.flush()
                            os.kill(os.getpid(), signal.SIGKILL)

    anyio.run(die_at_the_twentieth_result)
"""


async def check_paid_once(server: BatchServer, store: Path, wire: str, name: str) -> None:
    """The program ends well now; the provider made one job and bills each request once, and so do our books."""
    results = await run_to_the_end(server.url, str(store), wire, name)
    answered = [text for text in TEXTS if text != "fail"]
    assert [each.response.text for each in results if each.response] == [f"answer to {text}" for text in answered]
    assert results.cost.nano_usd == nano_of(wire, *answered)
    books = server.books()
    assert sorted(key for key in books["billed"] if key.startswith(f"{name}-")) == sorted(
        f"{name}-{place}" for place, text in enumerate(TEXTS) if text != "fail"
    )
    assert books["sizes"].count(len(TEXTS)) == 1
    async with engine_at(server.url, store) as engine:
        assert engine.store is not None
        await engine.start()
        rows = await engine.store.calls(CallFilter(operation="batch"), limit=None)
        assert len(rows) == len(TEXTS)
        assert sum(row.cost.nano_usd or 0 for row in rows if row.cost) == nano_of(wire, *answered)


@pytest.mark.parametrize("wire", MODELS)
async def test_killed_after_the_sending_and_before_the_answer(wire: str, tmp_path: Path) -> None:
    """The job is found in the list of a provider that was restarted meanwhile."""
    with batch_server(tmp_path) as server:
        server.fail("hold create")
        killed = ended(KILLED_BEFORE_ITS_ANSWER, server.url, tmp_path / "trace.db", wire, "night", 0)
        assert killed.returncode == -signal.SIGKILL, killed.stderr
        server.kill()
        server.start()
        await check_paid_once(server, tmp_path / "trace.db", wire, "night")


async def killed_with_a_job(server: BatchServer, store: Path) -> None:
    server.fail("hold create")
    killed = ended(KILLED_BEFORE_ITS_ANSWER, server.url, store, "anthropic", "night", 0)
    assert killed.returncode == -signal.SIGKILL, killed.stderr


async def test_what_a_dead_program_left_is_read_before_anything_is_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long it takes to take in the files beside the trace, the job that they tell of is looked for."""

    async def at_length(*args: object, **options: object) -> bool:
        for _ in range(3000):  # turns of the event loop, in which others could go on
            await anyio.lowlevel.checkpoint()
        return await adopt_leftovers(*args, **options)  # type: ignore[arg-type]

    with batch_server(tmp_path) as server:
        await killed_with_a_job(server, tmp_path / "trace.db")
        monkeypatch.setattr(writer, "adopt_leftovers", at_length)
        await check_paid_once(server, tmp_path / "trace.db", "anthropic", "night")


async def test_nothing_is_sent_while_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch may have been sent by who left it, so asking for one is an error until it can be read."""

    async def not_now(*args: object, **options: object) -> bool:
        return False

    with batch_server(tmp_path) as server:
        await killed_with_a_job(server, tmp_path / "trace.db")
        with monkeypatch.context() as meanwhile:
            meanwhile.setattr(writer, "adopt_leftovers", not_now)
            with pytest.raises(StoreError, match="an earlier process left"):
                await run_to_the_end(server.url, str(tmp_path / "trace.db"), "anthropic", "night")
        await check_paid_once(server, tmp_path / "trace.db", "anthropic", "night")


async def test_killed_among_its_results(tmp_path: Path) -> None:
    """Those that were counted are not counted again, and the others are."""
    with batch_server(tmp_path) as server:
        killed = ended(KILLED_AMONG_ITS_RESULTS, server.url, tmp_path / "trace.db", "openai", "night", 0)
        assert killed.returncode == -signal.SIGKILL, killed.stderr
        await check_paid_once(server, tmp_path / "trace.db", "openai", "night")


CREATES = """
    import sys
    import anyio
    from tests.support.batch_engines import run_to_the_end

    print("begun", flush=True)
    print(anyio.run(run_to_the_end, *sys.argv[1:]).cost.nano_usd)
"""


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
