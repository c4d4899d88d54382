"""Tools that a model may call: how they are made from functions or taken from MCP servers, approved, and run."""

from callboard.bus._lazy_names import face

__getattr__, __dir__, __all__ = face(
    __name__,
    {
        ".calls": (
            "Answer InvalidToolCallError RepairToolCall ToolRound ToolRoundContext "
            "answers_to last_reply open_calls"
        ),
        ".collect": "ToolLike ToolSource as_tools",
        ".context": (
            "Approval ApprovalRequest Approve Approved Denied NeedsApproval Pending ToolContext ToolError"
        ),
        ".from_function": "tool",
        ".handler": "FunctionTool Tool ToolHandler",
        ".parameters": "ToolDefinitionError",
        ".running": "run_tools",
    },
)
