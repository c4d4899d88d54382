"""The time to reprice a million calls and to query their costs, compared with minimal SQL.

    python -m benchmarks.store_money [CALLS]

The floor of repricing is an ``INSERT ... SELECT`` by sqlite3 alone, under the same settings and for as many calls
at a time, with a join on the price of the model and a product for each count, into a table like the store's. It
has no price tiers, dates, reasons or sums. The two alternate after a quarter of a million calls each, so that
drifting speed of the machine affects both alike. The figure is the CPU time of all rounds.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import sqlite3
import sys
import tempfile
import time
from pathlib import Path

from callboard.bus.events import Envelope
from callboard.bus.events.calls import LlmCallCompleted, LlmCallStarted
from callboard.tracestore import CallFilter, PriceRow, PriceTable, TraceStore
from callboard.tracestore.sql import repricing
from callboard.tracestore.sql.sums import sum_up

from .stored_calls import call, envelopes_of
from .table import Row, against, micros

CALLS = 1_000_000
_WRITTEN = 1_000  # written by the store itself; SQL generates the others from them
DAYS = 90
_TURN = 25  # chunks
_ROUNDS = 3  # each with a repricing of the costs at call time, and one of the result
FIRST_US = 1_770_000_000_000_000
MODELS = [
    *("openai:gpt-5", "openai:gpt-5-mini", "openai:gpt-4.1", "anthropic:claude-sonnet-4-5", "xai:grok-4"),
    *(
        "anthropic:claude-haiku-4-5",
        "google:gemini-2.5-pro",
        "google:gemini-2.5-flash",
        "mistral:large",
        "local:x",
    ),
]
_PRAGMAS = ("synchronous = NORMAL", "wal_autocheckpoint = 4000", "cache_size = -16384", "temp_store = MEMORY")

_FLOOR = """
    INSERT INTO floor_cost (run, call_id, cost_nano, reason)
    SELECT ?, c.id,
           (c.input_tokens * p.input + c.cached_input_tokens * p.cache_read
            + (c.output_tokens - coalesce(c.reasoning_tokens, 0)) * p.output
            + coalesce(c.reasoning_tokens, 0) * p.output
            + (c.cache_creation_input_tokens - coalesce(c.cache_creation_1h_input_tokens, 0)) * p.cache_write
            + coalesce(c.cache_creation_1h_input_tokens, 0) * p.cache_write + 500) / 1000,
           NULL
      FROM calls AS c
      JOIN temp.price AS p ON p.provider = c.provider AND p.model = c.model
     WHERE c.id > ? AND c.id <= ?
"""
FULL_SCAN = "SELECT count(*), sum(input_tokens), sum(output_tokens), sum(cost_nano) FROM calls"


def table_of_prices(number: int) -> PriceTable:
    rows = [
        PriceRow(model=model, input=number * 1_000_000 + place, output=5_000_000, cache_read=100_000)
        for place, model in enumerate(MODELS)
    ]
    return PriceTable(rows, label=f"table {number}")


async def _fill(path: Path, calls: int) -> None:
    """Create a trace file with this number of calls of ten models over ninety days. It has no events, because no
    query here reads them.
    """
    seqs = itertools.count(1)
    async with TraceStore(path) as store:
        for _ in range(_WRITTEN // 100):
            published = [one for _ in range(100) for one in call()]
            batch: list[Envelope] = envelopes_of(
                [one for one in published if isinstance(one[0], LlmCallStarted | LlmCallCompleted)], seqs
            )
            await store.write(batch)
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as file:
        columns = [name for _, name, *_ in file.execute("PRAGMA table_info(calls)") if name != "id"]
        file.execute("CREATE TEMP TABLE model (n INTEGER PRIMARY KEY, model TEXT)")
        file.executemany("INSERT INTO model VALUES (?, ?)", enumerate(MODELS))
        file.execute("CREATE TEMP TABLE made AS SELECT * FROM calls")
        began = f"({FIRST_US} + k.n * {DAYS * 86_400_000_000 // calls})"
        ids = {name: f"printf('{name[:3]}_%026d', k.n)" for name in ("request_id", "turn_id", "message_id")}
        values = {name: f"c.{name}" for name in columns} | ids
        values["session_id"] = "printf('ses_%026d', k.n / 20)"
        values["ts_us"] = values["started_us"] = began
        values["finished_us"], values["day"] = f"{began} + 2000", f"{began} / 86400000000"
        values["model"], values["provider"] = "m.model", "substr(m.model, 1, instr(m.model, ':') - 1)"
        values["served_model"] = "substr(m.model, instr(m.model, ':') + 1) || '-2025-08-07'"
        values["input_tokens"], values["output_tokens"] = "c.input_tokens + k.n % 1000", "1 + k.n % 300"
        file.execute("BEGIN IMMEDIATE")
        file.execute("DELETE FROM calls")
        file.execute(
            f"""
            WITH RECURSIVE k (n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM k WHERE n + 1 < {calls})
            INSERT INTO calls (id, {", ".join(columns)})
            SELECT k.n + 1, {", ".join(values[name] for name in columns)}
              FROM k
             CROSS JOIN made AS c ON c.rowid = k.n % {_WRITTEN} + 1
             CROSS JOIN model AS m ON m.n = k.n * 7919 / 10 % {len(MODELS)}
            """
        )
        file.execute("COMMIT")


def _bare(path: Path) -> sqlite3.Connection:
    """Only sqlite3 on the same file, with a price for each model and a table for its costs."""
    bare = sqlite3.connect(path, isolation_level=None)
    for pragma in _PRAGMAS:
        bare.execute(f"PRAGMA {pragma}")
    ((like,),) = bare.execute("SELECT sql FROM sqlite_master WHERE name = 'call_cost'")
    bare.execute(like.replace("call_cost", "floor_cost"))
    bare.execute(
        """
        CREATE TEMP TABLE price (
            provider TEXT, model TEXT, input INTEGER, output INTEGER, cache_read INTEGER, cache_write INTEGER,
            PRIMARY KEY (provider, model)
        ) WITHOUT ROWID
        """
    )
    prices = [
        (model.partition(":")[0], model, 1_000_000 + n, 5_000_000, 100_000, 0) for n, model in enumerate(MODELS)
    ]
    bare.executemany("INSERT INTO price VALUES (?, ?, ?, ?, ?, ?)", prices)
    return bare


async def _reprice(store: TraceStore, bare: sqlite3.Connection, number: int) -> tuple[float, float, int]:
    """The CPU seconds of a repricing and of its floor, and the maximum additional memory in bytes."""
    table = table_of_prices(number)
    most, before = 0, _resident()
    floor = 0.0
    waiting: list[int] = []  # the ends of the chunks that the floor has not processed yet

    def chunk_done(done: int, last: int) -> None:
        nonlocal most, floor
        most = max(most, _resident() - before)
        waiting.append(done)
        if len(waiting) == _TURN or done == last:
            began = time.process_time()
            for high in waiting:
                bare.execute("BEGIN IMMEDIATE")
                bare.execute(_FLOOR, (number, high - repricing.CHUNK, high))
                bare.execute("COMMIT")
            waiting.clear()
            floor += time.process_time() - began

    began = time.process_time()
    await store.reprice(table, progress=chunk_done)
    return time.process_time() - began - floor, floor, most


def _resident() -> int:
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


async def _asked(store: TraceStore, bare: sqlite3.Connection, where: CallFilter, by: str) -> tuple[float, float]:
    """The CPU seconds of a grouped cost query and of a full scan: the minimum of five alternating runs."""
    spent: list[float] = []
    scanned: list[float] = []
    for _ in range(5):
        began = time.process_time()
        await store.costs(where, (by,))
        spent.append(time.process_time() - began)
        began = time.process_time()
        bare.execute(FULL_SCAN).fetchall()
        scanned.append(time.process_time() - began)
    return min(spent), min(scanned)


async def money_rows(calls: int = CALLS) -> list[Row]:
    """Measure repricing of the costs at call time and of a price version, and the grouped query after it."""
    found: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="callboard-bench-") as folder:
        path = Path(folder) / "trace.db"
        await _fill(path, calls)
        async with TraceStore(path) as store:
            with contextlib.closing(_bare(path)) as bare:
                began = time.process_time()
                await store._database.write(sum_up)
                summed = time.process_time() - began
                bare.execute(FULL_SCAN).fetchall()
                over_call_time, over_version = [], []
                for number in range(1, 2 * _ROUNDS, 2):
                    await store.use_prices(None)
                    over_call_time.append(await _reprice(store, bare, number))
                    over_version.append(await _reprice(store, bare, number + 1))
                for title, measured in (
                    (f"repricing {calls:,} calls", over_call_time),
                    ("again, over that", over_version),
                ):
                    spent, floor, _ = (sum(each) / _ROUNDS for each in zip(*measured, strict=True))
                    found.append(against(f"{title}, per call", spent / calls, floor / calls, gate=2))
                most = max(of for *_, of in (*over_call_time, *over_version))
                found.append(Row("  memory that it took, at the most", f"{most / 2**20:.0f} MiB"))
                middle = CallFilter(since=FIRST_US + 86_400_000_000 * DAYS // 3, provider="openai")
                for where, by in ((CallFilter(), "model"), (CallFilter(), "day"), (middle, "model")):
                    which = "of a provider since some hour" if where == middle else "of all"
                    title = f"what calls cost by {by}, {which} (floor: a full scan)"
                    found.append(against(title, *await _asked(store, bare, where, by), gate=0.1))
                spent, scanned = await _asked(store, bare, CallFilter(), "session_id")
                found.append(against("by session, from the calls (floor: a full scan)", spent, scanned))
                found.append(Row("what the sums of calls add to ingest, per call", micros(summed / calls)))
    return found


async def _main(calls: int) -> None:
    from .table import render

    print(render("Money", await money_rows(calls)))


if __name__ == "__main__":
    asyncio.run(_main(int(sys.argv[1]) if len(sys.argv) > 1 else CALLS))
