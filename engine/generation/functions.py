"""The functions that most people call. Each is the method of the same name on the engine that is meant."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Unpack

from adapters import ContentBlock

from ..choice import Model
from ..results import GenerateResult
from .asking import Arguments
from .default import default_engine
from .streaming import OnUsage, StreamResult

if TYPE_CHECKING:
    from ..engine import Engine


async def generate(
    model: Model | None = None,
    prompt: str | Sequence[ContentBlock] | None = None,
    *,
    engine: Engine | None = None,
    **arguments: Unpack[Arguments],
) -> GenerateResult:
    """Ask a model, run the tools that it calls, and return when it has answered.

    model: any of its names, several in order, a `ModelChoice`, or None for the configured default. prompt: text or
    content blocks; or else `messages=[...]`, the whole conversation. arguments: the fields of `Arguments`
    (system_prompt, tools, tags, provider, timeout) and of `TurnOptions` (max_output_tokens, max_tool_rounds,
    signal and so on). engine: None is `default_engine()`.

    Cancelling the task that waits here cancels the call. Raises AdapterError, with what had arrived (`content`,
    `usage`) and what had been done (`.turn`: its `steps`, `cost`, `messages`); ConfigurationError;
    CallboardError or TypeError for arguments that don't go together.
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
    """Like `generate`, but the reply is given as it comes; see `StreamResult`.

    on_usage: is called with what was used so far, while the result is iterated.
    """
    return (engine or default_engine()).stream(model, prompt, on_usage=on_usage, **arguments)
