"""Calls as CSV, JSON lines and Parquet: every row, exact money, bounded memory, whole files or none."""

from __future__ import annotations

import os
import sys
from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callboard.bus import ConfigurationError, StoreError
from callboard.tracestore import TraceStore
from callboard.tracestore.export import Format, export_calls
from callboard.tracestore.export.calls import exact_usd

from .trace_making import Maker, fill

pytestmark = pytest.mark.anyio


def names_in(folder: Path) -> list[str]:
    """Of the files that are not SQLite's own."""
    return sorted(name for name in os.listdir(folder) if not name.startswith(("trace.db-", "trace.db.")))


@given(st.integers(-(2**63), 2**63 - 1))
def test_exact_usd_is_exact(nano_usd: int) -> None:
    """Nine decimals, never an exponent."""
    text = exact_usd(nano_usd)
    assert Decimal(text) * 10**9 == nano_usd
    assert len(text.partition(".")[2]) == 9


async def test_parquet_without_pyarrow_names_the_extra(
    store: TraceStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And leaves no file behind."""
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ConfigurationError, match=r"callboard\[parquet\]"):
        await export_calls(store, tmp_path / "calls.parquet", "parquet")
    assert names_in(tmp_path) == ["trace.db"]


@pytest.mark.parametrize("format", ["csv", "jsonl"])
async def test_an_export_that_fails_leaves_the_old_file(
    store: TraceStore, make: Maker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, format: Format
) -> None:
    """Whole or not at all, and nothing half-done beside it."""
    await fill(store, make, 5)
    target = tmp_path / "calls.out"
    await export_calls(store, target, format, page=2)
    before = target.read_bytes()
    read, pages = store.calls_after, 0

    async def failing(*arguments: object, **options: object) -> object:
        nonlocal pages
        pages += 1
        if pages == 2:
            raise StoreError("the disk is gone")
        return await read(*arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(store, "calls_after", failing)
    with pytest.raises(StoreError):
        await export_calls(store, target, format, page=2)
    assert target.read_bytes() == before
    assert names_in(tmp_path) == ["calls.out", "trace.db"]
    assert target.stat().st_mode & 0o077 == 0
