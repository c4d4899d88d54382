"""What is installed elsewhere is one package, `callboard`, whatever else a host's own folders are called."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import callboard
import engine
from scripts.one_package import ROOMS, CannotRewrite, build, named_in_strings, rewritten

ROOT = Path(__file__).parents[2]

PROGRAM = """
import asyncio
from callboard import Bus, Engine, Message, PriceTable, generate
from callboard.adapters.providers.scripted import ScriptedAdapter

async def main() -> None:
    async with Engine(trace=False, providers={"toy": ScriptedAdapter(replies=["Hello"])}) as engine:
        print((await engine.session("toy:m").send("Hi")).text)

asyncio.run(main())
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that holds what a wheel holds."""
    folder = tmp_path_factory.mktemp("site")
    build(ROOT, folder / "callboard")
    return folder


@pytest.fixture
def host(tmp_path: Path) -> Path:
    """A host's own project, with folders that are called like our rooms and can't be imported by mistake."""
    for room in ROOMS:
        (tmp_path / room).mkdir()
        (tmp_path / room / "__init__.py").write_text(f"raise SystemExit('this {room} is the host own')")
    return tmp_path


def run(words: list[str], host: Path, installed: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(host), str(installed)])}
    return subprocess.run(
        [sys.executable, *words],
        cwd=host,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_a_program_runs_beside_folders_called_like_ours(host: Path, installed: Path) -> None:
    """A session on a scripted model: every room takes part, and none of the host's is touched."""
    ran = run(["-c", PROGRAM], host, installed)
    assert (ran.stdout, ran.stderr) == ("Hello\n", "")


def test_the_command_runs_beside_folders_called_like_ours(host: Path, installed: Path) -> None:
    """By `python -m callboard`, and the conformance kit by its own name."""
    assert run(["-m", "callboard", "--version"], host, installed).stdout.startswith("callboard ")
    assert "kit" in run(["-m", "callboard.adapters.conformance", "--help"], host, installed).stdout


def test_no_module_of_the_package_names_a_room_by_itself(installed: Path) -> None:
    """Not even in an import that only some programs come by."""
    left = [
        path.relative_to(installed)
        for path in installed.rglob("*.py")
        if rewritten(path.read_text("utf-8"), str(path)) != path.read_text("utf-8")
    ]
    assert left == []


def test_the_package_has_every_public_name_of_the_rooms() -> None:
    """And a name means the same object, however it is imported."""
    for room in ROOMS:
        module = sys.modules[room]
        assert set(module.__all__) <= set(callboard.__all__)
        assert sys.modules[f"callboard.{room}"] is module
    assert callboard.Engine is engine.Engine
    with pytest.raises(AttributeError, match="no attribute 'Engin'") as caught:
        callboard.Engin  # noqa: B018
    assert caught.value.obj is callboard  # by which Python says what may have been meant


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("from bus.values import usage\n", "from callboard.bus.values import usage\n"),
        ("def f():\n    from engine import Engine, x\n", "def f():\n    from callboard.engine import Engine, x\n"),
        ("import adapters.contract as c, os\n", "import callboard.adapters.contract as c, os\n"),
        ("x = '\u2028'\nfrom bus import y\n", "x = '\u2028'\nfrom callboard.bus import y\n"),
        ("import bus as a, engine as b\n", "import callboard.bus as a, callboard.engine as b\n"),
        ("import bus, engine\n", "import callboard.bus as bus, callboard.engine as engine\n"),
        ("from .bus import x\nfrom busy import y\nimport engineering\n", None),
        ("'ä'; from tracestore import (\n    a,\n)\n", "'ä'; from callboard.tracestore import (\n    a,\n)\n"),
    ],
)
def test_imports_of_rooms_become_imports_from_the_package(source: str, expected: str | None) -> None:
    """Absolute ones, wherever they stand; all others stay."""
    assert rewritten(source, "x.py") == (source if expected is None else expected)


def test_what_would_mean_something_else_is_refused() -> None:
    """`import bus.values` binds `bus`, which is no name of the package's; and nobody rewrites strings."""
    with pytest.raises(CannotRewrite, match=r"x\.py:1: import bus\.values needs an `as`"):
        rewritten("import bus.values\n", "x.py")
    with pytest.raises(CannotRewrite, match=r"x\.py:1: expected `from bus` in one piece"):
        rewritten("from  bus import x\n", "x.py")
    modules = frozenset({"adapters.contract"})
    assert named_in_strings("x = 'adapters.contract:Adapter'\ny = '.contract:Adapter'\n", modules) == [
        (1, "adapters.contract:Adapter")
    ]
    assert named_in_strings("log = Log('adapters.contract')\n", modules) == []
