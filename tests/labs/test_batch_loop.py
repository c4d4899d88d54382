"""A round of the batch loop; `labs/batches` runs hundreds."""

from __future__ import annotations

from pathlib import Path

import pytest

from labs.batches.round import run_round


@pytest.mark.timeout(240)  # it starts whole engines, on a machine that may be busy
def test_a_batch_whose_programs_are_killed_is_paid_once_and_whole(tmp_path: Path) -> None:
    counts, failures = run_round(4, tmp_path)
    assert failures == [], "python -m labs.batches --seed 4 --seconds 0"
    assert counts["programs, one that creates"] > 1
