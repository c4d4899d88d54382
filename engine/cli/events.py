"""Describes bus events in a few words each."""

from __future__ import annotations

from callboard import bus
from callboard.bus.values.usage import CostSum

from .table import cost_text, plural, seconds, sum_text, usd


def describe(envelope: bus.Envelope) -> str:
    """A short description of an event, without its topic. Empty if the topic is enough."""
    data = envelope.data
    return _of_call(envelope) or _of_session(data) or _of_job(data) or _of_the_rest(data)


def _of_call(envelope: bus.Envelope) -> str:
    match envelope.data:
        case bus.LlmCallStarted() as data:
            again = "" if data.reason == "first" else f"  attempt {envelope.attempt}, {data.reason}"
            return f"{data.model}{again}"
        case bus.LlmCallCompleted() as data:
            used = f"{data.usage.total_input_tokens} in, {data.usage.output_tokens} out"
            return f"{used}  {cost_text(data.cost)}  {seconds(data.latency_ms)}"
        case bus.LlmCallImported() as data:
            tokens = data.usage
            used = "" if tokens is None else f"  {tokens.total_input_tokens} in, {tokens.output_tokens} out"
            return f"{data.model} from {data.origin}{used}  {cost_text(data.cost)}"
        case bus.LlmCallFailed() as data:
            again = f"; again in {data.delay_seconds:.1f} s" if data.will_retry else ""
            return f"{data.error_class}: {data.message}{again}"
        case _:
            return ""


def _of_session(data: bus.Event) -> str:
    match data:
        case bus.SessionCreated() | bus.SessionTurnStarted():
            return data.model
        case bus.SessionRenamed():
            return data.name
        case bus.SessionModelChanged():
            return f"{data.previous} -> {data.current}"
        case bus.SessionTurnCompleted():
            parts = (data.known_nano_usd, data.attempts, data.estimated, data.unpriced, data.unknown)
            cost = f"  {sum_text(CostSum(*parts))}" if data.attempts else ""
            return f"{data.status}  {plural(data.calls, 'call')}{cost}"
        case bus.SessionMessageAppended():
            return f"message {data.position + 1}, {data.message.role}"
        case bus.SessionClaimed():
            return f"by {data.name}, {data.how.replace('_', ' ')}"
        case bus.SessionLost():
            return data.how.replace("_", " ")
        case bus.ToolStarted():
            return data.tool_name
        case bus.ToolProgress():
            return f"{data.tool_name}{'' if data.fraction is None else f'  {data.fraction:.0%}'}"
        case bus.ToolFinished():
            return f"{data.tool_name}  {'error' if data.is_error else 'ok'}  {seconds(data.latency_ms)}"
        case _:
            return ""


def _of_job(data: bus.Event) -> str:
    match data:
        case bus.JobCreated():
            return f"{data.model}  {data.kind} {data.job_id}"
        case bus.JobProgress():
            return f"{data.job_id}  {data.status}{'' if data.progress is None else f'  {data.progress:.0%}'}"
        case bus.JobCompleted():
            return f"{data.job_id}{'' if data.cost_nano_usd is None else f'  {usd(data.cost_nano_usd)}'}"
        case bus.JobFailed():
            return f"{data.job_id}  {data.status}: {data.message}"
        case _:
            return ""


def _of_the_rest(data: bus.Event) -> str:
    match data:
        case bus.ConfigReloaded():
            return data.source
        case bus.ActorStarted():
            return data.actor
        case bus.ActorCrashed():
            return f"{data.actor}: {data.error}"
        case bus.ActorRestarted():
            return f"{data.actor}, restart {data.restarts}"
        case bus.ActorStoppedEvent() | bus.ActorEscalated():
            return f"{data.actor}: {data.reason}"
        case bus.ProviderAvailabilityChanged():
            return f"{data.provider}: {data.previous} -> {data.current} ({data.reason})"
        case bus.PricingTableLoaded():
            return f"{data.label} ({data.pricing_version})"
        case bus.PricingProgress():
            return f"{data.done} of {data.last}"
        case bus.PricingRepriced():
            change = f"{usd(data.sum_before_nano_usd)} -> {usd(data.sum_after_nano_usd)}"
            return f"{plural(data.calls, 'call')}  {change}"
        case bus.BudgetReserved():
            return f"at most {_usd(data.nano_usd)}, {data.tokens} tokens"
        case bus.BudgetSettled():
            return (
                "unknown, counts with its maximum"
                if data.unknown
                else f"{_usd(data.nano_usd)}, {data.tokens} tokens"
            )
        case bus.BudgetRefused():
            return (
                f"{data.scope} {data.value}: requested {_usd(data.asked_nano_usd)}, left "
                f"{_usd(data.left_nano_usd)}"
            )
        case bus.BudgetLow():
            return f"{data.scope} {data.value}: left {_usd(data.left_nano_usd)}"
        case bus.NodeBrokerChanged():
            return f"{data.broker}: {data.current}"
        case bus.NodeLeaseChanged():
            return f"{data.name}: {data.current}  {data.reason}"
        case bus.NodeLimitsChanged():
            return f"limits of {data.nodes} nodes: {data.current}  {data.reason}"
        case bus.StoreShippingChanged():
            return f"{data.previous} -> {data.current}: {data.behind} events wait  {data.reason}"
        case bus.StoreStateChanged():
            return f"{data.previous} -> {data.current}: {data.reason}"
        case bus.Gap():
            return f"{plural(data.count, 'event')} not shown"
        case _:
            return ""


def _usd(nano_usd: int | None) -> str:
    return "?" if nano_usd is None else usd(nano_usd)
