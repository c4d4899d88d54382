"""`callboard image` and `callboard video`, as processes, against a server on a real socket."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ..support.media_server import MediaServer, media_server, png
from .running import PATIENCE_SECONDS, call, start


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
    (tmp_path / "in.png").write_bytes(png())
    arguments = ("image", "Blue.", "--model", "draw", "-o", str(tmp_path / "out.png"), "-n", "2")
    done = call(*arguments, "--edit", str(tmp_path / "in.png"), home=home_with_media, exits=0)
    assert sorted(path.name for path in tmp_path.glob("out*")) == ["out-1.png", "out-2.png"]
    assert "2 of edit, openai:gpt-image-2: " in done.stderr
    assert server.of("image")[0].path == "/v1/images/edits"


def test_what_cannot_be_made_is_said_in_one_line(home_with_media: Path, tmp_path: Path) -> None:
    arguments = ("image", "A boat.", "--model", "draw", "-o", str(tmp_path / "x.png"))
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


def test_ctrl_c_leaves_the_job_and_says_how_to_come_back(
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
    said = err.decode()
    assert "video video_1 goes on; to come back to it: callboard video --resume video_1 --model" in said
    assert "Traceback" not in said
    assert not target.exists()
    server.steps = []
    resume = ("video", "--resume", "video_1", "--model", "film", "--every", "0.01", "-o", str(target))
    call(*resume, home=home_with_media, exits=0)
    assert target.read_bytes() == server.file
    assert server.made == {"video": 1}
    assert call(*resume, home=home_with_media).returncode == 0  # once more, and it is not counted again
    costs = call("cost", "--by", "operation", "--json", home=home_with_media).stdout
    assert costs.count('"video"') == 1


def test_without_waiting_its_id_is_printed(home_with_media: Path, server: MediaServer) -> None:
    done = call("video", "A red boat.", "--model", "film", "--no-wait", home=home_with_media)
    assert (done.returncode, done.stdout) == (0, "video_1\n")
    assert server.of("look") == []


def test_a_job_that_fails_is_an_error_and_nothing_to_come_back_to(
    home_with_media: Path, tmp_path: Path, server: MediaServer
) -> None:
    server.ends, server.steps = "failed", []
    arguments = ("video", "A boat.", "--model", "film", "--every", "0.01", "-o", str(tmp_path / "x.mp4"))
    done = call(*arguments, home=home_with_media, exits=1)
    assert "not that" in done.stderr
    assert "--resume" not in done.stderr


def test_a_command_that_does_not_say_enough_is_refused(home_with_media: Path) -> None:
    call("video", "--model", "film", "-o", "x.mp4", home=home_with_media, exits=2)
    call("video", "A boat.", "--model", "film", home=home_with_media, exits=2)


def _until(condition: Callable[[], bool]) -> None:
    give_up = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < give_up
        time.sleep(0.01)


def test_a_named_key_is_sent_and_the_way_back_to_a_video_names_it(
    home_with_media: Path, tmp_path: Path, server: MediaServer
) -> None:
    """The trace has the key's name, and nothing has its value."""
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


@pytest.mark.parametrize(
    "command",
    [
        ("image", "A boat.", "-o", "x.png"),
        ("video", "A boat.", "-o", "x.mp4"),
        ("embed", "A boat."),
        ("chat",),
    ],
    ids=lambda command: command[0],
)
def test_a_key_that_nobody_has_is_refused_by_name(home: Path, tmp_path: Path, command: tuple[str, ...]) -> None:
    (home / "models.yaml").write_text(
        "adapters:\n  openai: {type: openai, api_key: sk-0123456789, base_url: 'http://127.0.0.1:9/v1'}\n"
        "models:\n"
        "  'openai:image': {adapter: openai, kind: image}\n"
        "  'openai:video': {adapter: openai, kind: video}\n"
        "  'openai:embed': {adapter: openai, kind: embedding}\n"
        "  'openai:chat': {adapter: openai}\n"
    )
    done = call(*command, "--model", f"openai:{command[0]}", "--key", "nobody", home=home, said="Hi\n")
    assert "openai has no key 'nobody'" in done.stdout + done.stderr
