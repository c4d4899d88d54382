# Written by scripts/make_stubs.py.
from .calls import Answer, InvalidToolCallError, RepairToolCall, ToolRound, ToolRoundContext, answers_to, last_reply, open_calls
from .context import Approval, ApprovalRequest, Approve, Approved, Denied, NeedsApproval, Pending, ToolContext, ToolError
from .definitions import FunctionTool, Tool, ToolLike, ToolSource, as_tools, tool
from .handler import ToolDefinitionError, ToolHandler
from .running import run_tools

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
    "ToolLike",
    "ToolRound",
    "ToolRoundContext",
    "ToolSource",
    "answers_to",
    "as_tools",
    "last_reply",
    "open_calls",
    "run_tools",
    "tool",
]
