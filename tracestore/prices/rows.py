"""The rows of a price table and their rules: what one may hold, which belong together, and the hash over all."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from decimal import Decimal
from itertools import groupby, pairwise
from typing import NamedTuple

import msgspec

from bus.errors import ConfigurationError
from bus.values.usage import USAGE_PARTS, unusual_tier

MAX_INT64 = 2**63 - 1
US_PER_SECOND = 1_000_000
DAY_SECONDS = 86_400
ANY_TIER = "*"
_MAX_RATE = 10**15  # pico-USD: 1,000 USD for one; beyond that it is a mistake in the unit

BUCKETS = ("input", "output", "reasoning", "cache_read", "cache_write_5m", "cache_write_1h")
"""What is counted separately, in the order of `explain()`; also the names of the rates."""

_WRITES = ("cache_write_5m", "cache_write_1h")

NO_CACHE_RATE = "no cache rate: as input"
"""The reason beside a cost that has tokens of a cache at the rate of input."""


def tier_name(service_tier: str | None) -> str:
    """A service tier as rows name it: in lower case, and empty for each provider's word for the usual one."""
    return unusual_tier(service_tier) or ""


class PriceRow(msgspec.Struct, frozen=True, kw_only=True):
    """The rates of one model for a span of time, of sizes, and for one service tier.

    model: ``provider:name``; ``*`` stands for any text.
    input, output: pico-USD per token; None: not known.
    cache_read: pico-USD per token read from a cache; None: as input.
    cache_write_5m, cache_write_1h: pico-USD per token written to a cache; as input if both are None. Where only
    one is, writes are billed apart, and that one is not known.
    reasoning: pico-USD per token; None: as output. per_request: pico-USD per call.
    extra: rates of what is counted in `TokenUsage.details`, in pico-USD per token or piece. Of `USAGE_PARTS`, what
    is not here is billed as the bucket that it is a part of; a piece that is not here has no price.
    valid_from, valid_to: microseconds UTC, from inclusive to exclusive; None: without limit.
    daily_from, daily_to: the hours of each UTC day in which it holds, in seconds since midnight, from inclusive to
    exclusive; both None: all day. Within its hours such a row goes before one that holds all day.
    above: applies to calls with more input tokens in total than this; 0: to all.
    service_tier: as `tier_name` gives it; empty: the usual one; ``*``: any that no other row is for.
    reference: of a published table, asked only where no other row applies.
    note: for people; no part of the version.
    """

    model: str
    input: int | None = None
    output: int | None = None
    cache_read: int | None = None
    cache_write_5m: int | None = None
    cache_write_1h: int | None = None
    reasoning: int | None = None
    per_request: int = 0
    valid_from: int | None = None
    valid_to: int | None = None
    above: int = 0
    note: str = ""
    extra: dict[str, int] = {}
    service_tier: str = ""
    daily_from: int | None = None
    daily_to: int | None = None
    reference: bool = False

    def rate(self, name: str) -> int | None:
        """The rate for one of `BUCKETS` or of a usage's details, in pico-USD; None if it is not known."""
        billed = self.rate_name(name)
        if billed not in BUCKETS:
            return self.extra.get(billed)
        value: int | None = getattr(self, billed)
        return value

    def per_million(self, name: str) -> Decimal | None:
        """The rate in USD for a million, exactly; None if it is not known."""
        rate = self.rate(name)
        return None if rate is None else Decimal(rate) / 10**6

    def rate_name(self, name: str) -> str:
        """The name of the rate that `rate()` gives: another one, for what is billed as something else is.

        A part of a bucket without a rate of its own is billed as that bucket, reasoning as output, and what a
        cache holds as if there were none: audio that was read from it as audio.
        """
        if name in self.extra:
            return name
        if name in USAGE_PARTS:
            bucket = USAGE_PARTS[name]
            if bucket == "cache_read" and self._cached_as_input(bucket):
                return self.rate_name(name.replace("cache_read", "input"))
            return self.rate_name(bucket)
        if name == "reasoning" and self.reasoning is None:
            return "output"
        return "input" if self._cached_as_input(name) else name

    def as_input(self, name: str) -> bool:
        """Whether that is of a cache and billed as input, see `NO_CACHE_RATE`."""
        return name not in self.extra and self._cached_as_input(USAGE_PARTS.get(name, name))

    def _cached_as_input(self, bucket: str) -> bool:
        if self.input is None:
            return False
        if bucket == "cache_read":
            return self.cache_read is None
        return bucket in _WRITES and self.cache_write_5m is None and self.cache_write_1h is None

    def covers(self, at_us: int, total_input_tokens: int) -> bool:
        """Whether the row is valid at that moment (`at_us`, microseconds UTC) and for a call of that size
        (`total_input_tokens`).
        """
        return self.valid_at(at_us, total_input_tokens, at_us // US_PER_SECOND % DAY_SECONDS)

    def valid_at(self, at_us: int, total_input_tokens: int, second_of_day: int) -> bool:
        """`covers` with `second_of_day`, the seconds since midnight UTC, given apart from the moment `at_us`.
        `total_input_tokens`: the size.
        """
        return (
            (self.valid_from is None or at_us >= self.valid_from)
            and (self.valid_to is None or at_us < self.valid_to)
            and (self.above == 0 or total_input_tokens > self.above)
            and (
                self.daily_from is None
                or self.daily_to is None
                or self.daily_from <= second_of_day < self.daily_to
            )
        )


class PriceAlias(msgspec.Struct, frozen=True):
    """A name that is priced as another. ``*`` in the pattern stands for any text; one in the target takes it over.

    pattern, target: ``provider:name``. A pattern matches without regard to case. reference: see `PriceRow`.
    """

    pattern: str
    target: str
    reference: bool = False


class PriceList(NamedTuple):
    """What a price table is made of, as a file or a snapshot says it; nobody has checked yet that it fits."""

    rows: Sequence[PriceRow]
    label: str
    aliases: Sequence[PriceAlias]
    origin: str = ""
    """Where it was read, for errors."""


def sorted_rows(rows: Iterable[PriceRow]) -> tuple[PriceRow, ...]:
    """The rows in a table's order. Raises ConfigurationError if they overlap or hold impossible values."""
    ordered = tuple(sorted(rows, key=_order))
    for row in ordered:
        _validate(row)
    _refuse_overlaps(ordered)
    return ordered


def _order(row: PriceRow) -> tuple[str, bool, str, bool, int, int, int]:
    # Within a model, the last row that covers a call is the right one: for its own tier, its hours, its size.
    return (
        row.model,
        row.service_tier != ANY_TIER,
        row.service_tier,
        row.daily_from is not None,
        row.above,
        -MAX_INT64 if row.valid_from is None else row.valid_from,
        row.daily_from or 0,
    )


def _validate(row: PriceRow) -> None:
    provider, colon, name = row.model.partition(":")
    if not (provider and colon and name):
        _refuse(row, "expected a model as provider:name, '*' allowed")
    rates = [(bucket, getattr(row, bucket)) for bucket in (*BUCKETS, "per_request")]
    for field, rate in (*rates, *row.extra.items()):
        if rate is not None and not (isinstance(rate, int) and 0 <= rate <= _MAX_RATE):
            _refuse(row, f"{field} is {rate!r}, expected a whole number of pico-USD from 0 to {_MAX_RATE}")
    if row.extra and (wrong := next((n for n in row.extra if n in BUCKETS or not n.isidentifier()), None)):
        _refuse(row, f"extra rates can't have one called {wrong!r}")
    if row.above < 0:
        _refuse(row, f"above is {row.above}, expected 0 or more tokens")
    if row.valid_from is not None and row.valid_to is not None and row.valid_from >= row.valid_to:
        _refuse(row, "valid_to must be later than valid_from")
    if row.service_tier not in (ANY_TIER, tier_name(row.service_tier)):
        _refuse(row, f"service_tier is {row.service_tier!r}, expected {tier_name(row.service_tier)!r}")
    if row.daily_from is not None or row.daily_to is not None:
        begin, end = row.daily_from, row.daily_to
        if begin is None or end is None or not 0 <= begin < end <= DAY_SECONDS:
            _refuse(row, "its hours must be within one UTC day, from the earlier to the later")


def _refuse(row: PriceRow, complaint: str) -> None:
    raise ConfigurationError(f"price row {row.model!r}: {complaint}")


def _refuse_overlaps(rows: tuple[PriceRow, ...]) -> None:
    for _, group in groupby(rows, key=lambda row: _order(row)[:5]):
        alike = list(group)
        pairs = pairwise(alike) if alike[0].daily_from is None else _all_pairs(alike)
        for first, second in pairs:
            if _same_time(first, second) and _same_hours(first, second):
                raise ConfigurationError(
                    f"price rows for {first.model!r} overlap in time: give the earlier one a valid_to no later "
                    "than the other's valid_from"
                )


def _all_pairs(rows: list[PriceRow]) -> list[tuple[PriceRow, PriceRow]]:
    return [(first, second) for index, first in enumerate(rows) for second in rows[index + 1 :]]


def _same_time(first: PriceRow, second: PriceRow) -> bool:
    """Whether two rows, the second of which doesn't begin before the first, hold at some moment both."""
    return first.valid_to is None or second.valid_from is None or second.valid_from < first.valid_to


def _same_hours(first: PriceRow, second: PriceRow) -> bool:
    hours = (first.daily_from, first.daily_to, second.daily_from, second.daily_to)
    if None in hours:
        return True
    begin, end, other_begin, other_end = (hour or 0 for hour in hours)
    return begin < other_end and other_begin < end


def hash_of(rows: tuple[PriceRow, ...], aliases: tuple[PriceAlias, ...]) -> str:
    """The version of a table: 12 hex digits."""
    # Fields at their defaults are left out, so that a field added later doesn't change the version of old tables.
    defaults = PriceRow(model="")
    canonical: object = [
        {
            name: dict(sorted(value.items())) if isinstance(value, dict) else value
            for name in _HASHED
            if (value := getattr(row, name)) != getattr(defaults, name)
        }
        for row in rows
    ]
    if aliases:
        canonical = [canonical, aliases]
    import hashlib

    return hashlib.sha256(msgspec.json.encode(canonical)).hexdigest()[:12]


_HASHED = sorted(name for name in PriceRow.__struct_fields__ if name != "note")
