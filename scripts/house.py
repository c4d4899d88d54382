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
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from types import FrameType

ROOT = Path(__file__).parent.parent
ROOMS = ("bus", "adapters", "tracestore", "engine")

ANNEXES = (
    *("adapters/cassettes.py", "adapters/conformance"),
    *("adapters/providers/cassette", "adapters/providers/local", "adapters/providers/scripted"),
    *("adapters/images.py", "adapters/videos.py", "adapters/operations/videos.py"),
    *("adapters/operations/media_wire.py", "adapters/protocols/openai_images.py"),
    *("adapters/protocols/openai_videos.py", "adapters/providers/gemini/images.py"),
    *("adapters/providers/gemini/videos.py", "adapters/providers/openai/images.py"),
    *("tracestore/nodes.py", "tracestore/postgres", "tracestore/shipping"),
    *("engine/cli", "engine/nodes", "engine/web_view"),
    *("engine/operations/images.py", "engine/operations/videos.py"),
)
"""Parts that one need not know to understand the rest: the command line, the live view, nodes, PostgreSQL and
shipping, images and videos, the testing kit and the local model."""


def modules() -> list[Path]:
    """All modules of the four rooms."""
    return [path for room in ROOMS for path in sorted((ROOT / room).rglob("*.py"))]


def lines(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines())


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def in_annex(path: Path) -> bool:
    return any(name_of(path) == annex or name_of(path).startswith(f"{annex}/") for annex in ANNEXES)


def is_small_by_nature(path: Path) -> bool:
    """Whether a file is a package's docstring, its face or a provider's descriptor."""
    return path.name in {"__init__.py", "__main__.py"}


@cache
def imports() -> Mapping[Path, frozenset[Path]]:
    """Each module with the modules that it imports anywhere in its text."""
    files = {
        "callboard." + name_of(path)[:-3].replace("/", ".").removesuffix(".__init__"): path for path in modules()
    }
    found = {}
    for name, path in files.items():
        named = set(_imported(name if path.name == "__init__.py" else name.rpartition(".")[0], path))
        owners = {files.get(each) or files.get(each.rpartition(".")[0]) for each in named}
        found[path] = frozenset(owner for owner in owners if owner is not None and owner != path)
    return found


def _imported(package: str, path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parts = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            module = ".".join([*parts, *([node.module] if node.module else [])])
            yield from (f"{module}.{alias.name}" for alias in node.names)


def broken_fences() -> list[tuple[str, str]]:
    """Imports of an annex by the core, as (core module, annex module)."""
    return [
        (name_of(path), name_of(other))
        for path, imported in imports().items()
        if not in_annex(path)
        for other in sorted(imported)
        if in_annex(other)
    ]


async def path_of_a_call() -> dict[str, int]:
    """Files and functions of the rooms that one `session.send` runs, its awaiting frames and its tasks."""
    from benchmarks.hosts import engine_on
    from benchmarks.per_call import QUESTION, long_session
    from tests.support.reply_server import reply_server

    files: set[str] = set()
    functions: set[tuple[str, str]] = set()
    tasks: set[asyncio.Task[object] | None] = set()

    def seen(frame: FrameType, event: str, _argument: object) -> None:
        code = frame.f_code
        if event == "call" and (inner := _place_in_rooms(code.co_filename)) is not None:
            files.add(inner)
            functions.add((inner, code.co_qualname))
            tasks.add(asyncio.current_task())

    with reply_server(50) as url:
        async with engine_on(url, trace=True) as engine:
            session = long_session(engine, "messages")
            await session.send(QUESTION, max_output_tokens=1000)
            await engine.flush()
            sending = asyncio.create_task(session.send(QUESTION, max_output_tokens=1000))
            deepest = 0
            while not sending.done():
                await asyncio.sleep(0)
                deepest = max(
                    deepest, sum(_awaiting(task) for task in asyncio.all_tasks() if _is_of_a_call(task, sending))
                )
            sys.setprofile(seen)
            await session.send(QUESTION, max_output_tokens=1000)
            sys.setprofile(None)
    return {
        "files": len(files),
        "functions": len(functions),
        "awaiting frames": deepest,
        "tasks": len(tasks - {None}),
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
    """The rows of the table: what, how much, and the target."""
    files = modules()
    total = sum(map(lines, files))
    core = [path for path in files if not in_annex(path)]
    small = [path for path in files if lines(path) < 50]
    importers = Counter(path for imported in imports().values() for path in imported)
    tests = list((ROOT / "tests").rglob("*.py"))
    call = asyncio.run(path_of_a_call())
    return [
        ("files in the rooms", len(files), "380"),
        ("lines in the rooms", total, "96,000"),
        ("lines a file, mean", total // len(files), "250"),
        ("lines of the core", sum(map(lines, core)), "66,000"),
        ("files of the core", len(core), ""),
        ("files under 50 lines", len(small), "25"),
        (
            "  of them no package docstring, face or descriptor",
            sum(not is_small_by_nature(path) for path in small),
            "",
        ),
        ("files with one importer", sum(importers[path] == 1 for path in files), "60"),
        ("files over 500 lines", sum(lines(path) > 500 for path in files), ""),
        ("imports of an annex by the core", len(broken_fences()), "0"),
        *(
            (f"session.send: {what}", number, target)
            for (what, number), target in zip(call.items(), ("60", "", "18", "2"), strict=True)
        ),
        ("test files", len(tests), ""),
        ("lines of tests", sum(map(lines, tests)), "78,000"),
    ]


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    if "--fence" in sys.argv:
        for core_module, annex_module in broken_fences():
            print(f"{core_module} imports {annex_module}")
        sys.exit()
    for what, number, target in figures():
        print(f"{what:52} {number:>9,}   {f'target {target}' if target else ''}".rstrip())
