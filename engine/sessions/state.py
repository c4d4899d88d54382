"""A conversation's data, and its setup as stored. The data outlives the tasks and actors that work on it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

from callboard.adapters import ContentBlock, Message
from callboard.bus import SessionConfigured, SessionSetup
from callboard.bus.backend import LoopLock
from callboard.bus.values.base import JsonObject

from ..conversation.context import WHOLE, RefusedReasoning
from ..conversation.options import NOTHING, StoredTurnOptions, TurnOptions, merged
from ..routing.model_choice import Model, Requirements, stored_model
from ..tools import Tool, ToolLike
from ..tools.definitions import collected

_NO_OPTIONS: TurnOptions = {}


class TurnInProgress(Protocol):
    """The part of a turn in progress that other modules may use."""

    def cancel(self, why: str = "") -> bool:
        """Request the end of the turn. Returns false if the turn has ended."""

    def steer(self, content: str | Sequence[ContentBlock]) -> Message:
        """Add a message of the user. Raises NoTurnRunning."""


class SessionState:
    """A conversation's data.

    Args:
        session_id: The session's id; empty for a conversation that belongs to no session.
        model: The model of the next turn.
        system_prompt: The system prompt of the next turn.
        tools: The tools of the next turn.
        tags: The tags of the session's calls.
        options: Default options for the session's turns.
        requires: The abilities that the models must have, in addition to the abilities that a
            turn requires.
        name: The session's name, for people.
        forked_from: The id of the session that this session was forked from.

    Raises:
        ConfigurationError: Two tools have one name.
        ToolDefinitionError: A function lacks type hints or descriptions of its parameters.
        TypeError: Something is neither a tool nor a function.
    """

    waiting_options_stored: JsonObject | None = None
    """`waiting_options` as last published for the store."""
    resumed = False
    """Whether the session was restored from the store."""
    commits = False
    """Whether each turn ends with a commit, so that other processes find its messages immediately."""
    epoch = 0
    """In a cluster, the epoch of this node's claim to the session; 0 before the claim."""
    lost = ""
    """In a cluster, the error text for users of this session after another node has taken it over, else empty."""
    opening: tuple[object, bytes] | None = None
    """In a cluster, a cache of the encoded setup for other nodes, with the values from which it was encoded."""
    claimed: int | None = None
    """The seq of the event that makes this engine the session's owner once the event is stored; None if the event
    isn't published.
    """

    def __init__(
        self,
        session_id: str,
        model: Model,
        system_prompt: str | None,
        tools: Sequence[ToolLike],
        tags: dict[str, str],
        *,
        options: TurnOptions = _NO_OPTIONS,
        requires: Requirements | None = None,
        name: str | None = None,
        forked_from: str | None = None,
    ) -> None:
        self.id = session_id
        self.calls_as = session_id
        """The session id in the trace of this conversation's calls. It differs from the conversation's own id if a
        conversation without a session records its calls under a session.
        """
        self.model = model
        self.options = options
        self.requires = requires
        self.system_prompt = system_prompt
        self.use_tools(tools)
        self.tags = tags
        self.messages: list[Message] = []
        self.name = name
        self.forked_from = forked_from
        self.context = WHOLE
        """The part of the history that the context policy currently sends."""
        self.refused_reasoning = RefusedReasoning()
        self.waiting_options: StoredTurnOptions = NOTHING
        """The options of the last turn whose tool calls wait for an answer. The turn with the answers uses these
        options.
        """
        self.turns = LoopLock()
        """Admits one turn at a time, in the order in which they were requested."""
        self.queue: list[TurnInProgress] = []
        """The turns that have started but are not admitted yet, in the order in which they will run."""
        self.running: TurnInProgress | None = None
        self.announced = False
        """Whether the session's existence was published."""

    def use_tools(self, tools: Sequence[ToolLike]) -> None:
        """Set the tools of the next turn. Raises the errors of `SessionState`."""
        self.tools, self.sources, self.definitions = collected(tools)
        self.given_tools: Sequence[ToolLike] = tools if self.sources else self.tools
        """The tools as passed, for a fork."""
        self._read: Sequence[tuple[Tool, ...]] = [each.tools for each in self.sources] if self.sources else ()

    def refresh_tools(self) -> bool:
        """Read the tool sources again. Returns whether their tools have changed."""
        if all(source.tools is read for source, read in zip(self.sources, self._read, strict=True)):
            return False
        self.use_tools(self.given_tools)
        return True

    @property
    def waiting(self) -> int:
        return len(self.queue)

    def options_for(self, model: Model | None) -> TurnOptions:
        """The options that a turn inherits. A turn with its own model doesn't inherit the fallback."""
        return self.options if model is None else merged({**self.options, "fallback": None})


DEFAULTS = ("temperature", "max_output_tokens", "max_tool_rounds")
"""The options of a session that are stored in addition to its fallback models."""


def configured(state: SessionState, *, begins: bool = False) -> SessionConfigured:
    """The event from which the store can restore the session, except for its messages."""
    return SessionConfigured(history=len(state.messages), setup=setup_of(state), begins=begins, epoch=state.epoch)


def setup_of(state: SessionState, waiting: StoredTurnOptions | None = None) -> SessionSetup:
    waiting = state.waiting_options if waiting is None else waiting
    requires, fallback = state.requires, state.options.get("fallback")
    return SessionSetup(
        model=stored_model(state.model),
        system_prompt=state.system_prompt,
        tools=state.definitions,
        fallback=None if fallback is None else tuple(fallback),
        requires=None if requires is None else msgspec.to_builtins(requires),
        defaults={name: value for name in DEFAULTS if (value := state.options.get(name)) is not None} or None,  # type: ignore[misc]
        asked_with=waiting.stored(state.options_for(waiting.model)),
    )
