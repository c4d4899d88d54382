"""The CPU time of a delta in bursts: the server sends complete replies of 500 deltas each, in four concurrent
streams.

Each way of `ways.py`, over each of the four streaming protocols, in CPU time of all threads: the minimum of
alternating repetitions. The subject `paced` measures deltas that arrive one at a time.
"""

from __future__ import annotations

from contextlib import AsyncExitStack
from functools import partial

from tests.support.reply_models import PROTOCOLS
from tests.support.reply_server import reply_server

from .table import Row, against, in_turns, run
from .ways import streams, way

DELTAS = 500
AT_ONCE = 4
WAYS = ("hand", "raw", "adapter", "engine, no store", "engine", "engine, 5 readers")
RAW_GATE, HAND_GATE = 1.2, 4.0
"""The maximum CPU time of a delta through the whole engine with its store, relative to raw httpx and to the
hand-written client.
"""


async def of_protocol(protocol: str, quick: bool) -> list[Row]:
    count, repetitions = (4, 1) if quick else (40, 9)
    async with AsyncExitStack() as stack:
        url = stack.enter_context(reply_server(DELTAS))
        contestants = {
            name: partial(streams, await stack.enter_async_context(way(name, url, protocol)), count, AT_ONCE)
            for name in WAYS
        }
        spent = await in_turns(contestants, repetitions=repetitions)
    each = {name: seconds / count / DELTAS for name, seconds in spent.items()}
    hand, raw = each["hand"], each["raw"]
    return [
        against(f"{protocol}: raw httpx, against by hand", raw, hand),
        against(f"{protocol}: adapter alone", each["adapter"], raw),
        against(f"{protocol}: engine, no store", each["engine, no store"], raw),
        against(f"{protocol}: whole engine", each["engine"], raw, gate=RAW_GATE),
        against(f"{protocol}: whole engine, against by hand", each["engine"], hand, gate=HAND_GATE),
        against(f"{protocol}: whole engine, 5 readers", each["engine, 5 readers"], raw),
    ]


async def _rows(quick: bool) -> list[Row]:
    return [row for protocol in PROTOCOLS for row in await of_protocol(protocol, quick)]


def rows(quick: bool) -> list[Row]:
    return run(_rows(quick))
