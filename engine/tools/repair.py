"""Calls whose arguments don't fit, and the hook that may mend them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeAlias

from adapters import ToolUseBlock
from bus.errors import CallboardError
from bus.values.json import JsonObject

from .function.tool import Tool


class InvalidToolCallError(CallboardError):
    """The arguments of a call are no JSON object, or don't follow the tool's schema; the text says where."""


RepairToolCall: TypeAlias = Callable[
    [ToolUseBlock, InvalidToolCallError, Tool], JsonObject | Awaitable[JsonObject | None] | None
]
"""Gets a call, what is wrong with it, and its tool; gives back other arguments, or None: the model hears of it.

Asked once for each call. The text that the model sent is in the call's `raw_arguments` if it was no JSON object.
A plain function runs in a thread.
"""
