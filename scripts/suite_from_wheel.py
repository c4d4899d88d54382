"""Run the tests on a built wheel, where no room can be imported by its own name.

    python scripts/suite_from_wheel.py [what pytest takes]

The tests, and the files that they read, are copied to `build/from-wheel`, and their imports are rewritten as the
wheel's are. They run in an environment of their own, in which the wheel is installed. An import of a room by its
own name fails there, in the processes that tests start as well. A test has the same path and the same lines as in
the checkout.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from scripts.one_package import ROOMS, rewritten
from scripts.wheel_environment import ROOT, WheelEnvironment, make_environment

PLACE = ROOT / "build" / "from-wheel"

COPIED = (
    *("tests", "benchmarks", "labs", "docs", "examples", "cassettes", "scripts"),
    *("README.md", "CHANGELOG.md", "LICENSE", "Makefile", "pyproject.toml"),
)
"""What tests import or read."""

OF_A_CHECKOUT = ("tests/architecture", "tests/book", "tests/package")
"""Tests of the checkout itself: its files, its pages, and what a wheel is made of."""

GUARD = f'''\
"""Refuses the rooms' own names."""

import sys


class NoRooms:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {ROOMS!r}:
            raise ImportError(f"{{name}} is the name of a room in a checkout", name=name)


sys.meta_path.insert(0, NoRooms())
'''


def main(arguments: list[str]) -> int:
    """Run pytest on the copied tests, and give its exit code."""
    shutil.rmtree(PLACE, ignore_errors=True)
    environment = make_environment(PLACE)
    forbid_rooms(environment)
    suite = PLACE / "suite"
    copy_suite(suite)
    ignored = [f"--ignore={folder}" for folder in OF_A_CHECKOUT]
    command = [environment.python, "-m", "pytest", *ignored, *arguments]
    return subprocess.run(command, cwd=suite, env=variables(), check=False).returncode


def variables() -> dict[str, str]:
    """The environment variables of the tests, which find the recorded traffic beside the checkout."""
    recorded = {"CALLBOARD_RECORDED": str(ROOT.parent / "shared" / "recorded")}
    return {name: value for name, value in {**recorded, **os.environ}.items() if name != "PYTHONPATH"}


def forbid_rooms(environment: WheelEnvironment) -> None:
    """Make an import of a room by its own name fail in every process of the environment."""
    (environment.libraries / "no_rooms.py").write_text(GUARD)
    (environment.libraries / "no_rooms.pth").write_text("import no_rooms\n")


def copy_suite(suite: Path, names: Sequence[str] = COPIED) -> None:
    """Copy the tests and the files that they read, with imports from `callboard`."""
    suite.mkdir()
    for name in names:
        if (source := ROOT / name).is_dir():
            shutil.copytree(source, suite / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, suite)
    for path in suite.rglob("*.py"):
        path.write_text(rewritten(path.read_text("utf-8"), str(path.relative_to(suite))), "utf-8")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
