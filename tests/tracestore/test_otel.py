"""Events as OpenTelemetry spans and metrics, read with OpenTelemetry's own SDK."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from callboard.adapters import AdapterConfig, Role, ServerError
from callboard.adapters.requests.content import repair_json
from callboard.bus import (
    Bus,
    ConfigurationError,
    Envelope,
    Event,
    Lossless,
    Message,
    SessionMessageAppended,
    SessionTurnCompleted,
    SessionTurnStarted,
    TextBlock,
    ToolFinished,
    ToolStarted,
    ToolUseBlock,
    UsageSource,
)
from callboard.bus.events.calls import current_trace
from callboard.bus.events.codec import decode_envelope, encode_envelope
from callboard.bus.values.content import AudioBlock, ImageBlock
from callboard.bus.values.messages import MessageMetadata
from callboard.bus.values.usage import Cost, CostSource, StopReason, TokenUsage
from callboard.engine import AdapterEntry, Engine, ModelEntry, ModelRegistry, tool
from callboard.tracestore import OtelExporter, StoredEvents, TraceStore

from ..support.engines import running
from ..support.present import present
from ..support.provider_server import provider_server
from ..support.scripted import ADD, CALLS_ADD, Say
from .trace_making import Maker as UntimedMaker

sdk = pytest.importorskip("opentelemetry.sdk.trace")


class Maker(UntimedMaker):
    """A maker whose monotonic clock advances with the wall clock."""

    def __call__(self, event: Event, **ids: object) -> Envelope:  # type: ignore[override]
        envelope = super().__call__(event, **ids)  # type: ignore[arg-type]
        return msgspec.structs.replace(envelope, mono_ns=envelope.ts_us * 1000 - 7)


@pytest.fixture
def make() -> Maker:
    return Maker()


class Collector:
    """An exporter and its output."""

    def __init__(self, **options: object) -> None:
        self._spans = InMemorySpanExporter()
        tracers = TracerProvider()
        tracers.add_span_processor(SimpleSpanProcessor(self._spans))
        self._reader = InMemoryMetricReader()
        meters = MeterProvider(metric_readers=[self._reader])
        self.exporter = OtelExporter(tracer_provider=tracers, meter_provider=meters, **options)  # type: ignore[arg-type]

    def handle(self, *envelopes: Envelope) -> Collector:
        for envelope in envelopes:
            self.exporter.handle(envelope)
        return self

    @property
    def spans(self) -> Sequence[ReadableSpan]:
        return self._spans.get_finished_spans()

    def span(self, name: str) -> ReadableSpan:
        (found,) = [span for span in self.spans if span.name == name]
        return found

    def points(self, name: str) -> list[tuple[dict[str, object], int, float]]:
        """Attributes, count and sum of a histogram's points."""
        data = self._reader.get_metrics_data()
        if data is None:
            return []
        return [
            (dict(point.attributes), point.count, point.sum)
            for resource in data.resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
            if metric.name == name
            for point in metric.data.data_points
        ]


USAGE = TokenUsage(
    # input, output, cached input, written to the cache, and the part written for an hour
    *(10, 7, 100, 1000, 500),
    reasoning_tokens=3,
)

IDS = {"session_id": "ses_1", "turn_id": "trn_1"}


def turn_began(make: Maker) -> Envelope:
    return make(SessionTurnStarted(model="openai:gpt-5"), **IDS)


def turn_ended(make: Maker, status: str = "completed", error: str | None = None) -> Envelope:
    return make(SessionTurnCompleted(status=status, calls=1, cost_nano_usd=5, error=error), **IDS)


def test_a_call_is_a_client_span_with_names_of_the_conventions(make: Maker) -> None:
    """Input includes cached tokens. Amounts are integers. No attribute has content."""
    cost = Cost(123_456, CostSource.COMPUTED, "0123456789ab")
    ids = {"session_id": "ses_1", "tags": {"team": "a"}}
    started = make.started(key="acme", **ids)
    ended = make.completed(usage=USAGE, cost=cost, served_model="openai:gpt-5-2025-08-06", **ids)
    span = Collector().handle(started, ended).span("chat gpt-5")
    assert (span.kind, span.status.status_code) == (SpanKind.CLIENT, StatusCode.UNSET)
    assert dict(span.attributes or {}) == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "openai",
        "gen_ai.request.model": "gpt-5",
        "gen_ai.request.stream": True,
        "gen_ai.conversation.id": "ses_1",
        "gen_ai.response.model": "gpt-5-2025-08-06",
        "gen_ai.response.finish_reasons": ("stop",),
        "gen_ai.response.time_to_first_chunk": 0.2,
        "gen_ai.usage.input_tokens": 1110,
        "gen_ai.usage.output_tokens": 7,
        "gen_ai.usage.cache_read.input_tokens": 100,
        "gen_ai.usage.cache_write.input_tokens": 1000,
        "gen_ai.usage.reasoning.output_tokens": 3,
        "callboard.run.id": "run_test",
        "callboard.request.id": "req_1",
        "callboard.attempt": 1,
        "callboard.attempt.reason": "first",
        "callboard.key": "acme",
        "callboard.usage.source": "reported",
        "callboard.cost.nano_usd": 123_456,
        "callboard.cost.source": "computed",
        "callboard.cost.pricing_version": "0123456789ab",
        "callboard.tag.team": "a",
    }
    assert span.start_time == started.ts_us * 1000
    assert span.end_time == started.ts_us * 1000 + ended.mono_ns - started.mono_ns


def test_providers_have_the_names_of_the_conventions() -> None:
    """A host can set names for its providers. Unknown names are not changed."""
    for model, provider, name in (
        ("gemini:g-3", "gcp.gemini", "generate_content g-3"),
        ("mistral:m", "mistral_ai", "chat m"),
        ("anthropic:c", "anthropic", "chat c"),
        ("mine:a:b", "azure.ai.openai", "chat a:b"),
        ("local-chat:m", "local-chat", "chat m"),
    ):
        make, collector = Maker(), Collector(provider_names={"mine": "azure.ai.openai"})
        collector.handle(make.started(model=model), make.completed(model=model))
        assert present(collector.span(name).attributes)["gen_ai.provider.name"] == provider


def test_embeddings_are_a_separate_operation(make: Maker) -> None:
    usage = TokenUsage(input_tokens=12)
    collector = Collector().handle(
        make.started(model="openai:text-embedding-3-small", operation="embeddings"),
        make.completed(model="openai:text-embedding-3-small", usage=usage),
    )
    span = collector.span("embeddings text-embedding-3-small")
    assert span.attributes["gen_ai.operation.name"] == "embeddings"
    assert span.attributes["gen_ai.usage.input_tokens"] == 12
    assert "gen_ai.response.finish_reasons" not in span.attributes
    kinds = [point[0]["gen_ai.token.type"] for point in collector.points("gen_ai.client.token.usage")]
    assert kinds == ["input"]


def test_a_turn_is_the_parent_of_its_attempts_and_tools(make: Maker) -> None:
    """Each turn is one trace. The session is the conversation of all its turns."""
    collector = Collector().handle(
        turn_began(make),
        make.started("r1", **IDS),
        make.completed("r1", **IDS),
        make(ToolStarted(tool_use_id="tu_1", tool_name="look"), **IDS),
        make(ToolFinished(tool_use_id="tu_1", tool_name="look", is_error=True, latency_ms=5), **IDS),
        make.started("r2", caused_by="r1", **IDS),
        make.completed("r2", caused_by="r1", **IDS),
        turn_ended(make),
        make.started("alone"),
        make.completed("alone"),
    )
    root = collector.span("invoke_agent")
    assert (root.kind, root.parent) == (SpanKind.INTERNAL, None)
    tool = collector.span("execute_tool look")
    first, second, alone = [span for span in collector.spans if span.name == "chat gpt-5"]
    for child in (first, tool, second):
        assert present(child.parent).span_id == root.get_span_context().span_id
        assert (child.attributes or {})["gen_ai.conversation.id"] == "ses_1"
        assert root.start_time <= child.start_time <= child.end_time <= root.end_time
    assert alone.parent is None
    assert alone.get_span_context().trace_id != root.get_span_context().trace_id
    assert (tool.attributes or {})["gen_ai.tool.call.id"] == "tu_1"
    assert tool.status.status_code is StatusCode.ERROR
    (link,) = second.links
    assert link.context.span_id == first.get_span_context().span_id
    assert dict(link.attributes or {}) == {"callboard.link": "step"}


def test_retries_and_fallbacks_link_to_the_failed_attempt(make: Maker) -> None:
    """The link's target is the span of the failed attempt. The link of a fallback has a mark."""
    collector = Collector().handle(
        make.started("r1"),
        make.failed("r1", will_retry=True),
        make.started("r1", attempt=2),
        make.failed("r1", attempt=2),
        make.started("r2", model="anthropic:c", caused_by="r1"),
        make.completed("r2", model="anthropic:c", caused_by="r1"),
    )
    first, second, third = collector.spans
    assert [len(span.links) for span in collector.spans] == [0, 1, 1]
    assert second.links[0].context == first.get_span_context()
    assert third.links[0].context == second.get_span_context()
    assert dict(third.links[0].attributes or {}) == {"callboard.link": "fallback"}
    assert (first.attributes or {})["callboard.will_retry"] is True


def test_a_failure_is_an_error_by_its_type_and_its_text_is_content(make: Maker) -> None:
    """A provider's error message may quote the request."""
    events = [make.started(), make.failed()]
    for content, text in ((False, None), (True, "the provider failed")):
        span = Collector(content=content).handle(*events).span("chat gpt-5")
        assert (span.attributes or {})["error.type"] == "ServerError"
        assert (span.status.status_code, span.status.description) == (StatusCode.ERROR, text)
    began, failed = turn_began(make), turn_ended(make, "failed", "RateLimitError: slow down")
    root = Collector().handle(began, failed).span("invoke_agent")
    assert (root.attributes or {})["error.type"] == "RateLimitError"
    assert (root.status.status_code, root.status.description) == (StatusCode.ERROR, None)


def test_cancelling_is_no_error(make: Maker) -> None:
    usage = TokenUsage(input_tokens=5, output_tokens=2, source=UsageSource.PARTIAL)
    collector = Collector().handle(make.started(), make.failed(error_class="cancelled", usage=usage))
    span = collector.span("chat gpt-5")
    assert span.status.status_code is StatusCode.UNSET
    assert (span.attributes or {})["callboard.usage.source"] == "partial"
    assert (span.attributes or {})["callboard.error.class"] == "cancelled"


def test_an_unpriced_call_has_no_cost_attribute(make: Maker) -> None:
    """Unknown is not zero. An invalid trace parent in a stored event is ignored."""
    odd = make(msgspec.structs.replace(make.started().data, trace_parent="00-zz"), request_id="req_1")
    unpriced = Cost(None, CostSource.UNPRICED, reason="no price")
    span = Collector().handle(odd, make.completed(cost=unpriced)).span("chat gpt-5")
    assert (span.attributes or {})["callboard.cost.source"] == "unpriced"
    assert "callboard.cost.nano_usd" not in (span.attributes or {})
    assert span.parent is None


def test_an_end_without_its_start_is_a_span_of_its_latency(make: Maker) -> None:
    """A subscription may have dropped the start."""
    ended = make.completed()
    span = Collector().handle(ended).span("chat gpt-5")
    assert (span.start_time, span.end_time) == (ended.ts_us * 1000 - 900_000_000, ended.ts_us * 1000)
    started = make.started("r2")
    assert Collector().handle(started, make.completed("r2")).spans[0].start_time == started.ts_us * 1000


async def test_a_start_without_an_end_becomes_a_lost_span(make: Maker) -> None:
    collector = Collector()
    async with Bus.replay([make.started(), make.started(), make.started("r2")]) as bus:
        async with bus.subscribe(*OtelExporter.topics, policy=Lossless()) as events:
            await collector.exporter.run(events)
    assert [(span.attributes or {})["error.type"] for span in collector.spans] == ["lost"] * 3
    collector.exporter.close()
    assert len(collector.spans) == 3


def test_metrics_are_the_histograms_of_the_conventions(make: Maker) -> None:
    collector = Collector().handle(
        make.started("r1"),
        make.completed("r1", usage=USAGE),
        make.started("r2"),
        make.failed("r2"),
        make.started("r3"),
        make.completed("r3", usage=TokenUsage(input_tokens=9, output_tokens=9, source=UsageSource.ESTIMATED)),
    )
    common = {"gen_ai.operation.name": "chat", "gen_ai.provider.name": "openai", "gen_ai.request.model": "gpt-5"}
    served = {**common, "gen_ai.response.model": "gpt-5"}
    assert collector.points("gen_ai.client.token.usage") == [
        ({**served, "gen_ai.token.type": "input"}, 1, 1110),
        ({**served, "gen_ai.token.type": "output"}, 1, 7),
    ]
    durations = collector.points("gen_ai.client.operation.duration")
    assert durations[0] == (served, 2, pytest.approx(1.8))
    assert durations[1] == ({**common, "error.type": "ServerError"}, 1, pytest.approx(0.3))
    assert collector.points("gen_ai.client.operation.time_to_first_chunk") == [(served, 2, pytest.approx(0.4))]
    without = Collector(metrics=False).handle(make.started("r4"), make.completed("r4"))
    assert without.points("gen_ai.client.operation.duration") == []
    assert len(without.spans) == 1


def test_content_is_exported_only_if_enabled(make: Maker) -> None:
    """With content, a turn's span has its input and output in the form of the conventions."""
    said = Message.assistant([TextBlock("a secret answer"), ToolUseBlock("tu_1", "look", {"at": "it"})])
    asked, answered = Message.user("a secret question"), Message.tool_result("tu_1", "a secret fact")
    appended = [SessionMessageAppended(position=at, message=m) for at, m in enumerate([asked, said, answered])]
    events = [turn_began(make), *(make(each, **IDS) for each in appended), turn_ended(make)]
    silent = Collector().handle(*events)
    assert "secret" not in "".join(span.to_json() for span in silent.spans)
    span = Collector(content=True).handle(*events).span("invoke_agent")
    assert content_of(span, "input.messages") == [
        {"role": "user", "parts": [{"type": "text", "content": "a secret question"}]},
        {"role": "tool", "parts": [{"type": "tool_call_response", "id": "tu_1", "response": "a secret fact"}]},
    ]
    (answer,) = content_of(span, "output.messages")
    assert answer["finish_reason"] == "tool_call"
    assert answer["parts"] == [
        {"type": "text", "content": "a secret answer"},
        {"type": "tool_call", "id": "tu_1", "name": "look", "arguments": {"at": "it"}},
    ]


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("in_session", [False, True], ids=["plain", "session"])
async def test_the_span_of_a_call_has_the_whole_request_and_its_reply(in_session: bool, streamed: bool) -> None:
    """With content, the span of each step has the system text, all messages, the tools and the reply."""
    collector = Collector(content=True)
    async with running(CALLS_ADD, Say("It is 3.")) as (engine, events), anyio.create_task_group() as group:
        group.start_soon(collector.exporter.run, events)
        if in_session:
            session = engine.session("s:m", system_prompt="Be brief.", tools=[ADD])
            await (session.stream("1 + 2?").message() if streamed else session.send("1 + 2?"))
        elif streamed:
            await engine.stream("s:m", "1 + 2?", system_prompt="Be brief.", tools=[ADD]).result()
        else:
            await engine.generate("s:m", "1 + 2?", system_prompt="Be brief.", tools=[ADD])
        events.close()
    first, second = [span for span in collector.spans if span.name == "chat m"]
    assert [content_of(first, "input.messages")[0], content_of(first, "system_instructions")] == [
        {"role": "user", "parts": [{"type": "text", "content": "1 + 2?"}]},
        [{"type": "text", "content": "Be brief."}],
    ]
    (tool,) = content_of(first, "tool.definitions")
    assert (tool["type"], tool["name"], tool["description"]) == ("function", "add", "Adds two numbers")
    (reply,) = content_of(first, "output.messages")
    assert (reply["role"], reply["finish_reason"]) == ("assistant", "tool_call")
    assert [part["type"] for part in reply["parts"]] == ["text", "tool_call"]
    assert [each["role"] for each in content_of(second, "input.messages")] == ["user", "assistant", "tool"]
    assert content_of(second, "output.messages") == [
        {"role": "assistant", "parts": [{"type": "text", "content": "It is 3."}], "finish_reason": "stop"}
    ]
    turns = [span for span in collector.spans if span.name == "invoke_agent"]
    assert all(content_of(turn, "system_instructions")[0]["content"] == "Be brief." for turn in turns)


def content_of(span: ReadableSpan, name: str) -> list[dict[str, Any]]:
    """Return one of the JSON attributes of a span."""
    found: list[dict[str, Any]] = msgspec.json.decode(str((span.attributes or {})[f"gen_ai.{name}"]))
    return found


async def test_a_call_that_fails_shows_its_request_and_the_part_of_the_reply_that_arrived() -> None:
    collector = Collector(content=True)
    fails = Say("Half of", fails=ServerError("no", retryable=False))
    async with running(fails) as (engine, events), anyio.create_task_group() as group:
        group.start_soon(collector.exporter.run, events)
        with pytest.raises(ServerError):
            await engine.session("s:m").stream("Go on").message()
        events.close()
    span = collector.span("chat m")
    assert content_of(span, "input.messages")[0]["parts"][0]["content"] == "Go on"
    (reply,) = content_of(span, "output.messages")
    assert (reply["parts"], reply["finish_reason"]) == ([{"type": "text", "content": "Half of"}], "error")


async def test_the_content_of_a_call_is_not_written_to_events() -> None:
    """Content is in no span without content, in no event's JSON, and in no decoded event."""
    silent = Collector()
    async with running(Say("a secret answer")) as (engine, events):
        await engine.generate("s:m", "a secret question", system_prompt="a secret rule")
        events.close()
        seen = [envelope async for envelope in events]
    silent.handle(*seen)
    assert "secret" not in "".join(span.to_json() for span in silent.spans)
    ends = [each for each in seen if each.topic.startswith("llm.")]
    assert any(getattr(each.data, "content", None) for each in ends)
    assert "secret" not in "".join(encode_envelope(each).decode() for each in ends)
    again = [decode_envelope(encode_envelope(each)).data for each in ends]
    assert [getattr(each, "content", None) or getattr(each, "reply", None) for each in again] == [None] * len(ends)


def shape(collector: Collector) -> list[object]:
    """The spans without their ids, which are random."""
    spans = sorted(collector.spans, key=lambda span: (span.start_time, span.end_time, span.name))
    return [
        (
            each.name,
            each.kind,
            each.start_time,
            each.end_time,
            dict(each.attributes or {}),
            each.status.status_code,
        )
        for each in spans
    ]


async def test_a_live_engine_and_the_replay_of_its_trace_give_the_same_spans(tmp_path: Path) -> None:
    live, again = Collector(), Collector(metrics=False)
    path = tmp_path / "trace.db"
    replies = {"one": [Say("hello"), Say(fails=ServerError("no", retryable=False))]}
    async with running(store=path, **replies) as (engine, events), anyio.create_task_group() as group:
        group.start_soon(live.exporter.run, events)
        session = engine.session("one:m")
        await session.send("hi")
        with pytest.raises(ServerError):
            await session.send("hi")
        await engine.flush()
        events.close()
    async with TraceStore.open_readonly(path) as store, Bus.replay(StoredEvents(store)) as bus:
        async with bus.subscribe(">", policy=Lossless()) as stored:
            await again.exporter.run(stored)
    assert [span.name for span in live.spans] == ["chat m", "invoke_agent"] * 2
    assert shape(live) == shape(again)


def test_without_the_package_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    with pytest.raises(ConfigurationError, match=r"callboard\[otel\]"):
        OtelExporter()


# Spans in the trace of the host, and the settings of a call.

trace = pytest.importorskip("opentelemetry.trace")


@asynccontextmanager
async def watched(*replies: Say) -> AsyncIterator[tuple[Engine, Collector]]:
    """An engine, and the output of an exporter whose task has no span of the host."""
    collector = Collector()
    async with anyio.create_task_group() as group, running(*replies) as (engine, events):
        group.start_soon(collector.exporter.run, events)
        yield engine, collector
        await anyio.wait_all_tasks_blocked()
        events.close()


async def sends(engine: Engine) -> None:
    await engine.session("s:m").send("hi")


async def streams(engine: Engine) -> None:
    async with engine.session("s:m").stream("hi") as turn:
        async for _ in turn:
            pass


async def generates(engine: Engine) -> None:
    await engine.generate("s:m", "hi")


async def embeds(engine: Engine) -> None:
    await engine.embed("hi", model="s:m")


WAYS = (sends, streams, generates, embeds)


@pytest.mark.parametrize("way", WAYS)
async def test_calls_within_a_span_of_the_host_are_in_its_trace(way: Callable[[Engine], Awaitable[None]]) -> None:
    tracer = sdk.TracerProvider().get_tracer("host")
    async with watched(Say("hello")) as (engine, collector):
        with tracer.start_as_current_span("request") as host:
            await way(engine)
    above = host.get_span_context()
    assert {span.context.trace_id for span in collector.spans} == {above.trace_id}
    (root,) = [span for span in collector.spans if span.name.startswith("invoke") or way is embeds]
    assert present(root.parent).span_id == above.span_id


async def test_concurrent_requests_have_separate_traces() -> None:
    tracer = sdk.TracerProvider().get_tracer("host")
    above: set[int] = set()

    async def request(engine: Engine) -> None:
        with tracer.start_as_current_span("request") as host:
            above.add(host.get_span_context().span_id)
            await sends(engine)

    async with watched(Say("a"), Say("b")) as (engine, collector), anyio.create_task_group() as group:
        group.start_soon(request, engine)
        group.start_soon(request, engine)
    turns = [span for span in collector.spans if span.name == "invoke_agent"]
    assert {span.parent.span_id for span in turns if span.parent is not None} == above


async def test_without_a_span_of_the_host_a_turn_is_a_root(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the host has not imported OpenTelemetry, there is no trace, and Callboard does not import it."""
    async with watched(Say("hello")) as (engine, collector):
        await sends(engine)
    assert collector.span("invoke_agent").parent is None
    monkeypatch.delitem(sys.modules, "opentelemetry.trace")
    assert current_trace() is None
    assert "opentelemetry.trace" not in sys.modules


CHAT_REPLY = msgspec.json.encode(
    {
        "id": "c_1",
        "object": "chat.completion",
        "model": "served-model",
        "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "{}"}}],
        "usage": {"prompt_tokens": 3, "completion_tokens": 1, "total_tokens": 4},
    }
)


async def test_the_span_of_a_call_has_its_server_and_settings() -> None:
    collector = Collector()
    with provider_server(body=CHAT_REPLY) as server:
        config = AdapterConfig(api_key="k", base_url=server.url)
        entry = AdapterEntry(name="near", type="openai_compatible", config=config)
        models = ModelRegistry({"near": entry}, {"near:m": ModelEntry(id="near:m", adapter="near", wire_name="m")})
        async with Engine(models=models, trace=False) as engine:
            with engine.bus.subscribe(">", policy=Lossless(), name="test") as events:
                sampling = {"temperature": 0.5, "top_p": 0.9, "seed": 7}
                await engine.generate("near:m", "hi", max_output_tokens=99, stop_sequences=("END",), **sampling)
                collector.handle(*events.take())
    attributes = collector.span("chat m").attributes or {}
    port = int(server.url.rpartition(":")[2])
    asked = {key: value for key, value in attributes.items() if key.startswith(("gen_ai.request.", "server."))}
    assert asked == {
        "gen_ai.request.model": "m",
        "gen_ai.request.max_tokens": 99,
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.top_p": 0.9,
        "gen_ai.request.seed": 7,
        "gen_ai.request.stop_sequences": ("END",),
        "server.address": "127.0.0.1",
        "server.port": port,
    }
    assert attributes["gen_ai.response.model"] == "served-model"


def test_every_message_of_a_model_has_its_finish_reason() -> None:
    """The finish reason has the conventions' word. Reasons without such a word keep Callboard's word."""
    words = {StopReason.END_TURN: "stop", StopReason.STOP_SEQUENCE: "stop", StopReason.MAX_TOKENS: "length"}
    words |= {StopReason.TOOL_USE: "tool_call", StopReason.CONTENT_FILTER: "content_filter"}
    words |= {StopReason.REFUSAL: "content_filter", StopReason.ERROR: "error", StopReason.PAUSE_TURN: "pause_turn"}
    for reason, word in words.items():
        make, free = Maker(), Cost(0, CostSource.COMPUTED)
        metadata = MessageMetadata(provider="p", model="p:m", usage=TokenUsage(), cost=free, stop_reason=reason)
        said = Message(Role.ASSISTANT, (TextBlock("half \ud800"),), metadata=metadata)
        appended = make(SessionMessageAppended(position=0, message=said), **IDS)
        collector = Collector(content=True).handle(turn_began(make), appended, turn_ended(make))
        told = str((collector.span("invoke_agent").attributes or {})["gen_ai.output.messages"])
        (message,) = msgspec.json.decode(repair_json(told.encode()))
        assert message["finish_reason"] == word
        assert message["parts"] == [{"type": "text", "content": "half \ufffd"}]


def test_the_span_of_a_tool_has_its_arguments_and_result(make: Maker) -> None:
    """The span ends with the tool, although the result comes later. A tool without a result also has a span."""
    calls = [ToolUseBlock("tu_1", "look", {"at": "it"}), ToolUseBlock("tu_2", "wait", {})]
    events = [
        turn_began(make),
        make(SessionMessageAppended(position=1, message=Message.assistant(calls)), **IDS),
        make(ToolStarted(tool_use_id="tu_1", tool_name="look"), **IDS),
        make(ToolStarted(tool_use_id="tu_2", tool_name="wait"), **IDS),
        ended := make(ToolFinished(tool_use_id="tu_1", tool_name="look", is_error=False, latency_ms=5), **IDS),
        make(ToolFinished(tool_use_id="tu_2", tool_name="wait", is_error=True, latency_ms=5), **IDS),
        make(SessionMessageAppended(position=2, message=Message.tool_result("tu_1", "a fact")), **IDS),
        turn_ended(make),
    ]
    collector = Collector(content=True).handle(*events)
    look, wait = (dict(collector.span(f"execute_tool {name}").attributes or {}) for name in ("look", "wait"))
    assert look["gen_ai.tool.call.arguments"] == '{"at":"it"}'
    assert look["gen_ai.tool.call.result"] == "a fact"
    assert collector.span("execute_tool look").end_time == ended.ts_us * 1000
    assert wait["gen_ai.tool.call.arguments"] == "{}"
    assert wait["error.type"] == "_OTHER"
    silent = Collector().handle(*events).span("execute_tool look").attributes or {}
    assert not [key for key in silent if key.startswith("gen_ai.tool.call.") and not key.endswith(".id")]


def test_media_are_described_by_address_or_size(make: Maker) -> None:
    content = (ImageBlock(url="https://x.test/a.png"), AudioBlock(data=b"12345", media_type="audio/wav"))
    appended = make(SessionMessageAppended(position=0, message=Message.user(content)), **IDS)
    collector = Collector(content=True).handle(turn_began(make), appended, turn_ended(make))
    (message,) = content_of(collector.span("invoke_agent"), "input.messages")
    assert message["parts"] == [
        {"type": "uri", "modality": "image", "mime_type": None, "uri": "https://x.test/a.png"},
        {"type": "audio", "modality": "audio", "mime_type": "audio/wav", "size": 5},
    ]


async def test_the_turn_that_a_tool_starts_is_below_the_span_of_the_tool() -> None:
    @tool
    async def delegate() -> str:
        """Delegate."""
        return (await engine.generate("s:m", "hi")).text

    async with watched(Say(calls=[("delegate", {})]), Say("child"), Say("done")) as (engine, collector):
        await engine.session("s:m", tools=[delegate]).send("hi")
    ran = collector.span("execute_tool delegate")
    child, root = sorted(
        (span for span in collector.spans if span.name == "invoke_agent"), key=lambda span: -(span.start_time or 0)
    )
    assert present(child.parent).span_id == ran.context.span_id
    assert present(ran.parent).span_id == root.context.span_id
    assert len({span.context.trace_id for span in collector.spans}) == 1
