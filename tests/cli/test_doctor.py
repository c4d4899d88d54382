"""`callboard doctor`, as a process: what it finds, what it advises, and what it exits with."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from callboard.adapters.providers.local.settings import find_model
from callboard.engine.cli.doctor import age_in_days
from tests.support.virtual_time import FakeClock

from ..support.provider_server import provider_server, refusing_url
from .running import CHECKOUT, call, environment

KEY = "sk-a-key-that-nobody-may-see"
ADAPTERS = "adapters:\n  here: {{type: openai_compatible, api_key: {key}, base_url: {url}}}\n"
MODELS = "models:\n  here:m: {adapter: here, aliases: [first]}\ndefault_model: first\n"


def configure(home: Path, url: str, more: str = "") -> None:
    path = home / "models.yaml"
    path.write_text(ADAPTERS.format(key=KEY, url=url) + more + MODELS)
    path.chmod(0o600)


def line(out: str, name: str) -> str:
    """The one line of a check."""
    (found,) = [text for text in out.splitlines() if text.split()[1:2] == [name]]
    return found


def test_a_good_configuration_passes_and_the_provider_is_asked_once(traced: Path) -> None:
    """All is well: exit code 0, every check says ok, and no paid call was made."""
    with provider_server() as server:
        configure(traced, server.url)
        done = call("doctor", home=traced)
        assert [(asked.method, asked.path) for asked in server.asked] == [("GET", "/v1/models")]
        assert server.asked[0].headers["authorization"] == f"Bearer {KEY}"
    assert done.returncode == 0, done.stdout + done.stderr
    assert "All is well." in done.stdout
    assert "FAIL" not in done.stdout
    assert line(done.stdout, "provider:here").startswith("ok")
    assert "opens and is whole" in line(done.stdout, "store")
    assert "SQLite" in line(done.stdout, "store:locking")
    assert done.stderr.count("api_key_in_file") == 1
    assert KEY not in done.stdout + done.stderr


def test_without_a_configuration_the_local_model_is_what_can_be_used(home: Path) -> None:
    """Keys that nobody asked for are a hint, not a failure; nothing is written and no model is started."""
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
    """Then it says what to install and which variable to set."""
    done = call("doctor", home=home, without="xllamacpp", exits=1)
    assert line(done.stdout, "usable").split(maxsplit=2) == ["FAIL", "usable", "no model can be called yet"]
    assert line(done.stdout, "provider:local-chat").startswith("-")
    assert "`callboard keys set anthropic`" in done.stdout
    assert 'pip install "callboard[local]"' in done.stdout


def test_a_malformed_models_file_is_named_and_the_rest_is_checked_all_the_same(traced: Path) -> None:
    """Exit code 2, with the place of the fault and without the text that stands there."""
    (traced / "models.yaml").write_text(f"adapters:\n  a: {{type: openai, api_key: {KEY}, : : }}\n")
    done = call("doctor", home=traced, exits=2)
    assert "models.yaml: is no YAML: line 2" in line(done.stdout, "configuration")
    assert line(done.stdout, "store").startswith("ok")
    assert KEY not in done.stdout + done.stderr


def test_a_models_file_with_an_unknown_key_is_a_configuration_that_can_not_be_read(home: Path) -> None:
    """The finding names file, key and what was expected."""
    path = home / "elsewhere.yaml"
    path.write_text("adapters:\n  a: {typ: openai}\n")
    done = call("doctor", "--models-file", str(path), home=home, exits=2)
    assert "adapters.a.typ: unknown key; did you mean 'type'?" in line(done.stdout, "configuration")


def test_a_key_that_the_configuration_wants_and_the_environment_lacks_fails(home: Path) -> None:
    """The variable is named, and its provider is not bothered."""
    with provider_server() as server:
        configure(home, server.url, "  there: {type: openai, api_key_env: A_KEY_THAT_IS_NOT_SET}\n")
        done = call("doctor", home=home)
    assert done.returncode == 1
    assert line(done.stdout, "key:there").split(maxsplit=2)[::2] == [
        "FAIL",
        "not_configured: A_KEY_THAT_IS_NOT_SET is not set",
    ]
    assert "-> Set A_KEY_THAT_IS_NOT_SET" in done.stdout
    assert "provider:there" not in done.stdout
    assert line(done.stdout, "usable").split()[2].startswith("here")


def test_a_trace_file_that_is_no_database_fails_and_is_left_alone(home: Path) -> None:
    """The file is somebody's; not a byte of it changes."""
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


def test_a_trace_file_that_others_may_read_fails_with_the_command_that_mends_it(traced: Path) -> None:
    """Typed in as it stands, the advice works."""
    (traced / "trace.db").chmod(0o644)
    with provider_server() as server:
        configure(traced, server.url)
        done = call("doctor", home=traced, exits=1)
        advice = done.stdout[done.stdout.index("chmod 600") :].splitlines()[0]
        subprocess.run(advice, shell=True, check=True)
        call("doctor", home=traced, exits=0)


def test_a_refused_key_fails_without_being_shown(home: Path) -> None:
    """Also when the provider repeats it in its answer."""
    with provider_server(401, KEY.encode()) as server:
        configure(home, server.url)
        done = call("doctor", home=home)
    assert done.returncode == 1
    assert "the key was refused" in line(done.stdout, "provider:here")
    assert KEY not in done.stdout + done.stderr


def test_offline_asks_nobody(home: Path) -> None:
    """What can be told without the network is told; the server would have refused."""
    configure(home, refusing_url())
    call("doctor", home=home, exits=1)
    done = call("doctor", "--offline", home=home, exits=0)
    assert "provider:here" not in done.stdout
    assert "not asked" in line(done.stdout, "usable")


def test_an_adapter_that_can_not_be_made_fails_offline_too(home: Path) -> None:
    """A misspelt option is found before the first call."""
    configure(home, refusing_url(), "  odd: {type: openai_compatible, options: {quirks: no-such-server}}\n")
    done = call("doctor", "--offline", home=home, exits=1)
    assert "no-such-server" in line(done.stdout, "adapter:odd")


def test_json_is_one_object_with_everything_and_needs_no_rich(traced: Path) -> None:
    """Scripts read the same findings, versions and places."""
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
    """Signs for people, words for pipes."""
    configure(home, refusing_url())
    ours, theirs = pty.openpty()
    try:
        with subprocess.Popen(
            [sys.executable, "-m", "callboard", "doctor"],
            cwd=CHECKOUT,
            env={**environment(home), "TERM": "xterm"},
            stdin=subprocess.DEVNULL,
            stdout=theirs,
            stderr=theirs,
        ) as process:
            os.close(theirs)
            shown = b""
            try:
                while piece := os.read(ours, 65536):
                    shown += piece
            except OSError:  # how a terminal ends on Linux
                pass
            assert process.wait(40) == 1
    finally:
        os.close(ours)
    assert "✓" in shown.decode()
    assert "✗" in shown.decode()
    assert "FAIL" not in shown.decode()


def test_it_says_which_prices_there_are_and_how_old(home: Path) -> None:
    """Old ones are no fault, and come with what to do; a file that can't be read is one."""
    done = call("doctor", "--offline", home=home)
    assert "as shipped" in line(done.stdout, "prices")
    (home / "prices.yaml").write_text("prices: [")
    assert line(call("doctor", "--offline", home=home).stdout, "prices").startswith("FAIL")


@pytest.mark.parametrize(("day", "days"), [("2026-01-01", 0), ("2025-12-31", 1), ("2026-02-01", 0), ("?", None)])
def test_the_age_of_prices_is_counted_in_days(day: str, days: int | None) -> None:
    """By the clock in UTC, and never below zero."""
    assert age_in_days(day, FakeClock(epoch_us=1_767_225_600_000_000)) == days


def test_no_color_means_none(home: Path) -> None:
    """Not even bold, whatever the terminal; without it there are styles."""
    styled = call("doctor", "--offline", home=home, more={"FORCE_COLOR": "1", "TERM": "xterm"})
    plain = call("doctor", "--offline", home=home, more={"FORCE_COLOR": "1", "TERM": "xterm", "NO_COLOR": "1"})
    assert "\x1b[" in styled.stdout
    assert "\x1b" not in plain.stdout
