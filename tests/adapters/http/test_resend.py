"""A request is sent again only if the first one may not have arrived. Observers are notified.

The tests cover every protocol and every kind of request, over real sockets on both event loops.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

import anyio
import pytest

from callboard.adapters import (
    AdapterConfig,
    AttemptObserver,
    AttemptReport,
    AttemptResent,
    AttemptStarted,
    RetryPolicy,
    create_adapter,
)
from callboard.bus.errors import AdapterError, InvalidRequestError, NetworkError, OutcomeUnknownError

from ...support.fake_http import request
from ...support.scripted_server import Connection, Script, serving
from ...support.virtual_time import runs_on
from ..operations.making import MODELS, embedding_request, image_request, video_request

pytestmark = pytest.mark.anyio
anyio_backend = runs_on("asyncio")

Ask = Callable[[object, str, AttemptObserver], Awaitable[object]]


async def whole(adapter: object, model: str, on_attempt: AttemptObserver) -> None:
    await adapter.complete(request(model=f"x:{model}"), on_attempt=on_attempt)  # type: ignore[attr-defined]


async def streamed(adapter: object, model: str, on_attempt: AttemptObserver) -> None:
    stream = adapter.stream(request(model=f"x:{model}"), on_attempt=on_attempt)  # type: ignore[attr-defined]
    async with stream:
        async for _ in stream:
            pass


async def embedded(adapter: object, model: str, on_attempt: AttemptObserver) -> None:
    kind = next(kind for kind, name in MODELS.items() if name == model)
    await adapter.embed(embedding_request(kind, "hello"), on_attempt=on_attempt)  # type: ignore[attr-defined]


async def pictured(adapter: object, model: str, on_attempt: AttemptObserver) -> None:
    await adapter.make_images(image_request(f"x:{model}"), on_attempt=on_attempt)  # type: ignore[attr-defined]


async def filmed(adapter: object, model: str, on_attempt: AttemptObserver) -> None:
    await adapter.create_video(video_request(f"x:{model}"), on_attempt=on_attempt)  # type: ignore[attr-defined]


TALKERS = {
    "anthropic": "claude-sonnet-4-5", "openai": "gpt-5", "openai_compatible": "m", "gemini": "gemini-2.5-flash",
    "ollama": "m", "tgi": "m",
}  # fmt: skip

KINDS: Mapping[str, tuple[str, str, Ask]] = {
    **{f"{kind} whole": (kind, model, whole) for kind, model in TALKERS.items()},
    **{f"{kind} streamed": (kind, model, streamed) for kind, model in TALKERS.items()},
    **{f"{kind} embeddings": (kind, model, embedded) for kind, model in MODELS.items()},
}
ONCE: Mapping[str, tuple[str, str, Ask]] = {
    "openai image": ("openai", "gpt-image-1", pictured),
    "gemini image": ("gemini", "gemini-2.5-flash-image", pictured),
    "openai video": ("openai", "sora-2", filmed),
    "gemini video": ("gemini", "veo-3.0-generate-001", filmed),
}

REFUSAL = b'{"error":{"type":"invalid_request_error","message":"no"}}'


async def refuse(connection: Connection, headers: bytes = b"") -> None:
    head = b"HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\n" + headers
    await connection.send(head + b"content-length: %d\r\n\r\n" % len(REFUSAL) + REFUSAL)


def is_counted(connection: Connection) -> bool:
    """Whether a request counts. Questions to Ollama about a model, and searches for a lost job, do not count."""
    head = connection.server.requests[-1][1]
    return head.startswith(b"POST ") and b" /api/show " not in head


async def asked(url: str, kind: tuple[str, str, Ask], times: int) -> tuple[list[AttemptReport], AdapterError]:
    """Send this number of requests. Returns the reports of the last one's attempts, and its result."""
    name, model, ask = kind
    base = url.removesuffix("/v1/talk")
    looks_soon = RetryPolicy(base_delay=0.01)
    config = AdapterConfig(api_key="a-key", base_url=base, max_retries=0, retry=looks_soon)
    adapter = create_adapter(name, config, name=name)
    raised: AdapterError | None = None
    reports: list[AttemptReport] = []
    try:
        for _ in range(times):
            reports.clear()
            try:
                await ask(adapter, model, reports.append)
            except AdapterError as error:
                raised = error
    finally:
        await adapter.close()
    assert raised is not None
    return reports, raised


@pytest.mark.parametrize("kind", [*KINDS, *ONCE])
async def test_a_server_that_drops_a_new_connection_sees_one_request(kind: str) -> None:
    """Without retries, the call then fails."""
    sent: list[int] = []

    async def script(connection: Connection) -> None:
        await connection.request()
        if not is_counted(connection):
            await refuse(connection, b"connection: close\r\n")
        else:
            sent.append(connection.number)
        raise anyio.EndOfStream

    async with serving(script) as server:
        reports, error = await asked(server.url, {**KINDS, **ONCE}[kind], 1)
    assert isinstance(error, OutcomeUnknownError if kind in ONCE else NetworkError)
    assert [type(report) for report in reports] == [AttemptStarted]
    assert len(sent) == 1


def drops_the_second(sent: list[int]) -> Script:
    """A script that drops the second counted request and refuses the others. It records their connections."""

    async def script(connection: Connection) -> None:
        await connection.request()
        if is_counted(connection):
            sent.append(connection.number)
            if len(sent) == 2:
                raise anyio.EndOfStream
        await refuse(connection)

    return script


@pytest.mark.parametrize("kind", KINDS)
async def test_a_dropped_idle_connection_is_replaced_once_and_reported(kind: str) -> None:
    """The request is sent again over another connection within the same attempt."""
    sent: list[int] = []
    async with serving(drops_the_second(sent)) as server:
        reports, error = await asked(server.url, KINDS[kind], 2)
    assert isinstance(error, InvalidRequestError)
    assert [type(report) for report in reports] == [AttemptStarted, AttemptResent]
    assert sent == [0, 0, 1]
