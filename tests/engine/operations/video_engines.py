"""Engines that make videos at a server on real sockets with faults."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from callboard.adapters import AdapterConfig, RetryPolicy
from callboard.adapters.videos import PollPolicy
from callboard.engine import AdapterEntry, Engine, ModelRegistry, VideoHandle
from callboard.tracestore import PriceRow, PriceTable
from tests.support.engines import entry, model, serving
from tests.support.media_server import MediaServer

QUICKLY = RetryPolicy(base_delay=0.001, jitter=False)

OFTEN = PollPolicy(first=0.001, longest=0.002, jitter=False, give_up_after=5.0)

PRICES = PriceTable(
    [
        PriceRow(model="openai:sora-2", extra={"video_second": 10**11}),
        PriceRow(model="gemini:veo-3.1-generate-preview", extra={"video_second": 4 * 10**11}),
    ]
)

SORA, VEO = "openai:sora-2", "gemini:veo-3.1-generate-preview"


def registry(url: str, **others: str) -> ModelRegistry:
    """A registry with both providers at this address, and other adapters of OpenAI's protocol at their own
    addresses.
    """
    adapters: dict[str, AdapterEntry | str] = {}
    for name in ("openai", "gemini", *others):
        config = AdapterConfig(
            options={"download_hosts": ["127.0.0.1"]},
            api_key="a-secret-key",
            base_url=others.get(name, url),
            retry=QUICKLY,
            stream_read_timeout=5.0,
        )
        kind = name if name in ("openai", "gemini") else "openai"
        adapters[name] = entry(name, kind, config)
    names = [SORA, VEO, *(f"{name}:sora-2" for name in others)]
    return serving(*[model(name, kind="video") for name in names], **adapters)


@asynccontextmanager
async def engine_at(server: MediaServer, store: Path | None = None, **others: str) -> AsyncIterator[Engine]:
    models = registry(server.url, **others)
    engine = Engine(models=models, store=store, trace=store is not None, prices=PRICES)
    async with engine:
        yield engine


async def a_video(engine: Engine, model: str = SORA) -> VideoHandle:
    return await engine.create_video("A red boat.", model=model, seconds=8, polling=OFTEN)


@asynccontextmanager
async def filming(
    server: MediaServer, store: Path | None = None, *, model: str = SORA, finished: bool = False
) -> AsyncIterator[tuple[Engine, VideoHandle]]:
    """An engine, and a video that was started there. With `finished`, the video is complete."""
    async with engine_at(server, store) as engine:
        handle = await a_video(engine, model)
        if finished:
            await handle.wait()
        yield engine, handle
