"""The folder of configuration, prices and the default trace file."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from callboard.bus import ConfigurationError

from .prices.table import PriceTable

if TYPE_CHECKING:
    from .prices.files import Snapshot


def home_folder() -> Path:
    """The folder of configuration and the default trace file: CALLBOARD_HOME, else ~/.callboard."""
    configured = os.environ.get("CALLBOARD_HOME")
    home = Path(configured) if configured else Path.home() / ".callboard"
    if home.is_file():
        raise ConfigurationError(f"{home} is a file, but must be a folder. Set CALLBOARD_HOME to another path")
    return home


OWN_NAME = "prices.yaml"
SNAPSHOT_NAME = "price-snapshot.json"


def published_table(home: Path) -> PriceTable:
    """The published prices: the snapshot in the home folder, or the shipped snapshot if there is none."""
    path = home / SNAPSHOT_NAME
    return PriceTable.default() if not path.exists() else PriceTable.of(published_snapshot(home).prices())


def published_snapshot(home: Path) -> Snapshot:
    from .prices.files import read, shipped_snapshot

    path = home / SNAPSHOT_NAME
    return read(path) if path.exists() else shipped_snapshot()


def price_table(home: Path, path: Path | None = None) -> PriceTable:
    """The published prices, overridden by the user's own."""
    published, default = published_table(home), home / OWN_NAME
    if path is None and not default.exists():
        return published
    return published.merged(PriceTable.from_yaml(path or default))
