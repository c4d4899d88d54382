"""The figures of README.md, measured anew: each subject in its own environment, which is made of the built wheel.

The environments are kept in `build/benchmarks`. *plain* has the wheel and what it requires, and httpx for the
floor: another package in the environment can cost or save a part of each call, as a search for a module that is
missing does. *peers* also has the clients that Callboard is compared with. The benchmarks are copied
beside.
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
"""What an environment has besides the wheel."""


def command(where: Where, arguments: Sequence[str]) -> tuple[list[str], Path]:
    """The command that measures in that environment, and the folder it runs in."""
    if where == "here":
        return [sys.executable, "-m", "benchmarks", *arguments], ROOT
    environment = _environment(where)
    suite = PLACE / where / "suite"
    shutil.rmtree(suite, ignore_errors=True)
    for name in ("benchmarks", "tests", "scripts"):
        shutil.copytree(ROOT / name, suite / name, ignore=shutil.ignore_patterns("__pycache__"))
    return [str(environment.python), "-m", "benchmarks", *arguments], suite


def _environment(where: Where) -> WheelEnvironment:
    """That environment. What can't be installed of the peers is left out."""
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
    """Run the benchmarks with these arguments as a plain install has them; its exit code."""
    words, folder = command("plain", arguments)
    return subprocess.run(words, cwd=folder, check=False).returncode


def renew(names: Sequence[str], *, quick: bool) -> None:
    """Measure these subjects and write their tables into README.md, one after the other."""
    for where in ("plain", "peers", "here"):
        if chosen := [name for name in SUBJECTS if name in names and SUBJECTS[name].where == where]:
            for found in measured(where, [*chosen, *(["--quick"] if quick else [])]):
                write(found["name"], section(where, found))


def measured(where: Where, arguments: Sequence[str]) -> Iterator[dict[str, Any]]:
    """What each subject found, as it comes."""
    words, folder = command(where, [*arguments, "--json"])
    with subprocess.Popen(words, cwd=folder, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            yield json.loads(line)


def section(where: Where, found: dict[str, Any]) -> str:
    """A subject's part of the page."""
    environment = {"plain": "the plain install", "peers": "the plain install and the peers"}.get(
        where, "a checkout"
    )
    table = in_markdown([Row(*row) for row in found["rows"]])
    about = f"`{found['name']}`, {found['machine']}; {environment}."
    return f"### {SUBJECTS[found['name']].title}\n\n{about}\n\n{table}\n"


def write(name: str, text: str) -> None:
    """Put a subject's part in the place of what is there, or at the end of the figures."""
    page = README.read_text("utf-8")
    begin, end = f"<!-- {name}: begin -->\n", f"<!-- {name}: end -->\n"
    part = re.compile(re.escape(begin) + ".*?" + re.escape(end), re.DOTALL)
    if part.search(page):
        page = part.sub(lambda _: begin + text + end, page)
    else:
        last = "<!-- figures: end -->\n"
        page = page.replace(last, f"{begin}{text}{end}\n{last}")
    README.write_text(page, "utf-8")
