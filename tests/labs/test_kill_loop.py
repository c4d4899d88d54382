"""A few rounds of the kill loop. `labs/kills` plays hundreds of rounds."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from labs.kills import book, round
from labs.kills.round import plans, run_round
from tests.support.reply_server import reply_server


@pytest.mark.deep("a round of a lab")
@pytest.mark.timeout(240)  # the test starts whole engines, and the machine may be busy
@pytest.mark.parametrize("seeds", [(4,), (12,)])
def test_no_flushed_event_is_lost_after_kill_9(seeds: tuple[int, ...], tmp_path: Path) -> None:
    """Engines under load run alone or in pairs on one file, some on a full disk."""
    with reply_server(10) as url:
        for seed in seeds:
            report = run_round(seed, url, tmp_path / "trace.db")
            assert not report.failures, f"python -m labs.kills --seed {seed} --rounds 1"
            assert report.counts["killed"] == len(plans(seed))
    assert report.counts["attempts in the file"]  # the number depends on the load of the machine


@pytest.mark.deep("a round of a lab")
@pytest.mark.timeout(240)
def test_the_received_requests_equal_the_rows_after_kills() -> None:
    """Kills happen at the provider and between journal and request. A reader and the next engine see every row."""
    deaths = {plan.death for seed in range(1, 4) for plan in book.plans(seed)}
    assert deaths == {"any", "asked", "journalled"}
    assert book.play(1, 3) == []


@pytest.mark.deep("a round of a lab")
@pytest.mark.timeout(240)
def test_a_victim_hangs_if_a_later_one_is_ready_sooner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A victim is compared with a second one that starts later, so a slow machine causes no false alarm."""
    monkeypatch.setattr(round, "UP_SECONDS", 0.0)
    with reply_server(10) as url:
        victim = round.Victim(url, tmp_path / "trace.db", "1", round.Plan("calls", True, 0.0))
        victim._heard.process.send_signal(signal.SIGSTOP)
        assert victim._overtaken().startswith("not up within")
        victim._heard.process.send_signal(signal.SIGCONT)
        assert victim.kill() == []


def test_a_seed_always_gives_the_same_plan() -> None:
    """In a few seeds, some rounds have two victims, some a full disk, and some victims are killed during their
    start.
    """
    decided = [plans(seed) for seed in range(40)]
    assert decided == [plans(seed) for seed in range(40)]
    assert {len(victims) for victims in decided} == {1, 2}
    victims = [victim for victims in decided for victim in victims]
    assert {victim.kind for victim in victims} == {"calls", "full"}
    assert {victim.once_up for victim in victims} == {True, False}
