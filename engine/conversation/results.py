"""What a turn has brought: its steps, and for who asked without a session, all of them together."""

from __future__ import annotations

from functools import reduce
from operator import add

import msgspec

from adapters import (
    CallWarning,
    CanonicalResponse,
    Message,
    StopReason,
    TokenUsage,
    ToolResultBlock,
    ToolUseBlock,
)
from bus import Cost, TurnStatus
from bus.values.cost_sum import CostSum

from .reply import Reply


class StepResult(msgspec.Struct, frozen=True, kw_only=True):
    """One reply of the model and the tools that were run for it.

    message: the reply as it stands in the history, with its metadata. response: the reply as the adapter gave it.
    tool_results: in the order of their calls; none where no tool was run. cost: of the reply.
    """

    message: Reply
    response: CanonicalResponse
    cost: Cost
    tool_results: tuple[ToolResultBlock, ...] = ()

    @property
    def text(self) -> str:
        """All text of the reply."""
        return self.response.text

    @property
    def reasoning(self) -> str | None:
        """The visible reasoning; None if there is none."""
        return self.response.thinking or None

    @property
    def tool_calls(self) -> tuple[ToolUseBlock, ...]:
        """The calls that it asks for, in their order."""
        return self.response.tool_uses

    @property
    def stop_reason(self) -> StopReason:
        """Why it ended."""
        return self.response.stop_reason

    @property
    def raw_stop_reason(self) -> str | None:
        """The provider's own word for it."""
        return self.response.raw_stop_reason

    @property
    def usage(self) -> TokenUsage:
        """Its tokens."""
        return self.response.usage

    @property
    def warnings(self) -> tuple[CallWarning, ...]:
        """What its caller should know, such as what was left out of the request."""
        return self.response.warnings


class GenerateResult(msgspec.Struct, frozen=True, kw_only=True):
    """What `generate` returns. Everything but the totals and `warnings` is of the last step.

    steps: at least one. messages: the conversation as it was given, and all that was added to it. status: as
    `TurnStatus` lists them.
    total_cost: of all calls, failed ones and their attempts included; unknown as soon as one of them is. cost_sum:
    what is known of it, and how many attempts are estimated, unpriced or unknown.
    """

    steps: tuple[StepResult, ...]
    messages: tuple[Message, ...]
    status: TurnStatus
    total_cost: Cost
    cost_sum: CostSum = CostSum()

    @property
    def text(self) -> str:
        """All text of the last reply."""
        return self.steps[-1].text

    @property
    def reasoning(self) -> str | None:
        """The visible reasoning; None if there is none."""
        return self.steps[-1].reasoning

    @property
    def tool_calls(self) -> tuple[ToolUseBlock, ...]:
        """The calls of the last reply."""
        return self.steps[-1].tool_calls

    @property
    def tool_results(self) -> tuple[ToolResultBlock, ...]:
        """What the tools of the last step answered."""
        return self.steps[-1].tool_results

    @property
    def stop_reason(self) -> StopReason:
        """Why the last reply ended."""
        return self.steps[-1].stop_reason

    @property
    def raw_stop_reason(self) -> str | None:
        """The provider's own word for it."""
        return self.steps[-1].raw_stop_reason

    @property
    def usage(self) -> TokenUsage:
        """Tokens of the last reply; those of all are `total_usage`."""
        return self.steps[-1].usage

    @property
    def cost(self) -> Cost:
        """Of the last reply; that of all is `total_cost`."""
        return self.steps[-1].cost

    @property
    def message(self) -> Reply:
        """The last reply as it stands in the conversation."""
        return self.steps[-1].message

    @property
    def response(self) -> CanonicalResponse:
        """The last reply as the adapter gave it."""
        return self.steps[-1].response

    @property
    def total_usage(self) -> TokenUsage:
        """Of all steps; its source is the weakest among theirs."""
        return reduce(add, (step.usage for step in self.steps))

    @property
    def warnings(self) -> tuple[CallWarning, ...]:
        """Of all steps, in their order."""
        return tuple(warning for step in self.steps for warning in step.warnings)
