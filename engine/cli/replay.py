"""`callboard replay`: replay the events of a trace file, at their original speed or immediately."""

from __future__ import annotations

import argparse
import math
import sys

import anyio

from callboard.adapters.requests.content import repair_json
from callboard.bus import Bus, ConfigurationError, Envelope, Lossless
from callboard.tracestore import Store, StoredEvents
from callboard.tracestore.codec import encode_line

from ..stores import TracePlace, store_to_read
from .events import describe
from .options import add_trace, chosen_trace, moment, repeated
from .sanitize import echo, write_json
from .table import plural


def add_command(parser: argparse.ArgumentParser) -> None:
    parser.description = "Replay recorded events on a bus, and print them with the seconds since the first one."
    add_trace(parser)
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--session", metavar="ID", help="show only this session")
    which.add_argument("--run", metavar="ID", dest="run_id", help="show only this run of an engine")
    which.add_argument("--call", metavar="ID", help="show only this call")
    repeated(
        parser,
        "--topic",
        metavar="T",
        help="show only this topic: llm.call_started, llm.*, or session.> (repeatable)",
    )
    parser.add_argument("--since", type=moment, metavar="TIME", help="start at this day or time (ISO 8601)")
    parser.add_argument("--until", type=moment, metavar="TIME", help="end before this day or time (ISO 8601)")
    parser.add_argument(
        "--speed",
        type=speed,
        default=None,
        metavar="X",
        help="set the speed: 1 original, 10 faster, 0 without waiting (default)",
    )
    parser.add_argument(
        "--longest-pause", type=pause, default=None, metavar="S", help="wait at most S seconds between two events"
    )
    parser.add_argument(
        "--json", action="store_true", help="print one JSON object a line for each event, with its ids"
    )
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
