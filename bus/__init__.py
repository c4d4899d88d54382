"""Messages, events, and their transport.

Canonical values (messages, content blocks, stream events, usage, errors), the event catalogue, the bus, actors and
their supervisors, and the streaming channel. The package depends on no provider, price table or database.

The name `ActorStopped` is an exception. The event class `ActorStopped` is exported as `ActorStoppedEvent`.
"""

from ._lazy_names import face

__getattr__, __dir__, __all__ = face(
    __name__,
    {
        ".actor": "Actor ActorContext ActorRef ActorStatistics",
        ".child": (
            "ChildSpec ChildStatistics OnLimit RestartPolicy RestartType ShutdownReport Strategy "
            "SupervisorStatistics affected"
        ),
        ".supervisor": "Supervisor",
        ".tasks": "TaskHandle",
        ".bus": "Bus DeadLetter",
        ".clock": "Clock SYSTEM_CLOCK SystemClock",
        ".errors": (
            "AccessDeniedError ActorStopped AdapterError AdmissionError AuthError CallboardError CancelledError "
            "CapabilityError ConfigurationError ContentFilterError ContextOverflowError DeadlineExceeded "
            "ErrorClass GuardrailStopped InvalidRequestError MailboxFull NetworkError NoModelAvailable "
            "NoTurnRunning NotFoundError OutcomeUnknownError OverloadedError PromptTooLongError "
            "QuotaExceededError RateLimitError RateLimitWaitError RequestTimeoutError ServerError SessionBusy "
            "SessionTakenOver StoreError StoreUnavailable StreamError SupervisorEscalated TaskCancelled "
            "UnknownStream UnsupportedToolChoiceError WarningCode WrongLoop"
        ),
        ".events.calls": (
            "BatchCompleted BatchPartEnded BatchPlanned BatchProgress BatchSubmitted BatchSubmitting "
            "CallContent JobCompleted JobCreated JobFailed JobProgress LlmCallAccepted LlmCallCompleted "
            "LlmCallFailed LlmCallGuarded LlmCallImported LlmCallStarted ToolFinished ToolProgress ToolStarted"
        ),
        ".events.codec": "CatalogueEvent decode_as decode_envelope decode_event encode_envelope encode_event",
        ".events": "Envelope Event UnknownEvent",
        ".events.operation": (
            "ActorCrashed ActorEscalated ActorRestarted ActorStarted ActorStoppedEvent BudgetLow BudgetRefused "
            "BudgetReserved BudgetSettled ConfigReloaded NodeBrokerChanged NodeLeaseChanged NodeLimitsChanged "
            "PricingProgress PricingRepriced PricingTableLoaded ProviderAvailabilityChanged SessionClaimed "
            "SessionLost StoreShippingChanged StoreStateChanged"
        ),
        ".events.sessions": (
            "SessionConfigured SessionCreated SessionMessageAppended SessionModelChanged SessionRenamed "
            "SessionTurnCompleted SessionTurnStarted StepSoFar TurnSoFar TurnStatus"
        ),
        ".log": "Log",
        ".replay": "ReplayBus",
        ".streams.channel": "StreamChannel StreamChannelStatistics StreamInfo",
        ".streams.events": (
            "MessageComplete MessageStart ProviderBlock ProviderEvent StepFinish StreamEvent TextDelta "
            "ThinkingDelta ToolUseEnd ToolUseInputDelta ToolUseStart TurnComplete TurnEvent UserMessage"
        ),
        ".streams.log": "ReaderStatistics StreamLog StreamReader StreamReset",
        ".subscription": (
            "BusStatistics DropOldest Gap Latest Lossless ObservableBus Policy Subscription "
            "SubscriptionStatistics topic_matches"
        ),
        ".values.base": "Json JsonObject",
        ".values.content": (
            "AudioBlock ContentBlock DocumentBlock ImageBlock OpaqueBlock ProviderRaw RedactedThinkingBlock "
            "ResultPart TextBlock ThinkingBlock ToolResultBlock ToolUseBlock"
        ),
        ".values.messages": (
            "CallWarning Candidate Message MessageMetadata RawReply Role RoutingDecision SessionSetup "
            "ToolAnnotations ToolChoice ToolDefinition as_blocks"
        ),
        ".values.usage": "Cost CostSource CostSum StopReason TokenUsage UsageSource",
    },
)
