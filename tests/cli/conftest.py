from __future__ import annotations

from pathlib import Path

import pytest

from .running import MODELS, make_trace


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A folder for CALLBOARD_HOME."""
    folder = tmp_path / "home"
    folder.mkdir()
    return folder


@pytest.fixture
def traced(home: Path) -> Path:
    """The home folder, with a trace file of three calls in it."""
    make_trace(home / "trace.db")
    return home


@pytest.fixture
def talkative(home: Path) -> Path:
    """The home folder, with a models.yaml of scripted models in it."""
    (home / "models.yaml").write_text(MODELS)
    return home
