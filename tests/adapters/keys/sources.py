"""A vault that returns one key after the other, and a provider that accepts only some of them."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from typing import Protocol

import anyio

from callboard.adapters import AdapterConfig, create_adapter
from callboard.adapters.conformance.http_kit import FakeReply
from callboard.adapters.http.adapter import HttpAdapter
from callboard.adapters.transport.transport import HttpReply, HttpRequest
from callboard.adapters.videos import VideoTerms
from callboard.bus.clock import Clock

from ...support.fake_http import request
from ...support.virtual_time import FakeClock
from ..http.test_wrong_addresses import TALKERS
from ..operations.making import MODELS, embedding_request, image_request, video_request

OLD, NEW = "sk-the-old-key-0123456789", "sk-the-new-key-0123456789"


class Vault:
    """A vault that returns its keys in order, and the last one always. A call waits, but `at_once` does not."""

    def __init__(self, *keys: str) -> None:
        self.keys = list(keys)
        self.asked = 0

    async def __call__(self) -> str:
        self.asked += 1
        await anyio.sleep(0.01)
        return self.at_once()

    def at_once(self) -> str:
        """The next key."""
        return self.keys.pop(0) if len(self.keys) > 1 else self.keys[0]


class Gate:
    """A network whose provider replies 401 to all keys but some, and 400 to those."""

    def __init__(self, *taken: str, status: int = 400, statuses: Mapping[str, int] = {}) -> None:
        self.taken = set(taken)
        self.status = status
        self.statuses = dict(statuses)
        self.sent: list[str] = []

    async def send(self, request: HttpRequest) -> HttpReply:
        await anyio.sleep(0.01)
        if request.url.endswith("/api/show"):  # a request that is not part of the calls
            return FakeReply(b"{}", status=404)
        words = {word for value in request.headers.values() for word in value.split()}
        key = next((word for word in words if word.startswith("sk-")), "")
        self.sent.append(key)
        status = self.statuses.get(key, self.status if key in self.taken else 401)
        body = b'{"error": {"message": "it is %d for %s"}}' % (status, key.encode())
        return FakeReply(body, status=status, headers={"content-type": "application/json"})

    async def aclose(self) -> None:
        """Do nothing, because nothing is open."""


def adapter_of(kind: str, gate: Gate, clock: Clock | None = None, **config: object) -> HttpAdapter:
    """An adapter of the given type with a gate as its network."""
    settings = AdapterConfig(**{"base_url": "https://x.test", "max_retries": 0, **config})  # type: ignore[arg-type]
    adapter = create_adapter(kind, settings, name="mine", clock=clock or FakeClock(), transport=gate)
    assert isinstance(adapter, HttpAdapter)
    return adapter


class Ask(Protocol):
    """A way to send a request through an adapter."""

    def __call__(self, adapter: HttpAdapter, key: str | None = None, /) -> Awaitable[object]:
        """Send a request."""
        ...


async def _whole(adapter: HttpAdapter, key: str | None = None) -> object:
    return await adapter.complete(request(model="mine:m", key=key))


async def _stream(adapter: HttpAdapter, key: str | None = None) -> None:
    async with adapter.stream(request(model="mine:m", key=key)) as stream:
        async for _ in stream:
            pass


def _embedding(kind: str, model: str) -> Ask:
    return lambda adapter, key=None: adapter.embed(
        embedding_request(kind, "hello", model=f"mine:{model}", key=key)
    )


def _rows() -> Mapping[str, tuple[str, Ask]]:
    """Each way to send a key, by a readable name: the type of the adapter and the function that sends a
    request.
    """
    rows: dict[str, tuple[str, Ask]] = {}
    for kind in TALKERS:
        rows[f"{kind} whole"] = kind, _whole
        rows[f"{kind} streamed"] = kind, _stream
    for kind, model in MODELS.items():
        rows[f"{kind} embeddings"] = kind, _embedding(kind, model)
    for kind, image, video in (
        ("openai", "gpt-image-1", "sora-2"),
        ("gemini", "gemini-2.5-flash-image", "veo-3.1-generate-preview"),
    ):
        rows |= _media(kind, f"mine:{image}", f"mine:{video}")
    return rows


def _media(kind: str, image: str, video: str) -> Mapping[str, tuple[str, Ask]]:
    def draw(adapter: HttpAdapter, key: str | None = None) -> Awaitable[object]:
        return adapter.make_images(image_request(image, key=key))

    def film(adapter: HttpAdapter, key: str | None = None) -> Awaitable[object]:
        return adapter.create_video(video_request(video, key=key))

    def look(adapter: HttpAdapter, key: str | None = None) -> Awaitable[object]:
        return adapter.retrieve_video("job_1", model=video, terms=VideoTerms(key=key))

    return {f"{kind} images": (kind, draw), f"{kind} videos": (kind, film), f"{kind} job": (kind, look)}


ROWS = _rows()
