"""The private file of keys: its readers, the order of the sources, and outputs that never show a key."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import anyio
import pytest

from callboard.adapters.cassettes import FORMAT, Cassette, RecordingTransport, save_cassette
from callboard.adapters.images import GeneratedImage
from callboard.adapters.transport.transport import HttpReply, HttpRequest
from callboard.bus import ConfigurationError
from callboard.bus.files import write_private
from callboard.engine.keys import Variables, change_key, read_keys
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


def test_a_key_from_a_pipe_is_stored_in_a_private_file(home: Path) -> None:
    """The file has the key under its variable's name, without the line break. Outputs show only the name."""
    done = call("keys", "set", "openai", home=home, said=f"{KEY}\n", exits=0)
    file = home / "keys.json"
    assert json.loads(file.read_text()) == {"OPENAI_API_KEY": KEY}
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    shown = call("keys", "list", home=home, exits=0).stdout + call("keys", "list", "--json", home=home).stdout
    assert "OPENAI_API_KEY" in done.stdout
    assert "the file" in shown
    assert KEY not in done.stdout + done.stderr + shown


def test_at_a_terminal_the_key_is_read_without_echo(home: Path) -> None:
    code, seen, _ = at_terminal("keys", "set", "MY_KEY", home=home, typed=f"{KEY}\n", after="MY_KEY:")
    assert code == 0
    assert KEY not in seen
    assert read_keys(home / "keys.json").keys == {"MY_KEY": KEY}


def test_a_key_as_an_argument_is_refused(home: Path) -> None:
    """The error does not repeat the key, and nothing is stored. A text that no header can have is refused too."""
    done = call("keys", "set", "openai", KEY, home=home, said=f"{KEY}\n", exits=2)
    assert "a key must not be an argument" in done.stderr
    assert "`callboard keys set OPENAI_API_KEY`" in " ".join(done.stderr.split())
    assert KEY not in done.stdout + done.stderr
    assert KEY not in call("keys", "set", KEY, home=home, exits=2).stderr
    for typed in ("", "\n", "two\nlines", "not printable \x07"):
        assert "is not a key for MY_KEY" in call("keys", "set", "MY_KEY", home=home, said=typed, exits=2).stderr
    assert not (home / "keys.json").exists()


def test_the_environment_comes_before_the_file(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The order is the same with and without a models.yaml. An empty variable counts as not set. Passed variables
    replace the environment and the file.
    """
    monkeypatch.setenv("CALLBOARD_HOME", str(home))
    for name in ("OPENAI_API_KEY", "HERE_KEY"):
        change_key(home / "keys.json", name, f"{name} of the file")
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
def test_a_file_that_others_can_open_is_ignored_with_a_warning(
    mode: int, home: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The warning has the remedy, and no key can be added to the file."""
    monkeypatch.setenv("CALLBOARD_HOME", str(home))
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    file = home / "keys.json"
    change_key(file, "OPENAI_API_KEY", KEY)
    file.chmod(mode)
    assert load_registry(None).adapters["openai"].missing_key == "OPENAI_API_KEY"
    assert "keys_ignored" in caplog.text
    assert "chmod 600" in caplog.text
    assert KEY not in caplog.text
    with pytest.raises(ConfigurationError, match="chmod 600"):
        change_key(file, "OTHER", "x")
    done = call("doctor", "--offline", home=home)
    assert "FAIL keys" in done.stdout
    assert "-> chmod 600" in done.stdout


@pytest.mark.parametrize("text", ["", "[]", '{"A": 1}', "\x00", '{"A": "sk-secret"'])
def test_a_file_that_is_no_object_of_keys_is_reported_and_not_overwritten(text: str, home: Path) -> None:
    file = home / "keys.json"
    write_private(file, text.encode())
    stored = read_keys(file)
    assert stored.keys == {}
    assert "not a JSON object" in (stored.fault or "")
    with pytest.raises(ConfigurationError) as raised:
        change_key(file, "A", None)
    assert "sk-secret" not in str(raised.value)
    assert file.read_text() == text


def test_a_link_is_not_written_through(home: Path) -> None:
    """The link's target stays unchanged, and no repr shows a key."""
    other = home / "other.json"
    write_private(other, b"{}")
    (home / "keys.json").symlink_to(other)
    with pytest.raises(ConfigurationError, match="symbolic link"):
        change_key(home / "keys.json", "A", "x")
    assert other.read_bytes() == b"{}"
    change_key(other, "A", KEY)
    stored = read_keys(other)
    assert KEY not in repr(stored) + repr(Variables({}, stored))


def test_keys_that_are_set_concurrently_are_all_kept(home: Path) -> None:
    """No process overwrites a key that another process has just added."""
    file = home / "keys.json"
    names = [f"KEY_{number}" for number in range(32)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda name: change_key(file, name, "x"), names))
    assert sorted(read_keys(file).keys) == sorted(names)
    assert [path.name for path in home.iterdir()] == ["keys.json"]


def test_a_removed_key_is_no_longer_listed(home: Path) -> None:
    """A second removal fails."""
    call("keys", "set", "MY_KEY", home=home, said=KEY, exits=0)
    assert call("keys", "get", "MY_KEY", home=home, exits=0).stdout == f"{KEY}\n"
    call("keys", "remove", "MY_KEY", home=home, exits=0)
    assert "has no key MY_KEY" in call("keys", "remove", "MY_KEY", home=home, exits=1).stderr
    assert "no key MY_KEY" in call("keys", "get", "MY_KEY", home=home, exits=1).stderr


def test_doctor_shows_the_source_of_a_key_and_the_reply_to_a_wrong_one(home: Path) -> None:
    """The source is the file or the environment. The advice names the refused key."""
    call("keys", "set", "HERE_KEY", home=home, said=KEY, exits=0)
    with provider_server(401, KEY.encode()) as server:
        (home / "models.yaml").write_text(MODELS.format(url=server.url))
        done = call("doctor", home=home, exits=1)
        again = call("doctor", home=home, exits=1, more={"HERE_KEY": "sk-other"})
        assert [asked.headers["authorization"] for asked in server.asked] == [f"Bearer {KEY}", "Bearer sk-other"]
    assert f"set, from HERE_KEY in {home / 'keys.json'}" in done.stdout
    assert "the key was rejected: HTTP 401" in done.stdout
    assert f"The refused one is HERE_KEY in {home / 'keys.json'}." in done.stdout
    assert "The refused one is HERE_KEY in the environment." in again.stdout
    assert KEY not in done.stdout + done.stderr


# -- Every file with content is private to its owner, and is never written through a link.

Writes = Callable[[Path, Path], object]
"""Writes the file at the second path. The first path is a home folder with a trace file and models."""


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
    """A command with these words, in which the path replaces FILE. It raises OSError if the command fails."""

    def run(home: Path, file: Path) -> None:
        done = call(*(str(file) if word == "FILE" else word for word in words), home=home)
        if done.returncode:
            raise OSError(done.stderr)

    return run


class NoTransport:
    async def send(self, request: HttpRequest) -> HttpReply:
        raise AssertionError("no request is sent")

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
def test_a_written_file_is_private_and_no_link_is_followed(name: str, faulty: Path, tmp_path: Path) -> None:
    """The file has these permissions with the usual umask. Nothing else remains in the folder."""
    if name == "calls as Parquet":
        pytest.importorskip("pyarrow")
    behind, link = tmp_path / "behind", tmp_path / "link.png"
    behind.write_text("another's")
    link.symlink_to(behind)
    with pytest.raises(Exception, match=r"symbolic link|already exists"):
        SURFACES[name](faulty, link)
    assert behind.read_text() == "another's"
    for path in (behind, *tmp_path.glob("link*")):
        path.unlink()
    file = tmp_path / "written.png"
    SURFACES[name](faulty, file)
    companions = {f"{file.name}{ending}" for ending in ("", ".lock", "-wal", "-shm")}
    assert {path.name for path in tmp_path.iterdir()} - {"home"} <= companions
    for path in tmp_path.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
