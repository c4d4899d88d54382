"""The rows of a gateway: its clients with their keys, and entries of conversations.

Clients are configuration. Entries of conversations are content: they are deleted with their session, by age, and
with pruned calls.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from operator import itemgetter
from typing import Any, Literal, Protocol, TypeAlias, TypeVar

import msgspec

from callboard.bus.values.base import ShortRepr

from .sql.connection import Row, SqlValue, Statements, in_parts, placeholders

ClientWindow: TypeAlias = Literal["hour", "day", "month"]


class Client(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    name: str
    """The client's name, which is also the value of the tag ``client`` in the trace."""
    budget_nano_usd: int | None = None
    """The most money that the client may spend in a window, in nano-USD; None means no limit."""
    window: ClientWindow | None = None
    """The window of the budget; None means one window without an end."""
    zone: str = "UTC"
    """The time zone of the window, by its IANA name."""
    models: tuple[str, ...] = ()
    """The patterns of the model names that the client may request, such as ``claude-*``. Empty allows all."""
    requests_per_minute: int | None = None
    """The most requests in any minute; None means no limit."""
    tokens_per_minute: int | None = None
    """The most tokens of input and output in any minute; None means no limit."""
    unpriced: Literal["refuse", "allow"] | None = None
    """The action for calls of unknown price. None refuses them if there is a budget."""
    created_us: int = 0
    """The time when the client was added, in microseconds since the epoch."""
    revoked_us: int | None = None
    """The time when the client was revoked; None while its keys are valid."""


class ClientKey(ShortRepr, frozen=True, kw_only=True):
    """A key of a client. Only its hash is stored, never the key itself."""

    hash: bytes
    """The SHA-256 of the key."""
    client: str
    prefix: str
    """The start of the key, by which people recognise the key."""
    created_us: int
    """The time when the key was made, in microseconds since the epoch."""
    expires_us: int | None = None
    """The time from which the key is refused; None means never."""


KeptKind: TypeAlias = Literal["reply", "chain", "response"]
"""``reply``: the blocks of a reply. ``chain``: the session of a history. ``response``: a stored Response."""


class ConversationEntry(ShortRepr, frozen=True, kw_only=True):
    client: str
    """The client's name; empty for a gateway without keys."""
    kind: KeptKind
    key: bytes
    """The hash or the id that identifies the entry."""
    session_id: str
    body: bytes
    """The content, encoded by the gateway."""
    ts_us: int
    """The time when the entry was stored, in microseconds since the epoch."""


class GatewayChanges(msgspec.Struct, frozen=True):
    """Counts of changes. If a count has changed, a process reads the rows again."""

    clients: int = 0
    """The number of changes of clients and keys."""
    forgotten: int = 0
    """The number of deletions of content."""


_T = TypeVar("_T")


class Work(Protocol):
    """Runs a function on the database, either only for reading or in one transaction."""

    def __call__(self, work: Callable[[Statements], _T], /) -> Awaitable[_T]: ...


class GatewayTables:
    """The tables of gateways in one store. Every method raises StoreError if the store can't be used.

    `write` runs work in one transaction, which may overlap with the writers of the trace.
    """

    def __init__(self, look: Work, write: Work) -> None:
        self._look = look
        self._write = write

    async def changes(self) -> GatewayChanges:
        rows = await self._look(lambda statements: statements.run("SELECT what, number FROM gateway_changes"))
        return GatewayChanges(**dict(rows))

    # --- Clients ---

    async def clients(self) -> list[Client]:
        """All clients by name, including revoked clients."""
        rows = await self._look(
            lambda statements: statements.run(
                "SELECT name, settings, created_us, revoked_us FROM gateway_clients ORDER BY name"
            )
        )
        return [_client(*row) for row in rows]

    async def client_keys(self) -> list[ClientKey]:
        """All keys, the oldest first, including expired keys."""
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
        """Add a client with its first key. Returns False if a client of that name exists and is not revoked."""

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
        """Replace the settings of a client. Returns False if the client does not exist or is revoked."""

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
        """Add a key, and let the client's other keys expire at a time. Returns False for an unknown client."""

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
        """Revoke a client and delete its keys. Returns False if there is no such client, or no longer."""

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

    async def entries(self, client: str, kind: KeptKind, keys: Sequence[bytes]) -> list[ConversationEntry]:
        """The entries of a client under some keys, in the order of storing."""

        def work(statements: Statements) -> list[ConversationEntry]:
            rows: list[Row] = []
            for some in in_parts(keys):
                rows += statements.run(
                    f"""
                    SELECT id, key, session_id, body, ts_us FROM gateway_kept
                     WHERE client = ? AND kind = ? AND key IN ({placeholders(len(some))})
                    """,
                    (client, kind, *some),
                )
            return [
                ConversationEntry(
                    client=client, kind=kind, key=bytes(key), session_id=session_id, body=bytes(body), ts_us=ts_us
                )
                for _, key, session_id, body, ts_us in sorted(rows, key=itemgetter(0))
            ]

        return await self._look(work)

    async def drop_kept(self, client: str, kind: KeptKind, key: bytes) -> bool:
        """Delete the entries under a key. Returns whether there were any."""

        def work(statements: Statements) -> bool:
            return bool(_forget(statements, "client = ? AND kind = ? AND key = ?", (client, kind, key)))

        return await self._write(work)

    async def trim_kept(self, max_rows: int, max_bytes: int) -> None:
        """Delete the oldest entries until the remaining entries are within both limits."""

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
    fields: dict[str, Any] = msgspec.json.decode(settings)
    return msgspec.convert({**fields, "name": name, "created_us": created_us, "revoked_us": revoked_us}, Client)


def _settings(client: Client) -> str:
    fields: dict[str, Any] = msgspec.to_builtins(client)
    for column in ("name", "created_us", "revoked_us"):
        fields.pop(column, None)
    return msgspec.json.encode(fields).decode()


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
    return _forget(statements, f"session_id IN ({placeholders(len(sessions))})", sessions)


def forget_kept_before(statements: Statements, before_us: int) -> int:
    """Delete and erase entries from before a given time. The caller holds a transaction."""
    return _forget(statements, "ts_us < ?", (before_us,))


def _forget(statements: Statements, which: str, values: Sequence[SqlValue]) -> int:
    with statements.erasing():
        gone = statements.change(f"DELETE FROM gateway_kept WHERE {which}", values)
    if gone:
        note_forgotten(statements)
    return gone


def note_forgotten(statements: Statements) -> None:
    """Increase the count of content deletions. Gateways then drop the content in their memory."""
    _note(statements, "forgotten")
