"""Price files: YAML that people write, read without floats.

Figures are US dollars per million tokens, as providers publish them, with at most six decimals (then they are
whole pico-USD per token). A file contains one table, or several tables with dates:

    tables:
      - label: example prices, spring      # for people
        date: 2026-03-01                   # of this version of the table; orders the versions, no more
        prices:
          - model: "openai:gpt-5"          # provider:name, '*' matches any text
            input: 1.25
            output: 10
            cache_read: 0.125              # left out: as input, and so are writes without any rate; any other rate
                                           # left out is unknown: a call that needs it is unpriced
            cache_write_5m: 1.5625         # of any lifetime, if the provider has only one
            cache_write_1h: 2.5
            reasoning: 10                  # left out: as output
            per_request: 0.01              # US dollars per call
            extra:                         # what usage counts apart
              audio_input: 40              # tokens, per million: audio_, image_, video_input, audio_output,
                                           # image_output, audio_, image_cache_read; left out: as the whole
              web_search: 0.01             # anything else: US dollars for one
            service_tier: batch            # left out: the usual one; '*' is any without a row of its own
            hours: 00:30-16:30             # of each day, UTC; goes before a row for all day
            valid_from: 2025-08-07         # inclusive; a date, or a time with its offset; left out: always
            valid_to: 2026-08-07           # exclusive
            note: where the figure comes from
            tiers:                         # cliffs: above this many input tokens, all tokens cost this instead
              - above: 272000
                input: 2.5
                output: 15
                cache_read: 0.25
        aliases:                           # names that are priced as others
          "work:*": "anthropic:*"          # what the star stands for is taken over

A tier lists all of its rates. A rate that it leaves out is unknown. A file with one table has `label`, `date`,
`prices` and `aliases` at its top. A tier of sizes (`tiers`) and a service tier are different things.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import UTC, date, datetime
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Any, NoReturn, TypeAlias

import msgspec

from callboard.bus.clock import to_us
from callboard.bus.errors import ConfigurationError
from callboard.bus.files import package_data
from callboard.bus.values.usage import USAGE_PARTS

from .rows import ANY_TIER, BUCKETS, DAY_SECONDS, PriceAlias, PriceList, PriceRow, tier_name

FORMAT = 1
MOST_BYTES = 16 * 1024 * 1024
SHIPPED = Path(__file__).with_name("snapshots") / "prices.json"

_Fields: TypeAlias = dict[str, int | str | dict[str, int]]


class SnapshotModel(msgspec.Struct, frozen=True, omit_defaults=True):
    id: str
    """The model as ``provider:name``."""
    prices: tuple[_Fields, ...]
    """The fields of the model's price rows."""
    also: tuple[str, ...] = ()
    """Other names of the model; ``*`` matches any text."""
    name: str | None = None
    """The model's name, for people."""
    context_window: int | None = None
    """The size of the model's window in tokens."""
    deprecated: bool = False


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    format: int
    date: str
    """The date of the table, YYYY-MM-DD."""
    source: str
    """The source of the table and the source's version."""
    licence: str
    models: tuple[SnapshotModel, ...]
    aliases: tuple[tuple[str, str], ...] = ()
    """Aliases of several models, as pairs of pattern and target. An example is a reseller of models."""
    left_out: dict[str, int] = {}
    """The number of models whose prices are missing in the table, by reason."""

    def prices(self) -> PriceList:
        """The rows and aliases, marked as reference, with zero prices for local models."""
        try:
            rows = [
                msgspec.convert({"model": model.id, "reference": True, **fields}, PriceRow)
                for model in self.models
                for fields in model.prices
            ]
        except msgspec.ValidationError as error:
            raise ConfigurationError(f"price snapshot of {self.date}: {error}") from error
        aliases = [PriceAlias(pattern, target, reference=True) for pattern, target in self.aliases]
        aliases += [
            PriceAlias(pattern, model.id, reference=True) for model in self.models for pattern in model.also
        ]
        return PriceList([*rows, *_FREE], f"{self.source}, {self.date}", aliases)


_FREE = [
    PriceRow(
        model=model,
        input=0,
        output=0,
        cache_read=0,
        cache_write_5m=0,
        cache_write_1h=0,
        service_tier=ANY_TIER,
        reference=True,
        note="runs on a machine of one's own: no charge",
    )
    for model in ("local*:*", "ollama:*")
]


@cache
def shipped_snapshot() -> Snapshot:
    return decode(package_data(__name__, "snapshots/prices.json"), str(SHIPPED))


def read(path: Path) -> Snapshot:
    """A snapshot file. Raises ConfigurationError."""
    try:
        if path.stat().st_size > MOST_BYTES:
            raise ConfigurationError(f"{path}: is larger than {MOST_BYTES} bytes, which no price snapshot is")
        data = path.read_bytes()
    except OSError as error:
        raise ConfigurationError(f"{path}: can't be read: {error}") from error
    return decode(data, str(path))


def decode(data: bytes, source: str) -> Snapshot:
    """A snapshot from its JSON. The models are not checked yet."""
    try:
        snapshot = msgspec.json.decode(data, type=Snapshot)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise ConfigurationError(f"{source}: is no price snapshot: {error}") from error
    if snapshot.format != FORMAT:
        raise ConfigurationError(
            f"{source}: is a price snapshot of format {snapshot.format}, this Callboard reads format {FORMAT}"
        )
    return snapshot


def encode(snapshot: Snapshot) -> bytes:
    """Encode a snapshot as JSON, one model a line, so that two snapshots can be compared line by line."""
    head = ("format", "date", "source", "licence", "left_out")
    lines = [f"{_json(name)}:{_json(getattr(snapshot, name))}," for name in head]
    lines += ['"aliases":[', *_separated(snapshot.aliases), "],"]
    lines += ['"models":[', *_separated(snapshot.models), "]}"]
    return ("{" + "\n".join(lines) + "\n").encode()


def _separated(values: Iterable[object]) -> list[str]:
    texts = [_json(value) for value in values]
    return [f"{text}," for text in texts[:-1]] + texts[-1:]


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()


Node: TypeAlias = "str | list[Node] | dict[str, Node]"

_NUMBER = re.compile(r"\d+(?:\.\d+)?|\.\d+")
_NULLS = ("", "~", "null", "Null", "NULL")
_HOURS = re.compile(r"(\d\d):(\d\d)-(\d\d):(\d\d)")
_TABLE_KEYS = ("label", "date", "prices", "aliases")
_TIER_KEYS = ("above", *BUCKETS, "per_request", "extra")
_ROW_KEYS = (
    *("model", *BUCKETS, "per_request", "extra", "service_tier", "hours", "valid_from", "valid_to", "note"),
    "tiers",
)


def load(path: Path) -> tuple[PriceList, ...]:
    """All tables of a file, the oldest first. Raises ConfigurationError."""
    return _Reader(path).tables(_parse(path))


def _parse(path: Path) -> Node:
    import yaml

    class Strings(yaml.BaseLoader):
        """Keeps every scalar as written, so that no rate becomes a float. Duplicate keys are refused."""

        def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
            mapping = super().construct_mapping(node, deep=True)
            if len(mapping) != len(node.value):
                names = [self.construct_object(key) for key, _ in node.value]
                twice = next(name for name in names if names.count(name) > 1)
                raise yaml.constructor.ConstructorError(
                    None, None, f"key {twice!r} is given twice", node.start_mark
                )
            return mapping

    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{path}: can't be read: {error}") from error
    try:
        node: Node = yaml.load(text, Loader=Strings)
    except yaml.YAMLError as error:
        raise ConfigurationError(f"{path}: not valid YAML: {error}") from error
    return node


class _Reader:
    """Converts a file's YAML nodes to rows. Every error names the file, the key and the expected value."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def tables(self, root: Node) -> tuple[PriceList, ...]:
        top = self._mapping(root, "the file")
        if "tables" not in top:
            return (self._table(top, "")[1],)
        self._check_keys(top, ("tables",), "")
        entries = self._list(top["tables"], "tables")
        dated = [
            self._table(self._mapping(entry, f"tables[{index}]"), f"tables[{index}].")
            for index, entry in enumerate(entries)
        ]
        if not dated:
            self._fail("tables", "at least one table")
        if len(dated) > 1:
            for index, (moment, _) in enumerate(dated):
                if moment is None:
                    self._fail(f"tables[{index}].date", "a date, because the file has several tables")
        return tuple(table for _, table in sorted(dated, key=lambda pair: pair[0] or 0))

    def _table(self, table: dict[str, Node], where: str) -> tuple[int | None, PriceList]:
        self._check_keys(table, _TABLE_KEYS, where)
        moment = self._moment(table.get("date"), f"{where}date")
        label = self._text(table.get("label"), f"{where}label") or self._path.stem
        rows: list[PriceRow] = []
        for index, entry in enumerate(self._list(table.get("prices", ""), f"{where}prices")):
            entry_place = f"{where}prices[{index}]"
            rows += self._rows(self._mapping(entry, entry_place), f"{entry_place}.")
        alias_nodes = self._mapping(table.get("aliases") or {}, f"{where}aliases")
        aliases = [
            PriceAlias(pattern, self._text(node, f"{where}aliases.{pattern}"))
            for pattern, node in alias_nodes.items()
        ]
        return moment, PriceList(rows, label, aliases, f"{self._path}: {where}prices")

    def _rows(self, entry: dict[str, Node], where: str) -> list[PriceRow]:
        self._check_keys(entry, _ROW_KEYS, where)
        model = self._text(entry.get("model"), f"{where}model")
        if not model or ":" not in model:
            self._fail(f"{where}model", "provider:name, with '*' for any text", entry.get("model"))
        valid_from = self._moment(entry.get("valid_from"), f"{where}valid_from")
        valid_to = self._moment(entry.get("valid_to"), f"{where}valid_to")
        note = self._text(entry.get("note"), f"{where}note")
        service_tier = self._text(entry.get("service_tier"), f"{where}service_tier")
        daily_from, daily_to = self._hours(entry.get("hours"), f"{where}hours")
        tiers: list[tuple[int, dict[str, Node], str]] = [(0, entry, where)]
        for index, node in enumerate(self._list(entry.get("tiers", []), f"{where}tiers")):
            tier_place = f"{where}tiers[{index}]."
            tier = self._mapping(node, tier_place.rstrip("."))
            self._check_keys(tier, _TIER_KEYS, tier_place)
            tiers.append((self._tokens(tier.get("above"), f"{tier_place}above"), tier, tier_place))
        return [
            PriceRow(
                model=model,
                input=self._rate(rates.get("input"), f"{tier_place}input", 6),
                output=self._rate(rates.get("output"), f"{tier_place}output", 6),
                reasoning=self._rate(rates.get("reasoning"), f"{tier_place}reasoning", 6),
                cache_read=self._rate(rates.get("cache_read"), f"{tier_place}cache_read", 6),
                cache_write_5m=self._rate(rates.get("cache_write_5m"), f"{tier_place}cache_write_5m", 6),
                cache_write_1h=self._rate(rates.get("cache_write_1h"), f"{tier_place}cache_write_1h", 6),
                per_request=self._rate(rates.get("per_request"), f"{tier_place}per_request", 12) or 0,
                extra=self._extra(rates.get("extra"), f"{tier_place}extra"),
                service_tier=ANY_TIER if service_tier == ANY_TIER else tier_name(service_tier),
                daily_from=daily_from,
                daily_to=daily_to,
                valid_from=valid_from,
                valid_to=valid_to,
                above=above,
                note=note,
            )
            for above, rates, tier_place in tiers
        ]

    def _extra(self, node: Node | None, where: str) -> dict[str, int]:
        """Read the extra rates: per million tokens for counts of tokens, or per unit for everything else."""
        rates = {
            name: self._rate(value, f"{where}.{name}", 6 if name in USAGE_PARTS else 12)
            for name, value in self._mapping(node or {}, where).items()
        }
        return {name: rate for name, rate in rates.items() if rate is not None}

    def _hours(self, node: Node | None, where: str) -> tuple[int | None, int | None]:
        """Read hours as seconds since midnight, UTC."""
        text = self._text(node, where)
        if not text:
            return None, None
        found = _HOURS.fullmatch(text)
        if found is None:
            self._fail(where, "hours of a day in UTC, such as 00:30-16:30", node)
        hours = [int(group) for group in found.groups()]
        begin, end = (hours[0] * 60 + hours[1]) * 60, (hours[2] * 60 + hours[3]) * 60
        if not begin < end <= DAY_SECONDS:
            self._fail(where, "the earlier hour first; across midnight, use two rows", node)
        return begin, end

    def _rate(self, node: Node | None, where: str, decimals: int) -> int | None:
        """Read dollars as an integer: dollars times 10 ** `decimals`."""
        text = self._text(node, where)
        if not text:
            return None
        if not _NUMBER.fullmatch(text):
            self._fail(where, "US dollars as a plain number such as 0.25", node)
        scaled = Decimal(text).scaleb(decimals)
        if scaled != scaled.to_integral_value():
            self._fail(where, f"US dollars with at most {decimals} decimals", node)
        return int(scaled)

    def _tokens(self, node: Node | None, where: str) -> int:
        text = self._text(node, where).replace("_", "")
        if not text.isdecimal() or int(text) == 0:
            self._fail(where, "a whole number of tokens above 0", node)
        return int(text)

    def _moment(self, node: Node | None, where: str) -> int | None:
        text = self._text(node, where)
        if not text:
            return None
        try:
            moment = datetime.fromisoformat(text)
        except ValueError:
            self._fail(where, "a date such as 2026-03-01, or a time with its offset", node)
        if moment.tzinfo is None:
            if not _is_date(text):
                self._fail(where, "a time with its offset, such as 2026-03-01T00:00:00Z", node)
            moment = moment.replace(tzinfo=UTC)
        return to_us(moment)

    def _text(self, node: Node | None, where: str) -> str:
        if node is None:
            return ""
        if not isinstance(node, str):
            self._fail(where, "a single value", node)
        return "" if node in _NULLS else node.strip()

    def _mapping(self, node: Node, where: str) -> dict[str, Node]:
        if not isinstance(node, dict):
            self._fail(where, "a mapping of keys to values", node)
        return node

    def _list(self, node: Node, where: str) -> list[Node]:
        if not isinstance(node, list):
            self._fail(where, "a list", node)
        return node

    def _check_keys(self, mapping: dict[str, Node], keys: tuple[str, ...], where: str) -> None:
        for key in mapping:
            if key not in keys:
                raise ConfigurationError(f"{self._path}: unknown key {where}{key}; expected {', '.join(keys)}")

    def _fail(self, where: str, expected: str, found: Node | None = None) -> NoReturn:
        found_text = "nothing" if found is None or found == "" else repr(found)[:80]
        raise ConfigurationError(f"{self._path}: {where}: expected {expected}, found {found_text}")


def _is_date(text: str) -> bool:
    try:
        date.fromisoformat(text)
    except ValueError:
        return False
    return True
