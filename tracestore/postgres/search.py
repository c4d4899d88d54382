"""The index of a trace on a server: a table of text search vectors. Its rows go with the bodies they are of."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..search import Term
from ..sql.connection import SqlValue, Statements

TABLE = "content_search"
MOST = 400_000
"""The number of characters of a message that are searched. A text search vector takes 1 MB."""


class PostgresIndex:
    """See `index.Index`."""

    missing = f"NOT EXISTS (SELECT 1 FROM {TABLE} AS s WHERE s.id = c.id)"
    join = f"JOIN {TABLE} AS s ON s.id = c.id"

    def make(self, statements: Statements) -> None:
        if statements.run("SELECT to_regclass(CAST(? AS text)) IS NOT NULL", (TABLE,))[0][0]:
            return
        statements.run("SELECT pg_advisory_xact_lock(hashtext(CAST(? AS text)))", (TABLE,))
        statements.change(
            f"CREATE TABLE IF NOT EXISTS {TABLE} "
            "(id bigint PRIMARY KEY REFERENCES content (id) ON DELETE CASCADE, words tsvector NOT NULL)"
        )
        statements.change(f"CREATE INDEX IF NOT EXISTS {TABLE}_by_word ON {TABLE} USING gin (words)")

    def put(self, statements: Statements, rows: Iterable[tuple[int, str]]) -> None:
        statements.run_many(
            f"INSERT INTO {TABLE} (id, words) SELECT c.id, to_tsvector('simple', CAST(? AS text))"
            " FROM content AS c WHERE c.id = ? ON CONFLICT (id) DO NOTHING",
            [(words[:MOST], number) for number, words in rows],
        )

    def matches(self, terms: Sequence[Term]) -> tuple[str, list[SqlValue]]:
        parts = [
            f"s.words @@ {'!!' if term.absent else ''}to_tsquery('simple', CAST(? AS text))" for term in terms
        ]
        return " AND ".join(parts), [" <-> ".join(_quoted(term)) for term in terms]


def _quoted(term: Term) -> list[str]:
    last = len(term.words) - 1
    return [f"'{word}'{':*' if term.begins and at == last else ''}" for at, word in enumerate(term.words)]
