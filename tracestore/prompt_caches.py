"""The savings of providers' prompt caches: the input's price without a cache, minus its actual price."""

from __future__ import annotations

import msgspec

from callboard.bus.values.usage import TokenUsage

from .call_columns import CallFilter, CallRow
from .prices.table import PriceTable
from .store import Store

_PAGE = 1000
_CACHED, _PLAIN = "_cache_read", "_input"


class CacheSavings(msgspec.Struct, frozen=True, kw_only=True):
    """The savings of prompt caches in some calls."""

    calls: int = 0
    """The number of calls that read from a cache or wrote to one."""
    cached_input_tokens: int = 0
    """The input tokens of these calls that were read from a cache."""
    saved_nano_usd: int = 0
    """The saved money in nano-USD: savings by reading, minus the surcharge for writing."""
    unpriced: int = 0
    """The number of calls that are in no amount, because the price with or without the cache is unknown."""


async def cache_savings(store: Store, prices: PriceTable, where: CallFilter | None = None) -> CacheSavings:
    """The savings of prompt caches in stored calls.

    Args:
        store: The trace.
        prices: The prices that both costs are computed from, each call at the time of its attempt.
        where: The calls that are counted.

    Raises:
        StoreError: The trace can't be read.
    """
    calls = cached = saved = unpriced = after = 0
    while rows := await store.calls_after(after, where, _PAGE):
        after = rows[-1].call_id
        for row in rows:
            usage = row.usage
            if usage is None or usage.total_input_tokens == usage.input_tokens:
                continue
            calls += 1
            cached += usage.cached_input_tokens
            difference = _saved(row, usage, prices)
            saved += difference or 0
            unpriced += difference is None
    return CacheSavings(calls=calls, cached_input_tokens=cached, saved_nano_usd=saved, unpriced=unpriced)


def _saved(row: CallRow, usage: TokenUsage, prices: PriceTable) -> int | None:
    plain, actual = (
        prices.price(
            row.model, each, row.started_us or 0, served_model=row.served_model, priced_as=row.priced_as
        ).nano_usd
        for each in (without_cache(usage), usage)
    )
    return None if plain is None or actual is None else plain - actual


def without_cache(usage: TokenUsage) -> TokenUsage:
    """The usage with all cached tokens counted as uncached input."""
    details: dict[str, int] = {}
    for name, count in (usage.details or {}).items():
        plain = name.removesuffix(_CACHED) + _PLAIN if name.endswith(_CACHED) else name
        details[plain] = details.get(plain, 0) + count
    return msgspec.structs.replace(
        usage,
        input_tokens=usage.total_input_tokens,
        cached_input_tokens=0,
        cache_creation_input_tokens=0,
        cache_creation_1h_input_tokens=0,
        details=details or None,
    )
