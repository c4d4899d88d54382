"""Where a turn may go, and what its steps share on the way.

Which models failed, which one answers, and the adapters that serve it; these stay the turn's own to its end, also
when a reload replaces them for everybody else.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from adapters import Message, Role
from bus import StreamLog
from bus.streams.events import TurnEvent

from ..models.registry import ModelRegistry
from ..routing.candidates import Plan
from ..routing.capabilities import Asked
from ..runtime.borrowed_adapters import BorrowedAdapters
from ..runtime.runtime import Runtime

if TYPE_CHECKING:
    from ..sessions.state import SessionState
    from .options import TurnOptions


class FirstIds(NamedTuple):
    """The ids that a caller wants for the first call and its message; an empty one is made up."""

    request_id: str
    message_id: str


OWN_IDS = FirstIds("", "")


class TurnContext(msgspec.Struct, eq=False, kw_only=True):
    """What the steps of one turn share. registry: as it was when the turn began.

    adapters: until the turn's end. first_ids: of the first call. order, deadline: of the turn, for its calls.
    hold_time: told when a call begins and ends keeping the time.
    failed: models that are out of question for this turn, and why. answered_by: the model that has answered.
    """

    runtime: Runtime
    state: SessionState
    options: TurnOptions
    registry: ModelRegistry
    plan: Plan
    asked: Asked
    log: StreamLog[TurnEvent]
    turn_id: str
    streamed: bool
    first_ids: FirstIds
    order: int
    deadline: float
    hold_time: Callable[[bool], None]
    adapters: BorrowedAdapters
    failed: dict[str, str] = {}
    answered_by: str | None = None


def asked_of(state: SessionState, options: TurnOptions, plan: Plan, said: Sequence[Message]) -> Asked:
    """What a turn asks of whatever model it goes to. said: by the turn, answered or not."""
    return Asked(
        new=_unanswered(said),
        tools=tuple(tool.definition for tool in state.tools),
        tool_choice=options.get("tool_choice"),
        parallel_tool_calls=options.get("parallel_tool_calls"),
        output_schema=options.get("output_schema"),
        schema_mode=options["schema_mode"],
        reasoning_effort=options.get("reasoning_effort"),
        max_output_tokens=options.get("max_output_tokens"),
        requires=tuple(
            each for each in (state.requires, options.get("requires"), plan.requires) if each is not None
        ),
    )


def _unanswered(messages: Sequence[Message]) -> tuple[Message, ...]:
    """What the model hasn't answered yet. It must be able to take that; what came before is fitted to it."""
    answered = (place for place, message in enumerate(messages, 1) if message.role is Role.ASSISTANT)
    return tuple(messages[max(answered, default=0) :])
