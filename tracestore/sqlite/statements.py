"""SQLite connections for the other modules: library, errors, dialect, statements and thread."""

from __future__ import annotations

import contextlib
import functools
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import repeat
from operator import is_
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar
from urllib.parse import quote

from callboard.bus.errors import StoreError, StoreUnavailable

from ..prices.rows import MAX_INT64
from ..prices.table import MOST_PICO
from ..sql.connection import Insert, Row, SqlValue, TemporaryTable, Unstorable
from ..sql.connection import Statements as AnyStatements

if TYPE_CHECKING:
    import sqlite3

    import aiosqlite

    from ..search import Term


BUSY_TIMEOUT_MS = 5_000
"""The milliseconds for which SQLite waits for a lock of another connection."""


def uri(path: Path, mode: Literal["ro", "rw"], *, immutable: bool = False) -> str:
    """The URI of an existing file, for opening with ``uri=True``."""
    return f"file:{quote(str(path.absolute()))}?mode={mode}{'&immutable=1' if immutable else ''}"


def sqlite_version() -> str:
    import sqlite3

    return sqlite3.sqlite_version


def needs_file_lock() -> bool:
    """Whether this SQLite library can corrupt a WAL file when two connections write it."""
    import sqlite3

    version = sqlite3.sqlite_version_info
    return not (version >= (3, 51, 3) or (3, 50, 7) <= version < (3, 51) or (3, 44, 6) <= version < (3, 45))


@contextlib.contextmanager
def translated(path: Path) -> Iterator[None]:
    """Raise errors of SQLite as StoreError, or as StoreUnavailable if they may be temporary."""
    import sqlite3

    try:
        yield
    except sqlite3.DatabaseError as error:
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
        if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_FULL):
            raise StoreUnavailable(f"{path}: {error}", reopen=False) from error
        if code in _of_the_file():
            raise StoreUnavailable(f"{path}: {error}") from error
        raise StoreError(f"{path}: {error}") from error


def _of_the_file() -> tuple[int, ...]:
    """SQLite's codes for a file that this connection can't use, although another connection might."""
    import sqlite3

    return (
        *(sqlite3.SQLITE_PERM, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN),
        *(sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_PROTOCOL),
    )


# --- Dialect of SQLite ---


_NEAR_64_BITS = 9.1e18
"""A limit near the end of 64 bits, where sum() fails. If total() exceeds it, sum() is not used."""


class SqlitePricing:
    """SQLite's implementation of `tracestore.sql.connection.PricingDialect`.

    In SQLite, an integer product beyond 64 bits becomes a REAL, which typeof() detects.
    """

    unknown_rate = MAX_INT64
    priced_below = MOST_PICO // 1000
    row = "rowid"
    value = "d.value"

    def made(self, table: TemporaryTable) -> tuple[str, ...]:
        """Make a temporary table. Without a key, it has no column types, because they cost time."""
        name, columns, key = table
        types = {column: "INTEGER" if of == "RATE" else of for column, of in columns.items()} if key else {}
        listed = [f"{column} {types.get(column, '')}" for column in columns]
        if key:
            listed.append(f"PRIMARY KEY ({', '.join(key)})")
        kind = "WITHOUT ROWID" if len(key) > 1 else ""
        return (f"CREATE TEMP TABLE IF NOT EXISTS {name} ({', '.join(listed)}) {kind}",)

    def emptied(self, table: str) -> str:
        return f"DELETE FROM temp.{table}"

    def surveyed(self, table: str) -> tuple[str, ...]:
        """Return no statement: SQLite has only one access path to the rows, so it needs no statistics."""
        return ()

    def same(self, one: str, other: str) -> str:
        return f"{one} IS {other}"

    def by_index(self, table: str, index: str) -> str:
        return f"{table} INDEXED BY {index}"

    def plain_nano(self, pico: str) -> str:
        return self.nano(pico)

    def exact(self, count: str) -> str:
        return count

    def is_integer(self, number: str) -> str:
        return f"typeof({number}) = 'integer'"

    def nano(self, pico: str) -> str:
        return f"({pico} + 500) / 1000"

    def sum_of(self, products: str) -> str:
        return f"CASE WHEN total({products}) > {_NEAR_64_BITS} THEN 1e20 ELSE coalesce(sum({products}), 0) END"

    def part(self, details: str, name: str) -> str:
        return f"json_extract({details}, '$.{name}')"

    def each(self, details: str) -> str:
        return f"json_each({details}) AS d"


class SqliteDialect:
    """SQLite's implementation of `tracestore.sql.connection.Dialect`."""

    pricing = SqlitePricing()
    moment = "''"
    # on one machine, a later write has a later time, so the moment alone is enough
    untouched_since = "? IS NOT NULL"
    latest_claim: str | None = None
    with_sessions: tuple[str, ...] = ()

    def tag(self, tags: str) -> str:
        """The value of a tag. It is read by key, not by path, because a tag may have any name."""
        return f"(SELECT t.value FROM json_each({tags}) AS t WHERE t.key = ?)"

    def behind(self, text: str, sign: str) -> str:
        return f"substr({text}, instr({text}, '{sign}') + 1)"

    def like_topic(self, column: str, pattern: str) -> tuple[str, SqlValue]:
        return f"{column} GLOB ?", pattern

    def by_number(self, table: str, name: str) -> str:
        return f"{table} AS {name} NOT INDEXED"

    def rounded(self, value: str, digits: int) -> str:
        return f"round({value}, {digits})"


SQLITE = SqliteDialect()


# --- Inserting many rows ---
#
# sqlite3 releases and takes the GIL for every statement. If the event loop is busy, each switch costs more than
# ten rows and can take milliseconds. So there are statements for 1, 2, 4 ... 64 rows. A gap is filled by repeating
# the last row, which the ON CONFLICT clause makes harmless.
#
# A statement has only the columns that had a value since the connection was opened. Most columns of a call are
# never filled. For each None, sqlite3 searches for an adapter, which takes longer than storing a number. A None
# between values is bound as not-a-number, which needs no adapter. SQLite stores NULL for it.


_ROWS_AT_ONCE = 64
_NULL = math.nan


class FilledColumns:
    """The columns of each INSERT that have had a value. Other columns are omitted, so they are NULL."""

    def __init__(self) -> None:
        self._narrowed: dict[Insert, tuple[Insert, list[int]]] = {}

    def only(self, insert: Insert, values: list[SqlValue]) -> tuple[Insert, list[SqlValue]]:
        """An INSERT and the flat list of its values, without the columns that never had a value."""
        width = len(insert.columns)
        rows = len(values) // width
        if not rows:
            return insert, values
        narrow, places = self._narrowed.get(insert, (insert, []))
        if len(places) < width:
            empty = [place for place in range(width) if place not in places]
            filled = [place for place in empty if values[place::width].count(None) < rows]
            if filled:
                places = sorted({*places, *filled})
                narrow = insert._replace(columns=tuple(insert.columns[place] for place in places))
                self._narrowed[insert] = narrow, places
        if not places:
            return insert, values
        narrow_values: list[SqlValue] = [_NULL] * (rows * len(places))
        for at, place in enumerate(places):
            column = values[place::width]
            if any(map(is_, column, repeat(None))):  # `in` would compare texts with None, not only identities
                column = [_NULL if value is None else value for value in column]
            narrow_values[at :: len(places)] = column
        return narrow, narrow_values


def statements_for(insert: Insert, values: list[SqlValue]) -> Iterator[tuple[str, list[SqlValue]]]:
    """The statements to execute, with their parameters, for rows in the flat list `values`."""
    width = len(insert.columns)
    begin, rows = 0, len(values) // width
    while rows:
        size = min(_ROWS_AT_ONCE, 1 << (rows - 1).bit_length())
        if size - rows > size // 4:
            size //= 2
        parameters = values[begin : begin + size * width]
        if size > rows:
            parameters += values[-width:] * (size - rows)
        yield _statement(insert, size), parameters
        begin += size * width
        rows = max(0, rows - size)


@functools.cache
def _statement(insert: Insert, rows: int) -> str:
    row = f"({', '.join('?' * len(insert.columns))})"
    into = f"INSERT INTO {insert.table} ({', '.join(insert.columns)})"
    return f"{into} VALUES {', '.join([row] * rows)} {insert.conflict}"


# --- The index of words ---
#
# The index is a table of FTS5. It is dropped as a whole when content is erased, and rebuilt by the next search. So
# no erased content stays in the index, with any version of SQLite.


TABLE = "content_search"
DROP = f"DROP TABLE IF EXISTS {TABLE}"


class SqliteIndex:
    """SQLite's implementation of `tracestore.search.Index`."""

    missing = f"c.id NOT IN (SELECT id FROM {TABLE}_docsize)"
    join = f"JOIN {TABLE} AS s ON s.rowid = c.id"

    def make(self, statements: AnyStatements) -> None:
        if not statements.run("SELECT 1 FROM pragma_module_list WHERE name = 'fts5'"):
            raise StoreError("the SQLite of this Python has no FTS5, which a search needs")
        statements.run(  # the index stores no copy of the texts, because it is only ever deleted as a whole
            f"CREATE VIRTUAL TABLE IF NOT EXISTS {TABLE} USING fts5(words, content = '', tokenize = 'unicode61')"
        )

    def put(self, statements: AnyStatements, rows: Iterable[tuple[int, str]]) -> None:
        statements.run_many(f"INSERT INTO {TABLE} (rowid, words) VALUES (?, ?)", rows)

    def matches(self, terms: Sequence[Term]) -> tuple[str, list[SqlValue]]:
        present = " AND ".join(map(_fts, (term for term in terms if not term.absent)))
        absent = "".join(f" NOT {_fts(term)}" for term in terms if term.absent)
        return f"{TABLE} MATCH ?", [f"({present}){absent}"]


def _fts(term: Term) -> str:
    return f'"{" ".join(term.words)}"{"*" if term.begins else ""}'  # no word has a quote in it


# --- Working with a connection ---


_PROGRESS_STEPS = 10_000
_VALUE_LIMIT_BYTES = 16 * 1024 * 1024


@contextlib.contextmanager
def _unstorable() -> Iterator[None]:
    import sqlite3

    try:
        yield
    except (UnicodeError, OverflowError, sqlite3.InterfaceError, sqlite3.ProgrammingError) as error:
        # the value is invalid text, exceeds 64 bits, or has an unsupported type
        raise Unstorable(str(error)) from error
    except (sqlite3.IntegrityError, sqlite3.DataError) as error:
        raise Unstorable(str(error)) from error  # a value is missing, has the wrong type, or is too large


class Statements:
    """SQLite's implementation of `tracestore.sql.connection.Statements`."""

    dialect = SQLITE

    def __init__(self, connection: sqlite3.Connection, filled: FilledColumns | None = None) -> None:
        self._connection = connection
        self._filled = filled or FilledColumns()
        self._erases = False

    def run(self, sql: str, parameters: Sequence[SqlValue] | Mapping[str, SqlValue] = ()) -> list[Row]:
        return self._connection.execute(sql, parameters).fetchall()

    def first(self, sql: str, parameters: Sequence[SqlValue], limit: int) -> tuple[list[str], list[Row]]:
        """The columns and the first rows of one read-only statement. No value may exceed 16 MiB."""
        import sqlite3

        self._connection.set_authorizer(_may_read)
        self._connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _VALUE_LIMIT_BYTES)
        cursor = self._connection.execute(sql, parameters)
        return [column[0] for column in cursor.description or ()], cursor.fetchmany(limit)

    def change(self, sql: str, parameters: Sequence[SqlValue] | Mapping[str, SqlValue] = ()) -> int:
        return self._connection.execute(sql, parameters).rowcount

    def script(self, sql: str) -> None:
        """Execute statements to their end, outside of a transaction. `run` would stop at a row without columns."""
        self._connection.executescript(sql)

    def run_many(self, sql: str, rows: Iterable[Sequence[SqlValue]]) -> None:
        """Execute one statement for each of `rows`. Raises Unstorable for a value that the table rejects."""
        with _unstorable():
            self._connection.executemany(sql, rows)

    def insert(self, insert: Insert, values: list[SqlValue]) -> None:
        """Insert rows from the flat list `values`. Raises Unstorable like `run_many`."""
        with _unstorable():
            for sql, parameters in statements_for(*self._filled.only(insert, values)):
                self._connection.execute(sql, parameters)

    @contextlib.contextmanager
    def erasing(self) -> Iterator[None]:
        """Overwrite the bytes of rows that are deleted in this context, and all words that were indexed for a
        search. A nested context has no effect.
        """
        if self._erases:
            yield
            return
        self._erases = True
        self.run("PRAGMA secure_delete = ON")
        try:
            yield
            self.run(DROP)
        finally:
            self._erases = False
            self.run("PRAGMA secure_delete = OFF")

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """Commit the work in this context as a whole, or undo it if it raises."""
        connection = self._connection
        connection.execute("BEGIN IMMEDIATE")
        try:
            yield
            connection.execute("COMMIT")
        except BaseException:
            # When the disk is full SQLite has rolled back by itself, and a second ROLLBACK would raise.
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise

    @contextlib.contextmanager
    def interrupted_at(self, deadline: float) -> Iterator[None]:
        """Interrupt any statement in this context that still runs at `deadline`, a time of `time.monotonic`."""

        def too_late() -> bool:  # SQLite calls this regularly; True interrupts the statement
            return time.monotonic() > deadline

        self._connection.set_progress_handler(too_late, _PROGRESS_STEPS)
        try:
            yield
        finally:
            self._connection.set_progress_handler(None, 0)


def _may_read(action: int, first: str | None, second: str | None, *rest: str | None) -> int:
    """SQLite's authorizer callback: a statement may read, but must not open or load another file."""
    import sqlite3

    match action:
        case sqlite3.SQLITE_SELECT | sqlite3.SQLITE_READ | sqlite3.SQLITE_RECURSIVE:
            return sqlite3.SQLITE_OK
        case sqlite3.SQLITE_FUNCTION if second != "load_extension":
            return sqlite3.SQLITE_OK
        case sqlite3.SQLITE_PRAGMA if first in _READING_PRAGMAS:
            return sqlite3.SQLITE_OK
        case _:
            return sqlite3.SQLITE_DENY


_READING_PRAGMAS = ("table_info", "table_xinfo", "table_list", "index_list", "index_info")


# --- Running in the thread ---
#
# A whole function is passed to the connection's thread, and runs to its end even if its caller is cancelled.


_T = TypeVar("_T")


class _Script(str):
    """A function in place of a script, for `executescript`. The text of the str appears in aiosqlite's log."""

    __slots__ = ("work",)

    work: Callable[[Statements], object]


@functools.cache
def connection_type() -> type[sqlite3.Connection]:
    """Return a class of connections that run a function as if it were a script.

    aiosqlite runs single statements in its thread, and has no public way to run a function there. But it accepts a
    connection class, and calls that class's methods in the thread.
    """
    import sqlite3

    class Connection(sqlite3.Connection):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            self._filled = FilledColumns()

        def executescript(self, script: str, /) -> sqlite3.Cursor:
            if not isinstance(script, _Script):
                return super().executescript(script)
            script.work(Statements(self, self._filled))
            return self.cursor()

    return Connection


async def in_thread(connection: aiosqlite.Connection, work: Callable[[Statements], _T]) -> _T:
    """Run `work` in the connection's thread. When the caller is cancelled, `work` still runs to its end."""
    done: list[_T] = []
    script = _Script("work of the trace store")
    script.work = lambda statements: done.append(work(statements))
    await connection.executescript(script)
    return done[0]
