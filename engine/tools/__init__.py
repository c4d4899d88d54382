"""Tools that a model may call: how they are made from functions or taken from MCP servers, approved, and run."""

from callboard.bus._lazy_names import face

__getattr__, __dir__, __all__ = face(
    __name__,
    {
        ".calls": (
            "Answer InvalidToolCallError RepairToolCall ToolRound ToolRoundContext "
            "answers_to last_reply open_calls"
        ),
        ".context": (
            "Approval ApprovalRequest Approve Approved Denied NeedsApproval Pending ToolContext ToolError"
        ),
        ".definitions": "FunctionTool Tool ToolLike ToolSource as_tools tool",
        ".handler": "ToolDefinitionError ToolHandler",
        ".running": "run_tools",
    },
)
