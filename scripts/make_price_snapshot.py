"""Make the shipped price snapshot from an installed genai-prices.

    pip install genai-prices && python scripts/make_price_snapshot.py YYYY-MM-DD

The date is the day on which that release was the newest. The result is written to
tracestore/prices/snapshots/prices.json; look at the difference before committing it.
"""

from __future__ import annotations

import dataclasses
import sys
from datetime import date, time
from importlib.metadata import version
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from callboard.tracestore.prices import files as price_snapshot
from callboard.tracestore.prices.source import convert
from callboard.tracestore.prices.table import PriceTable


def plain(value: object) -> object:
    """Convert the package's objects to the form of its data file."""
    from genai_prices.types import ModelPrice

    if isinstance(value, ModelPrice):
        return {name: plain(price) for name, price in vars(value).items() if price is not None}
    if dataclasses.is_dataclass(value):
        fields = {field.name.rstrip("_"): getattr(value, field.name) for field in dataclasses.fields(value)}
        return {name: plain(inner) for name, inner in fields.items() if inner is not None and name != "extractors"}
    if isinstance(value, list | tuple):
        return [plain(inner) for inner in value]
    if isinstance(value, dict):
        return {name: plain(inner) for name, inner in value.items()}
    return value.isoformat() if isinstance(value, date | time) else value


def main() -> None:
    from genai_prices.data import providers

    snapshot = convert(plain(providers), source=f"genai-prices {version('genai-prices')}", day=sys.argv[1])
    PriceTable.of(snapshot.prices())
    price_snapshot.SHIPPED.write_bytes(price_snapshot.encode(snapshot))
    print(f"{len(snapshot.models)} models; left out: {snapshot.left_out}")


if __name__ == "__main__":
    main()
