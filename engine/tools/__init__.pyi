# Written by scripts/make_stubs.py.
from .calls import Answer, InvalidToolCallError, RepairToolCall, ToolRound, ToolRoundContext, answers_to, last_reply, open_calls
from .collect import ToolLike, ToolSource, as_tools
from .context import Approval, ApprovalRequest, Approve, Approved, Denied, NeedsApproval, Pending, ToolContext, ToolError
from .from_function import tool
from .handler import FunctionTool, Tool, ToolHandler
from .parameters import ToolDefinitionError
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
