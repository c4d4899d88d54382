"""Write the SQL that makes a new trace file: the tables, views, triggers and rows that all steps lead to.

    python scripts/make_new_file.py

Run it after a step was added to ``steps.sql``. A test compares the two.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from callboard.tracestore.sqlite.schema import MIGRATIONS

PATH = Path(__file__).parent.parent / "tracestore" / "sqlite" / "new_file.sql"

_HEAD = """-- A new trace file of the newest version. scripts/make_new_file.py writes this from steps.sql.
--
-- A line with nothing but a semicolon ends each statement.

"""


def new_file() -> str:
    """The SQL text."""
    with closing(sqlite3.connect(":memory:")) as file:
        for _, statements in MIGRATIONS:
            for statement in statements:
                file.execute(statement)
        made = file.execute(
            "SELECT sql FROM sqlite_schema WHERE sql IS NOT NULL AND name NOT LIKE 'sqlite_%' ORDER BY rowid"
        )
        rows = (line.removesuffix(";") for line in file.iterdump() if line.startswith("INSERT"))
        return _HEAD + "\n;\n\n".join([*(sql for (sql,) in made), *rows, ""]).rstrip("\n") + "\n"


if __name__ == "__main__":
    PATH.write_text(new_file(), encoding="utf-8")
