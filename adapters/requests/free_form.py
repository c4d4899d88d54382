"""Free-form tools, which a model gives a text, and no object of arguments. Pure.

OpenAI calls them custom tools. A tool is one if its `provider_options` say the type ``custom``; its `format` may
hold the text to a grammar. For everybody else it is a tool with the one argument `input`, so that its calls mean
the same everywhere.
"""

from __future__ import annotations

from callboard.bus.errors import InvalidRequestError
from callboard.bus.values.content import ToolUseBlock
from callboard.bus.values.json import JsonObject
from callboard.bus.values.messages import ToolDefinition

CUSTOM = "custom"
"""OpenAI's type of a free-form tool."""

INPUT = "input"
"""The one argument of a free-form tool's call."""


def is_free_form(tool: ToolDefinition, options: JsonObject) -> bool:
    """Whether a tool is sent as a free-form one.

    Args:
        tool: The definition.
        options: The tool's own fields for the provider.

    Raises:
        InvalidRequestError: It is to be one, and takes other arguments.
    """
    if options.get("type") != CUSTOM:
        return False
    properties = tool.input_schema.get("properties")
    if not isinstance(properties, dict) or list(properties) != [INPUT]:
        raise InvalidRequestError(
            f"tool {tool.name!r} is of the type {CUSTOM!r}, so `{INPUT}` has to be its only argument, and a text"
        )
    return True


def free_text(block: ToolUseBlock) -> str | None:
    """What a call gives a free-form tool; None if it doesn't call it as one."""
    text = block.input.get(INPUT)
    return text if isinstance(text, str) and len(block.input) == 1 else None
