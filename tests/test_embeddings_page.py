"""What docs/embeddings.md shows runs as it stands."""

from __future__ import annotations

import re
from array import array
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import cast

import pytest

from callboard import AdapterConfig, AdapterEntry, EmbeddingOptions, Engine, ModelRegistry
from callboard.adapters.embeddings import INPUT_TYPES
from callboard.adapters.providers.local.settings import find_model
from callboard.adapters.registry import adapter_types
from callboard.engine.models.configured import read_models_yaml
from callboard.engine.operations.embeddings import require_same_space
from callboard.engine.routing.candidates import expand
from examples.near_duplicates import nearest_pairs
from tests.book.snippets import DOCS, codes, definitions
from tests.support.virtual_time import runs_on

pytestmark = pytest.mark.anyio

PAGE = DOCS / "embeddings.md"

anyio_backend = runs_on("asyncio")


@pytest.fixture
def programs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, Callable[..., Awaitable[object]]]:
    monkeypatch.setenv("CALLBOARD_HOME", str(tmp_path))
    return cast("dict[str, Callable[..., Awaitable[object]]]", definitions(PAGE))


async def test_the_first_program_finds_what_is_alike(
    programs: dict[str, Callable[..., Awaitable[object]]], capsys: pytest.CaptureFixture[str]
) -> None:
    if find_model() is None:
        pytest.skip("the local model's weights are not installed")
    pytest.importorskip("xllamacpp", reason="the local model's server has no wheel for this machine")
    await programs["main"]()
    same, alike, other, summary = capsys.readouterr().out.splitlines()
    assert same.startswith("1.00 ")
    assert float(alike.split()[0]) > float(other.split()[0])
    assert re.fullmatch(r"576 \d+ 0", summary), summary


async def test_the_example_shows_the_nearest_pairs_first() -> None:
    """Over any engine: here its own sums are judged, on vectors that are known."""
    vectors = [array("f", numbers) for numbers in ([1, 0], [0, 1], [2, 0.1])]
    pairs = nearest_pairs(vectors)
    assert [(one, other) for _, one, other in pairs] == [(0, 2), (1, 2), (0, 1)]
    assert pairs[0][0] == pytest.approx(0.99875, abs=1e-4)


async def test_what_went_wrong_names_the_texts(programs: dict[str, Callable[..., Awaitable[object]]]) -> None:
    entry = AdapterEntry(name="p", type="tests.cli.adapters:PoorEmbedder", config=AdapterConfig())
    async with Engine(models=ModelRegistry({"p": entry}, {}), trace=False) as engine:
        found = await programs["what_went_wrong"](engine, ["fine", "bad"], "p:m")
        assert found == ["bad: I don't like it"]
        assert await programs["what_went_wrong"](engine, ["fine"], "p:m") == []


def test_the_models_file_is_one_and_its_fallback_is_of_the_same_space(tmp_path: Path) -> None:
    path = tmp_path / "models.yaml"
    path.write_text(codes(PAGE, "yaml")[0])
    registry = read_models_yaml(path, {"OPENAI_API_KEY": "x", "AZURE_API_KEY": "y"})
    plan = expand(registry, "embed")
    require_same_space(plan)
    named = plan.named
    assert [each.model for each in named] == ["openai:text-embedding-3-small", "azure:my-deployment"]


def test_every_option_input_type_and_adapter_type_that_embeds_is_named() -> None:
    text = PAGE.read_text(encoding="utf-8")
    for name in (*EmbeddingOptions.__annotations__, *INPUT_TYPES, "bedrock", "cohere", "voyage"):
        assert f"`{name}`" in text, name
    for name in re.findall(r"^\| `(\w+)` \| .* \| .* \|$", text, re.MULTILINE):
        assert name in adapter_types()
