"""Bus events in a few words each, for people who watch."""

from __future__ import annotations

from callboard.bus import (
    ActorCrashed,
    ActorEscalated,
    ActorRestarted,
    ActorStarted,
    ActorStoppedEvent,
    BudgetLow,
    BudgetRefused,
    BudgetReserved,
    BudgetSettled,
    ConfigReloaded,
    Envelope,
    Event,
    Gap,
    JobCompleted,
    JobCreated,
    JobFailed,
    JobProgress,
    LlmCallCompleted,
    LlmCallFailed,
    LlmCallStarted,
    NodeBrokerChanged,
    NodeLeaseChanged,
    NodeLimitsChanged,
    PricingProgress,
    PricingRepriced,
    PricingTableLoaded,
    ProviderAvailabilityChanged,
    SessionClaimed,
    SessionCreated,
    SessionLost,
    SessionMessageAppended,
    SessionModelChanged,
    SessionRenamed,
    SessionTurnCompleted,
    SessionTurnStarted,
    StoreShippingChanged,
    StoreStateChanged,
    ToolFinished,
    ToolProgress,
    ToolStarted,
)
from callboard.bus.values.cost_sum import CostSum

from .common.figures import cost_text, plural, seconds, sum_text, usd


def describe(envelope: Envelope) -> str:
    """An event in words, without its topic. Empty for an event whose topic says everything."""
    data = envelope.data
    return _of_call(envelope) or _of_session(data) or _of_job(data) or _of_the_rest(data)


def _of_call(envelope: Envelope) -> str:
    match envelope.data:
        case LlmCallStarted() as data:
            again = "" if data.reason == "first" else f"  attempt {envelope.attempt}, {data.reason}"
            return f"{data.model}{again}"
        case LlmCallCompleted() as data:
            used = f"{data.usage.total_input_tokens} in, {data.usage.output_tokens} out"
            return f"{used}  {cost_text(data.cost)}  {seconds(data.latency_ms)}"
        case LlmCallFailed() as data:
            again = f"; again in {data.delay_seconds:.1f} s" if data.will_retry else ""
            return f"{data.error_class}: {data.message}{again}"
        case _:
            return ""


def _of_session(data: Event) -> str:
    match data:
        case SessionCreated() | SessionTurnStarted():
            return data.model
        case SessionRenamed():
            return data.name
        case SessionModelChanged():
            return f"{data.previous} -> {data.current}"
        case SessionTurnCompleted():
            parts = (data.known_nano_usd, data.attempts, data.estimated, data.unpriced, data.unknown)
            cost = f"  {sum_text(CostSum(*parts))}" if data.attempts else ""
            return f"{data.status}  {plural(data.calls, 'call')}{cost}"
        case SessionMessageAppended():
            return f"message {data.position + 1}, {data.message.role}"
        case SessionClaimed():
            return f"by {data.name}, {data.how.replace('_', ' ')}"
        case SessionLost():
            return data.how.replace("_", " ")
        case ToolStarted():
            return data.tool_name
        case ToolProgress():
            return f"{data.tool_name}{'' if data.fraction is None else f'  {data.fraction:.0%}'}"
        case ToolFinished():
            return f"{data.tool_name}  {'error' if data.is_error else 'ok'}  {seconds(data.latency_ms)}"
        case _:
            return ""


def _of_job(data: Event) -> str:
    match data:
        case JobCreated():
            return f"{data.model}  {data.kind} {data.job_id}"
        case JobProgress():
            return f"{data.job_id}  {data.status}{'' if data.progress is None else f'  {data.progress:.0%}'}"
        case JobCompleted():
            return f"{data.job_id}{'' if data.cost_nano_usd is None else f'  {usd(data.cost_nano_usd)}'}"
        case JobFailed():
            return f"{data.job_id}  {data.status}: {data.message}"
        case _:
            return ""


def _of_the_rest(data: Event) -> str:
    match data:
        case ConfigReloaded():
            return data.source
        case ActorStarted():
            return data.actor
        case ActorCrashed():
            return f"{data.actor}: {data.error}"
        case ActorRestarted():
            return f"{data.actor}, restart {data.restarts}"
        case ActorStoppedEvent() | ActorEscalated():
            return f"{data.actor}: {data.reason}"
        case ProviderAvailabilityChanged():
            return f"{data.provider}: {data.previous} -> {data.current} ({data.reason})"
        case PricingTableLoaded():
            return f"{data.label} ({data.pricing_version})"
        case PricingProgress():
            return f"{data.done} of {data.last}"
        case PricingRepriced():
            change = f"{usd(data.sum_before_nano_usd)} -> {usd(data.sum_after_nano_usd)}"
            return f"{plural(data.calls, 'call')}  {change}"
        case BudgetReserved():
            return f"at most {_usd(data.nano_usd)}, {data.tokens} tokens"
        case BudgetSettled():
            return (
                "unknown, counts at its most" if data.unknown else f"{_usd(data.nano_usd)}, {data.tokens} tokens"
            )
        case BudgetRefused():
            return f"{data.scope} {data.value}: asked {_usd(data.asked_nano_usd)}, left {_usd(data.left_nano_usd)}"
        case BudgetLow():
            return f"{data.scope} {data.value}: left {_usd(data.left_nano_usd)}"
        case NodeBrokerChanged():
            return f"{data.broker}: {data.current}"
        case NodeLeaseChanged():
            return f"{data.name}: {data.current}  {data.reason}"
        case NodeLimitsChanged():
            return f"limits of {data.nodes} nodes: {data.current}  {data.reason}"
        case StoreShippingChanged():
            return f"{data.previous} -> {data.current}: {data.behind} events wait  {data.reason}"
        case StoreStateChanged():
            return f"{data.previous} -> {data.current}: {data.reason}"
        case Gap():
            return f"{plural(data.count, 'event')} not shown"
        case _:
            return ""


def _usd(nano_usd: int | None) -> str:
    return "?" if nano_usd is None else usd(nano_usd)
