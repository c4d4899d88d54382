"""Measures the figures of README.md again, each subject in its own environment with the built wheel.

The environments are kept in `build/benchmarks`. *plain* has the wheel with its requirements, and httpx for the
floor. Any other package in the environment could change the time of a call, for example because of a search for a
missing module. *peers* also has the clients that Callboard is compared with. The benchmarks are copied next to the
environments.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tests.support.wheel import PIP, ROOT, WheelEnvironment, make_plain_environment

from .subjects import SUBJECTS, Where
from .table import Row, in_markdown

README = Path(__file__).parent / "README.md"
PLACE = ROOT / "build" / "benchmarks"
PACKAGES = {
    "plain": ["httpx"],
    "peers": [
        "httpx",
        "tensorzero",
        "openai",
        "anthropic",
        "pydantic-ai-slim[openai]",
        "litellm",
        "langchain-openai",
    ],
}
"""The packages of an environment in addition to the wheel."""


def command(where: Where, arguments: Sequence[str]) -> tuple[list[str], Path]:
    """The command that measures in that environment, and its working folder."""
    if where == "here":
        return [sys.executable, "-m", "benchmarks", *arguments], ROOT
    environment = _environment(where)
    suite = PLACE / where / "suite"
    shutil.rmtree(suite, ignore_errors=True)
    for name in ("benchmarks", "tests", "scripts"):
        shutil.copytree(ROOT / name, suite / name, ignore=shutil.ignore_patterns("__pycache__"))
    return [str(environment.python), "-m", "benchmarks", *arguments], suite


def _environment(where: Where) -> WheelEnvironment:
    """Create the environment. Packages of the peers that can't be installed are left out."""
    try:
        return make_plain_environment(PLACE / where, PACKAGES[where])
    except subprocess.CalledProcessError:
        if where == "plain":
            raise
        made = make_plain_environment(PLACE / where, PACKAGES["plain"])
        for package in PACKAGES[where]:
            subprocess.run([*PIP, "--python", made.python, "install", package], check=False)
        return made


def in_plain_environment(arguments: Sequence[str]) -> int:
    """Run the benchmarks with these arguments in the plain environment. Returns the exit code."""
    words, folder = command("plain", arguments)
    return subprocess.run(words, cwd=folder, check=False).returncode


def renew(names: Sequence[str], *, quick: bool) -> None:
    """Measure these subjects one after the other, and write their tables into README.md."""
    for where in ("plain", "peers", "here"):
        if chosen := [name for name in SUBJECTS if name in names and SUBJECTS[name].where == where]:
            for found in measured(where, [*chosen, *(["--quick"] if quick else [])]):
                write(found["name"], section(where, found))


def measured(where: Where, arguments: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yield the result of each subject as soon as it is measured."""
    words, folder = command(where, [*arguments, "--json"])
    with subprocess.Popen(words, cwd=folder, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            yield json.loads(line)


def section(where: Where, found: dict[str, Any]) -> str:
    """The section of a subject on the page."""
    environment = {"plain": "the plain install", "peers": "the plain install and the peers"}.get(
        where, "a checkout"
    )
    table = in_markdown([Row(*row) for row in found["rows"]])
    about = f"`{found['name']}`, {found['machine']}; {environment}."
    return f"### {SUBJECTS[found['name']].title}\n\n{about}\n\n{table}\n"


def write(name: str, text: str) -> None:
    """Replace a subject's section, or add it after the figures."""
    page = README.read_text("utf-8")
    begin, end = f"<!-- {name}: begin -->\n", f"<!-- {name}: end -->\n"
    part = re.compile(re.escape(begin) + ".*?" + re.escape(end), re.DOTALL)
    if part.search(page):
        page = part.sub(lambda _: begin + text + end, page)
    else:
        last = "<!-- figures: end -->\n"
        page = page.replace(last, f"{begin}{text}{end}\n{last}")
    README.write_text(page, "utf-8")
