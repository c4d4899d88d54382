"""The rows of gateways: clients, keys, and stored conversations."""

from __future__ import annotations

import pytest

from callboard.tracestore import Store
from callboard.tracestore.gateway import Client, ClientKey, ConversationEntry, GatewayTables

from ..trace_making import T0, Maker, call
from .conftest import Place

ACME = Client(name="acme", budget_nano_usd=5_000_000_000, window="day", models=("claude-*",), created_us=T0)


def key(name: str, client: str = "acme", created_us: int = T0, expires_us: int | None = None) -> ClientKey:
    return ClientKey(
        hash=name.encode(), client=client, prefix=name[:3], created_us=created_us, expires_us=expires_us
    )


def kept(
    name: str, session_id: str = "s", ts_us: int = T0, body: bytes = b"{}", client: str = "acme"
) -> ConversationEntry:
    return ConversationEntry(
        client=client, kind="reply", key=name.encode(), session_id=session_id, body=body, ts_us=ts_us
    )


@pytest.fixture
def tables(store: Store) -> GatewayTables:
    return store.gateway  # type: ignore[attr-defined, no-any-return]


async def test_a_client_is_added_once_and_changed_as_a_whole(tables: GatewayTables) -> None:
    """A change replaces all fields of a client. A name can be added again only after it was revoked."""
    assert await tables.add_client(ACME, key("one"))
    assert not await tables.add_client(ACME, key("two"))
    changed = Client(name="acme", requests_per_minute=3, created_us=T0)
    assert await tables.change_client(changed)
    assert not await tables.change_client(Client(name="other"))
    assert await tables.clients() == [changed]
    assert await tables.revoke_client("acme", T0 + 1)
    assert not await tables.revoke_client("acme", T0 + 2)
    assert not await tables.change_client(changed)
    assert [(each.revoked_us, await tables.client_keys()) for each in await tables.clients()] == [(T0 + 1, [])]
    assert await tables.add_client(ACME, key("three"))
    assert await tables.clients() == [ACME]


async def test_a_rotated_key_expires_at_the_given_time(tables: GatewayTables) -> None:
    """A key that expires earlier keeps its time. An expired key is deleted."""
    await tables.add_client(ACME, key("one"))
    assert await tables.rotate_key(key("two", created_us=T0 + 1), T0 + 100)
    assert await tables.rotate_key(key("three", created_us=T0 + 2), T0 + 200)
    assert [(each.hash, each.expires_us) for each in await tables.client_keys()] == [
        (b"one", T0 + 100),
        (b"two", T0 + 200),
        (b"three", None),
    ]
    assert await tables.rotate_key(key("four", created_us=T0 + 150), T0 + 150)
    assert [(each.hash, each.expires_us) for each in await tables.client_keys()] == [
        (b"two", T0 + 150),
        (b"three", T0 + 150),
        (b"four", None),
    ]
    assert not await tables.rotate_key(key("five", client="nobody"), T0)


async def test_each_change_of_clients_and_each_deletion_is_counted(store: Store, tables: GatewayTables) -> None:
    """With one small query, other processes detect that they must read the rows again."""
    before = await tables.changes()
    await tables.add_client(ACME, key("one"))
    await tables.rotate_key(key("two", created_us=T0 + 1), T0 + 100)
    await tables.revoke_client("acme", T0)
    await tables.keep([kept("a")])
    assert (await tables.changes()).clients == before.clients + 3
    assert (await tables.changes()).forgotten == before.forgotten
    await store.forget_content(T0)
    assert (await tables.changes()).forgotten == before.forgotten + 1


async def test_entries_are_found_by_client_and_key_in_their_order(tables: GatewayTables) -> None:
    """Entries of another client are never returned. Several entries can have the same key."""
    await tables.keep([kept("a", body=b"1"), kept("b"), kept("a", body=b"2"), kept("a", client="other")])
    many = [b"a", *(str(number).encode() for number in range(1200))]
    assert [each.body for each in await tables.entries("acme", "reply", many)] == [b"1", b"2"]
    assert await tables.entries("acme", "response", [b"a"]) == []
    assert await tables.drop_kept("acme", "reply", b"a")
    assert not await tables.drop_kept("acme", "reply", b"a")
    assert await tables.entries("acme", "reply", [b"a", b"b"]) == [kept("b")]
    assert len(await tables.entries("other", "reply", [b"a"])) == 1


@pytest.mark.parametrize(("rows", "size", "left"), [(3, 10_000, 3), (100, 250, 2), (100, 10_000, 6)])
async def test_the_oldest_entries_are_removed(tables: GatewayTables, rows: int, size: int, left: int) -> None:
    names = [f"key {number}" for number in range(6)]
    await tables.keep([kept(name, body=b"x" * 100) for name in names])
    await tables.trim_kept(rows, size)
    found = await tables.entries("acme", "reply", [name.encode() for name in names])
    assert [each.key.decode() for each in found] == names[6 - left :]


async def test_entries_are_deleted_with_their_content(store: Store, tables: GatewayTables, make: Maker) -> None:
    """Entries are deleted with their session, by age, and with pruned calls."""
    await store.write([*call(make, 1, 1), *call(make, 2, 3, session="t")])
    await tables.keep([kept("a", "s"), kept("b", "t", T0 + 10), kept("c", "t", T0 + 20), kept("d", "t", T0 + 30)])

    async def left() -> list[bytes]:
        return [each.key for each in await tables.entries("acme", "reply", [b"a", b"b", b"c", b"d"])]

    assert await store.delete_session("s")
    assert await left() == [b"b", b"c", b"d"]
    await store.forget_content(T0 + 11)
    assert await left() == [b"c", b"d"]
    await store.prune(before=T0 + 21)
    assert await left() == [b"d"]


async def test_another_process_reads_the_written_rows(place: Place) -> None:
    async with place.store() as one, place.store() as other:
        await one.gateway.add_client(ACME, key("one"))  # type: ignore[attr-defined]
        assert await other.gateway.clients() == [ACME]  # type: ignore[attr-defined]
