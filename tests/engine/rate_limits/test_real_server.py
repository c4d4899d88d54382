"""Rate limits with a server in a process of its own, which refuses excess requests."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator

import anyio
import pytest

from callboard.adapters import AdapterConfig, RetryPolicy
from callboard.bus import Lossless
from callboard.bus.events.calls import LlmCallFailed
from callboard.engine import Engine
from tests.support.reply_server import reply_server
from tests.support.virtual_time import runs_on

from ...support.engines import entry, serving

anyio_backend = runs_on("asyncio")


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with reply_server(deltas=20) as url:
        yield url


def engine_of(url: str, limit: str) -> Engine:
    config = AdapterConfig(
        api_key="k",
        base_url=url,
        extra_headers={"x-limit": limit},
        max_retries=12,
        retry=RetryPolicy(base_delay=0.01),
    )
    return Engine(models=serving(s=entry("s", "openai_compatible", config)), trace=False)


async def fifty(engine: Engine, *, streamed: bool = False) -> tuple[int, float]:
    """Make fifty concurrent calls. Return the number of refusals, and the duration in seconds."""
    events = engine.bus.subscribe("llm.call_failed", policy=Lossless(), name="refusals")

    async def call() -> None:
        if streamed:
            result = await engine.stream("s:m", "x").result()
        else:
            result = await engine.generate("s:m", "x")
        assert result.text

    start = time.monotonic()
    async with anyio.create_task_group() as group:
        for _ in range(50):
            group.start_soon(call)
    seconds = time.monotonic() - start
    failed = Counter(each.data.provider_status for each in events.take() if isinstance(each.data, LlmCallFailed))
    assert set(failed) <= {429}
    return failed[429], seconds


@pytest.mark.deep("real time windows")
@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
async def test_no_call_is_refused_after_the_limit_is_learned(url: str, streamed: bool) -> None:
    """With 10 requests in half a second, 50 concurrent calls take five windows."""
    async with engine_of(url, "10 500") as engine:
        await engine.generate("s:m", "x")
        refused, seconds = await fifty(engine, streamed=streamed)
        assert refused == 0
        assert seconds > 4 * 0.5 * 0.9
        assert seconds < 6
        (limit,) = engine.statistics().providers[0].rate_limits
        assert (limit.model, limit.kind, limit.source, limit.limit) == ("s:m", "requests", "learned", 10)


async def test_a_provider_without_headers_gets_few_excess_requests(url: str) -> None:
    """The server first refuses many of the 50 concurrent calls."""
    async with engine_of(url, "10 300 silent") as engine:
        refused, seconds = await fifty(engine)
        assert refused <= 80, "without probes there would be 40 + 30 + 20 + 10 refusals"
        assert seconds < 10
