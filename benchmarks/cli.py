"""The CPU time of command-line processes from start to end, each with its floor.

The floor of `--help` is an interpreter that imports argparse, sqlite3 and json. The floor of `ask` is a script
that makes the same streamed call to the same server with the same configuration. Each figure is the minimum of
several processes, which alternate with those of the floor.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.support.reply_server import reply_server

from .table import Row

HELP_GATE = 2.0
ASK_GATE_MS = 150
DELTAS = 100

IMPORTS = "import argparse, sqlite3, json"
SCRIPT = """
from callboard import stream_sync

with stream_sync("openai:m", "Hello") as result:
    for text in result.text_stream:
        print(text, end="", flush=True)
"""
MODELS = """
adapters: {{openai: {{type: openai, base_url: "{url}/v1", api_key_env: BENCHMARK_KEY}}}}
models: {{"openai:m": {{adapter: openai}}}}
default_model: "openai:m"
"""


def rows(quick: bool) -> list[Row]:
    with reply_server(DELTAS) as url, tempfile.TemporaryDirectory() as home:
        Path(home, "models.yaml").write_text(MODELS.format(url=url))
        variables = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        environment = {**variables, "CALLBOARD_HOME": home, "BENCHMARK_KEY": "x"}
        processes = {
            "floor": ("-c", IMPORTS),
            "help": ("-m", "callboard", "--help"),
            "script": ("-c", SCRIPT),
            "ask": ("-m", "callboard", "ask", "Hello"),
        }
        spent = least(processes, environment, 2 if quick else 12)
    added = spent["ask"] - spent["script"]
    return [
        Row(
            "callboard --help",
            f"{spent['help']:.0f} ms",
            f"{spent['floor']:.0f} ms",
            spent["help"] / spent["floor"],
            f"≤ {HELP_GATE:g}×",
            spent["help"] / spent["floor"] <= HELP_GATE,
        ),
        Row(
            f"callboard ask, {DELTAS} deltas, above the same call from a script",
            f"{added:+.0f} ms",
            f"{spent['script']:.0f} ms",
            spent["ask"] / spent["script"],
            f"≤ +{ASK_GATE_MS} ms",
            added <= ASK_GATE_MS,
        ),
    ]


def least(
    processes: Mapping[str, Sequence[str]], environment: Mapping[str, str], repetitions: int
) -> dict[str, float]:
    """The minimum CPU time of each process in milliseconds, without a first round as warm-up."""
    best: dict[str, float] = {}
    for number in range(repetitions + 1):
        for name, words in processes.items():
            spent = cpu_ms(words, environment)
            if number:
                best[name] = min(best.get(name, spent), spent)
    return best


def cpu_ms(words: Sequence[str], environment: Mapping[str, str]) -> float:
    """The CPU time of an interpreter with all its threads, from start to end, in milliseconds."""
    nothing = os.open(os.devnull, os.O_RDWR)
    try:
        process = os.posix_spawn(
            sys.executable,
            [sys.executable, *words],
            environment,
            file_actions=[(os.POSIX_SPAWN_DUP2, nothing, stream) for stream in (0, 1, 2)],
        )
        _, status, usage = os.wait4(process, 0)
    finally:
        os.close(nothing)
    if status != 0:
        raise RuntimeError(f"{' '.join(words)!r} ended with {os.waitstatus_to_exitcode(status)}")
    return (usage.ru_utime + usage.ru_stime) * 1000
