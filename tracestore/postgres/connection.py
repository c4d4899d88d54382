"""Connections to PostgreSQL: addresses, types, errors, threads, and tables of other programs."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import queue
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypeVar

from callboard.bus.errors import ConfigurationError, StoreError, StoreUnavailable

from ..sql.connection import Unstorable

if TYPE_CHECKING:
    import psycopg
    from psycopg.adapt import AdaptersMap


# --- Addresses and types ---
#
# An address may have two parameters of Callboard's own, the schema of the tables and a pooler:
#
#   postgresql://user@host/database?schema=team_a
#   postgresql://user@pooler:6432/database?pooler=transaction
#
# libpq rejects both parameters, so they are removed first. An address may also have libpq's key-value form:
# ``host=… dbname=… schema=team_a``.
#
# Every integer is sent as a bigint, and flags as 0 or 1, so that a statement is prepared only once. A sum of
# bigints is a numeric. It is read as an int if it is whole, and otherwise as a float.


_IN_URL = re.compile(r"(?<=[?&])(schema|pooler)=([^&#]*)&?")
_IN_WORDS = re.compile(r"(?:(?<=\s)|^)(schema|pooler)\s*=\s*(\S+)\s*")


class Address(NamedTuple):
    dsn: str
    """The address without Callboard's own parameters, for libpq."""
    schema: str | None
    """The schema of the tables; None if the address names none."""
    pooled: bool
    """Whether each transaction may use another connection to the server."""


def address_of(text: str) -> Address:
    parameters: dict[str, str] = {}

    def take(found: re.Match[str]) -> str:
        parameters[found[1]] = found[2]
        return ""

    is_url = text.startswith(("postgresql://", "postgres://"))
    dsn = (_IN_URL if is_url else _IN_WORDS).sub(take, text)
    if is_url and parameters:
        dsn = dsn.rstrip("?&")
    if (pooler := parameters.get("pooler", "transaction")) != "transaction":
        raise ValueError(f"pooler must be transaction, not {pooler!r}")
    return Address(dsn, parameters.get("schema"), "pooler" in parameters)


_MAX_INT64 = (1 << 63) - 1

_DEFAULTS: dict[str, Any] = {
    "application_name": "callboard",
    "client_encoding": "utf8",
    "connect_timeout": 5,
    "keepalives_idle": 15,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,
}
"""Connection parameters, which a DSN may override. With them, a vanished server is detected within half a
minute.
"""

_LOCK_TIMEOUT_MS = 30_000
"""The longest wait for a lock, in milliseconds. After it, the work is undone and may be retried."""

_SERVER_SIDE = (
    "tcp_keepalives_idle = 15",
    "tcp_keepalives_interval = 5",
    "tcp_keepalives_count = 3",
    "idle_in_transaction_session_timeout = 10000",
)
"""The server's settings.

With these settings, the server detects within half a minute that a host with locks has vanished. It detects within
ten seconds that this process was suspended during a transaction.
"""


def connect(
    dsn: str, schema: str, made: Callable[[psycopg.Connection], None] = lambda connection: None
) -> psycopg.Connection:
    """Connect, without a transaction. Raises psycopg's errors."""
    import psycopg
    from psycopg.conninfo import conninfo_to_dict

    address = address_of(dsn)
    parameters = conninfo_to_dict(address.dsn)
    connection = psycopg.connect(
        **{**_DEFAULTS, **parameters}, autocommit=True, context=_Context(_adapters(), None)
    )
    made(connection)
    try:
        if address.pooled:
            # Behind a pooler, a statement would be prepared on only one of the server's connections.
            connection.prepare_threshold = None
            _check_role(connection, schema)
        else:
            _set_up(connection, schema)
    except BaseException:
        connection.close()
        raise
    return connection


def _set_up(connection: psycopg.Connection, schema: str) -> None:
    from psycopg import sql

    connection.execute(sql.SQL("SET search_path TO {}").format(sql.Identifier(schema)))
    connection.execute(f"SET lock_timeout = {_LOCK_TIMEOUT_MS}")
    for setting in _SERVER_SIDE:
        connection.execute(f"SET {setting}".encode())
    connection.execute("SET TIME ZONE 'UTC'")
    connection.execute("SET jit = off")  # compiling a statement takes longer than any statement here
    connection.execute("SET standard_conforming_strings = on")


def _check_role(connection: psycopg.Connection, schema: str) -> None:
    """Check that the role has the required settings.

    Behind a pooler, Callboard's settings would affect other sessions.
    """
    import psycopg

    ((user, path, zone),) = connection.execute(
        "SELECT current_user, current_setting('search_path'), current_setting('TimeZone')"
    ).fetchall()
    if path.strip('"') != schema or zone not in ("UTC", "Etc/UTC", "GMT"):
        role = user.replace('"', '""')
        raise psycopg.OperationalError(
            f"with a pooler, the settings of the role apply. They are search_path {path}, time zone {zone}: "
            f"""ALTER ROLE "{role}" SET search_path = {schema}; ALTER ROLE "{role}" SET timezone = 'UTC'; then """
            "let the pooler reconnect"
        )


def name_of(dsn: str, schema: str | None = None) -> str:
    """The name of a database in messages: host, port and database, without user and password."""
    from psycopg.conninfo import conninfo_to_dict

    parameters = conninfo_to_dict(address_of(dsn).dsn)
    host, port, database = (str(parameters.get(part) or "") for part in ("host", "port", "dbname"))
    return f"postgresql://{host}{f':{port}' if port else ''}/{database}{f'?schema={schema}' if schema else ''}"


class _Context:
    """The type conversions of a new connection, in the form that psycopg requires."""

    def __init__(self, adapters: AdaptersMap, connection: Any) -> None:
        self.adapters = adapters
        self.connection = connection


@functools.cache
def _adapters() -> AdaptersMap:
    import psycopg
    from psycopg.adapt import AdaptersMap, Buffer, Loader
    from psycopg.types.bool import BoolDumper
    from psycopg.types.numeric import Int8Dumper

    class IntDumper(Int8Dumper):
        def dump(self, obj: Any) -> Buffer | None:
            if not -_MAX_INT64 - 1 <= obj <= _MAX_INT64:
                raise OverflowError(f"{obj} is beyond 64 bits")
            return super().dump(obj)

    class FlagDumper(BoolDumper):
        oid = Int8Dumper.oid

        def dump(self, obj: bool) -> Buffer | None:
            return b"1" if obj else b"0"

    class NumberLoader(Loader):
        def load(self, data: Buffer) -> int | float:
            text = bytes(data)
            return float(text) if b"." in text or b"N" in text else int(text)

    adapters = AdaptersMap(psycopg.adapters)
    adapters.register_dumper(int, IntDumper)
    adapters.register_dumper(bool, FlagDumper)
    adapters.register_loader("numeric", NumberLoader)
    return adapters


# --- Errors ---


_MAY_PASS = ("08", "25006", "40", "53", "55P03", "57P", "58")
"""The first characters of the SQLSTATEs of temporary errors.

In their order, they mean: connection errors, a read-only server (a standby), a transaction conflict, no disk space
or memory, an unavailable lock, a stopping server, a disk error.
"""


@contextlib.contextmanager
def translated_errors(name: str) -> Iterator[None]:
    """Raise errors of psycopg as StoreError, or as StoreUnavailable if they may be temporary."""
    import psycopg

    try:
        yield
    except psycopg.Error as error:
        text = f"{name}: {error_text(error)}"
        if may_pass(error):
            raise StoreUnavailable(text, reopen=False) from error
        raise StoreError(text) from error


def may_pass(error: psycopg.Error) -> bool:
    """Whether the work may succeed if it is retried later."""
    import psycopg

    state = error.sqlstate
    if state is None:  # an error of psycopg itself: no connection, or a broken one
        return isinstance(error, psycopg.OperationalError | psycopg.InterfaceError)
    return state.startswith(_MAY_PASS)


def error_text(error: Exception) -> str:
    """The text of an error in one line."""
    return " ".join(str(error).split()) or type(error).__name__


@contextlib.contextmanager
def unstorable() -> Iterator[None]:
    """Raise `Unstorable` for a value that psycopg or a table doesn't accept."""
    import psycopg

    try:
        yield
    except (UnicodeError, OverflowError) as error:
        raise Unstorable(str(error)) from error
    except (psycopg.DataError, psycopg.IntegrityError, psycopg.ProgrammingError) as error:
        if isinstance(error, psycopg.ProgrammingError) and error.sqlstate is not None:
            raise  # the statement or the schema is wrong, not a value
        raise Unstorable(error_text(error)) from error


# --- The thread of a connection ---
#
# The thread runs one function after the other, in order of arrival. It is a daemon, so an open database does not
# keep the interpreter alive; the server rolls back the work in progress. A thread of an executor is not used: at
# exit it would refuse work while the host's threads still close their engines.


_T = TypeVar("_T")
_Queue: TypeAlias = "queue.SimpleQueue[Callable[[], None] | None]"


class WorkThread:
    """The thread of a connection. It starts with the first work."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._waiting: _Queue = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    async def run(self, work: Callable[[], _T]) -> _T:
        """Run `work` in the thread. When the caller is cancelled, `work` still runs to its end."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[_T] = loop.create_future()

        def finish(result: _T | None, error: BaseException | None) -> None:
            if done.cancelled():
                return
            if error is not None:
                done.set_exception(error)
            else:
                done.set_result(result)  # type: ignore[arg-type]

        def job() -> None:
            result: _T | None = None
            failed: BaseException | None = None
            try:
                result = work()
            except BaseException as error:
                failed = error
            with contextlib.suppress(RuntimeError):  # The loop is closed, so no caller waits.
                loop.call_soon_threadsafe(finish, result, failed)

        if self._thread is None:
            self._thread = threading.Thread(target=_work, args=(self._waiting,), name=self._name, daemon=True)
            self._thread.start()
        self._waiting.put(job)
        return await done

    def stop(self) -> None:
        """End the thread after the waiting work. Later work starts another thread."""
        if self._thread is not None:
            self._waiting.put(None)
            self._thread, self._waiting = None, queue.SimpleQueue()


def _work(waiting: _Queue) -> None:
    while (job := waiting.get()) is not None:
        job()


# --- Tables of other programs, for imports ---

_ROWS_AT_ONCE = 500
_LONGEST_VALUE = 8 * 1024 * 1024
_EIO = 5
_NOT_LIBPQS = re.compile(r"(?<=[?&])(connection_limit|pool_timeout|pgbouncer|socket_timeout|sslidentity)=[^&#]*&?")
"""Parameters of Prisma, which LiteLLM uses. libpq rejects them."""


def server_rows(
    dsn: str, table: str, columns: Sequence[str], order: str, after: str = "", overlap: str = "0"
) -> Iterator[Mapping[str, str | None]]:
    """The rows of a table on a server, sorted by a time, with each value as text. A value above 8 MiB is left out,
    and so is a column that the table lacks. Rows of the interval `overlap` before the time `after` are read again.

    Raises OSError if the server or the table can't be read. The text has no password.
    """
    try:
        import psycopg
        from psycopg import sql
    except ModuleNotFoundError:
        raise ConfigurationError("a server needs psycopg: pip install 'callboard[postgres]'") from None
    address = address_of(_NOT_LIBPQS.sub("", dsn).rstrip("?&"))
    name = sql.Identifier(address.schema, table) if address.schema else sql.Identifier(table)
    try:
        with psycopg.connect(address.dsn, connect_timeout=10, application_name="callboard") as connection:
            connection.read_only = True
            connection.execute("SET LOCAL TIME ZONE 'UTC'")
            description = connection.execute(sql.SQL("SELECT * FROM {} LIMIT 0").format(name)).description or ()
            existing = {column.name for column in description}
            selected = [column for column in columns if column in existing]
            if order not in selected:
                raise OSError(_EIO, f"the table {table!r} lacks the column {order!r}")
            value = sql.SQL("CASE WHEN octet_length({0}::text) <= %(most)s THEN {0}::text END")
            where = sql.SQL("WHERE {} >= %(after)s::timestamp - %(overlap)s::interval") if after else sql.SQL("")
            query = sql.SQL("SELECT {} FROM {} {} ORDER BY {}").format(
                sql.SQL(", ").join(value.format(sql.Identifier(column)) for column in selected),
                name,
                where.format(sql.Identifier(order)),
                sql.Identifier(order),
            )
            with connection.cursor("callboard") as cursor:
                cursor.itersize = _ROWS_AT_ONCE
                cursor.execute(query, {"most": _LONGEST_VALUE, "after": after, "overlap": overlap})
                for row in cursor:
                    yield dict(zip(selected, row, strict=True))
    except psycopg.Error as error:
        raise OSError(_EIO, f"not readable: {error_text(error)}") from None
