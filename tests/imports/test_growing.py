"""Files that are read while they are written, up to any byte, give the same calls as complete files."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from callboard.engine.imports.importer import Importer
from callboard.tracestore import CallRow, PriceTable, TraceStore
from tests.support.depth import first_is_quick
from tests.support.session_files import claude_folder, codex_folder

pytestmark = pytest.mark.anyio
PRICES = PriceTable.default()
FOLDERS: dict[str, Callable[[Path, int, int], None]] = {"claude-code": claude_folder, "codex": codex_folder}


def seen(row: CallRow) -> tuple[object, ...]:
    return row.model, row.session_id, row.usage, row.cost, row.tags, row.started_us, row.stop_reason, row.turn_id


async def rows_of(store: TraceStore) -> dict[str, tuple[object, ...]]:
    return {row.request_id: seen(row) for row in await store.calls(limit=None)}


@pytest.mark.parametrize("seed", first_is_quick(range(6), "more folders"))
@pytest.mark.parametrize("source", FOLDERS)
async def test_reading_at_any_byte_gives_the_same_calls(source: str, seed: int, tmp_path: Path) -> None:
    whole, grown = tmp_path / "whole", tmp_path / "grown"
    FOLDERS[source](whole, seed, 3)
    chance = random.Random(seed)
    async with TraceStore(tmp_path / "one.db") as one, TraceStore(tmp_path / "other.db") as other:
        grown.mkdir()
        importer = Importer(other, source, grown, prices=PRICES)
        # The order in which the programs wrote the files: forks come after the sessions that they copy.
        for path in sorted(
            whole.rglob("*.jsonl"), key=lambda path: (b"forked" in path.read_bytes(), "/f" in str(path))
        ):
            data = path.read_bytes()
            target = grown / path.relative_to(whole)
            target.parent.mkdir(parents=True, exist_ok=True)
            for cut in sorted([*(chance.randint(0, len(data)) for _ in range(6)), len(data)]):
                with target.open("ab") as file:
                    file.write(data[file.tell() : cut])
                if chance.random() < 0.3:  # a new process continues
                    importer = Importer(other, source, grown, prices=PRICES)
                await importer.run()
        await Importer(one, source, whole, prices=PRICES).run()
        assert await rows_of(other) == await rows_of(one)
