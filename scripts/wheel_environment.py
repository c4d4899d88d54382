"""An environment in which the wheel is installed, as a host has it."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import venv
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
PIP = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check")


class WheelEnvironment(NamedTuple):
    """A virtual environment with the wheel."""

    wheel: Path
    """The file that was built and installed."""

    python: Path
    """The environment's interpreter."""

    libraries: Path
    """The folder that packages are installed into."""


def make_environment(place: Path) -> WheelEnvironment:
    """Build the wheel and install it into a new virtual environment.

    The environment also finds what the calling environment has installed, without the checkout itself. Nothing is
    downloaded.

    Args:
        place: An empty folder, for the wheel and the environment.

    Raises:
        subprocess.CalledProcessError: The wheel can't be built or installed.
    """
    build = ("wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", place / "wheel", ROOT)
    subprocess.run([*PIP, *build], check=True)
    (wheel,) = (place / "wheel").glob("*.whl")
    folder = place / "environment"
    venv.create(folder, symlinks=True)
    paths = sysconfig.get_paths("venv", {"base": str(folder), "platbase": str(folder)})
    made = WheelEnvironment(wheel, Path(paths["scripts"], "python"), Path(paths["purelib"]))
    subprocess.run([*PIP, "--python", made.python, "install", "--no-deps", wheel], check=True)
    # A path in a .pth file adds that folder alone. The checkout, which is named by a .pth file there, stays out.
    (made.libraries / "calling_environment.pth").write_text(sysconfig.get_path("purelib"))
    return made
