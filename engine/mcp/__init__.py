"""MCP: use the tools of MCP servers in a session, and serve a session or tools to other hosts.

The core never imports this package. The official client library is only needed to open a server.
"""

from callboard.bus._lazy_names import face

__getattr__, __dir__, __all__ = face(
    __name__,
    {
        ".hooks": "Elicit Elicitation ElicitationAnswer McpLogMessage OnLog Sample SamplingRequest",
        ".oauth": "McpMemoryTokens McpOAuth McpTokenFile McpTokenStorage",
        ".ask": "OpenSession",
        ".serve": "McpService mcp_service",
        ".server": "McpPrompt McpPromptArgument McpResource McpServer McpTool",
        ".servers": "McpServers McpServerStatus mcp_servers mcp_tools",
        ".settings": "McpServerSettings",
    },
)
