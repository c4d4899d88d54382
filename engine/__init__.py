"""What to do next: configuration and routing, sessions and turns, tools, the command line.

Composes the other three packages; speaks no wire format and no SQL.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bus._lazy_names import later

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
    from .conversation.options import TurnOptions
    from .conversation.reply import Reply
    from .conversation.results import GenerateResult, StepResult
    from .embedding import EmbeddingOptions, EmbeddingResult
    from .engine import Engine
    from .functions.costs import costs, costs_sync, reprice, reprice_sync
    from .functions.default import default_engine, set_default_engine
    from .functions.embedding import embed, embed_sync
    from .functions.functions import generate, generate_sync, stream, stream_sync
    from .functions.objects import generate_object, generate_object_sync, stream_object, stream_object_sync
    from .functions.sync_host import run_sync
    from .functions.sync_object_stream import SyncObjectStream
    from .functions.sync_stream import SyncStreamResult
    from .generation.arguments import TimeoutConfig
    from .generation.attached import AttachedView
    from .generation.progress import UsageSoFar
    from .generation.reading import ViewReader
    from .generation.streaming import StreamResult, TurnStream
    from .generation.view_events import (
        Finish,
        ProviderEvent,
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
    from .objects.reply import NoObjectGeneratedError
    from .objects.stream import ObjectStream
    from .routing.availability import Availability
    from .routing.model_choice import ModelChoice, Requirements
    from .runtime.limits import Limits, Timeouts
    from .sessions.listing import SessionInfo
    from .sessions.session import Session
    from .statistics import EngineStatistics
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
    from .tools.function.define import tool
    from .type_schema import SchemaError
    from .watching.ended_call import EndedCall
    from .watching.preview import RequestPreview
    from .watching.under_way import UnderWay, WorkUnderWay
    from .watching.watch import SyncWatch, Watch, watch, watch_sync
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
            ".conversation.options": ("TurnOptions",),
            ".conversation.reply": ("Reply",),
            ".conversation.results": ("GenerateResult", "StepResult"),
            ".embedding": ("EmbeddingOptions", "EmbeddingResult"),
            ".engine": ("Engine",),
            ".functions.costs": ("costs", "costs_sync", "reprice", "reprice_sync"),
            ".functions.embedding": ("embed", "embed_sync"),
            ".functions.default": ("default_engine", "set_default_engine"),
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
            ".generation.attached": ("AttachedView",),
            ".generation.progress": ("UsageSoFar",),
            ".generation.reading": ("ViewReader",),
            ".generation.streaming": ("StreamResult", "TurnStream"),
            ".generation.view_events": (
                "Finish",
                "ProviderEvent",
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
            ".objects.reply": ("NoObjectGeneratedError",),
            ".objects.stream": ("ObjectStream",),
            ".routing.availability": ("Availability",),
            ".routing.model_choice": ("ModelChoice", "Requirements"),
            ".runtime.limits": ("Limits", "Timeouts"),
            ".sessions.listing": ("SessionInfo",),
            ".sessions.session": ("Session",),
            ".statistics": ("EngineStatistics",),
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
            ".tools.function.define": ("tool",),
            ".type_schema": ("SchemaError",),
            ".watching.ended_call": ("EndedCall",),
            ".watching.watch": ("SyncWatch", "Watch", "watch", "watch_sync"),
            ".watching.preview": ("RequestPreview",),
            ".watching.under_way": ("UnderWay", "WorkUnderWay"),
            ".web_view.web": ("web",),
        },
    )

__all__ = [
    "AbortController",
    "AbortSignal",
    "AccountState",
    "AdapterEntry",
    "Amount",
    "ApprovalRequest",
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
    "NoObjectGeneratedError",
    "ObjectResult",
    "ObjectStream",
    "Pending",
    "ProviderEvent",
    "RemoteBus",
    "Reply",
    "RequestPreview",
    "Requirements",
    "SchemaError",
    "Session",
    "SessionInfo",
    "StepResult",
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
