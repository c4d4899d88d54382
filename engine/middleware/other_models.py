"""Other models are asked if the reply of the first one is unwanted."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from callboard.adapters import AdapterError, CanonicalRequest
from callboard.bus import CallboardError
from callboard.bus.errors import CancelledError

from ..calls.outcome import CallOutcome
from .contract import Middleware, Next


class TryModels(Middleware):
    """Asks other models, in order, if a call fails or if its outcome is unwanted.

    The engine itself deals with failures of a provider (`fallback=`). This middleware also judges replies: a
    refusal, an empty text, a reply that is no JSON. A streamed reply that has begun can't be taken back, so of
    streamed calls only those that fail before their first content lead to another model. Each try is a call of its
    own with its own cost. If all outcomes are unwanted, the last one is returned. If all calls fail, the first
    error is raised.

    Args:
        models: The names of the other models, besides the model that the caller asks for.
        unwanted: Tells whether an outcome is unwanted; None wants every outcome.

    Raises:
        ValueError: `models` is empty or no list of names.
    """

    def __init__(self, models: Sequence[str], *, unwanted: Callable[[CallOutcome], bool] | None = None) -> None:
        if isinstance(models, str) or not models:
            raise ValueError('TryModels takes a list of model names: TryModels(["openai:gpt-5.2"])')
        self._models = tuple(models)
        self._unwanted = unwanted

    async def call(self, request: CanonicalRequest, next: Next) -> CallOutcome:
        outcome: CallOutcome | None = None
        failure: CallboardError | None = None
        for model in (request.model, *self._models):
            try:
                outcome = await next(msgspec.structs.replace(request, model=model))
            except CancelledError:
                raise
            except CallboardError as error:
                if isinstance(error, AdapterError) and error.content:
                    raise  # a part of it has been delivered
                failure = failure or error
            else:
                if request.stream or self._unwanted is None or not self._unwanted(outcome):
                    return outcome
        if outcome is None:
            assert failure is not None
            raise failure
        return outcome
