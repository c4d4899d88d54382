"""What to do next: configuration and routing, sessions and turns, tools, the command line.

Composes the other three packages; speaks no wire format and no SQL.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from callboard.bus._lazy_names import later

if TYPE_CHECKING:
    from .abort import AbortController, AbortSignal
    from .batches.handle import BatchHandle
    from .batches.plan import BatchState
    from .batches.results import BatchResult, BatchResults
    from .batches.submitting import BatchOptions
    from .budgets.account import AccountState, Amount
    from .budgets.budget import Budget
    from .budgets.exceeded import BudgetExceededError
    from .calls.accumulator import StreamAccumulator
    from .conversation.options import StopWhen, TurnOptions
    from .conversation.reply import Reply
    from .conversation.requests.schema_mode import SchemaMode
    from .conversation.results import GenerateResult, StepResult
    from .embedding import EmbeddingOptions, EmbeddingResult
    from .engine import Engine
    from .functions.costs import Moment, costs, costs_sync, reprice, reprice_sync
    from .functions.default import default_engine, set_default_engine
    from .functions.embedding import embed, embed_sync
    from .functions.functions import generate, generate_sync, stream, stream_sync
    from .functions.objects import generate_object, generate_object_sync, stream_object, stream_object_sync
    from .functions.sync_host import run_sync
    from .functions.sync_object_stream import SyncObjectStream
    from .functions.sync_stream import SyncStreamResult
    from .generation.arguments import TimeoutConfig
    from .generation.progress import UsageSoFar
    from .generation.readers.attached import AttachedView
    from .generation.readers.of_turns import OnUsage, ViewReader
    from .generation.streaming import StreamResult, TurnStream
    from .generation.view_events import (
        Finish,
        StreamFailed,
        TextEnd,
        TextStart,
        ThinkingEnd,
        ThinkingStart,
        ViewEvent,
    )
    from .health_report import Check, HealthReport
    from .media.images import ImageOptions, ImageResult
    from .media.video_handle import VideoHandle, VideoResult
    from .media.videos import VideoOptions
    from .models.catalogue import ModelInfo, get_latest_model, get_model_info, list_models
    from .models.config import load_registry
    from .models.configured import ConfiguredModel
    from .models.entries import AdapterEntry, ModelDefaults, ModelEntry
    from .models.registry import ModelRegistry
    from .models.tool_settings import ToolSettings
    from .nodes.bridge.bridge import Bridge
    from .nodes.cluster import Cluster
    from .nodes.remote.remote_bus import RemoteBus
    from .objects.generate import ObjectResult
    from .objects.reply import NoObjectGeneratedError, NoObjectReason
    from .objects.stream import ObjectStream
    from .routing.availability import Availability
    from .routing.model_choice import ModelChoice, Requirements
    from .runtime.limits import Limits, Timeouts
    from .sessions.listing import SessionInfo
    from .sessions.session import Session
    from .statistics import EngineStatistics, ProviderStatistics
    from .tools import (
        ApprovalRequest,
        Approved,
        Denied,
        FunctionTool,
        InvalidToolCallError,
        Pending,
        Tool,
        ToolContext,
        ToolDefinitionError,
        ToolError,
        mcp_tools,
    )
    from .tools.approval import Approve, NeedsApproval
    from .tools.function.define import tool
    from .tools.function.given import ToolLike
    from .tools.repair import RepairToolCall
    from .tools.waiting_calls import Answer
    from .type_schema import SchemaError
    from .watching.ended_call import EndedCall
    from .watching.losses import RequestLoss
    from .watching.preview import RequestPreview
    from .watching.under_way import UnderWay, WorkUnderWay
    from .watching.watch import SyncWatch, Watch, watch, watch_sync
    from .web_view.sign_in import Scope
    from .web_view.web import web
else:
    __getattr__, __dir__ = later(
        __name__,
        {
            ".abort": ("AbortController", "AbortSignal"),
            ".batches.handle": ("BatchHandle",),
            ".batches.plan": ("BatchState",),
            ".batches.results": ("BatchResult", "BatchResults"),
            ".batches.submitting": ("BatchOptions",),
            ".budgets.account": ("AccountState", "Amount"),
            ".budgets.budget": ("Budget",),
            ".budgets.exceeded": ("BudgetExceededError",),
            ".calls.accumulator": ("StreamAccumulator",),
            ".conversation.options": ("StopWhen", "TurnOptions"),
            ".conversation.reply": ("Reply",),
            ".conversation.requests.schema_mode": ("SchemaMode",),
            ".conversation.results": ("GenerateResult", "StepResult"),
            ".embedding": ("EmbeddingOptions", "EmbeddingResult"),
            ".engine": ("Engine",),
            ".functions.costs": ("Moment", "costs", "costs_sync", "reprice", "reprice_sync"),
            ".functions.default": ("default_engine", "set_default_engine"),
            ".functions.embedding": ("embed", "embed_sync"),
            ".functions.functions": ("generate", "generate_sync", "stream", "stream_sync"),
            ".functions.objects": (
                "generate_object",
                "generate_object_sync",
                "stream_object",
                "stream_object_sync",
            ),
            ".functions.sync_host": ("run_sync",),
            ".functions.sync_object_stream": ("SyncObjectStream",),
            ".functions.sync_stream": ("SyncStreamResult",),
            ".generation.arguments": ("TimeoutConfig",),
            ".generation.readers.attached": ("AttachedView",),
            ".generation.progress": ("UsageSoFar",),
            ".generation.readers.of_turns": ("OnUsage", "ViewReader"),
            ".generation.streaming": ("StreamResult", "TurnStream"),
            ".generation.view_events": (
                "Finish",
                "StreamFailed",
                "TextEnd",
                "TextStart",
                "ThinkingEnd",
                "ThinkingStart",
                "ViewEvent",
            ),
            ".health_report": ("Check", "HealthReport"),
            ".media.images": ("ImageOptions", "ImageResult"),
            ".media.video_handle": ("VideoHandle", "VideoResult"),
            ".media.videos": ("VideoOptions",),
            ".models.catalogue": ("ModelInfo", "get_latest_model", "get_model_info", "list_models"),
            ".models.config": ("load_registry",),
            ".models.configured": ("ConfiguredModel",),
            ".models.entries": ("AdapterEntry", "ModelDefaults", "ModelEntry"),
            ".models.registry": ("ModelRegistry",),
            ".models.tool_settings": ("ToolSettings",),
            ".nodes.bridge.bridge": ("Bridge",),
            ".nodes.cluster": ("Cluster",),
            ".nodes.remote.remote_bus": ("RemoteBus",),
            ".objects.generate": ("ObjectResult",),
            ".objects.reply": ("NoObjectGeneratedError", "NoObjectReason"),
            ".objects.stream": ("ObjectStream",),
            ".routing.availability": ("Availability",),
            ".routing.model_choice": ("ModelChoice", "Requirements"),
            ".runtime.limits": ("Limits", "Timeouts"),
            ".sessions.listing": ("SessionInfo",),
            ".sessions.session": ("Session",),
            ".statistics": ("EngineStatistics", "ProviderStatistics"),
            ".tools": (
                "ApprovalRequest",
                "Approved",
                "Denied",
                "FunctionTool",
                "InvalidToolCallError",
                "Pending",
                "Tool",
                "ToolContext",
                "ToolDefinitionError",
                "ToolError",
                "mcp_tools",
            ),
            ".tools.approval": ("Approve", "NeedsApproval"),
            ".tools.function.define": ("tool",),
            ".tools.function.given": ("ToolLike",),
            ".tools.repair": ("RepairToolCall",),
            ".tools.waiting_calls": ("Answer",),
            ".type_schema": ("SchemaError",),
            ".watching.ended_call": ("EndedCall",),
            ".watching.losses": ("RequestLoss",),
            ".watching.preview": ("RequestPreview",),
            ".watching.under_way": ("UnderWay", "WorkUnderWay"),
            ".watching.watch": ("SyncWatch", "Watch", "watch", "watch_sync"),
            ".web_view.sign_in": ("Scope",),
            ".web_view.web": ("web",),
        },
    )

__all__ = [
    "AbortController",
    "AbortSignal",
    "AccountState",
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
    "Cluster",
    "ConfiguredModel",
    "Denied",
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
    "InvalidToolCallError",
    "Limits",
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
    "SchemaError",
    "SchemaMode",
    "Scope",
    "Session",
    "SessionInfo",
    "StepResult",
    "StopWhen",
    "StreamAccumulator",
    "StreamFailed",
    "StreamResult",
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
    "TurnOptions",
    "TurnStream",
    "UnderWay",
    "UsageSoFar",
    "VideoHandle",
    "VideoOptions",
    "VideoResult",
    "ViewEvent",
    "ViewReader",
    "Watch",
    "WorkUnderWay",
    "costs",
    "costs_sync",
    "default_engine",
    "embed",
    "embed_sync",
    "generate",
    "generate_object",
    "generate_object_sync",
    "generate_sync",
    "get_latest_model",
    "get_model_info",
    "list_models",
    "load_registry",
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
    "watch",
    "watch_sync",
    "web",
]
