"""Statements on a connection: PostgreSQL's dialect, parameters, many rows in one statement, and clean text."""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import msgspec

from callboard.bus.events import Envelope

from ..codec import storable_text
from ..sql.connection import Insert, Row, SqlValue, TemporaryTable
from ..sql.connection import Statements as AnyStatements
from .connection import unstorable

if TYPE_CHECKING:
    import psycopg

    from ..search import Term


_ESCAPED_NUL = re.compile(r"(?<!\\)((?:\\\\)*)\\u0000")
_REPLACEMENT = "\ufffd"


def clean_text(text: str) -> str:
    """The text with a replacement character for each NUL, and a question mark for half a surrogate pair."""
    return _ESCAPED_NUL.sub(rf"\1{_REPLACEMENT}", storable_text(text).replace("\0", _REPLACEMENT))


def clean_envelope(envelope: Envelope) -> Envelope:
    """Clean the names and tags of an envelope. The JSON of its event contains no NUL."""
    changes: dict[str, object] = {
        name: clean_text(value)
        for name in envelope.__struct_fields__
        if isinstance(value := getattr(envelope, name), str)
    }
    if envelope.tags:
        changes["tags"] = {clean_text(tag): clean_text(value) for tag, value in envelope.tags.items()}
    return msgspec.structs.replace(envelope, **changes)


# --- Parameters and clean text ---

# Parts of a statement without parameters: literals, quoted names, comments, and casts.
_TOKEN = re.compile(
    r"""
    '(?:[^']|'')*' | "(?:[^"]|"")*" | --[^\n]* | /\*.*?\*/ | ::
    | (?P<place>\?) | :(?P<name>[A-Za-z_]\w*) | (?P<percent>%)
    """,
    re.VERBOSE | re.DOTALL,
)


@functools.lru_cache(maxsize=1024)
def translated(sql: str) -> str:
    """A statement with ``%s`` for ``?``, ``%(name)s`` for ``:name``, and every other per cent sign doubled."""
    return _TOKEN.sub(_one, sql)


def _one(token: re.Match[str]) -> str:
    if token["place"]:
        return "%s"
    if token["name"]:
        return f"%({token['name']})s"
    return token[0].replace("%", "%%")


# --- Many rows in one statement ---
#
# Each column is sent as one array. The text of such a statement never changes, so the server prepares it once. An
# INSERT that updates existing rows can't change a row twice, so rows with the same key are put into separate
# statements, in order.


_UPDATED_KEY = re.compile(r"\s*ON CONFLICT \(([^)]*)\) DO UPDATE")


def statements_for(
    insert: Insert, values: list[SqlValue], types: Mapping[str, str]
) -> Iterator[tuple[str, list[str]]]:
    """The statements to execute, with their parameters, for rows in the flat list `values`."""
    if not values:
        return
    width = len(insert.columns)
    of_columns = tuple(types[name] for name in insert.columns)
    sql = _statement(insert, of_columns)
    for rows in _rounds(insert, values):
        columns = [values[at::width] for at in range(width)] if rows is None else _picked(values, rows, width)
        yield sql, [array_of(column, type_) for column, type_ in zip(columns, of_columns, strict=True)]


def _picked(values: list[SqlValue], rows: Sequence[int], width: int) -> list[list[SqlValue]]:
    return [[values[row * width + at] for row in rows] for at in range(width)]


def _rounds(insert: Insert, values: list[SqlValue]) -> Iterable[Sequence[int] | None]:
    """Group rows into statements: for each statement the indexes of its rows, or None for all rows."""
    key = _updated_key(insert)
    if not key:
        return (None,)
    width = len(insert.columns)
    names = list(zip(*(values[at::width] for at in key), strict=True))
    if len(set(names)) == len(names):
        return (None,)
    rounds: list[list[int]] = []
    round_of: dict[tuple[SqlValue, ...], int] = {}
    for place, name in enumerate(names):
        number = round_of[name] = round_of.get(name, -1) + 1
        if number == len(rounds):
            rounds.append([])
        rounds[number].append(place)
    return rounds


@functools.cache
def _updated_key(insert: Insert) -> tuple[int, ...]:
    found = _UPDATED_KEY.match(insert.conflict)
    return () if found is None else tuple(insert.columns.index(name.strip()) for name in found[1].split(","))


@functools.cache
def _statement(insert: Insert, types: tuple[str, ...]) -> str:
    arrays = ", ".join(f"CAST(%s AS {type_}[])" for type_ in types)
    columns = ", ".join(insert.columns)
    return f"INSERT INTO {insert.table} ({columns}) SELECT * FROM unnest({arrays}) {insert.conflict}"


def array_of(values: Iterable[SqlValue], type_: str) -> str:
    """An array in PostgreSQL's text form. This is several times as fast as psycopg's own conversion."""
    if type_ == "text":
        parts = ["NULL" if value is None else _quoted(value) for value in values]
    else:
        parts = ["NULL" if value is None else str(value) for value in values]
    return f"{{{','.join(parts)}}}"


def _quoted(value: SqlValue) -> str:
    return '"' + str(value).replace("\\", "\\\\").replace('"', '\\"') + '"'


SECONDS_LEFT = """
    extract(epoch FROM greatest(lease_until, pg_postmaster_start_time() + make_interval(secs => lease_seconds))
                       - clock_timestamp())
"""
"""The seconds until the end of a node's lease."""

WITH_SESSIONS = (
    "DELETE FROM turn_endings WHERE session_id IN ({names})",
    """
    DELETE FROM session_owners WHERE session_id IN (
        SELECT session_id FROM session_owners AS o
         WHERE session_id IN ({names})
           AND (released = 1 OR NOT EXISTS (SELECT 1 FROM nodes AS n WHERE n.node = o.node))
           FOR UPDATE SKIP LOCKED)
    """,
    f"""
    DELETE FROM session_owners WHERE session_id IN (
        SELECT o.session_id FROM session_owners AS o JOIN nodes AS n ON n.node = o.node
         WHERE o.session_id IN ({{names}}) AND {SECONDS_LEFT} < 0
           FOR UPDATE SKIP LOCKED)
    """,
)
"""Statements that delete a cluster's rows of sessions, except those of living nodes.

The statements skip locked rows, which are in use.
"""


# --- Pricing many calls ---


_TYPES = {"INTEGER": "bigint", "TEXT": 'text COLLATE "C"', "RATE": "double precision"}

_EXACT = 1 << 53
"""The pico-USD up to which sums and products in double precision are exact: 9,007 USD a call."""


class PostgresPricing:
    """PostgreSQL's SQL for pricing; see `tracestore.sql.connection.PricingDialect`.

    An integer product of more than 64 bits is an error in PostgreSQL. So nearly all calls are priced in double
    precision, which is exact up to a bound. The few very expensive or unusual calls are priced with numeric.
    """

    unknown_rate = 1e17
    priced_below = _EXACT // 1000
    row = "id"
    value = "d.value"

    def made(self, table: TemporaryTable) -> tuple[str, ...]:
        listed = [f"{column} {_TYPES[of]}" for column, of in table.columns.items()]
        if table.key:
            listed.append(f"PRIMARY KEY ({', '.join(table.key)})")
        return (f"CREATE TEMPORARY TABLE IF NOT EXISTS {table.name} ({', '.join(listed)})",)

    def emptied(self, table: str) -> str:
        """Delete all rows of a temporary table. After a DELETE, scans would still visit the rows."""
        return f"TRUNCATE pg_temp.{table}"

    def surveyed(self, table: str) -> tuple[str, ...]:
        """A statement that collects statistics, because PostgreSQL doesn't collect them for temporary tables."""
        return (f"ANALYZE pg_temp.{table}",)

    def same(self, one: str, other: str) -> str:
        return f"{one} IS NOT DISTINCT FROM {other}"

    def by_index(self, table: str, index: str) -> str:
        """A table, read through any index that the planner chooses."""
        return table

    def plain_nano(self, pico: str) -> str:
        """The nano-USD of a sum of products with rates. NULL becomes the greatest possible number."""
        return f"CAST(least({pico} + 500, CAST(9.1e18 AS double precision)) AS bigint) / 1000"

    def exact(self, count: str) -> str:
        return f"CAST({count} AS numeric)"

    def is_integer(self, number: str) -> str:
        """Return true: every numeric product of integers is exact."""
        return "TRUE"

    def nano(self, pico: str) -> str:
        return f"CAST(div({pico} + 500, 1000) AS bigint)"

    def sum_of(self, products: str) -> str:
        return f"coalesce(sum({products}), 0)"

    def part(self, details: str, name: str) -> str:
        return f"CAST(CAST({details} AS json) ->> '{name}' AS numeric)"

    def each(self, details: str) -> str:
        return (
            'LATERAL (SELECT j.key COLLATE "C" AS key, CAST(j.value AS numeric) AS value'
            f" FROM json_each_text(CAST({details} AS json)) AS j) AS d"
        )


# --- Dialect of PostgreSQL ---


class PostgresDialect:
    """PostgreSQL's implementation of `tracestore.sql.connection.Dialect`."""

    pricing = PostgresPricing()
    moment = "CAST(pg_snapshot_xmin(pg_current_snapshot()) AS text)"
    untouched_since = "age(xmin) > age(CAST(CAST(CAST(? AS text) AS xid8) AS xid))"
    # The number of the oldest open transaction: all transactions with lower numbers have ended. `age` counts back
    # from the latest transaction.

    latest_claim: str | None = "SELECT epoch FROM session_owners WHERE session_id = ? FOR SHARE"
    with_sessions: tuple[str, ...] = WITH_SESSIONS

    def tag(self, tags: str) -> str:
        return f'(CAST({tags} AS json) ->> CAST(? AS text)) COLLATE "C"'

    def behind(self, text: str, sign: str) -> str:
        return f"substr({text}, strpos({text}, '{sign}') + 1)"

    def like_topic(self, column: str, pattern: str) -> tuple[str, SqlValue]:
        literal = pattern.replace("\\", r"\\").replace("%", r"\%").replace("_", r"\_")
        return f"{column} LIKE ?", literal.replace("*", "%")

    def by_number(self, table: str, name: str) -> str:
        """A table, read in any order that the planner chooses."""
        return f"{table} AS {name}"

    def rounded(self, value: str, digits: int) -> str:
        return f"CAST(round(CAST({value} AS numeric), {digits}) AS double precision)"


POSTGRES = PostgresDialect()


# --- The index of words ---
#
# The index is a table of text search vectors. A row is deleted with its body.


TABLE = "content_search"
MOST = 400_000
"""The number of characters of a message that are searched, because a text search vector holds at most 1 MB."""


class PostgresIndex:
    """PostgreSQL's implementation of `tracestore.search.Index`."""

    missing = f"NOT EXISTS (SELECT 1 FROM {TABLE} AS s WHERE s.id = c.id)"
    join = f"JOIN {TABLE} AS s ON s.id = c.id"

    def make(self, statements: AnyStatements) -> None:
        if statements.run("SELECT to_regclass(CAST(? AS text)) IS NOT NULL", (TABLE,))[0][0]:
            return
        statements.run("SELECT pg_advisory_xact_lock(hashtext(CAST(? AS text)))", (TABLE,))
        statements.change(
            f"CREATE TABLE IF NOT EXISTS {TABLE} "
            "(id bigint PRIMARY KEY REFERENCES content (id) ON DELETE CASCADE, words tsvector NOT NULL)"
        )
        statements.change(f"CREATE INDEX IF NOT EXISTS {TABLE}_by_word ON {TABLE} USING gin (words)")

    def put(self, statements: AnyStatements, rows: Iterable[tuple[int, str]]) -> None:
        statements.run_many(
            f"INSERT INTO {TABLE} (id, words) SELECT c.id, to_tsvector('simple', CAST(? AS text))"
            " FROM content AS c WHERE c.id = ? ON CONFLICT (id) DO NOTHING",
            [(words[:MOST], number) for number, words in rows],
        )

    def matches(self, terms: Sequence[Term]) -> tuple[str, list[SqlValue]]:
        parts = [
            f"s.words @@ {'!!' if term.absent else ''}to_tsquery('simple', CAST(? AS text))" for term in terms
        ]
        return " AND ".join(parts), [" <-> ".join(_quoted_term(term)) for term in terms]


def _quoted_term(term: Term) -> list[str]:
    last = len(term.words) - 1
    return [f"'{word}'{':*' if term.begins and at == last else ''}" for at, word in enumerate(term.words)]


# --- Working with a connection ---


_COLUMN_TYPES = """
    SELECT attname, format_type(atttypid, NULL) FROM pg_attribute
     WHERE attrelid = CAST(%s AS regclass) AND attnum > 0 AND NOT attisdropped
"""


class Statements:
    """PostgreSQL's implementation of `tracestore.sql.connection.Statements`."""

    dialect = POSTGRES

    def __init__(self, connection: psycopg.Connection, types: dict[str, dict[str, str]]) -> None:
        self.connection = connection
        """psycopg's own connection, for commands such as COPY."""
        self._types = types

    def run(self, sql: str, parameters: Sequence[SqlValue] | Mapping[str, SqlValue] = ()) -> list[Row]:
        import psycopg

        query = translated(sql)
        try:
            cursor = self._execute(query, parameters)
        except psycopg.DataError as error:
            if error.sqlstate is not None:
                raise
            # psycopg rejects NUL. In stored text NUL was replaced, so the same replacement finds the text.
            cursor = self._execute(query, _cleaned(parameters))
        return [] if cursor.description is None else cursor.fetchall()

    def change(self, sql: str, parameters: Sequence[SqlValue] | Mapping[str, SqlValue] = ()) -> int:
        return self._execute(translated(sql), parameters).rowcount

    def run_many(self, sql: str, rows: Iterable[Sequence[SqlValue]]) -> None:
        """Execute one statement for each of `rows`. Raises Unstorable for a value that the table refuses."""
        waiting = list(rows)
        if waiting:
            with unstorable():
                self.connection.cursor().executemany(_query(translated(sql)), waiting)

    def insert(self, insert: Insert, values: list[SqlValue]) -> None:
        """Insert rows from the flat list `values`. Raises Unstorable like `run_many`."""
        for _ in self._inserted(insert, values):
            pass

    def insert_returning(self, insert: Insert, values: list[SqlValue]) -> list[Row]:
        """Insert rows like `insert`. Returns the rows of the RETURNING clause."""
        return [row for cursor in self._inserted(insert, values) for row in cursor]

    def _inserted(self, insert: Insert, values: list[SqlValue]) -> Iterator[psycopg.Cursor[Any]]:
        with unstorable():
            for sql, parameters in statements_for(insert, values, self.column_types(insert.table)):
                yield self._execute(sql, parameters)

    def copy(self, table: str, columns: Sequence[str], options: str, parts: Iterable[bytes]) -> None:
        with (
            unstorable(),
            self.connection.cursor().copy(
                _query(f"COPY {table} ({', '.join(columns)}) FROM STDIN WITH ({options})")
            ) as copy,
        ):
            for part in parts:
                copy.write(part)

    def erasing(self) -> contextlib.AbstractContextManager[None]:
        """Do nothing: PostgreSQL overwrites deleted rows when it reuses their space after a vacuum."""
        return contextlib.nullcontext()

    def column_types(self, table: str) -> dict[str, str]:
        found = self._types.get(table)
        if found is None:
            found = self._types[table] = dict(self._execute(_COLUMN_TYPES, (table,)).fetchall())
        return found

    def script(self, statements: Iterable[str]) -> None:
        """Execute statements without parameters, unchanged."""
        for statement in statements:
            self.connection.execute(_query(statement))

    def _execute(self, sql: str, parameters: Sequence[SqlValue] | Mapping[str, SqlValue]) -> psycopg.Cursor[Any]:
        return self.connection.execute(_query(sql), parameters)


def _cleaned(parameters: Sequence[SqlValue] | Mapping[str, SqlValue]) -> list[SqlValue] | dict[str, SqlValue]:
    def clean(value: SqlValue) -> SqlValue:
        return clean_text(value) if isinstance(value, str) else value

    if isinstance(parameters, Mapping):
        return {name: clean(value) for name, value in parameters.items()}
    return [clean(value) for value in parameters]


def _query(sql: str) -> Any:
    """A statement in psycopg's type, which accepts only literals. No statement here contains a value."""
    return cast("Any", sql)
