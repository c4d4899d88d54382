"""The wheel in an environment of its own, as a host installs it."""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
PIP = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check")


class WheelEnvironment(NamedTuple):
    """A virtual environment with the wheel."""

    wheel: Path
    """The wheel that was built and installed."""

    python: Path
    """The environment's interpreter."""

    libraries: Path
    """The folder that packages are installed into."""


def build_wheel(place: Path) -> Path:
    """Build the wheel into a folder, without an environment.

    Raises:
        subprocess.CalledProcessError: The wheel can't be built.
    """
    command = [sys.executable, "-m", "hatchling", "build", "-d", place, "-t", "wheel"]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = place.glob("*.whl")
    return wheel


def make_environment(place: Path) -> WheelEnvironment:
    """Build the wheel and install it into a new virtual environment, without a download.

    The environment also finds the packages of the calling environment, but not the checkout itself.

    Args:
        place: An empty folder, for the wheel and the environment.

    Raises:
        subprocess.CalledProcessError: The wheel can't be built or installed.
    """
    made = _empty_environment(place)
    subprocess.run([*PIP, "--python", made.python, "install", "--no-deps", made.wheel], check=True)
    # A path in a .pth file adds only that folder. A .pth file there names the checkout, but is not read.
    (made.libraries / "calling_environment.pth").write_text(sysconfig.get_path("purelib"))
    return made


def make_plain_environment(place: Path, packages: Sequence[str] = ()) -> WheelEnvironment:
    """Build the wheel and install it, with its requirements only, into a virtual environment.

    An existing environment is kept and gets the new wheel. pip downloads missing packages.

    Args:
        place: A folder for the wheel and the environment.
        packages: Further packages to install.

    Raises:
        subprocess.CalledProcessError: The wheel can't be built, or a package can't be installed.
    """
    made = _empty_environment(place)
    install = [*PIP, "--python", made.python, "install"]
    subprocess.run([*install, made.wheel, *packages], check=True)
    subprocess.run([*install, "--force-reinstall", "--no-deps", made.wheel], check=True)
    return made


def _empty_environment(place: Path) -> WheelEnvironment:
    """Build the wheel, and make an environment if there is none."""
    shutil.rmtree(place / "wheel", ignore_errors=True)
    build = ("wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", place / "wheel", ROOT)
    subprocess.run([*PIP, *build], check=True)
    (wheel,) = (place / "wheel").glob("*.whl")
    folder = place / "environment"
    if not folder.exists():
        venv.create(folder, symlinks=True)
    paths = sysconfig.get_paths("venv", {"base": str(folder), "platbase": str(folder)})
    return WheelEnvironment(wheel, Path(paths["scripts"], "python"), Path(paths["purelib"]))
