"""What a type checker makes of hosts' code: the files `typed_*.py`, which are read and never run."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FILES = sorted(str(path.relative_to(ROOT)) for path in ROOT.glob("tests/**/typed_*.py"))

CHECKERS = {
    "mypy": ["--strict"],
    "pyright": ["--pythonpath", sys.executable],
}


@pytest.mark.timeout(300)
@pytest.mark.parametrize("checker", CHECKERS)
def test_typical_code_has_precise_types(checker: str) -> None:
    """Each checker accepts the files, with every `assert_type` in them."""
    if importlib.util.find_spec(checker) is None:
        pytest.skip(f"{checker} is not installed")
    command = [sys.executable, "-m", checker, *CHECKERS[checker], *FILES]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280, check=False)
    assert found.returncode == 0, found.stdout + found.stderr
