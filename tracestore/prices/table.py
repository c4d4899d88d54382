"""Price tables: a call's cost depends only on its model, its usage, its time and one immutable table.

- **Units.** A rate is in whole pico-USD per token, which equals micro-USD per million tokens. A cost is in whole
  nano-USD: products are summed exactly in pico-USD and rounded once, half up.
- **Buckets.** The counts of `TokenUsage` are disjoint. Reasoning has the `reasoning` rate, or else the output
  rate. Tokens in `TokenUsage.details` are subtracted from their bucket and billed at their own rate. Other units,
  such as searches, are billed additionally.
- **Rows.** The first row that is valid for the time, size and service tier applies; `tracestore.prices.rows` has
  the order. If the total input exceeds a row's threshold (`above`), all tokens are billed at that row's rates.
- **Unknown is not zero.** Without a row or a rate, or with contradictory counts, the cost is None with a reason.
  The only exception is a cache without a rate: its tokens are billed as input, and the reason says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from decimal import Decimal, InvalidOperation
from functools import cache
from itertools import pairwise
from pathlib import Path

import msgspec

from callboard.bus.errors import ConfigurationError
from callboard.bus.values.usage import USAGE_PARTS, Cost, CostSource, TokenUsage, UsageSource

from .rows import (
    ANY_TIER,
    BUCKETS,
    DAY_SECONDS,
    MAX_INT64,
    NO_CACHE_RATE,
    US_PER_SECOND,
    Match,
    Matcher,
    PriceAlias,
    PriceList,
    PriceRow,
    fits,
    hash_of,
    sorted_rows,
    tier_name,
)

MOST_PICO = 9 * 10**18
"""The largest cost of one call in pico-USD: 9 million USD. With this limit, every sum within a call fits into 64
bits.
"""

TOO_LARGE = "cost too large"
INCONSISTENT = "usage inconsistent"
"""The reason for a missing cost if the counts contradict each other. The SQL of repricing returns the same
text.
"""


class Component(msgspec.Struct, frozen=True):
    """One line of a bill."""

    name: str
    """The name of the bucket or detail, or ``request``."""
    count: int
    """The number of tokens or other units; 1 for a request."""
    rate: int
    """The rate per token or unit, in pico-USD."""
    pico_usd: int
    """The product of count and rate."""
    rate_name: str = ""
    """The name of the rate, if the line is billed at the rate of another bucket. For example, audio that is billed
    as plain input has the rate ``input``. Otherwise empty.
    """


class Explanation(msgspec.Struct, frozen=True):
    """The cost of a call, and how it was computed. The cost is the sum of the components, rounded once."""

    model: str
    """The model as routed, ``provider:name``."""
    row: PriceRow | None
    """The price row that applied; None if no row applied."""
    components: tuple[Component, ...]
    """The lines of the bill; empty if the call has no price."""
    pico_usd: int | None
    """The exact sum of the components, in pico-USD; None if the call has no price."""
    cost: Cost
    rule: str = ""
    """A text about how the row was found."""


@cache
def _shipped() -> PriceTable:
    from .files import shipped_snapshot

    return PriceTable.of(shipped_snapshot().prices())


class PriceTable:
    """An immutable set of price rows. Its version is the hash of its contents.

    Raises:
        ConfigurationError: Rows overlap or hold impossible values, or an alias is malformed.
    """

    __slots__ = ("_matcher", "aliases", "label", "rows", "version")

    def __init__(self, rows: Iterable[PriceRow], label: str = "", *, aliases: Iterable[PriceAlias] = ()) -> None:
        self.rows = sorted_rows(rows)
        """The rows, in the table's order."""
        self.aliases = tuple(aliases)
        """The aliases: names that are priced as other names."""
        for alias in self.aliases:
            if ":" not in alias.pattern or ":" not in alias.target or alias.target.count("*") > 1:
                raise ConfigurationError(
                    f"price alias {alias.pattern!r} to {alias.target!r}: expected two names as provider:name"
                )
            if "*" in alias.target and alias.pattern.count("*") != 1:
                raise ConfigurationError(
                    f"price alias {alias.pattern!r} to {alias.target!r}: a '*' in the target repeats "
                    f"that of the pattern, which must have exactly one"
                )
        self.label = label
        """The table's name, for people."""
        self.version = hash_of(self.rows, self.aliases)
        """The first 12 hex digits of the SHA-256 of rows and aliases. Equal tables have equal versions."""
        self._matcher = Matcher(self.rows, self.aliases)

    @classmethod
    def from_rows(cls, rows: Iterable[PriceRow], label: str = "") -> PriceTable:
        """A table of these rows."""
        return cls(rows, label)

    @classmethod
    def from_yaml(cls, path: Path | str) -> PriceTable:
        """The newest table of a price file. `tracestore.prices.files` describes the form of the file.

        Raises:
            ConfigurationError: The file is malformed. The text names the file, the key and the expected value.
        """
        return cls.all_from_yaml(path)[-1]

    @classmethod
    def all_from_yaml(cls, path: Path | str) -> tuple[PriceTable, ...]:
        """All tables of a price file, the oldest first.

        Raises:
            ConfigurationError: The file is malformed.
        """
        from .files import load

        return tuple(cls.of(each) for each in load(Path(path)))

    @classmethod
    def default(cls) -> PriceTable:
        """The shipped table, for a host without its own prices. Models on this machine cost nothing.

        The table is read at its first use, and cached.
        """
        return _shipped()

    @classmethod
    def of(cls, prices: PriceList) -> PriceTable:
        """The table of a price list.

        Raises:
            ConfigurationError: The rows contradict each other.
        """
        try:
            return cls(prices.rows, prices.label, aliases=prices.aliases)
        except ConfigurationError as error:
            if not prices.origin:
                raise
            raise ConfigurationError(f"{prices.origin}: {error}") from error

    def merged(self, overrides: PriceTable, label: str | None = None) -> PriceTable:
        """A table in which rows of `overrides` replace all rows of the same models in this table.

        Rows of `overrides`, even patterns, take precedence over rows of a reference table. So `openai:*` of the
        overrides takes precedence over `openai:gpt-5` of a reference table.

        Args:
            overrides: The table with precedence.
            label: The label of the new table; None takes the label of the overrides.
        """
        replaced = {row.model for row in overrides.rows}
        unchanged = [row for row in self.rows if row.model not in replaced]
        return PriceTable(
            [*unchanged, *overrides.rows],
            overrides.label if label is None else label,
            aliases=(*overrides.aliases, *(alias for alias in self.aliases if alias not in overrides.aliases)),
        )

    def discounted(self, factors: Mapping[str, Decimal | int | str], *, label: str | None = None) -> PriceTable:
        """A table of the same rows with all rates multiplied. Tiers, dates, sizes, hours and missing rates are not
        changed.

        Args:
            factors: The factor on all rates of a model's rows, by ``provider:name``; ``*`` matches any text.
                ``"0.8"`` is 20 % off. If several names match a row, the longest one applies.
            label: The label of the new table; None names the factors and this table.

        Raises:
            ConfigurationError: A factor is negative, not a number, or a float, which wouldn't be exact. It is also
                raised if a name matches no row. A model that is priced through an alias has no rows of its own.
        """
        rows, words = discounted(self.rows, factors)
        return PriceTable(rows, f"{words} of {self.label}" if label is None else label, aliases=self.aliases)

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
        """The row for a model at a time; None if there is none.

        Args:
            model: The model as ``provider:name``.
            at_us: The time in microseconds since the epoch.
            total_input_tokens: The number of input tokens of the call, cached ones included.
            served_model: The model that ran, as the provider reports it, see `matches`.
            priced_as: The model with the published prices, see `matches`.
            service_tier: The service tier as the provider names it; None means the default one.
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
        """All rows that may price a model, at any time and size and in any service tier, in order of rank.

        Args:
            model: The model as ``provider:name``.
            served_model: The model that ran, as the provider reports it, with or without ``provider:``. Its rows
                take precedence over rows for `model`, because the served model is billed.
            priced_as: The ``provider:name`` with the published prices, if the adapter has its own name.
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
        """The cost of a call under this table.

        The cost's source is ``computed``, or ``unpriced`` with a reason. If a price is missing, the cost is
        unknown, not zero.

        Args:
            model: The model as routed, ``provider:name``.
            usage: The tokens of the call.
            at_us: The start of the attempt, in microseconds since the epoch.
            served_model: The model that ran, as the provider reports it; None if the provider does not report it.
            priced_as: The model with the published prices, see `matches`.
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
        """The cost of a call like `price()`, with every line of the bill.

        Args:
            model: The model as routed, ``provider:name``.
            usage: The tokens of the call.
            at_us: The start of the attempt, in microseconds since the epoch.
            served_model: The model that ran, as the provider reports it; None if it doesn't.
            priced_as: The model with the published prices, see `matches`.
        """
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
        """The rows that apply to one model, each with a range of time, hours and size, for joins in SQL. The
        ranges do not overlap.

        The table is evaluated at each point where the result can change, so the ranges agree with `find`.

        Args:
            model: The model as ``provider:name``.
            served_model: The model that ran, as the provider reports it; None if it doesn't.
            priced_as: The model with the published prices, see `matches`.
            service_tier: The service tier as the provider names it; None means the default one.
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
    """The times, sizes and hours for which one row applies."""

    since: int
    """The time from which the segment applies, in microseconds since the epoch."""
    until: int
    """The time from which the segment no longer applies, in microseconds since the epoch."""
    above: int
    """The total number of input tokens that a call must exceed."""
    up_to: int
    """The largest total number of input tokens."""
    row: PriceRow
    daily_from: int
    """The time from which the segment applies in each UTC day, in microseconds since midnight."""
    daily_to: int
    """The time from which the segment no longer applies in each UTC day, in microseconds since midnight."""


def round_to_nano(pico_usd: int) -> int:
    """Nano-USD for pico-USD, half up."""
    return pico_usd // 1000 + (pico_usd % 1000 >= 500)


def tier_words(service_tier: str | None) -> str:
    """The text about the service tier in a reason; empty for the default tier."""
    tier = tier_name(service_tier)
    return f" at service tier {tier}" if tier else ""


def _counts(usage: TokenUsage) -> dict[str, int] | None:
    """The number of units in each bucket and each detail; None if the counts contradict each other."""
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


# --- Discounted tables ---


def discounted(rows: Iterable[PriceRow], factors: Mapping[str, Decimal | int | str]) -> tuple[list[PriceRow], str]:
    """The rows at other rates, and the factors as text."""
    exact = {pattern: _factor(pattern, factor) for pattern, factor in factors.items()}
    by_rank = sorted(exact, key=lambda pattern: len(pattern.replace("*", "")), reverse=True)
    unused = set(by_rank)
    found = []
    for row in rows:
        fitting = [pattern for pattern in by_rank if fits(pattern.lower().split("*"), row.model.lower())]
        unused.difference_update(fitting)
        found.append(_times(row, exact[fitting[0]]) if fitting else row)
    if unused:
        raise ConfigurationError(
            f"no price row matches {min(unused)!r}, so its factor has no effect. `callboard prices show` "
            f"lists the rows of a model"
        )
    return found, ", ".join(f"{factor} x {pattern}" for pattern, factor in exact.items())


def _factor(pattern: str, factor: object) -> Decimal:
    if isinstance(factor, Decimal | int | str) and not isinstance(factor, bool):
        try:
            exact = Decimal(factor)
        except InvalidOperation:
            exact = Decimal("NaN")
        if exact.is_finite() and exact >= 0:
            return exact
    raise ConfigurationError(
        f"the factor on {pattern!r} is {factor!r}. Expected a text, an int or a Decimal of at least 0, such as "
        '"0.8" for 20 % off'
    )


def _times(row: PriceRow, factor: Decimal) -> PriceRow:
    rates = {name: getattr(row, name) for name in (*BUCKETS, "per_request")}
    changed = {name: _rounded(rate * factor) for name, rate in rates.items() if rate is not None}
    extra = {name: _rounded(rate * factor) for name, rate in row.extra.items()}
    return msgspec.structs.replace(row, **changed, extra=extra)


def _rounded(rate: Decimal) -> int:
    """A rate in whole pico-USD, half up."""
    return int((rate + Decimal("0.5")) // 1)
