"""The conversion of the data of genai-prices (github.com/pydantic/genai-prices, MIT) to a snapshot.

The data needs care in these points:

- A price applies from its start date until the next price's start. Before the first date, the first price applies.
- Hours of the day are in the same list as dates, without a date. They are assumed to apply from the last date in
  the list on.
- Tiers are cliffs above a number of input tokens, and each rate has its own tiers. A row here has all rates of one
  size.
- A variant (batch, or a service tier) holds only the rates that differ from the standard price.
- A few figures are not whole pico-USD (float noise of resellers, hourly rates divided by 3600). They are rounded
  half up and counted in `left_out`, like everything that is left out.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import ROUND_HALF_UP, Decimal
from typing import TypeAlias

from callboard.adapters.provider import published_vendor
from callboard.bus.clock import to_us
from callboard.bus.errors import ConfigurationError
from callboard.bus.values.base import Json, JsonObject
from callboard.bus.values.usage import tier_in

from .files import FORMAT, Snapshot, SnapshotModel
from .rows import BUCKETS, DAY_SECONDS

_Fields: TypeAlias = dict[str, int | str | dict[str, int]]
_Rates: TypeAlias = dict[str, Decimal | list[tuple[int, Decimal]]]

LICENCE = "MIT, Copyright (c) Pydantic Services Inc. 2025 to present"

_BUCKETS = {
    "input_mtok": "input",
    "output_mtok": "output",
    "cache_read_mtok": "cache_read",
    "cache_write_mtok": "cache_write_5m",
    "cache_write_5m_mtok": "cache_write_5m",
    "cache_write_1h_mtok": "cache_write_1h",
    "output_reasoning_mtok": "reasoning",
}
_EXTRA = {  # Callboard's name, and the number of Callboard's units that the published price is for
    "input_audio_mtok": ("audio_input", 10**6),
    "input_image_mtok": ("image_input", 10**6),
    "input_video_mtok": ("video_input", 10**6),
    "cache_audio_read_mtok": ("audio_cache_read", 10**6),
    "cache_image_read_mtok": ("image_cache_read", 10**6),
    "output_audio_mtok": ("audio_output", 10**6),
    "output_image_mtok": ("image_output", 10**6),
    "output_video_mtok": ("video_output", 10**6),
    "output_citation_mtok": ("citation_tokens", 10**6),
    "web_searches_kcount": ("web_search", 1000),
    "storage_searches_kcount": ("file_search", 1000),
    "audio_hours": ("audio_second", 3600),
    "input_audio_hours": ("audio_second", 3600),
    "input_document_kpages": ("page", 1000),
    "input_annotated_document_kpages": ("annotated_page", 1000),
    "input_mchars": ("character", 10**6),
}
_TIERS = {
    ("processing", "batch"): "batch",
    ("service_tier", "flex"): "flex",
    ("service_tier", "priority"): "priority",
    ("service_tier", "fast"): "fast",
    ("speed", "fast"): "fast",
    ("service_tier", "default"): "",
}
_DATE_AT_END = re.compile(r"(?:\[-@\]|-)(?:\\d\{8\}|\\d\{4\}-\\d\{2\}-\\d\{2\})\$$")
_PLAIN = re.compile(r"(?:[\w/@:=-]|\\\W)+")
_RUNS_ANYWHERE = re.compile(r"claude-(?:v?[123]\b|(?:opus|sonnet|haiku)-4-[015]\b)")
"""Anthropic's models before Claude Opus 4.6. They can't be limited to one geography."""
_NOT_SPEECH = "^(?!.*-[tT][tT][sS](?:$|-))"


def convert(data: Json, *, source: str, day: str) -> Snapshot:
    """The snapshot of a list of providers, or of an object that has the list under ``providers``."""
    providers = data.get("providers") if isinstance(data, dict) else data
    if not isinstance(providers, list) or not providers:
        raise ConfigurationError(f"{source}: expected genai-prices' list of providers")
    left_out: Counter[str] = Counter()  # reasons, each with the number of models
    try:
        models = [model for provider in providers for model in _provider(_object(provider), left_out)]
        aliases = tuple(alias for provider in providers for alias in _general_aliases(_object(provider)))
    except (KeyError, TypeError, ValueError, ArithmeticError) as error:
        raise ConfigurationError(
            f"{source}: not in a known format of genai-prices: {type(error).__name__} {error}"
        ) from error
    return Snapshot(
        format=FORMAT,
        date=day,
        source=source,
        licence=LICENCE,
        models=tuple(models),
        aliases=aliases,
        left_out=dict(sorted(left_out.items())),
    )


def _object(value: Json) -> JsonObject:
    if not isinstance(value, dict):
        raise TypeError(f"expected an object, found {str(value)[:40]!r}")
    return value


def _objects(value: Json) -> list[JsonObject]:
    return [_object(item) for item in value] if isinstance(value, list) else []


def _general_aliases(provider: JsonObject) -> Iterator[tuple[str, str]]:
    name = published_vendor(str(provider["id"]))
    if name != provider["id"]:
        yield f"{provider['id']}:*", f"{name}:*"
    others = provider.get("fallback_model_providers")
    for other in others if isinstance(others, list) else ():
        yield f"{name}:*", f"{published_vendor(str(other))}:*"
    for model in _objects(provider["models"]):
        for text in _without_speech(_object(model["match"])):
            # This pattern is yielded before the model's own and leads to no price.
            yield f"{name}:{text}*-tts*", f"{name}:{model['id']}-tts"


def _without_speech(clause: JsonObject) -> Iterator[str]:
    match clause:
        case {"or": list(parts)}:
            for part in parts:
                yield from _without_speech(_object(part))
        case {"and": [{"starts_with": str(text)}, {"regex": str(regex)}]} if regex == _NOT_SPEECH:
            yield text


def _provider(provider: JsonObject, left_out: Counter[str]) -> Iterator[SnapshotModel]:
    name = published_vendor(str(provider["id"]))
    for model in _objects(provider["models"]):
        notes: set[str] = set()
        rows = list(_model_rows(model, notes))
        if name == "anthropic" and not _RUNS_ANYWHERE.match(str(model["id"])):
            rows += [_in_the_us(row) for row in rows]
        names = dict.fromkeys(_patterns(_object(model["match"]), notes))
        left_out.update(notes)
        if not rows:
            left_out["models without a known rate"] += 1
            continue
        model_id = str(model["id"])
        names[model_id.lower()] = None
        if model_id in names:
            del names[model_id]
        called, window = model.get("name"), model.get("context_window")
        yield SnapshotModel(
            f"{name}:{model_id}",
            tuple(rows),
            tuple(f"{name}:{text}" for text in names),
            name=called if isinstance(called, str) and called else None,
            context_window=window if isinstance(window, int) and window > 0 else None,
            deprecated=model.get("deprecated") is True,
        )


# --- Names of models ---


def _patterns(clause: JsonObject, left_out: set[str]) -> Iterator[str]:
    match clause:
        case {"equals": str(text)}:
            yield text
        case {"starts_with": str(text)}:
            yield f"{text}*"
        case {"ends_with": str(text)}:
            yield f"*{text}"
        case {"contains": str(text)}:
            yield f"*{text}*"
        case {"or": list(parts)}:
            for part in parts:
                yield from _patterns(_object(part), left_out)
        case {"and": [{"starts_with": str(text)}, {"regex": str(regex)}]} if regex == _NOT_SPEECH:
            yield f"{text}*"  # `_without_speech` handles the other models.
        case {"regex": str(regex)}:
            yield from _from_regex(regex, left_out)
        case _:
            left_out.add("names with an unknown rule")


def _from_regex(regex: str, left_out: set[str]) -> Iterator[str]:
    """The names that a simple expression matches: one text, a text with any digit after it, or a text with a date.

    A date is left out of the result, because matching ignores dates.
    """
    text = _DATE_AT_END.sub("", regex).removesuffix("$")
    digit = text.endswith(r"\d")
    text = text.removesuffix(r"\d")
    if not text.startswith("^") or not _PLAIN.fullmatch(text[1:]):
        left_out.add("names with an unknown rule")
        return
    plain = re.sub(r"\\(.)", r"\1", text[1:])
    if digit:
        yield from (f"{plain}{figure}*" for figure in range(10))
    else:
        yield plain


# --- Rates ---


def _model_rows(model: JsonObject, left_out: set[str]) -> Iterator[_Fields]:
    prices = model["prices"]
    dated: list[JsonObject] = _objects(prices) if isinstance(prices, list) else [{"prices": prices}]
    starts = sorted({start for entry in dated if (start := _start(entry)) is not None})
    standard = [entry for entry in dated if not _is_hours(entry)]
    variants = _variants(model, left_out)
    cuts = sorted({*starts, *(since for _, since, _ in variants if since is not None)})
    for index, since in enumerate([None, *cuts]):
        until = cuts[index] if index < len(cuts) else None
        at = since if since is not None else (cuts[0] - 1 if cuts else 0)
        base = _rates(_object(_in_force(standard, at)["prices"]), left_out)
        span: _Fields = {
            name: moment for name, moment in (("valid_from", since), ("valid_to", until)) if moment is not None
        }
        yield from _sizes(base, span, left_out)
        if not starts or (since is not None and since >= starts[-1]):
            for entry in dated:
                if _is_hours(entry):
                    rates = _rates(_object(entry["prices"]), left_out)
                    for hours in _hours(_object(entry["constraint"])):
                        yield from _sizes(rates, {**span, **hours}, left_out)
        for tier in dict.fromkeys(name for name, _, _ in variants):
            changed: _Rates = {}
            for name, begin, rates in variants:
                if name == tier and (begin is None or at >= begin):
                    changed = {**rates, **changed}
            if changed:
                yield from _sizes({**base, **changed}, {**span, "service_tier": tier}, left_out)


def _variants(model: JsonObject, left_out: set[str]) -> list[tuple[str, int | None, _Rates]]:
    found = []
    for variant in _objects(model.get("price_variants") or []):
        when = tuple((str(key), str(value)) for key, value in _object(variant["when"]).items())
        tier = _TIERS.get(when[0]) if len(when) == 1 else None
        if tier is None or _is_hours(variant):
            left_out.add("variants without a name in replies")
        elif tier:
            found.append((tier, _start(variant), _rates(_object(variant["prices"]), left_out)))
    return found


def _in_the_us(row: _Fields) -> _Fields:
    """The rates of inference in the US only: 1.1 times all token rates. The data does not contain them.

    The source is Anthropic's page on data residency.
    """
    rates = {
        name: value * 11 // 10 if name in BUCKETS and isinstance(value, int) else value
        for name, value in row.items()
    }
    tier = row.get("service_tier")
    return {**rates, "service_tier": tier_in(tier if isinstance(tier, str) else None, "us") or ""}


def _in_force(dated: list[JsonObject], at: int) -> JsonObject:
    """The last entry that has started, or the first entry if none has started."""
    started = [entry for entry in dated if (start := _start(entry)) is None or start <= at]
    return started[-1] if started else dated[0]


def _start(entry: JsonObject) -> int | None:
    constraint = entry.get("constraint")
    if not isinstance(constraint, dict) or "start_date" not in constraint:
        return None
    day = date.fromisoformat(str(constraint["start_date"]))
    return to_us(datetime(day.year, day.month, day.day, tzinfo=UTC))


def _is_hours(entry: JsonObject) -> bool:
    constraint = entry.get("constraint")
    return isinstance(constraint, dict) and "start_time" in constraint


def _hours(constraint: JsonObject) -> Iterator[dict[str, int]]:
    begin, end = (_seconds(str(constraint[name])) for name in ("start_time", "end_time"))
    if begin < end:
        yield {"daily_from": begin, "daily_to": end}
    else:  # over midnight
        yield {"daily_from": begin, "daily_to": DAY_SECONDS}
        if end:
            yield {"daily_from": 0, "daily_to": end}


def _seconds(text: str) -> int:
    moment = datetime.fromisoformat(f"1970-01-01T{text}")
    if moment.tzinfo is None:
        raise ValueError(f"time of day {text!r} without its offset")
    return int(moment.timestamp()) % DAY_SECONDS


def _rates(prices: JsonObject, left_out: set[str]) -> _Rates:
    """The rates in dollars, by name. A tier is a pair of a threshold and dollars; the first threshold is -1."""
    rates: _Rates = {}
    for name, value in prices.items():
        if value is None:
            continue
        if name not in _BUCKETS and name not in _EXTRA and name != "requests_kcount":
            left_out.add(f"rates of {name}")
        elif isinstance(value, dict):
            tiers = [(int(str(tier["start"])), _dollars(tier["price"])) for tier in _objects(value["tiers"])]
            rates[name] = [(-1, _dollars(value["base"])), *tiers]
        else:
            rates[name] = _dollars(value)
    return rates


def _dollars(value: Json) -> Decimal:
    amount = Decimal(str(value))
    if not amount.is_finite() or amount < 0:
        raise ValueError(f"a price of {value}")
    return amount


def _sizes(rates: _Rates, where: _Fields, left_out: set[str]) -> Iterator[_Fields]:
    """One row for each size at which a rate changes."""
    starts = {start for rate in rates.values() if isinstance(rate, list) for start, _ in rate}
    for above in sorted({0, *(start for start in starts if start > 0)}):
        fields: _Fields = {}
        extra: dict[str, int] = {}
        for name, rate in rates.items():
            dollars = rate if isinstance(rate, Decimal) else [price for start, price in rate if start <= above][-1]
            if name in _BUCKETS:
                fields[_BUCKETS[name]] = _pico(dollars, 10**6, left_out)
            elif name in _EXTRA:
                ours, units = _EXTRA[name]
                extra[ours] = _pico(dollars, units, left_out)
            else:
                fields["per_request"] = _pico(dollars, 1000, left_out)
        if not fields and not extra:
            continue
        if extra:
            fields["extra"] = extra
        if above:
            fields["above"] = above
        yield {**fields, **where}


def _pico(dollars: Decimal, units: int, left_out: set[str]) -> int:
    exact = dollars * 10**12 / units
    rounded = exact.to_integral_value(ROUND_HALF_UP)
    if rounded != exact:
        left_out.add("fractions of a pico-USD, rounded")
    return int(rounded)


def parse(data: bytes, source: str) -> Json:
    """Parse JSON. Decimal fractions become Decimal, so that no digit is lost."""
    try:
        value: Json = json.loads(data, parse_float=Decimal)
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(f"{source}: is not JSON: {error}") from error
    return value
