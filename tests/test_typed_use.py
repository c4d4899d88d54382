"""What hosts write is understood by type checkers, with the types that they would expect."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
USES = ROOT / "tests" / "typed_use"
"""Typical code, with `assert_type`; it is read by the checkers and never run."""

CHECKERS = {
    "mypy": ["-p", "tests.typed_use"],  # with our own settings, so that it finds the cache of `make test`
    "pyright": ["--pythonpath", sys.executable, "-p", "{config}"],
}


@pytest.mark.timeout(300)
@pytest.mark.parametrize("checker", CHECKERS)
def test_typical_code_has_precise_types(checker: str, tmp_path: Path) -> None:
    """Each checker accepts the files, and refuses what is marked as wrong in them."""
    if importlib.util.find_spec(checker) is None:
        pytest.skip(f"{checker} is not installed")
    config = tmp_path / "pyrightconfig.json"
    settings = {"include": [str(USES)], "extraPaths": [str(ROOT)], "pythonVersion": "3.11"}
    config.write_text(json.dumps({**settings, "typeCheckingMode": "basic"}))
    arguments = [word.format(config=config) for word in CHECKERS[checker]]
    found = subprocess.run(
        [sys.executable, "-m", checker, *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert found.returncode == 0, found.stdout + found.stderr
