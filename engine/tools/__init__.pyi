# Written by scripts/make_stubs.py.
from .approval import Approval, ApprovalRequest, Approve, Approved, Denied, NeedsApproval, Pending
from .context import ToolContext
from .function.define import tool
from .function.given import ToolLike, as_tools
from .function.handler import ToolHandler
from .function.parameters import ToolDefinitionError
from .function.tool import FunctionTool, Tool
from .mcp.tools import mcp_tools
from .repair import InvalidToolCallError, RepairToolCall
from .results import ToolError
from .rounds import ToolRound, ToolRoundContext
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
    "answers_to",
    "as_tools",
    "last_reply",
    "mcp_tools",
    "open_calls",
    "run_tools",
    "tool",
]
