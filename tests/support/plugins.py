"""The package of `plugin_package`, in the form that pip installs: its modules, and a dist-info with its entry
points.
"""

from __future__ import annotations

import shutil
import tomllib
from pathlib import Path

SOURCE = Path(__file__).parent / "plugin_package"


def install_plugins(folder: Path) -> Path:
    """Write the package into a folder, which the test adds to the path."""
    project = tomllib.loads((SOURCE / "pyproject.toml").read_text())["project"]
    name, version = project["name"], project["version"]
    shutil.copytree(SOURCE / "lighthouse", folder / "lighthouse", ignore=shutil.ignore_patterns("__pycache__"))
    info = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    lines: list[str] = []
    for group, entries in project["entry-points"].items():
        lines += [f"[{group}]", *(f"{word} = {place}" for word, place in entries.items()), ""]
    (info / "entry_points.txt").write_text("\n".join(lines))
    return folder
