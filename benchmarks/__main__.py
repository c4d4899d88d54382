"""One table of what Callboard costs: CPU time, each figure beside its physical floor, measured in the same run.

    python -m benchmarks [NAMES...] [--quick] [--peers]

Nothing here asserts a time: a gate is shown beside its ratio, with a mark whether it is met on this machine now.
See benchmarks/README.md for what each row means.
"""

from __future__ import annotations

import argparse
import importlib
import os
import platform
import sys
import time
from datetime import UTC, datetime

from .table import as_row, render

SUBJECTS = {
    "bus": "The bus (floor: a deque and an event for each subscriber, drained in batches)",
    "actors": "Actors (floor: asyncio.Queue and Future)",
    "fanout": "Stream fan-out (floor: direct calls)",
    "per_delta": "Per delta (floor: raw httpx and msgspec)",
    "per_call": "Per call, not streamed, 20 messages and 5 tools (floor: raw httpx post, msgspec decode)",
    "budgets": "Budgets, per call (floor: the same call through an engine without budgets)",
    "functions": "The functions, 20 messages and 5 tools (floor: a session that says the same)",
    "tool_round": "A round of five tool calls, besides what the tools do (floor: asyncio.gather)",
    "store": "The trace store, per call of six events (floor: sqlite3 alone, as many rows, the same indexes)",
    "ingest": "Ingest of llm.call_* events (floor: executemany of the rows they make, the same schema, wall)",
    "postgres_money": "Money in PostgreSQL (floor: INSERT ... SELECT; a full scan)",
    "shipping": "Shipping a trace file (floor: the bare COPY of the same rows, the same tables, wall)",
    "nodes": "Nodes (floor: the same engine without neighbours; a bare message of the broker)",
    "frames": "Streams read on another node (floor: no frames; nats-py publish to subscribe)",
    "at_once": "Calls at once (floor: raw httpx, a client for each 16 calls)",
    "scale": "Streams at scale, through the whole engine with store (floor: raw httpx and msgspec)",
    "web_view": "The live view, through the whole engine with store (floor: the same without a live view)",
    "memory": "Memory of the whole engine",
    "import": "Import, CPU above asyncio, sqlite3, json and ssl (floor: those)",
    "cli": "The command line, CPU of whole processes (floor: imports alone; the same call from a script)",
    "peers": "Peers, against the same server (floor: raw httpx and msgspec)",
}
MODULES = {"import": "import_cost"}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__.split("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAMES", help=f"of {', '.join(SUBJECTS)}")
    parser.add_argument("--quick", action="store_true", help="small numbers: does it run, not what does it cost")
    parser.add_argument("--peers", action="store_true", help="the vendors' SDKs and frameworks that are installed")
    arguments = parser.parse_args()
    unknown = [name for name in arguments.names if name not in SUBJECTS]
    if unknown:
        parser.error(f"no subject {', '.join(unknown)}; there are {', '.join(SUBJECTS)}")
    names = arguments.names or [name for name in SUBJECTS if name != "peers"]
    if arguments.peers and "peers" not in names:
        names.append("peers")
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    print(
        f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC, Python {platform.python_version()}, {platform.machine()}, "
        f"{os.cpu_count()} cores, load {load:.1f}{', quick' if arguments.quick else ''}\n"
        f"{'':60}{'figure':>14}{'floor':>14}{'ratio':>10}   gate"
    )
    failed = False
    for name in names:
        module = f"benchmarks.{MODULES.get(name, name)}"
        begun = time.perf_counter()
        try:
            subject = importlib.import_module(module)
        except ModuleNotFoundError as error:
            if error.name != module:
                raise
            print(f"{SUBJECTS[name]}\n  not here: {module}", flush=True)
            continue
        try:
            found = [as_row(row) for row in subject.rows(arguments.quick)]
        except Exception as error:  # the other subjects are still worth their time
            failed = True
            print(f"{SUBJECTS[name]}\n  FAILED: {type(error).__name__}: {error}", flush=True)
            continue
        print(render(f"{SUBJECTS[name]}, {time.perf_counter() - begun:.0f} s", found), flush=True)
    sys.exit(failed)


if __name__ == "__main__":
    main()
