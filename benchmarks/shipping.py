"""The cost of shipping a trace file, compared with a plain COPY of the same rows into the same tables.

    python -m benchmarks shipping

The floor is psycopg alone: it copies the shipped rows as text in transactions of the same size, into tables with
the same indexes and triggers. Both are measured in wall time. They alternate, each with a database of its own, and
the minimum of all rounds counts. The second row is the sender's CPU time for each call of six events. The last row
is the CPU time that shipping adds to calls, from a process whose engine ships its trace and one whose engine
doesn't.
"""

from __future__ import annotations

import asyncio
import itertools
import statistics
import tempfile
import time
from functools import partial
from pathlib import Path

from callboard.engine import Engine, Session
from callboard.tracestore import PostgresStore, ShippingOptions, TraceShipper, TraceStore
from tests.support.postgres_server import PostgresServer, own_server, why_not
from tests.support.reply_server import reply_server

from .hosts import engine_on, history, home_in, tools
from .per_call import MESSAGES, TOOLS, through_engine
from .stored_calls import call, envelopes_of
from .table import Row, against, cpu_of, micros

_TABLES = ("events", "calls", "call_tags", "sessions")
_ROUNDS = 3
_GATE = 2.0
_CALLS, _TURNS = 500, 20


async def _fill(path: Path, calls: int) -> int:
    seqs = itertools.count(1)
    events = 0
    async with TraceStore(path) as store:
        for _ in range(calls // 100):
            batch = envelopes_of([one for _ in range(100) for one in call()], seqs)
            await store.write(batch)
            events += len(batch)
    return events


async def _shipped(path: Path, dsn: str) -> tuple[float, float]:
    """The wall and CPU seconds of shipping all events."""
    for mark in path.parent.glob(f"{path.name}.shipped-*"):
        mark.unlink()
    shipper = TraceShipper(path, dsn)
    began, cpu = time.perf_counter(), time.process_time()
    await shipper.ship()
    spent = time.perf_counter() - began, time.process_time() - cpu
    await shipper.close()
    return spent


def _rows_of(dsn: str) -> dict[str, list[bytes]]:
    """The rows of a shared store in the format of COPY."""
    import psycopg

    rows = {}
    with psycopg.connect(dsn, options="-c search_path=callboard") as connection:
        for table in _TABLES:
            order = "ORDER BY id" if table in ("events", "calls") else ""
            with connection.cursor().copy(f"COPY (SELECT * FROM {table} {order}) TO STDOUT".encode()) as copy:
                rows[table] = b"".join(map(bytes, copy)).splitlines(keepends=True)
    return rows


def _copied(dsn: str, rows: dict[str, list[bytes]], batches: int) -> float:
    """The wall seconds of the plain COPY in this number of transactions."""
    import psycopg

    with psycopg.connect(dsn, options="-c search_path=callboard") as connection:
        began = time.perf_counter()
        for number in range(batches):
            for table, lines in rows.items():
                part = lines[len(lines) * number // batches : len(lines) * (number + 1) // batches]
                with connection.cursor().copy(f"COPY {table} FROM STDIN".encode()) as copy:
                    copy.write(b"".join(part))
            connection.commit()
        return time.perf_counter() - began


async def _made(server: PostgresServer, name: str, path: Path, months_of: str = "") -> str:
    """Create an empty shared store, with the monthly partitions of another one if `months_of` names it."""
    import psycopg

    server.execute(f"CREATE DATABASE {name}")
    dsn = server.dsn_of(name)
    async with PostgresStore(dsn, path=path.with_name("pg")):
        pass
    if months_of:
        with psycopg.connect(months_of, options="-c search_path=callboard") as there:
            moments = [row[0] for row in there.execute("SELECT DISTINCT ts_us / 86400000000 FROM events")]
        with psycopg.connect(dsn, options="-c search_path=callboard", autocommit=True) as here:
            from callboard.tracestore.postgres.schema import ensure_months
            from callboard.tracestore.postgres.statements import Statements

            ensure_months(Statements(here, {}), [moment * 86_400_000_000 for moment in moments])
    return dsn


async def _rates(server: PostgresServer, folder: Path, quick: bool) -> list[Row]:
    """The rate for a file of many calls, and the sender's CPU time."""
    calls = 1_000 if quick else 10_000
    path = folder / "trace.db"
    events = await _fill(path, calls)
    batches = -(-events // ShippingOptions().batch_events)
    wall, cpu, floor = [], [], []
    for number in range(1 if quick else _ROUNDS):
        dsn = await _made(server, f"shipped_{number}", path)
        seconds, spent = await _shipped(path, dsn)
        wall.append(seconds)
        cpu.append(spent)
        rows = _rows_of(dsn)
        bare = await _made(server, f"bare_{number}", path, dsn)
        floor.append(await asyncio.to_thread(_copied, bare, rows, batches))
    ratio = min(wall) / min(floor)
    return [
        Row(
            f"an event to a shared store, {events:,} events",
            micros(min(wall) / events),
            micros(min(floor) / events),
            ratio,
            f"≤ {_GATE:g}×",
            ratio <= _GATE,
        ),
        Row("CPU of the sending process, per call of six events", micros(min(cpu) / calls)),
    ]


async def _through(engine: Engine, session: Session, calls: int) -> None:
    await through_engine(engine, session, calls)
    if (shipper := engine._runtime.shipper) is not None:
        assert await shipper.shipped(60.0)


async def _beside_calls(server: PostgresServer, quick: bool) -> Row:
    """The CPU time that shipping adds to a process with calls, with all threads, until everything is shipped.

    It is less than the variation from other work on the machine. So the two are compared in pairs, in both orders,
    and the median of the pairs counts.
    """
    calls, pairs = (20, 1) if quick else (_CALLS, _TURNS)
    server.execute("CREATE DATABASE beside_calls")
    with reply_server(50) as url:
        async with engine_on(url) as alone, engine_on(url, ship_to=server.dsn_of("beside_calls")) as ships:
            contestants = []
            for engine in (alone, ships):
                session = engine.session("chat:bench", system_prompt="You are brief.", tools=tools(TOOLS))
                engine._runtime.sessions.states[session.id].messages.extend(history(MESSAGES))
                contestants.append(partial(_through, engine, session, calls))
                await contestants[-1]()  # a warm-up
            spent: tuple[list[float], list[float]] = [], []
            for number in range(pairs):
                for which in (0, 1) if number % 2 else (1, 0):
                    spent[which].append(await cpu_of(contestants[which]))
    floor = statistics.median(spent[0]) / calls
    ratio = statistics.median(there / here for here, there in zip(*spent, strict=True))
    return against("CPU of a process whose engine ships, per call", floor * ratio, floor, gate=1.05)


async def _rows(quick: bool) -> list[Row]:
    with own_server() as server, tempfile.TemporaryDirectory() as name, home_in(Path(name) / "home"):
        return [*await _rates(server, Path(name), quick), await _beside_calls(server, quick)]


def rows(quick: bool) -> list[Row]:
    """The rows of the table."""
    if (reason := why_not()) is not None:
        return [Row("shipping", reason)]
    return asyncio.run(_rows(quick))
