"""The files of the page: those of others are as they came, with their licences, and all of them are shipped."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path

import pytest

from callboard.engine.web_view.app import FOLDER, Assets
from tests.support.programs import ended

VENDOR = FOLDER / "vendor"
LISTED = json.loads((VENDOR / "vendor.json").read_text())
WITHOUT = """
import sys

class Hides:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("starlette", "uvicorn"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Hides())
from callboard import *
from callboard import ConfigurationError, web

try:
    web(trace="t.db")
except ConfigurationError as error:
    print(error)
"""
OWN = sorted(path for path in FOLDER.rglob("*.js") if VENDOR not in path.parents)


@pytest.mark.parametrize("row", LISTED, ids=lambda row: row["file"])
def test_a_file_of_others_is_as_it_came(row: dict[str, str]) -> None:
    """Its sum is that of the file in the package of that version, and its licence stands beside it."""
    assert hashlib.sha256((VENDOR / row["file"]).read_bytes()).hexdigest() == row["sha256"]
    assert all((VENDOR / licence).is_file() for licence in row["license_files"])
    assert re.fullmatch(r"\d+\.\d+\.\d+", row["version"])


def test_no_file_of_others_is_unlisted() -> None:
    """What nobody wrote down, nobody keeps up to date."""
    own = {"vendor.json", "README.txt"}
    assert {path.name for path in VENDOR.iterdir()} - own == {row["file"] for row in LISTED}


@pytest.mark.parametrize("path", OWN, ids=lambda path: path.name)
def test_a_module_imports_what_is_there(path: Path) -> None:
    """There is no build that would tell; and every name that it takes is one that the other module gives."""
    for names, source in re.findall(r'import \{([^}]*)\} from "([^"]+)"', path.read_text()):
        target = (path.parent / source).resolve()
        assert target.is_file(), source
        text = target.read_text()
        given = set(re.findall(r"export (?:async )?(?:const|function|class|let) (\w+)", text))
        for lot in re.findall(r"export\s*\{([^}]*)\}", text):
            given |= {each.split(" as ")[-1].strip() for each in lot.split(",")}
        assert {name.strip() for name in names.split(",")} <= given, source


def test_every_file_has_a_type_and_is_given() -> None:
    """A file whose ending is unknown would be missing from the page."""
    files = {path.relative_to(FOLDER).as_posix() for path in FOLDER.rglob("*") if path.is_file()}
    assert set(Assets()) == files  # type: ignore[arg-type]


def test_without_the_extra_everything_else_is_imported() -> None:
    """And `web` says what to install."""
    done = ended(WITHOUT)
    assert (done.returncode, done.stderr) == (0, "")
    assert 'pip install "callboard[web]"' in done.stdout
