"""Plugins: adapters, tools and commands of an installed package, and what a broken one does to the rest."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from callboard.adapters import plugins
from callboard import ConfigurationError, Engine
from callboard.engine.cli import command_line
from callboard.engine.models.config import read_models_yaml
from callboard.engine.tools.plugins import plugin_tools

from ..support.plugins import install_plugins
from .running import start

MODELS = """
adapters:
  north: {type: lighthouse}
  south: {type: unlit}
models:
  north:lamp: {adapter: north, aliases: [lamp]}
  south:lamp: {adapter: south}
"""


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the package in it."""
    return install_plugins(tmp_path_factory.mktemp("packages"))


@pytest.fixture
def installed(packages: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The package on the path of this process."""
    monkeypatch.syspath_prepend(packages)
    forget()
    yield packages
    forget()


def forget() -> None:
    plugins.plugins.cache_clear()
    plugins._load.cache_clear()
    for name in [name for name in sys.modules if name.partition(".")[0] == "lighthouse"]:
        del sys.modules[name]


def run(*words: str, home: Path, packages: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[int, str, str]:
    """The exit code and the output of a command in a process that has the package on its path."""
    monkeypatch.setenv("PYTHONPATH", str(packages))
    with start(*words, home=home) as process:
        out, err = process.communicate(timeout=60)
    return process.returncode, out.decode(), err.decode()


def written(home: Path) -> Path:
    path = home / "models.yaml"
    path.write_text(MODELS)
    return path


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_an_adapter_of_a_plugin_is_a_type_in_models_yaml(installed: Path, home: Path) -> None:
    """It answers, although another adapter of the same package can't be loaded."""
    async with Engine(models=written(home), trace=False) as engine:
        assert (await engine.session("lamp").send("?")).text == "north shines"
        with pytest.raises(ConfigurationError, match=r"type 'unlit' of callboard-lighthouse 1\.2 can't be loaded"):
            await engine.session("south:lamp").send("?")


def test_without_the_plugin_the_type_is_unknown(home: Path) -> None:
    """The error is the one of any unknown type."""
    with pytest.raises(ConfigurationError, match="no adapter type 'lighthouse'"):
        read_models_yaml(written(home), {})


def test_a_tool_of_a_plugin_is_found_by_its_name(installed: Path) -> None:
    """A function, or several tools under one name."""
    (lamp,) = plugin_tools("lamp") or ()
    assert (lamp.name, lamp.definition.description) == ("light_lamp", "Light the lamp.")
    assert [tool.name for tool in plugin_tools("harbour") or ()] == ["open_harbour", "light_lamp"]
    assert plugin_tools("no_such") is None


def test_a_broken_tool_is_one_warning_that_names_it(installed: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Who asks for it by its name is told in an error; the others are there all the same."""
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            with pytest.raises(ConfigurationError, match=r"'fog' of callboard-lighthouse 1\.2 can't be loaded"):
                plugin_tools("fog")
    assert caplog.text.count("plugin_broken") == 1
    assert "fog" in caplog.text
    assert plugin_tools("lamp") is not None


def test_a_command_of_a_plugin_runs(packages: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own errors have the exit codes of all commands."""
    code, out, _ = run("beam", "--at", "you", home=home, packages=packages, monkeypatch=monkeypatch)
    assert (code, out) == (0, "the beam points at you\n")
    code, _, err = run("beam", "--at", "rocks", home=home, packages=packages, monkeypatch=monkeypatch)
    assert (code, err) == (1, "callboard: the beam points at rocks\n")


def test_a_broken_command_is_one_warning_and_an_unknown_command(
    packages: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if its module would end the process."""
    code, _, err = run("wreck", home=home, packages=packages, monkeypatch=monkeypatch)
    assert code == 2
    assert err.count("plugin_broken") == 1
    assert "SystemExit: the ship is lost" in err
    assert "there is no command 'wreck'" in err
    assert "Traceback" not in err


@pytest.mark.parametrize("words", [["traces", "--help"], ["--help"], ["--version"]])
def test_no_plugin_is_looked_for_on_the_way_to_our_own(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A plugin neither hides a command of ours nor costs it time."""

    def asked(name: str) -> None:
        raise AssertionError(name)

    monkeypatch.setattr(command_line, "plugin_command", asked)
    with pytest.raises(SystemExit) as ended:
        command_line.main(words)
    assert ended.value.code == 0


def test_the_list_shows_all_of_them_and_which_are_broken(
    packages: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the package that each comes from; a broken one is no failure of the list."""
    code, out, err = run("plugins", "--json", home=home, packages=packages, monkeypatch=monkeypatch)
    lines = {(line["kind"], line["name"]): line for line in map(json.loads, out.splitlines())}
    broken = {key for key, line in lines.items() if line["error"]}
    assert (code, err) == (0, "")
    assert {line["package"] for line in lines.values()} == {"callboard-lighthouse 1.2"}
    assert broken == {("adapters", "unlit"), ("tools", "fog"), ("commands", "wreck"), ("commands", "traces")}
    assert {("adapters", "lighthouse"), ("tools", "lamp"), ("commands", "beam")} <= lines.keys()
