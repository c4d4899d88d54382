"""Each wire of batches at a server with records, with each end of a job and of its requests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from callboard.adapters import AdapterError, CanonicalResponse
from callboard.adapters.batches import BatchItem, BatchLimits, BatchOutcome, BatchStatus, split_by_size
from callboard.adapters.http.adapter import HttpAdapter
from callboard.adapters.operations.batches import bare_request
from callboard.adapters.provider import create_adapter
from callboard.adapters.replies.usage import NOTHING_USED
from callboard.bus.errors import (
    CancelledError,
    CapabilityError,
    InvalidRequestError,
    OutcomeUnknownError,
    RequestTimeoutError,
    StreamError,
)
from tests.support.batch_server import BatchServer, batch_server, tokens_of
from tests.support.batch_wires import MODELS, adapter_at, ended, items_of, request_of

from ...support.virtual_time import runs_on

pytestmark = pytest.mark.anyio
anyio_backend = runs_on("asyncio")

WIRES = pytest.mark.parametrize("wire", MODELS)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BatchServer]:
    with batch_server(tmp_path_factory.mktemp("batches")) as running:
        yield running


async def outcomes(
    server: BatchServer, wire: str, *texts: str, faults: tuple[str, ...] = (), cancel: bool = False
) -> tuple[BatchStatus, tuple[BatchOutcome, ...]]:
    """Run one batch. Returns its end and its results."""
    server.fail(*faults)
    adapter = adapter_at(wire, server.url)
    try:
        items = items_of(wire, *texts)
        job = await adapter.create_batch(request_of(wire, items, mark=f"{wire} {texts} {faults}"))
        if cancel:
            assert await adapter.cancel_batch(job, model=MODELS[wire])
        job = await ended(adapter, job, MODELS[wire])
        return job.status, await adapter.read_batch(job, items)
    finally:
        await adapter.close()


def told(outcome: BatchOutcome) -> str:
    return outcome.text if isinstance(outcome, CanonicalResponse) else type(outcome).__name__


@WIRES
async def test_results_come_in_the_order_of_the_requests_and_with_their_ids(
    server: BatchServer, wire: str
) -> None:
    """If the wire has no order, the server returns the last request first."""
    status, results = await outcomes(server, wire, "one", "two", "three")
    assert status == "completed"
    assert [told(each) for each in results] == ["answer to one", "answer to two", "answer to three"]
    assert [each.request_id for each in results] == ["r0", "r1", "r2"]


@WIRES
async def test_usage_is_that_of_each_reply_at_the_tier_of_batches(server: BatchServer, wire: str) -> None:
    _, results = await outcomes(server, wire, "one", "a longer one")
    for result, text in zip(results, ("one", "a longer one"), strict=True):
        assert isinstance(result, CanonicalResponse)
        assert (result.usage.input_tokens, result.usage.output_tokens) == tokens_of(text)
        assert result.usage.service_tier == "batch"


@WIRES
async def test_failed_requests_have_their_own_errors_and_no_bill(server: BatchServer, wire: str) -> None:
    """The three cases are a refusal, an expired request, and a request without a result, whose bill is unknown."""
    _, results = await outcomes(server, wire, "one", "fail", "late", "nothing", "two")
    assert [type(each) for each in results] == [
        CanonicalResponse,
        InvalidRequestError,
        RequestTimeoutError,
        RequestTimeoutError if wire == "anthropic" else StreamError,
        CanonicalResponse,
    ]
    errors = [each for each in results if isinstance(each, AdapterError)]
    unknown = NOTHING_USED if wire == "anthropic" else None  # the job "expired" because one request did
    assert [each.usage for each in errors] == [NOTHING_USED, NOTHING_USED, unknown]


@WIRES
async def test_a_cancelled_job_has_the_results_of_completed_requests(server: BatchServer, wire: str) -> None:
    """All other requests have a cancelled error without a bill."""
    status, results = await outcomes(server, wire, "one", "half", "three", cancel=True)
    assert status == "cancelled"
    assert [told(each) for each in results] == ["answer to one", "answer to half", "CancelledError"]
    assert isinstance(results[2], CancelledError)
    assert results[2].usage is NOTHING_USED


@WIRES
async def test_an_expired_job_has_the_results_of_completed_requests(server: BatchServer, wire: str) -> None:
    """All other requests have an error about the time."""
    status, results = await outcomes(server, wire, "half", "two", faults=("expire job",))
    assert status == "expired"
    assert [told(each) for each in results] == ["answer to half", "RequestTimeoutError"]


@pytest.mark.parametrize("wire", [wire for wire in MODELS if wire != "anthropic"])
async def test_a_failed_job_fails_each_request(server: BatchServer, wire: str) -> None:
    """Anthropic's jobs have no such end."""
    status, results = await outcomes(server, wire, "one", "two", faults=("fail job",))
    assert status == "failed"
    assert all(isinstance(each, AdapterError) and each.usage is NOTHING_USED for each in results)


@WIRES
@pytest.mark.parametrize(
    "fault", ["break results", "cut results", "short results", "twice results", "busy create", "lose create"]
)
async def test_network_faults_change_no_result_and_create_no_second_job(
    server: BatchServer, wire: str, fault: str
) -> None:
    """Results break off or are repeated. A creation is refused at first, or its reply is lost."""
    before = len(server.books()["jobs"])
    padding = ["padding"] * (40 if fault == "lose create" else 1)  # a size that no other job has
    faults = () if wire == "gemini" and fault in ("cut results", "twice results") else (fault,)
    _, results = await outcomes(server, wire, "one", "two", "three", *padding, faults=faults)
    assert [told(each) for each in results[:3]] == ["answer to one", "answer to two", "answer to three"]
    assert len(server.books()["jobs"]) == before + 1


@pytest.mark.parametrize("wire", ["openai", "mistral", "groq"])
async def test_a_failed_upload_is_repeated(server: BatchServer, wire: str) -> None:
    """An additional file costs nothing. The job is created once."""
    before = len(server.books()["jobs"])
    _, results = await outcomes(server, wire, "one", faults=("lose upload",))
    assert told(results[0]) == "answer to one"
    assert len(server.books()["jobs"]) == before + 1


@WIRES
async def test_a_creation_without_a_result_is_unknown_and_not_repeated(server: BatchServer, wire: str) -> None:
    """The connection closed without a reply, and the list has no such job."""
    before = len(server.books()["jobs"])
    with pytest.raises(OutcomeUnknownError):
        await outcomes(server, wire, *["dropped"] * 9, faults=("drop create",))
    assert len(server.books()["jobs"]) == before


async def test_a_job_without_a_mark_is_not_chosen_from_two_candidates(server: BatchServer) -> None:
    """Another program created a batch of the same size at the same time, and Anthropic's batches have no mark."""
    with pytest.raises(OutcomeUnknownError, match="several"):
        await outcomes(server, "anthropic", *["seven"] * 7, faults=("foreign create", "lose create"))


async def test_results_of_other_requests_are_refused(server: BatchServer) -> None:
    """A job that was found by its size alone is confirmed by the ids in its results."""
    adapter = adapter_at("anthropic", server.url)
    items = items_of("anthropic", *["many"] * 25, batch="mine")
    theirs = items_of("anthropic", *["many"] * 25, batch="theirs")
    await adapter.create_batch(request_of("anthropic", theirs))
    other = adapter_at("anthropic", server.url)
    job = await other.find_batch(MODELS["anthropic"], "mark-1", 25, 0)
    assert job is not None
    assert not job.certain
    with pytest.raises(OutcomeUnknownError):
        await other.cancel_batch(job, model=MODELS["anthropic"])
    job = await ended(other, job, MODELS["anthropic"])
    with pytest.raises(OutcomeUnknownError, match="other requests"):
        await other.read_batch(job, items)
    await adapter.close()
    await other.close()


@WIRES
async def test_results_are_read_without_the_requests(server: BatchServer, wire: str) -> None:
    """Another process only has the ids."""
    adapter = adapter_at(wire, server.url)
    job = await adapter.create_batch(request_of(wire, items_of(wire, "one", "two"), mark=f"bare {wire}"))
    job = await ended(adapter, job, MODELS[wire])
    bare = [BatchItem(f"b-{place}", bare_request(f"x{place}", f"{wire}:{MODELS[wire]}")) for place in range(2)]
    assert [told(each) for each in await adapter.read_batch(job, bare)] == ["answer to one", "answer to two"]
    await adapter.close()


async def test_a_provider_without_batches_raises_an_error() -> None:
    """The error comes before any request."""
    adapter = adapter_at("openai", "http://127.0.0.1:9")
    compatible = create_adapter("openai_compatible", adapter.config, name="plain")
    assert isinstance(compatible, HttpAdapter)
    with pytest.raises(CapabilityError):
        compatible.get_batch_limits("m")
    await adapter.close()
    await compatible.close()


def test_batches_are_split_by_number_and_by_bytes() -> None:
    """The jobs keep the order and are as few as possible. A request that is too large for any job is refused."""
    limits = BatchLimits(max_requests=3, max_bytes=100)
    assert split_by_size([10] * 7, limits) == (3, 3, 1)
    assert split_by_size([60, 30, 60, 99, 1], limits) == (2, 1, 1, 1)
    assert split_by_size([], limits) == ()
    with pytest.raises(InvalidRequestError, match="bytes"):
        split_by_size([1, 100], limits)
