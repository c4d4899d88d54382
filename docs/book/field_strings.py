"""The strings under the fields of a class, which Python itself forgets: read off its source."""

from __future__ import annotations

import ast
import inspect
from functools import cache
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).parents[2]


def field_strings(kind: type) -> dict[str, str]:
    """The string under each field of a class, its bases' and its constructor's attributes included.

    Args:
        kind: A class that is written at the top of a module.

    Returns:
        The strings by field name. A field without a string is left out.
    """
    return {name: text for base in reversed(kind.__mro__) for name, text in _of_class(base)}


@cache
def alias_strings(room: str) -> dict[str, str]:
    """The string below each alias and constant of a room's modules, by name.

    Args:
        room: The folder of the room, such as `bus`.
    """
    modules = (ast.parse(file.read_text(encoding="utf-8")) for file in (ROOT / room).rglob("*.py"))
    return {name: text for module in modules for name, text in _of_body(module.body)}


def _of_class(kind: type) -> list[tuple[str, str]]:
    try:
        file = inspect.getfile(kind)
    except (TypeError, OSError):  # a class that is built in
        return []
    node = _classes(file).get(kind.__qualname__) if file.endswith(".py") else None
    if node is None:
        return []
    constructors = [part for part in node.body if isinstance(part, ast.FunctionDef) and part.name == "__init__"]
    bodies = [node.body, *(constructor.body for constructor in constructors)]
    return [said for body in bodies for said in _of_body(body)]


@cache
def _classes(file: str) -> dict[str, ast.ClassDef]:
    tree = ast.parse(Path(file).read_text(encoding="utf-8"))
    return {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}


def _of_body(body: list[ast.stmt]) -> list[tuple[str, str]]:
    return [
        (_name(field), inspect.cleandoc(below.value.value))
        for field, below in pairwise(body)
        if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant)
        if isinstance(below.value.value, str) and _name(field)
    ]


def _name(field: ast.stmt) -> str:
    """The name of the field that a statement declares or sets; empty if it does neither."""
    target = field.targets[0] if isinstance(field, ast.Assign) else getattr(field, "target", None)
    if isinstance(target, ast.Name):
        return target.id
    if isinstance(target, ast.Attribute):
        return target.attr
    return ""
