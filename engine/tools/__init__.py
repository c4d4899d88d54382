"""Tools that a host lets the model call: made of functions or taken from MCP servers, approved, and run."""

from callboard.bus._lazy_names import face

__getattr__, __dir__, __all__ = face(
    __name__,
    {
        ".approval": "Approval ApprovalRequest Approve Approved Denied NeedsApproval Pending",
        ".context": "ToolContext",
        ".function.define": "tool",
        ".function.given": "ToolLike as_tools",
        ".function.handler": "ToolHandler",
        ".function.parameters": "ToolDefinitionError",
        ".function.tool": "FunctionTool Tool",
        ".mcp.tools": "mcp_tools",
        ".repair": "InvalidToolCallError RepairToolCall",
        ".results": "ToolError",
        ".rounds": "ToolRound ToolRoundContext",
        ".running": "run_tools",
        ".waiting_calls": "Answer answers_to last_reply open_calls",
    },
)
