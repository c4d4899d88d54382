"""Refunds that never happen twice: a table keyed by each tool call, and the tool that writes to it."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from decimal import Decimal
from pathlib import Path

from callboard import Tool, ToolContext, tool


class Refunds:
    """The refunds of all tenants, in a file. Any thread may use it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        with closing(self._connected()) as database, database:
            database.execute(
                "CREATE TABLE IF NOT EXISTS refunds (key TEXT PRIMARY KEY, tenant TEXT, receipt TEXT)"
            )

    def make(self, key: str, tenant: str, receipt: str) -> None:
        """Make a refund, unless there is one with this key already."""
        with closing(self._connected()) as database, database:
            database.execute("INSERT OR IGNORE INTO refunds VALUES (?, ?, ?)", (key, tenant, receipt))

    def of(self, tenant: str) -> list[str]:
        """The receipts of a tenant."""
        with closing(self._connected()) as database:
            found = database.execute("SELECT receipt FROM refunds WHERE tenant = ? ORDER BY rowid", (tenant,))
            return [str(receipt) for (receipt,) in found]

    def _connected(self) -> sqlite3.Connection:
        return sqlite3.connect(self._path)


def refund_tool(refunds: Refunds, tenant: str) -> Tool:
    """The refund tool of one tenant. The model can't choose the tenant."""

    @tool(needs_approval=True)
    def refund(order: str, cents: int, context: ToolContext) -> str:
        """Refund an order, or a part of it."""
        receipt = f"{order} refunded, {Decimal(cents).scaleb(-2):.2f} USD"
        refunds.make(context.idempotency_key, tenant, receipt)
        return receipt

    return refund
