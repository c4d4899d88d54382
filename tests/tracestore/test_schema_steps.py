"""The steps of both schemas: their text never changes, and upgraded old files equal new ones."""

from __future__ import annotations

import contextlib
import gzip
import sqlite3
from hashlib import sha256
from pathlib import Path

import pytest

from callboard import TraceStore
from callboard.tracestore.postgres import schema as postgres
from callboard.tracestore.sql.connection import Steps, read_steps
from callboard.tracestore.sqlite import schema as sqlite
from scripts.make_new_file import PATH, new_file
from tests.support.depth import each_nth_is_quick
from tests.support.virtual_time import runs_on

anyio_backend = runs_on("asyncio")
OLD_FILES = sorted(Path(__file__).with_name("old_files").glob("*.db.gz"))
"""Files that the code of each version made. Each has one completed call and one without an end."""

SQLITE = (
    "b2eb9eb5f35bd2d6",  # 1: initial
    "294210a9843d805e",  # 2: price dimensions
    "c75cf13afbb25079",  # 3: queries
    "6fb06692c917c36a",  # 4: runs_end
    "e56d2473186afbdb",  # 5: pruning
    "7c1907977b34d224",  # 6: content
    "3a739ba5172a8d0b",  # 7: session names
    "6c9eeb4643f6ea83",  # 8: call sums
    "21faa2720c6745bf",  # 9: operations
    "08a5e7ae22f188a8",  # 10: jobs
    "4e8bdd99df6933d4",  # 11: repricing base
    "b7dfe8ad2882a58a",  # 12: resent
    "ef15ac34fdf41a20",  # 13: calls of unknown cost
    "6485f9bb5139ec28",  # 14: costs of runs
    "4f5736030a3675a1",  # 15: reservations
    "e972194dc3f03059",  # 16: keys
    "650655679a2aaeab",  # 17: erasures
    "aaa5c474aa4f4bfa",  # 18: epochs
    "45c311fe2c0ea49d",  # 19: call rows
    "97eb17b40a19baa2",  # 20: triggers of sums
    "fe86912e74da6a12",  # 21: trees of turns
    "bb80874bb78894bd",  # 22: gateway
    "037cf4ba252e6bde",  # 23: imported calls
    "b2a92a6634cd96de",  # 24: calls of a turn
)

POSTGRES = (
    "c55584411236a9b9",  # 1: initial
    "e9f32c5e720e2264",  # 2: shipping
    "c277e208ec6bf763",  # 3: erasures
    "71ccb19b7db6b41b",  # 4: nodes
    "e1ef7684f4c48375",  # 5: ledger
    "d4470f780cd56c3c",  # 6: probes
    "222bc2fab10309d4",  # 7: claims
    "359b34649bfab417",  # 8: call rows
    "dfb5d88f21c01189",  # 9: early databases
    "59217b12813456ea",  # 10: trees of turns
    "ad98686e05152b37",  # 11: gateway
    "7fa855547e8abc30",  # 12: imported calls
    "b2a92a6634cd96de",  # 13: calls of a turn
)


def hashes(steps: Steps) -> tuple[str, ...]:
    """A hash of each step, with its name."""
    return tuple(sha256("\n;\n".join((name, *texts)).encode()).hexdigest()[:16] for name, texts in steps)


@pytest.mark.parametrize(
    ("steps", "known"), [(sqlite.MIGRATIONS, SQLITE), (postgres.MIGRATIONS, POSTGRES)], ids=["sqlite", "postgres"]
)
def test_no_released_step_changes(steps: Steps, known: tuple[str, ...]) -> None:
    """A correction is a new step at the end. Its hash is added here."""
    assert hashes(steps) == known


@pytest.mark.parametrize(
    "text",
    [
        "-- step 2: second\nSELECT 1\n;\n",
        "-- step 1: empty\n",
        "-- step 1: open\nSELECT 1\n",
        "-- step 1: one\nSELECT 1\n;\n-- step 1: again\nSELECT 1\n;\n",
    ],
)
def test_a_file_of_steps_that_is_out_of_order_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"steps\.sql: step \d"):
        read_steps(text)


def schema_of(path: Path) -> dict[tuple[str, str], object]:
    """Tables, indexes, views and triggers by type and name, without white space, and the columns of each table."""
    with contextlib.closing(sqlite3.connect(path)) as file:
        texts = file.execute("SELECT type, name, sql FROM sqlite_schema").fetchall()
        found: dict[tuple[str, str], object] = {
            (kind, name): "".join((text or "").split()) for kind, name, text in texts
        }
        for kind, name, _ in texts:
            if kind in ("table", "view"):
                found["columns", name] = file.execute(f"PRAGMA table_xinfo({name})").fetchall()
        found["version", ""] = file.execute("PRAGMA user_version").fetchone()
        return found


def unpacked(old: Path, path: Path) -> Path:
    """Unpack an old file. The new file is as private as a trace file."""
    path.write_bytes(gzip.decompress(old.read_bytes()))
    path.chmod(0o600)
    return path


def test_there_is_an_old_file_of_every_version() -> None:
    """Version 4 has no file, because its step was released with version 5."""
    versions = {int(path.name[1:3]) for path in OLD_FILES}
    assert versions >= set(range(1, 20)) - {4}


@pytest.mark.parametrize(
    "old", each_nth_is_quick(OLD_FILES, 4, "each old version"), ids=lambda path: path.name.removesuffix(".db.gz")
)
async def test_an_old_file_becomes_like_a_new_one(old: Path, tmp_path: Path) -> None:
    """The upgraded file has the same tables, columns, indexes, views and triggers, and its calls keep their
    costs.
    """
    path = unpacked(old, tmp_path / "old.db")
    async with TraceStore(path) as store:
        calls = await store.calls()
        assert sorted((call.status, call.cost and call.cost.nano_usd) for call in calls) == [
            ("completed", 1234),
            ("started", None),
        ]
        shown = await store.sql("SELECT status, cost_nano_usd FROM call_rows ORDER BY status")
        assert shown.rows == (("completed", 1234), ("started", None))
        (total,) = await store.costs(by=())
        assert (total.calls, total.cost_nano_usd, total.unknown) == (2, 1234, 1)
        assert not any(row.resumable for row in await store.sessions())
    async with TraceStore(tmp_path / "new.db"):
        pass
    assert schema_of(path) == schema_of(tmp_path / "new.db")


def test_a_new_file_equals_the_result_of_all_steps() -> None:
    """After a new step, run scripts/make_new_file.py."""
    assert PATH.read_text(encoding="utf-8") == new_file()


async def test_a_new_file_has_the_history_of_all_steps(tmp_path: Path) -> None:
    async with TraceStore(tmp_path / "new.db") as store:
        history = await store.sql("SELECT version, name FROM schema_history ORDER BY version")
    assert list(history.rows) == [(at, name) for at, (name, _) in enumerate(sqlite.MIGRATIONS, 1)]
