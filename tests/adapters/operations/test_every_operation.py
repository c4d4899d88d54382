"""Attempts, time limits and cancelling are those of every other call over HTTP, for each operation alike."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import anyio
import msgspec
import pytest

from callboard.adapters import AuthError, CancelledError
from callboard.adapters.conformance.http_kit import HANG, FakeReply, FakeTransport, failing
from callboard.adapters.http.adapter import HttpAdapter
from callboard.bus.errors import InvalidRequestError, OutcomeUnknownError, RequestTimeoutError
from tests.support.batch_wires import items_of, request_of

from ...support.virtual_time import on_both
from .making import MODELS, embedding_request, image_request, maker, video_request

pytestmark = pytest.mark.anyio

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
"""By the type of the adapter and the operation."""

each_operation = pytest.mark.parametrize("operation", OPERATIONS)


def at(operation: str, *replies: FakeReply) -> tuple[HttpAdapter, FakeTransport, Ask]:
    adapter, transport = maker(operation.partition(" ")[0], *replies)
    return adapter, transport, OPERATIONS[operation]


@each_operation
async def test_a_refused_key_is_final_and_never_shown(operation: str) -> None:
    adapter, transport, ask = at(operation, failing(401, b'{"message": "bad key a-secret-key"}'))
    with pytest.raises(AuthError) as caught:
        await ask(adapter, None)
    assert len(transport.requests) == 1
    assert "a-secret-key" not in str(caught.value) + caught.value.provider_message


@each_operation
async def test_the_time_of_a_request_is_bounded(operation: str) -> None:
    """A request that costs money may have been carried out when its time is over."""
    adapter, transport, ask = at(operation, FakeReply(HANG))
    began = anyio.current_time()
    with pytest.raises((RequestTimeoutError, OutcomeUnknownError), match="longer than 5 s") as caught:
        await ask(adapter, 5.0)
    assert isinstance(caught.value, OutcomeUnknownError) is transport.requests[-1].once
    assert anyio.current_time() - began <= 6.0
    assert transport.all_closed


@each_operation
@pytest.mark.parametrize("way", ["by its id", "by closing the adapter"])
@on_both
async def test_a_request_is_cancelled(operation: str, way: str) -> None:
    adapter, transport, ask = at(operation, FakeReply(HANG))

    async def cancelled() -> None:
        with pytest.raises(CancelledError):
            await ask(adapter, None)

    async with anyio.create_task_group() as group:
        group.start_soon(cancelled)
        await anyio.wait_all_tasks_blocked()
        with pytest.raises(InvalidRequestError, match="already running"):
            await ask(adapter, None)
        if way == "by its id":
            assert await adapter.cancel("req_1")
        else:
            await adapter.close()
    assert not await adapter.cancel("req_1")
    assert transport.all_closed
