"""What hosts write is understood by type checkers, with the types that they would expect."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.book.snippets import codes

ROOT = Path(__file__).parents[1]
USES = ROOT / "tests" / "typed_use"
"""Typical code, with `assert_type`; it is read by the checkers and never run."""

PAGES = ("README.md", "docs/index.md")
"""Pages whose every program is typed."""

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
    check(checker, *arguments)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("page", PAGES)
def test_a_pages_programs_are_typed(page: str, tmp_path: Path) -> None:
    """Each of them, alone, passes `mypy --strict` as it is printed."""
    pytest.importorskip("mypy")
    files = [tmp_path / f"program_{number}.py" for number in range(len(codes(ROOT / page, "python")))]
    for file, code in zip(files, codes(ROOT / page, "python"), strict=True):
        file.write_text(code)
    check("mypy", "--strict", *map(str, files))


def check(checker: str, *arguments: str) -> None:
    """Run it in the checkout; it must have nothing to say."""
    found = subprocess.run(
        [sys.executable, "-m", checker, *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert found.returncode == 0, found.stdout + found.stderr
