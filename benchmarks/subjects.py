"""The subjects of the benchmarks, and the environment in which each is measured."""

from __future__ import annotations

import importlib
from typing import Literal, NamedTuple, TypeAlias

from .table import Row, as_row

Where: TypeAlias = Literal["plain", "peers", "here"]
"""The environment of the plain install, that of the peers, or the current one."""


class Subject(NamedTuple):
    """One section of the table."""

    title: str
    where: Where = "plain"
    module: str = ""
    """The module's name, if it differs from the subject's."""


SUBJECTS = {
    "per_call": Subject("Per call, not streamed, 20 messages and 5 tools (floor: raw httpx, msgspec)"),
    "per_delta": Subject("Per delta, in bursts (floor: raw httpx, msgspec)"),
    "paced": Subject("Per delta, one at a time, 5,000 a second together (floor: raw httpx, msgspec)"),
    "peers": Subject("Peers, against the same server (floor: raw httpx, msgspec)", "peers"),
    "import": Subject("Import and first answer, CPU of a process", module="import_cost"),
    "at_once": Subject("Calls at once (floor: raw httpx, a client for each 16 calls)"),
    "memory": Subject("Memory of the whole engine"),
    "scale": Subject("Streams at scale, through the whole engine with store (floor: raw httpx, msgspec)"),
    "bus": Subject("The bus (floor: a deque and an event for each subscriber, drained in batches)"),
    "actors": Subject("Actors (floor: asyncio.Queue and Future)"),
    "fanout": Subject("Stream fan-out (floor: direct calls)"),
    "budgets": Subject("Budgets, per call (floor: the same call through an engine without budgets)"),
    "functions": Subject("The functions, 20 messages and 5 tools (floor: a session that says the same)"),
    "tool_round": Subject("A round of five tool calls, besides what the tools do (floor: asyncio.gather)"),
    "store": Subject(
        "The trace store, per call of six events (floor: sqlite3 alone, as many rows, the same indexes)"
    ),
    "ingest": Subject(
        "Ingest of llm.call_* events (floor: executemany of the rows they make, the same schema, wall)"
    ),
    "session_files": Subject(
        "Import of Claude Code's session files (floor: msgspec alone, the same lines decoded)", "here"
    ),
    "cli": Subject(
        "The command line, CPU of processes (floor: imports alone; the same call from a script)", "here"
    ),
    "postgres_money": Subject("Money in PostgreSQL (floor: INSERT ... SELECT; a full scan)", "here"),
    "shipping": Subject(
        "Shipping a trace file (floor: the bare COPY of the same rows, the same tables, wall)", "here"
    ),
    "nodes": Subject("Nodes (floor: the same engine without neighbours; a bare message of the broker)", "here"),
    "frames": Subject("Streams read on another node (floor: no frames; nats-py publish to subscribe)", "here"),
    "gateway": Subject("The gateway, CPU of its process (floor: the same engine asked directly)", "here"),
    "gateways": Subject("Gateways, CPU of each one's processes (floor: Callboard's, with its trace)", "peers"),
    "web_view": Subject("The live view, through the whole engine (floor: the same without a live view)", "here"),
}


def rows_of(name: str, *, quick: bool) -> list[Row]:
    """Measure a subject."""
    module = importlib.import_module(f".{SUBJECTS[name].module or name}", __package__)
    return [as_row(row) for row in module.rows(quick)]
