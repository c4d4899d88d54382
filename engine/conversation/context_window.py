"""A reply to as much of a conversation as the model can read, by the session's context policy."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from adapters import Message
from bus import ContextOverflowError, PromptTooLongError

from ..routing.candidates import default_max_output
from ..routing.choice import overridden
from .context import ContextPolicy, Conversation
from .turn_context import TurnContext

T = TypeVar("T")

MAX_TRIES = 4
"""How often a policy may try to make a prompt short enough."""

ADVICE = (
    "Let the session shorten what it sends: engine.session(..., context=Truncate()), or LastTurns or Summarise of "
    "engine.context; or choose a model with a larger window"
)
"""What to do when a prompt is too long and no policy is at hand."""


async def shortened(
    policy: ContextPolicy,
    turn: TurnContext,
    *,
    history: Sequence[Message],
    ask: Callable[[str], Awaitable[str]],
    call: Callable[[tuple[Message, ...]], Awaitable[T]],
) -> T:
    """What `call` returns for what the policy lets be sent; if that is too long, the policy is asked again."""
    state, failure = turn.state, None
    limit, estimate = measure_of(turn)
    failed = dict(turn.failed)
    for _ in range(MAX_TRIES):
        conversation = Conversation(
            messages=tuple(history),
            context=state.context,
            too_long=failure is not None,
            limit=limit,
            estimate=estimate,
            ask=ask,
        )
        before, state.context = state.context, await policy.assemble(conversation)
        if failure is not None and state.context == before:
            break
        try:
            return await call(state.context.of(history))
        except (PromptTooLongError, ContextOverflowError) as error:
            if error.content:
                raise
            failure = error
            turn.failed = dict(failed)  # a model for which it was too long gets another chance
    assert failure is not None
    failure.add_note(f"{type(policy).__name__} could not make the prompt short enough")
    raise failure


def measure_of(turn: TurnContext) -> tuple[int | None, Callable[[Sequence[Message]], int]]:
    """How many tokens a prompt may have, if that is known, and what some messages would come to.

    Of the model that has answered in this turn, else of the first one.
    """
    named = next((each for each in turn.plan.named if each.model == turn.answered_by), turn.plan.named[0])
    entry = named.entry
    adapter = turn.runtime.adapters.consult(turn.registry.adapter_of(entry))
    capabilities = overridden(adapter.get_capabilities(entry.wire_name), entry.capabilities)
    output = turn.asked.max_output_tokens or default_max_output(entry, capabilities, listed=named.listed)
    window = capabilities.max_context_tokens

    def estimate(messages: Sequence[Message]) -> int:
        prompt = turn.state.system_prompt
        return adapter.estimate_input_tokens(messages, turn.asked.tools, prompt, model=entry.wire_name)

    return (window - min(output, window // 2) if named.listed else None), estimate
