"""A conversation that is too long for the model is shortened by the session's context policy until it fits."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from callboard.adapters import Message
from callboard.bus import ContextOverflowError, PromptTooLongError

from .context import ContextPolicy, Conversation
from .turn_context import TurnContext
from .turn_models import TurnModels

T = TypeVar("T")

MAX_TRIES = 4
"""The number of times that a policy may try to make a prompt short enough."""

ADVICE = (
    "Let the session shorten what it sends: engine.session(..., context=Truncate()), or LastTurns or Summarise of "
    "engine.context; or choose a model with a larger window"
)
"""The advice for a prompt that is too long where there is no policy."""


async def within_window(
    policy: ContextPolicy,
    turn: TurnContext,
    models: TurnModels,
    history: Sequence[Message],
    ask: Callable[[str], Awaitable[str]],
    call: Callable[[tuple[Message, ...]], Awaitable[T]],
) -> T:
    """The result of a call with the part of the history that the policy lets be sent.

    If that part is too long for the model, the policy is asked again.

    Args:
        policy: The context policy.
        turn: The turn.
        models: The models that may serve.
        history: The whole conversation.
        ask: Asks the model something beside the conversation, for the policy.
        call: Makes the call with the messages that are sent.

    Raises:
        PromptTooLongError: The policy could not make the prompt short enough.
        ContextOverflowError: The same, found out by the provider.
    """
    state, failure = turn.state, None
    limit, estimate = models.measure()
    failed = dict(models.failed)
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
            models.failed = dict(failed)  # a model for which it was too long gets another chance
    assert failure is not None
    failure.add_note(f"{type(policy).__name__} could not make the prompt short enough")
    raise failure
