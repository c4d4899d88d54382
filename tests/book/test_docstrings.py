"""Docstrings of public names: the errors raised, and the units of numbers."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from types import FunctionType
from typing import Any, NamedTuple, cast

from callboard.adapters.conformance import NotShown
from docs.book.field_strings import field_strings
from scripts.house import nodes
from tests.book.snippets import DOCS

ROOMS = (
    *(
        "callboard.bus",
        "callboard.adapters",
        "callboard.tracestore",
        "callboard.engine",
        "callboard.engine.middleware",
        "callboard.engine.conversation.context",
        "callboard.engine.tools",
    ),
    *(
        "callboard.adapters.embeddings",
        "callboard.adapters.images",
        "callboard.adapters.videos",
        "callboard.adapters.conformance",
        "callboard.adapters.cassettes",
    ),
)
PACKAGES = ("callboard.bus.", "callboard.adapters.", "callboard.tracestore.", "callboard.engine.")
_NUMBER = re.compile(r"\b(int|float|Decimal)\b")
_OTHERWISE = re.compile(r"\b(Callable|Mapping|dict|ClassVar|datetime)\b")
_UNIT = re.compile(r"(^|_)(seconds|ms|us|ns|bytes|tokens|usd)$")

Function = ast.FunctionDef | ast.AsyncFunctionDef


class Public(NamedTuple):
    """A public function or class with its documentation: its docstring, and those of its class and of the bases.

    The strings under fields are included, each after the name of its field.
    """

    name: str
    node: Function | ast.ClassDef
    said: str


@cache
def _definitions(file: str) -> dict[str, Any]:
    tree = cast("ast.Module", nodes(Path(file).resolve())[0])
    return {node.name: node for node in tree.body if isinstance(node, Function | ast.ClassDef)}


def defined(thing: type | FunctionType) -> Any:
    """The node of the definition. For a function with overloads, the function itself."""
    return _definitions(inspect.getfile(inspect.unwrap(thing)))[thing.__qualname__]


def public() -> Iterator[Public]:
    """The functions and classes that the rooms export, and the classes' constructors, methods and properties."""
    seen: set[object] = set()
    for room in ROOMS:
        module = import_module(room)
        homes = PACKAGES if hasattr(module, "__all__") else (room,)
        for name in getattr(module, "__all__", None) or vars(module):
            thing = getattr(module, name)
            if name.startswith("_"):
                continue
            if inspect.isfunction(thing) and thing not in seen and thing.__module__.startswith(homes):
                seen.add(thing)
                yield Public(f"{room}.{name}", defined(thing), inspect.getdoc(thing) or "")
            elif inspect.isclass(thing):
                for base in thing.__mro__:  # members of a base that isn't exported are public, too
                    if base not in seen and base.__module__.startswith(homes):
                        seen.add(base)
                        yield from of_class(f"{room}.{name}", base)


def of_class(name: str, kind: type) -> Iterator[Public]:
    """A class, its constructor, and its own methods and properties."""
    docstrings = [base.__doc__ or "" for base in kind.__mro__ if base.__module__.startswith(PACKAGES)]
    of_kind = "\n".join([*docstrings, *(f"{field}: {text}" for field, text in field_strings(kind).items())])
    node = defined(kind)
    yield Public(name, node, of_kind)
    for member in node.body:
        if not isinstance(member, Function):
            continue
        if member.name in ("__init__", "__post_init__"):
            yield Public(name, member, of_kind)
        elif not member.name.startswith("_"):
            said = inspect.getdoc(getattr(kind, member.name)) or of_protocols().get(member.name, "")
            yield Public(f"{name}.{member.name}", member, f"{said}\n{of_kind}")


@cache
def of_protocols() -> dict[str, str]:
    """The docstrings of the exported protocols' members. They also document the classes that implement the
    protocols.
    """
    things = [thing for room in ROOMS for thing in vars(import_module(room)).values()]
    protocols = [thing for thing in things if getattr(thing, "_is_protocol", False)]
    return {name: inspect.getdoc(getattr(one, name)) or "" for one in protocols for name in vars(one)}


def raised(node: ast.AST) -> Iterator[str]:
    """The error classes that a function raises itself, not those of the functions that it calls."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Raise) and child.exc is not None:
            error = child.exc.func if isinstance(child.exc, ast.Call) else child.exc
            name = ast.unparse(error).rpartition(".")[2]
            if name[:1].isupper():
                yield name
        if not isinstance(child, Function | ast.Lambda | ast.ClassDef):
            yield from raised(child)


def numbers(node: Function | ast.ClassDef) -> Iterator[str]:
    """The numeric fields of a class, or the numeric parameters of a function."""
    if isinstance(node, ast.ClassDef):
        typed = [
            (part.target.id, part.annotation)
            for part in node.body
            if isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name)
        ]
    else:
        arguments = (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)
        typed = [(each.arg, each.annotation) for each in arguments if each.annotation is not None]
    for name, annotation in typed:
        text = ast.unparse(annotation)
        if not name.startswith("_") and _NUMBER.search(text) and not _OTHERWISE.search(text):
            yield name


def test_every_raised_error_is_documented() -> None:
    """The docstring of the function, of its class, or of the overridden method names the error."""
    silent = [
        f"{one.name}: {error}"
        for one in public()
        if isinstance(one.node, Function)
        for error in raised(one.node)
        if not re.search(rf"\b{error}\b", one.said)
    ]
    assert silent == []


def test_every_number_has_a_unit_or_a_description() -> None:
    """The name ends with a unit, or the field, class or function has a description of the number."""
    silent = [
        f"{one.name}: {number}"
        for one in public()
        for number in numbers(one.node)
        if not _UNIT.search(number) and not re.search(rf"\b{number}\b", one.said)
    ]
    assert silent == []


def test_every_error_is_in_the_list_of_errors() -> None:
    """The list has every public error except the conformance kit's own."""
    listed = (DOCS / "errors.md").read_text(encoding="utf-8")
    silent = [
        f"{room}.{name}"
        for room in ROOMS
        for name, thing in vars(import_module(room)).items()
        if inspect.isclass(thing) and issubclass(thing, Exception) and thing.__module__.startswith(PACKAGES)
        if not name.startswith("_") and f"`{name}`" not in listed and thing is not NotShown
    ]
    assert silent == []
