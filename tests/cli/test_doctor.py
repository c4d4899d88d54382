"""`callboard doctor` as a process: its checks, its advice, and its exit codes."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from callboard import ConfigurationError, Engine
from callboard.adapters import provider as registry
from callboard.adapters.providers.local.child import find_model
from callboard.engine.cli import command_line
from callboard.engine.cli.doctor import age_in_days
from callboard.engine.tools.definitions import plugin_tools
from tests.support.virtual_time import FakeClock

from ..support.plugins import install_plugins
from ..support.provider_server import provider_server, refusing_url
from .running import at_terminal, call

KEY = "sk-a-key-that-nobody-may-see"
ADAPTERS = "adapters:\n  here: {{type: openai_compatible, api_key: {key}, base_url: {url}}}\n"
MODELS = "models:\n  here:m: {adapter: here, aliases: [first]}\ndefault_model: first\n"


def configure(home: Path, url: str, more: str = "") -> None:
    path = home / "models.yaml"
    path.write_text(ADAPTERS.format(key=KEY, url=url) + more + MODELS)
    path.chmod(0o600)


def line(out: str, name: str) -> str:
    """The only line of the check."""
    (found,) = [text for text in out.splitlines() if text.split()[1:2] == [name]]
    return found


def test_a_good_configuration_passes_with_one_request_to_the_provider(traced: Path) -> None:
    with provider_server() as server:
        configure(traced, server.url)
        done = call("doctor", home=traced)
        assert [(asked.method, asked.path) for asked in server.asked] == [("GET", "/v1/models")]
        assert server.asked[0].headers["authorization"] == f"Bearer {KEY}"
    assert done.returncode == 0, done.stdout + done.stderr
    assert "All checks passed." in done.stdout
    assert "FAIL" not in done.stdout
    assert line(done.stdout, "provider:here").startswith("ok")
    assert "opens and passed its integrity check" in line(done.stdout, "store")
    assert "SQLite" in line(done.stdout, "store:locking")
    assert done.stderr.count("api_key_in_file") == 1
    assert KEY not in done.stdout + done.stderr


def test_without_a_configuration_the_local_model_can_be_used(home: Path) -> None:
    """A missing key of an unused adapter is a hint and no failure."""
    if find_spec("xllamacpp") is None or find_model() is None:
        pytest.skip("the local model is not installed")
    done = call("doctor", home=home, exits=0)
    assert line(done.stdout, "key:anthropic").split(maxsplit=2) == [
        *("-", "key:anthropic", "not used: ANTHROPIC_API_KEY is not set")
    ]
    assert "-> Set ANTHROPIC_API_KEY" in done.stdout
    assert "not started; wheel and weights found" in line(done.stdout, "provider:local-chat")
    assert list(home.iterdir()) == []


def test_without_a_configuration_and_a_local_model_nothing_is_usable(home: Path) -> None:
    done = call("doctor", home=home, without="xllamacpp", exits=1)
    assert line(done.stdout, "usable").split(maxsplit=2) == ["FAIL", "usable", "no model can be called yet"]
    assert line(done.stdout, "provider:local-chat").startswith("-")
    assert "`callboard keys set anthropic`" in done.stdout
    assert 'pip install "callboard[local]"' in done.stdout


def test_a_malformed_models_file_is_named_and_the_rest_is_checked(traced: Path) -> None:
    """The exit code is 2. The line names the place of the fault, and does not show the text there."""
    (traced / "models.yaml").write_text(f"adapters:\n  a: {{type: openai, api_key: {KEY}, : : }}\n")
    done = call("doctor", home=traced, exits=2)
    assert "models.yaml: is not valid YAML: line 2" in line(done.stdout, "configuration")
    assert line(done.stdout, "store").startswith("ok")
    assert KEY not in done.stdout + done.stderr
    (traced / "elsewhere.yaml").write_text("adapters:\n  a: {typ: openai}\n")
    done = call("doctor", "--models-file", str(traced / "elsewhere.yaml"), home=traced, exits=2)
    assert "adapters.a.typ: unknown key; did you mean 'type'?" in line(done.stdout, "configuration")


def test_a_key_that_the_configuration_needs_and_the_environment_lacks_fails(home: Path) -> None:
    with provider_server() as server:
        configure(home, server.url, "  there: {type: openai, api_key_env: A_KEY_THAT_IS_NOT_SET}\n")
        done = call("doctor", home=home)
    assert done.returncode == 1
    fault, _, detail = line(done.stdout, "key:there").split(maxsplit=2)
    assert (fault, detail) == ("FAIL", "not_configured: A_KEY_THAT_IS_NOT_SET is not set")
    assert "-> Set A_KEY_THAT_IS_NOT_SET" in done.stdout
    assert "provider:there" not in done.stdout
    assert line(done.stdout, "usable").split()[2].startswith("here")


def test_a_trace_file_that_is_no_database_fails_and_stays_unchanged(home: Path) -> None:
    path = home / "notes.txt"
    path.write_text("Buy milk.\n" * 20)
    path.chmod(0o600)
    with provider_server() as server:
        configure(home, server.url)
        done = call("doctor", "--db", str(path), home=home)
    assert done.returncode == 1
    assert line(done.stdout, "store").startswith("FAIL")
    assert "is not a database" in line(done.stdout, "store")
    assert path.read_text() == "Buy milk.\n" * 20
    assert sorted(file.name for file in home.iterdir()) == ["models.yaml", "notes.txt"]


def test_a_trace_file_that_others_can_read_fails_with_the_command_that_repairs_it(traced: Path) -> None:
    """The advice is a shell command that works unchanged."""
    (traced / "trace.db").chmod(0o644)
    with provider_server() as server:
        configure(traced, server.url)
        done = call("doctor", home=traced, exits=1)
        advice = done.stdout[done.stdout.index("chmod 600") :].splitlines()[0]
        subprocess.run(advice, shell=True, check=True)
        call("doctor", home=traced, exits=0)


def test_offline_sends_no_request(home: Path) -> None:
    """Checks that need no network still run. For example, a misspelt option fails."""
    configure(home, refusing_url())
    call("doctor", home=home, exits=1)
    done = call("doctor", "--offline", home=home, exits=0)
    assert "provider:here" not in done.stdout
    assert "not contacted" in line(done.stdout, "usable")
    assert "as shipped" in line(done.stdout, "prices")
    configure(home, refusing_url(), "  odd: {type: openai_compatible, options: {quirks: no-such-server}}\n")
    done = call("doctor", "--offline", home=home, exits=1)
    assert "no-such-server" in line(done.stdout, "adapter:odd")
    (home / "prices.yaml").write_text("prices: [")
    assert line(call("doctor", "--offline", home=home).stdout, "prices").startswith("FAIL")


def test_json_is_one_object_and_needs_no_rich(traced: Path) -> None:
    configure(traced, refusing_url())
    done = call("doctor", "--json", home=traced, without="rich", exits=1)
    found = json.loads(done.stdout)
    assert found["ok"] is False
    assert found["readable"] is True
    assert found["versions"]["python"] == ".".join(map(str, sys.version_info[:3]))
    assert set(found["versions"]) == {"python", "callboard", "sqlite", "httptools", "httpx", "xllamacpp"}
    places = found["places"]
    assert places["configuration"] == str(traced / "models.yaml")
    assert places["trace"] == str(traced / "trace.db")
    assert Path(places["installation"]).is_dir()
    assert places["python"] == sys.executable
    (failed,) = [check for check in found["checks"] if not check["ok"] and check["name"] != "usable"]
    assert failed["name"] == "provider:here"
    assert failed["fix"]
    assert KEY not in done.stdout


def test_a_terminal_gets_ticks_and_crosses(home: Path) -> None:
    """A pipe gets words in place of signs. NO_COLOR removes all styles, even bold."""
    configure(home, refusing_url())
    code, shown, _ = at_terminal("doctor", home=home, on="stdout stderr")
    assert (code, "✓" in shown, "✗" in shown, "FAIL" in shown) == (1, True, True, False)
    forced = {"FORCE_COLOR": "1", "TERM": "xterm"}
    assert "\x1b[" in call("doctor", "--offline", home=home, more=forced).stdout
    assert "\x1b" not in call("doctor", "--offline", home=home, more={**forced, "NO_COLOR": "1"}).stdout


@pytest.mark.parametrize(("day", "days"), [("2026-01-01", 0), ("2025-12-31", 1), ("2026-02-01", 0), ("?", None)])
def test_the_age_of_prices_is_counted_in_days(day: str, days: int | None) -> None:
    """Days are UTC days, and the age is never negative."""
    assert age_in_days(day, FakeClock(epoch_us=1_767_225_600_000_000)) == days


# -- A wrong configuration: every command prints one line with the place of the fault and advice.

COMMANDS = {
    "ask": ("hello",),
    "chat": (),
    "embed": ("--model", "a:m", "hello"),
    "image": ("--model", "a:m", "-o", "{home}/i.png", "hello"),
    "models": (),
    "record": ("--model", "a:m", "-o", "{home}/r.json", "hello"),
    "web": ("--port", "0"),
}
FAULTS = (
    ("models.yaml", b"adapters: [\n  x: {", "models.yaml"),
    ("models.yaml", b"- adapters\n", "models.yaml"),
    ("models.yaml", b"adapters: {a: {type: nope}}\n", "'nope'"),
    ("models.yaml", b"adapterz: {}\n", "adapterz"),
    ("models.yaml", b"\xff\xfe\x00\x01", "models.yaml"),
)
SPENDING = ("ask", "chat", "embed", "image", "web")
"""Commands that read prices first."""


@pytest.mark.parametrize("command", COMMANDS)
def test_a_file_that_is_wrong_is_named(command: str, home: Path, tmp_path: Path) -> None:
    for name, content, named in FAULTS if command == "ask" else FAULTS[:3]:
        (home / name).write_bytes(content)
        assert named in refused(command, home)
    (home / "models.yaml").unlink()
    (home / "prices.yaml").write_text("prices: [{model: 3}]\n")
    if command in SPENDING:
        assert "prices.yaml" in refused(command, home)
    (tmp_path / "file").write_text("no folder")
    said = refused(command, tmp_path / "file")
    assert f"{tmp_path / 'file'} is a file, but must be a folder. Set CALLBOARD_HOME" in said


@pytest.mark.parametrize("command", ["ask", "embed"])
def test_an_adapter_that_cannot_start_as_configured_is_reported_once(command: str, home: Path) -> None:
    """The command prints the error. The log line of the adapter's actor is not shown."""
    (home / "models.yaml").write_text(
        "adapters: {a: {type: 'tests.cli.adapters:Misplaced'}}\n"
        "models: {'a:m': {adapter: a}}\ndefault_model: a:m\n"
    )
    assert refused(command, home) == "callboard: misplaced: there is no such file"


def refused(command: str, home: Path) -> str:
    words = (word.format(home=home) for word in COMMANDS[command])
    done = call(command, *words, home=home, exits=2)
    assert done.stdout == ""
    assert 'File "' not in done.stderr
    (line,) = done.stderr.splitlines()
    assert line.startswith("callboard: ")
    return line


# -- Plugins: adapters, tools and commands of an installed package, and the effect of a broken one.

PLUGIN_MODELS = """
adapters:
  north: {type: lighthouse}
  south: {type: unlit}
models:
  north:lamp: {adapter: north, aliases: [lamp]}
  south:lamp: {adapter: south}
"""


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the package."""
    return install_plugins(tmp_path_factory.mktemp("packages"))


@pytest.fixture
def installed(packages: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The package, on the import path of this process."""
    monkeypatch.syspath_prepend(packages)
    forget()
    yield packages
    forget()


def forget() -> None:
    registry.plugins.cache_clear()
    registry._load_adapter.cache_clear()
    for name in [name for name in sys.modules if name.partition(".")[0] == "lighthouse"]:
        del sys.modules[name]


def run(*words: str, home: Path, packages: Path) -> tuple[int, str, str]:
    """Run a command with the package on its import path. Return its exit code and output."""
    done = call(*words, home=home, more={"PYTHONPATH": str(packages)})
    return done.returncode, done.stdout, done.stderr


def written(home: Path) -> Path:
    path = home / "models.yaml"
    path.write_text(PLUGIN_MODELS)
    return path


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_an_adapter_of_a_plugin_is_a_type_in_models_yaml(installed: Path, home: Path) -> None:
    """The adapter works although another adapter of the same package can't be loaded."""
    async with Engine(models=written(home), trace=False) as engine:
        assert (await engine.session("lamp").send("?")).text == "north shines"
        with pytest.raises(ConfigurationError, match=r"type 'unlit' of callboard-lighthouse 1\.2 can't be loaded"):
            await engine.session("south:lamp").send("?")


def test_a_tool_of_a_plugin_is_found_by_its_name(installed: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A name has one function or several tools. A broken tool gives one warning, and an error if it is used."""
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            with pytest.raises(ConfigurationError, match=r"'fog' of callboard-lighthouse 1\.2 can't be loaded"):
                plugin_tools("fog")
    assert caplog.text.count("plugin_broken") == 1
    assert "fog" in caplog.text
    (lamp,) = plugin_tools("lamp") or ()
    assert (lamp.name, lamp.definition.description) == ("light_lamp", "Light the lamp.")
    assert [tool.name for tool in plugin_tools("harbour") or ()] == ["open_harbour", "light_lamp"]
    assert plugin_tools("no_such") is None


def test_a_command_of_a_plugin_runs(packages: Path, home: Path) -> None:
    place = {"home": home, "packages": packages}
    assert run("beam", "--at", "you", **place)[:2] == (0, "the beam points at you\n")
    code, _, err = run("beam", "--at", "rocks", **place)
    assert (code, err) == (1, "callboard: the beam points at rocks\n")
    code, _, err = run("wreck", **place)
    assert (code, err.count("plugin_broken"), "Traceback" in err) == (2, 1, False)
    assert "SystemExit: the ship is lost" in err
    assert "unknown command 'wreck'" in err


@pytest.mark.parametrize("words", [["traces", "--help"], ["--help"], ["--version"]])
def test_built_in_commands_do_not_search_for_plugins(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def asked(name: str) -> None:
        raise AssertionError(name)

    monkeypatch.setattr(command_line, "plugin_command", asked)
    with pytest.raises(SystemExit) as ended:
        command_line.main(words)
    assert ended.value.code == 0


def test_the_list_shows_all_plugins_and_marks_the_broken_ones(packages: Path, home: Path) -> None:
    """Each line has the plugin's package. A broken plugin does not fail the command."""
    code, out, err = run("plugins", "--json", home=home, packages=packages)
    lines = {(line["kind"], line["name"]): line for line in map(json.loads, out.splitlines())}
    broken = {key for key, line in lines.items() if line["error"]}
    assert (code, err) == (0, "")
    assert {line["package"] for line in lines.values()} == {"callboard-lighthouse 1.2"}
    assert broken == {("adapters", "unlit"), ("tools", "fog"), ("commands", "wreck"), ("commands", "traces")}
    assert {("adapters", "lighthouse"), ("tools", "lamp"), ("commands", "beam")} <= lines.keys()
