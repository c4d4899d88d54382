"""`callboard image`, `video` and `record` as processes, and commands over read-only media."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import anyio
import pytest

from callboard.adapters.cassettes import load_cassette
from callboard.engine import Engine
from tests.support.disks import medium
from tests.support.provider_server import ProviderServer, provider_server

from ..support.media_server import MediaServer, media_server, png
from .running import PATIENCE_SECONDS, PRICES, call, make_trace, start


@pytest.fixture
def server() -> Iterator[MediaServer]:
    with media_server() as running:
        yield running


@pytest.fixture
def home_with_media(home: Path, server: MediaServer) -> Path:
    (home / "models.yaml").write_text(
        f"adapters:\n  openai: {{type: openai, base_url: '{server.url}', retry: {{base_delay: 0.01}}}}\n"
        "models:\n"
        "  'openai:gpt-image-2': {adapter: openai, kind: image, aliases: [draw]}\n"
        "  'openai:sora-2': {adapter: openai, kind: video, aliases: [film]}\n"
    )
    (home / "prices.yaml").write_text(
        "label: test\nprices:\n  - model: 'openai:sora-2'\n    extra: {video_second: 0.10}\n"
    )
    return home


def test_an_image_is_written_to_a_file(home_with_media: Path, tmp_path: Path) -> None:
    target = tmp_path / "boat.png"
    done = call("image", "A red boat.", "--model", "draw", "-o", str(target), home=home_with_media, exits=0)
    assert target.read_bytes() == png()
    assert done.stderr.splitlines()[0] == f"Written: {target}, 2x1"
    (row,) = [json.loads(line) for line in call("traces", "--json", home=home_with_media).stdout.splitlines()]
    assert row["operation"] == "image"


def test_several_images_get_a_number_each_and_an_edit_takes_files(
    home_with_media: Path, tmp_path: Path, server: MediaServer
) -> None:
    """An impossible request gives one line on stderr."""
    (tmp_path / "in.png").write_bytes(png())
    arguments = ("image", "Blue.", "--model", "draw", "-o", str(tmp_path / "out.png"))
    edit = ("-n", "2", "--edit", str(tmp_path / "in.png"))
    done = call(*arguments, *edit, home=home_with_media, exits=0)
    assert sorted(path.name for path in tmp_path.glob("out*")) == ["out-1.png", "out-2.png"]
    assert "2 of edit, openai:gpt-image-2: " in done.stderr
    assert server.of("image")[0].path == "/v1/images/edits"
    assert "at most 10" in call(*arguments, "-n", "11", home=home_with_media).stderr
    assert "needs an image" in call(*arguments, "--mask", "m.png", home=home_with_media).stderr
    missing = call(*arguments, "--edit", "nowhere.png", home=home_with_media)
    assert (missing.returncode, len(missing.stderr.splitlines())) == (1, 1)


def test_a_video_is_made_awaited_and_written(home_with_media: Path, tmp_path: Path, server: MediaServer) -> None:
    target = tmp_path / "boat.mp4"
    arguments = ("video", "A red boat.", "--model", "film", "--seconds", "8", "--every", "0.01")
    done = call(*arguments, "-o", str(target), home=home_with_media, exits=0)
    assert target.read_bytes() == server.file
    assert done.stderr.splitlines() == [
        "video video_1, openai:sora-2",
        f"Written: {target}, 8 s, openai:sora-2: $0.800000",
    ]


def test_ctrl_c_leaves_the_job_and_prints_how_to_continue(
    home_with_media: Path, tmp_path: Path, server: MediaServer
) -> None:
    server.steps = [10] * 100_000
    target = tmp_path / "boat.mp4"
    arguments = ("video", "A red boat.", "--model", "film", "--every", "0.01", "-o", str(target))
    with start(*arguments, home=home_with_media) as process:
        _until(lambda: len(server.of("look")) > 2)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 130
    text = err.decode()
    assert "video video_1 continues. To continue: callboard video --resume video_1 --model" in text
    assert "Traceback" not in text
    assert not target.exists()
    server.steps = []
    resume = ("video", "--resume", "video_1", "--model", "film", "--every", "0.01", "-o", str(target))
    call(*resume, home=home_with_media, exits=0)
    assert target.read_bytes() == server.file
    assert server.made == {"video": 1}
    assert call(*resume, home=home_with_media).returncode == 0  # A second resume does not count the video again.
    costs = call("cost", "--by", "operation", "--json", home=home_with_media).stdout
    assert costs.count('"video"') == 1


def test_no_wait_prints_the_id(home_with_media: Path, tmp_path: Path, server: MediaServer) -> None:
    """A failed job is an error without a hint to resume. Missing arguments are refused."""
    done = call("video", "A red boat.", "--model", "film", "--no-wait", home=home_with_media)
    assert (done.returncode, done.stdout) == (0, "video_1\n")
    assert server.of("look") == []
    server.ends, server.steps = "failed", []
    arguments = ("video", "A boat.", "--model", "film", "--every", "0.01", "-o", str(tmp_path / "x.mp4"))
    done = call(*arguments, home=home_with_media, exits=1)
    assert "not that" in done.stderr
    assert "--resume" not in done.stderr
    call("video", "--model", "film", "-o", "x.mp4", home=home_with_media, exits=2)
    call("video", "A boat.", "--model", "film", home=home_with_media, exits=2)


def _until(condition: Callable[[], bool]) -> None:
    give_up = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < give_up
        time.sleep(0.01)


def test_a_named_key_is_sent_and_the_hint_to_resume_a_video_names_it(
    home_with_media: Path, tmp_path: Path, server: MediaServer
) -> None:
    """The trace has the name of the key, and not its value."""
    models = home_with_media / "models.yaml"
    models.write_text(
        models.read_text().replace("type: openai,", "type: openai, keys: {acme: {api_key_env: ACME}},")
    )
    more = {"ACME": "sk-of-acme-0123456789"}
    drawn = ("image", "A boat.", "--model", "draw", "-o", str(tmp_path / "x.png"), "--key", "acme")
    call(*drawn, home=home_with_media, more=more, exits=0)
    assert server.of("image")[0].headers["authorization"] == "Bearer sk-of-acme-0123456789"
    nowhere = str(tmp_path / "nowhere" / "x.mp4")
    filmed = ("video", "A boat.", "--model", "film", "--every", "0.01", "-o", nowhere, "--key", "acme")
    assert "--key acme" in call(*filmed, home=home_with_media, more=more, exits=1).stderr
    rows = call("traces", "--json", "--key", "acme", home=home_with_media).stdout
    assert {json.loads(line)["operation"] for line in rows.splitlines()} == {"image", "video_create", "video"}
    assert "0123456789" not in rows


def test_an_unknown_key_is_refused_by_name(home: Path) -> None:
    kinds = {"image": ("-o", "x.png"), "video": ("-o", "x.mp4"), "embedding": (), "chat": ()}
    models = "".join(f"  'openai:{kind}': {{adapter: openai, kind: {kind}}}\n" for kind in kinds)
    openai = "openai: {type: openai, api_key: sk-0123456789, base_url: 'http://127.0.0.1:9/v1'}"
    (home / "models.yaml").write_text(f"adapters:\n  {openai}\nmodels:\n{models}")
    for kind, options in kinds.items():
        words = {"chat": ("chat",), "embedding": ("embed", "A boat.")}.get(kind, (kind, "A boat."))
        done = call(*words, *options, "--model", f"openai:{kind}", "--key", "nobody", home=home, said="Hi\n")
        assert "openai has no key 'nobody'" in done.stdout + done.stderr


# -- A command that only reads has the same output for a closed trace on read-only media.

READING = (
    *(
        ("traces",),
        ("traces", "--json"),
        ("sessions",),
        ("sessions", "ses_under_test"),
        ("cost",),
        ("cost", "--csv"),
    ),
    *(("stats",), ("errors",), ("sql", "select count(*) from calls"), ("replay",), ("replay", "--json")),
    *(("reprice", "--prices", str(PRICES), "--dry-run"), ("reprice", "--history")),
    *(("prune", "--older-than", "1d", "--dry-run"), ("export", "--format", "csv", "-")),
)


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Path]]:
    """Two copies of a trace: one in a writable folder, and one on read-only media."""
    folder = tmp_path_factory.mktemp("both")
    writable = folder / "home" / "trace.db"
    make_trace(writable)
    with medium(folder / "media") as media:
        readable = media.folder / "trace.db"
        shutil.copy(writable, readable)
        media.make_writable(False)
        yield writable, readable


def test_the_output_is_the_same_on_read_only_media(both: tuple[Path, Path], home: Path, tmp_path: Path) -> None:
    """The outputs differ only in the path. A backup of the file can be written."""
    for words in READING:
        outputs = [call(*words, "--db", str(path), home=home) for path in both]
        shown = [
            (each.returncode, (each.stdout + each.stderr).replace(str(path), ""))
            for each, path in zip(outputs, both, strict=True)
        ]
        assert shown[0] == shown[1], words
    call("backup", str(tmp_path / "copy.db"), "--db", str(both[1]), home=home, exits=0)
    assert "3 calls" in call("traces", "--db", str(tmp_path / "copy.db"), home=home).stdout


# -- `callboard record` writes a provider's replies to a cassette, which replays them.

REPLY = {
    "id": "c_1",
    "object": "chat.completion",
    "model": "m",
    "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "Hello."}}],
    "usage": {"prompt_tokens": 3, "completion_tokens": 1, "total_tokens": 4},
}


@pytest.fixture
def provider() -> Iterator[ProviderServer]:
    with provider_server(body=json.dumps(REPLY).encode()) as running:
        yield running


@pytest.fixture
def provided(home: Path, provider: ProviderServer) -> Path:
    """A home folder with a model of that server."""
    (home / "models.yaml").write_text(
        "adapters:\n"
        f"  near: {{type: openai_compatible, base_url: '{provider.url}', api_key_env: NEAR_KEY, max_retries: 0}}\n"
        "models:\n  'near:m': {adapter: near, aliases: [near]}\n"
    )
    return home


def record(*arguments: str, home: Path, said: str = "") -> subprocess.CompletedProcess[str]:
    return call("record", *arguments, home=home, said=said, more={"NEAR_KEY": "sk-very-secret"})


async def replayed(models: Path) -> list[str]:
    """The replies of an engine that has only the cassette."""
    async with Engine(models=models, trace=False) as engine:
        session = engine.session("near")
        return [(await session.send(prompt)).text for prompt in ("Hi", "And?")]


def test_a_recording_can_be_replayed(provided: Path, tmp_path: Path) -> None:
    """The command prints an adapter for models.yaml."""
    file = tmp_path / "near.json"
    done = record("Hi", "And?", "--whole", "--model", "near", "-o", str(file), home=provided)
    assert (done.returncode, done.stdout.split()) == (0, ["Hello.", "Hello."]), done.stderr
    written, shown = done.stderr.splitlines()
    assert written == f"2 exchanges written to {file}"
    assert "sk-very-secret" not in file.read_text()
    adapter = shown.partition("models.yaml: ")[2]
    (provided / "models.yaml").write_text(
        f"adapters:\n  {adapter}\nmodels:\n  'near:m': {{adapter: near, aliases: [near]}}\n"
    )
    assert anyio.run(replayed, provided / "models.yaml") == ["Hello.", "Hello."]
    again = record("Hi", "--whole", "--model", "near", "-o", str(tmp_path / "x"), home=provided)
    assert again.returncode == 2
    assert "replays a cassette itself" in again.stderr


def test_the_prompts_are_those_of_stdin_and_streams_by_default(provided: Path, tmp_path: Path) -> None:
    """All prompts are in one session. Without `--replace`, an existing file stays and nothing is sent."""
    file = tmp_path / "mine.json"
    file.write_text("mine")
    done = record("--model", "near", "-o", str(file), home=provided, said="Hi\n\n")
    assert (done.returncode, file.read_text()) == (1, "mine")
    assert "--replace" in done.stderr
    done = record("--replace", "--model", "near", "-o", str(file), home=provided, said="Hi\n\n")
    (exchange,) = load_cassette(file).exchanges
    assert exchange.request.body["stream"] is True  # type: ignore[call-overload,index]
    assert done.stderr.splitlines()[-2] == f"1 exchange written to {file}"


def test_an_error_of_the_provider_is_recorded(provided: Path, tmp_path: Path, home: Path) -> None:
    """The command fails with one line."""
    file = tmp_path / "down.json"
    with provider_server(status=500, body=b'{"error": {"message": "down"}}') as broken:
        models = (provided / "models.yaml").read_text()
        url = models.partition("base_url: '")[2].partition("'")[0]
        (provided / "models.yaml").write_text(models.replace(url, broken.url))
        done = record("Hi", "--whole", "--model", "near", "-o", str(file), home=provided)
    assert done.returncode == 1
    assert done.stderr.startswith("callboard: ServerError")
    (exchange,) = load_cassette(file).exchanges
    assert exchange.reply.status == 500


@pytest.mark.parametrize(("arguments", "said"), [((), "no prompts"), (("Hi",), "sends no HTTP")])
def test_a_recording_that_is_not_possible_is_refused(
    talkative: Path, tmp_path: Path, arguments: tuple[str, ...], said: str
) -> None:
    """The command needs a prompt and an adapter with HTTP."""
    done = record(*arguments, "--model", "first", "-o", str(tmp_path / "x.json"), home=talkative)
    assert done.returncode in (1, 2)
    assert said in done.stderr
