"""What hosts write is understood by type checkers, with the types that they would expect."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
USES = ROOT / "tests" / "typed_use"


@pytest.mark.timeout(300)
def test_mypy_in_strict_mode_infers_the_types() -> None:
    pytest.importorskip("mypy")
    run = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent", "--config-file=", str(USES)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr


@pytest.mark.timeout(300)
def test_pyright_infers_the_types(tmp_path: Path) -> None:
    """Where it is installed."""
    pytest.importorskip("pyright")
    config = tmp_path / "pyrightconfig.json"
    found = {
        "include": [os.path.relpath(USES, tmp_path)],
        "extraPaths": [str(ROOT)],
        "typeCheckingMode": "basic",
        "pythonVersion": "3.11",
    }
    config.write_text(json.dumps(found))
    run = subprocess.run(
        [sys.executable, "-m", "pyright", "--pythonpath", sys.executable, "-p", str(config)],
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert run.returncode == 0, run.stdout + run.stderr
