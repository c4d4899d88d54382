"""The rows of gateways: clients, keys, and entries of conversations."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol, TypeVar

import msgspec

from ..gateway import Client, ClientKey, ConversationEntry, GatewayChanges, KeptKind
from .connection import SqlValue, Statements, placeholders

_T = TypeVar("_T")

KEYS_AT_ONCE = 500
"""The number of keys in one query. SQLite's oldest versions accept 999 parameters."""


class Work(Protocol):
    """Runs a function with statements on a database: for reading, or in one transaction."""

    def __call__(self, work: Callable[[Statements], _T], /) -> Awaitable[_T]: ...


class SqlGateway:
    """The rows of gateways in one database.

    Args:
        look: Runs work that only reads.
        write: Runs work in one transaction, which may overlap with the writers of the trace.
    """

    def __init__(self, look: Work, write: Work) -> None:
        self._look = look
        self._write = write

    async def changes(self) -> GatewayChanges:
        rows = await self._look(lambda statements: statements.run("SELECT what, number FROM gateway_changes"))
        return GatewayChanges(**dict(rows))

    # --- Clients ---

    async def clients(self) -> list[Client]:
        rows = await self._look(
            lambda statements: statements.run(
                "SELECT name, settings, created_us, revoked_us FROM gateway_clients ORDER BY name"
            )
        )
        return [_client(*row) for row in rows]

    async def client_keys(self) -> list[ClientKey]:
        rows = await self._look(
            lambda statements: statements.run(
                "SELECT hash, client, prefix, created_us, expires_us FROM gateway_keys ORDER BY created_us, hash"
            )
        )
        return [
            ClientKey(
                hash=bytes(digest), client=client, prefix=prefix, created_us=created_us, expires_us=expires_us
            )
            for digest, client, prefix, created_us, expires_us in rows
        ]

    async def add_client(self, client: Client, key: ClientKey) -> bool:
        def work(statements: Statements) -> bool:
            added = statements.change(
                """
                INSERT INTO gateway_clients (name, settings, created_us) VALUES (?, ?, ?)
                ON CONFLICT (name) DO UPDATE SET
                    settings = excluded.settings, created_us = excluded.created_us, revoked_us = NULL
                 WHERE gateway_clients.revoked_us IS NOT NULL
                """,
                (client.name, _settings(client), client.created_us),
            )
            if added:
                _add_key(statements, key)
                _note(statements, "clients")
            return bool(added)

        return await self._write(work)

    async def change_client(self, client: Client) -> bool:
        def work(statements: Statements) -> bool:
            changed = statements.change(
                "UPDATE gateway_clients SET settings = ? WHERE name = ? AND revoked_us IS NULL",
                (_settings(client), client.name),
            )
            if changed:
                _note(statements, "clients")
            return bool(changed)

        return await self._write(work)

    async def rotate_key(self, key: ClientKey, expires_us: int) -> bool:
        def work(statements: Statements) -> bool:
            if not statements.run(
                "SELECT 1 FROM gateway_clients WHERE name = ? AND revoked_us IS NULL", (key.client,)
            ):
                return False
            statements.run(
                "DELETE FROM gateway_keys WHERE client = ? AND expires_us <= ?", (key.client, key.created_us)
            )
            statements.run(
                "UPDATE gateway_keys SET expires_us = ? WHERE client = ? AND coalesce(expires_us, ?) >= ?",
                (expires_us, key.client, expires_us, expires_us),
            )
            _add_key(statements, key)
            _note(statements, "clients")
            return True

        return await self._write(work)

    async def revoke_client(self, name: str, at_us: int) -> bool:
        def work(statements: Statements) -> bool:
            revoked = statements.change(
                "UPDATE gateway_clients SET revoked_us = ? WHERE name = ? AND revoked_us IS NULL", (at_us, name)
            )
            if revoked:
                statements.run("DELETE FROM gateway_keys WHERE client = ?", (name,))
                _note(statements, "clients")
            return bool(revoked)

        return await self._write(work)

    # --- Conversations ---

    async def keep(self, some: Sequence[ConversationEntry]) -> None:
        rows: list[tuple[SqlValue, ...]] = [
            (each.client, each.kind, each.key, each.session_id, each.body, len(each.body), each.ts_us)
            for each in some
        ]

        def work(statements: Statements) -> None:
            statements.run_many(
                """
                INSERT INTO gateway_kept (client, kind, key, session_id, body, bytes, ts_us)
                VALUES (?, ?, ?, ?, ?, ?, ?)
                """,
                rows,
            )

        await self._write(work)

    async def kept(self, client: str, kind: KeptKind, keys: Sequence[bytes]) -> list[ConversationEntry]:
        def work(statements: Statements) -> list[ConversationEntry]:
            found: list[tuple[int, ConversationEntry]] = []
            for start in range(0, len(keys), KEYS_AT_ONCE):
                some = keys[start : start + KEYS_AT_ONCE]
                rows = statements.run(
                    f"""
                    SELECT id, key, session_id, body, ts_us FROM gateway_kept
                     WHERE client = ? AND kind = ? AND key IN ({placeholders(len(some))})
                    """,
                    (client, kind, *some),
                )
                found += [
                    (
                        number,
                        ConversationEntry(
                            client=client,
                            kind=kind,
                            key=bytes(key),
                            session_id=session_id,
                            body=bytes(body),
                            ts_us=ts_us,
                        ),
                    )
                    for number, key, session_id, body, ts_us in rows
                ]
            return [each for _, each in sorted(found, key=lambda pair: pair[0])]

        return await self._look(work)

    async def drop_kept(self, client: str, kind: KeptKind, key: bytes) -> bool:
        def work(statements: Statements) -> bool:
            with statements.erasing():
                gone = statements.change(
                    "DELETE FROM gateway_kept WHERE client = ? AND kind = ? AND key = ?", (client, kind, key)
                )
            if gone:
                _note(statements, "forgotten")
            return bool(gone)

        return await self._write(work)

    async def trim_kept(self, max_rows: int, max_bytes: int) -> None:
        def work(statements: Statements) -> None:
            rows = statements.run(
                """
                SELECT id FROM (
                    SELECT id, count(*) OVER (ORDER BY id DESC) AS rows_since, sum(bytes) OVER (ORDER BY id DESC)
                           AS bytes_since
                      FROM gateway_kept
                ) AS k
                 WHERE rows_since > ? OR bytes_since > ? ORDER BY id DESC LIMIT 1
                """,
                (max_rows, max_bytes),
            )
            if rows:
                with statements.erasing():
                    statements.run("DELETE FROM gateway_kept WHERE id <= ?", rows[0])

        await self._write(work)


def _client(name: str, settings: str, created_us: int, revoked_us: int | None) -> Client:
    known: dict[str, Any] = msgspec.json.decode(settings)
    return msgspec.convert({**known, "name": name, "created_us": created_us, "revoked_us": revoked_us}, Client)


def _settings(client: Client) -> str:
    known: dict[str, Any] = msgspec.to_builtins(client)
    for column in ("name", "created_us", "revoked_us"):
        known.pop(column, None)
    return msgspec.json.encode(known).decode()


def _add_key(statements: Statements, key: ClientKey) -> None:
    statements.run(
        "INSERT INTO gateway_keys (hash, client, prefix, created_us, expires_us) VALUES (?, ?, ?, ?, ?)",
        (key.hash, key.client, key.prefix, key.created_us, key.expires_us),
    )


def _note(statements: Statements, what: str) -> None:
    statements.run("UPDATE gateway_changes SET number = number + 1 WHERE what = ?", (what,))


# --- Deleting content ---


def forget_kept_of(statements: Statements, sessions: Sequence[str]) -> int:
    """Delete and erase the entries of some sessions. The caller holds a transaction."""
    with statements.erasing():
        gone = statements.change(
            f"DELETE FROM gateway_kept WHERE session_id IN ({placeholders(len(sessions))})", sessions
        )
    if gone:
        note_forgotten(statements)
    return gone


def forget_kept_before(statements: Statements, before_us: int) -> int:
    """Delete and erase entries from before a given time. The caller holds a transaction."""
    with statements.erasing():
        gone = statements.change("DELETE FROM gateway_kept WHERE ts_us < ?", (before_us,))
    if gone:
        note_forgotten(statements)
    return gone


def note_forgotten(statements: Statements) -> None:
    """Count a deletion of content, so that gateways drop the content in their memory."""
    _note(statements, "forgotten")
