"""The codes of warnings are one set, which the documentation shows as it is."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import msgspec
import pytest

from callboard import adapters, bus, engine, tracestore
from callboard.bus.errors import WarningCode
from callboard.bus.values.messages import CallWarning

ROOT = Path(__file__).parents[2]
WARNING = {"CallWarning", "warn", "_warn", "_warn_once"}


def files(room: ModuleType) -> Iterator[Path]:
    assert room.__file__ is not None
    return Path(room.__file__).parent.rglob("*.py")


def test_the_page_shows_every_code_with_its_meaning() -> None:
    """In the order of the set, and no other."""
    page = (ROOT / "docs" / "errors.md").read_text(encoding="utf-8").split("## Warnings")[1]
    shown = [line for line in page.splitlines() if line.startswith("| `")]
    assert shown == [f"| `{code}` | {code.meaning} |" for code in WarningCode]


@pytest.mark.parametrize("room", [bus, adapters, tracestore, engine], ids=lambda room: room.__name__)
def test_no_code_of_ours_is_written_as_a_bare_string(room: ModuleType) -> None:
    """Whoever warns takes a member of the set, so that none is forgotten in it."""
    bare = [
        f"{path}:{node.lineno}"
        for path in files(room)
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and _called(node.func) in WARNING and node.args
        if isinstance(node.args[0], ast.Constant)
    ]
    assert bare == []


def _called(function: ast.expr) -> str:
    match function:
        case ast.Attribute(attr=name) | ast.Name(id=name):
            return name
        case _:
            return ""


def test_every_code_of_the_set_is_used() -> None:
    """By the adapters or the engine; one that nobody emits is no longer documented."""
    text = "".join(path.read_text(encoding="utf-8") for room in (adapters, engine) for path in files(room))
    assert [code.name for code in WarningCode if f"WarningCode.{code.name}" not in text] == []


@pytest.mark.parametrize("code", WarningCode)
def test_a_code_is_text_to_programs_and_files(code: WarningCode) -> None:
    """A stored warning is read back as it was, and so is one with a code of a later version."""
    written = msgspec.json.encode(CallWarning(code, "why"))
    assert (
        msgspec.json.decode(written, type=CallWarning) == CallWarning(str(code), "why") == CallWarning(code, "why")
    )
    assert f"{code}" == code.value
    later = CallWarning("of_a_later_version", "why")
    assert msgspec.json.decode(msgspec.json.encode(later), type=CallWarning) == later
