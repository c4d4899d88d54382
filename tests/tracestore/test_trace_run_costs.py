"""Costs belong to the repricing that gave them: in files of earlier versions, too, and the sums that are kept."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path

import pytest

from callboard import CallFilter, StoreError, TraceStore
from callboard.tracestore.sql import repricing
from callboard.tracestore.sql.sums import Difference, difference

from .contract.test_repricing import FIRST, SECOND, fill
from .test_trace_call_sums import assert_in_step
from .trace_making import Maker, copy_by_version, make_file_before

pytestmark = pytest.mark.anyio

BOOK = """
    DELETE FROM reprice_run;
    INSERT INTO reprice_run (id, version, filter, started_us, finished_us, last_call, done, replaced) VALUES
        (1, '{first}', '{{}}', 1, 2, 4, 4, '[]'),
        (2, '{second}', '{{}}', 3, 4, 4, 4, '["{first}"]'),
        (3, '{first}', '{{"session_id":"s1"}}', 5, 6, 4, 4, '["{second}","{first}"]'),
        (4, '{second}', '{{}}', 7, NULL, 4, 3, NULL);
    DELETE FROM current_version;
    INSERT INTO current_version (position, version) VALUES (0, '{first}'), (1, '{second}');
"""


async def test_a_file_with_costs_by_version_keeps_what_is_current(
    tmp_path: Path, make: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The costs of a version become those of its latest run, which can be undone; what was interrupted resumes."""
    path = tmp_path / "old.db"
    async with TraceStore(tmp_path / "new.db") as new:
        await fill(new, make)
        await new.reprice(FIRST)
        under_first = await new.calls()
        await new.reprice(SECOND)
        under_second = await new.calls()
    await make_file_before("costs of runs", path, monkeypatch)
    with contextlib.closing(sqlite3.connect(path)) as file, file:
        file.execute("ATTACH ? AS new", (str(new.path),))
        copy_by_version(file)
        for table in ("price_row", "price_alias"):
            file.execute(f"INSERT INTO {table} SELECT * FROM new.{table}")
        file.executescript(BOOK.format(first=FIRST.version, second=SECOND.version))
    async with TraceStore(path) as store:
        assert await store.calls() == under_first, "the first of the current versions covers all"
        await assert_in_step(store, [CallFilter()])
        assert (await store.undo_reprice()).id == 3
        assert await store.calls() == under_second
        report = await store.resume_reprice(4)
        assert (report.calls, report.sum_before_nano_usd) == (4, report.sum_after_nano_usd)
        await assert_in_step(store, [CallFilter()])


async def test_a_repricing_that_would_change_something_else_than_it_says_changes_nothing(
    store: TraceStore, make: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last transaction compares what all calls cost before and after with the report, and raises."""
    await fill(store, make)
    await store.reprice(FIRST)
    before, current = await store.calls(), await store.current_prices()
    monkeypatch.setattr(repricing, "add_repriced", lambda *_: None)
    with pytest.raises(StoreError, match=r"would change the current costs by .* nothing was changed"):
        await store.reprice(SECOND)
    assert await store.calls() == before
    assert (await store.current_prices()).runs == current.runs


async def test_what_layers_of_repricings_differ_by_is_known_from_their_sums(
    store: TraceStore, make: Maker
) -> None:
    """Only calls that more than one of them covers are looked at."""
    await fill(store, make)
    (then,) = await store.costs(by=())
    for table, where in (
        (FIRST, None),
        (SECOND, CallFilter(session_id="s1")),
        (FIRST, CallFilter(session_id="s3")),
    ):
        await store.reprice(table, where=where)
        runs = (await store.current_prices()).runs
        (now,) = await store.costs(by=())
        found = await store._database.look(lambda statements, runs=runs: difference(statements, runs))
        assert found == Difference(now.cost_nano_usd - then.cost_nano_usd, now.unpriced - then.unpriced)
