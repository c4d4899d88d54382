"""Configuration and routing, sessions and turns, tools, the command line.

Composes the other three packages; contains no wire format and no SQL.
"""

from importlib import import_module

from callboard.bus._lazy_names import face

__getattr__, __dir__, __all__ = face(
    __name__,
    {
        ".runtime.in_flight": "AbortController AbortSignal",
        ".budgets.budget": "Budget",
        ".budgets.ledger": "AccountState Amount BudgetExceededError",
        ".conversation.context": "Context ContextPolicy Conversation LastTurns SchemaMode Summarise Truncate",
        ".conversation.options": "SessionOptions StopWhen TimeoutConfig TurnOptions",
        ".conversation.results": "GenerateResult Reply StepResult",
        ".agents": "agent_tool handoff",
        ".engine": "Engine",
        ".functions": (
            "Moment costs costs_sync default_engine embed embed_sync generate generate_sync reprice reprice_sync "
            "set_default_engine stream stream_sync"
        ),
        ".generation.view": "UsageSoFar",
        ".generation.readers": "OnUsage TreePiece ViewReader",
        ".generation.streaming": "AttachedView StreamResult TurnStream",
        ".generation.view_events": (
            "Finish StreamAccumulator StreamFailed TextEnd TextStart ThinkingEnd ThinkingStart ViewEvent"
        ),
        ".imports.importer": "Importer ImportFault ImportReport ImportedModel import_calls",
        ".mcp.hooks": "Elicitation ElicitationAnswer McpLogMessage SamplingRequest",
        ".mcp.oauth": "McpOAuth McpTokenFile McpTokenStorage",
        ".mcp.serve": "McpService mcp_service",
        ".mcp.server": "McpPrompt McpPromptArgument McpResource McpServer McpTool",
        ".mcp.servers": "McpServers McpServerStatus mcp_servers mcp_tools",
        ".mcp.settings": "McpServerSettings",
        ".models.catalogue": "ModelInfo get_latest_model get_model_info list_models",
        ".models.configured": "ConfiguredModel load_registry",
        ".models.entries": "AdapterEntry ModelDefaults ModelEntry ToolSettings",
        ".models.registry": "ModelRegistry",
        ".nodes.node": "Cluster",
        ".nodes.bridge": "Bridge",
        ".nodes.remote_bus": "RemoteBus",
        ".generation.objects": "NoObjectGeneratedError NoObjectReason ObjectResult",
        ".generation.object_stream": "ObjectStream",
        ".object_functions": (
            "SyncObjectStream generate_object generate_object_sync stream_object stream_object_sync"
        ),
        ".operations.batch_creation": "BatchOptions",
        ".operations.batch_handle": "BatchHandle",
        ".operations.batch_plan": "BatchResult BatchResults BatchState",
        ".operations.embeddings_and_images": "EmbeddingOptions EmbeddingResult ImageOptions ImageResult",
        ".operations.videos": "VideoHandle VideoOptions VideoResult",
        ".routing.availability": "Availability",
        ".routing.model_choice": "ModelChoice Requirements",
        ".runtime.runtime": "Limits Timeouts",
        ".sessions.session": "Session",
        ".sessions.stored": "SessionInfo",
        ".sync": "SyncStreamResult run_sync",
        ".tools.calls": "Answer InvalidToolCallError RepairToolCall",
        ".tools.context": "ApprovalRequest Approve Approved Denied NeedsApproval Pending ToolContext ToolError",
        ".tools.definitions": "FunctionTool Tool ToolLike ToolSource tool",
        ".tools.handler": "ToolDefinitionError",
        ".tree": "ChildTurn TurnLimitError TurnLimits",
        ".tree_headers": "attach_trace_context detached trace_context",
        ".type_schema": "SchemaError",
        "callboard.tracestore.reports": "Check HealthReport",
        ".watching.snapshots": "ActiveWork EngineStatistics ProviderStatistics WorkInProgress",
        ".watching.preview": "RequestLoss RequestPreview",
        ".watching.watch": "EndedCall SyncWatch Watch watch watch_sync",
        ".web_view.subject": "Scope",
        ".web_view.web": "web",
    },
    others=lambda name: import_module(".watching.snapshots", __name__).old_class(name),
)
