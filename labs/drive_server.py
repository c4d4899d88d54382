"""Sends requests to a running server through the adapters of several protocols, and compares the results.

python -m labs.drive_server URL --model NAME [--key KEY] [--protocol chat messages …] [--only tools …]

Each check is one call, which is made once without streaming and, where possible, once with streaming. A call must
end in a response or an AdapterError. The events of a stream must satisfy the stream invariants and add up to the
call's response. The table prints `ok` and the result of each check: stop reason, input and output tokens, and the
beginning of the text, or the error's class and status. The program exits with 1 if a call ended otherwise, if a
stream broke an invariant, or if the streamed and the plain call differ in stop reason or input tokens. Differences
between protocols in text, stop reason or input tokens are printed, but are no fault: a proxy may count tokens
differently for each protocol.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import logging
import struct
import sys
import zlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from callboard.adapters import (
    AdapterConfig,
    AdapterError,
    CanonicalRequest,
    MessageComplete,
    ProviderAdapter,
    create_adapter,
)
from callboard.adapters.config import RetryPolicy
from callboard.adapters.contract import CanonicalResponse
from callboard.bus.streams.events import StreamEvent
from callboard.bus.values.content import ImageBlock, TextBlock, ToolResultBlock, ToolUseBlock
from callboard.bus.values.messages import Message, Role, ToolChoice, ToolDefinition
from callboard.bus.values.usage import UsageSource
from tests.support.invariants import check_stream

ADAPTERS = {
    "chat": "openai_compatible",
    "messages": "anthropic",
    "responses": "openai",
    "gemini": "gemini",
    "ollama": "ollama",
    "tgi": "tgi",
}
"""The adapter's type for each protocol."""

WEATHER = ToolDefinition(
    name="get_weather",
    description="The weather in a city.",
    input_schema={"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
)
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 20}},
    "required": ["city"],
    "additionalProperties": False,
}
QUESTION = (Message.user("What is the capital of France?"),)
TURNS = (
    Message.user("What is the capital of France?"),
    Message.assistant("The capital of France is Paris."),
    Message.user("And of Italy?"),
    Message.assistant("The capital of Italy is Rome."),
    Message.user("And of Spain?"),
)


def tool_turns(*, is_error: bool) -> tuple[Message, ...]:
    call = ToolUseBlock("tu_01", "get_weather", {"city": "Paris"})
    result = ToolResultBlock("tu_01", "no such city" if is_error else "17 degrees", is_error)
    return (
        Message.user("What is the weather in Paris?"),
        Message.assistant((TextBlock("I'll look."), call)),
        Message(Role.TOOL, (result,)),
    )


def red_square(side: int = 16) -> bytes:
    """A PNG that real servers can decode."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    rows = (b"\0" + b"\xff\0\0" * side) * side
    header = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    )


CHECKS: dict[str, dict[str, Any]] = {
    "plain": {"messages": QUESTION},
    "system prompt": {"messages": QUESTION, "system_prompt": "You are a pirate."},
    "three turns": {"messages": TURNS, "system_prompt": "You are brief."},
    "cut off": {"messages": QUESTION, "max_output_tokens": 3},
    "stop sequence": {"messages": QUESTION, "stop_sequences": ("France", "Paris")},
    "tools declared": {"messages": QUESTION, "tools": (WEATHER,)},
    "tool forced": {"messages": QUESTION, "tools": (WEATHER,), "tool_choice": ToolChoice("required")},
    "tool named": {"messages": QUESTION, "tools": (WEATHER,), "tool_choice": ToolChoice("named", "get_weather")},
    "tool result": {"messages": tool_turns(is_error=False), "tools": (WEATHER,)},
    "tool error": {"messages": tool_turns(is_error=True), "tools": (WEATHER,)},
    "image": {
        "messages": (
            Message.user((TextBlock("What colour?"), ImageBlock(data=red_square(), media_type="image/png"))),
        )
    },
    "schema": {"messages": QUESTION, "output_schema": SCHEMA, "max_output_tokens": 60},
    "unknown model": {"messages": QUESTION, "model": "no-such-model"},
    "overlong": {"messages": (Message.user("hello " * 40_000),)},
    "bad key": {"messages": QUESTION, "key": "sk-wrong"},
}
"""The fields of CanonicalRequest for each check; `key` is the adapter's API key."""


class Outcome(NamedTuple):
    """The result of one call."""

    seen: str
    """A line for people."""
    text: str
    facts: tuple[object, ...]
    """The stop reason and the reported input tokens, or the error's class."""
    fault: str = ""
    """The violated rule, or an empty text."""


async def call(adapter: ProviderAdapter, request: CanonicalRequest, *, streamed: bool) -> Outcome:
    """Make one call and describe its result. `fault` is set if a rule was violated."""
    events: list[StreamEvent] = []
    try:
        async with asyncio.timeout(120):
            if not streamed:
                return describe(await adapter.complete(request))
            async with adapter.stream(request) as stream:
                async for event in stream:
                    events.append(event)  # noqa: PERF401 -- what came before a failure is looked at
            assert stream.response is not None, "a stream that ended well has a response"
            check_stream(events)
            outcome = describe(stream.response)
    except AdapterError as error:
        if events and not isinstance(events[-1], MessageComplete):
            return Outcome(str(error), "", (), "failed after its first event without a last one")
        status = "" if error.provider_status is None else f" {error.provider_status}"
        again = " retryable" if error.retryable else ""
        seen = f"{type(error).__name__}{status}{again}: {error.provider_message[:70]!r}"
        return Outcome(seen, "", (type(error).__name__,))
    except Exception as error:
        return Outcome("", "", (), f"{type(error).__name__}: {error}")
    return outcome


def describe(response: CanonicalResponse) -> Outcome:
    usage = response.usage
    calls = "".join(f" {use.name}({json.dumps(use.input)})" for use in response.tool_uses)
    warned = "".join(f" !{warning.code}" for warning in response.warnings)
    seen = f"{response.stop_reason} {usage.total_input_tokens}+{usage.output_tokens} {usage.source}"
    seen += f" {response.text[:40]!r}{calls}{warned}"
    reported = usage.total_input_tokens if usage.source is UsageSource.REPORTED else None
    return Outcome(seen, response.text, (response.stop_reason, reported))


async def cancelled(adapter: ProviderAdapter, request: CanonicalRequest) -> Outcome:
    """Cancel a stream after its third event, then make another call."""
    events: list[StreamEvent] = []
    async with asyncio.timeout(60):
        async with adapter.stream(request) as stream:
            async for event in stream:
                events.append(event)
                if len(events) == 3:
                    await adapter.cancel(request.request_id)
        last = check_stream(events)
        after = await adapter.complete(request)
    return Outcome(f"{last.stop_reason} after {len(events)} events, then {after.stop_reason}", "", ())


class Options(NamedTuple):
    url: str
    model: str
    key: str
    adapter: Mapping[str, Any]
    only: Sequence[str]


async def drive(protocol: str, options: Options) -> dict[str, tuple[Outcome, Outcome | None]]:
    """Run all checks with one protocol, without and with streaming."""

    def make(key: str) -> ProviderAdapter:
        config = AdapterConfig(
            api_key=key,
            base_url=options.url,
            max_retries=0,
            retry=RetryPolicy(base_delay=0.01),
            options=options.adapter,
        )
        return create_adapter(ADAPTERS[protocol], config, name=protocol)

    def request(fields: Mapping[str, Any], number: int) -> CanonicalRequest:
        asked = {"max_output_tokens": 24, "temperature": 0.0, "model": options.model, **fields}
        asked["model"] = f"{protocol}:{asked['model']}"
        asked.pop("key", None)
        return CanonicalRequest(request_id=f"req_{number}", **asked)

    outcomes: dict[str, tuple[Outcome, Outcome | None]] = {}
    adapter = make(options.key)
    for number, (name, fields) in enumerate(CHECKS.items()):
        if options.only and name not in options.only:
            continue
        chosen = make(fields["key"]) if "key" in fields else adapter
        whole = await call(chosen, request(fields, number), streamed=False)
        streamed = await call(chosen, request(fields, number + 1000), streamed=True)
        outcomes[name] = (whole, streamed)
        if chosen is not adapter:
            await chosen.close()
    if not options.only or "cancelled" in options.only:
        try:
            asked = {"messages": (Message.user("Write a long story."),), "max_output_tokens": 400}
            outcomes["cancelled"] = (await cancelled(adapter, request(asked, 5000)), None)
        except AdapterError as error:
            outcomes["cancelled"] = (
                Outcome(f"{type(error).__name__}: {error.provider_message[:70]}", "", ()),
                None,
            )
        except Exception as error:
            outcomes["cancelled"] = (Outcome("", "", (), f"{type(error).__name__}: {error}"), None)
    await adapter.close()
    return outcomes


def faults_of(whole: Outcome, streamed: Outcome | None) -> list[str]:
    faults = [f"whole: {whole.fault}"] if whole.fault else []
    if streamed is not None:
        if streamed.fault:
            faults.append(f"streamed: {streamed.fault}")
        elif not whole.fault and any(
            a != b
            for a, b in itertools.zip_longest(whole.facts, streamed.facts, fillvalue="")
            if None not in (a, b)
        ):
            faults.append(f"whole {whole.facts} and streamed {streamed.facts} differ")
    return faults


def report(results: Mapping[str, Mapping[str, tuple[Outcome, Outcome | None]]]) -> int:
    """Print the table. Returns the number of faults."""
    count = 0
    for check in next(iter(results.values())):
        known = {protocol: outcomes[check] for protocol, outcomes in results.items()}
        same = len({(whole.text, whole.facts) for whole, _ in known.values()}) == 1
        print(f"{check}{'' if len(known) == 1 else ': all agree' if same else ': they differ'}")
        for protocol, (whole, streamed) in known.items():
            faults = faults_of(whole, streamed)
            count += len(faults)
            twin = "" if streamed is None or streamed.seen == whole.seen else f"\n{'':14}streamed: {streamed.seen}"
            print(f"  {'FAULT' if faults else 'ok':6}{protocol:11}{whole.seen}{twin}")
            for fault in faults:
                print(f"{'':10}{fault}")
    return count


def main() -> None:
    parser = argparse.ArgumentParser(description="Drive the adapters against a server that runs.")
    parser.add_argument("url")
    parser.add_argument("--model", required=True)
    parser.add_argument("--key", default="sk-none")
    parser.add_argument("--protocol", nargs="+", choices=ADAPTERS, default=["chat"])
    parser.add_argument(
        "--options", type=json.loads, default={}, help='of the adapters: \'{"quirks": "llama.cpp"}\''
    )
    parser.add_argument("--only", nargs="+", default=(), choices=[*CHECKS, "cancelled"])
    parsed = parser.parse_args()
    logging.getLogger("callboard").setLevel(logging.CRITICAL)
    options = Options(parsed.url, parsed.model, parsed.key, parsed.options, parsed.only)

    async def everything() -> dict[str, dict[str, tuple[Outcome, Outcome | None]]]:
        return {protocol: await drive(protocol, options) for protocol in parsed.protocol}

    sys.exit(1 if report(asyncio.run(everything())) else 0)


if __name__ == "__main__":
    main()
