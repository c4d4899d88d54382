"""Configuration and routing, sessions and turns, tools, the command line.

Composes the other three packages; contains no wire format and no SQL.
"""

from importlib import import_module

from callboard.bus._lazy_names import face

__getattr__, __dir__, __all__ = face(
    __name__,
    {
        ".abort": "AbortController AbortSignal",
        ".budgets.budget": "Budget",
        ".budgets.ledger": "AccountState Amount BudgetExceededError",
        ".calls.accumulator": "StreamAccumulator",
        ".conversation.context": "Context ContextPolicy Conversation LastTurns Summarise Truncate",
        ".conversation.options": "StopWhen TimeoutConfig TurnOptions",
        ".conversation.requests": "SchemaMode",
        ".conversation.results": "GenerateResult Reply StepResult",
        ".engine": "Engine",
        ".functions.costs": "Moment costs costs_sync reprice reprice_sync",
        ".functions.functions": (
            "default_engine embed embed_sync generate generate_sync set_default_engine stream stream_sync"
        ),
        ".functions.objects": (
            "SyncObjectStream generate_object generate_object_sync stream_object stream_object_sync"
        ),
        ".functions.sync": "SyncStreamResult run_sync",
        ".generation.progress": "UsageSoFar",
        ".generation.readers": "OnUsage ViewReader",
        ".generation.streaming": "AttachedView StreamResult TurnStream",
        ".generation.view_events": "Finish StreamFailed TextEnd TextStart ThinkingEnd ThinkingStart ViewEvent",
        ".models.catalogue": "ModelInfo get_latest_model get_model_info list_models",
        ".models.configured": "ConfiguredModel load_registry",
        ".models.entries": "AdapterEntry ModelDefaults ModelEntry ToolSettings",
        ".models.registry": "ModelRegistry",
        ".nodes.cluster": "Cluster",
        ".nodes.remote_bus": "Bridge RemoteBus",
        ".objects.generate": "NoObjectGeneratedError NoObjectReason ObjectResult",
        ".objects.stream": "ObjectStream",
        ".operations.batch_creation": "BatchOptions",
        ".operations.batch_handle": "BatchHandle",
        ".operations.batch_plan": "BatchResult BatchResults BatchState",
        ".operations.embeddings": "EmbeddingOptions EmbeddingResult",
        ".operations.images": "ImageOptions ImageResult",
        ".operations.videos": "VideoHandle VideoOptions VideoResult",
        ".routing.availability": "Availability",
        ".routing.model_choice": "ModelChoice Requirements",
        ".runtime.runtime": "Limits Timeouts",
        ".sessions.session": "Session",
        ".sessions.stored": "SessionInfo",
        ".tools.collect": "ToolLike",
        ".tools.context": "ApprovalRequest Approve Approved Denied NeedsApproval Pending ToolContext ToolError",
        ".tools.define": "tool",
        ".tools.handler": "FunctionTool Tool",
        ".tools.mcp": "mcp_tools",
        ".tools.parameters": "ToolDefinitionError",
        ".tools.rounds": "InvalidToolCallError RepairToolCall",
        ".tools.waiting_calls": "Answer",
        ".type_schema.fitting": "SchemaError",
        ".watching.health_report": "Check HealthReport",
        ".watching.now": "ActiveWork EngineStatistics ProviderStatistics WorkInProgress",
        ".watching.preview": "RequestLoss RequestPreview",
        ".watching.watch": "EndedCall SyncWatch Watch watch watch_sync",
        ".web_view.subject": "Scope",
        ".web_view.web": "web",
    },
    others=lambda name: import_module(".deprecated", __name__).old_class(name),
)
