"""Imports point in one direction, each I/O library is used in one place, and importing a package loads no
library.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import importlib.util
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

import pytest

from callboard.engine.cli.command_line import COMMANDS, build_parser
from scripts.house import nodes
from scripts.make_stubs import faces, stub, table, whole

ROOT = Path(__file__).parent.parent.parent
PACKAGES = ("bus", "adapters", "tracestore", "engine")
"""The packages of Callboard. Each may import those before it."""

HOMES: dict[str, tuple[str, ...]] = {
    "httptools": ("adapters/transport/http1_connection.py",),
    "httpx": ("adapters/transport/httpx_transport.py",),
    "httpcore": ("adapters/transport/httpx_transport.py",),
    "sqlite3": ("tracestore/foreign_rows.py", "tracestore/sqlite/", "tracestore/collections.py"),
    "aiosqlite": ("tracestore/sqlite/database.py", "tracestore/sqlite/"),
    "psycopg": ("tracestore/postgres/",),
    "nats": ("engine/nodes/broker.py", "engine/nodes/broker_streams.py"),
    "starlette": ("engine/web_view/",),
    "uvicorn": ("engine/cli/serve.py", "engine/gateway/server.py"),
}  # fmt: skip
"""For each I/O library, the modules or folders of modules that may import it."""

LAZY = (
    "httpx", "aiosqlite", "psycopg", "nats", "starlette", "uvicorn", "ulid", "structlog", "yaml", "rich",
    "xllamacpp", "httpcore", "httptools", "certifi", "h11", "opentelemetry", "pyarrow", "numpy", "jsonschema",
    "referencing", "attr", "pydantic", "mcp", "anyio.from_thread", "difflib", "email", "hashlib", "html",
    "importlib.metadata", "mimetypes", "queue", "random", "shlex",
)  # fmt: skip
"""Libraries that are imported at their first use."""

LATE_PARTS = {
    "adapters": ("http.errors", "http.adapter", "http.retry", "embeddings", "images", "videos"),
    "tracestore": (*("sqlite.upkeep", "sql.expiry", "sql.pruning", "sqlite.trace_file", "replay"),
        *("sql.listing", "sqlite.store", "sqlite.database", "writing.writer")),
    "engine": (*("cli", "type_schema", "gateway", "watching.health", "watching.preview", "web_view"),
        *("schema_checks", "object_functions", "generation.object_stream", "generation.objects", "sync"),
        *("nodes", "nodes.node"), "operations.batch_creation", "operations.videos",
        *("operations.embeddings_and_images", "middleware.ready_made", "tools.running")),
}  # fmt: skip
"""Parts that only some programs use. `import engine` does not load them."""


NO_FAKES = tuple(
    f"tests.{path.stem}"
    for path in sorted((ROOT / "tests").iterdir())
    if path.name != "support" and not path.name.startswith((".", "__"))
)
"""The parts of `tests` other than the shared fakes."""


def modules(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


@cache
def imports(path: Path) -> Sequence[tuple[str, int]]:
    """Return every module that a file imports, with its line. A room's modules have no `callboard.` prefix."""
    return tuple((name.removeprefix("callboard."), line) for name, line in _imports(path))


@cache
def lines_for_types(path: Path) -> frozenset[int]:
    """The lines that only type checkers read."""
    return frozenset(
        line
        for node in nodes(path, ast.If)
        if isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    )


def _imports(path: Path) -> Iterator[tuple[str, int]]:
    package = ".".join(path.relative_to(ROOT).parent.parts)
    for node in nodes(path, ast.Import):
        for alias in node.names:
            yield alias.name, node.lineno
    for node in nodes(path, ast.ImportFrom):
        base = node.module or ""
        if node.level:
            above = package.split(".")[: len(package.split(".")) - node.level + 1]
            base = ".".join([*above, *([node.module] if node.module else [])])
        for alias in node.names:
            yield f"{base}.{alias.name}", node.lineno
    for node in nodes(path, ast.Call):
        if name_called(node).endswith("import_module") and node.args:
            target = node.args[0]
            if isinstance(target, ast.Constant) and isinstance(target.value, str):
                yield target.value, node.lineno


def name_called(call: ast.Call) -> str:
    """The last part of the function's name."""
    match call.func:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
        case _:
            return ""


def python(code: str, *, path: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run code in a new interpreter. Its import path has `path`, if set, and then this project."""
    places = [str(place) for place in (path, ROOT) if place is not None]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(places)}
    return subprocess.run(
        [sys.executable, "-c", code], env=environment, cwd="/", capture_output=True, text=True, timeout=60,
        check=False,
    )  # fmt: skip


def test_imports_point_one_way() -> None:
    """The order is bus ← adapters ← tracestore ← engine. It includes imports for type checkers."""
    wrong = [
        f"{path.relative_to(ROOT)}:{line} imports {name}"
        for place, package in enumerate(PACKAGES, 1)
        for path in modules(package)
        for name, line in imports(path)
        if name.split(".")[0] in (*PACKAGES[place:], "tests", "benchmarks", "labs", "cassettes", "examples")
    ]
    assert wrong == []


@pytest.mark.parametrize(("folder", "above"), [
    ("tests/support", ("labs", "benchmarks")),
    ("labs", ("benchmarks", *NO_FAKES)),
    ("benchmarks", ("labs", *NO_FAKES)),
    ("tests", ("labs", "benchmarks")),
], ids=lambda value: value if isinstance(value, str) else "")  # fmt: skip
def test_labs_and_benchmarks_only_import_the_shared_fakes(folder: str, above: tuple[str, ...]) -> None:
    """tests/support ← labs, benchmarks ← the tests of each. Labs and benchmarks don't import each other."""
    wrong = [
        f"{path.relative_to(ROOT)}:{line} imports {name}"
        for path in modules(folder)
        if any(each.rpartition(".")[2] in path.read_text(encoding="utf-8") for each in above)
        if not {ROOT / "tests/labs", ROOT / "tests/servers"} & set(path.parents)
        and path != ROOT / "tests/test_benchmarks.py"
        for name, line in imports(path)
        if name.startswith(tuple(f"{each}." for each in above))
    ]
    assert wrong == []


def test_each_io_library_has_one_home() -> None:
    """Other modules use HTTP or SQLite through those modules. Every module may import a library's types."""
    found = {
        (str(path.relative_to(ROOT)), library)
        for package in PACKAGES
        for path in modules(package)
        for name, line in imports(path)
        if (library := name.split(".")[0]) in HOMES and line not in lines_for_types(path)
    }
    assert {library for _, library in found} == set(HOMES)
    assert {(path, library) for path, library in found if not path.startswith(HOMES[library])} == set()


def test_yaml_is_read_in_one_module_of_each_package_that_reads_it() -> None:
    """The trace store reads price files, and the engine reads the configuration."""
    found = [
        path.relative_to(ROOT)
        for package in PACKAGES
        for path in modules(package)
        if any(name.split(".")[0] == "yaml" for name, _ in imports(path))
    ]
    assert {path.parts[0] for path in found} <= {"tracestore", "engine"}
    assert len(found) == len({path.parts[0] for path in found}), found


def test_the_engine_has_no_sql() -> None:
    """The engine calls methods of the store."""
    query = re.compile(r"\b(SELECT|UPDATE|DELETE|INSERT|WITH)\b.*\b(FROM|SET|INTO|AS)\b", re.DOTALL)
    found = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in modules("engine")
        for node in nodes(path, ast.Constant)
        if isinstance(node.value, str) and query.search(node.value)
    ]
    assert found == []


def test_the_engine_depends_on_the_store_protocol() -> None:
    """One file chooses the store for a path. The rest of the engine uses the protocol of the store."""
    found = {
        str(path.relative_to(ROOT))
        for path in modules("engine")
        for name, _ in imports(path)
        if name.startswith(("tracestore.sqlite", "tracestore.sql.")) or name == "tracestore.TraceStore"
    }
    assert found <= {"engine/stores.py"}


def test_common_sql_has_no_sqlite_syntax() -> None:
    """Another database can run the statements of `tracestore/sql` with its own dialect."""
    only_sqlite = re.compile(
        r"\b(PRAGMA|GLOB|INDEXED|WITHOUT ROWID|STRICT|INSERT OR|json_\w+\(|instr\(|typeof\(|total\(|changes\(\))|"
        r"\b(temp|main)\.|\bLIMIT -1|[^_](max|min)\([^()]*,"
    )
    found = []
    for path in [*sorted((ROOT / "tracestore" / "sql").rglob("*.py")), ROOT / "tracestore" / "gateway.py"]:
        wrong = {name for name, _ in imports(path) if name.startswith("tracestore.sqlite")}
        texts = (node.value for node in nodes(path, ast.Constant))
        wrong |= {text for text in texts if isinstance(text, str) and only_sqlite.search(text)}
        found += [f"{path.relative_to(ROOT)}: {text}" for text in wrong]
    assert found == []


FLAT = re.compile(
    r"^\s*(?:from|import) (?:bus|adapters|tracestore|engine)(?:\.\w+)*(?: import | as |$|,)", re.MULTILINE
)
PERHAPS_FLAT = re.compile(r"\b(?:from|import)\s+(?:bus|adapters|tracestore|engine)\b")
"""A text that does not match has no such import, so it is not parsed."""


def test_a_module_has_one_name() -> None:
    """The name is `callboard.bus`. An import of `bus` would load a second copy. Programs in strings are checked,
    too.
    """
    found = [
        str(path.relative_to(ROOT))
        for folder in (*PACKAGES, "tests", "labs", "benchmarks", "examples", "cassettes", "scripts", "docs")
        for path in modules(folder)
        if PERHAPS_FLAT.search(path.read_text(encoding="utf-8"))
        for node in nodes(path, ast.Constant, ast.ImportFrom, ast.Import)
        if (isinstance(node, ast.Constant) and isinstance(node.value, str) and FLAT.search(node.value))
        or (isinstance(node, ast.ImportFrom) and not node.level and (node.module or "").split(".")[0] in PACKAGES)
        or (isinstance(node, ast.Import) and any(each.name.split(".")[0] in PACKAGES for each in node.names))
    ]
    assert found == []


PROVIDERS = ROOT / "adapters" / "providers"


def test_no_provider_imports_another() -> None:
    """Code that two providers need is outside of both."""
    wrong = [
        f"{path.relative_to(ROOT)}:{line} imports {name}"
        for folder in PROVIDERS.iterdir()
        if folder.name != "local"  # one model behind all three protocols uses the other adapters
        for path in sorted(folder.rglob("*.py"))
        for name, line in imports(path)
        if name.startswith("adapters.providers.") and name.split(".")[2] != folder.name
    ]
    assert wrong == []


def test_shared_code_imports_no_provider() -> None:
    """Only `adapters/__init__.py` imports providers, for type checkers. Other code uses their descriptors."""
    wrong = [
        f"{path.relative_to(ROOT)}:{line} imports {name}"
        for path in modules("adapters")
        if PROVIDERS not in path.parents and path != ROOT / "adapters" / "__init__.py"
        for name, line in imports(path)
        if name.startswith("adapters.providers.")
    ]
    assert wrong == []


def test_packages_are_typed_and_list_their_names() -> None:
    """Each package has `py.typed`, and an `__all__` without repetition whose names exist."""
    for package in PACKAGES:
        assert (ROOT / package / "py.typed").exists()
        face = importlib.import_module(f"callboard.{package}")
        assert [name for name in face.__all__ if not hasattr(face, name)] == []
        assert len(face.__all__) == len(set(face.__all__))


CORE = {"bus": "Actor, Bus, Message, Supervisor", "engine": "Engine, Session, generate, list_models, stream"}
"""The names that most programs import from a package with lazy names."""


@cache
def loaded_by(*packages: str) -> set[str]:
    """Return the modules that an import of the packages adds to those of any asynchronous program with a
    database.
    """
    floor = "import asyncio, json, sqlite3, ssl, sys; floor = set(sys.modules)"
    wanted = "; ".join(f"from callboard.{package} import {CORE.get(package, '__all__')}" for package in packages)
    run = python(f"{floor}; {wanted}; print(json.dumps(sorted(set(sys.modules) - floor)))")
    assert run.returncode == 0, run.stderr
    return {name.removeprefix("callboard.") for name in json.loads(run.stdout)}


def test_importing_a_package_loads_nothing_heavy() -> None:
    """HTTP, databases, ids, logging, YAML and terminals are imported at their first use."""
    assert (loaded_by("bus", "adapters", "tracestore") | loaded_by("engine")) & set(LAZY) == set()


def test_importing_the_engine_does_not_load_optional_parts() -> None:
    """Images, objects, running tools and the upkeep of a trace load their imports at their first use. Tables and
    snapshots are read when a program first needs a model.
    """
    parts = {f"{package}.{part}" for package, parts in LATE_PARTS.items() for part in parts}
    assert {part for part in parts if not importlib.util.find_spec(f"callboard.{part}")} == set(), (
        "these modules were renamed: write their new names here"
    )
    late = {"adapters.model_table", "adapters.providers", "engine.models.unlisted_names"}
    late |= {"tracestore.prices.files", "tracestore.prices.source"}
    assert loaded_by("engine") & (parts | late) == set()
    assert "engine.models.catalogue" in loaded_by("engine")


LATE_NAMES = [".".join(path.relative_to(ROOT).parent.parts) for path in faces()]
"""The packages whose names are imported at their first use (see `bus._lazy_names`)."""


def test_stubs_have_the_names_of_the_packages() -> None:
    """If this test fails, run `python scripts/make_stubs.py`."""
    assert [path for path in faces() if path.with_suffix(".pyi").read_text(encoding="utf-8") != stub(path)] == []
    assert (ROOT / "callboard/__init__.pyi").read_text(encoding="utf-8") == whole()


def test_no_public_name_is_a_module_of_its_package() -> None:
    """An import of such a module would replace the name."""
    folders = [ROOT.joinpath(*package.split(".")) for package in LATE_NAMES]
    names = [
        folder / name for folder in folders for names in table(folder / "__init__.py").values() for name in names
    ]
    assert [path for path in names if path.exists() or path.with_suffix(".py").exists()] == []


def test_lazy_names_are_listed_and_misspelt_names_get_a_suggestion() -> None:
    """Lazy names behave as if they were imported."""
    run = python(
        "import importlib, sys\n"
        f"for package in {LATE_NAMES!r}:\n"
        "    p = importlib.import_module(f'callboard.{package}')\n"
        "    assert set(p.__all__) <= set(dir(p)), set(p.__all__) - set(dir(p))\n"
        "    late = next((name for name in p.__all__ if name not in vars(p)), p.__all__[0])\n"
        "    assert getattr(p, late) is vars(p)[late]\n"
        "    try: getattr(p, late + 'x')\n"
        "    except AttributeError: sys.excepthook(*sys.exc_info())\n"
    )
    assert run.returncode == 0, run.stderr
    corrected = r"AttributeError: module 'callboard\.(.+)' has no attribute '(\w+)x'\. Did you mean: '\2'"
    assert [package for package, _ in re.findall(corrected, run.stderr)] == LATE_NAMES, run.stderr


def test_each_command_is_added_under_its_name() -> None:
    """The module of the table adds the command, with the help text that `callboard --help` shows."""
    for command in COMMANDS:
        added = subparsers(build_parser([command]))
        assert list(added.choices) == [command]
        assert [choice.help for choice in added._choices_actions] == [COMMANDS[command].help]


def test_help_lists_every_command() -> None:
    """The help has the lines of the table in the order of the table."""
    listed = subparsers(build_parser(()))._choices_actions
    assert [(choice.dest, choice.help) for choice in listed] == [(name, e.help) for name, e in COMMANDS.items()]


def subparsers(parser: argparse.ArgumentParser) -> argparse._SubParsersAction[argparse.ArgumentParser]:
    (found,) = (action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    return found


def test_help_imports_nothing_of_the_library_and_a_command_no_other_command() -> None:
    """`--help`, `--version` and a misspelt command only load a few small modules."""
    run = python(
        "import contextlib, io, json, sys; from callboard.engine.cli import main\n"
        "found = []\n"
        "for words in (['--help'], ['--version'], ['chta'], ['cost', '--help']):\n"
        "    with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()): main(words)\n"
        "    found.append([name.removeprefix('callboard.') for name in sys.modules])\n"
        "print(json.dumps(found))"
    )
    *_, loaded, of_cost = (set(names) for names in json.loads(run.stdout))
    assert {name for name in loaded if name.partition(".")[0] in PACKAGES} == {
        *("bus", "bus._lazy_names", "engine", "engine.cli", "engine.cli.command_line"),
        "engine.cli.sanitize",
    }
    assert loaded & {"anyio", "asyncio", "msgspec", "rich"} == set()
    places = {entry.place.partition(":")[0] for entry in COMMANDS.values()}
    assert places & {name.removeprefix("engine.cli.") for name in of_cost} == {"cost"}
