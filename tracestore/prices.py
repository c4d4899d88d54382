"""Price tables: what a call costs is a function of its model, its usage, its moment and one immutable table.

**Units.** A rate is integer pico-USD per token, which is the same number as micro-USD per million tokens: 3 USD
per million is 3_000_000. A cost is integer nano-USD. The products of a call are summed exactly in pico-USD and
rounded once, half up. No float touches money.

**Buckets.** `TokenUsage` counts are disjoint, so each bucket has one rate and no token is billed twice. Reasoning
tokens are a part of the output; they take the `reasoning` rate if there is one, else the output's.

**Which row.** Of the rows that are valid at the moment of the call and for its size, the most specific wins:

1. a row for exactly this ``provider:name``;
2. a row for the name without its date, if the name ends in one (``-2025-08-06`` or ``-20250806``);
3. a row with ``*`` in it, which stands for any text; among those, the one with more literal characters.

A row may begin above a number of input tokens (`above`): such tiers are cliffs. Once the total input, cached or
not, is *greater* than the threshold, all tokens of the call pay the tier's rates.

**Unknown is not zero.** No row, or no rate for a bucket that has tokens, or counts that contradict each other:
the cost is None, with the reason.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path

import msgspec

from bus.errors import ConfigurationError
from bus.usage import Cost, CostSource, TokenUsage

MAX_INT64 = 2**63 - 1
_MAX_RATE = 10**15  # pico-USD: 1,000 USD per token; beyond that it is a mistake in the unit
_DATED = re.compile(r"(?:-\d{4}-\d{2}-\d{2}|-\d{8})$")
_CACHE_SIZE = 4096

BUCKETS = ("input", "output", "reasoning", "cache_read", "cache_write_5m", "cache_write_1h")
"""What is counted separately, in the order of `explain()`; also the names of the rates."""

TOO_LARGE = "cost too large"
INCONSISTENT = "usage inconsistent"
"""Reasons that the SQL of repricing gives in the same words."""


class PriceRow(msgspec.Struct, frozen=True, kw_only=True):
    """The rates of one model for a span of time and of sizes.

    model: ``provider:name``; ``*`` stands for any text.
    input, output, cache_read, cache_write_5m, cache_write_1h: pico-USD per token; None: not known.
    reasoning: pico-USD per token; None: as output. per_request: pico-USD per call.
    valid_from, valid_to: microseconds UTC, from inclusive to exclusive; None: without limit.
    above: applies to calls with more input tokens in total than this; 0: to all.
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

    def rate(self, bucket: str) -> int | None:
        """The rate for one of `BUCKETS`, in pico-USD per token; None if it is not known."""
        if bucket == "reasoning" and self.reasoning is None:
            return self.output
        value: int | None = getattr(self, bucket)
        return value

    def covers(self, at_us: int, total_input_tokens: int) -> bool:
        """Whether the row is valid at that moment and for a call of that size."""
        return (
            (self.valid_from is None or at_us >= self.valid_from)
            and (self.valid_to is None or at_us < self.valid_to)
            and (self.above == 0 or total_input_tokens > self.above)
        )


class Component(msgspec.Struct, frozen=True):
    """One line of a bill. count: tokens, or 1 request. rate: pico-USD for one. pico_usd: their product."""

    name: str
    count: int
    rate: int
    pico_usd: int


class Explanation(msgspec.Struct, frozen=True):
    """How a cost came about. The components sum to `pico_usd` exactly; the cost is that sum, rounded once.

    row: the price row that applied. components is empty, and pico_usd None, if the call is unpriced.
    """

    model: str
    row: PriceRow | None
    components: tuple[Component, ...]
    pico_usd: int | None
    cost: Cost


class PriceTable:
    """An immutable set of price rows, known by the hash of its contents.

    version: the first 12 hex digits of the SHA-256 of its rows; equal tables have equal versions.
    label: for people. Raises ConfigurationError if rows overlap or hold impossible values.
    """

    __slots__ = ("_cache", "_exact", "_patterns", "label", "rows", "version")

    def __init__(self, rows: Iterable[PriceRow], label: str = "") -> None:
        self.rows: tuple[PriceRow, ...] = tuple(sorted(rows, key=_order))
        for row in self.rows:
            _validate(row)
        _refuse_overlaps(self.rows)
        self.label = label
        self.version = _hash(self.rows)
        self._exact: dict[str, tuple[PriceRow, ...]] = {}
        patterns: dict[str, tuple[PriceRow, ...]] = {}
        for row in self.rows:
            group = patterns if "*" in row.model else self._exact
            group[row.model] = (*group.get(row.model, ()), row)
        self._patterns = [
            (re.compile(".*".join(map(re.escape, pattern.split("*")))), group)
            for pattern, group in sorted(patterns.items(), key=lambda item: _specificity(item[0]))
        ]
        self._cache: dict[str, tuple[PriceRow, ...]] = {}

    @classmethod
    def from_rows(cls, rows: Iterable[PriceRow], label: str = "") -> PriceTable:
        """A table of these rows."""
        return cls(rows, label)

    @classmethod
    def from_yaml(cls, path: Path | str) -> PriceTable:
        """The newest table of a price file; its form is described in `tracestore.price_files`.

        Raises ConfigurationError, naming the file, the key and what was expected.
        """
        return cls.all_from_yaml(path)[-1]

    @classmethod
    def all_from_yaml(cls, path: Path | str) -> tuple[PriceTable, ...]:
        """All tables of a price file, oldest first. Raises ConfigurationError."""
        from .price_files import load

        return load(Path(path))

    @classmethod
    def default(cls) -> PriceTable:
        """The table of who has none: models on this machine cost nothing, everything else is unpriced."""
        return cls((_LOCAL,), "default: local models are free")

    def merged(self, overrides: PriceTable, label: str | None = None) -> PriceTable:
        """A table in which the rows of `overrides` replace all rows of the same models here."""
        replaced = {row.model for row in overrides.rows}
        kept = [row for row in self.rows if row.model not in replaced]
        return PriceTable([*kept, *overrides.rows], overrides.label if label is None else label)

    def find(
        self, model: str, at_us: int, total_input_tokens: int = 0, *, served_model: str | None = None
    ) -> PriceRow | None:
        """The row for a ``provider:name`` at a moment (microseconds UTC) and size; None if there is none."""
        candidates = self.candidates(model, served_model)
        return next((row for row in candidates if row.covers(at_us, total_input_tokens)), None)

    def candidates(self, model: str, served_model: str | None = None) -> tuple[PriceRow, ...]:
        """All rows that may price a model, at any time or size, the most specific first.

        served_model: what the provider says it ran, with or without ``provider:``. Rows that fit it go before
        rows that fit only `model`, because it is the served model that is billed.
        """
        if served_model:
            provider = model.partition(":")[0]
            full = served_model if served_model.startswith(f"{provider}:") else f"{provider}:{served_model}"
            if full != model:
                return (*self._rows_for(full), *self._rows_for(model))
        return self._rows_for(model)

    def price(self, model: str, usage: TokenUsage, at_us: int, *, served_model: str | None = None) -> Cost:
        """What a call costs under this table.

        model: ``provider:name`` as routed. at_us: when the attempt started, microseconds UTC. served_model: the
        model that the provider says it ran, if it did.
        The cost's source is ``computed``, or ``unpriced`` with a reason; it is never zero for want of a price.
        """
        return self.explain(model, usage, at_us, served_model=served_model).cost

    def explain(
        self, model: str, usage: TokenUsage, at_us: int, *, served_model: str | None = None
    ) -> Explanation:
        """Like `price()`, with every component: count times rate."""
        row = self.find(model, at_us, usage.total_input_tokens, served_model=served_model)
        counts = _counts(usage)
        if counts is None:
            return self._unpriced(model, row, INCONSISTENT)
        if row is None:
            return self._unpriced(model, None, f"no price for {model}")
        components = []
        for bucket, count in counts.items():
            rate = row.rate(bucket)
            if count and rate is None:
                return self._unpriced(model, row, f"no {bucket} rate for {model}")
            if count and rate is not None:
                components.append(Component(bucket, count, rate, count * rate))
        if row.per_request:
            components.append(Component("request", 1, row.per_request, row.per_request))
        pico = sum(component.pico_usd for component in components)
        if pico > MAX_INT64:
            return self._unpriced(model, row, TOO_LARGE)
        cost = Cost(round_to_nano(pico), CostSource.COMPUTED, self.version)
        return Explanation(model, row, tuple(components), pico, cost)

    def segments(self, model: str, served_model: str | None = None) -> Iterator[Segment]:
        """The table's answer for one model as disjoint boxes of time and size: what SQL can join with.

        It is obtained by asking at each corner where the answer can change, so it is the same answer.
        """
        candidates = self.candidates(model, served_model)
        times = sorted({t for row in candidates for t in (row.valid_from, row.valid_to) if t is not None})
        sizes = sorted({row.above for row in candidates if row.above})
        for since, until in pairwise([-MAX_INT64, *times, MAX_INT64]):
            for above, up_to in pairwise([-1, *sizes, MAX_INT64]):
                row = next((row for row in candidates if row.covers(since, above + 1)), None)
                if row is not None:
                    yield Segment(since, until, above, up_to, row)

    def _rows_for(self, model: str) -> tuple[PriceRow, ...]:
        found = self._cache.get(model)
        if found is None:
            if len(self._cache) >= _CACHE_SIZE:
                self._cache.clear()
            found = self._cache[model] = tuple(self._search(model))
        return found

    def _search(self, model: str) -> Iterator[PriceRow]:
        # Within a group the highest tier comes first, so that the first row that covers a call is the right one.
        yield from reversed(self._exact.get(model, ()))
        undated = _DATED.sub("", model)
        if undated != model:
            yield from reversed(self._exact.get(undated, ()))
        for pattern, rows in self._patterns:
            if pattern.fullmatch(model):
                yield from reversed(rows)

    def _unpriced(self, model: str, row: PriceRow | None, reason: str) -> Explanation:
        return Explanation(model, row, (), None, Cost(None, CostSource.UNPRICED, self.version, reason))

    def __len__(self) -> int:
        return len(self.rows)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PriceTable) and self.version == other.version

    def __hash__(self) -> int:
        return hash(self.version)

    def __repr__(self) -> str:
        return f"PriceTable({self.label!r}, version={self.version!r}, rows={len(self.rows)})"


class Segment(msgspec.Struct, frozen=True):
    """Where one row applies: since <= moment < until, and above < total input tokens <= up_to."""

    since: int
    until: int
    above: int
    up_to: int
    row: PriceRow


_LOCAL = PriceRow(
    model="local*:*",
    input=0,
    output=0,
    cache_read=0,
    cache_write_5m=0,
    cache_write_1h=0,
    note="runs on this machine: no charge",
)


def round_to_nano(pico_usd: int) -> int:
    """Nano-USD for pico-USD, half up."""
    return pico_usd // 1000 + (pico_usd % 1000 >= 500)


def _counts(usage: TokenUsage) -> dict[str, int] | None:
    """The tokens of each bucket; None if the counts contradict each other."""
    reasoning = usage.reasoning_tokens or 0
    counts = {
        "input": usage.input_tokens,
        "output": usage.output_tokens - reasoning,
        "reasoning": reasoning,
        "cache_read": usage.cached_input_tokens,
        "cache_write_5m": usage.cache_creation_input_tokens - usage.cache_creation_1h_input_tokens,
        "cache_write_1h": usage.cache_creation_1h_input_tokens,
    }
    return None if min(counts.values()) < 0 else counts


def _order(row: PriceRow) -> tuple[str, int, int]:
    return (row.model, row.above, -MAX_INT64 if row.valid_from is None else row.valid_from)


def _specificity(pattern: str) -> tuple[int, str]:
    return (-len(pattern.replace("*", "")), pattern)


def _validate(row: PriceRow) -> None:
    provider, colon, name = row.model.partition(":")
    if not (provider and colon and name):
        raise ConfigurationError(f"price row {row.model!r}: expected a model as provider:name, '*' allowed")
    for field in (*BUCKETS, "per_request"):
        rate = getattr(row, field)
        if rate is not None and not (isinstance(rate, int) and 0 <= rate <= _MAX_RATE):
            raise ConfigurationError(
                f"price row {row.model!r}: {field} is {rate!r}, expected a whole number of pico-USD from 0 to "
                f"{_MAX_RATE}"
            )
    if row.above < 0:
        raise ConfigurationError(f"price row {row.model!r}: above is {row.above}, expected 0 or more tokens")
    if row.valid_from is not None and row.valid_to is not None and row.valid_from >= row.valid_to:
        raise ConfigurationError(f"price row {row.model!r}: valid_to must be later than valid_from")


def _refuse_overlaps(rows: tuple[PriceRow, ...]) -> None:
    for first, second in pairwise(rows):
        if (first.model, first.above) == (second.model, second.above) and (
            first.valid_to is None or second.valid_from is None or second.valid_from < first.valid_to
        ):
            raise ConfigurationError(
                f"price rows for {first.model!r} overlap in time: give the earlier one a valid_to no later than "
                "the other's valid_from"
            )


def _hash(rows: tuple[PriceRow, ...]) -> str:
    # Fields at their defaults are left out, so that a field added later doesn't change the version of old tables.
    defaults = PriceRow(model="")
    canonical = [
        {
            name: value
            for name in sorted(PriceRow.__struct_fields__)
            if name != "note" and (value := getattr(row, name)) != getattr(defaults, name)
        }
        for row in rows
    ]
    return hashlib.sha256(msgspec.json.encode(canonical)).hexdigest()[:12]
