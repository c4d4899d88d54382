"""What follows from a failure of the store, and what waits in memory meanwhile, as plain values."""

from __future__ import annotations

import pytest

from callboard import ActorStarted, Envelope, StoreState, WriterOptions
from callboard.tracestore.writing.state import after_failure, retry_delay
from callboard.tracestore.writing.waiting import Waiting


def envelopes(count: int) -> list[Envelope]:
    return [Envelope(seq, "run", 0, 0, ActorStarted(actor="a")) for seq in range(1, count + 1)]


@pytest.mark.parametrize(
    ("state", "failures", "may_spill", "then"),
    [
        ("ok", 1, True, "retrying"),
        ("ok", 9, True, "retrying"),
        ("retrying", 2, True, "retrying"),
        ("retrying", 3, True, "spilling"),
        ("retrying", 3, False, "spilling"),
        ("spilling", 9, True, "spilling"),
        ("dropping", 9, True, "spilling"),
        ("dropping", 9, False, "dropping"),
    ],
)
def test_a_failure_leads_to_one_state(state: StoreState, failures: int, may_spill: bool, then: StoreState) -> None:
    """After three in a row events are spilled; a file that was full may have room again, if there is one."""
    assert after_failure(state, failures, WriterOptions(spill_after=3), may_spill=may_spill) == then


def test_the_wait_doubles_up_to_the_longest() -> None:
    """However long it goes on."""
    options = WriterOptions(first_retry=1.0, longest_retry=30.0)
    delays = [retry_delay(failures, options) for failures in (1, 2, 3, 4, 5, 6, 7, 10_000)]
    assert delays == [1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0, 30.0]


def test_what_waits_is_taken_from_either_end() -> None:
    """The oldest are stored, the newest dropped; an empty queue is never too much, and weighs nothing."""
    waiting = Waiting()
    assert not waiting.exceeds(0, 0)
    waiting.add(envelopes(5))
    assert waiting.exceeds(4, 10**6)
    assert waiting.exceeds(5, 1)
    assert not waiting.exceeds(5, 10**6)
    assert [waiting.drop_newest().seq, waiting.drop_newest().seq] == [5, 4]
    assert [envelope.seq for envelope in waiting.first(2)] == [1, 2]
    waiting.remove(waiting.first(2))
    assert (len(waiting), waiting.size > 0) == (1, True)
    waiting.remove(waiting.first())
    assert (len(waiting), waiting.size) == (0, 0)
