"""The index of a trace file: a table of FTS5.

It goes as a whole where content is erased, and is made anew by the next search. So nothing of what was erased
stays in it, whatever the version of SQLite.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from callboard.bus.errors import StoreError

from ..search import Term
from ..sql.connection import SqlValue, Statements

TABLE = "content_search"
DROP = f"DROP TABLE IF EXISTS {TABLE}"


class SqliteIndex:
    """See `index.Index`."""

    missing = f"c.id NOT IN (SELECT id FROM {TABLE}_docsize)"
    join = f"JOIN {TABLE} AS s ON s.rowid = c.id"

    def make(self, statements: Statements) -> None:
        if not statements.run("SELECT 1 FROM pragma_module_list WHERE name = 'fts5'"):
            raise StoreError("the SQLite of this Python has no FTS5, which a search needs")
        statements.run(  # without a copy of the texts: nothing is ever deleted from it but the whole
            f"CREATE VIRTUAL TABLE IF NOT EXISTS {TABLE} USING fts5(words, content = '', tokenize = 'unicode61')"
        )

    def put(self, statements: Statements, rows: Iterable[tuple[int, str]]) -> None:
        statements.run_many(f"INSERT INTO {TABLE} (rowid, words) VALUES (?, ?)", rows)

    def matches(self, terms: Sequence[Term]) -> tuple[str, list[SqlValue]]:
        present = " AND ".join(map(_fts, (term for term in terms if not term.absent)))
        absent = "".join(f" NOT {_fts(term)}" for term in terms if term.absent)
        return f"{TABLE} MATCH ?", [f"({present}){absent}"]


def _fts(term: Term) -> str:
    return f'"{" ".join(term.words)}"{"*" if term.begins else ""}'  # no word has a quote in it
