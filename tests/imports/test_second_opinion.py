"""A comparison with ccusage, a popular program that reads the same folders.

`CALLBOARD_NPM` names a folder with `ccusage` in its `node_modules`. `NODE` names Node if it is not on the path.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from callboard.bus.clock import iso_day
from callboard.engine.imports.importer import import_calls
from callboard.tracestore import CallRow, TraceStore
from tests.support.session_files import claude_folder, codex_folder
from tests.support.virtual_time import runs_on

from .test_real_files import place_of

anyio_backend = runs_on("asyncio")
CCUSAGE = Path(os.environ.get("CALLBOARD_NPM", ""), "node_modules", "ccusage", "src", "cli.js")
pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(not CCUSAGE.is_file(), reason="CALLBOARD_NPM names no folder with ccusage"),
]

Tokens = dict[tuple[str, str], tuple[int, int, int, int]]
"""Fresh input, output, cache writes and cache reads, by a pair of names."""


def ccusage(arguments: str, **environment: str) -> dict[str, Any]:
    """The JSON output of a ccusage command."""
    node = os.environ.get("NODE", "node")
    command = [node, str(CCUSAGE), *arguments.split(), "--json", "--offline", "--timezone", "UTC"]
    run = subprocess.run(
        command, capture_output=True, check=True, env={**os.environ, **environment, "TZ": "UTC"}, timeout=60
    )
    answer: dict[str, Any] = json.loads(run.stdout)
    return answer


def summed(rows: list[CallRow], key: Callable[[CallRow], tuple[str, str]]) -> Tokens:
    sums: dict[tuple[str, str], list[int]] = defaultdict(lambda: [0, 0, 0, 0])
    for row in rows:
        usage = row.usage
        assert usage is not None
        counts = (
            usage.input_tokens, usage.output_tokens, usage.cache_creation_input_tokens, usage.cached_input_tokens,
        )  # fmt: skip
        sums[key(row)] = [one + other for one, other in zip(sums[key(row)], counts, strict=True)]
    return {name: tuple(four) for name, four in sums.items()}  # type: ignore[misc]


def day(row: CallRow) -> str:
    return iso_day((row.started_us or 0) // 86_400_000_000)


async def imported(source: str, folder: Path, tmp_path: Path) -> list[CallRow]:
    async with TraceStore(tmp_path / "trace.db") as store:
        await import_calls(store, source, folder)
        return await store.calls(limit=None)


@pytest.mark.parametrize("seed", range(8))
async def test_tokens_of_claude_code_by_day_model_and_session_are_those_of_ccusage(
    seed: int, tmp_path: Path
) -> None:
    claude_folder(tmp_path / "claude" / "projects", seed)
    rows = await imported("claude-code", tmp_path / "claude", tmp_path)
    theirs = ccusage("claude daily", CLAUDE_CONFIG_DIR=str(tmp_path / "claude"))
    by_day = {
        (of["date"], model["modelName"]): (
            model["inputTokens"],
            model["outputTokens"],
            model["cacheCreationTokens"],
            model["cacheReadTokens"],
        )
        for of in theirs["daily"]
        for model in of["modelBreakdowns"]
    }
    assert summed(rows, lambda row: (day(row), row.model.partition(":")[2])) == by_day
    sessions = ccusage("claude session", CLAUDE_CONFIG_DIR=str(tmp_path / "claude"))
    by_session = {
        (of["sessionId"], ""): (
            of["inputTokens"],
            of["outputTokens"],
            of["cacheCreationTokens"],
            of["cacheReadTokens"],
        )
        for of in sessions["sessions"]
    }
    # ccusage counts lines of progress by day, but not by session.
    others = [row for row in rows if not (row.response_id or "").endswith("progress")]
    assert summed(others, lambda row: (row.session_id or "", "")) == by_session
    costs: dict[str, int] = defaultdict(int)
    for row in rows:
        assert row.cost is not None
        assert row.usage is not None
        searches = (row.usage.details or {}).get("web_search", 0)  # ccusage has no price for searches
        costs[row.model.partition(":")[2]] += (row.cost.nano_usd or 0) - searches * 10_000_000
    for model, nano_usd in costs.items():
        cost = sum(
            each["cost"] for of in theirs["daily"] for each in of["modelBreakdowns"] if each["modelName"] == model
        )
        assert round(cost * 1e9) == nano_usd


@pytest.mark.parametrize("seed", range(8))
async def test_tokens_of_codex_by_day_and_model_are_those_of_ccusage(seed: int, tmp_path: Path) -> None:
    codex_folder(tmp_path / "codex" / "sessions", seed)
    rows = await imported("codex", tmp_path / "codex", tmp_path)
    theirs = ccusage("codex daily", CODEX_HOME=str(tmp_path / "codex"))
    by_day = {
        (of["date"], model): (counts["inputTokens"], counts["outputTokens"], 0, counts["cacheReadTokens"])
        for of in theirs["daily"]
        for model, counts in of["models"].items()
    }
    assert summed(rows, lambda row: (day(row), row.model.partition(":")[2])) == by_day
    sessions = ccusage("codex session", CODEX_HOME=str(tmp_path / "codex"))
    by_session = {
        (of["sessionId"][-36:], ""): (of["inputTokens"], of["outputTokens"], 0, of["cacheReadTokens"])
        for of in sessions["sessions"]
    }
    assert summed(rows, lambda row: (row.session_id or "", "")) == by_session


HOMES = {
    "claude-code": ("claude", "CLAUDE_CONFIG_DIR", ""),
    "codex": ("codex", "CODEX_HOME", "sessions"),
    "gemini-cli": ("gemini", "GEMINI_DATA_DIR", "tmp"),
    "opencode": ("opencode", "OPENCODE_DATA_DIR", ""),
}
"""ccusage's name of a source, the variable with its folder, and the place of the files in the folder."""


@pytest.mark.parametrize("source", HOMES)
async def test_tokens_of_real_files_are_those_of_ccusage(source: str, tmp_path: Path) -> None:
    command, variable, inner = HOMES[source]
    (home := tmp_path / "home" / inner).mkdir(parents=True)
    rows = await imported(source, place_of(source, home), tmp_path)
    theirs = ccusage(f"{command} daily", **{variable: str(tmp_path / "home")})
    totals = theirs["totals"]
    found = summed(rows, lambda row: ("", ""))[("", "")]
    assert found == tuple(
        totals[name] for name in ("inputTokens", "outputTokens", "cacheCreationTokens", "cacheReadTokens")
    )
    assert {day(row) for row in rows} == {of["date"] for of in theirs["daily"]}
