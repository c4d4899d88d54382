"""New trace files of tests are made with the tables that the steps of the schema lead to.

The steps take 84 ms of CPU time and the tables 10, and thousands of tests make a file.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from functools import cache

from callboard.tracestore.sqlite import schema
from callboard.tracestore.sqlite.database import APPLICATION_ID, Database
from callboard.tracestore.sqlite.statements import Statements

STEPS = schema.MIGRATIONS
_real_step = schema._step


@cache
def statements_of_a_new_file() -> Sequence[str]:
    """Tables, views and triggers as the steps leave them, then the rows."""
    with closing(sqlite3.connect(":memory:")) as file:
        for _, script in STEPS:
            for statement in script:
                file.execute(statement)
        made = file.execute(
            "SELECT sql FROM sqlite_schema WHERE sql IS NOT NULL AND name NOT LIKE 'sqlite_%' ORDER BY rowid"
        )
        return [*(sql for (sql,) in made), *(line for line in file.iterdump() if line.startswith("INSERT"))]


@contextmanager
def made_at_once() -> Iterator[None]:
    """Within the block, new trace files have all tables at once."""
    schema._step = _step
    try:
        yield
    finally:
        schema._step = _real_step


async def _step(database: Database, now_us: int) -> int:
    ((version,),) = await database.read("PRAGMA user_version")
    if version or schema.MIGRATIONS is not STEPS:
        return await _real_step(database, now_us)

    def work(statements: Statements) -> int:
        ((version,),) = statements.run("PRAGMA user_version")
        if not version:  # no other process was faster
            for statement in statements_of_a_new_file():
                statements.run(statement)
            for number, (name, _) in enumerate(STEPS, 1):
                statements.run("INSERT INTO schema_history VALUES (?, ?, ?)", (number, name, now_us))
            statements.run(f"PRAGMA application_id = {APPLICATION_ID}")
            statements.run(f"PRAGMA user_version = {len(STEPS)}")
        return int(version) or len(STEPS)

    return await database.write(work)
