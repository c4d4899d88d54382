"""The functions that most people call. Each is the method of the same name on the engine that is meant."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Unpack

from callboard.adapters import ContentBlock

from ..conversation.results import GenerateResult
from ..engine import Engine
from ..generation.arguments import Arguments
from ..generation.readers import OnUsage
from ..generation.streaming import StreamResult
from ..routing.model_choice import Model
from .default import default_engine, engine_on

if TYPE_CHECKING:
    from .sync_stream import SyncStreamResult


async def generate(
    model: Model | None = None,
    prompt: str | Sequence[ContentBlock] | None = None,
    *,
    engine: Engine | None = None,
    **arguments: Unpack[Arguments],
) -> GenerateResult:
    """Ask a model, run the tools that it calls, and return when it has answered.

    Cancelling the task that waits here cancels the call. An exception has what had arrived (`content`, `usage`)
    and what had been done (`.turn`, with its `steps`, `cost` and `messages`).

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
        TypeError: There is no such argument, or it is of a wrong kind.
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
    """Like `generate`, but the reply is given as it comes; see `StreamResult`. Nothing is sent before it is read.

    The exceptions of `generate` are raised by reading. Arguments that don't go together raise CallboardError or
    TypeError at once.

    Args:
        model: As in `generate`.
        prompt: As in `generate`.
        engine: As in `generate`.
        on_usage: A function that is told what was used so far while the result is iterated: every few deltas, and
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
    """`generate` for code without an event loop. Ctrl-C cancels the call.

    The work is done in one thread for the whole process, on whose loop async tools run as well. Its engine is
    closed when the program ends. In a thread with a running event loop the function works, with a RuntimeWarning,
    because it holds that loop up. The exceptions of `generate` are raised here, too.

    Args:
        model: As in `generate`.
        prompt: As in `generate`.
        engine: An engine that is used by the sync functions only; None is `default_engine()` of their thread.
        arguments: As in `generate`.

    Raises:
        WrongLoop: The engine belongs to another loop, or an async tool calls this and would wait for itself.
    """
    from .sync_host import sync_host

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
    """`stream` for code without an event loop; see `generate_sync` and `SyncStreamResult`. `on_usage` is called in
    the sync thread.
    """
    from .sync_host import sync_host
    from .sync_stream import SyncStreamResult

    host = sync_host()

    async def ask() -> StreamResult:
        result = engine_on(host, engine).stream(model, prompt, on_usage=on_usage, **arguments)
        host.close_at_end(result)
        return result

    return SyncStreamResult(host, host.run(ask, name="stream_sync()"))
