"""A conversation's data. It belongs to the engine, and outlives any task or actor that works on it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import anyio

from adapters import Message

from .choice import Model, Requirements
from .context import WHOLE, ContextPolicy
from .tools import Approve, Tool, require_distinct

if TYPE_CHECKING:
    from .turn import Turn


class SessionState:
    """A conversation's data. session_id: empty for what belongs to no session.

    turns: admits one turn at a time, in the order in which they were asked for.
    policy, context: what decides what is sent of the history, and what it has decided.
    waiting: turns that have been started and not yet admitted. resumed: it is the continuation of a stored one.
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
        self.policy = policy
        self.context = WHOLE
        self.turns = anyio.Lock(fast_acquire=True)
        self.waiting = 0
        self.running: Turn | None = None
        self.announced = False
        self.resumed = False
