"""A batch is sent and paid once, by programs that are killed and restarted, and by concurrent programs."""

from __future__ import annotations

import asyncio
import signal
import tracemalloc
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from subprocess import Popen

import anyio
import anyio.lowlevel
import pytest

from callboard.adapters import CanonicalRequest
from callboard.adapters.batches import BatchLimits
from callboard.adapters.operations import batches
from callboard.adapters.operations.batches import HttpBatches
from callboard.bus import Envelope, Subscription
from callboard.bus.errors import CallboardError, NetworkError, OutcomeUnknownError, RequestTimeoutError, StoreError
from callboard.engine import BatchHandle, BatchResult, Engine
from callboard.tracestore import CallFilter
from callboard.tracestore.writing import writer
from callboard.tracestore.writing.overflow import adopt_leftovers
from tests.support.depth import first_is_quick

from ...support.batch_engines import OFTEN, TEXTS, engine_at, nano_of, requests_of, run_to_the_end
from ...support.batch_server import BatchServer, batch_server
from ...support.batch_wires import MODELS
from ...support.programs import ended, started
from ...support.virtual_time import runs_on

anyio_backend = runs_on("asyncio")

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

KILLED_WHILE_COUNTING = """
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
    """Check that the program now succeeds, that the provider has one job, and that each request is billed and
    counted once.
    """
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
        await engine.start()
        rows = await engine.store.calls(CallFilter(operation="batch"), limit=None)
        assert len(rows) == len(TEXTS)
        assert sum(row.cost.nano_usd or 0 for row in rows if row.cost) == nano_of(wire, *answered)


@pytest.mark.parametrize("wire", first_is_quick(MODELS, "a kill on each wire"))
async def test_killed_after_the_sending_and_before_the_answer(
    wire: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The provider restarts, and the next program finds the job in the provider's list."""

    async def at_length(*args: object, **options: object) -> bool:
        for _ in range(3000):  # Other tasks of the event loop can run during these checkpoints.
            await anyio.lowlevel.checkpoint()
        return await adopt_leftovers(*args, **options)

    with batch_server(tmp_path) as server:
        server.fail("hold create")
        killed = ended(KILLED_BEFORE_ITS_ANSWER, server.url, tmp_path / "trace.db", wire, "night", 0)
        assert killed.returncode == -signal.SIGKILL, killed.stderr
        server.kill()
        server.start()
        monkeypatch.setattr(writer, "adopt_leftovers", at_length)
        await check_paid_once(server, tmp_path / "trace.db", wire, "night")


async def killed_with_a_job(server: BatchServer, store: Path) -> None:
    server.fail("hold create")
    killed = ended(KILLED_BEFORE_ITS_ANSWER, server.url, store, "anthropic", "night", 0)
    assert killed.returncode == -signal.SIGKILL, killed.stderr


async def test_nothing_is_sent_while_files_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The dead program may have sent the batch, so a creation is an error until the files can be read."""

    async def not_now(*args: object, **options: object) -> bool:
        return False

    with batch_server(tmp_path) as server:
        await killed_with_a_job(server, tmp_path / "trace.db")
        with monkeypatch.context() as meanwhile:
            meanwhile.setattr(writer, "adopt_leftovers", not_now)
            with pytest.raises(StoreError, match="an earlier process left"):
                await run_to_the_end(server.url, str(tmp_path / "trace.db"), "anthropic", "night")
        await check_paid_once(server, tmp_path / "trace.db", "anthropic", "night")


async def test_killed_while_results_are_counted(tmp_path: Path) -> None:
    with batch_server(tmp_path) as server:
        killed = ended(KILLED_WHILE_COUNTING, server.url, tmp_path / "trace.db", "openai", "night", 0)
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
    """The batch's handle in each engine. Two tasks of each engine create the batch."""
    tries = (engine.create_batch(requests, batch_id="night", polling=OFTEN) for engine in engines * 2)
    return await asyncio.gather(*tries)


async def test_concurrent_engines_send_a_batch_once(server: BatchServer, tmp_path: Path) -> None:
    wire = "openai"
    async with AsyncExitStack() as stack:
        engines = [await stack.enter_async_context(engine_at(server.url, tmp_path / "trace.db")) for _ in range(3)]
        handles = await created_by_all(engines, requests_of(wire, "one", "two"))
        assert len({handle.jobs[0].id for handle in handles if handle.jobs[0]}) == 1
        for handle in handles:
            assert (await handle.wait()).cost.nano_usd == nano_of(wire, "one", "two")
    assert len(server.books()["jobs"]) == 1
    async with engine_at(server.url, tmp_path / "trace.db") as engine:
        await engine.start()
        assert len(await engine.store.calls(CallFilter(operation="batch_create"))) == 1


async def test_engines_that_share_a_database_send_a_batch_once(
    server: BatchServer, tmp_path: Path, postgres_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with AsyncExitStack() as stack:
        engines = []
        for host in range(3):
            monkeypatch.setenv("CALLBOARD_HOME", str(tmp_path / f"host-{host}"))
            engines.append(await stack.enter_async_context(engine_at(server.url, postgres_dsn)))
        handles = await created_by_all(engines, requests_of("openai", "one", "two"))
        for handle in handles:
            assert (await handle.wait()).cost.nano_usd == nano_of("openai", "one", "two")
    assert len(server.books()["jobs"]) == 1
    async with engine_at(server.url) as engine:
        handles = await created_by_all([engine], requests_of("anthropic", "one"))
        assert handles[0] is handles[1]
    assert len(server.books()["jobs"]) == 2


async def test_a_waiting_program_continues_after_another_was_killed(server: BatchServer, tmp_path: Path) -> None:
    server.fail("hold create")

    def start() -> Popen[str]:
        return started(CREATES, server.url, tmp_path / "trace.db", "anthropic", "night")

    with start() as killed:
        while not server.books()["jobs"]:
            assert killed.poll() is None
        others = [start(), start()]
        for program in others:
            program.stdout.readline()
        killed.kill()
    for program in others:
        output, errors = program.communicate(timeout=60)
        assert output, errors
    assert len(server.books()["jobs"]) == 1
    assert len(server.books()["billed"]) == len(TEXTS) - 1


async def test_parts_that_another_engine_has_sent_are_not_sent_again(
    server: BatchServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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


# `for_each`: a function gets each result once, in order, with its price. No result is kept in memory.

HANDED_OUT = ["one", "fail", "two", "three"]
ANSWERED = ["one", "two", "three"]


@pytest.fixture(scope="module")
def batch_provider(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BatchServer]:
    with batch_server(tmp_path_factory.mktemp("batches")) as running:
        yield running


def texts_of(results: list[BatchResult]) -> list[str]:
    return [each.response.text if each.response else "failed" for each in results]


ALL = ["answer to one", "failed", "answer to two", "answer to three"]


async def until_end(events: Subscription) -> AsyncIterator[Envelope]:
    """Yield the events up to the end of the batch."""
    async for envelope in events:
        yield envelope
        if envelope.topic == "batch.completed":
            return


async def money_in(engine: Engine) -> int:
    """The cost of all batches in the trace."""
    await engine.flush()
    rows = await engine.store.calls(CallFilter(operation="batch"), limit=None)
    return sum(row.cost.nano_usd or 0 for row in rows if row.cost)


@pytest.mark.parametrize("wire", MODELS)
async def test_for_each_passes_results_in_order_and_keeps_none(batch_provider: BatchServer, wire: str) -> None:
    """The function is async, and there is no trace. The last event has the cost of all results."""
    got: list[BatchResult] = []

    async def take(result: BatchResult) -> None:
        await anyio.lowlevel.checkpoint()
        got.append(result)

    async with engine_at(batch_provider.url) as engine:
        ends = engine.bus.subscribe("batch.completed")
        batch = await engine.create_batch(requests_of(wire, *HANDED_OUT), batch_id=f"all-{wire}", polling=OFTEN)
        state = await batch.for_each(take)
        assert texts_of(got) == ALL
        assert (state.done, state.succeeded, state.failed) == (True, 3, 1)
        assert batch.results == (None,) * 4
        with pytest.raises(CallboardError, match=r"read with for_each\(\)"):
            await batch.wait()
        await batch.for_each(got.append)
        assert len(got) == 4
        ended = (await anext(ends)).data
        assert ended.cost_nano_usd == nano_of(wire, *ANSWERED)


@pytest.mark.parametrize("traced", [False, True])
@pytest.mark.parametrize("error", [ValueError, TimeoutError, NetworkError], ids=lambda error: error.__name__)
async def test_a_function_that_fails_is_called_again_with_the_same_result(
    batch_provider: BatchServer, tmp_path: Path, traced: bool, error: type[Exception]
) -> None:
    """The exception is raised unchanged, for every type. No result counts twice, with and without a trace."""
    store = tmp_path / "trace.db" if traced else None
    got: list[BatchResult] = []

    def fail_at_third(result: BatchResult) -> None:
        if len(got) == 2:
            raise error("mine")
        got.append(result)

    async with engine_at(batch_provider.url, store) as engine:
        ends = engine.bus.subscribe("llm.call_completed", "llm.call_failed", "batch.completed")
        name = f"again-{traced}-{error.__name__}"
        batch = await engine.create_batch(requests_of("openai", *HANDED_OUT), batch_id=name, polling=OFTEN)
        with pytest.raises(error, match="mine"):
            await batch.for_each(fail_at_third)
        assert not batch.state.done
        await batch.for_each(got.append)
        assert texts_of(got) == ALL
        assert sum(each.cost.nano_usd or 0 for each in got if each.cost) == nano_of("openai", *ANSWERED)
        topics = [envelope.topic async for envelope in until_end(ends)]
        assert sorted(topics) == ["batch.completed", *["llm.call_completed"] * 4, "llm.call_failed"]
        if store is not None:
            assert await money_in(engine) == nano_of("openai", *ANSWERED)


async def test_another_process_passes_all_results_and_counts_none_again(
    batch_provider: BatchServer, tmp_path: Path
) -> None:
    store = tmp_path / "trace.db"
    first: list[BatchResult] = []

    def die(result: BatchResult) -> None:
        first.append(result)
        if len(first) == 2:
            raise RuntimeError

    async with engine_at(batch_provider.url, store) as engine:
        batch = await engine.create_batch(requests_of("groq", *HANDED_OUT), batch_id="restarted", polling=OFTEN)
        with pytest.raises(RuntimeError):
            await batch.for_each(die)
    for _ in range(2):
        got: list[BatchResult] = []
        async with engine_at(batch_provider.url, store) as engine:
            batch = await engine.resume_batch("restarted", polling=OFTEN)
            await batch.for_each(got.append)
            assert texts_of(got) == ALL
            assert sum(each.cost.nano_usd or 0 for each in got if each.cost) == nano_of("groq", *ANSWERED)
            assert await money_in(engine) == nano_of("groq", *ANSWERED)


async def test_results_that_were_read_before_are_passed(batch_provider: BatchServer) -> None:
    got: list[BatchResult] = []
    async with engine_at(batch_provider.url) as engine:
        batch = await engine.create_batch(requests_of("openai", *HANDED_OUT), batch_id="shared", polling=OFTEN)
        while not batch.state.done:
            await batch.refresh()
        assert len(await batch.wait()) == 4

        async def hold(result: BatchResult) -> None:
            got.append(result)
            with pytest.raises(CallboardError, match="already"):
                await batch.for_each(hold)

        await batch.for_each(hold)
        assert texts_of(got) == ALL
        assert batch.state.succeeded == 3


async def test_a_time_limit_ends_the_wait(batch_provider: BatchServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The interrupted result is passed again. A batch of several jobs is passed completely."""
    monkeypatch.setattr(HttpBatches, "limits", BatchLimits(max_requests=2, max_bytes=10**6))
    monkeypatch.setattr(HttpBatches, "split", lambda _, items: (2, 2))
    got: list[BatchResult] = []

    async def never(result: BatchResult) -> None:
        await anyio.sleep_forever()

    async with engine_at(batch_provider.url) as engine:
        batch = await engine.create_batch(requests_of("openai", *HANDED_OUT), batch_id="slow", polling=OFTEN)
        assert len(batch.jobs) == 2
        with pytest.raises(RequestTimeoutError):
            await batch.for_each(never, timeout=0.1)
        await batch.for_each(got.append)
    assert sorted(texts_of(got)) == sorted(ALL)


async def test_results_that_are_larger_than_the_memory(
    batch_provider: BatchServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The results are in a temporary file and are read one at a time."""
    monkeypatch.setattr(batches, "MOST_IN_MEMORY", 250_000)
    texts = [f"{place} {'x' * 100_000}" for place in range(100)]
    async with engine_at(batch_provider.url, tmp_path / "trace.db") as engine:
        await engine.create_batch(requests_of("openai", *texts), batch_id="large")
    sizes = 0

    def take(result: BatchResult) -> None:
        nonlocal sizes
        sizes += len(result.text)

    async with engine_at(batch_provider.url, tmp_path / "trace.db") as engine:
        batch = await engine.resume_batch("large", polling=OFTEN)
        tracemalloc.start()
        try:
            await batch.for_each(take)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    assert sizes == sum(len(f"answer to {text}") for text in texts) > 10_000_000
    assert peak < 5_000_000
