"""Batches of texts to embed, and the attempts, time limits and cancelling of every operation."""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Awaitable, Callable
from pathlib import Path

import anyio
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from callboard.adapters import (
    AdapterConfig,
    AdapterError,
    AttemptFailed,
    AttemptObserver,
    AttemptReport,
    AttemptStarted,
    AuthError,
    CancelledError,
    ContextOverflowError,
    InvalidRequestError,
    ServerError,
    TokenUsage,
    create_adapter,
)
from callboard.adapters.cassettes import CassetteTransport, RecordingTransport
from callboard.adapters.config import RetryPolicy
from callboard.adapters.conformance.http_kit import HANG, FakeReply, FakeTransport, failing
from callboard.adapters.contract import AttemptFirstEvent
from callboard.adapters.embeddings import (
    SHARE_OF_TOKENS,
    EmbeddingCapabilities,
    EmbeddingRequest,
    EmbeddingResponse,
    PartialEmbeddingError,
    embed_all,
    plan_batches,
)
from callboard.adapters.http.adapter import HttpAdapter
from callboard.bus.errors import CapabilityError, NetworkError, OutcomeUnknownError, RequestTimeoutError

from ...support import fake_http
from ...support.batch_wires import items_of, request_of
from ...support.virtual_time import on_both
from .making import MODELS, answer, embedding_request, image_request, maker, video_request
from .making import embedding_request as request

pytestmark = pytest.mark.anyio

Fault = Callable[[tuple[str, ...]], AdapterError | None]


class Embedder:
    """A provider that embeds a text as its number, at most ten texts per request."""

    name = "toy"

    def __init__(
        self, fault: Fault = lambda texts: None, *, pause: Callable[[int], float] = lambda _: 1.0
    ) -> None:
        self.asked: list[tuple[str, ...]] = []
        self.at_once = 0
        self.most_at_once = 0
        self._fault = fault
        self._pause = pause

    async def embed(
        self, request: EmbeddingRequest, *, on_attempt: AttemptObserver | None = None
    ) -> EmbeddingResponse:
        self.asked.append(request.inputs)
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            await anyio.sleep(self._pause(len(self.asked)))
        finally:
            self.at_once -= 1
        if (error := self._fault(request.inputs)) is not None:
            raise error
        return EmbeddingResponse(
            request_id=request.request_id,
            model="toy:m",
            provider="toy",
            vectors=tuple(array("f", [float(text)]) for text in request.inputs),
            usage=TokenUsage(len(request.inputs)),
        )

    def get_embedding_capabilities(self, model: str) -> EmbeddingCapabilities:
        return EmbeddingCapabilities(max_inputs=10)

    def estimate_text_tokens(self, text: str, *, model: str | None = None) -> int:
        return 1

    async def cancel(self, request_id: str) -> bool:
        return False

    async def close(self) -> None:
        pass


def asking(count: int) -> EmbeddingRequest:
    return EmbeddingRequest(request_id="req", model="toy:m", inputs=tuple(map(str, range(count))))


def numbers(vectors: tuple[array[float] | None, ...]) -> list[float | None]:
    return [None if vector is None else vector[0] for vector in vectors]


@given(st.lists(st.integers(0, 100), max_size=60), st.integers(1, 12), st.one_of(st.none(), st.integers(1, 300)))
def test_batches_are_all_texts_in_order_and_as_large_as_the_limits_allow(
    estimates: list[int], most: int, limit: int | None
) -> None:
    can = EmbeddingCapabilities(max_inputs=most, max_request_tokens=limit)
    batches = plan_batches(estimates, can)
    assert [at for batch in batches for at in batch] == list(range(len(estimates)))
    allowed = float("inf") if limit is None else limit * SHARE_OF_TOKENS
    for batch in batches:
        tokens = sum(estimates[at] for at in batch)
        assert 1 <= len(batch) <= most
        assert len(batch) == 1 or tokens <= allowed
    for batch, after in itertools.pairwise(batches):
        with_next = sum(estimates[at] for at in batch) + estimates[after.start]
        assert len(batch) == most or with_next > allowed, "it had room for one more"


async def test_vectors_come_in_the_order_of_the_texts_whichever_batch_ends_first() -> None:
    adapter = Embedder(pause=lambda n: 10.0 - n)
    response = await embed_all(adapter, asking(35), at_once=3)
    assert numbers(response.vectors) == [float(n) for n in range(35)]
    assert [len(texts) for texts in adapter.asked] == [10, 10, 10, 5]
    assert adapter.most_at_once == 3
    assert response.usage.input_tokens == 35
    assert response.request_id == "req"


async def test_a_failed_batch_only_loses_its_own_texts() -> None:
    """The error has the vectors and the usage of the others, and the reason by the text's index."""
    adapter = Embedder(lambda texts: ServerError("broken", provider="toy") if "12" in texts else None)
    with pytest.raises(
        PartialEmbeddingError, match=r"10 of 30 texts were not embedded \(number 10, 11, "
    ) as caught:
        await embed_all(adapter, asking(30))
    error = caught.value
    assert sorted(error.failures) == list(range(10, 20))
    assert numbers(error.vectors) == [*map(float, range(10)), *[None] * 10, *map(float, range(20, 30))]
    assert error.usage.input_tokens == 20
    assert error.retryable
    assert error.provider == "toy"
    assert len(adapter.asked) == 3, "the others were sent once"


@pytest.mark.parametrize("refusal", [
    ContextOverflowError("too long"),
    InvalidRequestError("400: Your batch has 300 tokens"),
    InvalidRequestError("at most 4 requests can be in one batch"),
    InvalidRequestError("too big", provider_status=413),
])  # fmt: skip
async def test_a_batch_that_is_too_large_is_halved_until_it_fits(refusal: AdapterError) -> None:
    """An unpublished limit costs a few requests and no text. A text that is too long by itself is found."""
    response = await embed_all(Embedder(lambda texts: refusal if len(texts) > 4 else None), asking(20))
    assert numbers(response.vectors) == [float(n) for n in range(20)]
    with pytest.raises(PartialEmbeddingError) as caught:
        await embed_all(Embedder(lambda texts: refusal if "13" in texts else None), asking(20))
    assert list(caught.value.failures) == [13]
    assert type(caught.value.failures[13]) is type(refusal)


async def test_an_error_that_affects_every_batch_stops_the_rest() -> None:
    """A bad key only fails the batches in progress, not every batch. If nothing was embedded, the first failure
    is raised. Another refusal is not taken for a matter of size.
    """
    for error, count, asked in (
        (AuthError("0"), 500, 2),
        (ServerError("0"), 30, 3),
        (InvalidRequestError("0"), 10, 1),
    ):
        adapter = Embedder(lambda texts, error=error: error)
        with pytest.raises(type(error), match="0"):
            await embed_all(adapter, asking(count), at_once=2)
        assert len(adapter.asked) == asked


async def test_vectors_of_different_lengths_are_never_mixed() -> None:
    class Changing(Embedder):
        async def embed(
            self, request: EmbeddingRequest, *, on_attempt: AttemptObserver | None = None
        ) -> EmbeddingResponse:
            response = await super().embed(request)
            if "15" in request.inputs:
                longer = tuple(array("f", [0.0, 1.0]) for _ in request.inputs)
                return EmbeddingResponse(
                    request_id="r", model="toy:m", provider="toy", vectors=longer, usage=response.usage
                )
            return response

    with pytest.raises(PartialEmbeddingError, match="2 dimensions, but 1 for"):
        await embed_all(Changing(), asking(20), at_once=1)


@on_both
async def test_cancelling_ends_all_batches() -> None:
    adapter = Embedder(pause=lambda _: 100.0)
    with anyio.move_on_after(1.0):
        await embed_all(adapter, asking(100))
    assert adapter.at_once == 0
    assert len(adapter.asked) == 4


async def test_a_failure_that_passes_is_tried_again_and_reported() -> None:
    adapter, transport = maker("openai", failing(503), NetworkError("lost"), answer("openai", [[1.0], [2.0]]))
    reports: list[AttemptReport] = []
    response = await adapter.embed(request("openai"), on_attempt=reports.append)
    assert len(response.vectors) == 2
    kinds = [AttemptStarted, AttemptFailed, AttemptStarted, AttemptFailed, AttemptStarted, AttemptFirstEvent]
    assert [type(report) for report in reports] == kinds
    reasons = [report.reason for report in reports if isinstance(report, AttemptStarted)]
    assert reasons == ["first", "retry", "retry"]
    assert transport.all_closed


async def test_a_request_s_own_patience_goes_before_the_configuration_s() -> None:
    adapter, transport = maker("openai", failing(503), answer("openai", [[1.0], [2.0]]))
    with pytest.raises(ServerError):
        await adapter.embed(request("openai", max_retries=0))
    assert len(transport.requests) == 1
    slow = RetryPolicy(base_delay=40.0, jitter=False)
    adapter, _ = maker("openai", failing(503), answer("openai", [[1.0], [2.0]]))
    before = anyio.current_time()
    await adapter.embed(request("openai", retry=slow))
    assert anyio.current_time() - before == 40.0


@pytest.mark.parametrize("kind", ["voyage", "cohere", "bedrock"])
async def test_a_provider_that_only_embeds_refuses_a_chat(kind: str) -> None:
    adapter, transport = maker(kind)
    asked = fake_http.request(model=f"{kind}:m")
    with pytest.raises(CapabilityError, match=r"embeds texts and has no conversations\. Use `engine\.embed"):
        await adapter.complete(asked)
    with pytest.raises(CapabilityError, match="has no conversations"):
        async with adapter.stream(asked) as stream:
            [event async for event in stream]
    assert transport.requests == []


async def test_bedrock_has_no_health_request() -> None:
    """Every request to Bedrock costs money. Only a missing key can be reported."""
    adapter, transport = maker("bedrock")
    assert await adapter.health_check()
    keyless, _ = maker("bedrock", api_key=None)
    assert not await keyless.health_check()
    assert transport.requests == []


async def test_an_embedding_is_recorded_and_played_back(tmp_path: Path) -> None:
    """A cassette works with any content. The key is not in the file."""
    path = tmp_path / "cassette.json"
    recording = RecordingTransport(FakeTransport(answer("voyage", [[0.25], [0.5]])), path)
    adapter = create_adapter("voyage", AdapterConfig(api_key="a-secret-key"), name="voyage", transport=recording)
    assert isinstance(adapter, HttpAdapter)
    first = await adapter.embed(request("voyage"))
    await adapter.close()
    assert "a-secret-key" not in path.read_text()
    adapter = create_adapter("voyage", AdapterConfig(), name="voyage", transport=CassetteTransport(path))
    assert isinstance(adapter, HttpAdapter)
    again = await adapter.embed(request("voyage"))
    assert (again.vectors, again.usage) == (first.vectors, first.usage)


# -- Attempts, time limits and cancelling are the same for each operation as for every other call over HTTP.


Ask = Callable[[HttpAdapter, float | None], Awaitable[object]]


def embedding(kind: str) -> Ask:
    return lambda adapter, timeout: adapter.embed(embedding_request(kind, "hello", timeout_seconds=timeout))


def image(model: str) -> Ask:
    return lambda adapter, timeout: adapter.make_images(image_request(model, timeout_seconds=timeout))


def video(model: str) -> Ask:
    return lambda adapter, timeout: adapter.create_video(video_request(model, timeout_seconds=timeout))


def batch(kind: str) -> Ask:
    asked = request_of(kind, items_of(kind, "hello"))

    def ask(adapter: HttpAdapter, timeout: float | None) -> Awaitable[object]:
        return adapter.create_batch(msgspec.structs.replace(asked, request_id="req_1", timeout_seconds=timeout))

    return ask


OPERATIONS: dict[str, Ask] = {
    **{f"{kind} embedding": embedding(kind) for kind in MODELS},
    "openai image": image("openai:gpt-image-2"),
    "gemini image": image("gemini:gemini-2.5-flash-image"),
    "openai video": video("openai:sora-2"),
    "gemini video": video("gemini:veo-3.1-generate-preview"),
    **{f"{kind} batch": batch(kind) for kind in ("anthropic", "openai", "gemini")},
}
"""The operations by the type of the adapter and the operation."""

each_operation = pytest.mark.parametrize("operation", OPERATIONS)


def at(operation: str, *replies: FakeReply) -> tuple[HttpAdapter, FakeTransport, Ask]:
    adapter, transport = maker(operation.partition(" ")[0], *replies)
    return adapter, transport, OPERATIONS[operation]


@each_operation
async def test_a_refused_key_is_final_and_never_shown_and_a_request_has_a_time_limit(operation: str) -> None:
    """A request that costs money may have been processed when its time is over."""
    adapter, transport, ask = at(operation, failing(401, b'{"message": "bad key a-secret-key"}'))
    with pytest.raises(AuthError) as refused:
        await ask(adapter, None)
    assert len(transport.requests) == 1
    assert "a-secret-key" not in str(refused.value) + refused.value.provider_message
    adapter, transport, ask = at(operation, FakeReply(HANG))
    began = anyio.current_time()
    with pytest.raises((RequestTimeoutError, OutcomeUnknownError), match="longer than 5 s") as caught:
        await ask(adapter, 5.0)
    assert isinstance(caught.value, OutcomeUnknownError) is transport.requests[-1].once
    assert anyio.current_time() - began <= 6.0
    assert transport.all_closed


@each_operation
@on_both
async def test_a_request_is_cancelled(operation: str) -> None:
    """By its id, or by closing the adapter."""
    for by_id in (True, False):
        adapter, transport, ask = at(operation, FakeReply(HANG))

        async def cancelled(adapter: HttpAdapter = adapter, ask: Ask = ask) -> None:
            with pytest.raises(CancelledError):
                await ask(adapter, None)

        async with anyio.create_task_group() as group:
            group.start_soon(cancelled)
            await anyio.wait_all_tasks_blocked()
            with pytest.raises(InvalidRequestError, match="already running"):
                await ask(adapter, None)
            await (adapter.cancel("req_1") if by_id else adapter.close())
        assert not await adapter.cancel("req_1")
        assert transport.all_closed
