"""Tools that a host lets the model call: made of functions or taken from MCP servers, approved, and run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from callboard.bus._lazy_names import later

from .approval import Approval, ApprovalRequest, Approve, Approved, Denied, NeedsApproval, Pending
from .context import ToolContext
from .function.given import ToolLike, as_tools
from .function.handler import ToolHandler
from .function.parameters import ToolDefinitionError
from .function.tool import FunctionTool, Tool
from .mcp.tools import mcp_tools
from .repair import InvalidToolCallError, RepairToolCall
from .results import ToolError
from .rounds import ToolRound, ToolRoundContext
from .waiting_calls import Answer, answers_to, last_reply, open_calls

if TYPE_CHECKING:
    from .function.define import tool
    from .running import run_tools
else:
    __getattr__, __dir__ = later(__name__, {".function.define": ("tool",), ".running": ("run_tools",)})

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
