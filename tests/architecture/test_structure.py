"""The structure of the rooms: no circle of files, and every package states its subject."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from scripts.house import crossings, name_of

from .test_imports import PACKAGES, ROOT, imports, modules

Graph = Mapping[str, frozenset[str]]


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


@cache
def graph() -> Graph:
    """Each module of the four rooms, with those that it imports: also for type checkers, and in functions."""
    files = {module_name(path): path for package in PACKAGES for path in modules(package)}
    return {
        name: frozenset(found for named, _ in imports(path) if (found := owner(named, files)) and found != name)
        for name, path in files.items()
    }


def owner(named: str, files: Mapping[str, Path]) -> str | None:
    """The module that a dotted name is or stands in; None if it is none of ours."""
    return named if named in files else next((base for base in [named.rpartition(".")[0]] if base in files), None)


def circles(arrows: Graph) -> list[list[str]]:
    """The sets of modules each of which leads to all others of its set (Tarjan)."""
    number: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(name: str) -> None:
        number[name] = low[name] = len(number)
        stack.append(name)
        for other in arrows[name]:
            if other not in number:
                visit(other)
                low[name] = min(low[name], low[other])
            elif other in stack:
                low[name] = min(low[name], number[other])
        if low[name] == number[name]:
            place = stack.index(name)
            if len(members := sorted(stack[place:])) > 1:
                found.append(members)
            del stack[place:]

    for name in arrows:
        if name not in number:
            visit(name)
    return found


def test_no_files_import_each_other_in_a_circle() -> None:
    """Whichever file one opens, what it stands on can be read first."""
    assert circles(graph()) == []


def test_circles_are_found_however_long_they_are() -> None:
    """And files that only share something are none."""
    arrows = {
        "a": frozenset("b"),
        "b": frozenset("c"),
        "c": frozenset("ad"),
        "d": frozenset(),
        "e": frozenset("d"),
    }
    assert circles(arrows) == [["a", "b", "c"]]


def test_nothing_below_the_engine_imports_it() -> None:
    """Parts take a `Runtime`; the engine, its functions and the annexes stand above."""
    above = (
        *("engine", "engine.engine", "engine.functions", "engine.cli", "engine.gateway"),
        *("engine.mcp", "engine.web_view"),
    )
    wrong = [
        name
        for name, found in graph().items()
        if "engine.engine" in found and not name.startswith(above[1:]) and name != "engine"
    ]
    assert wrong == []


def test_every_package_states_its_subject() -> None:
    """The docstring of each `__init__` says what the folder holds."""
    silent = [
        str(path.parent.relative_to(ROOT))
        for package in PACKAGES
        for path in modules(package)
        if path.name == "__init__.py" and not ast.get_docstring(ast.parse(path.read_text("utf-8")))
    ]
    assert silent == []


def test_the_makefile_names_tests_that_exist() -> None:
    """So that `make test ROOM=bus` runs after a file was renamed."""
    named = re.findall(r"\btests/[\w/.]+(?![*\w/.])", (ROOT / "Makefile").read_text("utf-8"))
    assert "tests/bus" in named
    assert [name for name in named if not (ROOT / name).exists()] == []


COMPOSE = {"engine/stores.py"}
"""The file of the core that looks for an annex when a host asks for one: a store by its address."""


def test_the_core_needs_no_annex() -> None:
    """Nodes, PostgreSQL, the command line and the live view stand on the core, and the core not on them."""
    used = {name_of(each.path) for each in crossings() if each.when == "call"}
    assert [each for each in crossings() if each.when == "start"] == []
    assert used <= COMPOSE
