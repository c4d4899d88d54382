"""Run the tests on a built wheel, where no room can be imported by its own name.

    python scripts/suite_from_wheel.py [what pytest takes]

The wheel is built and installed into a fresh environment below `build/from-wheel`. That environment has what the
calling one has installed, and nothing of the checkout. The tests, and what they read, are copied beside it; their
imports are rewritten as the wheel's are. Any import of `bus`, `adapters`, `tracestore` or `engine` fails there, in
the processes that tests start as well.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from scripts.one_package import rewritten

ROOT = Path(__file__).parents[1]
PLACE = ROOT / "build" / "from-wheel"

COPIED = (
    "tests", "benchmarks", "labs", "docs", "examples", "cassettes", "scripts",
    "README.md", "CHANGELOG.md", "LICENSE", "Makefile", "pyproject.toml",
)  # fmt: skip
"""What tests import or read, as far as it is there."""

OF_A_CHECKOUT = ("tests/architecture", "tests/book", "tests/package")
"""Tests about the tree of files itself."""

GUARD = '''\
"""Refuses the rooms' own names: what is installed is `callboard` alone."""

import sys


class NoRooms:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {rooms!r}:
            raise ImportError(f"{{name}} is imported by the name that it has in a checkout", name=name)


sys.meta_path.insert(0, NoRooms())
'''


def main(arguments: list[str]) -> int:
    """Gives pytest's exit code."""
    shutil.rmtree(PLACE, ignore_errors=True)
    python = installed(PLACE)
    suite = copied(PLACE / "suite")
    ignored = [f"--ignore={folder}" for folder in OF_A_CHECKOUT]
    print(f"the suite of {suite}, on the wheel", flush=True)
    return subprocess.run([python, "-m", "pytest", *ignored, *arguments], cwd=suite, check=False).returncode


def installed(place: Path) -> Path:
    """An environment with the wheel and the guard. Gives its interpreter."""
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    subprocess.run(
        [*pip, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", place / "wheel", ROOT], check=True
    )
    environment = venv.EnvBuilder(symlinks=True)
    environment.create(place / "venv")
    python = Path(environment.ensure_directories(place / "venv").env_exe)
    (wheel,) = (place / "wheel").glob("*.whl")
    subprocess.run([*pip, "--python", python, "install", "--no-deps", wheel], check=True)
    libraries = Path(sysconfig.get_path("purelib", vars={"base": str(place / "venv")}))
    ours = sysconfig.get_path("purelib")
    # A line with a path adds the folder, but not what its own .pth files add: the checkout.
    (libraries / "calling_environment.pth").write_text(f"{ours}\nimport no_rooms\n")
    (libraries / "no_rooms.py").write_text(GUARD.format(rooms={"bus", "adapters", "tracestore", "engine"}))
    return python


def copied(suite: Path) -> Path:
    """The tests and what they read, with imports from `callboard`."""
    suite.mkdir()
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, suite / name, ignore=shutil.ignore_patterns("__pycache__"))
        elif source.exists():
            shutil.copy(source, suite)
    for path in suite.rglob("*.py"):
        path.write_text(rewritten(path.read_text("utf-8"), str(path.relative_to(suite))), "utf-8")
    return suite


if __name__ == "__main__":
    os.environ.pop("PYTHONPATH", None)
    sys.exit(main(sys.argv[1:]))
