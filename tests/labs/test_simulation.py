"""A few small runs of the simulation. `labs/simulation` runs many more steps with many more nodes."""

from __future__ import annotations

import pytest

from labs.simulation.play import play
from labs.simulation.world import Size
from tests.support.depth import first_is_quick

SMALL = Size(nodes=12, sessions=100, steps=8_000)


@pytest.mark.parametrize("seed", first_is_quick(range(1, 7), "more seeds of a lab"))
def test_no_guarantee_is_broken(seed: int) -> None:
    """Faults of the network, the hosts, the servers and the clocks break no guarantee."""
    figures = play(seed, SMALL)
    assert figures["messages stored"] > 100
    assert figures["readers that ended with completed"] > 10


def test_a_seed_decides_everything() -> None:
    """A failure can then be repeated."""
    assert play(3, SMALL) == play(3, SMALL)


def test_many_faults_happen() -> None:
    """Without many faults, the other test would prove little."""
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
