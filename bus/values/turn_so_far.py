"""The part of a turn that an error shows when it has ended that turn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ..events.catalogue import TurnStatus
from .content import ToolResultBlock
from .messages import Message
from .usage import Cost, StopReason, TokenUsage


class StepSoFar(Protocol):
    """One reply of the model, with the answers of its tools; an `engine.StepResult`."""

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
    """A turn that has ended in an error.

    It has its `id` and `status`, and the replies as `steps`. Its `messages` are the conversation with all that the
    turn added. Its `cost` is the cost of its calls, failed ones included; it is unknown as soon as one cost is.
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
