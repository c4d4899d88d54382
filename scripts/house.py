"""Prints the size and shape of the project: files, lines, importers, and the path of one call.

    python scripts/house.py            the figures
    python scripts/house.py --fence    each import of an annex by the core

A call is measured on recorded replies of a server of the tests, so run it in the environment of `make`.
"""

from __future__ import annotations

import ast
import asyncio
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from types import FrameType
from typing import NamedTuple, TypeVar, cast

ROOT = Path(__file__).parent.parent
ROOMS = ("bus", "adapters", "tracestore", "engine")

ANNEXES = (
    *("adapters/cassettes.py", "adapters/conformance"),
    *("adapters/providers/anthropic", "adapters/providers/bedrock", "adapters/providers/cohere"),
    *("adapters/providers/gemini", "adapters/providers/ollama", "adapters/providers/openai"),
    *("adapters/providers/tgi", "adapters/providers/voyage"),
    *("adapters/providers/cassette", "adapters/providers/local", "adapters/providers/scripted"),
    *("tracestore/collections.py", "tracestore/descriptions.py", "tracestore/export.py"),
    *("tracestore/foreign_rows.py", "tracestore/otel.py", "tracestore/otel_names.py"),
    *("tracestore/prices/source.py", "tracestore/prompt_caches.py", "tracestore/replay.py"),
    *("tracestore/nodes.py", "tracestore/postgres", "tracestore/shipping"),
    *("engine/cli", "engine/gateway", "engine/imports", "engine/mcp", "engine/nodes", "engine/web_view"),
    *("engine/middleware/guardrails.py", "engine/middleware/ready_made.py", "engine/watching/watch.py"),
)
"""Parts that a reader of the core does not need to know: the command line, the live view, the gateway, imports,
MCP servers, nodes, PostgreSQL and shipping, exports, replay, ready-made middleware, the testing kit and the local
model. Of the providers, one is core (`openai_compatible`): the others have the same parts. Images and videos are
core: an adapter offers them as it offers conversations.
"""

CALL_TARGETS = {"files": "60", "functions": "", "awaiting frames": "18", "tasks": "2"}


def modules() -> list[Path]:
    """All modules of the four rooms."""
    return [path for room in ROOMS for path in sorted((ROOT / room).rglob("*.py"))]


Node = TypeVar("Node", bound=ast.AST)


@cache
def _nodes(path: Path) -> dict[type[ast.AST], list[ast.AST]]:
    """The nodes of a file's syntax tree by their types, without contexts such as `ast.Load`.

    Tests of many rules walk each file once, in half the time of `ast.walk`.
    """
    found: list[ast.AST] = [ast.parse(path.read_text(encoding="utf-8"))]
    for node in found:  # which grows
        for value in vars(node).values():
            if isinstance(value, list):
                found += [each for each in value if isinstance(each, ast.AST)]
            elif isinstance(value, ast.AST) and not isinstance(value, ast.expr_context):
                found.append(value)
    by_type: dict[type[ast.AST], list[ast.AST]] = {}
    for node in found:
        by_type.setdefault(type(node), []).append(node)
    return by_type


def nodes(path: Path, *types: type[Node]) -> list[Node]:
    """The nodes of these types in a file's syntax tree."""
    found = _nodes(path)
    return [cast("Node", node) for kind in types for node in found.get(kind, ())]


def lines(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines())


@cache
def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def in_annex(path: Path) -> bool:
    name = name_of(path)
    return any(name == annex or name.startswith(f"{annex}/") for annex in ANNEXES)


def is_small_by_nature(path: Path) -> bool:
    """Whether a file is a package's docstring, its public face or a provider's descriptor."""
    return path.name in {"__init__.py", "__main__.py"}


class Import(NamedTuple):
    """One import of a module of the rooms by another."""

    path: Path
    imported: Path
    when: str
    """``start``: when the module itself is imported. ``call``: in a function. ``types``: for type checkers."""


@cache
def imports() -> Sequence[Import]:
    """All imports within the rooms."""
    names = ((name_of(path)[:-3].replace("/", ".").removesuffix(".__init__"), path) for path in modules())
    files = {f"callboard.{name}": path for name, path in names}
    found: dict[Import, None] = {}
    for name, path in files.items():
        package = name if path.name == "__init__.py" else name.rpartition(".")[0]
        (module,) = nodes(path, ast.Module)
        for named, when in _imported(package, module, "start"):
            owner = files.get(named) or files.get(named.rpartition(".")[0])
            if owner is not None and owner != path:
                found[Import(path, owner, when)] = None
    return list(found)


def _imported(package: str, node: ast.AST, when: str) -> Iterator[tuple[str, str]]:
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.stmt | ast.excepthandler | ast.match_case):
            continue
        inner = when
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            inner = "call"
        elif isinstance(child, ast.If) and isinstance(child.test, ast.Name) and child.test.id == "TYPE_CHECKING":
            inner = "types"
        if isinstance(child, ast.Import):
            yield from ((alias.name, when) for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            parts = package.split(".")[: len(package.split(".")) - child.level + 1] if child.level else []
            module = ".".join([*parts, *([child.module] if child.module else [])])
            yield from ((f"{module}.{alias.name}", when) for alias in child.names)
        yield from _imported(package, child, inner)


@cache
def crossings() -> Sequence[Import]:
    """Imports of an annex by the core."""
    return [each for each in imports() if not in_annex(each.path) and in_annex(each.imported)]


async def path_of_a_call() -> dict[str, int]:
    """Files and functions of the rooms that one `session.send` runs, its awaiting frames and its tasks.

    Other tasks of the engine, such as the trace writer, don't count.
    """
    from benchmarks.hosts import engine_on
    from benchmarks.per_call import QUESTION, long_session
    from tests.support.reply_server import reply_server

    files: set[str] = set()
    functions: set[tuple[str, str]] = set()
    tasks: set[asyncio.Task[object]] = set()

    def seen(frame: FrameType, event: str, _argument: object) -> None:
        code, task = frame.f_code, asyncio.current_task()
        if task is not None and not _is_of_a_call(task, sender):
            return
        if event == "call" and (inner := _place_in_rooms(code.co_filename)) is not None:
            files.add(inner)
            functions.add((inner, code.co_qualname))
            if task is not None:
                tasks.add(task)

    with reply_server(50) as url:
        async with engine_on(url, trace=True) as engine:
            session = long_session(engine, "messages")
            await session.send(QUESTION, max_output_tokens=1000)
            await engine.flush()
            sending = asyncio.create_task(session.send(QUESTION, max_output_tokens=1000))
            deepest = 0
            while not sending.done():
                await asyncio.sleep(0)
                ours = [task for task in asyncio.all_tasks() if _is_of_a_call(task, sending)]
                deepest = max(deepest, sum(map(_awaiting, ours)))
            sender = asyncio.current_task()
            sys.setprofile(seen)
            await session.send(QUESTION, max_output_tokens=1000)
            sys.setprofile(None)
    return {
        "files": len(files),
        "functions": len(functions),
        "awaiting frames": deepest,
        "tasks": len(tasks),
    }


def _place_in_rooms(file: str) -> str | None:
    path = Path(file).resolve()
    return name_of(path) if any((ROOT / room) in path.parents for room in ROOMS) else None


def _is_of_a_call(task: asyncio.Task[object], sending: asyncio.Task[object]) -> bool:
    return task is sending or any(f"{word} " in task.get_name() for word in ("turn", "call"))


def _awaiting(task: asyncio.Task[object]) -> int:
    count, waiting = 0, task.get_coro()
    while waiting is not None and (getattr(waiting, "cr_frame", None) or getattr(waiting, "gi_frame", None)):
        count += 1
        waiting = getattr(waiting, "cr_await", None) or getattr(waiting, "gi_yieldfrom", None)
    return count


def figures() -> list[tuple[str, object, str]]:
    """The rows of the table: name, figure, and target."""
    files = modules()
    total = sum(map(lines, files))
    core = [path for path in files if not in_annex(path)]
    small = [path for path in files if lines(path) < 50]
    importers = Counter(imported for _, imported in {(each.path, each.imported) for each in imports()})
    tests = list((ROOT / "tests").rglob("*.py"))
    call = asyncio.run(path_of_a_call())
    return [
        ("files in the rooms", len(files), "380"),
        ("lines in the rooms", total, "96,000"),
        ("lines a file, mean", total // len(files), "250"),
        ("lines of the core", sum(map(lines, core)), "66,000"),
        ("files of the core", len(core), ""),
        ("files under 50 lines", len(small), "25"),
        ("  that are no face or descriptor", sum(not is_small_by_nature(path) for path in small), ""),
        ("files with one importer", sum(importers[path] == 1 for path in files), "60"),
        ("files over 500 lines", sum(lines(path) > 500 for path in files), ""),
        ("imports of an annex by the core", len(crossings()), "0"),
        ("  that are not for type checkers only", sum(each.when != "types" for each in crossings()), ""),
        *((f"session.send: {what}", number, CALL_TARGETS[what]) for what, number in call.items()),
        ("test files", len(tests), ""),
        ("lines of tests", sum(map(lines, tests)), "78,000"),
    ]


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    if "--fence" in sys.argv:
        for each in crossings():
            print(f"{name_of(each.path)} imports {name_of(each.imported)} ({each.when})")
        sys.exit()
    for what, number, target in figures():
        print(f"{what:52} {number:>9,}   {f'target {target}' if target else ''}".rstrip())
