"""Adapters: the contract, one folder for each provider, and their shared code.

An adapter works alone: construct it, call it, close it. It needs no actor, bus or engine. It translates between
canonical values and its provider's wire, classifies errors and retries. It computes no money and stores nothing.
"""

from callboard.bus._lazy_names import face

from .provider import adapter_class

__getattr__, __dir__, __all__ = face(
    __name__,
    {
        ".batches": "BatchJob BatchStatus",
        ".config": "AdapterConfig KeyFile KeySource OnRetry RetryPolicy",
        ".contract": (
            "AdapterCapabilities AdapterStream AttemptAccepted AttemptFailed AttemptFirstEvent AttemptObserver "
            "AttemptReport AttemptResent AttemptStarted CanonicalRequest CanonicalResponse NextAttempt "
            "ProviderAdapter RateLimitInfo"
        ),
        ".embeddings": "EmbeddingRequest EmbeddingResponse InputType PartialEmbeddingError Vector",
        ".health": "AdapterHealth AdapterStatistics",
        ".http.retry": "PollPolicy retry retry_delay",
        ".images": "GeneratedImage",
        ".providers.anthropic.adapter": "AnthropicAdapter",
        ".providers.bedrock.adapter": "BedrockAdapter",
        ".providers.cohere.adapter": "CohereAdapter",
        ".providers.gemini.adapter": "GeminiAdapter",
        ".providers.local.adapter": "LocalAdapter",
        ".providers.ollama.adapter": "OllamaAdapter",
        ".providers.openai.adapter": "OpenAIAdapter",
        ".providers.openai_compatible.adapter": "OpenAICompatibleAdapter",
        ".providers.scripted.adapter": "ScriptedAdapter ScriptedCall ScriptedFailure ScriptedReply",
        ".providers.tgi.adapter": "TGIAdapter",
        ".providers.voyage.adapter": "VoyageAdapter",
        ".provider": "create_adapter",
        ".videos": "VideoJob VideoStatus VideoVariant",
        "callboard.bus.errors": (
            "AccessDeniedError AdapterError AuthError CancelledError CapabilityError ContentFilterError "
            "ContextOverflowError ErrorClass InvalidRequestError NetworkError NotFoundError OutcomeUnknownError "
            "OverloadedError QuotaExceededError RateLimitError RateLimitWaitError RequestTimeoutError "
            "ServerError StreamError UnsupportedToolChoiceError WarningCode"
        ),
        "callboard.bus.streams.events": (
            "MessageComplete MessageStart ProviderBlock ProviderEvent StreamEvent TextDelta ThinkingDelta "
            "ToolUseEnd ToolUseInputDelta ToolUseStart"
        ),
        "callboard.bus.values.content": (
            "AudioBlock ContentBlock DocumentBlock ImageBlock OpaqueBlock ProviderRaw RedactedThinkingBlock "
            "TextBlock ThinkingBlock ToolResultBlock ToolUseBlock"
        ),
        "callboard.bus.values.messages": (
            "CallWarning Message MessageMetadata RawReply Role ToolAnnotations ToolChoice ToolDefinition"
        ),
        "callboard.bus.values.usage": "StopReason TokenUsage UsageSource",
    },
    adapter_class,
)
