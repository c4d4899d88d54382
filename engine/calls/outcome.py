"""The end of a call: its result, usage, cost, and the text of its error.

Providers quote refused content in their errors. The exception for the caller has the whole text. The published and
stored text has an ellipsis in place of each quote.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import reduce
from itertools import islice
from operator import add
from typing import TypeAlias

import msgspec

from callboard.adapters import (
    AdapterError,
    CanonicalResponse,
    Message,
    TextBlock,
    TokenUsage,
    ToolResultBlock,
    ToolUseBlock,
)
from callboard.bus import Cost, CostSource, LlmCallCompleted, LlmCallFailed
from callboard.bus.values.usage import CostSum, UsageSource, usage_is_unknown

CallEnd: TypeAlias = LlmCallCompleted | LlmCallFailed
"""The event that ends a call or an attempt, with usage and cost."""

NOTHING_SPENT = Cost(0, CostSource.COMPUTED)
NOTHING_SENT = Cost(0, CostSource.COMPUTED, None, "the request was not sent")
REFUSED = Cost(0, CostSource.COMPUTED, None, "the provider returned an error, which is not billed")
NOT_KNOWN = Cost(None, CostSource.UNPRICED, None, "the call ended before its usage was known")


class CallOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of a call that succeeded."""

    response: CanonicalResponse
    """The reply."""
    cost: Cost
    """The cost of the reply."""

    @property
    def text(self) -> str:
        """All text of the reply."""
        return self.response.text

    @property
    def usage(self) -> TokenUsage:
        """The tokens of the reply."""
        return self.response.usage


class WorstCase(msgspec.Struct, frozen=True):
    """The maximum usage of one attempt: all input that was sent, and all output that was allowed."""

    usage: TokenUsage
    cost: Cost
    """The cost of the tokens under the prices in force when the attempt started."""


class CallInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A call of any kind, for middleware."""

    operation: str
    """The kind of call: ``chat``, ``embeddings``, ``image``, ``video_create``, ``video`` for the end of a video's
    job, ``batch_create``, or ``batch`` for one result of a batch."""
    model: str
    """The model as ``provider:name``."""
    request_id: str
    """The id of the call in the trace."""
    session_id: str = ""
    """The id of the session; empty without one."""
    failed_before: tuple[LlmCallFailed, ...] = ()
    """The attempts that failed before the call's end."""
    worst_case: WorstCase | None = None
    """The maximum usage of one attempt of a completed call.

    None if the usage of all attempts is known, or if it can't be estimated.
    """


def cost_sum(end: CallEnd) -> CostSum:
    """The part of one attempt in a sum of costs."""
    if isinstance(end, LlmCallCompleted):
        return CostSum.of_call(end.usage, end.cost)
    unknown = usage_is_unknown(end.error_class, end.provider_status)
    return CostSum.of_call(end.usage, end.cost, unknown=unknown)


def cost_without_usage(error: AdapterError) -> Cost:
    """The cost of a failed attempt without reported usage: zero or unknown."""
    return NOT_KNOWN if usage_is_unknown(error.error_class, error.provider_status) else REFUSED


def output_is_unknown(end: CallEnd) -> bool:
    """Whether the output of a failed attempt is unknown: nothing of a reply arrived."""
    if isinstance(end, LlmCallCompleted):
        return False
    if end.usage is None:
        return bool(cost_sum(end).unknown)
    sent = end.usage.total_input_tokens  # zero if the request was certainly not sent
    return end.usage.source is UsageSource.ESTIMATED and sent > 0 and not end.usage.output_tokens


class Spending:
    """The tokens and costs of a turn's calls, failed attempts included."""

    def __init__(self) -> None:
        self.calls = 0
        self.costs: list[Cost] = []
        """The costs of all attempts that may have cost something."""
        self.usages: list[TokenUsage] = []
        self.sum = CostSum()
        """The sum over all attempts that have ended."""

    @property
    def cost(self) -> Cost:
        """The cost of all attempts. If one cost is unknown, the sum is unknown, because a partial sum would look
        complete.
        """
        costs = self.costs
        return costs[0] if len(costs) == 1 else reduce(add, costs) if costs else NOTHING_SPENT

    def count(self, end: CallEnd) -> CostSum:
        """Count an attempt. Returns its part in sums."""
        part = cost_sum(end)
        self.sum += part
        if end.usage is not None:
            self.usages.append(end.usage)
        if part.unknown:
            self.costs.append(NOT_KNOWN)
        elif end.cost is not None and end.cost is not NOTHING_SENT:
            self.costs.append(end.cost)
        return part

    def include(self, other: Spending) -> None:
        """Count everything that another turn has spent."""
        self.calls += other.calls
        self.costs += other.costs
        self.usages += other.usages
        self.sum += other.sum


# --- Quotes in error texts ---


WINDOW = 16
"""The length of a searched piece, in characters. A quote is always found if it is at least one and a half times as
long.
"""

_STEP = WINDOW // 2
_SHORTEST = 4
_MOST_TEXTS = 2_000
_LONGEST_SEARCHED = 400_000
"""The maximum number of characters that are searched, in each text and in all texts together.

This keeps a failure from blocking the event loop for long.
"""


def without_quotes(text: str, sent_texts: Iterable[str]) -> str:
    """Replace the quotations in a text with an ellipsis."""
    remaining = _LONGEST_SEARCHED
    for source in islice(sent_texts, _MOST_TEXTS):
        source = source[:remaining]
        remaining -= len(source)
        if _SHORTEST <= len(source) < WINDOW + _STEP:
            text = text.replace(source, "…")
        elif source:
            text = "".join(_unquoted(text, source))
    return text


def texts_of(messages: Iterable[Message], system_prompt: str | None = None) -> Iterator[str]:
    """All text in messages: text blocks, arguments of tools, and results of tools."""
    if system_prompt:
        yield system_prompt
    for message in messages:
        for block in message.content:
            match block:
                case TextBlock() | ToolResultBlock():
                    yield block.text
                case ToolUseBlock():
                    yield from (value for value in block.input.values() if isinstance(value, str))
                case _:
                    pass


def _unquoted(text: str, source: str) -> Iterator[str]:
    done = place = 0
    while place + WINDOW <= len(text):
        found = source.find(text[place : place + WINDOW])
        if found < 0:
            place += _STEP
            continue
        start, at = place, found
        while start > done and at and text[start - 1] == source[at - 1]:
            start, at = start - 1, at - 1
        end, at = place + WINDOW, found + WINDOW
        while end < len(text) and at < len(source) and text[end] == source[at]:
            end, at = end + 1, at + 1
        yield f"{text[done:start]}…"
        done = place = end
    yield text[done:]
