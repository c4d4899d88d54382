"""The rows of a price table: their fields, their rules, their order, and the hash over all of them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from decimal import Decimal
from itertools import combinations, groupby, pairwise
from typing import NamedTuple

import msgspec

from callboard.bus.errors import ConfigurationError
from callboard.bus.values.usage import USAGE_PARTS, unusual_tier

MAX_INT64 = 2**63 - 1
US_PER_SECOND = 1_000_000
DAY_SECONDS = 86_400
ANY_TIER = "*"
_MAX_RATE = 10**15  # pico-USD, equal to 1,000 USD; a larger rate is probably in the wrong unit

BUCKETS = ("input", "output", "reasoning", "cache_read", "cache_write_5m", "cache_write_1h")
"""The buckets that are counted and priced separately, in the order of `explain()`. Rates have the same names."""

_WRITES = ("cache_write_5m", "cache_write_1h")

NO_CACHE_RATE = "no cache rate: as input"
"""The reason for a cost that bills cached tokens as input."""


def tier_name(service_tier: str | None) -> str:
    """A service tier as named in rows: in lower case, and empty for any provider's default tier."""
    return unusual_tier(service_tier) or "" if service_tier else ""


class PriceRow(msgspec.Struct, frozen=True, kw_only=True):
    """The rates of one model, for a span of time, a range of sizes, and one service tier."""

    model: str
    """The model as ``provider:name``; ``*`` matches any text."""
    input: int | None = None
    """Pico-USD per input token; None if unknown."""
    output: int | None = None
    """Pico-USD per output token; None if unknown."""
    cache_read: int | None = None
    """Pico-USD per token read from a cache; None bills such tokens as input."""
    cache_write_5m: int | None = None
    """Pico-USD per token written to a cache for five minutes. If both write rates are None, written tokens are
    billed as input. If only this rate is None, it is unknown.
    """
    cache_write_1h: int | None = None
    """Pico-USD per token written to a cache for an hour; None as for `cache_write_5m`."""
    reasoning: int | None = None
    """Pico-USD per reasoning token; None bills such tokens as output."""
    per_request: int = 0
    """Pico-USD per call."""
    valid_from: int | None = None
    """The time from which the row is valid, in microseconds since the epoch; None means no limit."""
    valid_to: int | None = None
    """The time from which the row is no longer valid, in microseconds since the epoch; None means no limit."""
    above: int = 0
    """The row applies above this total number of input tokens. With 0, it applies to all calls."""
    note: str = ""
    """A note for people, which does not affect the table's version."""
    extra: dict[str, int] = {}
    """Rates of the counts in `TokenUsage.details`, in pico-USD per token or unit. A part of a bucket
    (`USAGE_PARTS`) without a rate here is billed as its bucket. Any other count without a rate here has no price.
    """
    service_tier: str = ""
    """The service tier, as `tier_name` gives it: empty for the usual one, ``*`` for any without its own row."""
    daily_from: int | None = None
    """The start of the row's hours in each UTC day, in seconds since midnight; None with `daily_to` is all day.
    Within its hours, a row with hours takes precedence over a row for all day.
    """
    daily_to: int | None = None
    """The end of the row's hours, in seconds since midnight. The end itself is not included."""
    reference: bool = False
    """Whether the row belongs to a published table. Such a row applies only if no other row applies."""

    def rate(self, name: str) -> int | None:
        """The rate for a bucket or a detail, in pico-USD; None if unknown.

        Args:
            name: One of `BUCKETS`, or a name of `TokenUsage.details`.
        """
        billed = self.rate_name(name)
        if billed not in BUCKETS:
            return self.extra.get(billed)
        value: int | None = getattr(self, billed)
        return value

    def per_million(self, name: str) -> Decimal | None:
        """The rate in USD per million, exactly; None if unknown."""
        rate = self.rate(name)
        return None if rate is None else Decimal(rate) / 10**6

    def rate_name(self, name: str) -> str:
        """The name of the rate that `rate()` returns. If the row bills the bucket as another bucket, this is the
        other bucket's name.

        A part of a bucket without a rate is billed as the bucket. Reasoning without a rate is billed as output.
        Cached tokens without a rate are billed as uncached tokens; for example, cached audio as audio.

        Args:
            name: One of `BUCKETS`, or a name of `TokenUsage.details`.
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
        """Whether a bucket or a detail belongs to a cache and is billed as input, see `NO_CACHE_RATE`."""
        return name not in self.extra and self._cached_as_input(USAGE_PARTS.get(name, name))

    def _cached_as_input(self, bucket: str) -> bool:
        if self.input is None:
            return False
        if bucket == "cache_read":
            return self.cache_read is None
        return bucket in _WRITES and self.cache_write_5m is None and self.cache_write_1h is None

    def covers(self, at_us: int, total_input_tokens: int) -> bool:
        """Whether the row is valid for a call.

        Args:
            at_us: The time of the call, in microseconds since the epoch.
            total_input_tokens: The number of input tokens of the call, cached ones included.
        """
        return self.valid_at(at_us, total_input_tokens, at_us // US_PER_SECOND % DAY_SECONDS)

    def valid_at(self, at_us: int, total_input_tokens: int, second_of_day: int) -> bool:
        """Whether the row is valid for a call, with the time of day as a separate argument.

        Args:
            at_us: The time of the call, in microseconds since the epoch.
            total_input_tokens: The number of input tokens of the call, cached ones included.
            second_of_day: The time of day in seconds since midnight UTC.
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
    """A name that is priced as another.

    ``*`` in the pattern matches any text. ``*`` in the target stands for the matched text. Matching ignores case.
    """

    pattern: str
    """The name, as ``provider:name``."""
    target: str
    """The name with the prices, as ``provider:name``."""
    reference: bool = False
    """Whether the alias belongs to a published table, as in `PriceRow`."""


class PriceList(NamedTuple):
    """The unchecked contents of a price table, from a file or a snapshot."""

    rows: Sequence[PriceRow]
    label: str
    """The table's name, for people."""
    aliases: Sequence[PriceAlias]
    origin: str = ""
    """The place from which the list was read, for errors."""


def sorted_rows(rows: Iterable[PriceRow]) -> tuple[PriceRow, ...]:
    """The rows in a table's order."""
    ordered = tuple(sorted(rows, key=_order))
    for row in ordered:
        _validate(row)
    _refuse_overlaps(ordered)
    return ordered


def _order(row: PriceRow) -> tuple[str, bool, str, bool, int, int, int]:
    # If several rows of a model cover a call, the last one applies. So rows for a tier, for hours or for larger
    # sizes are sorted last.
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
        _refuse(row, f"extra rates can't have the name {wrong!r}")
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
        pairs = pairwise(alike) if alike[0].daily_from is None else combinations(alike, 2)
        for first, second in pairs:
            if _same_time(first, second) and _same_hours(first, second):
                raise ConfigurationError(
                    f"price rows for {first.model!r} overlap in time: give the earlier one a valid_to no later "
                    "than the other's valid_from"
                )


def _same_time(first: PriceRow, second: PriceRow) -> bool:
    """Whether there is a time at which both rows are valid. The second row starts no earlier than the first."""
    return first.valid_to is None or second.valid_from is None or second.valid_from < first.valid_to


def _same_hours(first: PriceRow, second: PriceRow) -> bool:
    hours = (first.daily_from, first.daily_to, second.daily_from, second.daily_to)
    if None in hours:
        return True
    begin, end, other_begin, other_end = (hour or 0 for hour in hours)
    return begin < other_end and other_begin < end


def hash_of(rows: tuple[PriceRow, ...], aliases: tuple[PriceAlias, ...]) -> str:
    """The version of a table: 12 hex digits."""
    # Fields with default values are left out, so that a field added later doesn't change the version of old
    # tables.
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


# --- Finding the rows of a model ---
#
# A model has up to four names: the requested name and the served name, each under the adapter and under the
# provider with the prices (`priced_as`). For each name, the rows are tried in this order:
#
#   1. rows for exactly this ``provider:name``
#   2. rows for the target of the first matching alias (an alias without ``*`` before those with it)
#   3. rows for the name without the date at its end (``-2025-08-06`` or ``-20250806``), and for its aliases
#   4. if there are none so far: rows for the targets of aliases of whole providers (``azure:*`` is ``openai:*``)
#   5. rows with ``*``, the one with more literal characters first
#
# A user's rows always take precedence over a reference table's. Among the user's rows, rows for the adapter's own
# name come first. Among the reference's rows, rows for the provider's name come first, because an adapter may have
# any name.


_DATED = re.compile(r"[-@](?:\d{4}-\d{2}-\d{2}|\d{8})$")
_CACHE_SIZE = 4096
_MOST_NAMES = 12  # the longest chain of aliases from one name; a longer chain is circular


class Match(msgspec.Struct, frozen=True):
    """A row that may price a model."""

    row: PriceRow
    rule: str
    """A text about how the row was found."""


class Matcher:
    """The rows and aliases of one table, indexed."""

    def __init__(self, rows: Iterable[PriceRow], aliases: tuple[PriceAlias, ...]) -> None:
        exact: dict[str, list[PriceRow]] = {}
        patterns: dict[str, list[PriceRow]] = {}
        for row in rows:
            (patterns if "*" in row.model else exact).setdefault(row.model, []).append(row)
        self._exact = exact
        self._patterns = [
            (pattern.split("*"), patterns[pattern]) for pattern in sorted(patterns, key=_specificity)
        ]
        self._plain: dict[str, str] = {}
        self._starred: dict[str, list[tuple[list[str], PriceAlias]]] = {}  # by provider; "" means any provider
        for alias in aliases:
            pattern = alias.pattern.lower()
            if "*" in pattern:
                provider = pattern.partition(":")[0]
                key = "" if "*" in provider else provider
                self._starred.setdefault(key, []).append((pattern.split("*"), alias))
            else:
                self._plain.setdefault(pattern, alias.target)
        self._cache: dict[tuple[str, str | None, str | None], tuple[Match, ...]] = {}

    def matches(self, model: str, served_model: str | None, priced_as: str | None) -> tuple[Match, ...]:
        """All rows that may price a model at any time, size and tier, the first in rank first."""
        key = (model, served_model, priced_as)
        found = self._cache.get(key)
        if found is None:
            if len(self._cache) >= _CACHE_SIZE:
                self._cache.clear()
            found = self._cache[key] = tuple(self._ranked(*key))
        return found

    def _ranked(self, model: str, served_model: str | None, priced_as: str | None) -> list[Match]:
        direct = [match for name in _names(model, model, served_model) for match in self._search(name)]
        if priced_as is None:
            listed = [*direct]
        else:
            other = [match for name in _names(priced_as, model, served_model) for match in self._search(name)]
            listed = [match for match in direct if not match.row.reference]
            listed += [*other, *(match for match in direct if match.row.reference)]
        return sorted(listed, key=lambda match: match.row.reference)

    def _search(self, name: str) -> Iterator[Match]:
        # Within a group, the last row comes first: the row for the exact tier, for hours, or for the larger size.
        chain = self._all_names(name)
        for step, how in chain.items():
            for row in reversed(self._exact.get(step, ())):
                yield Match(row, how or "this name")
        for step, how in chain.items():
            text = step.lower()
            for parts, rows in self._patterns:
                if fits([part.lower() for part in parts], text):
                    yield from (Match(row, f"{how}, pattern".removeprefix(", ")) for row in reversed(rows))

    def _all_names(self, name: str) -> dict[str, str]:
        """A name and the names of its aliases, until one has rows. Each has a text about how it was found."""
        names: dict[str, str] = {}
        waiting = [(name, "")]
        while waiting and len(names) < _MOST_NAMES:
            chained = dict(self._chain(*waiting.pop(0), set(names)))
            names |= chained
            if any(step in self._exact for step in chained):
                break
            for step, how in chained.items():
                for parts, alias in self._aliases_with_star(step):
                    if "*" in alias.target and fits(parts, step.lower()):
                        target = alias.target.replace("*", _covered(parts, step))
                        waiting.append((target, _then(how, f"alias {alias.pattern} is {target}")))
        return names

    def _chain(self, name: str, how: str, seen_names: set[str]) -> Iterator[tuple[str, str]]:
        """Yield the names that a model's aliases lead to, and the same names without a date."""
        if name in seen_names or len(seen_names) >= _MOST_NAMES:
            return
        seen_names.add(name)
        yield name, how
        fixed = self._fixed_alias(name)
        if fixed is not None:
            pattern, target = fixed
            yield from self._chain(target, _then(how, f"alias {pattern} is {target}"), seen_names)
        undated = _DATED.sub("", name)
        if undated != name:
            yield from self._chain(undated, _then(how, f"{undated} without its date"), seen_names)

    def _fixed_alias(self, name: str) -> tuple[str, str] | None:
        text = name.lower()
        if text in self._plain:
            return text, self._plain[text]
        for parts, alias in self._aliases_with_star(name):
            if "*" not in alias.target and fits(parts, text):
                return alias.pattern, alias.target
        return None

    def _aliases_with_star(self, name: str) -> tuple[tuple[list[str], PriceAlias], ...]:
        provider = name.lower().partition(":")[0]
        return (*self._starred.get(provider, ()), *self._starred.get("", ()))


def _then(how: str, step: str) -> str:
    return f"{how}, {step}" if how else step


def fits(parts: list[str], text: str) -> bool:
    """Whether a text matches a pattern. `parts` are the pattern's texts between its stars."""
    if len(parts) == 1:
        return text == parts[0]
    first, *middle, last = parts
    if len(text) < len(first) + len(last) or not (text.startswith(first) and text.endswith(last)):
        return False
    at, end = len(first), len(text) - len(last)
    for part in middle:
        found = text.find(part, at, end)
        if found < 0:
            return False
        at = found + len(part)
    return True


def _covered(parts: list[str], name: str) -> str:
    """The text that the star of a pattern matches."""
    return name[len(parts[0]) : len(name) - len(parts[-1])] if len(parts) == 2 else ""


def _names(under: str, model: str, served_model: str | None) -> list[str]:
    """The names of a call under one provider. The served model is first, because it is billed."""
    provider = under.partition(":")[0]
    if not served_model:
        return [under]
    served = served_model.removeprefix(model.partition(":")[0] + ":").removeprefix(provider + ":")
    full = f"{provider}:{served}"
    return [under] if full == under else [full, under]


def _specificity(pattern: str) -> tuple[int, str]:
    return (-len(pattern.replace("*", "")), pattern)
