"""Tests name the rooms in strings as they are called where they are installed.

The suite also runs on the wheel. The imports of its files are rewritten for that, but nothing rewrites a string.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROOM = r"(?:bus|adapters|tracestore|engine)(?:\.\w+)*"
IMPORT = re.compile(rf"^\s*(?:from {ROOM} import |import {ROOM}\s*(?:$|as |,))")
TARGET = re.compile(rf"{ROOM}$")

RUN_ON_THE_WHEEL = sorted(
    path
    for folder in ("tests", "labs", "examples", "cassettes")
    for path in (ROOT / folder).rglob("*.py")
    if path.relative_to(ROOT).parts[:2] not in {("tests", "architecture"), ("tests", "book"), ("tests", "package")}
)


def own_names(source: str) -> Iterator[int]:
    """The lines of programs that import a room by its own name, and of what is patched by such a name."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Constant(value=str(text)) if any(map(IMPORT.match, re.split("[;\n]", text))):
                yield node.lineno
            case ast.Call(
                func=ast.Attribute(attr="setattr" | "delattr"), args=[ast.Constant(value=str(text)), *_]
            ) if TARGET.match(text):
                yield node.lineno
            case _:
                pass


def test_no_string_names_a_room_by_its_own_name() -> None:
    """`from callboard.bus import …` in a program, and `"callboard.bus.log.ROOT"` for what is patched."""
    found = [
        f"{path.relative_to(ROOT)}:{line}"
        for path in RUN_ON_THE_WHEEL
        for line in own_names(path.read_text("utf-8"))
    ]
    assert found == []


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        ("X = '''\nimport os\nfrom engine import Engine\n'''", [1]),
        ("X = 'import sys; import tracestore'", [1]),
        ("\npatch.setattr('engine.health.LEAST', 1)", [2]),
        ("patch.setattr(engine, 'health.LEAST', 1)", []),
        ("X = 'from callboard.engine import x'\nY = 'from engine to bus'", []),
    ],
)
def test_what_is_found(source: str, lines: list[int]) -> None:
    """Programs and targets of patches, and no prose."""
    assert [*own_names(source)] == lines
