"""Rate limits on the engine: calls wait for them, use other models, or are refused with a time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

from callboard.adapters import AdapterConfig, RateLimitError, RateLimitWaitError
from callboard.bus import LlmCallFailed, Lossless, Subscription
from callboard.engine import Engine
from callboard.engine.routing.rate_limits import RateLimits
from tests.support.scripted import Say, scripted_type
from tests.support.virtual_time import runs_on

from ...support.engines import entry, serving
from ..test_middleware import WAYS, Maker

anyio_backend = runs_on("virtual-asyncio")


@asynccontextmanager
async def limited(
    replies: list[Say], config: AdapterConfig, *, other: list[Say] | None = None, **fields: Any
) -> AsyncIterator[tuple[Engine, Subscription]]:
    """An engine with configured limits for the model `s:m`, and none for `other:m`."""
    adapters = {"s": entry("s", scripted_type(*replies), config, **fields)}
    if other is not None:
        adapters["other"] = entry("other", scripted_type(*other))
    engine = Engine(models=serving(**adapters), trace=False)
    events = engine.bus.subscribe(">", policy=Lossless(), name="test")
    async with engine:
        yield engine, events


async def test_calls_wait_for_a_declared_limit_of_requests() -> None:
    """At 10 a minute, 25 concurrent calls start in three groups: 10 immediately, 10 after a minute, and 5 after
    two.
    """
    starts: list[float] = []
    async with limited([Say("a")] * 25, AdapterConfig(requests_per_minute=10)) as (engine, _):
        start = anyio.current_time()

        async def call() -> None:
            await engine.generate("s:m", "x")
            starts.append(round(anyio.current_time() - start))

        async with anyio.create_task_group() as group:
            for _ in range(25):
                group.start_soon(call)
            await anyio.sleep(1)
            (s,) = engine.statistics().providers
            (queue,), (limit,) = s.rate_limit_queues, s.rate_limits
            assert (queue.model, queue.waiting, queue.why) == ("s:m", 15, "requests")
            assert (limit.kind, limit.source, limit.limit, limit.left) == ("requests", "declared", 10, 0)
            assert s.waiting == 0, "the calls wait for the limit, not for a slot"
    assert starts == [0] * 10 + [60] * 10 + [120] * 5


async def test_calls_wait_for_a_declared_limit_of_tokens() -> None:
    async with limited([Say("a")] * 4, AdapterConfig(tokens_per_minute=1000)) as (engine, _):
        start = anyio.current_time()
        await asyncio.gather(*(engine.generate("s:m", "x", max_output_tokens=700) for _ in range(4)))
        assert anyio.current_time() - start < 60, "four calls fit into a minute: each used far less than 700"


async def test_a_call_that_would_wait_too_long_is_refused_with_a_time() -> None:
    """Nothing is sent, and the provider stays available."""
    config = AdapterConfig(requests_per_minute=1, max_wait_seconds=5)
    async with limited([Say("a")] * 3, config) as (engine, events):
        await engine.generate("s:m", "x")
        with pytest.raises(
            RateLimitWaitError, match=r"no request is left .* for s:m; the earliest free slot is in 60 s"
        ) as caught:
            await engine.generate("s:m", "x")
        assert caught.value.retry_after_seconds == pytest.approx(60, abs=0.1)
        assert caught.value.retryable
        failed = [each.data for each in events.take() if isinstance(each.data, LlmCallFailed)]
        assert [(each.error_type, each.cost.nano_usd) for each in failed] == [("RateLimitWaitError", 0)]  # type: ignore[union-attr]
        assert engine.statistics().availability == ()
        await anyio.sleep(56)
        assert (await engine.generate("s:m", "x")).text == "a", "a wait of 4 seconds is within the limit"


async def test_a_call_with_a_time_limit_below_the_wait_is_refused() -> None:
    async with limited([Say("a")] * 2, AdapterConfig(requests_per_minute=1, timeout_seconds=30)) as (engine, _):
        await engine.generate("s:m", "x")
        with pytest.raises(RateLimitWaitError, match="the call may wait 30 s"):
            await engine.generate("s:m", "x")


async def test_calls_fall_back_to_a_model_without_a_wait() -> None:
    """At 2 a minute, three of five concurrent calls use the fallback, and none waits."""
    config = AdapterConfig(requests_per_minute=2)
    async with limited([Say("a")] * 5, config, other=[Say("b")] * 5) as (engine, _):
        start = anyio.current_time()
        made = await asyncio.gather(*(engine.generate("s:m", "x", fallback=["other:m"]) for _ in range(5)))
        assert sorted(each.text for each in made) == ["a", "a", "b", "b", "b"]
        late = await engine.generate("s:m", "x", fallback=["other:m"])
        assert late.text == "b", "the wait is known before the call"
        assert anyio.current_time() - start < 60


async def test_a_cancelled_waiting_call_lets_the_next_one_go() -> None:
    async with limited([Say("a")] * 3, AdapterConfig(requests_per_minute=1)) as (engine, _):
        await engine.generate("s:m", "x")
        start = anyio.current_time()
        async with anyio.create_task_group() as group:
            with anyio.move_on_after(5):
                await engine.generate("s:m", "x")
            group.start_soon(engine.generate, "s:m", "x")
        assert anyio.current_time() - start == pytest.approx(60, abs=0.1)
        (s,) = engine.statistics().providers
        assert s.rate_limit_queues == ()


async def test_after_a_refusal_one_call_probes_and_the_others_wait() -> None:
    """Retry-After applies to later calls too."""
    refused = RateLimitError("slow down", retry_after_seconds=20, retryable=False)
    async with limited([Say(fails=refused), *[Say("a")] * 4], AdapterConfig()) as (engine, _):
        with pytest.raises(RateLimitError):
            await engine.generate("s:m", "x")
        start = anyio.current_time()
        async with anyio.create_task_group() as group:
            for _ in range(4):
                group.start_soon(lambda: engine.generate("s:m", "x"))
            await anyio.sleep(10)
            (queue,) = engine.statistics().providers[0].rate_limit_queues
            assert (queue.waiting, queue.why) == (4, "pause")
            assert queue.opens_in_seconds == pytest.approx(10, abs=0.1)
        assert anyio.current_time() - start == pytest.approx(20, abs=0.1)


async def test_a_new_configuration_changes_a_limit_in_use() -> None:
    async with limited([Say("a")] * 3, AdapterConfig(requests_per_minute=1)) as (engine, _):
        await engine.generate("s:m", "x")
        limits = engine._runtime.rate_limits
        wider = entry("s", "x", AdapterConfig(requests_per_minute=2))
        assert limits.lease(wider, "", "s:m", 0, (1, 1)).ask()
        assert not limits.lease(wider, "", "s:m", 0, (1, 1)).ask()


async def test_calls_of_every_kind_wait_for_one_limit() -> None:
    """Conversations, embeddings, images and videos count together."""
    for last in WAYS:
        models = serving(s=entry("s", scripted_type(base=Maker), AdapterConfig(requests_per_minute=3)))
        async with Engine(models=models, trace=False) as engine:
            start = anyio.current_time()
            for way in WAYS:
                if way != last:
                    await WAYS[way](engine)
            assert anyio.current_time() - start < 1
            await WAYS[last](engine)
            assert anyio.current_time() - start == pytest.approx(60, abs=0.1), last


async def test_a_refusal_of_one_key_does_not_pause_the_pool() -> None:
    """The adapter rests that key. Configured limits apply to the whole pool."""
    config = AdapterConfig(keys={"a": "x" * 9, "b": "y" * 9}, key_pool=("a", "b"))
    limits = RateLimits()
    pool = entry("s", "x", config)
    error = RateLimitError("slow", retry_after_seconds=9)

    def refused(key: str) -> bool:
        lease = limits.lease(pool, key, "s:m", 0, (1, 1))
        assert lease.ask()
        lease.send()
        lease.end(error, None)
        return not limits.lease(pool, key, "s:m", 0, (1, 1)).ask()

    assert not refused("")
    assert refused("a"), "a call with a named key waits for that key"
