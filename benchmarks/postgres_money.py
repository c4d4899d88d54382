"""The time to reprice a million calls in PostgreSQL and to query their costs, compared with minimal SQL.

    python -m benchmarks.postgres_money [CALLS]

The floors are those of `store_money`: an ``INSERT ... SELECT`` of as many calls at a time with a join on the price
of the model into a table like the store's, and a full scan. The two alternate. The figure is the CPU time of this
process and of all processes of the PostgreSQL server, which comes from the wheel. Autovacuum is off, because its
time would be added to either of the two.
"""

from __future__ import annotations

import asyncio
import itertools
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from callboard.bus.events.calls import LlmCallStarted
from callboard.bus.events.codec import LlmCallCompleted
from callboard.tracestore import CallFilter, PostgresStore
from callboard.tracestore.sql import repricing
from callboard.tracestore.sql.sums import sum_up
from tests.support.postgres_server import own_server, why_not

from .store_money import CALLS, DAYS, FIRST_US, FULL_SCAN, MODELS, table_of_prices
from .stored_calls import call, envelopes_of
from .table import Row, against, micros, run

_WRITTEN = 1_000  # written by the store itself; SQL generates the others from them
_TURN = 25  # chunks
_ROUNDS = 2
_FEWER, _QUICK = 200_000, 10_000
_TICKS = 100  # of the kernel's clock per second

_FLOOR = """
    INSERT INTO floor_cost (run, call_id, cost_nano, reason)
    SELECT %s, c.id,
           (c.input_tokens * p.input + c.cached_input_tokens * p.cache_read
            + (c.output_tokens - coalesce(c.reasoning_tokens, 0)) * p.output
            + coalesce(c.reasoning_tokens, 0) * p.output
            + (c.cache_creation_input_tokens - coalesce(c.cache_creation_1h_input_tokens, 0)) * p.cache_write
            + coalesce(c.cache_creation_1h_input_tokens, 0) * p.cache_write + 500) / 1000,
           NULL
      FROM calls AS c
      JOIN price AS p ON p.provider = c.provider AND p.model = c.model
     WHERE c.id > %s AND c.id <= %s
"""


class Bare:
    """Only psycopg on the same tables, with a price for each model and a table for its costs."""

    def __init__(self, dsn: str) -> None:
        import psycopg

        self.connection = psycopg.connect(dsn, autocommit=True, options="-c search_path=callboard")
        ((pid,),) = self.run("SELECT pg_backend_pid()")
        self._postmaster = int(_stat(pid)[1])

    def run(self, sql: str, values: tuple[object, ...] = ()) -> list[tuple[Any, ...]]:
        cursor = self.connection.execute(sql.encode(), values or None)
        return [] if cursor.description is None else cursor.fetchall()

    def make_floor(self) -> None:
        self.run("CREATE TABLE floor_cost (LIKE call_cost INCLUDING ALL)")
        self.run(
            "CREATE TEMP TABLE price (provider text, model text, input bigint, output bigint, cache_read bigint,"
            " cache_write bigint, PRIMARY KEY (provider, model))"
        )
        for number, model in enumerate(MODELS):
            self.run(
                "INSERT INTO price VALUES (%s, %s, %s, 5000000, 100000, 0)",
                (model.partition(":")[0], model, 1_000_000 + number),
            )

    def cpu(self) -> float:
        """CPU seconds of this process, and of the server with all its processes, ended ones included."""
        spent = _cpu_of(_stat(self._postmaster), ended=True)
        for process in Path("/proc").iterdir():
            if process.name.isdecimal():
                try:
                    stat = _stat(int(process.name))
                except OSError:
                    continue
                if int(stat[1]) == self._postmaster:
                    spent += _cpu_of(stat)
        return spent / _TICKS + time.process_time()


def _stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat after the process's name: state, parent, and so on."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def _cpu_of(stat: list[str], *, ended: bool = False) -> int:
    return sum(map(int, stat[11 : 15 if ended else 13]))


async def _fill(dsn: str, path: Path, bare: Bare, calls: int) -> None:
    """Create a trace with this number of calls of ten models over ninety days. It has no events, because no query
    here reads them.
    """
    seqs = itertools.count(1)
    async with PostgresStore(dsn, path=path) as store:
        for _ in range(_WRITTEN // 100):
            published = [one for _ in range(100) for one in call()]
            kept = [one for one in published if isinstance(one[0], LlmCallStarted | LlmCallCompleted)]
            await store.write(envelopes_of(kept, seqs))
    columns = [
        name
        for (name,) in bare.run(
            "SELECT attname FROM pg_attribute WHERE attrelid = 'calls'::regclass AND attnum > 0"
            " AND NOT attisdropped AND attname <> 'id'"
        )
    ]
    began = f"({FIRST_US} + k.n * {DAYS * 86_400_000_000 // calls})"
    values = {name: f"c.{name}" for name in columns}
    values |= {
        name: f"'{name[:3]}_' || lpad(CAST(k.n AS text), 26, '0')"
        for name in ("request_id", "turn_id", "message_id")
    }
    values["session_id"] = "'ses_' || lpad(CAST(k.n / 20 AS text), 26, '0')"
    values["ts_us"] = values["started_us"] = began
    values["finished_us"], values["day"] = f"{began} + 2000", f"{began} / 86400000000"
    values["model"], values["provider"] = "m.model", "split_part(m.model, ':', 1)"
    values["served_model"] = "split_part(m.model, ':', 2) || '-2025-08-07'"
    values["input_tokens"], values["output_tokens"] = "c.input_tokens + k.n %% 1000", "1 + k.n %% 300"
    bare.run("CREATE TEMP TABLE made AS SELECT c.*, row_number() OVER () - 1 AS place FROM calls AS c")
    bare.run("CREATE TEMP TABLE model (n bigint, model text)")
    for number, model in enumerate(MODELS):
        bare.run("INSERT INTO model VALUES (%s, %s)", (number, model))
    bare.run("TRUNCATE calls")
    bare.run(
        f"""
        INSERT INTO calls (id, {", ".join(columns)})
        SELECT k.n + 1, {", ".join(values[name] for name in columns)}
          FROM generate_series(0::bigint, %s - 1) AS k (n)
          JOIN made AS c ON c.place = k.n %% {_WRITTEN}
          JOIN model AS m ON m.n = k.n * 7919 / 10 %% {len(MODELS)}
         ORDER BY k.n
        """,
        (calls,),
    )
    bare.run("SELECT setval(pg_get_serial_sequence('calls', 'id'), %s)", (calls,))
    bare.run("UPDATE summed_calls SET up_to = 0")
    bare.run("DELETE FROM call_sums")
    bare.run("VACUUM (ANALYZE) calls")


async def _reprice(store: PostgresStore, bare: Bare, number: int) -> tuple[float, float]:
    """The CPU seconds of a repricing and of its floor."""
    floor = 0.0
    waiting: list[int] = []  # the ends of the chunks that the floor has not processed yet

    def chunk_done(done: int, last: int) -> None:
        nonlocal floor
        waiting.append(done)
        if len(waiting) == _TURN or done == last:
            began = bare.cpu()
            for high in waiting:
                bare.run(_FLOOR, (number, high - repricing.CHUNK, high))
            waiting.clear()
            floor += bare.cpu() - began

    began = bare.cpu()
    await store.reprice(table_of_prices(number), progress=chunk_done)
    return bare.cpu() - began - floor, floor


async def _cpu_per_run(bare: Bare, work: Callable[[], Awaitable[object]], times: int) -> float:
    began = bare.cpu()
    for _ in range(times):
        await work()
    return (bare.cpu() - began) / times


async def _asked(store: PostgresStore, bare: Bare, where: CallFilter, by: str, times: int) -> tuple[float, float]:
    """The CPU seconds of a grouped cost query and of a full scan. The kernel counts in hundredths of a second, so
    each runs many times.
    """

    async def scan() -> None:
        bare.run(FULL_SCAN)

    await store.costs(where, (by,))
    await scan()
    spent = await _cpu_per_run(bare, lambda: store.costs(where, (by,)), times)
    return spent, await _cpu_per_run(bare, scan, 5)


async def postgres_rows(calls: int = CALLS) -> list[Row]:
    """Measure repricing of the costs at call time and of a price version, and the grouped query after it."""
    found: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="callboard-bench-") as folder, own_server() as server:
        path = Path(folder) / "trace"
        server.execute("ALTER SYSTEM SET autovacuum = off", "SELECT pg_reload_conf()", "CREATE DATABASE bench")
        dsn = server.dsn_of("bench")
        async with PostgresStore(dsn, path=path):
            bare = Bare(dsn)
        await _fill(dsn, path, bare, calls)
        bare.make_floor()
        async with PostgresStore(dsn, path=path) as store:
            summed = await _cpu_per_run(bare, lambda: store._database.write(sum_up), 1)
            over_call_time, over_version = [], []
            for number in range(1, 2 * _ROUNDS, 2):
                await store.use_prices(None)
                over_call_time.append(await _reprice(store, bare, number))
                over_version.append(await _reprice(store, bare, number + 1))
            for title, measured in (
                (f"repricing {calls:,} calls in PostgreSQL", over_call_time),
                ("again, over that", over_version),
            ):
                spent, floor = (sum(each) / _ROUNDS for each in zip(*measured, strict=True))
                found.append(against(f"{title}, per call", spent / calls, floor / calls, gate=2))
            middle = CallFilter(since=FIRST_US + 86_400_000_000 * DAYS // 3, provider="openai")
            for where, by in ((CallFilter(), "model"), (CallFilter(), "day"), (middle, "model")):
                which = "of a provider since some hour" if where == middle else "of all"
                title = f"what calls cost by {by}, {which} (floor: a full scan)"
                found.append(against(title, *await _asked(store, bare, where, by, 20), gate=0.1))
            for by in ("session_id", "tag:team"):
                spent, scanned = await _asked(store, bare, CallFilter(), by, 1)
                found.append(
                    against(f"what calls cost by {by}, from the calls (floor: a full scan)", spent, scanned)
                )
            found.append(Row("what the sums of calls add to ingest, per call", micros(summed / calls)))
        bare.connection.close()
    return found


def rows(quick: bool) -> list[Row]:
    """The rows of the table, with fewer calls than the command uses."""
    if (reason := why_not()) is not None:
        return [Row("money in PostgreSQL", reason)]
    return run(postgres_rows(_QUICK if quick else _FEWER))


async def _main(calls: int) -> None:
    from .table import render

    print(render("Money in PostgreSQL", await postgres_rows(calls)))


if __name__ == "__main__":
    asyncio.run(_main(int(sys.argv[1]) if len(sys.argv) > 1 else CALLS))
