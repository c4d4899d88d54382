"""The schema of a trace file: its steps, and the check of a file's version.

Each step runs in one transaction together with its record. The steps are literal SQL in ``steps.sql``. No step is
built from a query of today's code, because queries change, and upgraded files would then differ from new ones. A
new file is made from ``new_file.sql``, which has the final tables of all steps. That takes an eighth of the time.

`application_id` marks the file as Callboard's, and `user_version` is its schema version. A released step is never
changed: a correction is a new step. A file from a newer Callboard is refused. The tables:

- `events` is the source of truth: append-only, in commit order, one row per envelope, unique by (run, seq).
- `calls` is a projection of `llm.*`, one row per attempt, written in the transaction of its events. Its cost is
  the cost at call time, which never changes.
- `price_version`, `price_row` and `price_alias` hold the price tables of repricings, `reprice_run` the repricings,
  `call_cost` the cost of each call under each of them. Triggers keep them append-only.
- `current_run` lists the runs with the current costs: the first run with a row for the call applies, or else the
  cost at call time. It usually has at most one row. A repricing of some calls is added before the others.
- `call_sums` and `repriced_sums` hold the sums of `calls` and `call_cost` by day and model.
- `call_rows` shows calls with their current costs, by the names that Python and the export have for them.
- `content`, `session_messages` and `session_setups` hold content, if the host enables it (see `sql.content`).
- `erasures` lists the deliberate deletions (see `sql.expiry`).
- The `gateway_` tables hold clients, and stored parts of their conversations (see `tracestore.gateway`).

Times are microseconds since the epoch (UTC), money nano-USD, rates pico-USD per unit, days days since the epoch.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

from callboard.bus.errors import StoreError
from callboard.bus.files import package_data

from ..sql.connection import Steps, read_statements, read_steps
from .database import APPLICATION_ID, Database
from .statements import Statements

MIGRATIONS: Steps = read_steps(package_data(__name__, "steps.sql").decode())
"""Name and statements of each step; the step at index i brings a file to version i + 1."""

SCHEMA_VERSION = len(MIGRATIONS)


async def migrate(database: Database, now_us: int) -> None:
    """Bring the file to `SCHEMA_VERSION`. If it isn't Callboard's, leave it unchanged and raise StoreError."""
    version = await _checked_version(database)
    if version == SCHEMA_VERSION:
        return
    if database.readonly:
        raise StoreError(
            f"{database.path} has schema version {version}, but this Callboard reads version "
            f"{SCHEMA_VERSION}. Upgrade it with `callboard upgrade`"
        )
    while version < SCHEMA_VERSION:
        version = await _step(database, now_us)


async def inspect(path: Path) -> None:
    """Raise StoreError if the file isn't Callboard's or is too new, without a change to the file.

    A writable connection would move the write-ahead log into the file when it closes. A file with a rollback
    journal is skipped: its creation was interrupted, and only a writer can read it.
    """
    if not _readable_as_is(path):
        return
    database = Database(path, readonly=True)
    await database.open(check)
    await database.close()


def _readable_as_is(path: Path) -> bool:
    journal = path.with_name(path.name + "-journal")
    return path.exists() and path.stat().st_size > 0 and not journal.exists()


async def check(database: Database) -> None:
    """Raise StoreError if the open file isn't Callboard's or is too new."""
    await _checked_version(database)


async def _checked_version(database: Database) -> int:
    # Another process may create the file between these reads, in one transaction. The application id is read last,
    # so it is set whenever tables or version are.
    ((tables,),) = await database.read("SELECT count(*) FROM sqlite_master")
    ((version,),) = await database.read("PRAGMA user_version")
    ((application,),) = await database.read("PRAGMA application_id")
    if application != APPLICATION_ID and (application or version or tables):
        raise StoreError(
            f"{database.path} is a database of another application. Use another path, or move that file away"
        )
    if version > SCHEMA_VERSION:
        raise StoreError(
            f"{database.path} has schema version {version}, but this Callboard supports versions up to "
            f"{SCHEMA_VERSION}. Update Callboard, or use another path"
        )
    return int(version)


async def _step(database: Database, now_us: int) -> int:
    """Apply the next missing step, or make the tables of a new file.

    The version is checked inside the transaction, because another process may have applied the step.
    """

    def work(statements: Statements) -> int:
        ((version,),) = statements.run("PRAGMA user_version")
        done, last = int(version), min(int(version) + 1, SCHEMA_VERSION) if version else SCHEMA_VERSION
        if done == last:
            return last
        for statement in MIGRATIONS[done][1] if done else _new_file():
            statements.run(statement)
        for number in range(done, last):
            statements.run(
                "INSERT INTO schema_history (version, name, applied_us) VALUES (?, ?, ?)",
                (number + 1, MIGRATIONS[number][0], now_us),
            )
        # PRAGMA takes no parameters; both values are Callboard's own integers.
        statements.run(f"PRAGMA application_id = {APPLICATION_ID}")
        statements.run(f"PRAGMA user_version = {last}")
        return last

    return await database.write(work)


@cache
def _new_file() -> tuple[str, ...]:
    return read_statements(package_data(__name__, "new_file.sql").decode())
