"""The columns of a call that hold its usage and its costs, named after the fields of `TokenUsage` and `Cost`."""

from __future__ import annotations

from operator import attrgetter
from typing import Any

import msgspec

from callboard.bus.values.usage import Cost, CostSource, TokenUsage, UsageSource

from ...codec import storable_text
from ..connection import Row, SqlValue

TOKEN_COUNTS = tuple(name for name in TokenUsage.__struct_fields__ if name.endswith("_tokens"))
"""The counts of tokens; columns and fields have the same names."""

USAGE_COLUMNS = (*TOKEN_COUNTS, "usage_source", "usage_raw", "usage_details", "service_tier")

_COST_FIELDS = {
    "nano": "nano_usd",
    "source": "source",
    "version": "pricing_version",
    "reason": "reason",
    "computed_nano": "computed_nano_usd",
}
"""The columns of a cost without their prefix, and the fields of `Cost`."""


def cost_columns(prefix: str) -> tuple[str, ...]:
    """The columns of a cost. The prefix ``cost`` is the cost at call time, ``now`` the one that is asked for."""
    return tuple(f"{prefix}_{name}" for name in _COST_FIELDS)


_counts_in = attrgetter(*TOKEN_COUNTS)
_cost_in = attrgetter(*_COST_FIELDS.values())
_NO_USAGE: list[SqlValue] = [None] * len(USAGE_COLUMNS)
_NO_COST: list[SqlValue] = [None] * len(_COST_FIELDS)
_details_decoder = msgspec.json.Decoder(dict[str, int])
_tags_decoder = msgspec.json.Decoder(dict[str, str])


def usage_values(usage: TokenUsage | None) -> list[SqlValue]:
    """The values of `USAGE_COLUMNS`."""
    if usage is None:
        return _NO_USAGE
    raw = None if usage.raw is None else bytes(usage.raw).decode("utf-8", "replace")
    details = json_text(usage.details) if usage.details else None
    return [*_counts_in(usage), str(usage.source), raw, details, usage.service_tier]


def usage_of(values: Row | list[Any]) -> TokenUsage | None:
    """The usage behind the values of `USAGE_COLUMNS`; None if a call has none."""
    *counts, source, raw, details, tier = values
    if source is None:
        return None
    known = {name: count for name, count in zip(TOKEN_COUNTS, counts, strict=True) if count is not None}
    return TokenUsage(
        **known,
        source=UsageSource(source),
        raw=None if raw is None else msgspec.Raw(raw.encode()),
        details=None if details is None else _details_decoder.decode(details),
        service_tier=tier,
    )


def cost_values(cost: Cost | None) -> list[SqlValue]:
    """The values of `cost_columns`."""
    if cost is None:
        return _NO_COST
    nano, source, *others = _cost_in(cost)
    return [nano, str(source), *others]


def cost_of(values: Row) -> Cost | None:
    """The cost behind the values of `cost_columns`; None if a call has none."""
    fields = dict(zip(_COST_FIELDS.values(), values, strict=True))
    source = fields.pop("source")
    return None if source is None else Cost(source=CostSource(source), **fields)


def tags_of(text: str | None) -> dict[str, str]:
    """Stored tags as a dict."""
    return _tags_decoder.decode(text) if text else {}


def json_text(value: object) -> str:
    """The JSON of a value. Half a surrogate pair in it becomes a question mark."""
    try:
        return msgspec.json.encode(value).decode()
    except UnicodeError:
        return msgspec.json.encode(_readable(msgspec.to_builtins(value))).decode()


def _readable(value: object) -> object:
    match value:
        case str():
            return storable_text(value)
        case dict():
            return {_readable(name): _readable(inner) for name, inner in value.items()}
        case list() | tuple():
            return [_readable(inner) for inner in value]
        case _:
            return value
