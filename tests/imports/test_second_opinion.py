"""The same folders read by ccusage, a program that many use. Set CCUSAGE to the command that starts it."""

from __future__ import annotations

import json
import os
import shlex
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

anyio_backend = runs_on("asyncio")
pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif("CCUSAGE" not in os.environ, reason="CCUSAGE names no program"),
]

Tokens = dict[tuple[str, str], tuple[int, int, int, int]]
"""Fresh input, output, cache writes and cache reads, by two names."""


def told(arguments: str, **environment: str) -> dict[str, Any]:
    """What ccusage says, as JSON."""
    command = [*shlex.split(os.environ["CCUSAGE"]), *arguments.split(), "--json", "--offline", "--timezone", "UTC"]
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
            usage.input_tokens,
            usage.output_tokens,
            usage.cache_creation_input_tokens,
            usage.cached_input_tokens,
        )
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
    theirs = told("claude daily", CLAUDE_CONFIG_DIR=str(tmp_path / "claude"))
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
    sessions = told("claude session", CLAUDE_CONFIG_DIR=str(tmp_path / "claude"))
    by_session = {
        (of["sessionId"], ""): (
            of["inputTokens"],
            of["outputTokens"],
            of["cacheCreationTokens"],
            of["cacheReadTokens"],
        )
        for of in sessions["sessions"]
    }
    assert summed(rows, lambda row: (row.session_id or "", "")) == by_session


@pytest.mark.parametrize("seed", range(8))
async def test_tokens_of_codex_by_day_and_model_are_those_of_ccusage(seed: int, tmp_path: Path) -> None:
    codex_folder(tmp_path / "codex" / "sessions", seed)
    rows = await imported("codex", tmp_path / "codex", tmp_path)
    theirs = told("codex daily", CODEX_HOME=str(tmp_path / "codex"))
    by_day = {
        (of["date"], model): (counts["inputTokens"], counts["outputTokens"], 0, counts["cacheReadTokens"])
        for of in theirs["daily"]
        for model, counts in of["models"].items()
    }
    assert summed(rows, lambda row: (day(row), row.model.partition(":")[2])) == by_day
    sessions = told("codex session", CODEX_HOME=str(tmp_path / "codex"))
    by_session = {
        (of["sessionId"][-36:], ""): (of["inputTokens"], of["outputTokens"], 0, of["cacheReadTokens"])
        for of in sessions["sessions"]
    }
    assert summed(rows, lambda row: (row.session_id or "", "")) == by_session
