from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from .running import MODELS, make_trace


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A new folder for CALLBOARD_HOME."""
    folder = tmp_path / "home"
    folder.mkdir()
    return folder


@pytest.fixture(scope="session")
def trace_of_three(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a trace file of three calls. Tests use copies of it."""
    folder = tmp_path_factory.mktemp("traced")
    make_trace(folder / "trace.db")
    return folder


@pytest.fixture
def traced(home: Path, trace_of_three: Path) -> Path:
    """The home folder, with a trace file of three calls."""
    return shutil.copytree(trace_of_three, home, dirs_exist_ok=True)


@pytest.fixture
def talkative(home: Path) -> Path:
    """The home folder, with a models.yaml of scripted models."""
    (home / "models.yaml").write_text(MODELS)
    return home
