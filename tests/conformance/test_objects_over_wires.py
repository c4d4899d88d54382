"""Objects over each provider's real adapter: the requests on the wire, and the results of replies.

§8.4 (object validated, NoObjectGeneratedError) and §8.9 (structured object) of the unified client's specification.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import anyio
import msgspec
import pytest

from callboard.adapters import StopReason, TokenUsage, ToolUseBlock, UsageSource
from callboard.adapters.config import AdapterConfig
from callboard.adapters.conformance import CALLS, TOOLS, arguments, halves
from callboard.adapters.contract import ProviderAdapter
from callboard.bus import (
    AdapterError,
    CancelledError,
    LlmCallCompleted,
    LlmCallFailed,
    Lossless,
    NetworkError,
    Subscription,
)
from callboard.bus.clock import Clock
from callboard.bus.errors import StreamError
from callboard.bus.values.base import Json, JsonObject
from callboard.bus.values.messages import ended_well
from callboard.engine import AdapterEntry, Engine, ModelEntry, ModelRegistry, Session, StreamResult, Tool
from callboard.engine.generation.objects import NoObjectGeneratedError
from callboard.engine.type_schema import json_schema
from callboard.tracestore import PriceRow, PriceTable

from ..definition_of_done.rows import row
from ..support.fake_http import HANG, FakeReply, FakeTransport, Step
from ..support.scripted import adapter_type
from ..support.wires import WIRES, Wire
from .endings import ENDINGS, ending

pytestmark = pytest.mark.anyio


@dataclass
class Place:
    """A place."""

    city: str
    country: str
    quarters: list[str] = field(default_factory=list)


PARIS = '{"city": "Paris", "country": "France", "quarters": ["Marais"]}'

NATIVE = {
    "anthropic": ("claude-sonnet-4-5", "output_config", "format", "schema"),
    "openai": ("gpt-5.2", "text", "format", "schema"),
    "openai_compatible": ("some-model", "response_format", "json_schema", "schema"),
    "gemini": ("gemini-2.5-flash", "generationConfig", "responseJsonSchema"),
    "ollama": ("some-model", "format"),
    "interactions": ("gemini-2.5-flash", "response_format", "schema"),
    "tgi": ("some-model", "parameters", "grammar", "value"),
}
"""A model that supports schemas, and the place of the schema in a request."""


@asynccontextmanager
async def asking(
    wire: Wire, model: str, *replies: FakeReply, prices: PriceTable | None = None, **settings: object
) -> AsyncIterator[tuple[Engine, str, FakeTransport]]:
    """An engine with that wire's adapter, the model's name, and the network."""
    transport = FakeTransport(*replies)

    def make(config: AdapterConfig, *, name: str, clock: Clock) -> ProviderAdapter:
        return wire.make(transport, clock, **{"max_retries": 0, **settings})

    entry = AdapterEntry(name=wire.name, type=adapter_type(make), config=AdapterConfig())
    named = f"{wire.name}:{model}"
    models = {named: ModelEntry(id=named, adapter=wire.name, wire_name=model)}
    async with Engine(models=ModelRegistry({wire.name: entry}, models), trace=False, prices=prices) as engine:
        yield engine, named, transport


def at(body: Json, *path: str) -> Json:
    for name in path:
        assert isinstance(body, dict)
        body = body[name]
    return body


def sent(transport: FakeTransport, number: int = 0) -> JsonObject:
    return msgspec.json.decode(transport.requests[number].body, type=JsonObject)


@pytest.mark.parametrize("wire", WIRES, ids=lambda wire: wire.name)
@row("8.4.7")
@row("8.9.9")
async def test_every_provider_gets_the_schema_in_its_own_form(wire: Wire) -> None:
    """§8.9 object: the schema is in the provider's field, and the reply becomes the type, also from a stream."""
    model, *path = NATIVE[wire.name]
    async with asking(wire, model, wire.whole(PARIS), wire.streamed(PARIS)) as (engine, named, transport):
        result = await engine.generate_object(named, "Where is the Louvre?", schema=Place)
        async with engine.stream_object(named, "Where is the Louvre?", schema=Place) as stream:
            partials = [partial async for partial in stream]
            assert await stream.object() == result.output == Place("Paris", "France", ["Marais"])
    assert partials[-1] == msgspec.json.decode(PARIS)
    schema = at(sent(transport), *path)
    assert isinstance(schema, dict)
    assert set(at(schema, "properties")) == {"city", "country", "quarters"}  # type: ignore[arg-type]
    assert [warning.code for warning in result.warnings if warning.code.startswith("schema")] == []


@pytest.mark.parametrize("wire", WIRES, ids=lambda wire: wire.name)
@row("8.4.8")
async def test_an_invalid_object_is_an_error_and_can_be_requested_again(wire: Wire) -> None:
    """§8.4 NoObjectGeneratedError. A second request includes the error. A cut off object is named as such."""
    model, *_ = NATIVE[wire.name]
    cut = wire.whole(PARIS[:20], 0, "length")
    replies = [wire.whole('{"city": 3}'), wire.whole("Paris."), wire.whole(PARIS), cut]
    async with asking(wire, model, *replies) as (engine, named, transport):
        with pytest.raises(NoObjectGeneratedError) as none:
            await engine.generate_object(named, "Where is the Louvre?", schema=Place)
        result = await engine.generate_object(named, "Where is the Louvre?", schema=Place, max_reasks=1)
        with pytest.raises(NoObjectGeneratedError, match="max_output_tokens") as truncated:
            await engine.generate_object(named, "Where is the Louvre?", schema=Place)
    assert (none.value.reason, none.value.usage.total_input_tokens) == ("invalid", 12)
    assert "$.city" in none.value.detail
    assert result.output.city == "Paris"
    assert b"is not JSON" in transport.requests[2].body
    assert wire.faults(transport.requests[2].body) == []
    assert truncated.value.reason == "truncated"


# -- a model without schemas: Anthropic's before Claude 4.5

CALL_NAME, CALL_INPUT = CALLS[0]
OF_CALL: JsonObject = {
    "type": "object",
    "properties": {name: {"type": "string"} for name in CALL_INPUT},
    "required": list(CALL_INPUT),
}


def answering(data: bytes) -> bytes:
    """A piece of a reply whose call uses the tool for the object."""
    return data.replace(f'"{CALL_NAME}"'.encode(), b'"answer"')


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
async def test_an_older_claude_is_made_to_call_a_tool(streamed: bool) -> None:
    wire = next(wire for wire in WIRES if wire.name == "anthropic")
    if streamed:
        reply = wire.stream_of(*[answering(chunk) for chunk in wire.chunks("", 1, "tools")])
    else:
        body = msgspec.json.decode(answering(msgspec.json.encode(wire.body("", 1, "tools"))), type=JsonObject)
        reply = wire._reply_with(body)
    async with asking(wire, "claude-sonnet-4-0", reply) as (engine, named, transport):
        if streamed:
            async with engine.stream_object(named, "Where?", schema=OF_CALL) as stream:
                partials = [partial async for partial in stream]
                result = await stream.result()
            assert partials[-1] == CALL_INPUT
        else:
            result = await engine.generate_object(named, "Where?", schema=OF_CALL)
    body = sent(transport)
    assert wire.judged(transport.requests[0].body) == []
    assert body["tool_choice"] == {"type": "tool", "name": "answer"}
    assert [at(tool, "name") for tool in at(body, "tools")] == ["answer"]  # type: ignore[union-attr]
    assert "output_config" not in body
    assert result.output == CALL_INPUT
    assert [warning.code for warning in result.warnings] == ["schema_as_tool"]


async def test_an_older_claude_with_reasoning_gets_the_schema_as_text() -> None:
    """Older Claude models do not support a forced call together with reasoning."""
    wire = next(wire for wire in WIRES if wire.name == "anthropic")
    reply = wire.whole(f"```json\n{PARIS}\n```")
    async with asking(wire, "claude-sonnet-4-0", reply) as (engine, named, transport):
        result = await engine.generate_object(named, "Where?", schema=Place, reasoning_effort="high")
    body = sent(transport)
    assert "tools" not in body
    assert msgspec.json.encode(json_schema(Place)).decode() in str(body["system"])
    assert result.output.country == "France"


# -- Every end on every wire: whether its tools run, the class of its error, and the recorded usage.


BY_NAME = {wire.name: wire for wire in WIRES}


class Case(msgspec.Struct, frozen=True):
    """A reply of a wire with some calls that ends with a word."""

    wire: str
    word: str
    streamed: bool
    calls: int

    @property
    def means(self) -> StopReason | type[AdapterError]:
        return ending(self.wire, self.word, streamed=self.streamed, calls=self.calls)

    def reply(self) -> FakeReply:
        wire = BY_NAME[self.wire]
        make = wire.streamed if self.streamed else wire.whole
        return make("Well.", self.calls, self.word)


def cases() -> Iterator[Case]:
    for name, words in ENDINGS.items():
        numbers = (0, 1, 2) if BY_NAME[name].calls_tools else (0,)
        for word, streamed, calls in itertools.product(words, (False, True), numbers):
            yield Case(name, word, streamed, calls)


def described(case: object) -> str:
    if not isinstance(case, Case):
        return str(case)
    mode = "streamed" if case.streamed else "whole"
    return f"{case.wire}-{case.word or 'nothing'}-{mode}-{case.calls}"


def is_tried_quickly(case: Case) -> bool:
    """A quick run ends a stream with a call for each word. The second word also ends a plain reply, the first
    every kind.
    """
    place = [*ENDINGS[case.wire]].index(case.word)
    usual = case.calls == (case.streamed and BY_NAME[case.wire].calls_tools)
    return place == 0 or (usual and (case.streamed or place == 1))


def in_depth(cases: Iterable[Case]) -> list[Any]:
    deep = pytest.mark.deep("the word after another reply")
    return [pytest.param(case, marks=() if is_tried_quickly(case) else deep) for case in cases]


def of_each_meaning(cases: Iterable[Case]) -> list[Any]:
    """The cases. A quick run has the first word of each meaning."""
    seen: set[object] = set()
    deep = pytest.mark.deep("another word of the same meaning")
    found = []
    for case in cases:
        what = (case.wire, case.streamed, case.means)
        found.append(pytest.param(case, marks=deep if what in seen or not is_tried_quickly(case) else ()))
        if is_tried_quickly(case):
            seen.add(what)
    return found


ALL = [*cases()]
each_case = pytest.mark.parametrize("case", in_depth(ALL), ids=described)


def tools(ran: list[str]) -> list[Tool]:
    """The tools that the wires call. They record their names."""

    def noting(name: str) -> Tool:
        async def run(**given: object) -> str:
            ran.append(name)
            return "done"

        return Tool(next(tool for tool in TOOLS if tool.name == name), run)

    return [noting(name) for name, _ in CALLS]


async def said(session: Session, streamed: bool) -> None:
    if streamed:
        async with session.stream("Go on") as turn:
            await turn.message()
    else:
        await session.send("Go on")


@each_case
async def test_tools_run_only_for_replies_that_ended_normally(case: Case) -> None:
    """The table also has the error class for each end. The usage of a normal end is recorded as reported, and that
    of a failure as partial.
    """
    wire, ran = BY_NAME[case.wire], list[str]()
    after = wire.streamed("Fine.") if case.streamed else wire.whole("Fine.")
    async with asking(wire, "some-model", case.reply(), after, prices=price_of(wire)) as (engine, named, _):
        events = engine.bus.subscribe("llm.>", policy=Lossless(), name="test")
        session = engine.session(named, tools=tools(ran) if case.calls else ())
        if isinstance(case.means, type):
            with pytest.raises(case.means) as caught:
                await said(session, case.streamed)
            assert type(caught.value) is case.means
            reply = caught.value.content
            usage = check_bill(caught.value, ends_in(events)[-1])
            assert (usage.total_input_tokens, usage.source) == (12, UsageSource.PARTIAL)
            assert usage.output_tokens >= 7
        else:
            await said(session, case.streamed)
            metadata = session.messages[1].metadata
            assert metadata is not None
            assert metadata.stop_reason is case.means
            reply = session.messages[1].content
            end = ends_in(events)[0]
            assert isinstance(end, LlmCallCompleted)
            assert end.usage.source is UsageSource.REPORTED
            assert (end.usage.total_input_tokens, end.usage.output_tokens) == (12, 7)
            assert end.cost.nano_usd == nano_usd(end.usage)
        assert session.pending_calls == ()
    well = not isinstance(case.means, type) and ended_well(case.means)
    assert sorted(ran) == sorted(name for name, _ in CALLS[: case.calls] if well)
    calls = [block for block in reply if isinstance(block, ToolUseBlock)]
    assert [call.incomplete for call in calls] == [not well] * len(calls)


CUTTING = [
    case for case in ALL if case.wire in ("anthropic", "openai_compatible") and case.streamed and case.calls
]
"""Wires whose arguments arrive in pieces and are not repeated."""


@pytest.mark.parametrize("case", of_each_meaning(CUTTING), ids=described)
async def test_an_incomplete_call_never_runs(case: Case) -> None:
    """Half of its arguments is missing. For a complete call before it, the end of the reply decides."""
    wire, ran = BY_NAME[case.wire], list[str]()
    _, rest = halves(arguments(case.calls - 1))
    missing = msgspec.json.encode(rest).strip(b'"')
    chunks = [chunk for chunk in wire.chunks("", case.calls, case.word) if missing not in chunk]
    assert len(chunks) == len(wire.chunks("", case.calls, case.word)) - 1
    replies = (wire.stream_of(*chunks), wire.streamed("Fine."))
    async with asking(wire, "some-model", *replies) as (engine, named, _):
        session = engine.session(named, tools=tools(ran))
        with contextlib.suppress(AdapterError):
            await said(session, streamed=True)
    well = not isinstance(case.means, type) and ended_well(case.means)
    assert ran == [name for name, _ in CALLS[: case.calls - 1] if well]


# -- the recorded usage and cost

LONG = "word " * 400
"""2,000 characters, which are between 300 and 700 tokens in each estimate."""
REPORTED_EARLY = {"anthropic": 12, "gemini": 10}
"""Wires that report the input before the end of the reply, with the reported number."""
FAILURES = [case for case in ALL if isinstance(case.means, type)]

each_wire = pytest.mark.parametrize("wire", WIRES, ids=lambda wire: wire.name)


def price_of(wire: Wire) -> PriceTable:
    """1,000 nano-USD for an input token and 100,000 for an output token."""
    return PriceTable([PriceRow(model=f"{wire.name}:*", input=1_000_000, output=100_000_000)])


def nano_usd(usage: TokenUsage) -> int:
    return usage.total_input_tokens * 1_000 + usage.output_tokens * 100_000


def ends_in(events: Subscription) -> list[LlmCallCompleted | LlmCallFailed]:
    """The published ends of attempts."""
    found = [envelope.data for envelope in events.take()]
    return [event for event in found if isinstance(event, LlmCallCompleted | LlmCallFailed)]


def check_bill(error: AdapterError, end: LlmCallCompleted | LlmCallFailed) -> TokenUsage:
    """Check that error and trace have the same usage and cost, and that the usage is not marked as reported."""
    assert isinstance(end, LlmCallFailed)
    assert error.usage is not None
    assert error.cost is not None
    assert (error.usage, error.cost) == (end.usage, end.cost)
    assert error.cost.nano_usd == nano_usd(error.usage)
    assert error.usage.source is not UsageSource.REPORTED
    return error.usage


@pytest.mark.parametrize("case", of_each_meaning(FAILURES), ids=described)
async def test_a_failure_is_retried_if_nothing_was_delivered(case: Case) -> None:
    """A plain reply is retried. A stream is not retried after its first content. The cost of the failed attempt is
    counted.
    """
    wire = BY_NAME[case.wire]
    after = wire.streamed("Fine.") if case.streamed else wire.whole("Fine.")
    prices = price_of(wire)
    async with asking(wire, "some-model", case.reply(), after, prices=prices, max_retries=1) as (engine, named, _):
        events = engine.bus.subscribe("llm.>", policy=Lossless(), name="test")
        session = engine.session(named)
        if case.streamed:
            with pytest.raises(AdapterError):
                await said(session, streamed=True)
            assert len(ends_in(events)) == 1
            return
        message = await session.send("Go on")
        assert message.text == "Fine."
        failed, end = ends_in(events)
        assert isinstance(failed, LlmCallFailed)
        assert failed.will_retry
        assert failed.usage is not None
        assert failed.usage.source is UsageSource.PARTIAL
        assert failed.cost is not None
        assert failed.cost.nano_usd == nano_usd(failed.usage)
        assert isinstance(end, LlmCallCompleted)


def cut(wire: Wire) -> list[bytes]:
    """The pieces of a stream without its end: text, and a call if the wire has calls."""
    chunks = wire.chunks(LONG, min(1, wire.most[0]), "end")
    at_the_end = 1 if wire.name in ("ollama", "tgi") else 3
    return chunks[:-at_the_end]


@pytest.mark.parametrize("ends", ["cancelled", "times out", "breaks", "just stops"])
@each_wire
async def test_a_stream_without_its_end_is_recorded_with_the_delivered_text(wire: Wire, ends: str) -> None:
    """The tools of the broken reply don't run. The meter, the error and the trace agree."""
    last: list[Step] = {"breaks": [1.0, StreamError("reset")], "just stops": [1.0]}.get(ends, [HANG])
    reply, prices, ran = wire.stream_of(*cut(wire), *last), price_of(wire), list[str]()
    async with asking(wire, "some-model", reply, prices=prices, stream_read_timeout=2.0) as (engine, named, _):
        events = engine.bus.subscribe("llm.>", policy=Lossless(), name="test")
        stream = engine.stream(named, "Go on", tools=tools(ran) if wire.calls_tools else ())
        failures: list[AdapterError] = []
        async with anyio.create_task_group() as group:
            group.start_soon(note_failure, stream, failures)
            await anyio.sleep(0.5)
            meter = stream.usage_so_far
            if ends == "cancelled":
                await stream.cancel()
        (error,) = failures
        usage = check_bill(error, ends_in(events)[-1])
        assert isinstance(error, CancelledError if ends == "cancelled" else NetworkError)
        assert meter.usage == stream.usage_so_far.usage == usage
        assert meter.cost == stream.usage_so_far.cost == error.cost
        assert meter.estimated
    assert ran == []
    assert all(block.incomplete for block in error.content if isinstance(block, ToolUseBlock))
    early = REPORTED_EARLY.get(wire.name)
    assert usage.source is (UsageSource.ESTIMATED if early is None else UsageSource.PARTIAL)
    assert usage.total_input_tokens == early or early is None
    assert usage.total_input_tokens > 0
    assert 300 < usage.output_tokens < 700


@pytest.mark.parametrize("ends", ["cancelled", "times out", "breaks"])
@each_wire
async def test_a_plain_call_without_a_reply_is_recorded_with_its_input(wire: Wire, ends: str) -> None:
    """Only the size of the request is known."""
    reply = FakeReply(1.0, StreamError("reset")) if ends == "breaks" else FakeReply(wait=HANG)
    async with asking(wire, "some-model", reply, prices=price_of(wire), timeout_seconds=5.0) as (engine, named, _):
        events = engine.bus.subscribe("llm.>", policy=Lossless(), name="test")
        session = engine.session(named)
        async with anyio.create_task_group() as group:
            if ends == "cancelled":
                group.start_soon(cancel_later, session)
            with pytest.raises(AdapterError) as caught:
                await session.send(LONG)
        usage = check_bill(caught.value, ends_in(events)[-1])
    assert usage.source is UsageSource.ESTIMATED
    assert (usage.input_tokens > 300, usage.output_tokens) == (True, 0)


async def cancel_later(session: Session) -> None:
    await anyio.sleep(1)
    await session.cancel()


async def note_failure(stream: StreamResult, failures: list[AdapterError]) -> None:
    with pytest.raises(AdapterError) as caught:
        await stream.result()
    failures.append(caught.value)


# -- An empty reply on every wire, streamed and plain: it has a warning and can be requested again.


QUIET = [case for case in ALL if not case.calls and case.means is StopReason.END_TURN]


@pytest.mark.parametrize("again", [0, 1])
@pytest.mark.parametrize("case", of_each_meaning(QUIET), ids=described)
async def test_an_empty_reply_has_a_warning_and_can_be_requested_again(case: Case, again: int) -> None:
    """The reply ends normally and has no text. Each call is recorded with its own warnings."""
    wire = BY_NAME[case.wire]
    make = wire.streamed if case.streamed else wire.whole
    replies = [make("", 0, case.word), make("Well.", 0, case.word)]
    async with asking(wire, "some-model", *replies) as (engine, named, _):
        events = engine.bus.subscribe("llm.>", policy=Lossless(), name="test")
        session = engine.session(named)
        if case.streamed:
            async with session.stream("Hi", retry_empty=again) as turn:
                reply = await turn.message()
        else:
            reply = await session.send("Hi", retry_empty=again)
        ends = [each for each in ends_in(events) if isinstance(each, LlmCallCompleted)]
    assert reply.text == ("Well." if again else "")
    assert ["empty_reply" in end.warnings for end in ends] == [True, False][: 1 + again]
