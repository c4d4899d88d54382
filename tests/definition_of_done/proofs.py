"""Which tests prove which row, found by collecting them. Prints the table as Markdown:

python -m tests.definition_of_done.proofs
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from .rows import PROVIDERS, ROWS, SECTIONS

CHECKOUT = Path(__file__).parents[2]
_ANSWER = "CALLBOARD_ROW_PROOFS"


class Proof(NamedTuple):
    """test: its node id, from the checkout. of: the providers for which it proves the row."""

    test: str
    of: tuple[str, ...]


def proofs(files: Sequence[Path] = ()) -> dict[str, list[Proof]]:
    """Each row's proofs, in the order of the rows. files: where to look; none is all that carry the mark."""
    files = files or [
        path for path in sorted((CHECKOUT / "tests").rglob("test_*.py")) if "row(" in path.read_text()
    ]
    with tempfile.TemporaryDirectory() as folder:
        answer = Path(folder) / "proofs.json"
        command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", __name__, *map(str, files)]
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
        found: list[tuple[str, str, list[str]]] = json.loads(answer.read_text())
    table: dict[str, list[Proof]] = {number: [] for number in ROWS}
    for number, test, of in found:
        table[number].append(Proof(test, tuple(of)))
    return table


def missing(table: Mapping[str, Sequence[Proof]]) -> list[str]:
    """What is not proved: rows, with the provider where they name any."""
    lacking: list[str] = []
    for number, wanted in ROWS.items():
        proved = {provider for proof in table[number] for provider in proof.of}
        if not table[number]:
            lacking.append(number)
        else:
            lacking += [f"{number} of {provider}" for provider in wanted.providers if provider not in proved]
    return lacking


def markdown(table: Mapping[str, Sequence[Proof]]) -> str:
    """A table for each section: the row, how we have it, and the tests without their parameters."""
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


# -- the plugin of the collecting process


def pytest_collection_finish(session: pytest.Session) -> None:
    """Write down what was collected."""
    found = [
        (mark.args[0], item.nodeid, _providers(item, mark))
        for item in session.items
        for mark in item.iter_markers("row")
    ]
    Path(os.environ[_ANSWER]).write_text(json.dumps(found))


def _providers(item: pytest.Item, mark: pytest.Mark) -> list[str]:
    """For which providers a test proves a row."""
    if mark.kwargs["of"]:
        return list(mark.kwargs["of"])
    given = item.callspec.params.values() if hasattr(item, "callspec") else ()
    named = [getattr(value, "name", value) for value in given]
    return [name for name in named if name in PROVIDERS]


if __name__ == "__main__":
    print(markdown(proofs()))  # noqa: T201
