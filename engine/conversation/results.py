"""The results of a turn: `Reply`, `StepResult` and `GenerateResult`."""

from __future__ import annotations

import warnings as python_warnings
from functools import reduce
from operator import add
from typing import Any, cast

import msgspec

from callboard.adapters import (
    CallWarning,
    CanonicalResponse,
    ContentBlock,
    Message,
    MessageMetadata,
    StopReason,
    TokenUsage,
    ToolResultBlock,
    ToolUseBlock,
)
from callboard.adapters.replies.usage import NOTHING_USED
from callboard.bus import Cost, RoutingDecision, TurnStatus
from callboard.bus.values.base import Json, JsonObject, ShortRepr, short
from callboard.bus.values.messages import RawReply
from callboard.bus.values.usage import CostSum

from ..calls.outcome import NOT_KNOWN


def plain(value: object) -> Json:
    """Convert a value to plain JSON: bytes to base64, a dataclass or pydantic model to an object."""
    try:
        return cast("Json", msgspec.json.decode(msgspec.json.encode(value, enc_hook=_of_pydantic)))
    except UnicodeError:  # half of a surrogate pair, which UTF-8 cannot hold
        return cast("Json", msgspec.to_builtins(value, enc_hook=_of_pydantic))


def _of_pydantic(value: Any) -> object:
    dump = getattr(value, "model_dump", None)
    return dump(mode="json") if dump is not None else str(value)


def renamed(old: str, new: str) -> None:
    """Warn that an attribute has a new name. Call it from the property with the old name."""
    python_warnings.warn(f"{old} is deprecated: use {new}", DeprecationWarning, stacklevel=3)


def _tokens(usage: TokenUsage) -> JsonObject:
    return {**{name: getattr(usage, name) for name in _COUNTS}, "source": str(usage.source)}


def _money(cost: Cost) -> JsonObject:
    return {"usd": None if cost.usd is None else f"{cost.usd:f}", "source": str(cost.source)}


def in_plain_values(result: Reply | GenerateResult, usage: TokenUsage, cost: Cost) -> JsonObject:
    """A result as a dict that any JSON library can write. Money is exact text.

    `reasoning` and `tool_calls` are the earlier names of `thinking` and `tool_uses`. They are kept, because hosts
    store such dicts.
    """
    calls: list[Json] = [
        {"id": call.id, "name": call.name, "input": plain(call.input)} for call in result.tool_uses
    ]
    return {
        "text": result.text,
        "content": plain(result.content),
        "thinking": result.thinking,
        "reasoning": result.thinking or None,
        "status": result.status,
        "stop_reason": str(result.stop_reason),
        "raw_stop_reason": result.raw_stop_reason,
        "model": result.model,
        "usage": _tokens(usage),
        "cost": _money(cost),
        "total_usage": _tokens(result.total_usage),
        "total_cost": _money(result.total_cost),
        "tool_uses": calls,
        "tool_calls": calls,
        "warnings": [{"code": str(each.code), "message": each.message} for each in result.warnings],
    }


_COUNTS = (
    *("input_tokens", "output_tokens", "total_tokens", "cached_input_tokens", "cache_creation_input_tokens"),
    "reasoning_tokens",
)


def in_markdown(text: str, model: str, usage: TokenUsage, cost: Cost) -> str:
    """A reply as Markdown, with a line about its model, tokens and cost."""
    amount = "unpriced" if cost.usd is None else f"{cost.usd:f} USD"
    return f"{text}\n\n---\n*{model}, {usage.total_tokens:,} tokens, {amount}*"


class Reply(Message, frozen=True, kw_only=True, eq=False, dict=True):
    """A message of the assistant with the model, usage, cost and other data of its call. `Session.send` returns
    it.

    It is equal to a Message with the same fields, such as the message in a resumed session.
    """

    metadata: MessageMetadata
    """The model, usage, cost and routing of the call. A reply always has it."""
    steers: bool = False
    """Always False: only user messages steer a turn."""

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Message):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in self.__struct_fields__)

    def __ne__(self, other: object) -> bool:  # the Struct's own comparison includes the classes
        return not self == other

    def __hash__(self) -> int:
        return hash(Message(self.role, self.content, self.id, self.name, self.metadata))

    @property
    def status(self) -> TurnStatus:
        """How the reply's turn ended, as in the trace; ``awaiting_tools`` while the turn runs."""
        status: TurnStatus = self.__dict__.get("_status", "awaiting_tools")
        return status

    @property
    def undelivered(self) -> tuple[Message, ...]:
        """The steering messages that had not reached the model when the reply's turn ended."""
        undelivered: tuple[Message, ...] = self.__dict__.get("_undelivered", ())
        return undelivered

    def to_dict(self) -> JsonObject:
        """The reply as plain values: text, status, model, usage, cost, calls, warnings. Money is exact text."""
        found = in_plain_values(self, self.usage, self.cost)
        if self.raw is not None:
            found["raw"] = plain(self.raw)
        if self.provider_details:
            found["provider_details"] = plain(self.provider_details)
        return found

    def _repr_markdown_(self) -> str:
        """The reply in a notebook."""
        return in_markdown(self.text, self.model, self.usage, self.cost)

    def ended(
        self,
        status: TurnStatus,
        undelivered: tuple[Message, ...] = (),
        *,
        usage: TokenUsage | None = None,
        cost: Cost | None = None,
        tree: tuple[CostSum, TokenUsage] | None = None,
    ) -> None:
        """Record how the reply's turn ended. This data is not stored in fields, so it is not compared or saved.

        Args:
            status: How the turn ended.
            undelivered: The steering messages that did not reach the model.
            usage: The tokens of all steps of the turn; None uses the tokens of this reply.
            cost: The cost of all calls of the turn; None uses the cost of this reply.
            tree: The cost and the tokens of the turn with its descendants; None uses the values of this reply.
        """
        noted = self.__dict__
        noted["_status"] = status
        if undelivered:
            noted["_undelivered"] = undelivered
        if usage is not None:
            noted["_total_usage"] = usage
        if cost is not None:
            noted["_total_cost"] = cost
        if tree is not None:
            noted["_tree"] = tree

    @property
    def stop_reason(self) -> StopReason:
        """The reason why the reply ended."""
        return self.metadata.stop_reason

    @property
    def raw_stop_reason(self) -> str | None:
        """The provider's own word for the stop reason; None if the provider sent none."""
        return self.metadata.raw_stop_reason

    @property
    def model(self) -> str:
        """``provider:name`` of the model that served the call."""
        return self.metadata.model

    @property
    def usage(self) -> TokenUsage:
        """All tokens of the call; `total_usage` has the tokens of the whole turn."""
        return self.metadata.usage

    @property
    def total_usage(self) -> TokenUsage:
        """The tokens of all steps of the turn. For a message of a resumed session, the tokens of its call."""
        total: TokenUsage = self.__dict__.get("_total_usage", self.usage)
        return total

    @property
    def total_cost(self) -> Cost:
        """The cost of all calls of the turn. For a message of a resumed session, the cost of its call."""
        total: Cost = self.__dict__.get("_total_cost", self.cost)
        return total

    @property
    def tree_cost(self) -> CostSum:
        """The cost of the turn, including all turns and calls that its tools made. The result also has the number
        of attempts with an estimated, unpriced or unknown cost.

        For a message of a resumed session, this is the cost of its call.
        """
        tree: tuple[CostSum, TokenUsage] | None = self.__dict__.get("_tree")
        return CostSum.of_call(self.total_usage, self.total_cost) if tree is None else tree[0]

    @property
    def tree_usage(self) -> TokenUsage:
        """The tokens of all attempts of the turn and of all turns and calls that its tools made."""
        tree: tuple[CostSum, TokenUsage] | None = self.__dict__.get("_tree")
        return self.total_usage if tree is None else tree[1]

    @property
    def cost(self) -> Cost:
        """The cost of the call, under the prices that were current when the message was returned."""
        return self.metadata.cost

    @property
    def routing(self) -> RoutingDecision | None:
        """The routing decision of the call."""
        return self.metadata.routing

    @property
    def raw(self) -> RawReply | None:
        """The provider's raw reply; None unless `include_raw` was set."""
        return self.metadata.raw

    @property
    def provider_details(self) -> JsonObject:
        """Other data of the reply, by the provider's own names; see `CanonicalResponse.provider_details`."""
        return self.metadata.provider_details or {}

    @property
    def warnings(self) -> tuple[CallWarning, ...]:
        """Warnings for the caller, such as parts of the history that were left out of the request."""
        return self.metadata.warnings


def as_reply(message: Message) -> Reply:
    """Convert a stored assistant message with open calls to a Reply. If it has no metadata, model, usage and cost
    are unknown.
    """
    if isinstance(message, Reply):
        return message
    metadata = message.metadata or MessageMetadata(
        provider="unknown",
        model="unknown",
        usage=NOTHING_USED,
        cost=NOT_KNOWN,
        stop_reason=StopReason.TOOL_USE,
    )
    return Reply(message.role, message.content, message.id, message.name, metadata=metadata)


class StepResult(ShortRepr, frozen=True, kw_only=True):
    """One reply of the model and the tools that were run for it."""

    message: Reply
    """The reply as in the history, with its metadata."""
    response: CanonicalResponse
    """The reply as the adapter returned it."""
    cost: Cost
    """The cost of the reply."""
    tool_results: tuple[ToolResultBlock, ...] = ()
    """The results of the tools in the order of their calls; empty if no tool was run."""

    @property
    def text(self) -> str:
        """All text of the reply."""
        return self.response.text

    @property
    def content(self) -> tuple[ContentBlock, ...]:
        """The blocks of the reply, in order."""
        return self.message.content

    @property
    def thinking(self) -> str:
        """The visible reasoning; empty if there is none."""
        return self.response.thinking

    @property
    def tool_uses(self) -> tuple[ToolUseBlock, ...]:
        """The tool calls of the reply, in order."""
        return self.response.tool_uses

    @property
    def reasoning(self) -> str | None:
        """Deprecated: use `thinking`."""
        renamed("reasoning", "thinking")
        return self.thinking or None

    @property
    def tool_calls(self) -> tuple[ToolUseBlock, ...]:
        """Deprecated: use `tool_uses`."""
        renamed("tool_calls", "tool_uses")
        return self.tool_uses

    @property
    def stop_reason(self) -> StopReason:
        """The reason why the reply ended."""
        return self.response.stop_reason

    @property
    def raw_stop_reason(self) -> str | None:
        """The provider's own word for the stop reason."""
        return self.response.raw_stop_reason

    @property
    def usage(self) -> TokenUsage:
        """The tokens of the reply."""
        return self.response.usage

    @property
    def total_usage(self) -> TokenUsage:
        """The tokens of the step, the same as `usage`. `Reply` and `GenerateResult` have this name for a turn."""
        return self.usage

    @property
    def total_cost(self) -> Cost:
        """The cost of the step, the same as `cost`."""
        return self.cost

    @property
    def warnings(self) -> tuple[CallWarning, ...]:
        """Warnings for the caller, such as parts that were left out of the request."""
        return self.response.warnings


class GenerateResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of `generate`. All properties except the totals and `warnings` are about the last step."""

    steps: tuple[StepResult, ...]
    """The steps of the turn, at least one."""
    messages: tuple[Message, ...]
    """The conversation that was passed, and all messages that were added to it."""
    status: TurnStatus
    """How the turn ended: a value of `TurnStatus`."""
    total_cost: Cost
    """The cost of all calls and attempts, including failed ones; unknown if any of them is unknown."""
    cost_sum: CostSum = CostSum()
    """The known part of `total_cost`, and the number of attempts with an estimated, unpriced or unknown cost."""
    tree_cost: CostSum = CostSum()
    """Like `cost_sum`, but including all turns and calls that the turn's tools made."""
    tree_usage: TokenUsage = NOTHING_USED
    """The tokens of all attempts, including all turns and calls that the turn's tools made."""
    undelivered: tuple[Message, ...] = ()
    """The steering messages that had not reached the model when the turn ended."""

    def __repr__(self) -> str:
        parts = {
            "text": short(self.text),
            "status": repr(self.status),
            "model": repr(self.message.model),
            "stop_reason": repr(str(self.stop_reason)),
            "total_usage": repr(self.total_usage),
            "total_cost": repr(self.total_cost),
            "steps": f"<{len(self.steps)}>",
            "messages": f"<{len(self.messages)}>",
        }
        return f"{type(self).__name__}({', '.join(f'{name}={value}' for name, value in parts.items())})"

    def _repr_markdown_(self) -> str:
        """The reply in a notebook."""
        return in_markdown(self.text, self.message.model, self.total_usage, self.total_cost)

    def to_dict(self) -> JsonObject:
        """The result as plain values, for a web framework or a log: text, status, model, the usage and the cost of
        all steps, calls, warnings, messages. Money is exact text, and bytes are base64.
        """
        found = in_plain_values(self, self.total_usage, self.total_cost)
        found["messages"] = plain(self.messages)
        return found

    @property
    def text(self) -> str:
        """All text of the last reply."""
        return self.steps[-1].text

    @property
    def content(self) -> tuple[ContentBlock, ...]:
        """The blocks of the last reply, in order."""
        return self.steps[-1].content

    @property
    def thinking(self) -> str:
        """The visible reasoning of the last reply; empty if there is none."""
        return self.steps[-1].thinking

    @property
    def tool_uses(self) -> tuple[ToolUseBlock, ...]:
        """The tool calls of the last reply, in order."""
        return self.steps[-1].tool_uses

    @property
    def reasoning(self) -> str | None:
        """Deprecated: use `thinking`."""
        renamed("reasoning", "thinking")
        return self.thinking or None

    @property
    def tool_calls(self) -> tuple[ToolUseBlock, ...]:
        """Deprecated: use `tool_uses`."""
        renamed("tool_calls", "tool_uses")
        return self.tool_uses

    @property
    def tool_results(self) -> tuple[ToolResultBlock, ...]:
        """The results of the tools of the last step."""
        return self.steps[-1].tool_results

    @property
    def stop_reason(self) -> StopReason:
        """The reason why the last reply ended."""
        return self.steps[-1].stop_reason

    @property
    def raw_stop_reason(self) -> str | None:
        """The provider's own word for the stop reason."""
        return self.steps[-1].raw_stop_reason

    @property
    def usage(self) -> TokenUsage:
        """The tokens of the last reply; `total_usage` has the tokens of all replies."""
        return self.steps[-1].usage

    @property
    def cost(self) -> Cost:
        """The cost of the last reply; `total_cost` has the cost of all calls."""
        return self.steps[-1].cost

    @property
    def message(self) -> Reply:
        """The last reply as in the conversation."""
        return self.steps[-1].message

    @property
    def model(self) -> str:
        """``provider:name`` of the model that gave the last reply."""
        return self.message.model

    @property
    def routing(self) -> RoutingDecision | None:
        """How the last call was routed to its model."""
        return self.message.routing

    @property
    def response(self) -> CanonicalResponse:
        """The last reply as the adapter returned it."""
        return self.steps[-1].response

    @property
    def total_usage(self) -> TokenUsage:
        """The tokens of all steps. Its `source` is the least reliable source of the steps."""
        return reduce(add, (step.usage for step in self.steps))

    @property
    def warnings(self) -> tuple[CallWarning, ...]:
        """The warnings of all steps, in their order."""
        return tuple(warning for step in self.steps for warning in step.warnings)
