"""A batch made of many envelopes, a part at a time, while others on the event loop have their turn."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import anyio.lowlevel

from bus.events.envelope import Envelope

from .projection import Batch

_MADE_AT_ONCE = 32
"""Events that are made into rows before others on the event loop have their turn: some 0.2 ms of CPU."""

_MOST_MADE_AT_ONCE = 256
_MADE_PER_SECOND = 40_000
"""How many more are made for each second that the others have taken: that is about a quarter of their time."""


async def batch_of(envelopes: Sequence[Envelope], clean: Callable[[str], str] | None = None) -> Batch:
    """Whoever else is on the loop waits for a part of the batch, never for all of it. `clean` as in `Batch`."""
    batch = Batch()
    begin, count = 0, _MADE_AT_ONCE
    while begin < len(envelopes):
        batch.add(envelopes[begin : begin + count])
        begin += count
        paused = time.perf_counter()
        await anyio.lowlevel.checkpoint()
        count = made_at_once(time.perf_counter() - paused)
    batch.complete(clean)
    return batch


def made_at_once(others_seconds: float) -> int:
    """How many events to make into rows next, after the others on the loop have taken so long.

    Where thousands of tasks want their turn, a small part for each of theirs would let the writer fall behind.
    """
    return max(_MADE_AT_ONCE, min(_MOST_MADE_AT_ONCE, int(others_seconds * _MADE_PER_SECOND)))
