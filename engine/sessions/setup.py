"""The setup of a session, which is all of it besides its messages, as it is stored, and back."""

from __future__ import annotations

import msgspec

from callboard.bus import SessionConfigured, SessionSetup

from ..conversation.options import AskedWith
from ..routing.model_choice import model_of, stored_model
from .state import SessionState

__all__ = ["configured", "model_of", "setup_of"]


DEFAULTS = ("temperature", "max_output_tokens", "max_tool_rounds")
"""The options of a session that are stored besides its fallback models."""


def configured(state: SessionState, *, begins: bool = False) -> SessionConfigured:
    """The event that has all that the store must know to make a session again, besides its messages."""
    return SessionConfigured(history=len(state.messages), setup=setup_of(state), begins=begins, epoch=state.epoch)


def setup_of(state: SessionState, asked: AskedWith | None = None) -> SessionSetup:
    """The setup of a session.

    Args:
        state: The session.
        asked: The options of the turn that begins; None takes those of the last turn that called tools.
    """
    asked = state.asked if asked is None else asked
    requires, fallback = state.requires, state.options.get("fallback")
    return SessionSetup(
        model=stored_model(state.model),
        system_prompt=state.system_prompt,
        tools=state.definitions,
        fallback=None if fallback is None else tuple(fallback),
        requires=None if requires is None else msgspec.to_builtins(requires),
        defaults={name: value for name in DEFAULTS if (value := state.options.get(name)) is not None} or None,  # type: ignore[misc]
        asked_with=asked.stored(state.options_for(asked.model)),
    )
