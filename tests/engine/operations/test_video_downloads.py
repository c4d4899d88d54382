"""A finished video is downloaded whole, whatever breaks on the way."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from callboard.adapters import CapabilityError, NetworkError
from callboard.bus import ConfigurationError
from callboard.engine import ModelRegistry
from tests.support.media_server import MediaServer, media_server
from tests.support.virtual_time import runs_on

from .video_engines import VEO, a_video, engine_at, filming

pytestmark = pytest.mark.anyio
anyio_backend = runs_on("asyncio")


@pytest.fixture
def server() -> Iterator[MediaServer]:
    with media_server() as running:
        yield running


@pytest.mark.parametrize(
    "faults",
    [
        ["cut-1000"],
        ["cut-0", "cut-99999", "drop", "503"],
        ["cut-5000", "whole"],
        ["cut-5000", "changed"],
        ["endless"],
        ["endless-cut-5000"],
        ["500", "cut-70000", "cut-1"],
    ],
    ids="+".join,
)
async def test_a_download_that_breaks_off_is_whole_in_the_end(
    server: MediaServer, tmp_path: Path, faults: list[str]
) -> None:
    server.faults["content"] = list(faults)
    target = tmp_path / "boat.mp4"
    async with filming(server, finished=True) as (_, handle):
        assert await handle.download(to=target) == target
    assert target.read_bytes() == server.file
    assert os.listdir(tmp_path) == ["boat.mp4"]


async def test_a_download_goes_on_where_it_broke(server: MediaServer) -> None:
    server.faults["content"] = ["cut-60000"]
    async with filming(server, finished=True) as (_, handle):
        assert await handle.download() == server.file
    first, second = server.of("content")
    assert "range" not in first.headers
    start = int(second.headers["range"].removeprefix("bytes=").removesuffix("-"))
    assert 0 < start <= 60_000
    assert second.headers["if-range"] == '"one"'


async def test_a_truncated_file_is_never_passed_off_as_whole(server: MediaServer, tmp_path: Path) -> None:
    """Nor does it replace the one that was there, nor is anything left beside it."""
    target = tmp_path / "boat.mp4"
    target.write_bytes(b"an older one")
    server.faults["content"] = ["endless-cut-5000"] * 20
    async with filming(server, finished=True) as (_, handle):
        with pytest.raises(NetworkError, match="not a whole MP4"):
            await handle.download(to=target)
        assert target.read_bytes() == b"an older one"
        assert os.listdir(tmp_path) == ["boat.mp4"]
        server.faults["content"] = []
        assert len(await handle.download()) == len(server.file)


async def test_a_file_whose_checksum_is_wrong_is_fetched_again(server: MediaServer) -> None:
    server.checksum = True
    server.faults["content"] = ["wrong"]
    async with filming(server, finished=True) as (_, handle):
        assert await handle.download() == server.file
    assert len(server.of("content")) == 2


async def test_each_variant_can_be_downloaded_where_there_are_some(server: MediaServer) -> None:
    async with filming(server, finished=True) as (engine, handle):
        assert (await handle.download("thumbnail")).startswith(b"\x89PNG")
        assert (await handle.download("spritesheet")).startswith(b"\x89PNG")
        google = await a_video(engine, VEO)
        await google.wait()
        with pytest.raises(CapabilityError, match="no thumbnail"):
            await google.download("thumbnail")
    assert [asked.path.partition("?")[2] for asked in server.of("content")] == [
        "variant=thumbnail",
        "variant=spritesheet",
    ]


async def test_the_key_goes_to_the_provider_alone(server: MediaServer) -> None:
    """Google's files are elsewhere in the end."""
    with media_server() as elsewhere:
        async with engine_at(server) as engine:
            server.files_at = elsewhere.url
            handle = await a_video(engine, VEO)
            await handle.wait()
            assert await handle.download() == elsewhere.file
        first, second = elsewhere.asked
    assert not any("a-secret-key" in value for value in (*first.headers.values(), *second.headers.values()))


async def test_a_job_whose_adapter_was_removed_says_so(server: MediaServer) -> None:
    server.steps = []
    async with filming(server, finished=True) as (engine, handle):
        await engine.reload(ModelRegistry({}, {}))
        with pytest.raises(ConfigurationError, match="openai"):
            await handle.download()


async def test_a_file_system_that_refuses_is_no_fault_of_the_provider(server: MediaServer, tmp_path: Path) -> None:
    async with filming(server, finished=True) as (_, handle):
        with pytest.raises(FileNotFoundError):
            await handle.download(to=tmp_path / "nowhere" / "boat.mp4")
        assert await handle.download() == server.file
