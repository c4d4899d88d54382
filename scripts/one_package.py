"""The four rooms as one package: what a wheel holds, made of the files of a checkout.

Each room goes below `callboard/`, and the imports that name a room by its absolute name are rewritten:
``from bus.values import …`` becomes ``from callboard.bus.values import …``. Relative imports stay as they are.
What can't be rewritten so that it means the same is refused.
"""

from __future__ import annotations

import ast
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

ROOMS = ("bus", "adapters", "tracestore", "engine")
PACKAGE = "callboard"
ONLY_IN_A_CHECKOUT = ("_rooms.py", *(f"{room}.py" for room in ROOMS))
"""Files of `callboard/` in whose place the rooms themselves stand."""

FOR_THE_DEMO = {
    "examples/demo-prices.yaml": "engine/cli/demo-prices.yaml",
    "cassettes/local": "engine/cli/cassettes",
}
"""Where in the package the demo finds what it reads elsewhere in a checkout."""


class CannotRewrite(Exception):
    """An import, or a module's name in a string, that would mean something else in the package."""


def rewritten(source: str, name: str, *, package: str = PACKAGE) -> str:
    """A module's source with its imports of the rooms as imports from the package.

    Args:
        source: The module's text.
        name: Its path, for errors.
        package: What the rooms are to stand below.

    Raises:
        CannotRewrite: For ``import bus.x`` without ``as``, and for more than a space between ``from`` and a room.
    """
    lines = source.encode().splitlines(keepends=True)  # of bytes: `str` knows more ends of lines than Python
    edits = [edit for node in ast.walk(ast.parse(source)) for edit in _edits(node, name, package)]
    for line, column, old, new in sorted(edits, reverse=True):  # from the end, so that columns stay true
        text, end = lines[line - 1], column + len(old)
        if text[column:end] != old.encode():
            raise CannotRewrite(f"{name}:{line}: expected `{old}` in one piece")
        lines[line - 1] = text[:column] + new.encode() + text[end:]
    return b"".join(lines).decode()


def _edits(node: ast.AST, name: str, package: str) -> Iterator[tuple[int, int, str, str]]:
    """Line, column in bytes, what stands there, and what is to stand there."""
    match node:
        case ast.ImportFrom(module=str(module), level=0) if _is_ours(module):
            yield node.lineno, node.col_offset, f"from {module}", f"from {package}.{module}"
        case ast.Import(names=names):
            for alias in names:
                if not _is_ours(alias.name):
                    continue
                if alias.asname is None and "." in alias.name:
                    raise CannotRewrite(f"{name}:{node.lineno}: import {alias.name} needs an `as`, or a `from`")
                kept = f" as {alias.name}" if alias.asname is None else ""
                yield alias.lineno, alias.col_offset, alias.name, f"{package}.{alias.name}{kept}"
        case _:
            return


def _is_ours(module: str) -> bool:
    return module.partition(".")[0] in ROOMS


def named_in_strings(source: str, modules: frozenset[str]) -> list[tuple[int, str]]:
    """The lines on which a string is a module's name, or ``module:name``: nothing rewrites those.

    A logger may be called as its module is; its name stays the same wherever the module stands.
    """
    tree = ast.parse(source)
    loggers = {id(node.args[0]) for node in ast.walk(tree) if isinstance(node, ast.Call) and _is_logger(node)}
    return [
        (node.lineno, node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant)
        and id(node) not in loggers
        and isinstance(node.value, str)
        and "." in node.value
        and node.value.partition(":")[0] in modules
    ]


def _is_logger(call: ast.Call) -> bool:
    return isinstance(call.func, ast.Name) and call.func.id == "Log" and bool(call.args)


def build(root: Path, target: Path) -> None:
    """Write the package into an empty folder. Raises CannotRewrite."""
    shutil.copytree(root / PACKAGE, target, ignore=shutil.ignore_patterns("__pycache__", *ONLY_IN_A_CHECKOUT))
    for room in ROOMS:
        shutil.copytree(root / room, target / room, ignore=shutil.ignore_patterns("__pycache__"))
    for origin, copy in FOR_THE_DEMO.items():
        if (root / origin).is_dir():
            shutil.copytree(root / origin, target / copy)
        else:
            shutil.copy(root / origin, target / copy)
    files = {path: path.relative_to(target) for path in target.rglob("*.py")}
    modules = frozenset(
        ".".join(place.with_suffix("").parts).removesuffix(".__init__") for place in files.values()
    )
    for path, place in files.items():
        source = path.read_text("utf-8")
        for line, text in named_in_strings(source, modules):
            raise CannotRewrite(f"{place}:{line}: {text!r} names a module; say where it is from __package__")
        path.write_text(rewritten(source, str(place)), "utf-8")


if __name__ == "__main__":
    build(Path(__file__).parents[1], Path(sys.argv[1]))
