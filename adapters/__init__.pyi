# Written by scripts/make_stubs.py.
from .batches import BatchJob, BatchStatus
from .config import AdapterConfig, KeyFile, KeySource, OnRetry, RetryPolicy
from .contract import AdapterCapabilities, AdapterStream, AttemptAccepted, AttemptFailed, AttemptFirstEvent, AttemptObserver, AttemptReport, AttemptResent, AttemptStarted, CanonicalRequest, CanonicalResponse, NextAttempt, ProviderAdapter, RateLimitInfo
from .embeddings import EmbeddingRequest, EmbeddingResponse, InputType, PartialEmbeddingError, Vector
from .health import AdapterHealth, AdapterStatistics
from .http.retry import PollPolicy, retry, retry_delay
from .images import GeneratedImage
from .providers.anthropic.adapter import AnthropicAdapter
from .providers.bedrock.adapter import BedrockAdapter
from .providers.cohere.adapter import CohereAdapter
from .providers.gemini.adapter import GeminiAdapter
from .providers.local.adapter import LocalAdapter
from .providers.ollama.adapter import OllamaAdapter
from .providers.openai.adapter import OpenAIAdapter
from .providers.openai_compatible.adapter import OpenAICompatibleAdapter
from .providers.scripted.adapter import ScriptedAdapter, ScriptedCall, ScriptedFailure, ScriptedReply
from .providers.tgi.adapter import TGIAdapter
from .providers.voyage.adapter import VoyageAdapter
from .provider import create_adapter
from .videos import VideoJob, VideoStatus, VideoVariant
from callboard.bus.errors import AccessDeniedError, AdapterError, AuthError, CancelledError, CapabilityError, ContentFilterError, ContextOverflowError, ErrorClass, InvalidRequestError, NetworkError, NotFoundError, OutcomeUnknownError, OverloadedError, QuotaExceededError, RateLimitError, RateLimitWaitError, RequestTimeoutError, ServerError, StreamError, UnsupportedToolChoiceError, WarningCode
from callboard.bus.streams.events import MessageComplete, MessageStart, ProviderBlock, ProviderEvent, StreamEvent, TextDelta, ThinkingDelta, ToolUseEnd, ToolUseInputDelta, ToolUseStart
from callboard.bus.values.content import AudioBlock, ContentBlock, DocumentBlock, ImageBlock, OpaqueBlock, ProviderRaw, RedactedThinkingBlock, TextBlock, ThinkingBlock, ToolResultBlock, ToolUseBlock
from callboard.bus.values.messages import CallWarning, Message, MessageMetadata, RawReply, Role, ToolAnnotations, ToolChoice, ToolDefinition
from callboard.bus.values.usage import StopReason, TokenUsage, UsageSource

__all__ = [
    "AccessDeniedError",
    "AdapterCapabilities",
    "AdapterConfig",
    "AdapterError",
    "AdapterHealth",
    "AdapterStatistics",
    "AdapterStream",
    "AnthropicAdapter",
    "AttemptAccepted",
    "AttemptFailed",
    "AttemptFirstEvent",
    "AttemptObserver",
    "AttemptReport",
    "AttemptResent",
    "AttemptStarted",
    "AudioBlock",
    "AuthError",
    "BatchJob",
    "BatchStatus",
    "BedrockAdapter",
    "CallWarning",
    "CancelledError",
    "CanonicalRequest",
    "CanonicalResponse",
    "CapabilityError",
    "CohereAdapter",
    "ContentBlock",
    "ContentFilterError",
    "ContextOverflowError",
    "DocumentBlock",
    "EmbeddingRequest",
    "EmbeddingResponse",
    "ErrorClass",
    "GeminiAdapter",
    "GeneratedImage",
    "ImageBlock",
    "InputType",
    "InvalidRequestError",
    "KeyFile",
    "KeySource",
    "LocalAdapter",
    "Message",
    "MessageComplete",
    "MessageMetadata",
    "MessageStart",
    "NetworkError",
    "NextAttempt",
    "NotFoundError",
    "OllamaAdapter",
    "OnRetry",
    "OpaqueBlock",
    "OpenAIAdapter",
    "OpenAICompatibleAdapter",
    "OutcomeUnknownError",
    "OverloadedError",
    "PartialEmbeddingError",
    "PollPolicy",
    "ProviderAdapter",
    "ProviderBlock",
    "ProviderEvent",
    "ProviderRaw",
    "QuotaExceededError",
    "RateLimitError",
    "RateLimitInfo",
    "RateLimitWaitError",
    "RawReply",
    "RedactedThinkingBlock",
    "RequestTimeoutError",
    "RetryPolicy",
    "Role",
    "ScriptedAdapter",
    "ScriptedCall",
    "ScriptedFailure",
    "ScriptedReply",
    "ServerError",
    "StopReason",
    "StreamError",
    "StreamEvent",
    "TGIAdapter",
    "TextBlock",
    "TextDelta",
    "ThinkingBlock",
    "ThinkingDelta",
    "TokenUsage",
    "ToolAnnotations",
    "ToolChoice",
    "ToolDefinition",
    "ToolResultBlock",
    "ToolUseBlock",
    "ToolUseEnd",
    "ToolUseInputDelta",
    "ToolUseStart",
    "UnsupportedToolChoiceError",
    "UsageSource",
    "Vector",
    "VideoJob",
    "VideoStatus",
    "VideoVariant",
    "VoyageAdapter",
    "WarningCode",
    "create_adapter",
    "retry",
    "retry_delay",
]
