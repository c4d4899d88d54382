"""A few rounds of the fault lab; `benchmarks/fault_lab.py` runs as many as one likes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from benchmarks import fault_lab


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Thousands of lines about what goes wrong on purpose say nothing."""
    before = structlog.get_config()
    fault_lab.quiet()
    yield
    structlog.configure(**before)


@pytest.mark.parametrize("seed", [1, 8, 21, 27])
def test_the_engine_keeps_its_promises_under_fire(seed: int, tmp_path: Path) -> None:
    """Whatever server and chaos do: no hang, one end per attempt, equal readers, valid histories, nothing left."""
    report = fault_lab.run_round(seed, tmp_path, sessions=5, turns=6)
    assert not report.failures, f"python benchmarks/fault_lab.py --seed {seed}\n" + "\n".join(report.failures)
    assert report.counts["attempts"] >= 10
