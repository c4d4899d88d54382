"""Images through the engine: routed, priced and traced, and never paid for twice."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from callboard.adapters import AdapterConfig, CapabilityError, ImageBlock, RetryPolicy
from callboard.bus import ConfigurationError, Lossless, OutcomeUnknownError
from callboard.engine import AdapterEntry, Engine
from callboard.tracestore import PriceRow, PriceTable
from tests.support.engines import entry, model, serving
from tests.support.media_server import MediaServer, media_server, png
from tests.support.present import present
from tests.support.provider_server import refusing_url
from tests.support.scripted import Say, scripted_type
from tests.support.virtual_time import runs_on

PRICES = PriceTable(
    [
        PriceRow(model="openai:gpt-image-2", input=5_000_000, output=1, extra={
            "image_input": 8_000_000, "image_output": 30_000_000
        }),
        PriceRow(model="gemini:gemini-2.5-flash-image", input=300_000, output=2_500_000, extra={
            "image_output": 30_000_000
        }),
    ]
)  # fmt: skip
GPT, FLASH = "openai:gpt-image-2", "gemini:gemini-2.5-flash-image"

anyio_backend = runs_on("asyncio")


@pytest.fixture
def server() -> Iterator[MediaServer]:
    with media_server() as running:
        yield running


@asynccontextmanager
async def engine_at(server: MediaServer, store: Path | None = None) -> AsyncIterator[Engine]:
    """An engine with both providers at the server, an unreachable adapter `away`, and an adapter `words` without
    images.
    """
    adapters: dict[str, AdapterEntry | str] = {"words": scripted_type(Say("-"))}
    for name in ("openai", "gemini", "away"):
        url = server.url if name != "away" else refusing_url()
        config = AdapterConfig(api_key="k", base_url=url, retry=RetryPolicy(base_delay=0.001, jitter=False))
        kind = name if name != "away" else "openai"
        adapters[name] = entry(name, kind, config)
    models = [model(name, kind="image") for name in (GPT, FLASH, "away:gpt-image-2", "words:m")]
    engine = Engine(models=serving(*models, **adapters), store=store, trace=store is not None, prices=PRICES)
    async with engine:
        yield engine


async def test_an_image_is_made_priced_by_its_tokens_and_traced(server: MediaServer, tmp_path: Path) -> None:
    """The call has 12 text and 8 image tokens of input and 272 image tokens of output, each at its own rate."""
    async with engine_at(server, tmp_path / "trace.db") as engine:
        with engine.bus.subscribe("llm.*", policy=Lossless()) as events:
            result = await engine.generate_image("A red boat.", model=GPT, size="1024x1024", tags={"of": "test"})
            started, completed = [envelope.data for envelope in events.take()]
        assert result.cost.nano_usd == (12 * 5_000_000 + 8 * 8_000_000 + 272 * 30_000_000) // 1000
        assert (result.operation, result.image.media_type, result.image.width) == ("generate", "image/png", 2)
        assert started.operation == "image"
        assert completed.cost == result.cost
        await engine.flush()
        (call,) = await present(engine.store).calls()
        assert call.cost.nano_usd == result.cost.nano_usd


async def test_gemini_counts_the_tokens_of_its_images_separately(server: MediaServer) -> None:
    """An image of a model without a price has the cost "unpriced", and not zero."""
    async with engine_at(server) as engine:
        result = await engine.generate_image("A red boat.", model=FLASH, aspect_ratio="16:9")
        other = await engine.generate_image("A red boat.", model="openai:gpt-image-1.5")
    assert result.cost.nano_usd == (6 * 300_000 + 1290 * 30_000_000) // 1000
    assert (other.cost.nano_usd, other.cost.source) == (None, "unpriced")


async def test_the_inputs_decide_the_operation(server: MediaServer, tmp_path: Path) -> None:
    """An image can be a block, bytes, or a file."""
    path = tmp_path / "boat.png"
    path.write_bytes(png())
    async with engine_at(server) as engine:
        one = await engine.edit_image("Make it blue.", path, model=GPT)
        masked = await engine.edit_image("Make it blue.", png(), mask=png(), model=GPT)
        several = await engine.edit_image("Side by side.", [path, ImageBlock(data=png())], model=FLASH)
    assert [one.operation, masked.operation, several.operation] == ["edit", "edit-masked", "composite"]
    assert [asked.path for asked in server.of("image")][:2] == ["/v1/images/edits"] * 2
    assert one.save(tmp_path / "blue.png").read_bytes() == png()


async def test_an_unsupported_request_is_refused_before_it_is_sent(server: MediaServer) -> None:
    async with engine_at(server) as engine:
        with pytest.raises(CapabilityError, match="edit-masked"):
            await engine.edit_image("Make it blue.", png(), mask=png(), model=FLASH)
        with pytest.raises(CapabilityError, match="at most 10"):
            await engine.generate_image("A red boat.", model=GPT, n=11)
        with pytest.raises(CapabilityError, match="can't make images"):
            await engine.generate_image("A red boat.", model="words:m")
        with pytest.raises(ConfigurationError):
            await engine.generate_image("A red boat.", model="nobody:x")
    assert server.asked == []


@pytest.mark.parametrize("fault", ["lost", "drop", "500", "done-500", "garbage"])
@pytest.mark.parametrize("model", [GPT, FLASH])
async def test_an_image_with_a_lost_reply_is_not_made_again(server: MediaServer, model: str, fault: str) -> None:
    """Neither a retry nor a fallback makes the image again."""
    server.faults["image"] = [fault]
    async with engine_at(server) as engine:
        with pytest.raises(OutcomeUnknownError, match="may have been run"):
            await engine.generate_image("A red boat.", model=[model, GPT, FLASH])
    assert len(server.of("image")) == 1


async def test_a_paid_request_is_not_resent_after_a_kept_connection_broke(server: MediaServer) -> None:
    server.faults["image"] = ["", "lost"]
    async with engine_at(server) as engine:
        await engine.generate_image("A red boat.", model=GPT)
        with pytest.raises(OutcomeUnknownError):
            await engine.generate_image("A red boat.", model=GPT)
    assert (len(server.of("image")), server.made) == (2, {"image": 2})


async def test_a_temporary_refusal_is_retried_and_an_unreachable_provider_is_skipped(server: MediaServer) -> None:
    server.faults["image"] = ["503", "429"]
    async with engine_at(server) as engine:
        result = await engine.generate_image("A red boat.", model=["away:gpt-image-2", GPT])
    assert result.model == GPT
    assert (len(server.of("image")), server.made) == (3, {"image": 1})
