# Written by scripts/make_stubs.py.
from .runtime.in_flight import AbortController, AbortSignal
from .budgets.budget import Budget
from .budgets.ledger import AccountState, Amount, BudgetExceededError
from .conversation.context import Context, ContextPolicy, Conversation, LastTurns, SchemaMode, Summarise, Truncate
from .conversation.options import SessionOptions, StopWhen, TimeoutConfig, TurnOptions
from .conversation.results import GenerateResult, Reply, StepResult
from .agents import agent_tool, handoff
from .engine import Engine
from .functions import Moment, costs, costs_sync, default_engine, embed, embed_sync, generate, generate_sync, reprice, reprice_sync, set_default_engine, stream, stream_sync
from .generation.view import UsageSoFar
from .generation.readers import OnUsage, TreePiece, ViewReader
from .generation.streaming import AttachedView, StreamResult, TurnStream
from .generation.view_events import Finish, StreamAccumulator, StreamFailed, TextEnd, TextStart, ThinkingEnd, ThinkingStart, ViewEvent
from .imports.importer import Importer, ImportFault, ImportReport, ImportedModel, import_calls
from .mcp.hooks import Elicitation, ElicitationAnswer, McpLogMessage, SamplingRequest
from .mcp.oauth import McpOAuth, McpTokenFile, McpTokenStorage
from .mcp.serve import McpService, mcp_service
from .mcp.server import McpPrompt, McpPromptArgument, McpResource, McpServer, McpTool
from .mcp.servers import McpServers, McpServerStatus, mcp_servers, mcp_tools
from .mcp.settings import McpServerSettings
from .models.catalogue import ModelInfo, get_latest_model, get_model_info, list_models
from .models.configured import ConfiguredModel, load_registry
from .models.entries import AdapterEntry, ModelDefaults, ModelEntry, ToolSettings
from .models.registry import ModelRegistry
from .nodes.node import Cluster
from .nodes.bridge import Bridge
from .nodes.remote_bus import RemoteBus
from .generation.objects import NoObjectGeneratedError, NoObjectReason, ObjectResult
from .generation.object_stream import ObjectStream
from .object_functions import SyncObjectStream, generate_object, generate_object_sync, stream_object, stream_object_sync
from .operations.batch_creation import BatchOptions
from .operations.batch_handle import BatchHandle
from .operations.batch_plan import BatchResult, BatchResults, BatchState
from .operations.embeddings_and_images import EmbeddingOptions, EmbeddingResult, ImageOptions, ImageResult
from .operations.videos import VideoHandle, VideoOptions, VideoResult
from .routing.availability import Availability
from .routing.model_choice import ModelChoice, Requirements
from .runtime.runtime import Limits, Timeouts
from .sessions.session import Session
from .sessions.stored import SessionInfo
from .sync import SyncStreamResult, run_sync
from .tools.calls import Answer, InvalidToolCallError, RepairToolCall
from .tools.context import ApprovalRequest, Approve, Approved, Denied, NeedsApproval, Pending, ToolContext, ToolError
from .tools.definitions import FunctionTool, Tool, ToolLike, ToolSource, tool
from .tools.handler import ToolDefinitionError
from .tree import ChildTurn, TurnLimitError, TurnLimits
from .tree_headers import attach_trace_context, detached, trace_context
from .type_schema import SchemaError
from callboard.tracestore.reports import Check, HealthReport
from .watching.snapshots import ActiveWork, EngineStatistics, ProviderStatistics, WorkInProgress
from .watching.preview import RequestLoss, RequestPreview
from .watching.watch import EndedCall, SyncWatch, Watch, watch, watch_sync
from .web_view.subject import Scope
from .web_view.web import web

__all__ = [
    "AbortController",
    "AbortSignal",
    "AccountState",
    "ActiveWork",
    "AdapterEntry",
    "Amount",
    "Answer",
    "ApprovalRequest",
    "Approve",
    "Approved",
    "AttachedView",
    "Availability",
    "BatchHandle",
    "BatchOptions",
    "BatchResult",
    "BatchResults",
    "BatchState",
    "Bridge",
    "Budget",
    "BudgetExceededError",
    "Check",
    "ChildTurn",
    "Cluster",
    "ConfiguredModel",
    "Context",
    "ContextPolicy",
    "Conversation",
    "Denied",
    "Elicitation",
    "ElicitationAnswer",
    "EmbeddingOptions",
    "EmbeddingResult",
    "EndedCall",
    "Engine",
    "EngineStatistics",
    "Finish",
    "FunctionTool",
    "GenerateResult",
    "HealthReport",
    "ImageOptions",
    "ImageResult",
    "ImportFault",
    "ImportReport",
    "ImportedModel",
    "Importer",
    "InvalidToolCallError",
    "LastTurns",
    "Limits",
    "McpLogMessage",
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
    "ModelChoice",
    "ModelDefaults",
    "ModelEntry",
    "ModelInfo",
    "ModelRegistry",
    "Moment",
    "NeedsApproval",
    "NoObjectGeneratedError",
    "NoObjectReason",
    "ObjectResult",
    "ObjectStream",
    "OnUsage",
    "Pending",
    "ProviderStatistics",
    "RemoteBus",
    "RepairToolCall",
    "Reply",
    "RequestLoss",
    "RequestPreview",
    "Requirements",
    "SamplingRequest",
    "SchemaError",
    "SchemaMode",
    "Scope",
    "Session",
    "SessionInfo",
    "SessionOptions",
    "StepResult",
    "StopWhen",
    "StreamAccumulator",
    "StreamFailed",
    "StreamResult",
    "Summarise",
    "SyncObjectStream",
    "SyncStreamResult",
    "SyncWatch",
    "TextEnd",
    "TextStart",
    "ThinkingEnd",
    "ThinkingStart",
    "TimeoutConfig",
    "Timeouts",
    "Tool",
    "ToolContext",
    "ToolDefinitionError",
    "ToolError",
    "ToolLike",
    "ToolSettings",
    "ToolSource",
    "TreePiece",
    "Truncate",
    "TurnLimitError",
    "TurnLimits",
    "TurnOptions",
    "TurnStream",
    "UsageSoFar",
    "VideoHandle",
    "VideoOptions",
    "VideoResult",
    "ViewEvent",
    "ViewReader",
    "Watch",
    "WorkInProgress",
    "agent_tool",
    "attach_trace_context",
    "costs",
    "costs_sync",
    "default_engine",
    "detached",
    "embed",
    "embed_sync",
    "generate",
    "generate_object",
    "generate_object_sync",
    "generate_sync",
    "get_latest_model",
    "get_model_info",
    "handoff",
    "import_calls",
    "list_models",
    "load_registry",
    "mcp_servers",
    "mcp_service",
    "mcp_tools",
    "reprice",
    "reprice_sync",
    "run_sync",
    "set_default_engine",
    "stream",
    "stream_object",
    "stream_object_sync",
    "stream_sync",
    "tool",
    "trace_context",
    "watch",
    "watch_sync",
    "web",
]
