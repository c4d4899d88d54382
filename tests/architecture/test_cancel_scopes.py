"""No async generator yields while it holds a cancel scope or a task group.

Whoever leaves such a generator in the middle leaves the scope open in a task that may be another one: trio and
anyio then raise, or cancel the wrong code, at some later point. Async context managers made of generators are the
exception, because they are entered and left in one task.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
FILES = sorted(
    path
    for folder in ("bus", "adapters", "tracestore", "engine", "examples", "benchmarks", "labs")
    for path in (ROOT / folder).rglob("*.py")
)
SCOPES = ("CancelScope", "create_task_group", "fail_after", "move_on_after", "fail_at", "move_on_at", "timeout",
          "timeout_at", "TaskGroup", "open_nursery")  # fmt: skip
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)


def yields_in_scopes(source: str) -> Iterator[int]:
    """The lines of such yields."""
    if "yield" not in source:
        return
    for node in ast.walk(ast.parse(source)):
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
    """In all code that others run."""
    texts = ((path, path.read_text(encoding="utf-8")) for path in FILES)
    found = [f"{path.relative_to(ROOT)}:{line}" for path, text in texts for line in yields_in_scopes(text)]
    assert found == []


@pytest.mark.parametrize(
    ("body", "lines"),
    [
        ("async with anyio.create_task_group() as g:\n        yield 1", [3]),
        ("with anyio.move_on_after(1):\n        if x:\n            yield 1", [4]),
        ("with CancelScope() as scope:\n        pass\n    yield 1", []),
        ("with open(x) as f:\n        yield 1", []),
        ("with anyio.CancelScope():\n        def inner():\n            yield 1", []),
    ],
)
def test_the_check_finds_what_it_looks_for(body: str, lines: list[int]) -> None:
    """And nothing else."""
    assert list(yields_in_scopes(f"async def f():\n    {body}\n")) == lines
    assert list(yields_in_scopes(f"@asynccontextmanager\nasync def f():\n    {body}\n")) == []
