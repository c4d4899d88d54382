"""The interface of a database, work that cancellation cannot stop, and schema steps."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias, TypeVar

import anyio
import msgspec

from callboard.bus.log import Log

# --- Dialect of pricing ---
# Databases differ in temporary tables, and in numbers near the end of 64 bits.


ColumnType: TypeAlias = Literal["INTEGER", "TEXT", "RATE"]
"""The type of a column. INTEGER has 64 bits. RATE is the type of the rates in the multiplications of `plain`."""


class TemporaryTable(NamedTuple):
    """A table that belongs to one connection."""

    name: str
    """The name of the table, which is unique in the database."""
    columns: dict[str, ColumnType]
    """The columns. Each can be NULL unless it belongs to the key."""
    key: tuple[str, ...] = ()
    """The columns of the primary key; empty if rows are only appended and scanned."""


class PricingDialect(Protocol):
    """One database's SQL for pricing."""

    @property
    def unknown_rate(self) -> int | float:
        """The number for an unknown rate. With it, the cost of one token exceeds `priced_below`."""
        ...

    @property
    def priced_below(self) -> int:
        """The nano-USD below which the cost of `PLAIN` is exact."""
        ...

    @property
    def row(self) -> str:
        """The column with the fastest access to a row of `reprice_cost`."""
        ...

    def made(self, table: TemporaryTable) -> tuple[str, ...]:
        """Statements that make a temporary table, unless it exists."""
        ...

    def emptied(self, table: str) -> str:
        """A statement that deletes all rows of a temporary table."""
        ...

    def surveyed(self, table: str) -> tuple[str, ...]:
        """Statements that update the database's statistics of a temporary table, for its query planner."""
        ...

    def same(self, one: str, other: str) -> str:
        """The SQL condition that two values are equal or both NULL."""
        ...

    def by_index(self, table: str, index: str) -> str:
        """The SQL that reads a table through an index."""
        ...

    def plain_nano(self, pico: str) -> str:
        """The SQL that rounds a sum of tokens times rates to nano-USD; at least `priced_below` if inexact."""
        ...

    def exact(self, count: str) -> str:
        """The SQL that converts a count to a type with exact products."""
        ...

    def is_integer(self, number: str) -> str:
        """The SQL condition that a sum of products of `exact` numbers is exact."""
        ...

    def nano(self, pico: str) -> str:
        """The SQL that rounds exact pico-USD to nano-USD."""
        ...

    def sum_of(self, products: str) -> str:
        """The SQL that sums products over rows. A sum beyond 64 bits is larger than any cost."""
        ...

    def part(self, details: str, name: str) -> str:
        """The SQL for one count, by its name, in a JSON column of usage details; NULL if there is none."""
        ...

    def each(self, details: str) -> str:
        """The SQL for the counts in a JSON column of usage details, as rows ``d`` with their names in ``key``."""
        ...

    @property
    def value(self) -> str:
        """The SQL for the count in a row ``d`` of `each`."""
        ...


# --- The interface of a database ---
#
# A statement is text with parameters, written ``?`` or ``:name``. A connection translates the parameters for its
# driver. Work on a database is one function that gets `Statements` and runs to its end in the connection's thread,
# so a synchronous driver is enough.


SqlValue: TypeAlias = str | int | float | bytes | None
"""A value of a statement's parameter or of a row."""
Row: TypeAlias = tuple[Any, ...]  # as the driver returns it; each reader expects other columns
Sql: TypeAlias = tuple[str, list[SqlValue]]
"""A statement, or a part of a statement, with its parameters."""

_T = TypeVar("_T")


class Unstorable(ValueError):
    """A value can't be stored, although the database works. Writing it again would fail again."""


class Insert(NamedTuple):
    """An INSERT of any number of rows."""

    table: str
    columns: tuple[str, ...]
    conflict: str
    """The ON CONFLICT clause, so that a second insert of a row is harmless."""


class Dialect(Protocol):
    """The expressions that databases write differently.

    All other SQL is portable: booleans as conditions, a flag in a column as 0 or 1, ``count(*) FILTER``, the
    lesser of two by CASE.
    """

    @property
    def pricing(self) -> PricingDialect: ...

    @property
    def moment(self) -> str:
        """A text that identifies the state of the database in a `look`."""
        ...

    @property
    def untouched_since(self) -> str:
        """The SQL condition that a row existed at a `moment`, which is a parameter, and has not changed since."""
        ...

    @property
    def latest_claim(self) -> str | None:
        """A statement that returns the number of a session's latest claim, and locks the claim to the end of the
        transaction.

        None without a cluster.
        """
        ...

    @property
    def with_sessions(self) -> tuple[str, ...]:
        """Statements that delete a cluster's rows of sessions. ``{names}`` is a placeholder for the sessions."""
        ...

    def tag(self, tags: str) -> str:
        """The SQL for one tag's value in a JSON column; NULL if there is none. Its parameter is the tag's name."""
        ...

    def behind(self, text: str, sign: str) -> str:
        """The SQL for the part of a text after the first `sign`."""
        ...

    def like_topic(self, column: str, pattern: str) -> tuple[str, SqlValue]:
        """The SQL condition that a topic matches a pattern with ``*``, and the parameter of the condition."""
        ...

    def by_number(self, table: str, name: str) -> str:
        """The SQL that reads a table under the name `name`, in the order of ids and through no other index."""
        ...

    def rounded(self, value: str, digits: int) -> str:
        """The SQL for a number that is rounded to `digits` decimal places."""
        ...


class Statements(Protocol):
    """The operations of a function in the connection's thread. Don't use this object elsewhere."""

    @property
    def dialect(self) -> Dialect: ...

    def run(self, sql: str, parameters: Sequence[SqlValue] | Mapping[str, SqlValue] = (), /) -> list[Row]:
        """Execute one statement and return all its rows."""
        ...

    def change(self, sql: str, parameters: Sequence[SqlValue] | Mapping[str, SqlValue] = (), /) -> int:
        """Execute one INSERT, UPDATE or DELETE. Returns the number of changed rows."""
        ...

    def run_many(self, sql: str, rows: Iterable[Sequence[SqlValue]], /) -> None:
        """Execute one statement for each of `rows`."""

    def erasing(self) -> AbstractContextManager[None]:
        """A context in which deleted bytes are overwritten, if the database supports it."""
        ...

    def insert(self, insert: Insert, values: list[SqlValue], /) -> None:
        """Insert rows from the flat list `values`."""


class Database(Protocol):
    @property
    def name(self) -> str:
        """The name of the database in messages to people."""
        ...

    @property
    def dialect(self) -> Dialect: ...

    async def read(self, sql: str, parameters: Sequence[SqlValue] = (), /) -> list[Row]:
        """Return all rows of one statement that writes nothing."""
        ...

    async def look(self, work: Callable[[Statements], _T], /) -> _T:
        """Run work that writes nothing, without interruption."""
        ...

    async def write(self, work: Callable[[Statements], _T], /) -> _T:
        """Run work in one transaction, which is committed when the work returns."""
        ...


def lesser(one: str, other: str) -> str:
    """The SQL for the lesser of two values, which must not be NULL."""
    return f"CASE WHEN {one} < {other} THEN {one} ELSE {other} END"


def greater(one: str, other: str) -> str:
    """The SQL for the greater of two values, which must not be NULL."""
    return f"CASE WHEN {one} > {other} THEN {one} ELSE {other} END"


def at_most(rows: int | None) -> Sql:
    """The LIMIT clause for a number of rows; None means all rows."""
    return ("", []) if rows is None else ("LIMIT ?", [rows])


def placeholders(number: int) -> str:
    """A list of ``?`` parameters with commas between them."""
    return ", ".join("?" * number)


AT_ONCE = 400
"""The number of values in one statement. Old versions of SQLite accept at most 999 parameters."""


def in_parts(values: Sequence[_T], size: int = AT_ONCE) -> Iterator[Sequence[_T]]:
    """Yield the values in parts for one statement each."""
    for place in range(0, len(values), size):
        yield values[place : place + size]


# --- Work that continues after its caller is cancelled ---
#
# Cancelling the caller does not stop such work. Only a time limit may stop it.


_log = Log("tracestore.database")


async def shielded(work: Coroutine[Any, Any, _T]) -> _T:
    """Run `work` to its end, even if the caller is cancelled. The cancellation is raised afterwards."""
    task = asyncio.ensure_future(work)
    interrupted: asyncio.CancelledError | None = None
    # The scope blocks anyio's cancellation. The shield blocks asyncio's own `task.cancel()`, which the scope does
    # not stop.
    with anyio.CancelScope(shield=True):
        while not task.done():
            try:
                await asyncio.shield(task)
            except asyncio.CancelledError as error:
                interrupted = error
            except BaseException:
                break
    if interrupted is not None and not task.cancelled():
        if task.exception() is not None:
            _log.warning("failed_while_cancelled", error=repr(task.exception()))
        raise interrupted
    return task.result()


class Patience(msgspec.Struct, frozen=True, kw_only=True):
    """Time limits for work that may block. None means no limit."""

    work: float | None = None
    """The longest time for a piece of work, in seconds."""
    cancelled: float | None = None
    """The longest time that work continues after its caller is cancelled, in seconds."""


async def bounded(work: Coroutine[Any, Any, _T], patience: Patience, cut: Callable[[], None]) -> _T:
    """Run `work` to its end. After the time limit, call `cut`, which makes `work` end soon."""
    task = asyncio.ensure_future(work)
    timers = [] if patience.work is None else [_cut_after(patience.work, cut)]
    try:
        await asyncio.wait((task,))
    except asyncio.CancelledError:
        if patience.cancelled is not None:
            timers.append(_cut_after(patience.cancelled, cut))
        await shielded(_end_of(task))
        raise
    finally:
        for timer in timers:
            timer.cancel()
    return task.result()


def _cut_after(seconds: float, cut: Callable[[], None]) -> asyncio.TimerHandle:
    return asyncio.get_running_loop().call_later(seconds, cut)


async def _end_of(task: asyncio.Future[_T]) -> None:
    await asyncio.wait((task,))
    if not task.cancelled() and task.exception() is not None:
        _log.warning("failed_while_cancelled", error=repr(task.exception()))


# --- Schema steps ---
# Each numbered step is literal text in a file of SQL, after a line ``-- step N: NAME``. A line with only a
# semicolon ends each statement, because triggers and functions contain semicolons.


Steps: TypeAlias = tuple[tuple[str, tuple[str, ...]], ...]
"""Name and statements of each step; the step at index i brings a trace to version i + 1."""

_HEADING = re.compile(r"^-- step (\d+): (.+)$", re.MULTILINE)
_END = re.compile(r"^;$", re.MULTILINE)


def read_statements(text: str) -> tuple[str, ...]:
    """Read the statements in the text of a file. The last statement may have no end mark."""
    return tuple(statement for part in _END.split(text) if (statement := part.strip()))


def read_steps(text: str) -> Steps:
    _, *parts = _HEADING.split(text)
    steps = []
    for place, (number, name, body) in enumerate(zip(parts[::3], parts[1::3], parts[2::3], strict=True), 1):
        *statements, rest = (part.strip() for part in _END.split(body))
        if int(number) != place or rest or not statements:
            raise ValueError(f"steps.sql: step {number} ({name}) is out of order or not complete")
        steps.append((name, tuple(statements)))
    return tuple(steps)
