"""Attempts, time limits and cancelling of embeddings are those of every other call over HTTP."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest

from callboard.adapters import (
    AdapterConfig,
    AttemptFailed,
    AttemptReport,
    AttemptStarted,
    AuthError,
    CancelledError,
    ServerError,
    create_adapter,
)
from callboard.adapters.cassettes.cassette import CassetteTransport, RecordingTransport
from callboard.adapters.config import RetryPolicy
from callboard.adapters.conformance.fake_http import HANG, FakeReply, FakeTransport, failing
from callboard.adapters.contract import AttemptFirstEvent
from callboard.adapters.http.adapter import HttpAdapter
from callboard.bus.errors import CapabilityError, InvalidRequestError, NetworkError, RequestTimeoutError

from ...support import fake_http
from .wires import answer, embedder, request

pytestmark = pytest.mark.anyio


async def test_a_failure_that_passes_is_tried_again_and_reported() -> None:
    adapter, transport = embedder("openai", failing(503), NetworkError("lost"), answer("openai", [[1.0], [2.0]]))
    reports: list[AttemptReport] = []
    response = await adapter.embed(request("openai"), on_attempt=reports.append)
    assert len(response.vectors) == 2
    assert [type(report) for report in reports] == [
        *(AttemptStarted, AttemptFailed, AttemptStarted, AttemptFailed),
        *(AttemptStarted, AttemptFirstEvent),
    ]
    assert [report.reason for report in reports if isinstance(report, AttemptStarted)] == [
        "first",
        "retry",
        "retry",
    ]
    assert transport.all_closed


async def test_a_request_s_own_patience_goes_before_the_configuration_s() -> None:
    adapter, transport = embedder("openai", failing(503), answer("openai", [[1.0], [2.0]]))
    with pytest.raises(ServerError):
        await adapter.embed(request("openai", max_retries=0))
    assert len(transport.requests) == 1
    slow = RetryPolicy(base_delay=40.0, jitter=False)
    adapter, _ = embedder("openai", failing(503), answer("openai", [[1.0], [2.0]]))
    before = anyio.current_time()
    await adapter.embed(request("openai", retry=slow))
    assert anyio.current_time() - before == 40.0


async def test_a_refused_key_is_final_and_never_shown() -> None:
    adapter, transport = embedder("cohere", failing(401, b'{"message": "bad key a-secret-key"}'))
    with pytest.raises(AuthError) as caught:
        await adapter.embed(request("cohere"))
    assert len(transport.requests) == 1
    assert "a-secret-key" not in str(caught.value) + caught.value.provider_message


async def test_the_time_of_a_request_is_bounded() -> None:
    adapter, transport = embedder("voyage", FakeReply(HANG))
    with pytest.raises(RequestTimeoutError, match="longer than 5 s"):
        await adapter.embed(request("voyage", timeout_seconds=5.0))
    assert anyio.current_time() <= 6.0
    assert transport.all_closed


async def test_a_request_is_cancelled_by_its_id() -> None:
    adapter, transport = embedder("gemini", FakeReply(HANG))

    async with anyio.create_task_group() as group:

        async def embed() -> None:
            with pytest.raises(CancelledError):
                await adapter.embed(request("gemini"))

        group.start_soon(embed)
        await anyio.wait_all_tasks_blocked()
        assert await adapter.cancel("req_1")
    assert not await adapter.cancel("req_1")
    assert transport.all_closed


async def test_closing_ends_what_runs() -> None:
    adapter, transport = embedder("ollama", FakeReply(HANG))

    async with anyio.create_task_group() as group:

        async def embed() -> None:
            with pytest.raises(CancelledError):
                await adapter.embed(request("ollama"))

        group.start_soon(embed)
        await anyio.wait_all_tasks_blocked()
        await adapter.close()
    assert transport.closed


async def test_an_id_that_is_in_use_is_refused() -> None:
    adapter, _ = embedder("openai", FakeReply(HANG))
    async with anyio.create_task_group() as group:
        group.start_soon(_cancelled, adapter.embed, request("openai"))
        await anyio.wait_all_tasks_blocked()
        with pytest.raises(InvalidRequestError, match="already running"):
            await adapter.embed(request("openai"))
        await adapter.close()


async def _cancelled(embed: object, asked: object) -> None:
    with pytest.raises(CancelledError):
        await embed(asked)  # type: ignore[operator]


@pytest.mark.parametrize("kind", ["voyage", "cohere", "bedrock"])
async def test_a_provider_that_only_embeds_says_so_to_who_wants_to_talk(kind: str) -> None:
    adapter, transport = embedder(kind)
    asked = fake_http.request(model=f"{kind}:m")
    with pytest.raises(CapabilityError, match=r"embeds texts and holds no conversations: use `engine\.embed"):
        await adapter.complete(asked)
    with pytest.raises(CapabilityError, match="holds no conversations"):
        async with adapter.stream(asked) as stream:
            [event async for event in stream]
    assert transport.requests == []


async def test_bedrock_is_not_asked_how_it_does() -> None:
    """There is no request that costs nothing; only a missing key can be told."""
    adapter, transport = embedder("bedrock")
    assert await adapter.health_check()
    keyless, _ = embedder("bedrock", api_key=None)
    assert not await keyless.health_check()
    assert transport.requests == []


async def test_an_embedding_is_recorded_and_played_back(tmp_path: Path) -> None:
    """A cassette knows nothing of what it holds; the key isn't in it."""
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
