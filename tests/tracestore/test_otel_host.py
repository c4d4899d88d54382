"""Spans in the trace of the host, and what a call was sent with."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import anyio
import msgspec
import pytest

from callboard.adapters import AdapterConfig, Message, Role, TextBlock, ToolUseBlock
from callboard.adapters.requests.text import mend_json
from callboard.bus import Lossless, SessionMessageAppended, ToolFinished, ToolStarted
from callboard.bus.log import current_trace
from callboard.bus.values.content import AudioBlock, ImageBlock
from callboard.bus.values.messages import MessageMetadata
from callboard.bus.values.usage import Cost, CostSource, StopReason, TokenUsage
from callboard.engine import AdapterEntry, Engine, ModelEntry, ModelRegistry
from tests.support.engines import running
from tests.support.present import present
from tests.support.provider_server import provider_server
from tests.support.scripted import Say

from .test_otel import IDS, Collector, Maker, turn_began, turn_ended

trace = pytest.importorskip("opentelemetry.trace")
sdk = pytest.importorskip("opentelemetry.sdk.trace")

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def watched(*replies: Say) -> AsyncIterator[tuple[Engine, Collector]]:
    """An engine, and what an exporter makes of its events, whose task knows no span of the host's."""
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
async def test_what_is_done_within_a_span_of_the_host_is_in_its_trace(
    way: Callable[[Engine], Awaitable[None]],
) -> None:
    """A turn, or a call that belongs to none, is a child of the span that was current when it was asked for."""
    tracer = sdk.TracerProvider().get_tracer("host")
    async with watched(Say("hello")) as (engine, collector):
        with tracer.start_as_current_span("request") as host:
            await way(engine)
    above = host.get_span_context()
    assert {span.context.trace_id for span in collector.spans} == {above.trace_id}
    (root,) = [span for span in collector.spans if span.name.startswith("invoke") or way is embeds]
    assert present(root.parent).span_id == above.span_id


async def test_two_requests_at_once_keep_their_traces_apart() -> None:
    """Though one exporter sees the events of both, each in the midst of the other's."""
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


async def test_without_a_span_of_the_host_a_turn_is_a_root() -> None:
    """As it is where the host has no OpenTelemetry at all."""
    async with watched(Say("hello")) as (engine, collector):
        await sends(engine)
    assert collector.span("invoke_agent").parent is None


def test_a_host_without_opentelemetry_has_no_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    """And it isn't imported for it."""
    monkeypatch.delitem(sys.modules, "opentelemetry.trace")
    assert current_trace() is None
    assert "opentelemetry.trace" not in sys.modules


def test_what_is_no_trace_parent_is_passed_over() -> None:
    """A stored event may say anything."""
    make = Maker()
    event = msgspec.structs.replace(make.started().data, trace_parent="00-zz")
    collector = Collector().handle(make(event, request_id="r"), make.completed("r"))
    assert collector.spans[0].parent is None


CHAT_REPLY = msgspec.json.encode(
    {
        "id": "c_1",
        "object": "chat.completion",
        "model": "served-model",
        "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "{}"}}],
        "usage": {"prompt_tokens": 3, "completion_tokens": 1, "total_tokens": 4},
    }
)


async def test_a_call_says_where_it_went_and_with_which_settings() -> None:
    """Over the wire; and the model that served it has no prefix of ours."""
    collector = Collector()
    with provider_server(body=CHAT_REPLY) as server:
        entry = AdapterEntry(
            name="near", type="openai_compatible", config=AdapterConfig(api_key="k", base_url=server.url)
        )
        models = ModelRegistry({"near": entry}, {"near:m": ModelEntry(id="near:m", adapter="near", wire_name="m")})
        async with Engine(models=models, trace=False) as engine:
            with engine.bus.subscribe(">", policy=Lossless(), name="test") as events:
                await engine.generate(
                    "near:m",
                    "hi",
                    temperature=0.5,
                    top_p=0.9,
                    seed=7,
                    max_output_tokens=99,
                    stop_sequences=("END",),
                )
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


@pytest.mark.parametrize(
    ("reason", "word"),
    [
        (StopReason.END_TURN, "stop"),
        (StopReason.STOP_SEQUENCE, "stop"),
        (StopReason.MAX_TOKENS, "length"),
        (StopReason.TOOL_USE, "tool_call"),
        (StopReason.CONTENT_FILTER, "content_filter"),
        (StopReason.REFUSAL, "content_filter"),
        (StopReason.ERROR, "error"),
        (StopReason.PAUSE_TURN, "pause_turn"),
    ],
)
def test_every_message_of_a_model_says_why_it_ended(reason: StopReason, word: str) -> None:
    """In the conventions' word; what they have none for is in ours."""
    make = Maker()
    metadata = MessageMetadata(
        provider="p", model="p:m", usage=TokenUsage(), cost=Cost(0, CostSource.COMPUTED), stop_reason=reason
    )
    said = Message(Role.ASSISTANT, (TextBlock("half \ud800"),), metadata=metadata)
    appended = make(SessionMessageAppended(position=0, message=said), **IDS)
    collector = Collector(content=True).handle(turn_began(make), appended, turn_ended(make))
    (message,) = msgspec.json.decode(
        mend_json(str((collector.span("invoke_agent").attributes or {})["gen_ai.output.messages"]).encode())
    )
    assert message["finish_reason"] == word
    assert message["parts"] == [{"type": "text", "content": "half \ufffd"}]


def test_a_tool_has_its_arguments_and_its_result_if_content_is_asked_for() -> None:
    """Its span ends when it ended, though its result is known later; one without a result ends all the same."""
    make = Maker()
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


def test_media_are_told_by_place_or_by_size() -> None:
    """Their bytes belong in no span."""
    make = Maker()
    content = (ImageBlock(url="https://x.test/a.png"), AudioBlock(data=b"12345", media_type="audio/wav"))
    appended = make(SessionMessageAppended(position=0, message=Message.user(content)), **IDS)
    collector = Collector(content=True).handle(turn_began(make), appended, turn_ended(make))
    (message,) = msgspec.json.decode(
        str((collector.span("invoke_agent").attributes or {})["gen_ai.input.messages"])
    )
    assert message["parts"] == [
        {"type": "uri", "modality": "image", "mime_type": None, "uri": "https://x.test/a.png"},
        {"type": "audio", "modality": "audio", "mime_type": "audio/wav", "size": 5},
    ]
