"""`tracestore.nodes.LedgerTables` in PostgreSQL.

A transaction that changes slices locks the rows of their accounts, in the order of their names. So sums are
correct, and there are no deadlocks. The time is the database's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from ..nodes import (
    AccountBalance,
    AccountScope,
    Allotment,
    Answer,
    SliceRequest,
    SliceRequests,
    SliceRow,
    Slot,
    granted,
)
from ..sql.connection import Row, Statements
from ..sql.listing import spending
from .nodes import SharedDatabase
from .statements import SECONDS_LEFT

WANTED_SECONDS = 5.0
"""Seconds after a refused request during which other nodes return unused amounts."""

_NOW = "SELECT floor(extract(epoch FROM clock_timestamp()) * 1000000)"
_MAKE = "INSERT INTO ledger_accounts (budget, value) VALUES (?, ?) ON CONFLICT DO NOTHING"
_LOCK = "SELECT id, counted FROM ledger_accounts WHERE budget = ? AND value = ? FOR UPDATE"
_FIND = """
    SELECT id, CASE WHEN wanted_at > clock_timestamp() - make_interval(secs => ?) THEN 1 ELSE 0 END
      FROM ledger_accounts WHERE budget = ? AND value = ?
"""
_SPENT = """
    INSERT INTO ledger_spent (account, slot_us, forgotten_us, nano, tokens) VALUES (?, ?, ?, ?, ?)
    ON CONFLICT (account, slot_us) DO UPDATE
       SET nano = ledger_spent.nano + excluded.nano, tokens = ledger_spent.tokens + excluded.tokens
"""
_STANDING = """
    SELECT (SELECT coalesce(sum(nano), 0) FROM ledger_spent WHERE account = :account AND forgotten_us > :now),
           (SELECT coalesce(sum(tokens), 0) FROM ledger_spent WHERE account = :account AND forgotten_us > :now),
           coalesce(sum(nano) FILTER (WHERE node <> :node), 0),
           coalesce(sum(tokens) FILTER (WHERE node <> :node), 0),
           coalesce(sum(nano) FILTER (WHERE node = :node), 0),
           coalesce(sum(tokens) FILTER (WHERE node = :node), 0),
           coalesce(sum(nano) FILTER (WHERE node = :node AND slot_us = :slot), 0),
           coalesce(sum(tokens) FILTER (WHERE node = :node AND slot_us = :slot), 0),
           coalesce(max(number) FILTER (WHERE node = :node), 0)
      FROM ledger_slices
     WHERE account = :account AND forgotten_us > :now
"""
_SET = """
    INSERT INTO ledger_slices (account, slot_us, forgotten_us, node, nano, tokens, number)
    VALUES (?, ?, ?, ?, ?, ?, ?)
    ON CONFLICT (account, slot_us, node) DO UPDATE
       SET nano = excluded.nano, tokens = excluded.tokens, number = excluded.number,
           forgotten_us = greatest(ledger_slices.forgotten_us, excluded.forgotten_us)
     WHERE ledger_slices.number < excluded.number
"""
_LOWER = """
    UPDATE ledger_slices SET nano = least(nano, ?), tokens = least(tokens, ?), number = ?
     WHERE account = ? AND slot_us = ? AND node = ? AND number < ?
"""
_DEAD = """
    SELECT DISTINCT s.node, a.budget, a.value
      FROM ledger_slices AS s JOIN ledger_accounts AS a ON a.id = s.account
      JOIN runs AS r ON r.run_id = s.node AND r.ended_us IS NOT NULL
     WHERE NOT EXISTS (SELECT 1 FROM nodes AS n WHERE n.node = s.node AND n.lease_until > clock_timestamp())
"""
SLICES = f"""
    SELECT a.budget, a.value, s.node, coalesce(n.name, ''), CASE WHEN {SECONDS_LEFT} > 0 THEN 1 ELSE 0 END,
           sum(s.nano), sum(s.tokens)
      FROM ledger_slices AS s
      JOIN ledger_accounts AS a ON a.id = s.account
      LEFT JOIN nodes AS n ON n.node = s.node
     WHERE s.forgotten_us > floor(extract(epoch FROM clock_timestamp()) * 1000000) AND (s.nano > 0 OR s.tokens > 0)
     GROUP BY 1, 2, 3, 4, 5
     ORDER BY 1, 2, 5 DESC, 6 DESC, 7 DESC, 3
"""
"""The query for all slices that count. For each account, slices of running nodes are first, and larger slices
before smaller ones.
"""


class PostgresLedger:
    def __init__(self, database: SharedDatabase) -> None:
        self._database = database

    async def grant(self, node: str, number: int, requests: SliceRequests) -> Answer:
        def work(statements: Statements) -> Answer:
            now_us = _now(statements)
            pending = requests(now_us)
            accounts = [_locked(statements, request.scope, now_us) for request in pending]
            sizes = [
                _size(statements, account, request, node, number, now_us)
                for account, request in zip(accounts, pending, strict=True)
            ]
            if None not in sizes:
                for account, request, size in zip(accounts, pending, sizes, strict=True):
                    assert size is not None
                    slot = request.slot
                    statements.run(_SET, (account, slot.start_us, slot.forgotten_us, node, *size, number))
            balances = [
                _balance(statements, account, request.slot, node, now_us)[0]
                for account, request in zip(accounts, pending, strict=True)
            ]
            return Answer(now_us, balances)

        return await self._database.brief(work)

    async def give_back(
        self, node: str, number: int, slices: Sequence[tuple[AccountScope, Slot, Allotment]]
    ) -> None:
        def work(statements: Statements) -> None:
            now_us = _now(statements)
            for scope, slot, used in slices:
                account = _locked(statements, scope, now_us)
                statements.run(_LOWER, (*used, number, account, slot.start_us, node, number))

        await self._database.brief(work)

    async def look(self, node: str, scopes: Sequence[AccountScope]) -> Answer:
        def work(statements: Statements) -> Answer:
            now_us = _now(statements)
            balances, requested = [], []
            for scope in scopes:
                found = statements.run(_FIND, (WANTED_SECONDS, scope.budget, scope.value))
                account, asked_for = found[0] if found else (None, 0)
                balances.append(_balance(statements, account, scope.slot(now_us), node, now_us)[0])
                requested.append(bool(asked_for))
            return Answer(now_us, balances, requested)

        return await self._database.brief(work)

    async def recount(self, scopes: Sequence[AccountScope]) -> None:
        def work(statements: Statements) -> None:
            now_us = _now(statements)
            for scope in scopes:
                _count(statements, _locked(statements, scope, now_us), scope, now_us)

        await self._database.brief(work)

    async def settle(self, node: str, scopes: Sequence[AccountScope]) -> None:
        def work(statements: Statements) -> None:
            now_us = _now(statements)
            for scope in scopes:
                _settle(statements, node, scope, now_us)

        await self._database.brief(work)

    async def settle_dead(self, scopes: Callable[[str, str], AccountScope | None]) -> int:
        dead = await self._database.statement(_DEAD)
        dead_nodes = [
            (str(node), scope) for node, budget, value in dead if (scope := scopes(budget, value)) is not None
        ]

        def work(statements: Statements) -> None:
            now_us = _now(statements)
            for node, scope in dead_nodes:
                _settle(statements, node, scope, now_us)

        if dead_nodes:
            await self._database.brief(work)
        return len(dead_nodes)


def slice_rows(rows: Iterable[Row]) -> list[SliceRow]:
    return [
        SliceRow(
            budget=budget,
            value=value,
            node=node,
            name=name,
            lives=bool(lives),
            nano_usd=int(nano),
            tokens=int(tokens),
        )
        for budget, value, node, name, lives, nano, tokens in rows
    ]


# --- Within a transaction ---


def _now(statements: Statements) -> int:
    ((now_us,),) = statements.run(_NOW)
    return int(now_us)


def _locked(statements: Statements, scope: AccountScope, now_us: int) -> int:
    """Lock an account's row, and return the account's number. A new account starts with the trace's amount."""
    statements.run(_MAKE, (scope.budget, scope.value))
    ((account, counted),) = statements.run(_LOCK, (scope.budget, scope.value))
    if not counted:
        _count(statements, account, scope, now_us)
    return int(account)


def _count(statements: Statements, account: int, scope: AccountScope, now_us: int) -> None:
    """Count the calls in the trace, except calls of runs with a slice. Delete slots that no longer count."""
    statements.run("DELETE FROM ledger_spent WHERE account = ?", (account,))
    statements.run("DELETE FROM ledger_slices WHERE account = ? AND forgotten_us <= ?", (account, now_us))
    runs = [
        run for (run,) in statements.run("SELECT DISTINCT node FROM ledger_slices WHERE account = ?", (account,))
    ]
    query = scope.query(now_us)
    for row in [] if query is None else spending(statements, [query], "", without=runs).rows[0]:
        assert query is not None
        slot = scope.counted_slot(query, row.slot, now_us)
        statements.run(_SPENT, (account, slot.start_us, slot.forgotten_us, row.nano_usd, row.tokens))
    statements.run("UPDATE ledger_accounts SET counted = 1 WHERE id = ?", (account,))


def _settle(statements: Statements, node: str, scope: AccountScope, now_us: int) -> None:
    account = _locked(statements, scope, now_us)
    statements.run("DELETE FROM ledger_slices WHERE account = ? AND node = ?", (account, node))
    _count(statements, account, scope, now_us)


def _size(
    statements: Statements, account: int, request: SliceRequest, node: str, number: int, now_us: int
) -> Allotment | None:
    """The size of a requested slice. None is a refusal, which is recorded so that other nodes return amounts."""
    balance, allotment, last = _balance(statements, account, request.slot, node, now_us)
    if last >= number:
        return balance.granted
    size = granted(request, balance, allotment)
    if size is None:
        statements.run("UPDATE ledger_accounts SET wanted_at = clock_timestamp() WHERE id = ?", (account,))
    return size


def _balance(
    statements: Statements, account: int | None, slot: Slot, node: str, now_us: int
) -> tuple[AccountBalance, Allotment, int]:
    """The state of an account, the node's own slices in all slots, and the number of the account's last change."""
    names = {"account": account, "node": node, "slot": slot.start_us, "now": now_us}
    (row,) = statements.run(_STANDING, names)
    spent_nano, spent_tokens, others_nano, others_tokens, own_nano, own_tokens, nano, tokens, last = map(int, row)
    balance = AccountBalance(slot, (nano, tokens), (spent_nano, spent_tokens), (others_nano, others_tokens))
    return balance, (own_nano, own_tokens), last
