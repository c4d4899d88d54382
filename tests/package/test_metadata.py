"""The metadata on PyPI: README's links, and the project's addresses."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from scripts.metadata_hook import on_the_web, repository, urls, with_absolute_links

ROOT = Path(__file__).parents[2]
ADDRESS = "https://git.example.org/us/callboard"


def test_a_remote_has_an_address_on_the_web_and_a_folder_has_none() -> None:
    """A password in the remote is removed. A package must not contain a path of a machine."""
    secret = "https://somebody:secret@git.example.org/us/callboard.git"
    on_ssh = ("git@git.example.org:us/callboard.git", "ssh://git@git.example.org/us/callboard")
    for remote in (ADDRESS, f"{ADDRESS}.git", f"{ADDRESS}/", secret, *on_ssh):
        assert on_the_web(remote) == ADDRESS, remote
    for folder in ("", "../callboard", "/home/somebody/callboard", "file:///home/callboard.git"):
        assert on_the_web(folder) is None, folder


def test_the_repository_comes_from_a_variable_the_sdist_or_git(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sources are tried in this order. The repository can be unknown."""
    monkeypatch.delenv("CALLBOARD_REPOSITORY", raising=False)
    assert repository(tmp_path) is None
    subprocess.run(["git", "init", "--quiet"], cwd=tmp_path, check=True)
    assert repository(tmp_path) is None
    subprocess.run(["git", "remote", "add", "origin", f"{ADDRESS}.git"], cwd=tmp_path, check=True)
    assert repository(tmp_path) == ADDRESS
    (tmp_path / "PKG-INFO").write_text(f"Name: callboard\nProject-URL: Repository, {ADDRESS}-packed\n")
    assert repository(tmp_path) == f"{ADDRESS}-packed"
    monkeypatch.setenv("CALLBOARD_REPOSITORY", "https://git.example.org/them/fork")
    assert repository(tmp_path) == "https://git.example.org/them/fork"


def test_the_links_of_readme_work_on_pypi() -> None:
    """Links lead to pages and pictures of the same version. Each of them is a file of the checkout."""
    readme = (ROOT / "README.md").read_text()
    shown = with_absolute_links(readme, ADDRESS, "1.2.3")
    links = re.findall(r"\]\(([^)]+)\)", shown)
    assert all(link.startswith(("https://", "#")) for link in links)
    own = [link.partition("/v1.2.3/")[2].partition("#")[0] for link in links if link.startswith(ADDRESS)]
    assert [path for path in own if not (ROOT / path).exists()] == []
    assert f"]({ADDRESS}/raw/v1.2.3/docs/live-view/now.png)" in shown
    assert set(urls(ADDRESS)) == {"Repository", "Documentation", "Changelog", "Issues"}
