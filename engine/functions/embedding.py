"""`embed` without an engine in hand, and its sync twin: see `functions`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Unpack

from ..calls.plain_call import Models
from ..engine import Engine
from ..operations.embeddings import EmbeddingOptions, EmbeddingResult
from .default import default_engine, engine_on
from .sync_host import sync_host


async def embed(
    texts: Sequence[str] | str,
    *,
    model: Models = None,
    engine: Engine | None = None,
    **options: Unpack[EmbeddingOptions],
) -> EmbeddingResult:
    """The vectors of texts, however many: `Engine.embed` on the engine that is meant.

    Args:
        texts: The texts, or one text.
        model: Any of a model's names, or several names of one and the same model; None is the configured default.
        engine: The engine to use; None is `default_engine()`.
        options: The fields of `EmbeddingOptions`, such as ``on_progress``.

    Raises:
        PartialEmbeddingError: Some texts could not be embedded; the exception has the vectors of the others.
        AdapterError: No text could be embedded.
        ConfigurationError: The configuration is wrong, or the vectors of two models can't be compared.
    """
    return await (engine or default_engine()).embed(texts, model=model, **options)


def embed_sync(
    texts: Sequence[str] | str,
    *,
    model: Models = None,
    engine: Engine | None = None,
    **options: Unpack[EmbeddingOptions],
) -> EmbeddingResult:
    """`embed` for code without an event loop; see `generate_sync`. `on_progress` is called in the sync thread.

    Args:
        texts: As in `embed`.
        model: As in `embed`.
        engine: As in `generate_sync`.
        options: As in `embed`.
    """
    host = sync_host()

    async def ask() -> EmbeddingResult:
        return await engine_on(host, engine).embed(texts, model=model, **options)

    return host.run(ask, name="embed_sync()")
