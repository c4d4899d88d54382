"""Events go in once, in order, and whatever they say about calls with them."""

from __future__ import annotations

import pytest

from tests.tracestore.trace_making import Maker
from callboard.tracestore import CallFilter, Store

pytestmark = pytest.mark.anyio


async def test_a_batch_that_is_written_twice_is_there_once(store: Store, make: Maker) -> None:
    batch = [make.started(tags={"team": "a"}, session_id="ses_1"), make.completed(session_id="ses_1")]
    store.hold_run(make.run_id)
    for _ in range(2):
        await store.write(batch)
    assert await store.events() == batch
    (call,) = await store.calls()
    assert (call.status, call.run_id, call.tags, call.attempt) == ("completed", make.run_id, {"team": "a"}, 1)
    (cost,) = await store.costs()
    assert (cost.key, cost.calls, cost.cost_nano_usd) == (("openai:gpt-5",), 1, 1234)
    assert await store.committed_seq(make.run_id) == 2


async def test_one_batch_says_of_a_call_that_it_began_twice(store: Store, make: Maker) -> None:
    await store.write([make.started(), make.started(), make.failed(), make.failed()])
    (call,) = await store.calls()
    assert (call.status, call.error_class) == ("failed", "server_error")


async def test_text_that_a_database_does_not_take_stops_no_batch(store: Store, make: Maker) -> None:
    awkward = [
        make.started("req_\ud800", session_id="ses_\0", tags={"a\0": "b\ud800\0"}),
        make.completed("req_\ud800", session_id="ses_\0"),
        make.started("req_2"),
    ]
    await store.write(awkward)
    assert [call.status for call in await store.calls()] == ["started", "completed"]
    assert sum(row.calls for row in await store.costs(by=("tag:a",))) == 2


async def test_what_was_stored_is_found_by_the_text_that_it_had(store: Store, make: Maker) -> None:
    """Also where the database keeps it as another text."""
    await store.write([make.started("req_\0", session_id="ses_\0", tags={"a\0": "b\0"})])
    for where in (
        CallFilter(session_id="ses_\0"),
        CallFilter(request_id="req_\0"),
        CallFilter(tags={"a\0": "b\0"}),
    ):
        assert len(await store.calls(where)) == 1
    assert len(await store.events(session_id="ses_\0")) == 1


async def test_groups_of_the_same_cost_come_in_the_order_of_their_names(store: Store, make: Maker) -> None:
    """By their bytes; the group without a name is the first."""
    names = ["b", "a", "B", "é", "Z", "a b", "_", ""]
    await store.write([make.started(f"r{name}", tags={"team": name}) for name in names])
    await store.write([make.started("none")])
    rows = await store.costs(by=("tag:team", "model"))
    assert [row.key[0] for row in rows] == ["", *sorted(names)]
