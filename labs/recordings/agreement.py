"""How far the adapters agree with recorded traffic of real providers.

    python -m labs.recordings.agreement FOLDER          (or CALLBOARD_RECORDED=FOLDER)

FOLDER contains one JSON-lines file for each protocol. Each line has a recorded exchange and its correct reading
(the "oracle"). Every reliable exchange goes through the real adapter, over a transport that answers with the
recorded body: whole, byte by byte (streams), and cut at random places, always the same ones. The lab compares
text, tool calls, reasoning, stop reason, the four buckets of usage and the class of an error. An exchange agrees
if all of them do. The adapter does not know the server; it only knows whether the server never sends a finish
reason. A body that is no reply of its protocol must raise. Three things are failures: an exception other than
AdapterError, a broken stream invariant, and a stream whose events depend on the cuts.

It prints a table and each disagreement. It exits with 1 below 98 % for a protocol, or at any failure. It names a
folder or file that does not exist, and skips it.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from callboard.adapters import AdapterError, CanonicalRequest, MessageComplete
from callboard.adapters.http.adapter import HttpAdapter
from callboard.bus.streams.events import StreamEvent
from callboard.bus.values.content import ContentBlock, TextBlock, ThinkingBlock, ToolUseBlock
from callboard.bus.values.messages import Message
from callboard.bus.values.usage import StopReason, TokenUsage
from tests.support.invariants import check_stream
from tests.support.recordings import PROTOCOLS, THRESHOLD, fragments, make_adapter, read_cases

LARGEST_BY_BYTE = 64 * 1024
"""Larger streams are only cut at random places, because byte by byte they would take too long."""
BUCKETS = ("input_tokens", "output_tokens", "cached_input_tokens", "cache_creation_input_tokens")


@dataclass
class Outcome:
    """The adapter's result of an exchange."""

    content: tuple[ContentBlock, ...] = ()
    stop_reason: StopReason | None = None
    usage: TokenUsage | None = None
    error: AdapterError | None = None
    failure: str | None = None
    """The violation, if the adapter did what no adapter may do."""
    events: list[StreamEvent] = field(default_factory=list)


@dataclass
class Tally:
    exchanges: int = 0
    disagreements: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    disagreeing: set[str] = field(default_factory=set)

    @property
    def percent(self) -> float:
        return 100.0 * (1 - len(self.disagreeing) / self.exchanges) if self.exchanges else 100.0


async def play(kind: str, case: Mapping[str, Any], mode: str) -> Outcome:
    """Run one exchange through the adapter, with the recorded request options."""
    body = case["response_body"].encode()
    adapter = make_adapter(kind, case, fragments(body, mode))
    model = case["request_body"].get("model") or "unknown"
    request = CanonicalRequest(
        request_id="req_1",
        messages=(Message.user("?"),),
        model=f"{kind}:{model}",
        max_output_tokens=1024,
        message_id="msg_1",
    )
    outcome = Outcome()
    try:
        if case["streamed"] or case.get("request_streamed"):
            await _stream(adapter, request, outcome)
        else:
            response = await adapter.complete(request)
            outcome.content, outcome.stop_reason = response.content, response.stop_reason
            outcome.usage = response.usage
    except AdapterError as error:
        outcome.error = error
    except Exception as error:
        outcome.failure = f"raised {type(error).__name__}: {error}"
    return outcome


async def _stream(adapter: HttpAdapter, request: CanonicalRequest, outcome: Outcome) -> None:
    try:
        async with adapter.stream(request) as stream:
            async for event in stream:
                outcome.events.append(event)
    finally:
        if outcome.events and isinstance(last := outcome.events[-1], MessageComplete):
            outcome.content, outcome.stop_reason, outcome.usage = last.final_content, last.stop_reason, last.usage
            try:
                check_stream(outcome.events)
            except AssertionError as error:
                outcome.failure = f"a stream invariant is broken: {error}"


def compare(case: Mapping[str, Any], outcome: Outcome) -> Iterator[str]:
    """The fields in which the result differs from the oracle."""
    oracle = case["oracle"]
    if oracle.get("must_not_succeed"):
        if outcome.error is None:
            yield "must_not_succeed: a response was returned"
        return
    contract = oracle["contract"]
    expected, also = contract["error_class"], contract["error_class_also_ok"]
    found = outcome.error.error_class.value if outcome.error is not None else None
    if found != expected and found not in also:
        yield f"error class: {found} ({outcome.error}), not {expected}"
    if outcome.error is not None and not outcome.events:
        return
    text = "".join(block.text for block in outcome.content if isinstance(block, TextBlock))
    thinking = "".join(block.text for block in outcome.content if isinstance(block, ThinkingBlock))
    yield from _differs("text", text, oracle["final_text"])
    yield from _differs("thinking", thinking, oracle["thinking_text"])
    yield from _compare_calls(outcome.content, oracle["tool_calls"])
    reason, reasons = contract["stop_reason"], contract["stop_reason_also_ok"]
    if reason is not None and outcome.stop_reason != reason and outcome.stop_reason not in reasons:
        yield f"stop reason: {outcome.stop_reason}, not {reason}"
    if contract["usage"] is not None:
        for bucket in BUCKETS:
            yield from _differs(bucket, getattr(outcome.usage, bucket), contract["usage"][bucket])


def _compare_calls(content: Sequence[ContentBlock], expected: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    calls = [block for block in content if isinstance(block, ToolUseBlock)]
    yield from _differs("names of calls", [block.name for block in calls], [call["name"] for call in expected])
    for number, (block, call) in enumerate(zip(calls, expected, strict=False)):
        arguments = call["arguments"]
        yield from _differs(f"arguments of call {number}", block.input, arguments if arguments is not None else {})
        if call.get("id"):
            own_id = block.provider_raw.data.get("id") if block.provider_raw is not None else None
            yield from _differs(f"id of call {number}", own_id, call["id"])


def _differs(name: str, found: object, expected: object) -> Iterator[str]:
    if found != expected:
        yield f"{name}: {_short(found)}, not {_short(expected)}"


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 120 else f"{text[:70]} … {text[-45:]}"


async def measure(path: Path, kind: str) -> dict[str, Tally]:
    """Measure a file. Returns a tally for each mode, of plain replies and of streams."""
    tallies: dict[str, Tally] = {}
    for case in read_cases(path):
        streamed = case["streamed"] or case.get("request_streamed")
        modes = ("whole", "random-1", "random-2") if streamed else ("whole", "random-1")
        if streamed and len(case["response_body"]) <= LARGEST_BY_BYTE:
            modes = (*modes, "byte")
        reference: list[StreamEvent] | None = None
        for mode in modes:
            tally = tallies.setdefault(f"{'streamed' if streamed else 'plain'} {mode}", Tally())
            outcome = await play(kind, case, mode)
            tally.exchanges += 1
            if reference is None:
                reference = outcome.events
            elif outcome.events != reference:
                outcome.failure = outcome.failure or "the events depend on how the body was cut"
            if outcome.failure is not None:
                tally.failures.append(f"{case['id']}: {outcome.failure}")
                tally.disagreeing.add(case["id"])
            for difference in compare(case, outcome):
                tally.disagreements.append(f"{case['id']}: {difference}")
                tally.disagreeing.add(case["id"])
    return tallies


def report(results: Mapping[str, Mapping[str, Tally]]) -> tuple[str, bool]:
    """The table and the disagreements as text, and whether everything agrees."""
    lines = [f"{'protocol':<18}{'mode':<20}{'exchanges':>10}{'agree':>8}{'%':>8}"]
    good = True
    for protocol, tallies in results.items():
        for mode, tally in sorted(tallies.items()):
            agreeing = tally.exchanges - len(tally.disagreeing)
            lines.append(f"{protocol:<18}{mode:<20}{tally.exchanges:>10}{agreeing:>8}{tally.percent:>8.1f}")
            good = good and not tally.failures
        checked = sum(tally.exchanges for tally in tallies.values())
        wrong = sum(len(tally.disagreeing) for tally in tallies.values())
        share = 100.0 * (1 - wrong / checked) if checked else 0.0
        good = good and share >= THRESHOLD
        lines.append(f"{protocol:<18}{'all':<20}{checked:>10}{checked - wrong:>8}{share:>8.1f}")
    for protocol, tallies in results.items():
        modes_by_line: dict[str, list[str]] = {}
        for mode, tally in tallies.items():
            for line in [*[f"FAILURE {failure}" for failure in tally.failures], *tally.disagreements]:
                modes_by_line.setdefault(line, []).append(mode)
        lines += [f"{protocol}: {line}  [{', '.join(modes)}]" for line, modes in modes_by_line.items()]
    return "\n".join(lines), good


def run(folder: Path) -> tuple[str, bool]:
    """Measure every protocol whose file is in the folder."""
    results: dict[str, dict[str, Tally]] = {}
    skipped: list[str] = []
    for protocol, kind in PROTOCOLS.items():
        path = folder / f"{protocol}.jsonl"
        if path.exists():
            results[protocol] = asyncio.run(measure(path, kind))
        else:
            skipped.append(f"skipped {protocol}: {path} does not exist")
    text, good = report(results)
    return "\n".join([text, *skipped]), good


def main() -> int:
    parser = argparse.ArgumentParser(description="Agreement of the adapters with recorded traffic.")
    parser.add_argument("folder", nargs="?", type=Path, default=os.environ.get("CALLBOARD_RECORDED"))
    folder = parser.parse_args().folder
    if folder is None or not Path(folder).is_dir():
        print(f"skipped: no folder of recorded traffic ({folder}); give one, or set CALLBOARD_RECORDED")
        return 0
    logging.getLogger("callboard").setLevel(logging.CRITICAL)
    text, good = run(Path(folder))
    print(text)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
