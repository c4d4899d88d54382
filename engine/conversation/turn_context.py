"""The part of a turn that its steps, its tools and its history share."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, cast

from callboard.bus import (
    SessionTurnCompleted,
    SessionTurnStarted,
    StreamLog,
    ToolFinished,
    ToolProgress,
    ToolStarted,
)
from callboard.bus.streams.events import TurnEvent
from callboard.tracestore import OpenReply

from ..calls.outcome import Spending
from ..routing.candidates import Route
from ..runtime.adapters import arrival
from ..runtime.in_flight import TurnScope
from ..runtime.runtime import Runtime
from .options import TurnOptions

if TYPE_CHECKING:
    from ..sessions.state import SessionState


class FirstIds(NamedTuple):
    """The ids that a caller wants for the first call of a turn. An empty id is made up."""

    request_id: str
    """The id of the call."""
    message_id: str
    """The id of its message."""


OWN_IDS = FirstIds("", "")


class TurnContext:
    """What is known of a turn from its beginning.

    Args:
        runtime: The parts of the engine.
        state: The conversation.
        options: The turn's options, all levels merged.
        streamed: Whether the replies are streamed.
    """

    log: StreamLog[TurnEvent]
    """The turn's stream, from the moment at which the turn is queued."""
    takes_up: OpenReply | None = None
    """The reply that is being made in the background, with which the turn begins in place of a new one."""
    on_accepted: Callable[[bool], object] | None = None
    """Is told whether a provider goes on with a reply in the background, as in `CallEvents`. It doesn't refer to
    the turn."""

    def __init__(self, runtime: Runtime, state: SessionState, options: TurnOptions, *, streamed: bool) -> None:
        self.id = runtime.clock.new_id("trn")
        """The turn's id, ``trn_<ulid>``. Its stream has the same id."""
        self.runtime = runtime
        self.state = state
        self.options = options
        self.streamed = streamed
        self.order = arrival()
        """The turn's place in the order in which turns were asked for."""
        self.spending = Spending()
        """What the turn's calls have used and cost so far."""
        self.route: Route | None = None
        """The way of the turn's last call."""
        self.tags: dict[str, str] = {**state.tags, **(options.get("tags") or {})}
        """The tags of the turn's calls: the session's, and over them the turn's own."""
        seconds = cast("float | None", options.get("timeout", runtime.timeouts.turn))
        self.scope = TurnScope(seconds, options.get("signal"), runtime.in_flight)

    def publish(
        self, event: SessionTurnStarted | SessionTurnCompleted | ToolStarted | ToolProgress | ToolFinished
    ) -> None:
        """Publish an event of the turn on the bus."""
        self.runtime.bus.publish(event, session_id=self.state.id or None, turn_id=self.id)
