"""Prints the share of small errors in the rooms that the tests notice.

    python scripts/mutants.py                          60 mutants, the same number in each room
    python scripts/mutants.py --count 8 --room bus     of one room
    python scripts/mutants.py --deep                   run the deep tests for those that quick tests miss

A mutant is a copy of the project with one changed expression, such as another comparison, a negated condition or a
higher number. The tests that import its module, and those of its folder, run until one fails. The seed selects the
mutants. Run it in the environment of `make test`.
"""

from __future__ import annotations

import argparse
import ast
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
ROOMS = ("bus", "adapters", "tracestore", "engine")
LEFT_OUT = shutil.ignore_patterns(".git", ".venv", "__pycache__", ".*_cache", ".hypothesis", "build", "dist")

FOLDERS = {
    "engine/cli": ("tests/cli",),
    "engine/web_view": ("tests/web_view",),
    "adapters/conformance": ("tests/conformance",),
    "adapters/providers": ("tests/conformance", "tests/definition_of_done"),
    "tracestore/postgres": ("tests/tracestore/postgres", "tests/tracestore/contract"),
    "tracestore/sql": ("tests/tracestore/contract", "tests/tracestore"),
}
"""The tests of parts of the rooms whose folders have other names."""

FILES_OF_THE_ENGINE = [path.relative_to(ROOT) for path in (ROOT / "tests" / "engine").glob("test_*.py")]
"""Only the files of this folder: its subfolders test parts that have folders of their own."""

OTHER: dict[type[ast.AST], str] = {
    ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!=", ast.NotEq: "==",
    ast.Is: "is not", ast.IsNot: "is", ast.In: "not in", ast.NotIn: "in",
    ast.Add: "-", ast.Sub: "+", ast.Mult: "//", ast.FloorDiv: "*", ast.Div: "*",
    ast.And: "or", ast.Or: "and",
}  # fmt: skip


class Mutant(NamedTuple):
    """One change of one file."""

    path: str
    line: int
    start: int
    """The first byte that is replaced."""
    end: int
    text: str
    """The replacement."""


def mutants(path: Path) -> Iterator[Mutant]:
    """All mutants of a file."""
    source = path.read_bytes()
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))

    def change(node: ast.expr | ast.stmt, text: str) -> Mutant:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        start = starts[node.lineno - 1] + node.col_offset
        end = starts[node.end_lineno - 1] + node.end_col_offset
        return Mutant(path.relative_to(ROOT).as_posix(), node.lineno, start, end, text)

    for node in executed(ast.parse(source)):
        text = ast.unparse
        match node:
            case ast.Compare(ops=[op], comparators=[right]) if type(op) in OTHER:
                yield change(node, f"({text(node.left)} {OTHER[type(op)]} {text(right)})")
            case ast.BinOp(op=op) if type(op) in OTHER and not isinstance(node.left, ast.Constant | ast.JoinedStr):
                yield change(node, f"({text(node.left)} {OTHER[type(op)]} {text(node.right)})")
            case ast.BoolOp(op=op):
                words = f" {OTHER[type(op)]} ".join(f"({text(each)})" for each in node.values)
                yield change(node, f"({words})")
            case ast.UnaryOp(op=ast.Not()):
                yield change(node, f"bool({text(node.operand)})")
            case ast.If(test=test) | ast.While(test=test) | ast.IfExp(test=test):
                yield change(test, f"(not ({text(test)}))")
            case ast.Constant(value=bool()):
                yield change(node, str(not node.value))
            case ast.Constant(value=int()):
                yield change(node, str(int(node.value) + 1))
            case ast.Return(value=ast.expr() as value) if not isinstance(value, ast.Constant):
                yield change(value, "None")
            case ast.Expr(value=ast.Call() | ast.Await()) | ast.AugAssign():
                yield change(node, "pass")
            case _:
                pass


def executed(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes that run, without annotations, texts of errors and log lines, and code for type checkers."""
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if not isinstance(child, ast.AST) or isinstance(child, ast.Raise | ast.JoinedStr | ast.Assert):
                continue
            if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
                continue
            if isinstance(child, ast.Expr) and "log" in ast.unparse(child.value).split("(")[0].lower():
                continue
            yield child
            yield from executed(child)


def sample(count: int, seed: int, rooms: Sequence[str]) -> list[Mutant]:
    """The same number of mutants of each room, in a mixed order."""
    order = random.Random(seed)
    chosen = []
    for room in rooms:
        found = [each for path in sorted((ROOT / room).rglob("*.py")) for each in mutants(path)]
        chosen.append(order.sample(found, count // len(rooms)))
    return [mutant for each in zip(*chosen, strict=True) for mutant in each]


def tests_of(path: str) -> list[str]:
    """The test files that import a module, then the folder of its tests."""
    dotted = "callboard." + path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    package, _, name = dotted.rpartition(".")
    named = (f"from {dotted} import", f"import {dotted}", f"from {package} import {name}")
    importers = [
        str(each.relative_to(ROOT))
        for each in sorted((ROOT / "tests").rglob("test_*.py"))
        if any(words in each.read_text(encoding="utf-8") for words in named)
    ]
    folders = next((places for part, places in FOLDERS.items() if path.startswith(part)), None)
    if path.startswith("adapters/providers/"):
        own = f"tests/adapters/{path.split('/')[2]}"
        folders = ((own,) if (ROOT / own).is_dir() else ()) + (folders or ())
    if folders is None:
        parts = path.split("/")[:-1]
        folder = next(
            place for n in range(len(parts), 0, -1) if (ROOT / (place := "/".join(["tests", *parts[:n]]))).is_dir()
        )
        folders = (folder,) if folder != "tests/engine" else tuple(sorted(map(str, FILES_OF_THE_ENGINE)))
    return [*dict.fromkeys([*importers, *folders])]


def outcome(copy: Path, mutant: Mutant, *, deep: bool, seconds: float) -> str:
    """``killed`` if a test fails, ``alive`` if none does, ``late`` if time runs out before."""
    file = copy / mutant.path
    original = file.read_bytes()
    file.write_bytes(original[: mutant.start] + mutant.text.encode() + original[mutant.end :])
    depth = ["--hypothesis-profile=deep"] if deep else ["-m", "not deep"]
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-n", "0", "-p", "no:cacheprovider", *depth]
    tests = subprocess.Popen(
        [*command, *tests_of(mutant.path)],
        cwd=copy,
        env={**os.environ, "PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        return "alive" if tests.wait(seconds) in (0, 5) else "killed"
    except subprocess.TimeoutExpired:
        return "late"
    finally:
        if tests.poll() is None:
            os.killpg(tests.pid, signal.SIGKILL)
            tests.wait()
        file.write_bytes(original)


def main() -> None:
    parser = argparse.ArgumentParser(description="Print the share of small errors that the tests notice.")
    parser.add_argument("--count", type=int, default=60, help="The number of mutants")
    parser.add_argument("--seed", type=int, default=1, help="Decides which mutants there are")
    parser.add_argument("--room", choices=ROOMS, help="Change one room only")
    parser.add_argument("--deep", action="store_true", help="Run deep tests for mutants that quick tests miss")
    parser.add_argument("--seconds", type=float, default=120, help="The time limit of one mutant's tests")
    parser.add_argument("--minutes", type=float, default=20, help="The time limit of the whole run")
    arguments = parser.parse_args()
    end = time.monotonic() + 60 * arguments.minutes
    counts: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "project"
        shutil.copytree(ROOT, copy, symlinks=True, ignore=LEFT_OUT)
        for mutant in sample(arguments.count, arguments.seed, [arguments.room] if arguments.room else ROOMS):
            if time.monotonic() > end:
                break
            found = outcome(copy, mutant, deep=False, seconds=arguments.seconds)
            if found == "alive" and arguments.deep:
                found = outcome(copy, mutant, deep=True, seconds=3 * arguments.seconds)
                found = {"killed": "killed by deep"}.get(found, found)
            counts[found] += 1
            print(f"{found:14} {mutant.path}:{mutant.line}  {mutant.text[:70]}", flush=True)
    decided = counts.total() - counts["late"]
    print(
        f"\n{counts['killed']} of {decided} killed by quick tests, {counts['killed by deep']} more by deep ones;"
    )
    print(f"{counts['late']} more were not decided in time")


if __name__ == "__main__":
    main()
