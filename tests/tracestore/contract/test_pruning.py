"""Retention removes old calls completely, month by month. The sums of other calls do not change."""

from __future__ import annotations

from datetime import UTC, datetime

from callboard.bus import ActorStarted, SessionCreated
from callboard.bus.clock import to_us
from callboard.tracestore import PriceRow, PriceTable, Store

from ..trace_making import T0, Maker, call

SECOND = 1_000_000
PRICES = PriceTable([PriceRow(model="openai:*", input=1_000_000, output=2_000_000)], label="later")
AUGUST, OCTOBER, NOVEMBER = (to_us(datetime(2026, month, 15, tzinfo=UTC)) for month in (8, 10, 11))


def at(ts_us: int) -> int:
    """The seconds from T0 to a time in microseconds."""
    return (ts_us - T0) // SECOND


async def fill(store: Store) -> None:
    """Write an ended run of August, calls of three months, and a session of each month. One call has no end."""
    old, new = Maker("run_old"), Maker("run_new")
    await store.write(
        [
            old(SessionCreated(model="m"), session_id="gone", ts_us=AUGUST),
            *call(old, 1, at(AUGUST), session="gone"),
            old(ActorStarted(actor="x"), ts_us=AUGUST),
        ]
    )
    await store.close_lost_runs()
    still = new.started("req_open", ts_us=AUGUST)
    await store.write([still, *call(new, 2, at(AUGUST)), *call(new, 3, at(OCTOBER)), *call(new, 4, at(NOVEMBER))])
    await store.reprice(PRICES)


async def test_old_calls_are_deleted_with_their_events_and_costs(store: Store) -> None:
    await fill(store)
    before = {row.request_id: row.cost for row in await store.calls()}
    dry = await store.prune(before=OCTOBER + 60 * SECOND, dry_run=True)
    done = await store.prune(before=OCTOBER + 60 * SECOND)
    assert (dry.attempts, dry.events, dry.costs) == (done.attempts, done.events, done.costs) == (3, 8, 3)
    assert (done.sessions, done.runs) == (1, 1)
    left = await store.calls()
    assert {row.request_id: row.cost for row in left} == {name: before[name] for name in ("req_open", "req_4")}
    assert [event.request_id for event in await store.events()] == ["req_open", "req_4", "req_4"]
    (total,) = await store.costs(by=())
    assert (total.calls, total.cost_nano_usd) == (2, left[0].cost and left[0].cost.nano_usd)
    assert {row.session_id for row in await store.sessions()} == {"s"}
    assert (await store.prune(before=OCTOBER + 60 * SECOND)).events == 0


async def test_events_can_be_added_after_pruning(store: Store) -> None:
    await fill(store)
    last = await store.last_event_id()
    await store.prune(before=OCTOBER)
    late = Maker("run_late")
    await store.write([*call(late, 7, at(AUGUST)), *call(late, 8, at(NOVEMBER))])
    assert [event.request_id for _, event in await store.numbered_events(after_id=last)] == [
        *("req_7", "req_7"),
        *("req_8", "req_8"),
    ]
    assert {row.request_id for row in await store.calls()} == {"req_open", *(f"req_{n}" for n in (3, 4, 7, 8))}


async def test_the_last_event_always_stays(store: Store, make: Maker) -> None:
    await store.write([*call(make, 1, 0), *call(make, 2, 5), make(ActorStarted(actor="x"), ts_us=T0)])
    last = await store.last_event_id()
    await store.prune(before=NOVEMBER)
    assert [row.request_id for row in await store.calls()] == ["req_2"]
    assert await store.last_event_id() == last


async def test_the_condition_of_a_store_has_size_and_runs(store: Store) -> None:
    await fill(store)
    condition = await store.condition()
    assert (condition.living, condition.lost, condition.open_calls) == (0, 1, 1)
    assert condition.file_bytes > 0
    assert await store.check() == []
