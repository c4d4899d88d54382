"""The register of calls under way: it keeps none alive, and doesn't grow with those that are gone."""

from __future__ import annotations

import gc

from callboard.adapters.http.client import RunningCalls
from callboard.bus.values.usage import TokenUsage


class Call:
    def __init__(self) -> None:
        self.ended = False

    async def cancel(self, *, at_once: bool = False) -> None:
        self.ended = True

    def usage_so_far(self) -> TokenUsage | None:
        return None


def test_a_call_that_nobody_holds_is_gone() -> None:
    calls, dropped = RunningCalls(), Call()
    calls.add("req_1", dropped)
    assert calls.get("req_1") is dropped
    del dropped
    gc.collect()
    assert calls.get("req_1") is None
    assert [*calls] == []


def test_a_call_that_has_ended_is_found_by_its_id_alone() -> None:
    """Somebody may yet ask what it used."""
    calls, over, other = RunningCalls(), Call(), Call()
    calls.add("req_1", over)
    calls.add("req_2", other)
    over.ended = True
    assert calls.get("req_1") is over
    assert [*calls] == [other]


def test_entries_of_calls_that_are_gone_are_bounded() -> None:
    """All that live stay, however many there are."""
    calls = RunningCalls()
    living = [Call() for _ in range(200)]
    for number, call in enumerate(living):
        calls.add(f"live_{number}", call)
    for number in range(5_000):
        calls.add(f"gone_{number}", Call())
    assert len(calls._calls) <= 2 * len(living) + 64
    assert [*calls] == living
