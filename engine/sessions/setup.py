"""The setup of a session, which is all of it besides its messages, as it is stored, and back."""

from __future__ import annotations

import msgspec

from callboard.bus import SessionConfigured, SessionSetup
from callboard.bus.values.json import Json

from ..routing.model_choice import Model, ModelChoice
from .state import SessionState


def configured(state: SessionState, *, begins: bool = False) -> SessionConfigured:
    """The event that has all that the store must know to make a session again, besides its messages."""
    return SessionConfigured(history=len(state.messages), setup=setup_of(state), begins=begins, epoch=state.epoch)


def setup_of(state: SessionState) -> SessionSetup:
    """The setup of a session."""
    requires, fallback = state.requires, state.options.get("fallback")
    return SessionSetup(
        model=_stored_model(state.model),
        system_prompt=state.system_prompt,
        tools=state.definitions,
        fallback=None if fallback is None else tuple(fallback),
        requires=None if requires is None else msgspec.to_builtins(requires),
    )


def _stored_model(model: Model) -> Json:
    match model:
        case str():
            return model
        case ModelChoice():
            choice: Json = msgspec.to_builtins(model)
            return choice
        case _:
            return list(model)


def model_of(stored: Json) -> Model:
    """A model as a session was given it, from a `SessionSetup`."""
    return msgspec.convert(stored, str | tuple[str, ...] | ModelChoice)
