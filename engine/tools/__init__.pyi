# Written by scripts/make_stubs.py.
from .collect import ToolLike, ToolSource, as_tools
from .context import Approval, ApprovalRequest, Approve, Approved, Denied, NeedsApproval, Pending, ToolContext, ToolError
from .define import tool
from .handler import FunctionTool, Tool, ToolHandler
from .parameters import ToolDefinitionError
from .rounds import InvalidToolCallError, RepairToolCall, ToolRound, ToolRoundContext
from .running import run_tools
from .waiting_calls import Answer, answers_to, last_reply, open_calls

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
