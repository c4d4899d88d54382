"""The part of a turn that an error shows when it has ended that turn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ..events.sessions import TurnStatus
from .content import ToolResultBlock
from .messages import Message
from .usage import Cost, StopReason, TokenUsage


class StepSoFar(Protocol):
    """One reply of the model, with the answers of its tools. It is an `engine.StepResult`."""

    @property
    def message(self) -> Message:
        """The reply as it stands in the history."""

    @property
    def tool_results(self) -> tuple[ToolResultBlock, ...]:
        """The answers of the tools in the order of their calls."""

    @property
    def stop_reason(self) -> StopReason:
        """The reason why the reply ended."""

    @property
    def usage(self) -> TokenUsage:
        """The tokens of the reply."""

    @property
    def cost(self) -> Cost:
        """The cost of the reply."""


class TurnSoFar(Protocol):
    """A turn that has ended in an error."""

    @property
    def id(self) -> str:
        """The turn's id, ``trn_<ulid>``."""

    @property
    def status(self) -> TurnStatus:
        """The way the turn ended: ``failed`` or ``cancelled``."""

    @property
    def steps(self) -> Sequence[StepSoFar]:
        """The replies that ended before the error."""

    @property
    def messages(self) -> tuple[Message, ...]:
        """The conversation, with everything that the turn added."""

    @property
    def undelivered(self) -> tuple[Message, ...]:
        """The messages that were to steer the turn, and are not in the history."""

    @property
    def cost(self) -> Cost:
        """The cost of the turn's calls, failed ones included; unknown as soon as one cost is."""
