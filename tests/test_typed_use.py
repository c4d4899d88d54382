"""Type checkers accept typical code of hosts and infer the expected types."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.book.snippets import DOCS, blocks

ROOT = Path(__file__).parents[1]
USES = ROOT / "tests" / "typed_use"
"""Typical code with `assert_type`. Only type checkers read it."""

EXCERPTS = DOCS / "how-to" / "agent-host.md"
"""The only page with excerpts of files. The files, from examples/agent_host, are checked as a whole."""

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.deep("`make types` reads typical code"),
]

IN_A_CHECKOUT = (ROOT / "bus").is_dir()
"""Whether this is a checkout. Type checkers then don't find `callboard.adapters.…`, because the rooms get these
names at run time.
"""

ROOMS_UNTYPED_FOR_MYPY = ("--disable-error-code=import-untyped", "--allow-subclassing-any")
ROOMS_UNKNOWN_TO_MYPY = (
    *ROOMS_UNTYPED_FOR_MYPY,
    *(
        ["--disable-error-code=import-not-found", "--disable-error-code=untyped-decorator"]
        if IN_A_CHECKOUT
        else []
    ),
)
ROOMS_UNKNOWN_TO_PYRIGHT = {
    "reportMissingImports": not IN_A_CHECKOUT,
    "reportAttributeAccessIssue": not IN_A_CHECKOUT,
}

ALONE = ("--strict", "--follow-imports=silent", "--cache-dir=.mypy_cache/alone")
"""Without the imported modules, and with a separate cache, because other settings would replace the cache."""


def test_typical_code_has_precise_types(tmp_path: Path) -> None:
    """Pyright accepts the files and reports the lines that are marked as wrong."""
    pytest.importorskip("basedpyright", reason="basedpyright is not installed")
    config = tmp_path / "pyrightconfig.json"
    settings = {"include": [str(USES)], "extraPaths": [str(ROOT)], "pythonVersion": "3.11"}
    config.write_text(json.dumps({**settings, "typeCheckingMode": "basic"}))
    check("basedpyright", "--pythonpath", sys.executable, "-p", str(config))


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with every program of README and book in a separate file, unchanged."""
    folder = tmp_path_factory.mktemp("programs")
    pages = {ROOT / "README.md", *DOCS.rglob("*.md")} - {EXCERPTS}
    for page in sorted(pages):
        for block in blocks(page):
            if block.language == "python":
                name = re.sub(r"\W", "_", f"{page.stem}_{block.line}")
                file = folder / (block.title or f"{name}.py")
                file.parent.mkdir(parents=True, exist_ok=True)
                assert not file.exists() or file.read_text() == block.code, f"{page}: another {file.name}"
                file.write_text(block.code)
    return folder


def test_each_program_of_the_book_passes_mypy(programs: Path) -> None:
    """`mypy --strict` checks each program separately, so it must import or define each name that it uses."""
    pytest.importorskip("mypy")
    files = map(str, sorted(programs.rglob("*.py")))
    check("mypy", *ALONE, *ROOMS_UNKNOWN_TO_MYPY, "--explicit-package-bases", *files, MYPYPATH=str(programs))


def test_the_example_of_an_agent_host_passes_mypy() -> None:
    pytest.importorskip("mypy")
    check("mypy", *ALONE, *ROOMS_UNTYPED_FOR_MYPY, "-p", "examples.agent_host")


def test_each_program_of_the_book_passes_pyright(programs: Path) -> None:
    pytest.importorskip("basedpyright", reason="basedpyright is not installed")
    config = programs / "pyrightconfig.json"
    settings = {
        "include": ["."],
        "extraPaths": [str(ROOT)],
        "pythonVersion": "3.11",
        "typeCheckingMode": "standard",
    }
    config.write_text(json.dumps({**settings, **ROOMS_UNKNOWN_TO_PYRIGHT}))
    check("basedpyright", "--pythonpath", sys.executable, "-p", str(config))


def check(checker: str, *arguments: str, **variables: str) -> None:
    """Run a type checker in the checkout. It must report nothing."""
    found = subprocess.run(
        [sys.executable, "-m", checker, *arguments],
        cwd=ROOT,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert found.returncode == 0, found.stdout + found.stderr
