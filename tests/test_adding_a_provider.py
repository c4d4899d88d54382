"""The worked example of docs/adding-a-provider.md works, also in another project."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from callboard import Engine, ModelRegistry, create_adapter
from callboard.adapters.conformance import CHECKS, SECTIONS
from callboard.adapters.conformance.__main__ import main
from callboard.engine.models.configured import read_models_yaml
from tests.book.snippets import DOCS, codes

ROOT = Path(__file__).parents[1]
EXAMPLE = ROOT / "examples" / "adding_a_provider"
KIT_COMMAND = "callboard.adapters.conformance"
PAGE = DOCS / "adding-a-provider.md"


def run(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTEST_ADDOPTS": ""}
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    """The folder of another project, with the example as a package."""
    shutil.copytree(EXAMPLE, tmp_path / "my_provider", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "pytest.ini").write_text("[pytest]\n")  # pytest then reads no settings of a folder above
    return tmp_path


def test_the_example_passes_by_one_command(elsewhere: Path) -> None:
    """The command of the docs prints every check and the checklist in the other project."""
    (command,) = codes(PAGE, "console")
    words = command.removeprefix("$ python ").split()
    done = run(*[word.replace("examples.adding_a_provider", "my_provider") for word in words], cwd=elsewhere)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    head, table, sums, *points = re.split(r"\n\n|\n(?=\d+ passed)", done.stdout.strip())
    assert head == "parley"
    assert sums == f"{len(CHECKS) - 1} passed, 0 failed, 1 skipped"
    assert len(re.findall(r"^(passed|skipped) ", table, re.MULTILINE)) == len(CHECKS)
    assert "thinking_body" in table
    assert "[x] Streaming adapter implemented and tested" in points[0]
    assert "[?] Tool count threshold determined" in points[0]


@pytest.fixture
def here(elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The other project, as the working folder of this process."""
    monkeypatch.chdir(elsewhere)
    monkeypatch.setattr(sys, "path", [*sys.path])  # the command adds the working folder
    yield elsewhere
    for name in [name for name in sys.modules if name.partition(".")[0] == "my_provider"]:
        del sys.modules[name]


def test_a_broken_example_fails_by_the_command_and_in_pytest(
    here: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The exit code is 1. The output has the name of the check and the wrong value."""
    adapter = here / "my_provider" / "parley.py"
    adapter.write_text(
        adapter.read_text().replace('assembler.text("text", event.text', 'assembler.text("text", "x"')
    )
    assert main(["my_provider.kit:PARLEY", "-k", "deltas"]) == 1
    shown = capfd.readouterr().out
    assert "failed  5.3" in shown
    assert "deltas_add_up_to_the_final_content: of ['Hello, ☃!'] came ['xx']" in shown
    assert "[ ] Streaming adapter implemented and tested" in shown
    (here / "test_mine.py").write_text(
        codes(PAGE, "python")[2].replace("examples.adding_a_provider", "my_provider")
    )
    words = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "test_mine.py", "-k", "deltas or estimate")
    done = run(*words, cwd=here)
    assert done.returncode == 1
    assert "1 failed, 1 passed" in done.stdout
    assert "came ['xx']" in done.stdout


@pytest.mark.usefixtures("here")
def test_an_invalid_kit_is_refused_with_the_reason(capsys: pytest.CaptureFixture[str]) -> None:
    """The exit code is 2, and stderr has the reason. A list of the checks runs none."""
    for place, said in {
        "my_provider": "is not package.module:NAME",
        "nowhere.kit:X": "can't be imported",
        "my_provider.kit:NOBODY": "can't be imported",
        "my_provider.kit:TOKENS": "is not a callboard.adapters.conformance.Kit but dict",
    }.items():
        assert main([place]) == 2
        assert said in capsys.readouterr().err
    assert main(["--list", "-k", "cancel", "my_provider.kit:PARLEY"]) == 0
    listed = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert listed == [[check.section, check.name] for check in CHECKS if "cancel" in check.name]


def test_a_blocking_adapter_is_stopped(elsewhere: Path) -> None:
    """The command prints a traceback with the blocking line."""
    (elsewhere / "stuck.py").write_text(
        "import time\n"
        "from my_provider.kit import ParleyAdapter, ParleyKit\n"
        "class Stuck(ParleyAdapter):\n"
        "    def estimate_input_tokens(self, *given, **others):\n"
        "        time.sleep(100)\n"
        "class StuckKit(ParleyKit):\n"
        "    adapter = Stuck\n"
    )
    done = run("-m", KIT_COMMAND, "stuck:StuckKit", "-k", "estimate", "--patience", "0.5", cwd=elsewhere)
    assert done.returncode == 1
    assert "in estimate_input_tokens" in done.stderr
    assert "in the_estimate_needs_no_request" in done.stderr


def test_the_docs_name_every_section() -> None:
    rows = {
        section
        for row in re.findall(r"^\| ([\d., ]+) \|", PAGE.read_text(), re.MULTILINE)
        for section in row.split(", ")
    }
    assert rows == {check.section for check in CHECKS} == set(SECTIONS)


def test_the_docs_configurations_load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    for text in codes(PAGE, "yaml"):
        file = tmp_path / "models.yaml"
        file.write_text(text)
        for entry in read_models_yaml(file, {"PARLEY_API_KEY": "sk-parley"}).adapters.values():
            assert create_adapter(entry.type, entry.config, name=entry.name).name == entry.name


def test_the_docs_adapter_is_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    names: dict[str, Any] = {}
    exec(codes(PAGE, "python")[1], names)
    engine = Engine(models=ModelRegistry({}, {}), trace=False)
    names["with_parley"](engine, "sk-parley")
    assert engine.providers == {"parley": "configured"}
    assert engine.registry.resolve("parley:parley-2").model.adapter == "parley"


def test_the_docs_script_plays(capsys: pytest.CaptureFixture[str]) -> None:
    exec(codes(PAGE, "python")[3], {})
    assert capsys.readouterr().out == "Hello!\nHi\n"


def test_the_example_is_small() -> None:
    assert len((EXAMPLE / "parley.py").read_text().splitlines()) < 200
    assert len((EXAMPLE / "kit.py").read_text().splitlines()) < 70
