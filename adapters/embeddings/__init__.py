"""Embeddings: the contract of the adapters that have them, one module for each wire, and batching.

The adapters of OpenAI, OpenAI-compatible servers, Gemini, Ollama and the local model embed beside their
conversations; those of Voyage, Cohere and Bedrock do nothing else.
"""

from .batching import AT_ONCE, embed_all, plan_batches, run_batches
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
    "PartialEmbeddingError",
    "Vector",
    "embed_all",
    "plan_batches",
    "run_batches",
]
