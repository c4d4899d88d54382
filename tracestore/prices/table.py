"""Price tables: what a call costs is a function of its model, its usage, its moment and one immutable table.

**Units.** A rate is integer pico-USD per token, which is the same number as micro-USD per million tokens: 3 USD
per million is 3_000_000. A cost is integer nano-USD. The products of a call are summed exactly in pico-USD and
rounded once, half up. No float touches money.

**Buckets.** `TokenUsage` counts are disjoint, so each bucket has one rate and no token is billed twice. Reasoning
tokens are a part of the output; they take the `reasoning` rate if there is one, else the output's. What usage
counts apart (`TokenUsage.details`) is taken out of its bucket if it is tokens, and added if it is pieces.

**Which row.** The first in the order of `tracestore.prices.matching` that is valid at the moment of the call, for
its size, and for the service tier that the provider says it served.

A row may begin above a number of input tokens (`above`): such tiers are cliffs. Once the total input, cached or
not, is *greater* than the threshold, all tokens of the call pay the tier's rates.

**Caches without a rate.** Tokens read from or written to a cache that has no rate are billed as input, and the
cost's reason says so: what a provider names no price for is no discount and no surcharge.

**Unknown is not zero.** No row, or no rate for a bucket that has tokens, or counts that contradict each other:
the cost is None, with the reason.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path

import msgspec

from bus.errors import ConfigurationError
from bus.values.usage import USAGE_PARTS, Cost, CostSource, TokenUsage, UsageSource

from .matching import Match, Matcher
from .rows import (
    ANY_TIER,
    DAY_SECONDS,
    MAX_INT64,
    NO_CACHE_RATE,
    US_PER_SECOND,
    PriceAlias,
    PriceList,
    PriceRow,
    hash_of,
    sorted_rows,
    tier_name,
)

MOST_PICO = 9 * 10**18
"""Of one call: 9 million USD, which with every sum of it fits in 64 bits."""

TOO_LARGE = "cost too large"
INCONSISTENT = "usage inconsistent"
"""Reasons that the SQL of repricing gives in the same words."""


class Component(msgspec.Struct, frozen=True):
    """One line of a bill. count: tokens, pieces, or 1 request. rate: pico-USD for one. pico_usd: their product.

    rate_name: whose rate it is, if the row has none of that name: of audio billed as any input, ``input``.
    """

    name: str
    count: int
    rate: int
    pico_usd: int
    rate_name: str = ""


class Explanation(msgspec.Struct, frozen=True):
    """How a cost came about. The components sum to `pico_usd` exactly; the cost is that sum, rounded once.

    model: ``provider:name`` as routed. row: the price row that applied; rule: how it was found, in words.
    components, pico_usd: empty and None if the call is unpriced.
    """

    model: str
    row: PriceRow | None
    components: tuple[Component, ...]
    pico_usd: int | None
    cost: Cost
    rule: str = ""


@cache
def _shipped() -> PriceTable:
    from .snapshot import shipped_snapshot

    return PriceTable.of(shipped_snapshot().prices())


class PriceTable:
    """An immutable set of price rows, known by the hash of its contents.

    version: the first 12 hex digits of the SHA-256 of its rows and aliases; equal tables have equal versions.
    label: for people. aliases: names that are priced as others.
    Raises ConfigurationError if rows overlap or hold impossible values, or an alias is none.
    """

    __slots__ = ("_matcher", "aliases", "label", "rows", "version")

    def __init__(self, rows: Iterable[PriceRow], label: str = "", *, aliases: Iterable[PriceAlias] = ()) -> None:
        self.rows = sorted_rows(rows)
        self.aliases = tuple(aliases)
        for alias in self.aliases:
            if ":" not in alias.pattern or ":" not in alias.target or alias.target.count("*") > 1:
                raise ConfigurationError(
                    f"price alias {alias.pattern!r} to {alias.target!r}: expected two names as provider:name"
                )
            if "*" in alias.target and alias.pattern.count("*") != 1:
                raise ConfigurationError(
                    f"price alias {alias.pattern!r} to {alias.target!r}: a '*' in the target takes over that of "
                    "the pattern, which must have exactly one"
                )
        self.label = label
        self.version = hash_of(self.rows, self.aliases)
        self._matcher = Matcher(self.rows, self.aliases)

    @classmethod
    def from_rows(cls, rows: Iterable[PriceRow], label: str = "") -> PriceTable:
        """A table of these rows."""
        return cls(rows, label)

    @classmethod
    def from_yaml(cls, path: Path | str) -> PriceTable:
        """The newest table of a price file; its form is described in `tracestore.prices.files`.

        Raises ConfigurationError, naming the file, the key and what was expected.
        """
        return cls.all_from_yaml(path)[-1]

    @classmethod
    def all_from_yaml(cls, path: Path | str) -> tuple[PriceTable, ...]:
        """All tables of a price file, oldest first. Raises ConfigurationError."""
        from .files import load

        return tuple(cls.of(each) for each in load(Path(path)))

    @classmethod
    def default(cls) -> PriceTable:
        """The table of who has none: the shipped snapshot, and models on this machine cost nothing.

        It is read when it is first asked for, and kept.
        """
        return _shipped()

    @classmethod
    def of(cls, prices: PriceList) -> PriceTable:
        """The table of these rows. Raises ConfigurationError if they contradict each other."""
        try:
            return cls(prices.rows, prices.label, aliases=prices.aliases)
        except ConfigurationError as error:
            if not prices.origin:
                raise
            raise ConfigurationError(f"{prices.origin}: {error}") from error

    def merged(self, overrides: PriceTable, label: str | None = None) -> PriceTable:
        """A table in which the rows of `overrides` replace all rows of the same models here.

        Rows of a reference table stay behind all others, patterns included; so the overrides' `openai:*` goes
        before a reference's `openai:gpt-5`.
        """
        replaced = {row.model for row in overrides.rows}
        kept = [row for row in self.rows if row.model not in replaced]
        return PriceTable(
            [*kept, *overrides.rows],
            overrides.label if label is None else label,
            aliases=(*overrides.aliases, *(alias for alias in self.aliases if alias not in overrides.aliases)),
        )

    def find(
        self,
        model: str,
        at_us: int,
        total_input_tokens: int = 0,
        *,
        served_model: str | None = None,
        priced_as: str | None = None,
        service_tier: str | None = None,
    ) -> PriceRow | None:
        """The row for a ``provider:name`` at a moment and size; None if there is none.

        at_us: microseconds UTC. total_input_tokens: of the call. served_model, priced_as: see `matches`.
        service_tier: as the provider names it; None: the usual one.
        """
        found = self._find(model, at_us, total_input_tokens, served_model, priced_as, service_tier)
        return None if found is None else found.row

    def _find(
        self,
        model: str,
        at_us: int,
        total: int,
        served_model: str | None,
        priced_as: str | None,
        service_tier: str | None,
    ) -> Match | None:
        tier = tier_name(service_tier)
        for match in self.matches(model, served_model, priced_as):
            if match.row.service_tier in (tier, ANY_TIER) and match.row.covers(at_us, total):
                return match
        return None

    def matches(
        self, model: str, served_model: str | None = None, priced_as: str | None = None
    ) -> tuple[Match, ...]:
        """All rows that may price a model, at any time, size and service tier, the first in rank first.

        served_model: what the provider says it ran, with or without ``provider:``. Rows that fit it go before
        rows that fit only `model`, because it is the served model that is billed. priced_as: the ``provider:name``
        whose published prices the model has, where its adapter goes by a name of its own.
        """
        return self._matcher.matches(model, served_model, priced_as)

    def price(
        self,
        model: str,
        usage: TokenUsage,
        at_us: int,
        *,
        served_model: str | None = None,
        priced_as: str | None = None,
    ) -> Cost:
        """What a call costs under this table.

        model: ``provider:name`` as routed. at_us: when the attempt started, microseconds UTC. served_model: the
        model that the provider says it ran, if it did. priced_as: see `matches`.
        The cost's source is ``computed``, or ``unpriced`` with a reason; it is never zero for want of a price.
        """
        return self.explain(model, usage, at_us, served_model=served_model, priced_as=priced_as).cost

    def explain(
        self,
        model: str,
        usage: TokenUsage,
        at_us: int,
        *,
        served_model: str | None = None,
        priced_as: str | None = None,
    ) -> Explanation:
        """Like `price()`, with every component: count times rate. at_us and the others: the same."""
        tier = usage.service_tier
        match = self._find(model, at_us, usage.total_input_tokens, served_model, priced_as, tier)
        row, rule = (None, "") if match is None else (match.row, match.rule)
        counts = _counts(usage)
        if counts is None:
            return self._unpriced(model, row, INCONSISTENT, rule)
        if row is None:
            return self._unpriced(model, None, f"no price for {model}{tier_words(tier)}")
        components = []
        for name, count in counts.items():
            rate = row.rate(name)
            if count and rate is None:
                return self._unpriced(model, row, f"no {name} rate for {model}", rule)
            if count and rate is not None:
                billed = row.rate_name(name)
                components.append(Component(name, count, rate, count * rate, "" if billed == name else billed))
        if row.per_request:
            components.append(Component("request", 1, row.per_request, row.per_request))
        pico = sum(component.pico_usd for component in components)
        if pico > MOST_PICO:
            return self._unpriced(model, row, TOO_LARGE, rule)
        as_input = any(count and row.as_input(name) for name, count in counts.items())
        reason = NO_CACHE_RATE if as_input else None
        cost = Cost(round_to_nano(pico), CostSource.COMPUTED, self.version, reason)
        return Explanation(model, row, tuple(components), pico, cost, rule)

    def segments(
        self,
        model: str,
        served_model: str | None = None,
        priced_as: str | None = None,
        service_tier: str | None = None,
    ) -> Iterator[Segment]:
        """The table's answer for one model as disjoint boxes of time, hours and size: what SQL can join with.

        It is obtained by asking at each corner where the answer can change, so it is the same answer.
        """
        tiers = (tier_name(service_tier), ANY_TIER)
        matches = self.matches(model, served_model, priced_as)
        rows = [match.row for match in matches if match.row.service_tier in tiers]
        times = sorted({t for row in rows for t in (row.valid_from, row.valid_to) if t is not None})
        sizes = sorted({row.above for row in rows if row.above})
        hours = sorted({t for row in rows for t in (row.daily_from, row.daily_to) if t} - {DAY_SECONDS})
        for since, until in pairwise([-MAX_INT64, *times, MAX_INT64]):
            for above, up_to in pairwise([-1, *sizes, MAX_INT64]):
                for begin, end in pairwise([0, *hours, DAY_SECONDS]):
                    row = next((row for row in rows if row.valid_at(since, above + 1, begin)), None)
                    if row is not None:
                        span = (begin * US_PER_SECOND, end * US_PER_SECOND)
                        yield Segment(since, until, above, up_to, row, *span)

    def _unpriced(self, model: str, row: PriceRow | None, reason: str, rule: str = "") -> Explanation:
        return Explanation(model, row, (), None, Cost(None, CostSource.UNPRICED, self.version, reason), rule)

    def __len__(self) -> int:
        return len(self.rows)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PriceTable) and self.version == other.version

    def __hash__(self) -> int:
        return hash(self.version)

    def __repr__(self) -> str:
        return f"PriceTable({self.label!r}, version={self.version!r}, rows={len(self.rows)})"


class Segment(msgspec.Struct, frozen=True):
    """Where one row applies: since <= moment < until, above < total input tokens <= up_to, and of each UTC day
    daily_from <= microseconds since midnight < daily_to."""

    since: int
    until: int
    above: int
    up_to: int
    row: PriceRow
    daily_from: int
    daily_to: int


def round_to_nano(pico_usd: int) -> int:
    """Nano-USD for pico-USD, half up."""
    return pico_usd // 1000 + (pico_usd % 1000 >= 500)


def tier_words(service_tier: str | None) -> str:
    """What a reason adds for a service tier: nothing for the usual one."""
    tier = tier_name(service_tier)
    return f" at service tier {tier}" if tier else ""


def _counts(usage: TokenUsage) -> dict[str, int] | None:
    """What there is of each bucket and each detail; None if the counts contradict each other, or did."""
    if usage.source is UsageSource.INCONSISTENT:
        return None
    reasoning = usage.reasoning_tokens or 0
    counts = {
        "input": usage.input_tokens,
        "output": usage.output_tokens - reasoning,
        "reasoning": reasoning,
        "cache_read": usage.cached_input_tokens,
        "cache_write_5m": usage.cache_creation_input_tokens - usage.cache_creation_1h_input_tokens,
        "cache_write_1h": usage.cache_creation_1h_input_tokens,
    }
    if usage.details:
        for name in sorted(usage.details):
            counts[name] = usage.details[name]
            if name in USAGE_PARTS:
                counts[USAGE_PARTS[name]] -= usage.details[name]
    return None if min(counts.values()) < 0 else counts
