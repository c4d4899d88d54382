"""A few small runs of the simulation; `labs/simulation` does many more steps with many more nodes."""

from __future__ import annotations

import pytest

from labs.simulation.play import play
from labs.simulation.world import Size
from tests.support.depth import first_is_quick

SMALL = Size(nodes=12, sessions=100, steps=8_000)


@pytest.mark.parametrize("seed", first_is_quick(range(1, 7), "more seeds of a lab"))
def test_no_promise_is_broken(seed: int) -> None:
    """Whatever the network, the hosts, the servers and the clocks do."""
    figures = play(seed, SMALL)
    assert figures["messages stored"] > 100
    assert figures["readers that ended with completed"] > 10


def test_a_seed_decides_everything() -> None:
    """So that what a run has found can be looked at."""
    assert play(3, SMALL) == play(3, SMALL)


def test_much_befalls() -> None:
    """Otherwise the promises would be easily kept."""
    seen: dict[str, float] = {}
    for seed in range(1, 7):
        for what, number in play(seed, SMALL).items():
            seen[what] = seen.get(what, 0) + number
    befallen = {what for what, number in seen.items() if number}
    assert befallen >= {"fault: killed", "fault: stopped", "fault: cut off", "fault: clock set"}
    assert befallen >= {
        "sessions moved",
        "events refused by the store",
        "calls refused",
        "events given to readers",
    }
