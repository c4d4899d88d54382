"""The keys of a private file: which programs read them, which source comes first, and that no output shows
them.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import anyio
import pytest

from callboard import Engine
from callboard.adapters.cassettes import FORMAT, Cassette, RecordingTransport, save_cassette
from callboard.adapters.images import GeneratedImage
from callboard.adapters.transport.transport import HttpReply, HttpRequest
from callboard.bus import ConfigurationError
from callboard.bus.files import write_private
from callboard.engine.keys import Variables, read_keys, remove_key, set_key
from callboard.engine.models.configured import load_registry
from callboard.tracestore import SavedReplies, TraceStore
from callboard.tracestore.export import export_calls
from tests.support.media_server import media_server

from ..support.provider_server import provider_server
from .faulty_day import make_faulty_day
from .running import PRICES, at_terminal, call
from .test_every_command import MODELS_YAML

KEY = "sk-a-key-that-nobody-may-see"
MODELS = """
adapters:
  here: {{type: openai_compatible, api_key_env: HERE_KEY, base_url: "{url}"}}
models:
  here:m: {{adapter: here}}
"""


def test_a_key_from_a_pipe_is_kept_in_a_private_file(home: Path) -> None:
    """Under the name of its variable, without the line's end; and it is told and listed by its name alone."""
    done = call("keys", "set", "openai", home=home, said=f"{KEY}\n", exits=0)
    file = home / "keys.json"
    assert json.loads(file.read_text()) == {"OPENAI_API_KEY": KEY}
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    shown = call("keys", "list", home=home, exits=0).stdout + call("keys", "list", "--json", home=home).stdout
    assert "OPENAI_API_KEY" in done.stdout
    assert "the file" in shown
    assert KEY not in done.stdout + done.stderr + shown


def test_at_a_terminal_the_key_is_asked_for_without_echo(home: Path) -> None:
    code, seen, _ = at_terminal("keys", "set", "MY_KEY", home=home, typed=f"{KEY}\n", after="MY_KEY:")
    assert code == 0
    assert KEY not in seen
    assert read_keys(home / "keys.json").keys == {"MY_KEY": KEY}


def test_a_key_is_no_argument(home: Path) -> None:
    """It is refused and not repeated, and nothing is kept, nor of what no header can carry."""
    done = call("keys", "set", "openai", KEY, home=home, said=f"{KEY}\n", exits=2)
    assert "a key must not be an argument" in done.stderr
    assert KEY not in done.stdout + done.stderr
    assert KEY not in call("keys", "set", KEY, home=home, exits=2).stderr
    for said in ("", "\n", "two\nlines", "not printable \x07"):
        assert "is not a key for MY_KEY" in call("keys", "set", "MY_KEY", home=home, said=said, exits=2).stderr
    assert not (home / "keys.json").exists()


def test_the_environment_goes_first(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a models.yaml and without; an empty one counts as not set; given ones are the only ones."""
    monkeypatch.setenv("CALLBOARD_HOME", str(home))
    for name in ("OPENAI_API_KEY", "HERE_KEY"):
        set_key(home / "keys.json", name, f"{name} of the file")
        monkeypatch.delenv(name, raising=False)
    listing = home / "listing.yaml"
    listing.write_text(MODELS.format(url="http://localhost:1"))

    def found() -> tuple[object, object]:
        adapters = load_registry(None).adapters["openai"], load_registry(listing).adapters["here"]
        return adapters[0].config.api_key, adapters[1].config.api_key

    assert found() == ("OPENAI_API_KEY of the file", "HERE_KEY of the file")
    monkeypatch.setenv("OPENAI_API_KEY", "a")
    monkeypatch.setenv("HERE_KEY", "b")
    assert found() == ("a", "b")
    monkeypatch.setenv("OPENAI_API_KEY", "")
    assert found() == ("OPENAI_API_KEY of the file", "b")
    assert load_registry(None, {}).adapters["openai"].missing_key == "OPENAI_API_KEY"


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o777])
def test_a_file_that_others_may_open_is_ignored_and_complained_of(
    mode: int, home: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As ssh does; the remedy is in the warning, and nothing is added to the file."""
    monkeypatch.setenv("CALLBOARD_HOME", str(home))
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    file = home / "keys.json"
    set_key(file, "OPENAI_API_KEY", KEY)
    file.chmod(mode)
    assert load_registry(None).adapters["openai"].missing_key == "OPENAI_API_KEY"
    assert "keys_ignored" in caplog.text
    assert "chmod 600" in caplog.text
    assert KEY not in caplog.text
    with pytest.raises(ConfigurationError, match="chmod 600"):
        set_key(file, "OTHER", "x")


@pytest.mark.parametrize("text", ["", "[]", '{"A": 1}', "\x00", '{"A": "sk-secret"'])
def test_a_file_that_is_no_list_of_keys_is_told_and_not_overwritten(text: str, home: Path) -> None:
    file = home / "keys.json"
    write_private(file, text.encode())
    stored = read_keys(file)
    assert stored.keys == {}
    assert "not a JSON object" in (stored.fault or "")
    with pytest.raises(ConfigurationError) as raised:
        remove_key(file, "A")
    assert "sk-secret" not in str(raised.value)
    assert file.read_text() == text


def test_a_link_is_not_written_through(home: Path) -> None:
    """Whatever it leads to stays as it was; and no representation shows a key."""
    other = home / "other.json"
    write_private(other, b"{}")
    (home / "keys.json").symlink_to(other)
    with pytest.raises(ConfigurationError, match="symbolic link"):
        set_key(home / "keys.json", "A", "x")
    assert other.read_bytes() == b"{}"
    set_key(other, "A", KEY)
    stored = read_keys(other)
    assert KEY not in repr(stored) + repr(Variables({}, stored))


def test_keys_that_are_set_at_once_are_all_kept(home: Path) -> None:
    """Nobody overwrites what another has just added."""
    file = home / "keys.json"
    names = [f"KEY_{number}" for number in range(32)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda name: set_key(file, name, "x"), names))
    assert sorted(read_keys(file).keys) == sorted(names)
    assert [path.name for path in home.iterdir()] == ["keys.json"]


def test_a_removed_key_is_gone(home: Path) -> None:
    """A second removal says that there is none."""
    call("keys", "set", "MY_KEY", home=home, said=KEY, exits=0)
    assert call("keys", "get", "MY_KEY", home=home, exits=0).stdout == f"{KEY}\n"
    call("keys", "remove", "MY_KEY", home=home, exits=0)
    assert "has no key MY_KEY" in call("keys", "remove", "MY_KEY", home=home, exits=1).stderr
    assert "no key MY_KEY" in call("keys", "get", "MY_KEY", home=home, exits=1).stderr


def test_doctor_says_where_a_key_came_from_and_what_a_wrong_one_answers(home: Path) -> None:
    """For a key of the file and for one of the environment."""
    call("keys", "set", "HERE_KEY", home=home, said=KEY, exits=0)
    with provider_server(401) as server:
        (home / "models.yaml").write_text(MODELS.format(url=server.url))
        done = call("doctor", home=home, exits=1)
        again = call("doctor", home=home, exits=1, more={"HERE_KEY": "sk-other"})
    assert f"set, from HERE_KEY in {home / 'keys.json'}" in done.stdout
    assert "the key was rejected: HTTP 401" in done.stdout
    assert f"The refused one is HERE_KEY in {home / 'keys.json'}." in done.stdout
    assert "The refused one is HERE_KEY in the environment." in again.stdout
    assert KEY not in done.stdout + done.stderr


def test_doctor_fails_on_keys_that_others_may_read(home: Path) -> None:
    """With what to do."""
    set_key(home / "keys.json", "A", KEY)
    (home / "keys.json").chmod(0o644)
    done = call("doctor", "--offline", home=home)
    assert "FAIL keys" in done.stdout
    assert "-> chmod 600" in done.stdout


def test_a_provider_is_asked_with_a_key_of_the_file(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CALLBOARD_HOME", str(home))
    set_key(home / "keys.json", "HERE_KEY", KEY)
    with provider_server() as server:
        (home / "models.yaml").write_text(MODELS.format(url=server.url))
        engine = Engine(trace=False)
        assert engine.registry.adapters["here"].config.api_key == KEY
        assert anyio.run(engine.health).ok
        assert server.asked[0].headers["authorization"] == f"Bearer {KEY}"


# -- Every file that a command or the library writes content to is for its owner alone, and never behind a link.

Writes = Callable[[Path, Path], object]
"""Writes to the second path, with a home folder that has a trace file and models."""


@pytest.fixture(scope="module")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    home = tmp_path_factory.mktemp("home")
    make_faulty_day(TraceStore(home / "trace.db"), PRICES)
    with media_server() as server:
        (home / "models.yaml").write_text(MODELS_YAML.format(url=server.url, hostile="x"))
        yield home


@pytest.fixture(autouse=True)
def generous_umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


def command(*words: str) -> Writes:
    """A command of these words, with the path in the place of FILE. Raises OSError if it failed."""

    def run(home: Path, file: Path) -> None:
        done = call(*(str(file) if word == "FILE" else word for word in words), home=home)
        if done.returncode:
            raise OSError(done.stderr)

    return run


class NoTransport:
    async def send(self, request: HttpRequest) -> HttpReply:
        raise AssertionError("nothing is asked")

    async def aclose(self) -> None:
        pass


def recorded(home: Path, file: Path) -> None:
    anyio.run(RecordingTransport(NoTransport(), file).aclose)


def exported(home: Path, file: Path) -> None:
    async def export() -> None:
        async with TraceStore.open_readonly(home / "trace.db") as store:
            await export_calls(store, file, "csv")

    anyio.run(export)


def replies(home: Path, file: Path) -> None:
    async def keep() -> None:
        kept = SavedReplies(file)
        await kept.put("key", b"reply", 0, 1)
        await kept.aclose()

    anyio.run(keep)


SURFACES: dict[str, Writes] = {
    "a session": command("sessions", "ses_captured", "--export", "FILE"),
    "a report": command("reprice", "--prices", str(PRICES), "--dry-run", "--html", "FILE"),
    "calls as CSV": command("export", "--format", "csv", "FILE"),
    "calls as JSON": command("export", "--format", "jsonl", "FILE"),
    "calls as Parquet": command("export", "--format", "parquet", "FILE"),
    "a backup": command("backup", "FILE"),
    "an image": command("image", "--model", "draw", "-o", "FILE", "a boat"),
    "a video": command("video", "--model", "film", "--every", "0.01", "-o", "FILE", "a boat"),
    "a cassette": lambda _, file: save_cassette(file, Cassette(FORMAT, "", ())),
    "a recording": recorded,
    "an export": exported,
    "an image's bytes": lambda _, file: GeneratedImage(data=b"x").save(file),
    "kept replies": replies,
}


@pytest.mark.parametrize("name", SURFACES)
def test_its_owner_alone_can_read_it(name: str, faulty: Path, tmp_path: Path) -> None:
    """Under the usual umask; and nothing is left beside it."""
    if name == "calls as Parquet":
        pytest.importorskip("pyarrow")
    file = tmp_path / "written.png"
    SURFACES[name](faulty, file)
    beside = {f"{file.name}{ending}" for ending in ("", ".lock", "-wal", "-shm")}
    assert {path.name for path in tmp_path.iterdir()} - {"home"} <= beside
    for path in tmp_path.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.parametrize("name", SURFACES)
def test_nothing_is_written_through_a_link(name: str, faulty: Path, tmp_path: Path) -> None:
    """It is refused, and the file behind it stays as it is."""
    if name == "calls as Parquet":
        pytest.importorskip("pyarrow")
    behind, file = tmp_path / "behind", tmp_path / "written.png"
    behind.write_text("another's")
    file.symlink_to(behind)
    with pytest.raises(Exception, match=r"symbolic link|already exists"):
        SURFACES[name](faulty, file)
    assert behind.read_text() == "another's"
