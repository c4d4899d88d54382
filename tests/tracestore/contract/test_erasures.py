"""The record of what was deleted on purpose: written with the deletion, it says what others have to delete."""

from __future__ import annotations

import pytest

from callboard.bus.values.messages import Message
from callboard.tracestore import Store

from ..content_making import appended, captured, configured
from ..trace_making import T0, Maker

pytestmark = pytest.mark.anyio


async def record(store: Store) -> list[tuple[object, ...]]:
    """What is recorded, without times and keys, in the order of the deletions."""
    found = await store.sql("SELECT session_id, before_us, event, runs FROM erasures ORDER BY event, at_us, key")
    return [tuple(row) for row in found.rows]


async def test_a_deletion_is_recorded_once_and_only_if_there_was_something(store: Store, make: Maker) -> None:
    await store.write(captured(configured(make), *appended(make, [Message.user("Hi")])))
    last = await store.last_event_id()
    assert await store.delete_session("s")
    assert not await store.delete_session("s")
    assert not await store.delete_session("unheard of")
    assert await record(store) == [("s", None, last, f'["{make.run_id}"]')]


async def test_forgetting_is_recorded_whether_anything_was_there_or_not(store: Store) -> None:
    """A shared store may have what is gone here."""
    await store.forget_content(T0)
    assert await record(store) == [(None, T0, 0, "[]")]


async def test_retention_is_not_recorded(store: Store, make: Maker) -> None:
    await store.write(captured(configured(make), *appended(make, [Message.user("Hi")])))
    await store.prune(before=T0 + 10**15)
    assert await record(store) == []
