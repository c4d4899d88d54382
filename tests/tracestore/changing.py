"""A store that is written and pruned while its repricing is interrupted.

A repricing runs one chunk at a time. After each chunk the run is interrupted, the store is changed, and the run is
resumed.
"""

from __future__ import annotations

from hypothesis import strategies as st

from callboard.bus import Cost, CostSource, Envelope, TokenUsage
from callboard.tracestore import PriceRow, PriceTable, Store

from .trace_making import DAY_US, T0, Maker

MODELS = ("openai:gpt-5", "openai:gpt-5-mini", "other:thing")
TABLES = [
    PriceTable([PriceRow(model=f"{provider}:*", input=rate * 1_001_500, output=rate * 2_000_000)], f"table {rate}")
    for rate, provider in ((1, "openai"), (2, "openai"), (3, "*"))
]
CHUNK = 3


class Interrupted(Exception):
    """The exception of a progress callback after a chunk."""


def stop(_done: int, _last: int) -> None:
    raise Interrupted


async def do(store: Store, make: Maker, change: object) -> None:
    """Write calls, or prune calls that are older than a moment."""
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
