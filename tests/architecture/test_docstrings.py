"""Docstrings tell arguments in sections and fields one by one, where editors and the API reference show them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest

from .test_imports import PACKAGES, ROOT, modules

RUN_IN = re.compile(r"(?:\A|\n\n|[.;:]\s+)((?:\w+,\s+)*\w+(?:\s+and\s+\w+)?):\s")
"""Names that are told within a paragraph: `One call. text: of it.`"""


def names(node: ast.AST) -> Iterator[str]:
    """What a docstring may list: arguments, fields, attributes, methods and properties."""
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


def run_in_lists(source: str) -> Iterator[tuple[int, str]]:
    """The lines of the functions and classes whose docstrings list names in a paragraph, with the names."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (ast.get_docstring(node) or "").splitlines()
            prose = "\n".join(line for line in lines if not line.startswith(" "))  # no sections, no tables
            found = [name for told in RUN_IN.findall(prose) for name in re.findall(r"\w+", told)]
            yield from ((node.lineno, name) for name in found if name in {*names(node)})


def test_no_docstring_lists_names_in_a_paragraph() -> None:
    """An argument stands in a section, and what a field or an attribute means stands below it."""
    found = [
        f"{path.relative_to(ROOT)}:{line} {name}"
        for package in PACKAGES
        for path in modules(package)
        for line, name in run_in_lists(path.read_text("utf-8"))
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


@pytest.mark.parametrize(
    ("said", "listed"),
    [
        ("One call. text: of it. usage: what it came to;\n    None if unknown.", ["text", "usage"]),
        ("text, usage: of it.", ["text", "usage"]),
        ("One call;\n    ended: no more comes.", ["ended"]),
        ("One call\n\n    model: that was asked.", ["model"]),
        ("One call: text and usage. It ends by itself. Note: the text may be empty.", []),
        ("One call.\n\n    Args:\n        model: The model. text: as it comes.\n\n    It ends by itself.", []),
    ],
)
def test_what_is_found(said: str, listed: list[str]) -> None:
    """Names of the class itself in its paragraphs, and nothing in its sections."""
    assert [name for _, name in run_in_lists(CALL.format(said))] == listed


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
