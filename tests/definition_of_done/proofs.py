"""The tests that prove each row. They are found by collecting the tests.

This command prints the table as Markdown:

python -m tests.definition_of_done.proofs
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from .rows import PROVIDERS, ROWS, SECTIONS

CHECKOUT = Path(__file__).parents[2]
_ANSWER = "CALLBOARD_ROW_PROOFS"
_MARKS = re.compile(r"^from \S+rows import .*\brow$", re.MULTILINE)
_PLUGIN = "tests.definition_of_done.proofs"


class Proof(NamedTuple):
    """A test that proves a row."""

    test: str
    """The test's node id, relative to the checkout."""
    of: tuple[str, ...]
    """The providers for which the test proves the row."""
    anywhere: bool = True
    """Whether the test needs neither recorded traffic nor the local model."""


def marked_files() -> list[Path]:
    """The test files that carry the mark."""
    found = sorted((CHECKOUT / "tests").rglob("test_*.py"))
    return [path for path in found if _MARKS.search(path.read_text(encoding="utf-8"))]


def proofs() -> dict[str, list[Proof]]:
    """The proofs of each row, in the order of the rows."""
    return table_of(collect(marked_files()))


def table_of(found: Iterable[tuple[str, Proof]]) -> dict[str, list[Proof]]:
    """The table of the rows with their proofs."""
    table: dict[str, list[Proof]] = {number: [] for number in ROWS}
    for number, proof in found:
        table[number].append(proof)
    return table


def collect(files: Sequence[Path]) -> list[tuple[str, Proof]]:
    """Collect test files in another process. Returns the proofs with their rows."""
    with tempfile.TemporaryDirectory() as folder:
        answer = Path(folder) / "proofs.json"
        command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", _PLUGIN, *map(str, files)]
        done = subprocess.run(
            command,
            cwd=CHECKOUT,
            env={**os.environ, _ANSWER: str(answer)},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            raise RuntimeError(f"the tests can't be collected:\n{done.stdout}{done.stderr}")
        found = json.loads(answer.read_text())
        return [(number, Proof(test, tuple(of), anywhere)) for number, (test, of, anywhere) in found]


def proofs_in(items: Iterable[pytest.Item]) -> list[tuple[str, Proof]]:
    """The proofs in a list of collected tests, with their rows."""
    found: list[tuple[str, Proof]] = []
    for item in items:
        anywhere = item.get_closest_marker("skipif") is None and item.get_closest_marker("local") is None
        found += [
            (mark.args[0], Proof(item.nodeid, tuple(_providers(item, mark)), anywhere))
            for mark in item.iter_markers("row")
        ]
    return found


def missing(table: Mapping[str, Sequence[Proof]]) -> list[str]:
    """The rows that are not proved on every machine. If a row names providers, the provider is named too."""
    lacking: list[str] = []
    for number, wanted in ROWS.items():
        held = [proof for proof in table[number] if proof.anywhere]
        proved = {provider for proof in held for provider in proof.of}
        if not held:
            lacking.append(number)
        else:
            lacking += [f"{number} of {provider}" for provider in wanted.providers if provider not in proved]
    return lacking


def markdown(table: Mapping[str, Sequence[Proof]]) -> str:
    """A table for each section: the row, how Callboard implements it, and the tests without their parameters."""
    lines: list[str] = []
    for section, title in SECTIONS.items():
        lines += [f"### {section} {title}", "", "| row | | as we have it | proved by |", "|---|---|---|---|"]
        for number, wanted in ROWS.items():
            if number.rpartition(".")[0] == section:
                tests = dict.fromkeys(proof.test.partition("[")[0] for proof in table[number])
                by = "<br>".join(f"`{test.removeprefix('tests/')}`" for test in tests)
                lines.append(f"| {number} | {wanted.text} | {wanted.decided} | {by} |")
        lines.append("")
    return "\n".join(lines)


# -- the plugin of the process that collects the tests


def pytest_collection_finish(session: pytest.Session) -> None:
    """Write the collected proofs to a file."""
    Path(os.environ[_ANSWER]).write_text(json.dumps(proofs_in(session.items)))


def _providers(item: pytest.Item, mark: pytest.Mark) -> list[str]:
    """The providers for which a test proves a row."""
    if mark.kwargs["of"]:
        return list(mark.kwargs["of"])
    given = item.callspec.params.values() if hasattr(item, "callspec") else ()
    named = [getattr(value, "name", value) for value in given]
    return [name for name in named if name in PROVIDERS]


if __name__ == "__main__":
    print(markdown(proofs()))  # noqa: T201
