"""The tools that a model may call: made of functions or taken from MCP servers, approved, and run."""

from callboard.bus._lazy_names import face

__getattr__, __dir__, __all__ = face(
    __name__,
    {
        ".collect": "ToolLike ToolSource as_tools",
        ".context": (
            "Approval ApprovalRequest Approve Approved Denied NeedsApproval Pending ToolContext ToolError"
        ),
        ".define": "tool",
        ".handler": "FunctionTool Tool ToolHandler",
        ".parameters": "ToolDefinitionError",
        ".rounds": "InvalidToolCallError RepairToolCall ToolRound ToolRoundContext",
        ".running": "run_tools",
        ".waiting_calls": "Answer answers_to last_reply open_calls",
    },
)
