"""Price tables as a trace keeps them, each version once and unchanged, and the choice of the current costs."""

from __future__ import annotations

import msgspec

from callboard.bus.errors import ConfigurationError, StoreError

from ...prices.rows import PriceAlias, PriceRow
from ...prices.table import PriceTable
from ..connection import Database, Row, SqlValue, Statements, placeholders
from .run_costs import make_current, runs_of

_ROW_COLUMNS = tuple(PriceRow.__struct_fields__)


def save_table(statements: Statements, table: PriceTable, now_us: int) -> None:
    """Keep a table. A version that is there already stays as it is."""
    added = statements.run(
        """
        INSERT INTO price_version (version, label, loaded_us) VALUES (?, ?, ?)
        ON CONFLICT (version) DO NOTHING
        RETURNING version
        """,
        (table.version, table.label, now_us),
    )
    if added:
        statements.run_many(
            f"""
            INSERT INTO price_row (version, position, {", ".join(_ROW_COLUMNS)})
            VALUES (?, ?, {placeholders(len(_ROW_COLUMNS))})
            """,
            [
                [table.version, position, *(_stored(getattr(row, name)) for name in _ROW_COLUMNS)]
                for position, row in enumerate(table.rows)
            ],
        )
        statements.run_many(
            "INSERT INTO price_alias (version, position, pattern, target, reference) VALUES (?, ?, ?, ?, ?)",
            [
                [table.version, position, alias.pattern, alias.target, int(alias.reference)]
                for position, alias in enumerate(table.aliases)
            ],
        )


def _stored(value: object) -> SqlValue:
    if isinstance(value, dict):
        return msgspec.json.encode(value, order="deterministic").decode()
    assert value is None or isinstance(value, str | int)
    return int(value) if isinstance(value, bool) else value


def _row_of(values: Row) -> PriceRow:
    fields = dict(zip(_ROW_COLUMNS, values, strict=True))
    fields["extra"] = msgspec.json.decode(fields["extra"])
    fields["reference"] = bool(fields["reference"])
    return PriceRow(**fields)


def table_of(statements: Statements, version: str) -> PriceTable:
    """A price table of the trace. Raises StoreError if the table isn't there as a whole."""
    labels = statements.run("SELECT label FROM price_version WHERE version = ?", (version,))
    rows = statements.run(
        f"SELECT {', '.join(_ROW_COLUMNS)} FROM price_row WHERE version = ? ORDER BY position", (version,)
    )
    aliases = statements.run(
        "SELECT pattern, target, reference FROM price_alias WHERE version = ? ORDER BY position", (version,)
    )
    try:
        return PriceTable(
            map(_row_of, rows),
            label=labels[0][0],
            aliases=[PriceAlias(pattern, target, bool(flag)) for pattern, target, flag in aliases],
        )
    except (ConfigurationError, IndexError) as error:
        raise StoreError(f"price version {version} is damaged: {error}") from error


async def stored_table(database: Database, version: str) -> PriceTable:
    """A price table of the trace. Raises StoreError, which names the known ones, for another version."""
    if not await database.read("SELECT 1 FROM price_version WHERE version = ?", (version,)):
        await _refuse_unknown(database, version)
    return await database.look(lambda statements: table_of(statements, version))


async def stored_tables(database: Database) -> list[PriceTable]:
    """All price tables of the trace, the oldest first."""
    versions = await database.read("SELECT version FROM price_version ORDER BY loaded_us, version")
    return [await stored_table(database, version) for (version,) in versions]


def current_version(statements: Statements) -> str | None:
    """The version whose costs go first; None if the costs at call time are the current ones."""
    rows = statements.run(
        "SELECT r.version FROM current_run AS c JOIN reprice_run AS r ON r.id = c.run ORDER BY c.position LIMIT 1"
    )
    return str(rows[0][0]) if rows else None


async def use_prices(database: Database, version: str | None) -> None:
    """Make the costs of one version the current ones; None stands for the costs at call time."""
    if version is not None and not await database.read(
        "SELECT 1 FROM price_version WHERE version = ?", (version,)
    ):
        await _refuse_unknown(database, version)

    def work(statements: Statements) -> None:
        runs = [] if version is None else runs_of(statements, version)
        if version is not None and not runs:
            raise StoreError(f"{database.name}: no repricing under price version {version} has come to its end")
        make_current(statements, runs)

    await database.write(work)


async def _refuse_unknown(database: Database, version: str) -> None:
    known = await database.read("SELECT version, label FROM price_version ORDER BY loaded_us DESC LIMIT 10")
    names = ", ".join(f"{name} ({label})" for name, label in known) or "none yet"
    raise StoreError(f"{database.name} knows no price version {version!r}; it knows {names}")
