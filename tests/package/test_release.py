"""`scripts/release.py`, run on a small project with its own repository."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from scripts.release import main

PROJECT = """
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "callboard"
version = "0.1.0"
requires-python = ">=3.11"
urls = {Repository = "https://git.example.org/us/callboard"}
"""
CHANGELOG = """# Changelog

## [Unreleased]

### Added

- A thing.

## [0.1.0] - 2026-01-01

- The first.
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "callboard").mkdir()
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    files = {
        "pyproject.toml": PROJECT,
        "CHANGELOG.md": CHANGELOG,
        "callboard/__init__.py": "",
        "Makefile": "test test-all:\n\tgrep -q 0.2.0 pyproject.toml\n",
        ".gitignore": ".venv/\ndist/\n",
        ".venv/bin/python": f'#!/bin/sh\nexec "{sys.executable}" "$@"\n',
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    (tmp_path / ".venv" / "bin" / "python").chmod(0o755)
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "config", "user.email", "somebody@example.org")
    git(tmp_path, "config", "user.name", "Somebody")
    commit(tmp_path)
    return tmp_path


def git(folder: Path, *words: str) -> str:
    return subprocess.run(["git", *words], cwd=folder, check=True, capture_output=True, text=True).stdout


def commit(folder: Path) -> None:
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message", "a change")


def test_a_dry_run_prints_the_planned_steps(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["0.2.0"], root=project) == 0
    said = capsys.readouterr().out
    assert "0.1.0 becomes 0.2.0" in said
    assert "- A thing." in said
    assert "The first" not in said
    assert git(project, "status", "--porcelain") == git(project, "tag") == ""


def test_a_release_is_tested_built_committed_and_tagged(project: Path) -> None:
    """The changelog gets a heading for the release, and a new empty heading for later changes."""
    assert main(["0.2.0", "--do"], root=project) == 0
    assert sorted(each.name for each in (project / "dist").iterdir()) == [
        "callboard-0.2.0-py3-none-any.whl",
        "callboard-0.2.0.tar.gz",
    ]
    assert git(project, "describe").strip() == "v0.2.0"
    assert git(project, "status", "--porcelain") == ""
    head = (project / "CHANGELOG.md").read_text().partition("### Added")[0].split("\n")
    assert head[2] == "## [Unreleased]"
    assert head[4].startswith("## [0.2.0] - 20")
    assert main(["0.3.0"], root=project) == 1, "the changelog has no unreleased change"


def leave_a_change(project: Path) -> None:
    (project / "callboard" / "more.py").write_text("")


def tag(project: Path) -> None:
    git(project, "tag", "v0.2.0")


def fail_the_tests(project: Path) -> None:
    (project / "Makefile").write_text("test:\n\tfalse\n")
    commit(project)


def name_no_repository(project: Path) -> None:
    (project / "pyproject.toml").write_text(PROJECT.replace("urls =", "# urls ="))
    commit(project)


def add_a_folder(project: Path) -> None:
    (project / "pyproject.toml").write_text(
        f'{PROJECT}\n[tool.hatch.build.targets.wheel]\ninclude = ["callboard", "tests"]\n'
    )
    (project / "tests").mkdir()
    (project / "tests" / "__init__.py").write_text("")
    commit(project)


@pytest.mark.parametrize(
    ("version", "befalls", "said"),
    [
        ("0.1.0", None, "isn't newer"),
        ("0.2", None, "is no version"),
        ("0.2.0", leave_a_change, "has changes"),
        ("0.2.0", tag, "is a tag already"),
        ("0.2.0", fail_the_tests, "make"),
        ("0.2.0", name_no_repository, "set CALLBOARD_REPOSITORY"),
        ("0.2.0", add_a_folder, "the wheel has callboard, callboard-0.2.0.dist-info, tests"),
    ],
)
def test_an_obstacle_is_reported(
    project: Path,
    version: str,
    befalls: Callable[[Path], None] | None,
    said: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if befalls is not None:
        befalls(project)
    before = git(project, "log", "--format=%h") + git(project, "tag")
    assert main([version, "--do"], root=project) == 1
    assert said in capsys.readouterr().err
    assert git(project, "log", "--format=%h") + git(project, "tag") == before
