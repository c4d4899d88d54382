"""What is asked for embeddings is what the vendors' own types say such a request is."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from callboard.adapters import AdapterConfig, CapabilityError, create_adapter
from callboard.adapters.embeddings import INPUT_TYPES, EmbeddingRequest, InputType
from callboard.adapters.http.adapter import HttpAdapter
from callboard.adapters.operations.embedding_wire import fit_texts
from callboard.bus.values.base import JsonObject

from ..support.judges import embed_contents_faults, embeddings_faults, ollama_embed_faults

Judge = Callable[[bytes], list[str]]

JUDGES: dict[str, tuple[Judge, tuple[str, ...]]] = {
    "openai": (embeddings_faults, ("text-embedding-3-large", "text-embedding-ada-002", "of-tomorrow")),
    "openai_compatible": (embeddings_faults, ("text-embedding-3-large", "of-tomorrow")),
    "gemini": (embed_contents_faults, ("gemini-embedding-001", "gemini-embedding-2", "text-embedding-004")),
    "ollama": (ollama_embed_faults, ("nomic-embed-text", "qwen3-embedding:0.6b")),
}


def written(kind: str, asked: EmbeddingRequest) -> bytes | None:
    """The body; None for what is refused before anything is sent."""
    adapter = create_adapter(kind, AdapterConfig(), name=kind)
    assert isinstance(adapter, HttpAdapter)
    wire = adapter.wire.other_wires().embeddings
    assert wire is not None
    try:
        fitted, _ = fit_texts(asked, wire.capabilities(asked.wire_model), kind, len)
    except CapabilityError:
        return None
    return wire.write(fitted, kind).body


@pytest.mark.parametrize("kind", JUDGES)
@given(
    texts=st.lists(st.text(min_size=1), min_size=1, max_size=5),
    dimensions=st.one_of(st.none(), st.sampled_from([256, 768, 1536])),
    input_type=st.one_of(st.none(), st.sampled_from(INPUT_TYPES)),
    truncate=st.booleans(),
    which=st.integers(0, 2),
)
@settings(max_examples=40)
def test_requests_for_vectors_are_such_as_the_vendor_s_types_allow(
    kind: str,
    texts: list[str],
    dimensions: int | None,
    input_type: InputType | None,
    truncate: bool,
    which: int,
) -> None:
    judge, models = JUDGES[kind]
    asked = EmbeddingRequest(
        request_id="r",
        model=f"{kind}:{models[which % len(models)]}",
        inputs=tuple(texts),
        dimensions=dimensions,
        input_type=input_type,
        truncate=truncate,
    )
    body = written(kind, asked)
    assert body is None or judge(body) == []


@pytest.mark.parametrize(
    ("judge", "body"),
    [
        (embeddings_faults, {"model": "m"}),
        (embeddings_faults, {"model": "m", "input": ["x"], "encoding_format": "hex"}),
        (embeddings_faults, {"model": "m", "input": ["x"], "input_type": "query"}),
        (embed_contents_faults, {"requests": [{"model": "m", "content": {"parts": []}}]}),
        (embed_contents_faults, {"requests": [{"model": "models/m", "content": {"parts": []}, "task": "x"}]}),
        (ollama_embed_faults, {"model": "m", "input": ["x"], "dimensions": "x"}),
        (ollama_embed_faults, {"model": "m", "input": ["x"], "input_type": "x"}),
    ],
)
def test_the_judges_find_what_is_wrong(judge: Judge, body: JsonObject) -> None:
    assert judge(msgspec.json.encode(body))
