"""The wheel in a host's environment whose folders and packages have the names of Callboard's rooms."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path, PurePosixPath

import pytest

from tests.book.snippets import codes
from tests.support.wheel import ROOT, WheelEnvironment, build_wheel, make_environment

pytestmark = pytest.mark.timeout(300)

PROGRAM = """
import asyncio
from callboard import Engine
from callboard.adapters.providers.scripted import ScriptedAdapter

async def main() -> None:
    async with Engine(trace=False, providers={"toy": ScriptedAdapter(replies=["Hello"])}) as engine:
        print((await engine.session("toy:m").send("Hi")).text)

asyncio.run(main())
"""

DATA = """
import callboard
from callboard import PriceTable
from callboard.adapters.provider import model_table, tabled_vendors
from callboard.adapters.requests.estimate import rate_rows

print(".zip" in callboard.__file__, len(PriceTable.default().rows) > 100)
print(all(model_table(vendor).rows for vendor in tabled_vendors()), len(rate_rows("anthropic")) > 0)
"""

ROOMS = ("bus", "adapters", "tracestore", "engine")
FOR_THE_DEMO = ("engine/cli/demo-prices.yaml", "engine/cli/cassettes")
SHIPPED = {
    *[".py", ".pyi", ".sql", ".typed", ".json", ".jsonl", ".yaml", ".css", ".html", ".js", ".mjs", ".svg", ".txt"]
}


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> WheelEnvironment:
    """An environment with the wheel and with another package named `adapters`, which PyPI also has."""
    environment = make_environment(tmp_path_factory.mktemp("installed"))
    theirs = environment.libraries / "adapters"
    theirs.mkdir()
    (theirs / "__init__.py").write_text("raise SystemExit('this is not our adapters')\n")
    return environment


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(tmp_path_factory.mktemp("built"))


@pytest.fixture
def host(tmp_path: Path) -> Path:
    """A host's project, whose folders are named like Callboard's rooms. Their import ends the program."""
    for room in ROOMS:
        (tmp_path / room).mkdir()
        (tmp_path / room / "__init__.py").write_text(f"raise SystemExit('this {room} is the host own')\n")
    return tmp_path


def run(installed: WheelEnvironment, folder: Path, *words: str | Path) -> str:
    """Run the environment's interpreter in a folder. Returns its output. stderr must be empty."""
    environment = {**os.environ, "CALLBOARD_HOME": str(folder / "home"), "PYTHONUTF8": "1"}
    environment.pop("PYTHONPATH", None)
    done = subprocess.run(
        [installed.python, *words],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
    return done.stdout


def programs(folder: Path) -> list[Path]:
    """Write README's programs to files."""
    files = []
    for number, code in enumerate(codes(ROOT / "README.md", "python")):
        files.append(folder / f"program_{number}.py")
        files[-1].write_text(code)
    assert len(files) == 2
    return files


def strict_mypy(installed: WheelEnvironment) -> tuple[str | Path, ...]:
    """The command of `mypy --strict`. Its cache is kept for the next test."""
    return "-m", "mypy", "--strict", "--cache-dir", installed.wheel.with_name("mypy_cache")


@pytest.mark.deep("a small program in the installed wheel is the quick case")
def test_readmes_programs_are_typed_next_to_folders_with_the_names_of_rooms(
    installed: WheelEnvironment, host: Path
) -> None:
    """A host's `mypy --strict` finds the types of the wheel."""
    pytest.importorskip("mypy")
    run(installed, host, *strict_mypy(installed), *programs(host))


@pytest.mark.deep("a small program in the installed wheel is the quick case")
def test_the_example_of_an_adapter_is_typed_by_the_wheel(installed: WheelEnvironment, tmp_path: Path) -> None:
    """The example has an adapter and its kit. An author of a provider starts with both."""
    pytest.importorskip("mypy")
    shutil.copytree(ROOT / "examples" / "adding_a_provider", tmp_path / "adding_a_provider")
    run(installed, tmp_path, *strict_mypy(installed), "adding_a_provider")


@pytest.mark.deep("a package install")
def test_a_program_and_the_commands_run_next_to_folders_with_the_names_of_rooms(
    installed: WheelEnvironment, host: Path
) -> None:
    """A session on a scripted model imports every room of Callboard, and none of the host's folders. `callboard`,
    `python -m callboard` and the module of the conformance kit run.
    """
    assert run(installed, host, "-c", PROGRAM) == "Hello\n"
    script = installed.python.with_name("callboard")
    assert run(installed, host, script, "--version").startswith("callboard ")
    assert "reprice" in run(installed, host, "-m", "callboard", "--help")
    assert "example prices" in run(installed, host, script, "demo", "--cassettes", "--plain")
    help_of_the_kit = run(installed, host, "-m", "callboard.adapters.conformance", "--help")
    assert help_of_the_kit.startswith("usage: python -m callboard.adapters.conformance ")


def test_the_wheel_holds_one_package_and_no_more(wheel: Path) -> None:
    """The wheel has modules, types, prices, tables of models and the demo's recordings. It has no tests."""
    names = [PurePosixPath(name) for name in zipfile.ZipFile(wheel).namelist()]
    ours = [name for name in names if not name.parts[0].endswith(".dist-info")]
    assert {name.parts[0] for name in ours} == {"callboard"}
    assert {name.suffix for name in ours} <= SHIPPED
    assert not {"tests", "test", "__pycache__"} & {part for name in ours for part in name.parts}
    data = ("tracestore/prices/snapshots/prices.json", "adapters/servers/replies.jsonl")
    steps = (f"tracestore/{store}/steps.sql" for store in ("sqlite", "postgres"))
    for needed in (*data, *steps, *FOR_THE_DEMO):
        assert [name for name in ours if name.is_relative_to(PurePosixPath("callboard", needed))]
    assert PurePosixPath("callboard/py.typed") in ours


@pytest.mark.deep("a small program in the installed wheel is the quick case")
def test_a_wheel_from_the_sdist_is_the_same(installed: WheelEnvironment, tmp_path: Path) -> None:
    """The sdist has every file that a wheel needs, and no tests."""
    build = [sys.executable, "-m", "hatchling", "build", "-d", tmp_path / "made", "-t"]
    subprocess.run([*build, "sdist"], cwd=ROOT, check=True, capture_output=True)
    (sdist,) = (tmp_path / "made").glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        assert not [name for name in archive.getnames() if PurePosixPath(name).parts[1:2] == ("tests",)]
        archive.extractall(tmp_path, filter="data")
    subprocess.run(
        [*build, "wheel"], cwd=tmp_path / sdist.name.removesuffix(".tar.gz"), check=True, capture_output=True
    )
    (wheel,) = (tmp_path / "made").glob("*.whl")
    assert sums(wheel) == sums(installed.wheel)


def sums(wheel: Path) -> dict[str, int]:
    """The checksum of each file."""
    return {entry.filename: entry.CRC for entry in zipfile.ZipFile(wheel).infolist()}


def test_the_data_of_the_package_is_read_from_a_zip_file(wheel: Path, tmp_path: Path) -> None:
    """Prices, tables of models and rates of tokens are read from a zip file, such as the wheel."""
    copy = tmp_path / "callboard.zip"
    copy.write_bytes(wheel.read_bytes())
    program = f"import sys; sys.path.insert(0, {str(copy)!r})\n{DATA}"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, check=True, capture_output=True, text=True
    )
    assert done.stdout == "True True\nTrue True\n"
