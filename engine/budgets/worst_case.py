"""The maximum cost of a call, before it is sent. Pure.

The input is the upper end of its estimate, at the most expensive rate: a provider may bill input as plain input or
as cache writes. The output is the maximum that the request allows. Each of the provider's tools is counted with
the maximum number of uses that the request allows.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from callboard.adapters.requests.estimate import upper_end
from callboard.bus.values.base import Json
from callboard.bus.values.usage import TokenUsage, tier_in, unusual_tier
from callboard.tracestore import PriceRow, PriceTable
from callboard.tracestore.prices.table import Segment

from .ledger import Amount

MOST_TOKENS_OF_AN_IMAGE = 8192
"""Above the tokens of an image at its best quality in any published model. gpt-image-1 uses 6,240."""


class Priced(msgspec.Struct, frozen=True):
    table: PriceTable
    model: str
    """The model as ``provider:name``."""
    at_us: int
    """The time of the call, in microseconds since the Unix epoch."""
    priced_as: str | None = None
    """The provider that publishes the model's prices."""
    tiers: tuple[str | None, ...] = (None,)
    """The service tiers that may serve the call; None is the default one."""

    def nano_usd(self, usage: TokenUsage) -> int | None:
        """The cost of a usage in nano-USD; None if it is unknown."""
        return self.table.price(self.model, usage, self.at_us, priced_as=self.priced_as).nano_usd


def worst_case(priced: Priced, most: Sequence[TokenUsage]) -> Amount:
    costs = [nano for nano in map(priced.nano_usd, most) if nano is not None]
    return Amount(max(costs, default=None), max((usage.total_tokens for usage in most), default=0))


def worst_case_of_reply(
    priced: Priced,
    estimated_input_tokens: int | None,
    max_output_tokens: int | None,
    fees: Mapping[str, int] | None,
) -> Amount:
    if estimated_input_tokens is None or max_output_tokens is None or fees is None:
        return Amount(None, (estimated_input_tokens or 0) + (max_output_tokens or 0))
    sent = upper_end(estimated_input_tokens) if estimated_input_tokens else 0
    money = _most_nano(priced, sent, max_output_tokens)
    if fees and money is not None:
        of_fees = priced.nano_usd(TokenUsage(details=dict(fees)))
        money = None if of_fees is None else money + of_fees
    return Amount(money, sent + max_output_tokens)


_DAY_US = 86_400_000_000


class _Rates(msgspec.Struct, frozen=True):
    """The highest rates of one segment of a price table, in pico-USD."""

    segment: Segment
    input: int | None
    """The highest rate of an input token, over all buckets in which it may be counted."""
    output: int | None
    """The highest rate of an output token, over all buckets in which it may be counted."""

    def applies(self, at_us: int, sent: int) -> bool:
        """Whether the segment may apply to a call at a given time with at most this much input."""
        found = self.segment
        in_time = found.since <= at_us < found.until
        return in_time and found.above < max(sent, 1) and found.daily_from <= at_us % _DAY_US < found.daily_to

    def most_pico(self, sent: int, received: int) -> int | None:
        """The cost of a number of tokens in pico-USD; None if a rate is unknown."""
        if (sent and self.input is None) or (received and self.output is None):
            return None
        sent = min(sent, self.segment.up_to)
        return (self.input or 0) * sent + (self.output or 0) * received + self.segment.row.per_request


def _most_nano(priced: Priced, sent: int, received: int) -> int | None:
    """The highest price of at most this many tokens, in nano-USD, rounded up; None if it is unknown."""
    most: int | None = None
    for tier in priced.tiers:
        found = _rates(priced.table, priced.model, priced.priced_as, tier)
        if not found:
            return None
        for rates in found:
            if rates.applies(priced.at_us, sent):
                pico = rates.most_pico(sent, received)
                if pico is None:
                    return None
                most = pico if most is None else max(most, pico)
    return None if most is None else -(-most // 1000)


@functools.lru_cache(maxsize=1024)
def _rates(table: PriceTable, model: str, priced_as: str | None, service_tier: str | None) -> tuple[_Rates, ...]:
    return tuple(
        _Rates(
            segment,
            _dearest(segment.row, "input", "cache_read", "cache_write_5m", "cache_write_1h"),
            _dearest(segment.row, "output", "reasoning"),
        )
        for segment in table.segments(model, priced_as=priced_as, service_tier=service_tier)
    )


def _dearest(row: PriceRow, *buckets: str) -> int | None:
    """The highest of some rates; None if the first one is unknown."""
    rates = [row.rate(bucket) for bucket in buckets]
    return None if rates[0] is None else max(rate for rate in rates if rate is not None)


def most_of_images(estimated_input_tokens: int, images: int) -> tuple[TokenUsage, ...]:
    """The maximum usage of images: a number of images or of tokens, depending on how the provider counts."""
    counted = TokenUsage(upper_end(estimated_input_tokens), images * MOST_TOKENS_OF_AN_IMAGE)
    return TokenUsage(details={"image": images}), counted


_PROTOCOLS: Mapping[str, frozenset[str]] = {
    "anthropic": frozenset({"openai", "openai_compatible", "gemini"}),
    "openai": frozenset({"anthropic", "gemini"}),  # Chat Completions is used for a server without a Responses API
    "openai_compatible": frozenset({"anthropic", "openai", "gemini"}),
    "gemini": frozenset({"anthropic", "openai", "openai_compatible"}),
}
"""For each type of adapter, the names of the other protocols. An adapter never sends options of another protocol.
"""


def _options_for(
    provider_options: Mapping[str, Json], adapter: str, adapter_type: str
) -> Iterator[Mapping[str, Json]]:
    """The options that an adapter may send. If its type is unknown, all of them."""
    others = _PROTOCOLS.get(adapter_type, frozenset())
    for owner, options in provider_options.items():
        if isinstance(options, Mapping) and (owner == adapter or owner not in others):
            yield options


UNLIMITED = 2**31 - 1
"""The output tokens that are assumed for a negative limit, which llama.cpp and Ollama treat as no limit."""

_LIMITS = (
    *("max_tokens", "max_completion_tokens", "max_output_tokens", "maxOutputTokens"),
    *("n_predict", "num_predict", "max_new_tokens"),  # of llama.cpp, Ollama and TGI
)
_CHOICES = ("n", "best_of", "candidateCount", "candidate_count")
_SETTINGS = ("generationConfig", "generation_config", "options", "parameters")
"""The fields of a body that may contain its limits."""


def most_output(
    limit: int, provider_options: Mapping[str, Json], *, adapter: str = "", adapter_type: str = ""
) -> int:
    """The maximum number of output tokens that a request with these options may be billed for.

    `limit` is the request's own limit. The options have the names of protocols and adapters. The adapter does not
    send options of other protocols. If its type is unknown, the options of all protocols are considered.
    """
    for options in _options_for(provider_options, adapter, adapter_type):
        limit = most_output_of_body(options, limit)
    return limit


def most_output_of_body(body: Mapping[str, Json], limit: int) -> int:
    """Like `most_output`, for a client's own body. It may request several choices."""
    choices = 1
    for fields in (body, *map(body.get, _SETTINGS)):
        if isinstance(fields, Mapping):
            limits = [UNLIMITED if number < 0 else number for number in _numbers(fields, _LIMITS)]
            limit = max([limit, *limits])
            choices = max([choices, *_numbers(fields, _CHOICES)])
    return limit * choices


def _numbers(fields: Mapping[str, Json], names: Sequence[str]) -> Iterator[int]:
    """Yield the numbers under some names. Some servers also accept 80.0 and "80"."""
    for name in names:
        value = fields.get(name)
        if isinstance(value, int | float | str):
            with contextlib.suppress(ValueError, OverflowError):
                yield math.ceil(float(value))


def tiers_of(
    provider_options: Mapping[str, Json],
    *,
    adapter: str = "",
    adapter_type: str = "",
    only: str | None = None,
) -> tuple[str | None, ...]:
    """The service tiers that may serve a request with these options, in each geography that the options name.

    The default tier is always included, because the provider may lack capacity in another tier. The arguments are
    those of `most_output`. `only` is the tier of a request that can't choose one, such as ``batch``.
    """
    found: dict[str | None, None] = {only: None}
    for options in _options_for(provider_options, adapter, adapter_type):
        if only is None:
            named = map(options.get, ("service_tier", "serviceTier", "speed"))
            found.update(dict.fromkeys(map(unusual_tier, named)))
        found.update(dict.fromkeys(tier_in(tier, options.get("inference_geo")) for tier in list(found)))
    return tuple(found)


def tool_fees(
    provider_options: Mapping[str, Json], *, adapter: str = "", adapter_type: str = ""
) -> Mapping[str, int] | None:
    """The maximum number of uses of each of the provider's tools, by the name of its rate. None means unknown.

    The arguments are those of `most_output`.
    """
    uses: dict[str, int] = {}
    for options in _options_for(provider_options, adapter, adapter_type):
        tools = options.get("tools")
        for tool in tools if isinstance(tools, list) else ():
            kind, most = (tool.get("type"), tool.get("max_uses")) if isinstance(tool, dict) else (None, None)
            if kind in ("function", "custom"):
                continue
            if not isinstance(kind, str) or not isinstance(most, int):
                return None
            name = "web_search" if kind.startswith("web_search") else kind
            uses[name] = uses.get(name, 0) + most
    return uses
