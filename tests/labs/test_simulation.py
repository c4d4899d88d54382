"""A few small runs of the simulation. `labs/simulation` runs many more steps with many more nodes."""

from __future__ import annotations

import pytest

from labs.simulation.play import play
from labs.simulation.world import Size

SMALL = Size(nodes=12, sessions=100, steps=8_000)


@pytest.mark.deep("more seeds of a lab")
@pytest.mark.parametrize("seed", range(4, 7))
def test_no_guarantee_is_broken(seed: int) -> None:
    check(play(seed, SMALL))


def test_no_guarantee_is_broken_by_many_faults() -> None:
    """A seed decides everything. Without many faults, the test would prove little."""
    figures = play(3, SMALL)
    assert figures == play(3, SMALL)
    other = play(1, SMALL)
    for each in (figures, other):
        check(each)
    befallen = {what for each in (figures, other) for what, number in each.items() if number}
    assert befallen >= {"fault: killed", "fault: stopped", "fault: cut off", "fault: clock set"}
    assert befallen >= {
        "sessions moved",
        "events refused by the store",
        "calls refused",
        "events given to readers",
    }


def check(figures: dict[str, float]) -> None:
    assert figures["messages stored"] > 100
    assert figures["readers that ended with completed"] > 10
