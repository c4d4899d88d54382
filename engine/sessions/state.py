"""A conversation's data. It belongs to the engine, and outlives any task or actor that works on it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import anyio

from adapters import Message

from ..conversation.context import WHOLE, ContextPolicy
from ..conversation.refused_reasoning import RefusedReasoning
from ..routing.choice import Model, Requirements
from ..tools import Approve, Tool, require_distinct


class Cancellable(Protocol):
    """A turn under way, as far as others may act on it."""

    def cancel(self, why: str = "") -> bool:
        """Ask it to end. False if it is over."""


class SessionState:
    """A conversation's data. session_id: empty for what belongs to no session.

    turns: admits one turn at a time, in the order in which they were asked for.
    policy, context: what decides what is sent of the history, and what it has decided.
    name: for people. forked_from: the session whose history it began with.
    waiting: turns that have been started and not yet admitted. resumed: it is the continuation of a stored one.
    claimed: once the event of this seq is stored, the store knows that the session belongs to this engine; None:
    the store isn't told.
    """

    def __init__(
        self,
        session_id: str,
        model: Model,
        system_prompt: str | None,
        tools: Sequence[Tool],
        tags: dict[str, str],
        *,
        fallback: Sequence[str] | None = None,
        requires: Requirements | None = None,
        policy: ContextPolicy | None = None,
        name: str | None = None,
        forked_from: str | None = None,
        approve: Approve | None = None,
    ) -> None:
        require_distinct(tools)
        self.id = session_id
        self.model = model
        self.fallback = fallback
        self.requires = requires
        self.system_prompt = system_prompt
        self.tools = tuple(tools)
        self.approve = approve
        self.tags = tags
        self.messages: list[Message] = []
        self.name = name
        self.forked_from = forked_from
        self.policy = policy
        self.context = WHOLE
        self.refused_reasoning = RefusedReasoning()
        self.turns = anyio.Lock(fast_acquire=True)
        self.waiting = 0
        self.running: Cancellable | None = None
        self.announced = False
        self.resumed = False
        self.claimed: int | None = None
