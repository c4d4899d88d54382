"""`callboard replay`: print recorded events again, each in a few words, at their original speed or immediately."""

from __future__ import annotations

import argparse
import math
import sys

import anyio

from callboard import bus
from callboard.adapters.requests.content import repair_json
from callboard.bus import Bus, ConfigurationError, Envelope, Lossless
from callboard.bus.values.usage import CostSum
from callboard.tracestore import Store, StoredEvents
from callboard.tracestore.codec import encode_line

from ..stores import TracePlace, store_to_read
from .options import add_trace, chosen_trace, flag, moment, repeated
from .sanitize import echo, write_json
from .table import cost_text, plural, seconds, sum_text, usd


def add_command(parser: argparse.ArgumentParser) -> None:
    parser.description = "Replay recorded events on a bus, and print them with the seconds since the first one."
    add_trace(parser)
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--session", metavar="ID", help="show only this session")
    which.add_argument("--run", metavar="ID", dest="run_id", help="show only this run of an engine")
    which.add_argument("--call", metavar="ID", help="show only this call")
    topic = "show only this topic: llm.call_started, llm.*, or session.> (repeatable)"
    repeated(parser, "--topic", metavar="T", help=topic)
    parser.add_argument("--since", type=moment, metavar="TIME", help="start at this day or time (ISO 8601)")
    parser.add_argument("--until", type=moment, metavar="TIME", help="end before this day or time (ISO 8601)")
    pace = "set the speed: 1 original, 10 faster, 0 without waiting (default)"
    parser.add_argument("--speed", type=speed, metavar="X", help=pace)
    parser.add_argument(
        "--longest-pause", type=pause, metavar="S", help="wait at most S seconds between two events"
    )
    flag(parser, "--json", help="print one JSON object a line for each event, with its ids")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    trace = chosen_trace(arguments)
    printer = _JsonLines() if arguments.json else _Lines(trace)
    anyio.run(_replay, trace, arguments, printer)
    printer.end()
    return 0


async def _replay(trace: TracePlace, arguments: argparse.Namespace, printer: _Lines | _JsonLines) -> None:
    async with store_to_read(trace) as store:
        replay = Bus.replay(
            _source(store, arguments), speed=arguments.speed, longest_pause=arguments.longest_pause
        )
        async with replay as bus, bus.subscribe(">", policy=Lossless(), name="replay") as events:
            async for envelope in events:
                printer.show(envelope)


def _source(store: Store, arguments: argparse.Namespace) -> StoredEvents:
    try:
        return StoredEvents(
            store,
            run_id=arguments.run_id,
            session_id=arguments.session,
            request_id=arguments.call,
            topics=arguments.topic,
            since=arguments.since,
            until=arguments.until,
        )
    except ValueError as error:
        raise ConfigurationError(str(error)) from None


class _Lines:
    """Prints events as lines for people: the time, the topic, and a few words."""

    def __init__(self, trace: TracePlace) -> None:
        self._trace = trace
        self._first_us: int | None = None
        self._count = 0

    def show(self, envelope: Envelope) -> None:
        if self._first_us is None:
            self._first_us = envelope.ts_us
        self._count += 1
        since = max(0, envelope.ts_us - self._first_us) // 1000
        line = f"{since // 1000:>6}.{since % 1000:03d}  {envelope.topic:<25} {describe(envelope)}"
        echo(line.rstrip())  # flushed after each line, so that a paced replay can be watched

    def end(self) -> None:
        summary_text = plural(self._count, "event") if self._count else "No matching events"
        echo()
        echo(f"{summary_text}, from {self._trace}")


class _JsonLines:
    """Prints events as JSON lines, for programs."""

    def show(self, envelope: Envelope) -> None:
        write_json(repair_json(encode_line(envelope)).decode().rstrip("\n"))
        sys.stdout.flush()

    def end(self) -> None:
        pass


def speed(text: str) -> float | None:
    """Parse a speed factor; None for 0, which means as fast as possible."""
    number = _number(text)
    return number or None


def pause(text: str) -> float:
    return _number(text)


def _number(text: str) -> float:
    number = float(text)
    if not (number >= 0 and math.isfinite(number)):
        raise argparse.ArgumentTypeError("must be 0 or more")
    return number


# --- Events in a few words ---


def describe(envelope: bus.Envelope) -> str:
    """A short description of an event, without its topic. Empty if the topic is enough."""
    match data := envelope.data:
        case bus.LlmCallStarted():
            again = "" if data.reason == "first" else f"  attempt {envelope.attempt}, {data.reason}"
            return f"{data.model}{again}"
        case bus.LlmCallCompleted():
            used = f"{data.usage.total_input_tokens} in, {data.usage.output_tokens} out"
            return f"{used}  {cost_text(data.cost)}  {seconds(data.latency_ms)}"
        case bus.LlmCallImported():
            tokens = data.usage
            used = "" if tokens is None else f"  {tokens.total_input_tokens} in, {tokens.output_tokens} out"
            return f"{data.model} from {data.origin}{used}  {cost_text(data.cost)}"
        case bus.LlmCallFailed():
            again = f"; again in {data.delay_seconds:.1f} s" if data.will_retry else ""
            return f"{data.error_class}: {data.message}{again}"
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
        case bus.JobCreated():
            return f"{data.model}  {data.kind} {data.job_id}"
        case bus.JobProgress():
            return f"{data.job_id}  {data.status}{'' if data.progress is None else f'  {data.progress:.0%}'}"
        case bus.JobCompleted():
            return f"{data.job_id}{'' if data.cost_nano_usd is None else f'  {usd(data.cost_nano_usd)}'}"
        case bus.JobFailed():
            return f"{data.job_id}  {data.status}: {data.message}"
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
            spent = f"{_usd(data.nano_usd)}, {data.tokens} tokens"
            return "unknown, counts with its maximum" if data.unknown else spent
        case bus.BudgetRefused():
            asked, left = _usd(data.asked_nano_usd), _usd(data.left_nano_usd)
            return f"{data.scope} {data.value}: requested {asked}, left {left}"
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
