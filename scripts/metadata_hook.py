"""Hatchling's hook for the metadata on PyPI: README with absolute links, and the project's URLs.

Both need the repository's address. It comes from $CALLBOARD_REPOSITORY, else from git's `origin` if that is on the
web, else, in an unpacked sdist, from its PKG-INFO. Without an address, as in a clone of a folder, README's links
stay relative, and the package has no URLs.
"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

_LINK = re.compile(r"(!?)\[([^\]]*)\]\((?!https?://|#)([^)\s]+)\)")
_NAMED = re.compile(r"^Project-URL: Repository, (\S+)$", re.MULTILINE)


class Shown(MetadataHookInterface):
    """Sets `readme` and `urls`."""

    PLUGIN_NAME = "custom"

    def update(self, metadata: dict[str, Any]) -> None:
        root = Path(self.root)
        address = repository(root)
        text = (root / "README.md").read_text(encoding="utf-8")
        if address is not None:
            metadata["urls"] = urls(address)
            text = with_absolute_links(text, address, metadata["version"])
        metadata["readme"] = {"content-type": "text/markdown", "text": text}


def repository(root: Path) -> str | None:
    """The repository's address on the web, without a slash at its end; None if it is unknown."""
    if address := os.environ.get("CALLBOARD_REPOSITORY"):
        return on_the_web(address)
    if (packed := root / "PKG-INFO").exists():
        found = _NAMED.search(packed.read_text(encoding="utf-8"))
        return None if found is None else found[1]
    if not (root / ".git").exists():
        return None
    command = subprocess.run(
        ["git", "config", "--get", "remote.origin.url"], cwd=root, capture_output=True, text=True, check=False
    )
    return on_the_web(command.stdout.strip())


def on_the_web(remote: str) -> str | None:
    """The web address of a git remote; None for a folder."""
    found = re.fullmatch(r"(?:https?://(?:[^@/]*@)?|ssh://git@|git@)([\w.-]+)[:/](.+?)(?:\.git)?/?", remote)
    return None if found is None else f"https://{found[1]}/{found[2]}"


def urls(address: str) -> dict[str, str]:
    return {
        "Repository": address,
        "Documentation": f"{address}/blob/main/docs/index.md",
        "Changelog": f"{address}/blob/main/CHANGELOG.md",
        "Issues": f"{address}/issues",
    }


def with_absolute_links(text: str, address: str, version: str) -> str:
    """README with absolute links: to the pages of that version, and to the raw files of pictures."""

    def absolute(found: re.Match[str]) -> str:
        mark, shown, path = found.groups()
        return f"{mark}[{shown}]({address}/{'raw' if mark else 'blob'}/v{version}/{path})"

    return _LINK.sub(absolute, text)
