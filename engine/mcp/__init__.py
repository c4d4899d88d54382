"""MCP: the tools of MCP servers for a session, and a session or tools as an MCP server for other hosts.

The core never imports this package. It needs the official client library only to open a server.
"""

from callboard.bus._lazy_names import face

__getattr__, __dir__, __all__ = face(
    __name__,
    {
        ".hooks": (
            "Elicit Elicitation ElicitationAnswer McpLogMessage McpPrompt McpPromptArgument McpResource OnLog "
            "Sample SamplingRequest"
        ),
        ".oauth": "McpMemoryTokens McpOAuth McpTokenFile McpTokenStorage",
        ".ask": "OpenSession",
        ".serve": "McpService mcp_service",
        ".server": "McpServer McpTool",
        ".servers": "McpServers McpServerStatus mcp_servers mcp_tools",
        ".settings": "McpServerSettings",
    },
)
