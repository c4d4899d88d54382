"""Kills MCP servers at random while tools of theirs are called, and checks that they come back.

    python -m labs.mcp [--seconds N] [--seed N] [--npm FOLDER] [--time COMMAND]

A round opens all servers in one engine. Some workers call tools whose answers are known, while a killer ends
random server processes with `kill -9`. Then the killer stops, and it must hold:

* Each call has ended, with the right answer or with an error that names its server.
* Each server answers again.
* The engine's supervision tree has counted the restarts.
* Nothing runs any more when the servers are closed.

Without options the only servers are two of the tests. `--npm` names a folder with the reference servers of npm,
`@modelcontextprotocol/server-everything`, `-filesystem` and `-memory`. `--time` is the command of
`mcp-server-time` of PyPI. The program exits with 1 if a round failed; `--seed N --seconds 0` plays one again.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import os
import random
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from callboard import Engine, McpServers, McpServerSettings, ToolContext, ToolError, mcp_servers
from callboard.bus import RestartPolicy

from ..seeds import play

OLD_SERVER = Path(__file__).parents[2] / "tests" / "engine" / "mcp" / "old_server.py"

RESTARTS = RestartPolicy(max_failures=1000, backoff_base=0.05, backoff_cap=0.5)

WORKERS = 6
ROUND_SECONDS = 6.0
CALL_SECONDS = 40.0
"""Seconds in which each call must have ended. A call waits for a restart for 10 s at most."""

EXPECTED_ERRORS = ("stopped during this call", "is restarting")


class Known(NamedTuple):
    """A call with a known answer."""

    server: str
    tool: str
    arguments: Mapping[str, Any]
    answer: str


def node(folder: Path, name: str, *arguments: str, **settings: Any) -> McpServerSettings:
    entry = folder / "node_modules" / "@modelcontextprotocol" / f"server-{name}" / "dist" / "index.js"
    return McpServerSettings(command=os.environ.get("NODE", "node"), args=[str(entry), *arguments], **settings)


def servers_of(options: argparse.Namespace, folder: Path) -> dict[str, McpServerSettings]:
    found = {
        name: McpServerSettings(command=sys.executable, args=[str(OLD_SERVER), name]) for name in ("left", "right")
    }
    if options.npm:
        (folder / "note.txt").write_text("a note")
        npm = Path(options.npm).resolve()
        found["everything"] = node(npm, "everything")
        found["files"] = node(npm, "filesystem", str(folder))
        found["memory"] = node(npm, "memory", env={"MEMORY_FILE_PATH": str(folder / "memory.jsonl")})
    if options.time:
        command, *arguments = options.time.split()
        found["time"] = McpServerSettings(command=command, args=arguments)
    return found


def calls_of(servers: Mapping[str, McpServerSettings], folder: Path) -> list[Known]:
    noon = {"source_timezone": "Europe/Paris", "time": "12:00", "target_timezone": "Asia/Tokyo"}
    calls = [
        Known("left", "echo", {"text": "hi"}, "left: hi"),
        Known("right", "big", {"size": 100_000}, "aaaend"),
        Known("everything", "echo", {"message": "hi"}, "Echo: hi"),
        Known("everything", "get-sum", {"a": 2, "b": 3}, "5"),
        Known("files", "read_text_file", {"path": str(folder / "note.txt")}, "a note"),
        Known("files", "list_directory", {"path": str(folder)}, "note.txt"),
        Known("memory", "read_graph", {}, "entities"),
        Known("time", "convert_time", noon, "Asia/Tokyo"),
    ]
    return [each for each in calls if each.server in servers]


def children() -> list[int]:
    """The child processes that still run."""
    found: list[int] = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, IndexError):
            state, parent = path.read_text().rpartition(")")[2].split()[:2]
            if int(parent) == os.getpid() and state != "Z":
                found.append(int(path.parent.name))
    return found


async def call(servers: McpServers, known: Known) -> str:
    """The outcome of one call, in a word, or what is wrong with it."""
    tool = next(
        (each for each in servers.tools if (each.server, each.original_name) == (known.server, known.tool)), None
    )
    if tool is None or tool.execute is None:
        return f"wrong: {known.server} does not offer {known.tool}"
    context = ToolContext(tool_call_id="tu_1", tool_name=tool.name)
    try:
        async with asyncio.timeout(CALL_SECONDS):
            answer = await tool.execute(dict(known.arguments), context=context)  # type: ignore[misc]
    except ToolError as error:
        text = str(error.content)
        expected = known.server in text and any(words in text for words in EXPECTED_ERRORS)
        return "calls that a kill ended" if expected else f"wrong: {known}: {text}"
    except TimeoutError:
        return f"wrong: {known} did not end in {CALL_SECONDS:g} s"
    return "calls answered" if known.answer in str(answer) else f"wrong: {known}: {str(answer)[:300]}"


async def round_of(seed: int, options: argparse.Namespace, folder: Path) -> tuple[Counter[str], list[str]]:
    chance = random.Random(seed)
    counts: Counter[str] = Counter()
    failures: list[str] = []

    def note(outcome: str) -> None:
        if outcome.startswith("wrong"):
            failures.append(outcome)
        else:
            counts[outcome] += 1

    settings = servers_of(options, folder)
    calls = calls_of(settings, folder)
    others = children()  # in the test suite, servers of other tests also run
    over = asyncio.Event()

    async def work(pick: Callable[[], Known]) -> None:
        while not over.is_set():
            note(await call(servers, pick()))

    async def kill() -> None:
        until = asyncio.get_running_loop().time() + ROUND_SECONDS
        while asyncio.get_running_loop().time() < until:
            await asyncio.sleep(chance.uniform(0.01, 0.5))
            if running := [pid for pid in children() if pid not in others]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(chance.choice(running), signal.SIGKILL)
                    counts["kills"] += 1
        over.set()

    async with Engine(trace=False) as engine:  # noqa: SIM117 (the servers end before what is counted after them)
        async with mcp_servers(settings, engine=engine, restarts=RESTARTS) as servers:
            down = [status for status in servers.status() if status.state != "up"]
            failures += [f"{status.name} did not start: {status.error}" for status in down]
            async with asyncio.TaskGroup() as group:
                group.create_task(kill())
                for _ in range(WORKERS):
                    own = random.Random(chance.random())
                    group.create_task(work(partial(own.choice, calls)))
            for each in calls:
                outcome = await call(servers, each)
                if outcome == "calls that a kill ended":  # the kill was the last event
                    outcome = await call(servers, each)
                note(outcome if outcome == "calls answered" else f"wrong: after the kills: {outcome}")
            tree = engine.statistics().supervisor
            assert tree is not None
            below = next(child.supervisor for child in tree.children if child.name == "mcp servers")
            assert below is not None
            counts["restarts"] += sum(child.restarts for child in below.children)
    if leftover := [pid for pid in children() if pid not in others]:
        failures.append(f"{len(leftover)} processes still run after the end")
    return counts, failures


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=1, help="of the first round")
    parser.add_argument("--npm", metavar="FOLDER", help="a folder with the reference servers of npm")
    parser.add_argument("--time", metavar="COMMAND", help="the command of mcp-server-time")
    options = parser.parse_args()
    logging.getLogger("callboard").setLevel(logging.CRITICAL)
    with tempfile.TemporaryDirectory(prefix="callboard-mcp-") as folder:
        place = Path(folder).resolve()
        return play(lambda seed: asyncio.run(round_of(seed, options, place)), options.seed, options.seconds)


if __name__ == "__main__":
    raise SystemExit(main())
