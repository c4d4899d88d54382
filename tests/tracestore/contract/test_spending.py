"""The sums that budgets count."""

from __future__ import annotations

import msgspec
import pytest

from callboard.bus import Cost, CostSource, Envelope, LlmCallStarted, TokenUsage, UsageSource
from callboard.tracestore import PriceRow, PriceTable, Store
from callboard.tracestore.rows import SpendingQuery, SpendingRow

from ..trace_making import T0, Maker

pytestmark = pytest.mark.anyio

OTHER_RUN = "run_other"
HOUR_US = 3_600_000_000


def reserved(envelope: Envelope, nano_usd: int | None, tokens: int) -> Envelope:
    """The start of an attempt for which budgets have reserved something."""
    event = envelope.data
    assert isinstance(event, LlmCallStarted)
    event = msgspec.structs.replace(event, reserved_nano_usd=nano_usd, reserved_tokens=tokens)
    return msgspec.structs.replace(envelope, data=event)


def row(nano_usd: int, tokens: int, calls: int = 1, **more: object) -> SpendingRow:
    facts = {"value": "", "slot": 0, "unknown": False, **more}
    return SpendingRow(nano_usd=nano_usd, tokens=tokens, calls=calls, **facts)  # type: ignore[arg-type]


async def rows(store: Store, **asked: object) -> list[SpendingRow]:
    query = SpendingQuery(**asked)  # type: ignore[arg-type]
    return (await store.spending([query], OTHER_RUN)).rows[0]


@pytest.mark.parametrize(
    ("end", "counts"),
    [
        pytest.param({}, row(1234, 110), id="completed: its cost"),
        pytest.param({"error_class": "server_error", "provider_status": 503}, row(0, 0), id="refused: nothing"),
        pytest.param(
            {"error_class": "network", "provider_status": None}, row(900, 70, unknown=True), id="no answer"
        ),
        pytest.param(
            {"error_class": "process_lost", "provider_status": None}, row(900, 70, unknown=True), id="lost"
        ),
        pytest.param(
            {
                "error_class": "cancelled",
                "usage": TokenUsage(7, 0, source=UsageSource.ESTIMATED),
                "cost": Cost(7, CostSource.COMPUTED),
            },
            row(900, 70, unknown=True),
            id="cancelled before anything was heard: at its most",
        ),
        pytest.param(
            {
                "error_class": "cancelled",
                "usage": TokenUsage(7, 3, source=UsageSource.ESTIMATED),
                "cost": Cost(10, CostSource.COMPUTED),
            },
            row(10, 10),
            id="cancelled in the middle: what was delivered",
        ),
        pytest.param(None, row(900, 70, unknown=True), id="under way elsewhere: at its most"),
    ],
)
async def test_an_attempt_counts_at_its_cost_or_at_what_was_reserved(
    store: Store, make: Maker, end: dict[str, object] | None, counts: SpendingRow
) -> None:
    """What nobody knows counts at its worst."""
    batch = [reserved(make.started(), 900, 70)]
    if end is not None:
        batch.append(make.failed(**end) if end else make.completed())  # type: ignore[arg-type]
    await store.write(batch)
    assert await rows(store) == [counts]


async def test_calls_under_way_are_left_out_for_the_run_that_makes_them(store: Store, make: Maker) -> None:
    """It holds their reservations itself, and is told how far the sums go."""
    await store.write([make.started("one"), make.completed("one"), reserved(make.started("two"), 900, 70)])
    found = await store.spending([SpendingQuery()], make.run_id)
    assert (found.rows, found.committed_seq) == ([[row(1234, 110)]], 3)


@pytest.mark.parametrize(
    ("by", "values"),
    [
        (None, {""}),
        ("session_id", {"", "s"}),
        ("provider", {"openai", "other"}),
        ("model", {"openai:gpt-5", "other:thing"}),
        ("tag:tenant", {"", "acme"}),
    ],
)
async def test_sums_are_by_account(store: Store, make: Maker, by: str | None, values: set[str]) -> None:
    """What has no session or no tag shares one account; one account can be asked for alone."""
    of = {"session_id": "s", "tags": {"tenant": "acme"}}
    await store.write(
        [make.started("a", **of), make.completed("a", **of), make.completed("b", "other:thing")]  # type: ignore[arg-type]
    )
    found = await rows(store, by=by)
    assert {each.value for each in found} == values
    assert sum(each.nano_usd for each in found) == 2 * 1234
    for value in values:
        assert await rows(store, by=by, value=value) == [each for each in found if each.value == value]


async def test_sums_are_by_slot(store: Store, make: Maker) -> None:
    """A call counts in the slot of its start; what began before the window does not count."""
    for number, hours in enumerate((-1, 0, 0, 2)):
        start = make.started(f"req_{number}")
        await store.write(
            [msgspec.structs.replace(start, ts_us=T0 + hours * HOUR_US + 5), make.completed(f"req_{number}")]
        )
    found = await rows(store, since_us=T0, slot_us=HOUR_US)
    assert found == [row(2 * 1234, 220, 2), row(1234, 110, slot=2)]


async def test_repriced_calls_count_at_the_cost_that_is_asked_for(store: Store, make: Maker) -> None:
    """At the price of their time, or at the current one."""
    await store.write([make.started(), make.completed()])
    await store.reprice(PriceTable([PriceRow(model="openai:*", input=3_000_000, output=1_000_000)], "second"))
    assert (await rows(store))[0].nano_usd == 1234
    (now,) = await store.calls()
    assert (await rows(store, current=True))[0].nano_usd == now.cost.nano_usd != 1234
