"""The house: no circle of files, no crowded folder, no function that is too long to be held in mind."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from statistics import median, quantiles

import pytest

from .test_imports import PACKAGES, ROOT, imports, modules

MOST_FILES = 14
"""In one folder, `__init__.py` counted."""

LONGEST_FUNCTION = 60
USUAL_FUNCTION = 18
"""Nine of ten functions are not longer. Docstrings don't count; nested functions count for themselves, too."""

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
    """Parts take a `Runtime`; the engine, its functions, the command line and the live view stand above."""
    above = ("engine", "engine.engine", "engine.functions", "engine.cli", "engine.web_view")
    wrong = [
        name
        for name, found in graph().items()
        if "engine.engine" in found and not name.startswith(above[1:]) and name != "engine"
    ]
    assert wrong == []


FOLDERS = sorted({path.parent for package in PACKAGES for path in modules(package)})


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: str(folder.relative_to(ROOT)))
def test_a_folder_holds_one_subject(folder: Path) -> None:
    """At most fourteen files, and its `__init__` says what they are about."""
    assert len(list(folder.glob("*.py"))) <= MOST_FILES
    said = ast.get_docstring(ast.parse((folder / "__init__.py").read_text("utf-8")))
    assert said, "a folder without a sentence about it"


def functions(path: Path) -> Iterator[tuple[str, int]]:
    """The functions of a file with their length in lines, from `def` to the end, without docstrings."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0]
            said = first if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) else None
            docstring = 0 if said is None else (said.end_lineno or said.lineno) - said.lineno + 1
            yield node.name, (node.end_lineno or node.lineno) - node.lineno + 1 - docstring


def test_functions_can_be_held_in_mind(capsys: pytest.CaptureFixture[str]) -> None:
    """None is longer than sixty lines, and nine of ten have eighteen at most; the table is printed."""
    found = {
        package: [
            (length, f"{path.relative_to(ROOT)}:{name}")
            for path in modules(package)
            for name, length in functions(path)
        ]
        for package in PACKAGES
    }
    with capsys.disabled():
        print("\nlines of a function: median, nine of ten, longest")  # noqa: T201
        for package, lengths in found.items():
            only, (most, where) = [length for length, _ in lengths], max(lengths)
            print(f"  {package:<12}{median(only):>3.0f}{quantiles(only, n=10)[-1]:>5.0f}{most:>5}  {where}")  # noqa: T201
    everywhere = [each for lengths in found.values() for each in lengths]
    assert [place for length, place in everywhere if length > LONGEST_FUNCTION] == []
    assert quantiles([length for length, _ in everywhere], n=10)[-1] <= USUAL_FUNCTION
