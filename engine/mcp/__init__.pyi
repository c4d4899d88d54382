# Written by scripts/make_stubs.py.
from .hooks import Elicit, Elicitation, ElicitationAnswer, McpLogMessage, OnLog, Sample, SamplingRequest
from .oauth import McpMemoryTokens, McpOAuth, McpTokenFile, McpTokenStorage
from .ask import OpenSession
from .serve import McpService, mcp_service
from .server import McpPrompt, McpPromptArgument, McpResource, McpServer, McpTool
from .servers import McpServers, McpServerStatus, mcp_servers, mcp_tools
from .settings import McpServerSettings

__all__ = [
    "Elicit",
    "Elicitation",
    "ElicitationAnswer",
    "McpLogMessage",
    "McpMemoryTokens",
    "McpOAuth",
    "McpPrompt",
    "McpPromptArgument",
    "McpResource",
    "McpServer",
    "McpServerSettings",
    "McpServerStatus",
    "McpServers",
    "McpService",
    "McpTokenFile",
    "McpTokenStorage",
    "McpTool",
    "OnLog",
    "OpenSession",
    "Sample",
    "SamplingRequest",
    "mcp_servers",
    "mcp_service",
    "mcp_tools",
]
