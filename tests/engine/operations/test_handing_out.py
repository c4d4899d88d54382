"""Results of a batch that are handed out one by one: each once, in order, priced as they are, and none is kept."""

from __future__ import annotations

import tracemalloc
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import anyio
import pytest

from callboard.adapters.batches import BatchLimits
from callboard.adapters.operations import batches
from callboard.adapters.operations.batches import HttpBatches
from callboard.bus import BatchCompleted, Envelope, Subscription
from callboard.bus.errors import CallboardError, NetworkError, RequestTimeoutError
from callboard.engine import BatchResult, Engine
from callboard.tracestore import CallFilter
from tests.support.batch_engines import OFTEN, engine_at, nano_of, requests_of
from tests.support.batch_server import BatchServer, batch_server
from tests.support.batch_wires import MODELS
from tests.support.virtual_time import backend

pytestmark = pytest.mark.anyio

TEXTS = ["one", "fail", "two", "three"]
ANSWERED = ["one", "two", "three"]


@pytest.fixture
def anyio_backend() -> object:
    return backend("asyncio")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BatchServer]:
    with batch_server(tmp_path_factory.mktemp("batches")) as running:
        yield running


def texts_of(results: list[BatchResult]) -> list[str]:
    return [each.response.text if each.response else "failed" for each in results]


ALL = ["answer to one", "failed", "answer to two", "answer to three"]


async def until_end(events: Subscription) -> AsyncIterator[Envelope]:
    """What is told until the batch is over, which is the last of it."""
    async for envelope in events:
        yield envelope
        if envelope.topic == "batch.completed":
            return


async def money_in(engine: Engine) -> int:
    """What the trace says that all batches cost."""
    assert engine.store is not None
    await engine.flush()
    rows = await engine.store.calls(CallFilter(operation="batch"), limit=None)
    return sum(row.cost.nano_usd or 0 for row in rows if row.cost)


@pytest.mark.parametrize("wire", MODELS)
async def test_results_are_handed_out_in_order_and_not_kept(server: BatchServer, wire: str) -> None:
    """Without a trace, to an async function; the end says what all of them cost."""
    got: list[BatchResult] = []

    async def take(result: BatchResult) -> None:
        await anyio.lowlevel.checkpoint()
        got.append(result)

    async with engine_at(server.url) as engine:
        ends = engine.bus.subscribe("batch.completed")
        batch = await engine.create_batch(requests_of(wire, *TEXTS), batch_id=f"all-{wire}", polling=OFTEN)
        state = await batch.for_each(take)
        assert texts_of(got) == ALL
        assert (state.done, state.succeeded, state.failed) == (True, 3, 1)
        assert batch.results == (None,) * 4
        with pytest.raises(CallboardError, match="handed out"):
            await batch.wait()
        await batch.for_each(got.append)
        assert len(got) == 4
        ended = (await anext(ends)).data
        assert isinstance(ended, BatchCompleted)
        assert ended.cost_nano_usd == nano_of(wire, *ANSWERED)


@pytest.mark.parametrize("kind", ["none", "sqlite", "postgresql"])
@pytest.mark.parametrize("error", [ValueError, TimeoutError, NetworkError], ids=lambda error: error.__name__)
async def test_a_function_that_fails_is_called_again_with_the_same_result(
    server: BatchServer, tmp_path: Path, postgres_dsn: str, kind: str, error: type[Exception]
) -> None:
    """Its exception is raised as it is, whatever its type; nothing is counted twice, in any trace or in none."""
    store = {"none": None, "sqlite": tmp_path / "trace.db", "postgresql": postgres_dsn}[kind]
    got: list[BatchResult] = []

    def fail_at_third(result: BatchResult) -> None:
        if len(got) == 2:
            raise error("mine")
        got.append(result)

    async with engine_at(server.url, store) as engine:
        ends = engine.bus.subscribe("llm.call_completed", "llm.call_failed", "batch.completed")
        name = f"again-{kind}-{error.__name__}"
        batch = await engine.create_batch(requests_of("openai", *TEXTS), batch_id=name, polling=OFTEN)
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


async def test_another_process_hands_out_all_results_and_pays_for_none(
    server: BatchServer, tmp_path: Path
) -> None:
    """The first one ended among them; what it had counted is not counted again."""
    store = tmp_path / "trace.db"
    first: list[BatchResult] = []

    def die(result: BatchResult) -> None:
        first.append(result)
        if len(first) == 2:
            raise RuntimeError

    async with engine_at(server.url, store) as engine:
        batch = await engine.create_batch(requests_of("groq", *TEXTS), batch_id="restarted", polling=OFTEN)
        with pytest.raises(RuntimeError):
            await batch.for_each(die)
    for _ in range(2):
        got: list[BatchResult] = []
        async with engine_at(server.url, store) as engine:
            batch = await engine.resume_batch("restarted", polling=OFTEN)
            await batch.for_each(got.append)
            assert texts_of(got) == ALL
            assert sum(each.cost.nano_usd or 0 for each in got if each.cost) == nano_of("groq", *ANSWERED)
            assert await money_in(engine) == nano_of("groq", *ANSWERED)


async def test_results_that_another_task_has_read_are_handed_out(server: BatchServer) -> None:
    """One task waits while another hands out; each result is handed out once, and who waits is told."""
    got: list[BatchResult] = []
    async with engine_at(server.url) as engine:
        batch = await engine.create_batch(requests_of("openai", *TEXTS), batch_id="shared", polling=OFTEN)
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


async def test_parts_are_handed_out_one_after_the_other(
    server: BatchServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch of several jobs is handed out whole."""
    monkeypatch.setattr(HttpBatches, "limits", BatchLimits(max_requests=2, max_bytes=10**6))
    monkeypatch.setattr(HttpBatches, "split", lambda _, items: (2, 2))
    got: list[BatchResult] = []
    async with engine_at(server.url) as engine:
        batch = await engine.create_batch(requests_of("openai", *TEXTS), batch_id="parts", polling=OFTEN)
        assert len(batch.jobs) == 2
        await batch.for_each(got.append)
        assert sorted(each.request_id for each in got) == ["r0", "r1", "r2", "r3"]


async def test_a_time_limit_ends_only_the_waiting(server: BatchServer) -> None:
    """The result that was being taken is handed out again."""
    got: list[BatchResult] = []

    async def never(result: BatchResult) -> None:
        await anyio.sleep_forever()

    async with engine_at(server.url) as engine:
        batch = await engine.create_batch(requests_of("openai", *TEXTS), batch_id="slow", polling=OFTEN)
        with pytest.raises(RequestTimeoutError):
            await batch.for_each(never, timeout=0.1)
        await batch.for_each(got.append)
        assert texts_of(got) == ALL


async def test_results_that_are_larger_than_the_memory(
    server: BatchServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They lie in a temporary file, and are read one at a time."""
    monkeypatch.setattr(batches, "MOST_IN_MEMORY", 500_000)
    texts = [f"{place} {'x' * 250_000}" for place in range(100)]
    async with engine_at(server.url, tmp_path / "trace.db") as engine:
        await engine.create_batch(requests_of("openai", *texts), batch_id="large")
    sizes = 0

    def take(result: BatchResult) -> None:
        nonlocal sizes
        sizes += len(result.text)

    async with engine_at(server.url, tmp_path / "trace.db") as engine:
        batch = await engine.resume_batch("large", polling=OFTEN)
        tracemalloc.start()
        try:
            await batch.for_each(take)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    assert sizes == sum(len(f"answer to {text}") for text in texts) > 25_000_000
    assert peak < 12_500_000
