"""The adapters agree with recorded traffic of real providers, however it arrives."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

FOLDER = Path(os.environ.get("CALLBOARD_RECORDED") or Path(__file__).parent.parent / "../shared/recorded")


recorded = pytest.mark.skipif(
    not FOLDER.is_dir(),
    reason="no recorded traffic: set CALLBOARD_RECORDED to its folder, or put it at ../shared/recorded",
)


@recorded
@pytest.mark.timeout(300)
def test_recorded_traffic_is_understood() -> None:
    """At least 98 % of the exchanges in every field, no exception but AdapterError, no broken invariant."""
    from benchmarks.recorded_agreement import run

    text, good = run(FOLDER)
    assert good, text


@recorded
def test_recorded_embeddings_are_understood() -> None:
    """All of them: count, dimensions, values, served model, tokens and errors."""
    from benchmarks.recorded_embeddings import run

    text, good = run(FOLDER)
    assert good, text
