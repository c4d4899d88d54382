"""The functions for most programs. Each calls the engine method of the same name."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Unpack

from callboard.adapters import ContentBlock
from callboard.bus import CallboardError

from ..calls.plain_call import Models
from ..conversation.results import GenerateResult
from ..engine import Engine
from ..generation.arguments import Arguments
from ..generation.readers import OnUsage
from ..generation.streaming import StreamResult
from ..routing.model_choice import Model

if TYPE_CHECKING:
    from ..operations.embeddings import EmbeddingOptions, EmbeddingResult
    from .sync import SyncHost, SyncStreamResult


# --- The default engine ---

_chosen: Engine | None = None
_of_loops: dict[asyncio.AbstractEventLoop, Engine] = {}


def default_engine() -> Engine:
    """The engine that `generate` and the like use without ``engine=``: the one of `set_default_engine`, else the
    running loop's own, like `Engine.from_env()`.

    Raises:
        CallboardError: No event loop runs here.
        ConfigurationError: The configuration is wrong.
    """
    if _chosen is not None:
        return _chosen
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        raise CallboardError(
            "no event loop is running here, so there is no engine to use. Call this in a coroutine, or "
            "use generate_sync(), stream_sync() and the other sync functions"
        ) from None
    engine = _of_loops.get(loop)
    if engine is None or engine.closed:
        for old in [old for old in _of_loops if old.is_closed()]:
            del _of_loops[old]
        engine = _of_loops[loop] = Engine.from_env()
    return engine


def set_default_engine(engine: Engine | None) -> None:
    """Use an engine as the default of the whole process. The caller closes it.

    Args:
        engine: The engine; None restores one for each loop.
    """
    global _chosen
    _chosen = engine


def engine_on(host: SyncHost, engine: Engine | None) -> Engine:
    """The engine that a sync function uses, which is closed when the program ends. Called on the host's loop."""
    used = engine or default_engine()
    host.keep(used._runtime.host)
    return used


async def generate(
    model: Model | None = None,
    prompt: str | Sequence[ContentBlock] | None = None,
    *,
    engine: Engine | None = None,
    **arguments: Unpack[Arguments],
) -> GenerateResult:
    """Ask a model, run the tools that it calls, and return when it has answered.

    Cancelling the task that waits here cancels the call. An exception has the content that had arrived (`content`,
    `usage`) and the finished part of the turn (`.turn`, with its `steps`, `cost` and `messages`).

    Args:
        model: Any of a model's names, several names in order, a `ModelChoice`, or None for the configured default.
        prompt: Text or content blocks. A whole conversation is given as ``messages=[...]`` instead.
        engine: The engine to use; None is `default_engine()`.
        arguments: The fields of `Arguments` (system_prompt, tools, tags, provider, timeout) and of `TurnOptions`
            (max_output_tokens, max_tool_rounds, signal and so on).

    Raises:
        AdapterError: A call failed; it has many classes.
        ConfigurationError: The configuration, the model or an option is wrong.
        CallboardError: The arguments don't go together.
        TypeError: The argument does not exist, or has a wrong type.
    """
    return await (engine or default_engine()).generate(model, prompt, **arguments)


def stream(
    model: Model | None = None,
    prompt: str | Sequence[ContentBlock] | None = None,
    *,
    engine: Engine | None = None,
    on_usage: OnUsage | None = None,
    **arguments: Unpack[Arguments],
) -> StreamResult:
    """Like `generate`, but streamed; see `StreamResult`. Nothing is sent before the first read.

    Reading raises the exceptions of `generate`. Arguments that conflict raise CallboardError or TypeError
    immediately.

    Args:
        model: As in `generate`.
        prompt: As in `generate`.
        engine: As in `generate`.
        on_usage: A function that gets the usage so far while the result is iterated: every few deltas, and
            after every step.
        arguments: As in `generate`.
    """
    return (engine or default_engine()).stream(model, prompt, on_usage=on_usage, **arguments)


def generate_sync(
    model: Model | None = None,
    prompt: str | Sequence[ContentBlock] | None = None,
    *,
    engine: Engine | None = None,
    **arguments: Unpack[Arguments],
) -> GenerateResult:
    """Run `generate` without an event loop. Ctrl-C cancels the call.

    One thread of the process does the work, and async tools run on its loop, too. Its engine is closed when the
    program ends. In a thread with a running event loop the function works with a RuntimeWarning, because it blocks
    that loop. The exceptions of `generate` are raised here, too.

    Args:
        model: As in `generate`.
        prompt: As in `generate`.
        engine: An engine that is used by the sync functions only; None is `default_engine()` of their thread.
        arguments: As in `generate`.

    Raises:
        WrongLoop: The engine belongs to another loop, or an async tool calls this and would wait for itself.
    """
    from .sync import sync_host

    host = sync_host()

    async def ask() -> GenerateResult:
        return await engine_on(host, engine).generate(model, prompt, **arguments)

    return host.run(ask, name="generate_sync()")


def stream_sync(
    model: Model | None = None,
    prompt: str | Sequence[ContentBlock] | None = None,
    *,
    engine: Engine | None = None,
    on_usage: OnUsage | None = None,
    **arguments: Unpack[Arguments],
) -> SyncStreamResult:
    """`stream` for code without an event loop; see `generate_sync` and `SyncStreamResult`.

    `on_usage` is called in the thread ``callboard-sync``.
    """
    from .sync import SyncStreamResult, sync_host

    host = sync_host()

    async def ask() -> StreamResult:
        result = engine_on(host, engine).stream(model, prompt, on_usage=on_usage, **arguments)
        host.close_at_end(result)
        return result

    return SyncStreamResult(host, host.run(ask, name="stream_sync()"))


# --- Embeddings ---


async def embed(
    texts: Sequence[str | Sequence[int]] | str,
    *,
    model: Models = None,
    engine: Engine | None = None,
    **options: Unpack[EmbeddingOptions],
) -> EmbeddingResult:
    """The vectors of any number of texts: `Engine.embed` on the given engine.

    Args:
        texts: The texts, or one text. A list of integers is a text's tokens. Few providers accept them.
        model: Any of a model's names, or several names of the same model; None is the configured default.
        engine: The engine to use; None is `default_engine()`.
        options: The fields of `EmbeddingOptions`, such as ``on_progress``.

    Raises:
        PartialEmbeddingError: Some texts could not be embedded; the exception has the vectors of the others.
        AdapterError: No text could be embedded.
        ConfigurationError: The configuration is wrong, or the vectors of two models can't be compared.
    """
    return await (engine or default_engine()).embed(texts, model=model, **options)


def embed_sync(
    texts: Sequence[str | Sequence[int]] | str,
    *,
    model: Models = None,
    engine: Engine | None = None,
    **options: Unpack[EmbeddingOptions],
) -> EmbeddingResult:
    """`embed` for code without an event loop; see `generate_sync`.

    `on_progress` is called in the thread ``callboard-sync``.

    Args:
        texts: As in `embed`.
        model: As in `embed`.
        engine: As in `generate_sync`.
        options: As in `embed`.
    """
    from .sync import sync_host

    host = sync_host()

    async def ask() -> EmbeddingResult:
        return await engine_on(host, engine).embed(texts, model=model, **options)

    return host.run(ask, name="embed_sync()")
