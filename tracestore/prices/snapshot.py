"""The shipped price table, and the one that `callboard prices update` replaces it with.

A snapshot is JSON: its source and date, the parts of the source that it leaves out, and the models. Each model has
its id, its other names, its `PriceRow`s without default fields, and further facts of the source. The file is read
when prices are first needed, never at import.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import TypeAlias

import msgspec

from callboard.bus.errors import ConfigurationError
from callboard.bus.files import package_data

from .rows import ANY_TIER, PriceAlias, PriceList, PriceRow

FORMAT = 1
MOST_BYTES = 16 * 1024 * 1024
SHIPPED = Path(__file__).with_name("snapshots") / "prices.json"

_Fields: TypeAlias = dict[str, int | str | dict[str, int]]


class SnapshotModel(msgspec.Struct, frozen=True, omit_defaults=True):
    """One model of a published table."""

    id: str
    """The model as ``provider:name``."""
    prices: tuple[_Fields, ...]
    """The fields of its price rows."""
    also: tuple[str, ...] = ()
    """Other names of the model; ``*`` stands for any text."""
    name: str | None = None
    """The model's name, for people."""
    context_window: int | None = None
    """The size of the model's window in tokens."""
    deprecated: bool = False
    """Whether the provider has deprecated the model."""


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """A published table."""

    format: int
    date: str
    """The date of the table, YYYY-MM-DD."""
    source: str
    """The source of the table, with its version."""
    licence: str
    """The licence of the source."""
    models: tuple[SnapshotModel, ...]
    aliases: tuple[tuple[str, str], ...] = ()
    """Pairs of pattern and target that belong to no single model. One provider that resells another's models is
    such a pair."""
    left_out: dict[str, int] = {}
    """The number of models with more facts in the source than in the table, by reason."""

    def prices(self) -> PriceList:
        """Its rows and aliases, as a reference, with local models free. Raises ConfigurationError."""
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
        note="runs on your own machine: no charge",
    )
    for model in ("local*:*", "ollama:*")
]


@cache
def shipped_snapshot() -> Snapshot:
    """The snapshot that comes with Callboard."""
    return decode(package_data(__name__, "snapshots/prices.json"), str(SHIPPED))


def read(path: Path) -> Snapshot:
    """A snapshot file. Raises ConfigurationError."""
    try:
        if path.stat().st_size > MOST_BYTES:
            raise ConfigurationError(f"{path}: is larger than {MOST_BYTES} bytes, so it is not a price snapshot")
        data = path.read_bytes()
    except OSError as error:
        raise ConfigurationError(f"{path}: can't be read: {error}") from error
    return decode(data, str(path))


def decode(data: bytes, source: str) -> Snapshot:
    """A snapshot out of its JSON. The models are not looked at yet."""
    try:
        snapshot = msgspec.json.decode(data, type=Snapshot)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise ConfigurationError(f"{source}: is not a price snapshot: {error}") from error
    if snapshot.format != FORMAT:
        raise ConfigurationError(
            f"{source}: is a price snapshot of format {snapshot.format}, but this Callboard reads format {FORMAT}"
        )
    return snapshot


def encode(snapshot: Snapshot) -> bytes:
    """A snapshot as JSON, one model a line, so that two of them can be compared line by line."""
    head = {
        "format": snapshot.format,
        "date": snapshot.date,
        "source": snapshot.source,
        "licence": snapshot.licence,
        "left_out": snapshot.left_out,
    }
    lines = [f"{_json(name)}:{_json(value)}," for name, value in head.items()]
    lines += ['"aliases":[', *_separated(snapshot.aliases), "],"]
    lines += ['"models":[', *_separated(snapshot.models), "]}"]
    return ("{" + "\n".join(lines) + "\n").encode()


def _separated(values: Iterable[object]) -> list[str]:
    texts = [_json(value) for value in values]
    return [f"{text}," for text in texts[:-1]] + texts[-1:]


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()
