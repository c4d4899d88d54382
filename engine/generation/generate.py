"""`generate`: a conversation in one call, its tool rounds included."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Unpack

from callboard.adapters import ContentBlock

from ..conversation.results import GenerateResult
from ..conversation.turn import Turn, own
from ..routing.model_choice import Model
from ..runtime.runtime import Runtime
from .arguments import Arguments, new_turn


async def generate_on(
    runtime: Runtime,
    model: Model | None,
    prompt: str | Sequence[ContentBlock] | None,
    **arguments: Unpack[Arguments],
) -> GenerateResult:
    """The result of a conversation; see the function `generate`."""
    turn = new_turn(runtime, model, prompt, streamed=False, **arguments)
    await own(turn, await runtime.host.start_turn(turn))
    return result_of(turn)


def result_of(turn: Turn) -> GenerateResult:
    """The result of a turn that came to its end without an error."""
    return GenerateResult(
        steps=tuple(turn.steps),
        messages=turn.messages,
        status=turn.status,
        total_cost=turn.cost,
        cost_sum=turn.spending.sum,
        undelivered=turn.undelivered,
    )
