"""Repricings that are interrupted, resumed, undone and repeated while the file changes under them.

A run's chunks are taken one at a time: after each the run is interrupted, the file is written to, and the run is
resumed. Beside it the test works out, call by call, what the run should report in the end: the cost before as the
file says, and the cost after as the price table does.
"""

from __future__ import annotations

import pytest
from hypothesis import strategies as st

from bus import Cost, CostSource, Envelope, TokenUsage
from tracestore import PriceRow, PriceTable, Store
from tracestore.sql.repricing import repricing

from ..trace_making import DAY_US, T0, Maker

pytestmark = pytest.mark.anyio

MODELS = ("openai:gpt-5", "openai:gpt-5-mini", "other:thing")
TABLES = [
    PriceTable([PriceRow(model=f"{provider}:*", input=rate * 1_001_500, output=rate * 2_000_000)], f"table {rate}")
    for rate, provider in ((1, "openai"), (2, "openai"), (3, "*"))
]
CHUNK = 3


class Interrupted(Exception):
    """What a progress callback raises after a chunk."""


def stop(_done: int, _last: int) -> None:
    raise Interrupted


async def do(store: Store, make: Maker, change: object) -> None:
    match change:
        case "prune", int(before):
            await store.prune(before=before)
        case list(calls):
            await store.write([envelope for call in calls for envelope in events(make, call)])


def events(make: Maker, call: tuple[int, str, int, TokenUsage, Cost | None]) -> list[Envelope]:
    number, which, moment, usage, cost = call
    request, model = f"req_{number}", MODELS[number % len(MODELS)]
    ids = {"session_id": f"s{number % 2}"}
    start = make.started(request, model, ts_us=moment, **ids)
    end = make.completed(request, model, ts_us=moment, usage=usage, cost=cost, **ids)
    return {"start": [start], "end": [end], "both": [start, end]}[which]


moments = st.integers(0, 8).map(lambda quarter: T0 + quarter * DAY_US // 4)
costs = st.none() | st.integers(0, 10**9).map(lambda nano: Cost(nano, CostSource.COMPUTED, "0123456789ab"))
calls = st.tuples(
    st.integers(0, 25),
    st.sampled_from(["start", "end", "both", "both", "both"]),
    moments,
    st.builds(TokenUsage, st.integers(0, 999), st.integers(0, 99)),
    costs,
)


async def test_a_call_that_goes_before_its_turn_is_in_no_sum(
    store: Store, make: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pruned while a repricing over another was interrupted: what it cost before is not told, nor its model."""
    monkeypatch.setattr(repricing, "CHUNK", CHUNK)
    usage, cost = TokenUsage(100, 10), Cost(77, CostSource.COMPUTED, "0123456789ab")
    await do(store, make, [(number, "both", T0, usage, cost) for number in (0, 3, 6)])
    await do(store, make, [(number, "both", T0 - DAY_US, usage, cost) for number in (12, 15, 1)])
    await do(store, make, [(9, "both", T0, usage, cost)])
    await store.reprice(TABLES[0])
    with pytest.raises(Interrupted):
        await store.reprice(TABLES[1], progress=stop)
    assert (await store.prune(before=T0)).attempts == 3
    report = await store.resume_reprice()
    assert [(of.model, of.calls) for of in report.models] == [(MODELS[0], 4)]
    assert len(report.days) == 1
    assert (report.sum_before_nano_usd, report.unpriced_before) == (4 * 120_150, 0)
