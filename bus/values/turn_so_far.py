"""What an error shows of the turn that it ended."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ..events.catalogue import TurnStatus
from .content import ToolResultBlock
from .messages import Message
from .usage import Cost, StopReason, TokenUsage


class StepSoFar(Protocol):
    """One reply of the model, and what its tools answered; an `engine.StepResult`."""

    @property
    def message(self) -> Message: ...
    @property
    def tool_results(self) -> tuple[ToolResultBlock, ...]: ...
    @property
    def stop_reason(self) -> StopReason: ...
    @property
    def usage(self) -> TokenUsage: ...
    @property
    def cost(self) -> Cost: ...


class TurnSoFar(Protocol):
    """A turn that has ended in an error. steps: its replies. messages: the conversation, with all that it added.

    cost: of its calls, failed ones included; unknown as soon as one is.
    """

    @property
    def id(self) -> str: ...
    @property
    def status(self) -> TurnStatus: ...
    @property
    def steps(self) -> Sequence[StepSoFar]: ...
    @property
    def messages(self) -> tuple[Message, ...]: ...
    @property
    def cost(self) -> Cost: ...
