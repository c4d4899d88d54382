"""A few rounds of the kill loop; `labs/kills` runs hundreds."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from labs.kills import book, round
from labs.kills.round import plans, run_round
from tests.support.reply_server import reply_server


@pytest.mark.deep("a round of a lab")
@pytest.mark.timeout(240)  # it starts whole engines, on a machine that may be busy
@pytest.mark.parametrize("seeds", [(4,), (12,)])
def test_nothing_that_was_flushed_is_lost_to_kill_9(seeds: tuple[int, ...], tmp_path: Path) -> None:
    """Engines under heavy calls, alone or two on one file, some on a full disk: the next one finds all of it."""
    with reply_server(10) as url:
        for seed in seeds:
            report = run_round(seed, url, tmp_path / "trace.db")
            assert not report.failures, f"python -m labs.kills --seed {seed} --rounds 1"
            assert report.counts["killed"] == len(plans(seed))
    assert report.counts["attempts in the file"]  # how many, is a matter of how busy the machine is


@pytest.mark.deep("a round of a lab")
@pytest.mark.timeout(240)
def test_the_providers_book_of_requests_equals_the_rows_after_kills() -> None:
    """Calls of every kind; kills at the provider and between journal and send; a reader, then the next engine."""
    deaths = {plan.death for seed in range(1, 4) for plan in book.plans(seed)}
    assert deaths == {"any", "asked", "journalled"}
    assert book.play(1, 3) == []


@pytest.mark.deep("a round of a lab")
@pytest.mark.timeout(240)
def test_a_victim_hangs_if_one_that_starts_later_is_up_sooner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody's clock decides: on a slow machine, the other one is as slow."""
    monkeypatch.setattr(round, "UP_SECONDS", 0.0)
    with reply_server(10) as url:
        victim = round.Victim(url, tmp_path / "trace.db", "1", round.Plan("calls", True, 0.0))
        victim._heard.process.send_signal(signal.SIGSTOP)
        assert victim._overtaken().startswith("not up within")
        victim._heard.process.send_signal(signal.SIGCONT)
        assert victim.kill() == []


def test_what_a_seed_decides_stays_and_covers_each_kind() -> None:
    """Of few seeds, some have two victims, some a full disk, some are killed while they start."""
    decided = [plans(seed) for seed in range(40)]
    assert decided == [plans(seed) for seed in range(40)]
    assert {len(victims) for victims in decided} == {1, 2}
    victims = [victim for victims in decided for victim in victims]
    assert {victim.kind for victim in victims} == {"calls", "full"}
    assert {victim.once_up for victim in victims} == {True, False}
