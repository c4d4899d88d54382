"""The rows of a gateway: its clients with their keys, and entries of conversations.

Clients are configuration. Entries of conversations are content: they are deleted with their session, by age, and
with pruned calls.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol, TypeAlias

import msgspec

from callboard.bus.values.base import ShortRepr

ClientWindow: TypeAlias = Literal["hour", "day", "month"]


class Client(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A client of the gateway."""

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
    """The client's name."""
    prefix: str
    """The start of the key, so that people can recognise it."""
    created_us: int
    """The time when the key was made, in microseconds since the epoch."""
    expires_us: int | None = None
    """The time from which the key is refused; None means never."""


KeptKind: TypeAlias = Literal["reply", "chain", "response"]
"""``reply``: the blocks of a reply. ``chain``: the session of a history. ``response``: a stored Response."""


class ConversationEntry(ShortRepr, frozen=True, kw_only=True):
    """One entry of a conversation."""

    client: str
    """The client's name; empty for a gateway without keys."""
    kind: KeptKind
    key: bytes
    """The hash or the id that identifies the entry."""
    session_id: str
    """The session of the conversation."""
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


class GatewayTables(Protocol):
    """The tables of gateways in one store. Every method raises StoreError if the store can't be used."""

    async def changes(self) -> GatewayChanges:
        """The counts of changes by any process."""
        ...

    async def clients(self) -> list[Client]:
        """All clients by name, including revoked clients."""
        ...

    async def client_keys(self) -> list[ClientKey]:
        """All keys, the oldest first, including expired keys."""
        ...

    async def add_client(self, client: Client, key: ClientKey) -> bool:
        """Add a client with its first key. Returns False if a client of that name exists and is not revoked."""
        ...

    async def change_client(self, client: Client) -> bool:
        """Replace the settings of a client. Returns False if the client does not exist or is revoked."""
        ...

    async def rotate_key(self, key: ClientKey, expires_us: int) -> bool:
        """Add a key, and set the time at which the client's other keys expire. Returns False for an unknown
        client.
        """
        ...

    async def revoke_client(self, name: str, at_us: int) -> bool:
        """Revoke a client and delete its keys. Returns False if the client does not exist or is already
        revoked.
        """
        ...

    async def keep(self, some: Sequence[ConversationEntry]) -> None:
        """Store entries of conversations."""
        ...

    async def kept(self, client: str, kind: KeptKind, keys: Sequence[bytes]) -> list[ConversationEntry]:
        """The entries of a client under some keys, in the order of storing."""
        ...

    async def drop_kept(self, client: str, kind: KeptKind, key: bytes) -> bool:
        """Delete the entries under a key. Returns whether there were any."""
        ...

    async def trim_kept(self, max_rows: int, max_bytes: int) -> None:
        """Delete the oldest entries until the remaining entries are within both limits."""
        ...
