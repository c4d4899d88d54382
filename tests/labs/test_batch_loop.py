"""A little of `labs.batches`."""

from __future__ import annotations

from pathlib import Path

from labs.batches.round import run_round


def test_a_batch_whose_programs_are_killed_is_paid_once_and_whole(tmp_path: Path) -> None:
    counts, failures = run_round(3, tmp_path)
    assert failures == []
    assert counts["killed"] > 0
