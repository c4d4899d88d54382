"""Files that the programs themselves wrote. `labs/clients` runs the programs with a scripted model.

Each file has three calls of 1,000 input tokens, 400 of them from a cache, and 50 output tokens. Long texts are
shortened, and the folder of the work is ``/src/shop``.
"""

from __future__ import annotations

import json
import shutil
import sqlite3
from pathlib import Path

import pytest

from callboard.engine.imports.importer import import_calls
from callboard.tracestore import CallRow, PriceTable, TraceStore

pytestmark = pytest.mark.anyio
REAL = Path(__file__).parent / "real"
MODELS = {
    "claude-code": "anthropic:claude-sonnet-4-5",
    "codex": "gateway:gpt-5.5",
    "gemini-cli": "gemini:gemini-2.5-pro",
    "opencode": "gateway:lab-chat",
}


def place_of(source: str, folder: Path) -> Path:
    """Copy the files of a program into a folder, to the place where the program keeps them."""
    if source == "opencode":
        rows = [json.loads(line) for line in (REAL / "opencode.jsonl").read_text().splitlines()]
        with sqlite3.connect(folder / "opencode.db") as made:
            made.execute("CREATE TABLE session (id TEXT, parent_id TEXT, directory TEXT)")
            made.execute("CREATE TABLE message (id TEXT, session_id TEXT, time_created INTEGER, data TEXT)")
            made.executemany("INSERT INTO message VALUES (:id, :session_id, :time_created, :data)", rows)
        made.close()
        return folder
    inner = {"claude-code": "projects/-src-shop/s.jsonl", "codex": "s.jsonl", "gemini-cli": "shop/chats/s.jsonl"}
    target = folder / inner[source]
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(REAL / f"{source.replace('-', '_')}.jsonl", target)
    return folder


async def imported(source: str, tmp_path: Path) -> list[CallRow]:
    place = place_of(source, tmp_path / "there")
    async with TraceStore(tmp_path / "trace.db") as store:
        report = await import_calls(store, source, place, prices=PriceTable.default())
        assert (report.new, report.unread) == (3, 0)
        return await store.calls()


@pytest.mark.parametrize("source", MODELS)
async def test_the_tokens_are_those_that_the_provider_reported(source: str, tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    rows = await imported(source, tmp_path)
    assert {row.model for row in rows} == {MODELS[source]}
    for row in rows:
        assert row.usage is not None
        assert (row.usage.input_tokens, row.usage.cached_input_tokens, row.usage.output_tokens) == (600, 400, 50)
    assert len({row.session_id for row in rows}) == 1
    assert len({row.turn_id for row in rows}) == 1
    project = "shop" if source == "gemini-cli" else "/src/shop"  # the folder of the work
    assert {row.tags.get("project") for row in rows} == {project}
