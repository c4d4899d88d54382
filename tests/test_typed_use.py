"""What hosts write is understood by type checkers, with the types that they would expect."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.book.snippets import DOCS, codes

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
    check_programs(codes(ROOT / page, "python"), tmp_path)


@pytest.mark.timeout(300)
def test_the_guides_programs_are_typed(tmp_path: Path) -> None:
    """The blocks of each other page, in their order, are one program or several, and pass `mypy --strict`."""
    pages = [page for page in sorted(DOCS.rglob("*.md")) if str(page.relative_to(ROOT)) not in PAGES]
    check_programs([program for page in pages for program in programs(codes(page, "python"))], tmp_path)


def programs(blocks: list[str]) -> list[str]:
    """Blocks joined into programs: a block that has a function or class again begins another one."""
    found: list[str] = []
    names: set[str] = set()
    for block in blocks:
        own = set(re.findall(r"^(?:async def|def|class) (\w+)", block, re.MULTILINE))
        imported = set(re.findall(r"^from \S+ import (\w+)$", block, re.MULTILINE))
        if not found or names & (own | imported):
            found.append("")
            names = set()
        found[-1] += f"{block}\n\n"
        names |= own
    return found


def check_programs(found: list[str], folder: Path) -> None:
    """Have mypy read each in a file of its own. In a checkout it can't follow `callboard.adapters.…`."""
    pytest.importorskip("mypy")
    files = [folder / f"program_{number}.py" for number in range(len(found))]
    for file, code in zip(files, found, strict=True):
        file.write_text(code)
    untyped = ("--disable-error-code=import-untyped", "--allow-subclassing-any")
    only_these = "--follow-imports=silent"  # not what they import of examples/
    check("mypy", "--strict", *untyped, only_these, *map(str, files))


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
