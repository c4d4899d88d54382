"""Batches on each protocol: results, prices, records, and no double payment after lost answers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from callboard.adapters.batches import BatchLimits
from callboard.adapters.operations import answers as jobs
from callboard.adapters.operations.batches import HttpBatches
from callboard.bus import Envelope, LlmCallFailed
from callboard.bus.errors import (
    CancelledError,
    InvalidRequestError,
    NotFoundError,
    OutcomeUnknownError,
    RequestTimeoutError,
)
from callboard.engine import Budget, BudgetExceededError, Engine, tool
from callboard.engine.routing.availability import AvailabilityTable
from callboard.tracestore import CallFilter, CallRow
from tests.support.batch_engines import OFTEN, PRICES, engine_at, name_of, nano_of, requests_of
from tests.support.batch_server import BatchServer, batch_server
from tests.support.batch_wires import MODELS, config_of, type_of
from tests.support.engines import entry, model, serving
from tests.support.scripted import Say, scripted_type
from tests.support.virtual_time import runs_on

from ...support.present import present

WIRES = pytest.mark.parametrize("wire", MODELS)

anyio_backend = runs_on("asyncio")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BatchServer]:
    with batch_server(tmp_path_factory.mktemp("batches")) as running:
        yield running


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "trace.db"


async def rows_of(engine: Engine, operation: str) -> list[CallRow]:
    await engine.flush()
    return list(await engine.store.calls(CallFilter(operation=operation), limit=None))


def sum_of(rows: Iterable[CallRow]) -> int:
    """The cost of these calls in nano-USD."""
    return sum(row.cost.nano_usd or 0 for row in rows if row.cost)


def billed(server: BatchServer, batch_id: str) -> list[str]:
    """The requests of a batch that the server bills."""
    return [key for key in server.books()["billed"] if key.startswith(f"{batch_id}-")]


def jobs_of(server: BatchServer, batch_id: str) -> list[dict[str, Any]]:
    """The server's jobs for a batch."""
    return [job for job in server.books()["jobs"] if job["mark"].startswith(f"{batch_id}/")]


async def test_a_batch_in_a_tool_is_a_child_of_the_turn(server: BatchServer, store: Path) -> None:
    """The creation of the batch and each of its requests count once in the tree."""
    wire = next(iter(MODELS))

    @tool
    async def night() -> str:
        """Run a batch."""
        batch = await engine.create_batch(requests_of(wire, "one", "two"), batch_id="in-a-tool", polling=OFTEN)
        return str(len(await batch.wait()))

    lead = scripted_type(Say(calls=[("night", {})]), Say("Done."))
    models = serving(
        model(name_of(wire)), s=lead, **{wire: entry(wire, type_of(wire), config_of(wire, server.url))}
    )
    async with Engine(models=models, store=store, prices=PRICES) as engine:
        reply = await engine.session("s:m", tools=[night]).send("Go.")
        rows = await rows_of(engine, "batch")
        roots = await engine.store.calls(CallFilter(provider="s"))
        (root,) = {row.turn_id for row in roots}
    assert [(row.parent_turn_id, row.root_turn_id, row.depth) for row in rows] == [(root, root, 1)] * 2
    assert reply.tree_cost.calls == 2 + 1 + 2


@WIRES
async def test_other_processes_resume_a_batch_whose_requests_are_rows_at_batch_prices(
    server: BatchServer, store: Path, wire: str
) -> None:
    """The first engine creates the batch, the second waits for it, and the third reads it again."""
    name, paid = f"resumed-{wire}", nano_of(wire, "one", "a third one")
    async with engine_at(server.url, store) as engine:
        await engine.create_batch(requests_of(wire, "one", "fail", "a third one"), batch_id=name)
    for _ in range(2):
        async with engine_at(server.url, store) as engine:
            results = await (await engine.resume_batch(name, polling=OFTEN)).wait()
            assert [each.request_id for each in results] == ["r0", "r1", "r2"]
            assert (results[0].text, results[2].text) == ("answer to one", "answer to a third one")
            assert isinstance(results[1].error, InvalidRequestError)
            assert (results.cost.nano_usd, results.cost.complete) == (paid, True)
            rows = {row.request_id: row for row in await rows_of(engine, "batch")}
            assert [row.status for _, row in sorted(rows.items())] == ["completed", "failed", "completed"]
            assert sum_of(rows.values()) == paid
            assert present(rows[f"{name}-0"].usage).service_tier == "batch"
            (creation,) = await rows_of(engine, "batch_create")
            assert present(creation.cost).nano_usd == 0
    assert billed(server, name) == [f"{name}-0", f"{name}-2"]


@WIRES
async def test_a_lost_reply_makes_no_second_job(server: BatchServer, store: Path, wire: str) -> None:
    """The engine finds the existing job and gives a warning."""
    async with engine_at(server.url, store) as engine:
        server.fail("lose create")
        padding = ["padding"] * (len(wire) + 20)
        batch = await engine.create_batch(requests_of(wire, *padding), batch_id=f"lost-{wire}", polling=OFTEN)
        assert [warning.code for warning in batch.warnings] == ["found_again"]
        await batch.wait()
        assert len(billed(server, f"lost-{wire}")) == len(padding)


async def test_the_same_batch_created_again_is_the_same_batch(server: BatchServer, store: Path) -> None:
    """The same engine and a later one return the same batch. Other requests under the same id are refused."""
    requests = requests_of("openai", "one", "two", ids=False)
    async with engine_at(server.url, store) as engine:
        first = await engine.create_batch(requests, batch_id="again", polling=OFTEN)
        assert await engine.create_batch(requests, batch_id="again") is first
        with pytest.raises(InvalidRequestError, match="other requests"):
            await engine.create_batch(requests_of("openai", "three"), batch_id="again")
    async with engine_at(server.url, store) as engine:
        batch = await engine.create_batch(requests, batch_id="again", polling=OFTEN)
        results = await batch.wait()
        assert [each.request_id for each in results] == ["again-0", "again-1"]
    assert len(jobs_of(server, "again")) == 1


@pytest.mark.parametrize("traced", [True, False], ids=["trace", "no trace"])
@pytest.mark.parametrize(
    ("fault", "wire", "timeout", "made"),
    [("drop create", "mistral", None, 0), ("hold create", "gemini", 0.5, 1), ("lose create", "groq", None, 1)],
    ids=["no job was made", "the time limit ended", "the job is listed late"],
)
async def test_a_second_creation_settles_an_unknown_outcome(
    server: BatchServer,
    store: Path,
    monkeypatch: pytest.MonkeyPatch,
    fault: str,
    wire: str,
    timeout: float | None,
    made: int,
    traced: bool,
) -> None:
    """The second creation looks for the job first, and sends the requests only if there is no job."""
    monkeypatch.setattr(jobs, "_LOOKS", 0)
    requests, name = requests_of(wire, "one"), f"{wire}-{traced}"
    async with engine_at(server.url, store if traced else None) as engine:
        server.fail(fault)
        with pytest.raises(OutcomeUnknownError):
            await engine.create_batch(requests, batch_id=name, timeout=timeout)
        assert len(jobs_of(server, name)) == made
        batch = await engine.create_batch(requests, batch_id=name, settle_seconds=0.0, polling=OFTEN)
        assert (await batch.wait())[0].text == "answer to one"
    assert len(jobs_of(server, name)) == len(billed(server, name)) == 1


async def test_a_handle_includes_parts_that_are_sent_later(server: BatchServer, store: Path) -> None:
    """A part without an acknowledgement is an error, and becomes a result after it is sent."""
    requests = requests_of("openai", "one")
    async with engine_at(server.url, store) as engine:
        server.fail("drop create")
        with pytest.raises(OutcomeUnknownError):
            await engine.create_batch(requests, batch_id="later")
        batch = await engine.resume_batch("later", polling=OFTEN, settle_seconds=0.0)
        assert isinstance((await batch.wait())[0].error, OutcomeUnknownError)
        assert await engine.create_batch(requests, batch_id="later", settle_seconds=0.0) is batch
        assert (await batch.wait())[0].text == "answer to one"
    assert len(jobs_of(server, "later")) == 1


def two_in_each_job(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = lambda _, items: tuple(min(2, len(items) - n) for n in range(0, len(items), 2))  # noqa: E731
    monkeypatch.setattr(HttpBatches, "limits", BatchLimits(max_requests=2, max_bytes=10**6))
    monkeypatch.setattr(HttpBatches, "split", parts)


@WIRES
async def test_a_lost_part_is_distinguished_from_the_known_parts(
    tmp_path: Path, store: Path, monkeypatch: pytest.MonkeyPatch, wire: str
) -> None:
    """The lost part is found even if jobs have no mark and all jobs of a batch have the same size."""
    monkeypatch.setattr(jobs, "_LOOKS", 0)
    two_in_each_job(monkeypatch)
    texts = ["one", "two", "three", "four"]
    requests = requests_of(wire, *texts)
    with batch_server(tmp_path) as server:  # Only this test has jobs at that server.
        for _ in range(2):  # The first part is lost. When it has been found, the second part is lost.
            async with engine_at(server.url, store) as engine:
                server.fail("lose create")
                with pytest.raises(OutcomeUnknownError, match="connection"):
                    await engine.create_batch(requests, batch_id="parts", settle_seconds=0.0)
        async with engine_at(server.url, store) as engine:
            batch = await engine.create_batch(requests, batch_id="parts", settle_seconds=0.0, polling=OFTEN)
            assert [each.text for each in await batch.wait()] == [f"answer to {text}" for text in texts]
        assert billed(server, "parts") == [f"parts-{place}" for place in range(4)]


@WIRES
async def test_a_cancelled_batch_costs_its_completed_requests(server: BatchServer, store: Path, wire: str) -> None:
    """The other requests are errors that cost nothing."""
    async with engine_at(server.url, store) as engine:
        requests = requests_of(wire, "one", "half", "three")
        batch = await engine.create_batch(requests, batch_id=f"ended-{wire}", polling=OFTEN)
        assert await batch.cancel()
        results = await batch.wait()
        assert results.status == "cancelled"
        assert isinstance(results[2].error, CancelledError)
        assert results.cost.nano_usd == nano_of(wire, "one", "half")
        assert results.cost.complete
        assert not await batch.cancel()
        await engine.flush()
        (total,) = await engine.store.costs(CallFilter(operation="batch"), by=("operation",))
        assert (total.calls, total.unknown, total.unpriced) == (3, 0, 0)


async def test_a_failed_poll_is_repeated(server: BatchServer) -> None:
    """A lost connection says nothing about the batch."""
    async with engine_at(server.url) as engine:
        batch = await engine.create_batch(requests_of("anthropic", "one"), polling=OFTEN)
        server.fail("lose look", "lose look")
        seen: list[str] = []
        results = await batch.wait(on_progress=lambda progress: seen.append(progress.status))
        assert results[0].text == "answer to one"
        assert seen[-1] == "completed"


async def test_a_closed_engine_ends_the_wait_between_two_checks(server: BatchServer) -> None:
    """The error says how to resume the batch. The default checks are seconds apart."""
    async with engine_at(server.url) as engine:
        batch = await engine.create_batch(requests_of("openai", "one"), batch_id="waited-for")
        with engine.bus.subscribe("batch.progress") as events:
            waiting = asyncio.ensure_future(batch.wait())
            await anext(events)
    with pytest.raises(CancelledError, match=r"engine was closed, .*resume_batch\('waited-for'\)"):
        await waiting


async def test_a_budget_reserves_the_worst_case_until_results_count(server: BatchServer, store: Path) -> None:
    """A batch that does not fit is not sent. Another process has the same reservation."""
    requests = requests_of("openai", "one", "two")
    small, large = Budget(max_cost_usd="0.000001"), Budget(max_cost_usd="1")
    async with engine_at(server.url, store, [small]) as engine:
        with pytest.raises(BudgetExceededError):
            await engine.create_batch(requests, batch_id="too-dear")
        assert jobs_of(server, "too-dear") == []
    async with engine_at(server.url, store, [large]) as engine:
        await engine.create_batch(requests, batch_id="fits")
        (state,) = await engine.budgets()
        held = state.held.nano_usd
        assert held > nano_of("openai", "one", "two") // 2
    async with engine_at(server.url, store, [large]) as engine:
        (state,) = await engine.budgets()
        assert held in (state.held.nano_usd, state.unknown.nano_usd)
        batch = await engine.resume_batch("fits", polling=OFTEN)
        await batch.wait()
    async with engine_at(server.url, store, [large]) as engine:
        (state,) = await engine.budgets()
        assert (state.spent.nano_usd, state.unknown.nano_usd) == (nano_of("openai", "one", "two"), 0)
        batch = await engine.create_batch(requests_of("openai", "three"), batch_id="after", polling=OFTEN)
        await batch.wait()
        (state,) = await engine.budgets()
        assert (state.spent.nano_usd, state.held.nano_usd) == (nano_of("openai", "one", "two", "three"), 0)


async def test_failures_of_a_batch_do_not_change_the_providers_availability(server: BatchServer) -> None:
    """The provider stays available after twenty requests that expired."""
    async with engine_at(server.url) as engine:
        failures: list[LlmCallFailed] = []
        with engine.bus.subscribe("llm.call_failed") as events:
            batch = await engine.create_batch(requests_of("openai", *["late"] * 20), polling=OFTEN)
            results = await batch.wait()
            assert all(isinstance(each.error, RequestTimeoutError) for each in results)
            while len(failures) < 20:
                event = (await anext(events)).data
                failures.append(event)
        table = AvailabilityTable()
        for event in failures:
            table.observe(event, 0)
        assert table.state("openai", name_of("openai")) == "available"


async def test_events_report_a_batch_from_its_plan_to_its_end(server: BatchServer) -> None:
    async with engine_at(server.url) as engine:
        published: list[Envelope] = []
        with engine.bus.subscribe("batch.*") as events:
            batch = await engine.create_batch(requests_of("gemini", "one"), polling=OFTEN, tags={"job": "night"})
            await batch.wait()
            while len(published) < 7:
                published.append(await anext(events))
                if published[-1].topic == "batch.completed":
                    break
        topics = [envelope.topic for envelope in published]
        assert topics[:3] == ["batch.planned", "batch.submitting", "batch.submitted"]
        assert topics[-1] == "batch.completed"
        assert "batch.part_ended" in topics
        assert {envelope.tags["job"] for envelope in published if envelope.tags} == {"night"}


async def test_batches_are_listed_the_latest_first(server: BatchServer, store: Path) -> None:
    """Each batch has its last known state."""
    async with engine_at(server.url, store) as engine:
        await engine.create_batch(requests_of("openai", "one"), batch_id="first")
        batch = await engine.create_batch(requests_of("openai", "one"), batch_id="second", polling=OFTEN)
        await batch.wait()
        listed = await engine.batches()
        assert [(each.batch_id, each.completed) for each in listed] == [("second", True), ("first", False)]
        with pytest.raises(NotFoundError):
            await engine.resume_batch("third")


async def test_a_wrong_batch_is_refused_before_a_request(server: BatchServer) -> None:
    """The faults are: no requests, an invalid id, a repeated id, and two models."""
    before = len(server.books()["jobs"])
    one, two = requests_of("openai", "one", "two")
    wrong: list[tuple[list[Any], str | None, str]] = [
        ([], None, "no requests"),
        ([one], "a/b", "batch id"),
        ([one, one], None, "r0"),
        ([two, *requests_of("gemini", "one")], None, "one model"),
    ]
    async with engine_at(server.url) as engine:
        for requests, name, message in wrong:
            with pytest.raises(InvalidRequestError, match=message):
                await engine.create_batch(requests, batch_id=name)
        await engine.create_batch([one], model=name_of("openai"))
    assert len(server.books()["jobs"]) == before + 1


async def test_batches_are_stored_in_postgresql(server: BatchServer, postgres_dsn: str) -> None:
    """One engine creates the batch, and the next ones resume, count and list it."""
    async with engine_at(server.url, postgres_dsn) as engine:
        await engine.create_batch(requests_of("groq", "one", "two"), batch_id="on-server")
    for _ in range(2):
        async with engine_at(server.url, postgres_dsn) as engine:
            batch = await engine.resume_batch("on-server", polling=OFTEN)
            await batch.wait()
            rows = await rows_of(engine, "batch")
            assert (len(rows), sum_of(rows)) == (2, nano_of("groq", "one", "two"))
            (listed,) = await engine.batches()
            assert (listed.batch_id, listed.completed, listed.submissions[1].ended) == ("on-server", True, True)


async def test_two_engines_that_count_together_count_each_result_once(server: BatchServer, store: Path) -> None:
    """The trace and both budgets are exact to the nano-dollar, and nothing stays reserved."""
    budget = Budget(max_cost_usd="1")
    texts = ["one", "fail", *(f"two {place}" for place in range(20))]
    paid = nano_of("openai", *[text for text in texts if text != "fail"])
    async with engine_at(server.url, store, [budget]) as first:
        batch = await first.create_batch(requests_of("openai", *texts), batch_id="both", polling=OFTEN)
        await first.flush()
        async with engine_at(server.url, store, [budget]) as second:
            (before,) = await second.budgets()
            assert before.unknown.money > 0
            other = await second.resume_batch("both", polling=OFTEN)
            results = await asyncio.gather(batch.wait(), other.wait())
            assert [each.cost.nano_usd for each in results] == [paid, paid]
            rows = await rows_of(second, "batch")
            assert len(rows) == len(texts)
            assert sum_of(rows) == paid
            for engine in (first, second):
                (state,) = await engine.budgets()
                assert (state.spent.money, state.held.money, state.unknown.money) == (paid, 0, 0)
