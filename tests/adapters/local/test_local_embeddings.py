"""The local model embeds: no key, no network, and real vectors of a real model."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from callboard.adapters import AdapterConfig, CapabilityError, ContextOverflowError
from callboard.adapters.embeddings import EmbeddingAdapter, EmbeddingRequest, PartialEmbeddingError, Vector, embed_all
from callboard.adapters.providers.local import LocalAdapter
from callboard.bus import ConfigurationError

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
async def embedder(model: Path) -> AsyncIterator[LocalAdapter]:
    options = {"embeddings": "mean", "context_tokens": 512, "slots": 2}
    adapter = LocalAdapter(AdapterConfig(options=options))
    yield adapter
    await adapter.close()


def request(*texts: str, **changes: object) -> EmbeddingRequest:
    fields: dict[str, object] = {"request_id": "r", "model": "local:smollm2", "inputs": texts, **changes}
    return EmbeddingRequest(**fields)  # type: ignore[arg-type]


def likeness(one: Vector, other: Vector) -> float:
    product = math.fsum(a * b for a, b in zip(one, other, strict=True))
    return product / math.hypot(*one) / math.hypot(*other)


async def test_the_local_model_s_vectors_know_what_is_alike(embedder: LocalAdapter) -> None:
    texts = ("The cat sat on the mat.", "The cat sat on the rug.", "Stock markets fell sharply on Monday.")
    response = await embedder.embed(request(*texts))
    cat, rug, markets = response.vectors
    assert response.dimensions == 576
    assert likeness(cat, rug) > likeness(cat, markets)
    assert (response.usage.estimated, response.model) == (False, "local:smollm2")


async def test_base64_and_numbers_are_the_same_vector(embedder: LocalAdapter) -> None:
    """Up to the digits that JSON has."""
    (packed,) = (await embedder.embed(request("hello", encoding="base64"))).vectors
    (plain,) = (await embedder.embed(request("hello", encoding="float"))).vectors
    assert likeness(packed, plain) == pytest.approx(1.0, abs=1e-5)
    assert packed[0] == pytest.approx(plain[0], abs=1e-4)


async def test_a_text_that_is_too_long_is_found_and_the_others_are_embedded(embedder: LocalAdapter) -> None:
    with pytest.raises(PartialEmbeddingError) as caught:
        await embed_all(embedder, request("short", "word " * 2000, "also short"))
    assert list(caught.value.failures) == [1]
    assert isinstance(caught.value.failures[1], ContextOverflowError)


async def test_without_the_option_the_error_names_it() -> None:
    adapter = LocalAdapter(AdapterConfig())
    assert isinstance(adapter, EmbeddingAdapter)
    with pytest.raises(CapabilityError, match=r"options: \{embeddings: mean\}"):
        await adapter.embed(request("x"))
    await adapter.close()


def test_only_chat_has_them() -> None:
    with pytest.raises(ConfigurationError, match=r"options\.embeddings needs protocol: chat"):
        LocalAdapter(AdapterConfig(options={"embeddings": "mean", "protocol": "messages"}))
