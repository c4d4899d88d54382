"""Tools that a host lets the model call: made of functions, approved, run, and taken from MCP servers."""

from __future__ import annotations

from .approval import Approval, ApprovalRequest, Approve, Approved, Denied, NeedsApproval, Pending
from .context import ToolContext
from .define import tool
from .function_tool import FunctionTool, Tool, require_distinct
from .handler import ToolHandler
from .mcp_tools import mcp_tools
from .open_calls import Answer, answers_to, last_reply, open_calls
from .parameters import ToolDefinitionError
from .repair import InvalidToolCallError, RepairToolCall
from .results import ToolError
from .running import not_executed, run_tools
from .scene import ToolRound, ToolScene

__all__ = [
    "Answer",
    "Approval",
    "ApprovalRequest",
    "Approve",
    "Approved",
    "Denied",
    "FunctionTool",
    "InvalidToolCallError",
    "NeedsApproval",
    "Pending",
    "RepairToolCall",
    "Tool",
    "ToolContext",
    "ToolDefinitionError",
    "ToolError",
    "ToolHandler",
    "ToolRound",
    "ToolScene",
    "answers_to",
    "last_reply",
    "mcp_tools",
    "not_executed",
    "open_calls",
    "require_distinct",
    "run_tools",
    "tool",
]
