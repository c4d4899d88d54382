"""How many tokens a request has, from its text alone.

Tokenizers differ, and no provider publishes all of theirs, so this counts UTF-8 bytes with one rate for prose and
one for JSON, and adds what each message and each tool costs in framing. The rates are data, for each protocol.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from bus.content import ImageBlock, TextBlock, ThinkingBlock, ToolResultBlock, ToolUseBlock
from bus.messages import Message, ToolDefinition

ESTIMATE_ERROR = 0.25
"""How far an estimate of a prompt's size may be off; only beyond that is anything concluded for sure."""


class TokenRates(msgspec.Struct, frozen=True):
    """Bytes per token of prose and of JSON; tokens for the framing of a request, a message, a tool, an image."""

    prose: float = 4.2
    json: float = 3.6
    per_request: int = 3
    per_message: int = 4
    per_tool: int = 8
    per_image: int = 1000


def estimate_tokens(text: str, rates: TokenRates) -> int:
    """Tokens of a piece of prose."""
    return math.ceil(len(text.encode("utf-8", "replace")) / rates.prose)


def at_most(estimated_tokens: int) -> int:
    """How large a prompt is that was estimated to be so large, if it was underestimated."""
    return math.ceil(estimated_tokens * (1 + ESTIMATE_ERROR))


def estimate_request(
    messages: Sequence[Message], tools: Sequence[ToolDefinition], system_prompt: str | None, rates: TokenRates
) -> int:
    """Input tokens of a request."""
    prose, structured = len((system_prompt or "").encode("utf-8", "replace")), 0
    framing = rates.per_request + rates.per_message * len(messages) + rates.per_tool * len(tools)
    for message in messages:
        for block in message.content:
            match block:
                case TextBlock() | ThinkingBlock():
                    prose += len(block.text.encode("utf-8", "replace"))
                case ToolResultBlock():
                    prose += len(block.text.encode("utf-8", "replace"))
                case ToolUseBlock():
                    structured += len(block.name) + len(msgspec.json.encode(block.input))
                case ImageBlock():
                    framing += rates.per_image
                case _:
                    pass
    for tool in tools:
        structured += len(tool.name) + len(tool.description) + len(msgspec.json.encode(tool.input_schema))
    return framing + math.ceil(prose / rates.prose + structured / rates.json)
