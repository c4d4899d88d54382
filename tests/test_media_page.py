"""What docs/media.md and examples/video.py show runs as it stands, against a server on a real socket."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import cast

import pytest

from callboard.adapters.registry import adapter_types
from callboard import (
    AdapterConfig,
    AdapterEntry,
    Engine,
    ImageOptions,
    ModelRegistry,
    PriceTable,
    RetryPolicy,
    VideoOptions,
)
from examples.video import create, fetch, wait_for
from tests.support.media_server import MediaServer, media_server, png
from tests.support.virtual_time import runs_on

pytestmark = pytest.mark.anyio

PAGE = Path(__file__).parents[1] / "docs" / "media.md"
SORA, VEO = "openai:sora-2", "gemini:veo-3.1-generate-preview"

anyio_backend = runs_on("asyncio")


@pytest.fixture
def server() -> Iterator[MediaServer]:
    with media_server() as running:
        running.steps = []
        yield running


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)


@pytest.fixture
def programs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, Callable[..., Awaitable[object]]]:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    exec("\n".join(blocks("python")), names)
    return cast("dict[str, Callable[..., Awaitable[object]]]", names)


def engine_at(server: MediaServer, tmp_path: Path) -> Engine:
    """With the page's own prices."""
    path = tmp_path / "page-prices.yaml"
    path.write_text(blocks("yaml")[0])
    adapters = {
        name: AdapterEntry(
            name=name,
            type=name,
            config=AdapterConfig(api_key="k", base_url=server.url, retry=RetryPolicy(base_delay=0.01)),
        )
        for name in ("openai", "gemini")
    }
    return Engine(
        models=ModelRegistry(adapters, {}), store=tmp_path / "trace.db", prices=PriceTable.from_yaml(path)
    )


async def test_images_are_made_edited_and_composed(
    server: MediaServer,
    programs: dict[str, Callable[..., Awaitable[object]]],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    async with engine_at(server, tmp_path) as engine:
        await programs["draw"](engine)
    assert capsys.readouterr().out == "generate image/png None\nedit composite\n"
    assert (tmp_path / "boat.png").read_bytes() == png()


@pytest.mark.parametrize(("model", "usd"), [(SORA, "0.800000000"), (VEO, "3.200000000")])
async def test_a_video_is_filmed_and_taken_up_later(
    server: MediaServer,
    programs: dict[str, Callable[..., Awaitable[object]]],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    model: str,
    usd: str,
) -> None:
    async with engine_at(server, tmp_path) as engine:
        await programs["film"](engine, model)
        assert capsys.readouterr().out == f"completed 1.0\n{usd}\n"
        assert (tmp_path / "boat.mp4").read_bytes() == server.file
        job_id = "video_1" if model == SORA else "models/veo/operations/video_1"
        handle = await programs["later"](engine, job_id, model)
        assert getattr(handle, "status", None) == "completed"


async def test_the_example_waits_and_prints_what_a_second_costs(
    server: MediaServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "a.mp4"
    async with engine_at(server, tmp_path) as engine:
        await wait_for(engine, SORA, "A boat.", target)
    assert capsys.readouterr().out.splitlines()[-1] == f"{target}: 4 seconds, 0.4 USD, 0.1 a second"


async def test_the_example_creates_looks_and_fetches(
    server: MediaServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each in an engine of its own."""
    target = tmp_path / "b.mp4"
    server.steps = [30]
    async with engine_at(server, tmp_path) as engine:
        job_id = await create(engine, SORA, "A boat.")
    for done in (False, True, True):
        async with engine_at(server, tmp_path) as engine:
            assert await fetch(engine, SORA, job_id, target) is done
    said = capsys.readouterr().out.splitlines()
    assert said[1] == "in_progress 0.3"
    assert said[2:] == [f"{target}: 4 seconds, 0.4 USD, 0.1 a second"] * 2
    assert target.read_bytes() == server.file


def test_every_option_and_adapter_is_named() -> None:
    text = PAGE.read_text(encoding="utf-8")
    for name in (*ImageOptions.__annotations__, *VideoOptions.__annotations__):
        assert f"`{name}`" in text, name
    for names in re.findall(r"^\| (`\w+`(?:, `\w+`)*) \| [^|]*\|$", text, re.MULTILINE):
        for name in re.findall(r"`(\w+)`", names):
            assert name in adapter_types() or name in ImageOptions.__annotations__, name
