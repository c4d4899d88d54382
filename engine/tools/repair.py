"""The error of a call whose arguments don't fit, and the hook that may mend them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeAlias

from callboard.adapters import ToolUseBlock
from callboard.bus.errors import CallboardError
from callboard.bus.values.json import JsonObject

from .function.tool import Tool


class InvalidToolCallError(CallboardError):
    """The arguments of a call are no JSON object, or don't follow the tool's schema. The text says where."""


RepairToolCall: TypeAlias = Callable[
    [ToolUseBlock, InvalidToolCallError, Tool], JsonObject | Awaitable[JsonObject | None] | None
]
"""A function that gets a call, its error and its tool, and returns other arguments. None leaves the error to the
model.

It is called once for each such call. If the model's text was no JSON object, it is in the call's `raw_arguments`.
A plain function runs in a thread.
"""
