"""The structure of the rooms, the form of docstrings, and generators that must not contain a cancel scope."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from scripts.house import crossings, name_of, nodes

from .test_imports import PACKAGES, ROOT, imports, modules

Graph = Mapping[str, frozenset[str]]


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


@cache
def graph() -> Graph:
    """Each module of the four rooms with the modules that it imports, including imports for type checkers and in
    functions.
    """
    files = {module_name(path): path for package in PACKAGES for path in modules(package)}
    return {
        name: frozenset(found for named, _ in imports(path) if (found := owner(named, files)) and found != name)
        for name, path in files.items()
    }


def owner(named: str, files: Mapping[str, Path]) -> str | None:
    """Return the module that has a dotted name or defines it. None for a name outside of Callboard."""
    return named if named in files else next((base for base in [named.rpartition(".")[0]] if base in files), None)


def test_no_files_import_each_other_in_a_circle() -> None:
    """A reader of any file can first read the files that it imports. A circle raises CycleError with its files."""
    TopologicalSorter(graph()).prepare()


def test_nothing_below_the_engine_imports_it() -> None:
    """Parts of the engine take a `Runtime`. Only the package, its functions and the annexes import
    `engine.engine`.
    """
    above = (
        *("engine", "engine.engine", "engine.agents", "engine.functions", "engine.object_functions"),
        *("engine.cli", "engine.gateway"),
        *("engine.mcp", "engine.web_view"),
    )
    wrong = [
        name
        for name, found in graph().items()
        if "engine.engine" in found and not name.startswith(above[1:]) and name != "engine"
    ]
    assert wrong == []


def test_every_package_states_its_subject() -> None:
    """The docstring of each `__init__` names the content of the folder."""
    faces = [path for package in PACKAGES for path in modules(package) if path.name == "__init__.py"]
    silent = [path for path in faces if not ast.get_docstring(ast.parse(path.read_text("utf-8")))]
    assert silent == []


def test_the_makefile_names_tests_that_exist() -> None:
    """`make test ROOM=bus` still runs after a file was renamed."""
    named = re.findall(r"\btests/[\w/.]+(?![*\w/.])", (ROOT / "Makefile").read_text("utf-8"))
    assert "tests/bus" in named
    assert [name for name in named if not (ROOT / name).exists()] == []


def test_the_core_needs_no_annex() -> None:
    """Nodes, PostgreSQL, the command line and the live view use the core. The core does not import them."""
    assert [each for each in crossings() if each.when != "types"] == []


# -- docstrings

RUN_IN = re.compile(r"(?:\A|\n\n|[.;:]\s+)((?:\w+,\s+)*\w+(?:\s+and\s+\w+)?):\s")
"""Names with a description within a paragraph: `One call. text: of it.`"""


def names(node: ast.AST) -> Iterator[str]:
    """The names that a docstring can list: arguments, fields, attributes, methods and properties."""
    for each in ast.walk(node):
        match each:
            case (
                ast.arg(arg=name)
                | ast.AnnAssign(target=ast.Name(id=name))
                | ast.Attribute(value=ast.Name(id="self"), attr=name)
                | ast.FunctionDef(name=name)
            ):
                yield name
            case _:
                pass


DOCUMENTED = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def run_in_lists(source: Sequence[ast.AST]) -> Iterator[tuple[int, str]]:
    """Yield the line and the name for each function or class whose docstring lists names in a paragraph."""
    for node in source:
        if isinstance(node, DOCUMENTED):
            lines = (ast.get_docstring(node) or "").splitlines()
            prose = "\n".join(line for line in lines if not line.startswith(" "))  # without sections and tables
            found = [name for told in RUN_IN.findall(prose) for name in re.findall(r"\w+", told)]
            yield from ((node.lineno, name) for name in found if name in {*names(node)})


def test_no_docstring_lists_names_in_a_paragraph() -> None:
    """Arguments belong into a section. The description of a field or an attribute is below it."""
    found = [
        f"{path.relative_to(ROOT)}:{line} {name}"
        for package in PACKAGES
        for path in modules(package)
        for line, name in run_in_lists(nodes(path, *DOCUMENTED))
    ]
    assert found == []


CALL = """
class Call:
    '''{}'''
    text: str
    usage: int | None

    def __init__(self, model):
        self.ended = False
"""


@pytest.mark.parametrize(("said", "listed"), [
    ("One call. text: of it. usage: what it came to;\n    None if unknown.", ["text", "usage"]),
    ("text, usage: of it.", ["text", "usage"]),
    ("One call;\n    ended: no more comes.", ["ended"]),
    ("One call\n\n    model: that was asked.", ["model"]),
    ("One call: text and usage. It ends by itself. Note: the text may be empty.", []),
    ("One call.\n\n    Args:\n        model: The model. text: as it comes.\n\n    It ends by itself.", []),
])  # fmt: skip
def test_names_in_the_paragraphs_of_a_docstring_are_found(said: str, listed: list[str]) -> None:
    """Names of the class are found in paragraphs, but not in sections."""
    assert [name for _, name in run_in_lists([*ast.walk(ast.parse(CALL.format(said)))])] == listed


MENTION = re.compile(r"(?<!`)`([A-Z][a-z]+\w*)[\w.]*(?:\(\))?`(?!`)")


def test_a_class_in_backticks_exists() -> None:
    known, mentions = {"Interval", "Len"}, []  # these two are classes of annotated-types
    for package in (*PACKAGES, "callboard", "tests", "labs", "benchmarks", "examples", "scripts"):
        for path in modules(package):
            text = path.read_text("utf-8")
            known.update(re.findall(r"\b[A-Z][a-z]+\w*", MENTION.sub("", text)))
            mentions += [(name, path.relative_to(ROOT)) for name in MENTION.findall(text)]
    missing = [f"{path}: {name}" for name, path in mentions if name not in known]
    assert not missing, "these classes do not exist; write their present names"


# -- cancel scopes

# If a generator yields inside a cancel scope or a task group, its caller can leave it there. The scope stays open,
# perhaps in another task. trio and anyio then raise an error later, or cancel other code. Generators of async
# context managers are allowed, because one task enters and leaves them.

SCOPES = ("CancelScope", "create_task_group", "fail_after", "move_on_after", "fail_at", "move_on_at", "timeout",
          "timeout_at", "TaskGroup", "open_nursery")  # fmt: skip
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)


def yields_in_scopes(source: Sequence[ast.AST]) -> Iterator[int]:
    """Return the lines of yields inside a scope."""
    for node in source:
        if isinstance(node, ast.AsyncFunctionDef) and not any(map(is_context_manager, node.decorator_list)):
            for child in node.body:
                yield from _yields(child, in_scope=False)


def is_context_manager(decorator: ast.expr) -> bool:
    return any(name in ast.unparse(decorator) for name in ("asynccontextmanager", "fixture"))


def _yields(node: ast.AST, *, in_scope: bool) -> Iterator[int]:
    if isinstance(node, FUNCTIONS):
        return
    if isinstance(node, ast.Yield) and in_scope:
        yield node.lineno
    if isinstance(node, ast.With | ast.AsyncWith):
        in_scope = in_scope or any(opens_scope(item.context_expr) for item in node.items)
    for child in ast.iter_child_nodes(node):
        yield from _yields(child, in_scope=in_scope)


def opens_scope(expression: ast.expr) -> bool:
    return any(
        isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] in SCOPES
        for node in ast.walk(expression)
    )


def test_no_generator_yields_inside_a_scope() -> None:
    folders = (*PACKAGES, "examples", "benchmarks", "labs")
    files = [path for folder in folders for path in modules(folder) if "yield" in path.read_text("utf-8")]
    found = [
        (name_of(path), line) for path in files for line in yields_in_scopes(nodes(path, ast.AsyncFunctionDef))
    ]
    assert found == []


@pytest.mark.parametrize(("body", "lines"), [
    ("async with anyio.create_task_group() as g:\n        yield 1", [3]),
    ("with anyio.move_on_after(1):\n        if x:\n            yield 1", [4]),
    ("with CancelScope() as scope:\n        pass\n    yield 1", []),
    ("with open(x) as f:\n        yield 1", []),
    ("with anyio.CancelScope():\n        def inner():\n            yield 1", []),
])  # fmt: skip
def test_yields_in_scopes_are_found(body: str, lines: list[int]) -> None:
    function = f"async def f():\n    {body}\n"
    assert list(yields_in_scopes([*ast.walk(ast.parse(function))])) == lines
    assert list(yields_in_scopes([*ast.walk(ast.parse(f"@asynccontextmanager\n{function}"))])) == []


@pytest.mark.parametrize(("page", "least"), [("docs/explanation/architecture.md", 30), ("CONTRIBUTING.md", 8)])
def test_a_page_names_files_that_exist(page: str, least: int) -> None:
    """A page names a file by its path from the root, or by the end of its path."""
    named = re.findall(r"`([\w/.-]+\.(?:py|sql|toml|json))`", (ROOT / page).read_text("utf-8"))
    files = " ".join(str(file) for room in PACKAGES for file in (ROOT / room).rglob("*.*")) + " "
    assert len(named) >= least
    assert [name for name in named if not (ROOT / name).is_file() and f"/{name} " not in files] == []
