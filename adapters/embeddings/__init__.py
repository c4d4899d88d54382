"""Embeddings: what an adapter that embeds promises, how it is driven over HTTP, and batching.

The wires themselves stand with their providers (`adapters.providers`), or in `adapters.protocols` where several
providers speak the same one.
"""

from .batching import AT_ONCE, OnProgress, embed_all, plan_batches, run_batches
from .contract import (
    INPUT_TYPES,
    EmbeddingAdapter,
    EmbeddingCapabilities,
    EmbeddingRequest,
    EmbeddingResponse,
    Encoding,
    InputType,
    PartialEmbeddingError,
    Vector,
)

__all__ = [
    "AT_ONCE",
    "INPUT_TYPES",
    "EmbeddingAdapter",
    "EmbeddingCapabilities",
    "EmbeddingRequest",
    "EmbeddingResponse",
    "Encoding",
    "InputType",
    "OnProgress",
    "PartialEmbeddingError",
    "Vector",
    "embed_all",
    "plan_batches",
    "run_batches",
]
