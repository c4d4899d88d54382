"""What prompt caches saved: the price without a cache, less the price as it was."""

from __future__ import annotations

from pathlib import Path

import pytest

from callboard.bus.values.usage import TokenUsage
from callboard.tracestore import CallFilter, PriceRow, PriceTable, TraceStore, cache_savings
from callboard.tracestore.prompt_caches import CacheSavings, without_cache

from .trace_making import Maker

pytestmark = pytest.mark.anyio

PRICES = PriceTable(
    [
        PriceRow(
            model="openai:gpt-5",
            input=10_000,
            output=50_000,
            cache_read=1_000,
            cache_write_5m=12_500,
            cache_write_1h=20_000,
        )
    ]
)


async def saved(
    path: Path, *usages: TokenUsage, where: CallFilter | None = None, model: str = "openai:gpt-5"
) -> CacheSavings:
    make = Maker()
    async with TraceStore(path) as store:
        for number, usage in enumerate(usages):
            request = f"req_{number}"
            await store.write([make.started(request, model), make.completed(request, model, usage=usage)])
        return await cache_savings(store, PRICES, where)


async def test_reading_saves_and_writing_costs(tmp_path: Path) -> None:
    """In nano-USD: 1000 tokens read at a tenth of 10 each save 9 each; 100 written cost 2.5 or 10 more each."""
    found = await saved(
        tmp_path / "trace.db",
        TokenUsage(50, 10, cached_input_tokens=1000),
        TokenUsage(50, 10, cache_creation_input_tokens=100),
        TokenUsage(50, 10, cache_creation_input_tokens=100, cache_creation_1h_input_tokens=100),
        TokenUsage(50, 10),
    )
    assert found == CacheSavings(calls=3, cached_input_tokens=1000, saved_nano_usd=9000 - 250 - 1000, unpriced=0)


async def test_calls_without_a_price_are_counted_beside(tmp_path: Path) -> None:
    """And calls that the filter leaves out aren't counted at all."""
    usage = TokenUsage(50, 10, cached_input_tokens=1000)
    found = await saved(tmp_path / "a.db", usage, model="openai:unheard-of")
    assert (found.calls, found.saved_nano_usd, found.unpriced) == (1, 0, 1)
    found = await saved(tmp_path / "b.db", usage, usage, where=CallFilter(request_id="req_1"))
    assert (found.calls, found.saved_nano_usd) == (1, 9000)


def test_without_a_cache_all_input_is_plain() -> None:
    """Parts that are counted apart stay what they are."""
    usage = TokenUsage(
        50, 10, cached_input_tokens=40, details={"audio_cache_read": 30, "audio_input": 5, "web_search": 1}
    )
    plain = without_cache(usage)
    assert plain.total_input_tokens == usage.total_input_tokens == plain.input_tokens
    assert plain.details == {"audio_input": 35, "web_search": 1}
