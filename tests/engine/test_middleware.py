"""Middleware: its order, and its permitted changes."""

from __future__ import annotations

from array import array
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import msgspec
import pytest

from callboard.adapters import (
    AttemptObserver,
    AttemptStarted,
    CanonicalRequest,
    CanonicalResponse,
    Message,
    MessageComplete,
    ServerError,
    StopReason,
    StreamEvent,
    TextBlock,
    TextDelta,
    TokenUsage,
    ToolDefinition,
)
from callboard.adapters.embeddings import EmbeddingCapabilities, EmbeddingRequest, EmbeddingResponse
from callboard.adapters.images import GeneratedImage, ImageCapabilities, ImageRequest, ImageResponse
from callboard.adapters.operations.wires import video_usage
from callboard.adapters.videos import VideoCapabilities, VideoJob, VideoRequest, VideoTerms
from callboard.bus import ConfigurationError, Cost, CostSource, LlmCallFailed, StoreError, Subscription
from callboard.bus.events.calls import LlmCallStarted
from callboard.engine import Engine, Tool
from callboard.engine.middleware import (
    Cache,
    CallEnd,
    CallInfo,
    CallOutcome,
    EventFilter,
    LogCalls,
    MemoryReplies,
    Middleware,
    MiddlewareLike,
    Next,
    TryModels,
)
from callboard.engine.middleware.ready_made import key_of
from callboard.tracestore import PriceRow, PriceTable, SavedReplies, TraceStore

from ..definition_of_done.rows import row
from ..support.engines import registry, running, said, serving, topics
from ..support.logs import captured_logs
from ..support.present import present
from ..support.scripted import Say, ScriptedAdapter, scripted_type


def around(*layers: MiddlewareLike, replies: Sequence[Say] = (), **others: list[Say]):
    return running(*replies, middleware=layers, **others)


def calls_made(events: Subscription) -> list[str]:
    return [e.data.model for e in events.take() if isinstance(e.data, LlmCallStarted)]


def answer(request: CanonicalRequest, text: str) -> CallOutcome:
    provider, _, _ = request.model.partition(":")
    response = CanonicalResponse(
        request_id="req_elsewhere",
        model=request.model,
        provider=provider,
        content=(TextBlock(text),),
        stop_reason=StopReason.END_TURN,
        usage=TokenUsage(),
    )
    return CallOutcome(response=response, cost=Cost(0, CostSource.COMPUTED))


def noting(notes: list[str], name: str) -> Callable[[CanonicalRequest, Next], Awaitable[CallOutcome]]:
    async def layer(request: CanonicalRequest, next: Next) -> CallOutcome:
        notes.append(f"{name} in")
        outcome = await next(request)
        notes.append(f"{name} out")
        return outcome

    return layer


@pytest.mark.parametrize("streamed", [False, True])
@row("8.1.6")
async def test_the_first_layer_is_the_outermost(streamed: bool) -> None:
    """Requests pass the layers in their order, and outcomes in the reverse order."""
    notes: list[str] = []
    async with around(noting(notes, "a"), noting(notes, "b"), replies=[Say("Hi")]) as (engine, _):
        assert (await said(engine.session("s:m"), "x", streamed=streamed)).text == "Hi"
    assert notes == ["a in", "b in", "b out", "a out"]


async def test_a_layer_sees_each_tool_round_and_its_cost() -> None:
    """Every call of a turn passes the layer. The request is adapted to the model, and the outcome has a price."""
    seen: list[tuple[int, str, Cost]] = []

    def watch(request: CanonicalRequest) -> Generator[CanonicalRequest, CallOutcome, None]:
        outcome = yield request
        seen.append((len(request.messages), request.model, outcome.cost))

    async def now(arguments: object) -> str:
        return "noon"

    clock = Tool(ToolDefinition("now"), now)
    async with around(watch, replies=[Say(calls=[("now", {})]), Say("Noon")]) as (engine, _):
        reply = await engine.session("s:m", tools=[clock]).send("When?")
    assert reply.text == "Noon"
    assert [(messages, model) for messages, model, _ in seen] == [(1, "s:m"), (3, "s:m")]
    assert all(cost.source is CostSource.UNPRICED for *_, cost in seen)


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_layer_can_reply_without_a_call(streamed: bool) -> None:
    """Readers and the history get the layer's reply. No call is made, traced or paid."""

    async def oracle(request: CanonicalRequest, next: Next) -> CallOutcome:
        return answer(request, "42")

    async with around(oracle) as (engine, events):
        session = engine.session("s:m")
        if streamed:
            async with session.stream("x") as turn:
                assert [text async for text in turn.text_stream] == ["42"]
                reply = await turn.message()
        else:
            reply = await session.send("x")
        published = events.take()
    assert reply.text == "42"
    assert session.messages[-1] == reply
    assert reply.metadata.request_id != "req_elsewhere", "with that id the message would show another call's cost"
    assert topics(published, "llm.") == []


class Masked(Middleware):
    """Replaces digits in all delivered text."""

    def events(self, request: CanonicalRequest) -> EventFilter:
        def mask(text: str) -> str:
            return "".join("#" if character.isdigit() else character for character in text)

        def one(event: StreamEvent) -> StreamEvent:
            match event:
                case TextDelta():
                    return msgspec.structs.replace(event, text=mask(event.text))
                case MessageComplete(final_content=(TextBlock(text=text),)):
                    return msgspec.structs.replace(event, final_content=(TextBlock(mask(text)),))
                case _:
                    return event

        return lambda events: [one(event) for event in events]


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_filter_changes_events(streamed: bool) -> None:
    """Readers, the message and the history have the changed text."""
    async with around(Masked(), replies=[Say("call ", "0123")]) as (engine, _):
        session = engine.session("s:m")
        if streamed:
            async with session.stream("x") as turn:
                assert [text async for text in turn.text_stream] == ["call ", "####"]
        else:
            await session.send("x")
        assert session.messages[-1].text == "call ####"


@pytest.mark.parametrize("streamed", [False, True])
async def test_an_exception_of_a_filter_fails_only_its_call(streamed: bool) -> None:
    """The caller gets the error, and the call ends with its usage. The provider stays available."""

    class Broken(Middleware):
        def events(self, request: CanonicalRequest) -> EventFilter:
            def fail(events: Sequence[StreamEvent]) -> Sequence[StreamEvent]:
                raise LookupError("my own mistake")

            return fail

    async with around(Broken(), replies=[Say("Hi"), Say("Hi")]) as (engine, events):
        session = engine.session("s:m")
        with pytest.raises(LookupError, match="my own mistake"):
            await said(session, "x", streamed=streamed)
        published = events.take()
    ends = [e.data for e in published if isinstance(e.data, LlmCallFailed)]
    assert [end.error_class for end in ends] == ["cancelled"]
    assert topics(published, "actor.crashed") == []
    assert topics(published, "provider.") == []


async def test_an_exception_of_a_layer_is_raised_and_is_in_the_last_event() -> None:

    async def broken(request: CanonicalRequest, next: Next) -> CallOutcome:
        raise LookupError("my own mistake")

    async with around(broken) as (engine, events):
        with pytest.raises(LookupError):
            await engine.session("s:m").send("x")
        (end,) = [e.data for e in events.take() if e.topic == "session.turn_completed"]
    assert (end.status, end.error) == ("failed", "LookupError: my own mistake")


async def test_a_generator_layer_gets_the_failure_at_its_yield() -> None:
    """A second yield makes another call."""

    def twice(request: CanonicalRequest) -> Generator[CanonicalRequest, CallOutcome, CallOutcome]:
        try:
            return (yield request)
        except ServerError:
            return (yield request)

    async with around(twice, replies=[Say(fails=ServerError("down")), Say("up")]) as (engine, events):
        assert (await engine.session("s:m").send("x")).text == "up"
        starts = [e for e in events.take() if isinstance(e.data, LlmCallStarted)]
    assert len({start.request_id for start in starts}) == 2, "each call has its own id"
    assert starts[1].caused_by == starts[0].request_id


async def test_a_wrong_layer_and_a_generator_without_a_yield_are_refused() -> None:
    """The error describes the valid forms."""
    with pytest.raises(ConfigurationError, match="async def name"):
        Engine(models=registry(), trace=False, middleware=[lambda request: None])  # type: ignore[list-item,arg-type,return-value]

    def silent(request: CanonicalRequest) -> Generator[CanonicalRequest, CallOutcome, None]:
        return
        yield request

    async with around(silent) as (engine, _):
        with pytest.raises(TypeError, match="Yield the request"):
            await engine.session("s:m").send("x")


async def test_layers_are_closed_when_the_engine_stops() -> None:
    """`aclose` is called after everything else has stopped."""
    closed: list[bool] = []

    class Held(Middleware):
        async def aclose(self) -> None:
            closed.append(True)

    async with around(Held()):
        assert closed == []
    assert closed == [True]


async def test_cancelling_a_turn_ends_a_layer_that_waits() -> None:
    waiting = anyio.Event()

    async def stuck(request: CanonicalRequest, next: Next) -> CallOutcome:
        waiting.set()
        await anyio.sleep_forever()
        raise AssertionError

    async with around(stuck) as (engine, events):
        session = engine.session("s:m")
        async with session.stream("x") as turn:
            await waiting.wait()
            assert await session.cancel()
        assert calls_made(events) == []
        assert turn.stream_id


# Middleware and calls that are no conversation: only `admit` and `settle` are called.

PRICES = PriceTable(
    [PriceRow(model="s:m", input=10**9, output=10**9, extra={"video_second": 10**11, "image": 5 * 10**9})]
)


class Maker(ScriptedAdapter):
    """Makes texts and images of 1000 tokens, and videos of eight seconds. The prompt "fail" fails."""

    def say(self, request: object) -> Say:
        return Say("Hello")

    async def embed(
        self, request: EmbeddingRequest, *, on_attempt: AttemptObserver | None = None
    ) -> EmbeddingResponse:
        self._begin(on_attempt, request.inputs[0])
        return EmbeddingResponse(
            request_id=request.request_id,
            model=request.model,
            provider=self.name,
            vectors=tuple(array("f", [1.0]) for _ in request.inputs),
            usage=TokenUsage(1000 * len(request.inputs)),
        )

    def get_embedding_capabilities(self, model: str) -> EmbeddingCapabilities:
        return EmbeddingCapabilities(max_inputs=2)

    async def make_images(
        self, request: ImageRequest, *, on_attempt: AttemptObserver | None = None
    ) -> ImageResponse:
        self._begin(on_attempt, request.prompt)
        return ImageResponse(
            request_id=request.request_id,
            model=request.model,
            provider=self.name,
            images=(GeneratedImage(data=b"png", media_type="image/png"),),
            operation="generate",
            usage=TokenUsage(1000),
        )

    def get_image_capabilities(self, model: str) -> ImageCapabilities:
        return ImageCapabilities()

    async def create_video(self, request: VideoRequest, *, on_attempt: AttemptObserver | None = None) -> VideoJob:
        self._begin(on_attempt, request.prompt)
        return VideoJob(id="video_1", model=request.model, provider=self.name, status="queued")

    async def retrieve_video(self, job_id: str, *, model: str, terms: VideoTerms = VideoTerms()) -> VideoJob:  # noqa: B008
        usage = video_usage(VideoTerms(seconds=8))
        return VideoJob(id=job_id, model=f"{self.name}:m", provider=self.name, status="completed", usage=usage)

    async def open_video(self, *arguments: object, **more: object) -> None:
        raise NotImplementedError

    async def delete_video(self, job_id: str, *, model: str) -> bool:
        return False

    def get_video_capabilities(self, model: str) -> VideoCapabilities:
        return VideoCapabilities()

    def _begin(self, on_attempt: AttemptObserver | None, said: str) -> None:
        on_attempt(AttemptStarted(1))
        if said == "fail":
            raise ServerError("down", retryable=False)


@asynccontextmanager
async def around_all(*layers: Middleware) -> AsyncIterator[Engine]:
    models = serving(s=scripted_type(base=Maker))
    async with Engine(models=models, trace=False, prices=PRICES, middleware=layers) as engine:
        yield engine


WAYS: dict[str, Callable[[Engine], Awaitable[object]]] = {
    "chat": lambda engine: engine.generate("s:m", "Hi"),
    "embeddings": lambda engine: engine.embed("Hi", model="s:m"),
    "image": lambda engine: engine.generate_image("Hi", model="s:m"),
    "video_create": lambda engine: engine.create_video("Hi", model="s:m"),
}


async def filmed(engine: Engine, seconds: int | None = None) -> None:
    await (await engine.create_video("Hi", model="s:m", seconds=seconds)).wait()


async def test_a_log_line_has_each_call_and_never_its_content() -> None:
    with captured_logs() as logged:
        async with around_all(LogCalls()) as engine:
            await engine.embed("private", model="s:m")
            await engine.generate("s:m", "private")
            with pytest.raises(ServerError):
                await engine.generate_image("fail", model="s:m")
        async with around(LogCalls(), replies=[Say("secret"), Say(fails=ServerError("down"))]) as (engine, _):
            session = engine.session("s:m")
            await session.send("private")
            with pytest.raises(ServerError):
                await session.send("private")
    embedded, asked, failed, done, refused = (line for line in logged if "call_" in line["event"])
    figures = (embedded["operation"], embedded["input_tokens"], embedded["cost_usd"])
    assert figures == ("embeddings", 1000, "1.000000000")
    assert "operation" not in asked
    assert (failed["operation"], failed["error"]) == ("image", "ServerError")
    assert (done["log_level"], done["model"], done["output_tokens"]) == ("info", "s:m", 5)
    assert (refused["log_level"], refused["error"]) == ("warning", "ServerError")
    assert [word for word in ("secret", "private") if word in str(logged)] == []


class Noting(Middleware):
    """Records its calls, and raises in `settle`."""

    def __init__(self) -> None:
        self.admitted: list[CallInfo] = []
        self.settled: list[tuple[CallInfo, CallEnd]] = []

    async def admit(self, call: CallInfo) -> None:
        self.admitted.append(call)

    def settle(self, call: CallInfo, end: CallEnd) -> None:
        self.settled.append((call, end))
        raise RuntimeError("I can't count")


def operations(calls: Sequence[CallInfo]) -> list[str]:
    return [call.operation for call in calls]


async def test_an_exception_in_settle_harms_neither_the_call_nor_other_layers() -> None:
    first, second = Noting(), Noting()
    async with around_all(first, second) as engine:
        session = engine.session("s:m")
        assert (await session.send("Hi")).text == "Hello"
        await engine.generate_image("Hi", model="s:m")
        await filmed(engine)
    for layer in (first, second):
        assert operations(layer.admitted) == ["image", "video_create"]
        assert operations([call for call, _ in layer.settled]) == ["chat", "image", "video_create", "video"]
        chat, _ = layer.settled[0]
        assert (chat.model, chat.session_id) == ("s:m", session.id)
        assert layer.settled[1][0] == layer.admitted[0]


# The layers that are included: logging, other models, and the cache.


async def test_another_model_replies_if_the_first_one_refuses() -> None:
    """Both calls are made and paid. The session's message comes from the second model."""

    def refused(outcome: CallOutcome) -> bool:
        return outcome.text == "No."

    layer = TryModels(["b:m"], unwanted=refused)
    async with around(layer, replies=[Say("No.")], b=[Say("Yes")]) as (engine, events):
        reply = await engine.session("s:m").send("x")
        assert calls_made(events) == ["s:m", "b:m"]
    assert (reply.text, reply.metadata.model) == ("Yes", "b:m")
    assert present(reply.metadata.routing).model == "b:m"


async def test_another_model_replies_if_the_first_one_fails() -> None:
    down, late = ServerError("first"), ServerError("second")
    others = [Say("up"), Say(fails=late)]
    async with around(TryModels(["b:m"]), replies=[Say(fails=down), Say(fails=down)], b=others) as (engine, _):
        session = engine.session("s:m")
        assert (await session.send("x")).text == "up"
        with pytest.raises(ServerError, match="first"):
            await session.send("x")


async def test_a_stream_with_delivered_text_is_not_retried() -> None:
    """Otherwise readers would get parts of two replies. The failure is raised."""
    half = Say("Half", fails=ServerError("gone"))
    async with around(TryModels(["b:m"]), replies=[half], b=[Say("up")]) as (engine, events):
        with pytest.raises(ServerError, match="gone"):
            await engine.session("s:m").stream("x").message()
        assert calls_made(events) == ["s:m"]


ASKED = CanonicalRequest(request_id="r", messages=(Message.user("Hi"),), model="s:m", max_output_tokens=9)


async def test_the_same_question_is_served_from_the_cache() -> None:
    """A second session with the same question gets the same text, without a cost and without a call."""
    cache = Cache()
    async with around(cache, replies=[Say("Hi"), Say("other")]) as (engine, events):
        first = await engine.session("s:m").send("x")
        again = await engine.session("s:m").stream("x").message()
        assert (await engine.session("s:m").send("y")).text == "other"
        assert len(calls_made(events)) == 2
    assert (first.text, again.text) == ("Hi", "Hi")
    assert again.metadata.cost == Cost(0, CostSource.COMPUTED, reason="from the cache")
    assert again.metadata.usage.total_tokens == 0
    assert (cache.hits, cache.misses) == (1, 2)


def test_the_key_of_the_cache_depends_on_settings_that_change_the_reply() -> None:
    """Every setting that the model gets counts. Ids, streaming and time limits do not count."""
    changes: list[dict[str, object]] = [
        {"model": "s:other"},
        {"temperature": 0.1},
        {"system_prompt": "x"},
        {"messages": (Message.user("Ho"),)},
        {"tools": (ToolDefinition("t"),)},
        {"output_schema": {"type": "object"}},
        {"provider_options": {"a": 1}},
    ]
    assert [
        change for change in changes if key_of(msgspec.structs.replace(ASKED, **change)) == key_of(ASKED)
    ] == []
    same = msgspec.structs.replace(ASKED, request_id="other", session_id="ses", stream=True, timeout_seconds=3.0)
    named = (msgspec.structs.replace(Message.user("Hi"), id="msg_1"),)
    assert key_of(msgspec.structs.replace(same, messages=named)) == key_of(ASKED)


async def test_a_truncated_reply_and_an_empty_one_are_not_cached() -> None:
    short = Say("Hal")
    short.reply = msgspec.structs.replace(short.reply, stop=StopReason.MAX_TOKENS)
    async with around(Cache(), replies=[short, Say(), Say("Whole")]) as (engine, _):
        assert [(await engine.session("s:m").send("x")).text for _ in range(3)] == ["Hal", "", "Whole"]


async def test_memory_keeps_recently_used_replies_until_they_expire() -> None:
    kept = MemoryReplies(most=2)
    await kept.put("a", b"1", 0, 100)
    await kept.put("b", b"2", 0, 100)
    assert await kept.get("a", 1) == b"1"
    await kept.put("c", b"3", 0, 100)
    assert [await kept.get(key, 99) for key in "abc"] == [b"1", None, b"3"]
    assert await kept.get("a", 100) is None


async def test_saved_replies_outlive_the_engine(tmp_path: Path) -> None:
    """Another engine on the same file replies without a call, tool calls included."""
    path = tmp_path / "replies.db"
    reply = Say("Hi", calls=[("t", {"a": [1, None]})])
    async with around(Cache(SavedReplies(path)), replies=[reply]) as (engine, _):
        first = await engine.complete(msgspec.structs.replace(ASKED, tools=(ToolDefinition("t"),)))
    async with around(Cache(SavedReplies(path))) as (engine, events):
        again = await engine.complete(msgspec.structs.replace(ASKED, tools=(ToolDefinition("t"),)))
        assert calls_made(events) == []
    assert again.content == first.content
    assert path.stat().st_mode & 0o777 == 0o600


async def test_saved_replies_expire_and_make_room(tmp_path: Path) -> None:
    """An expired reply is not returned. Above `most`, the reply that expires first is dropped."""
    saved = SavedReplies(tmp_path / "r.db", most=1)
    await saved.put("a", b"1", 0, 10)
    assert (await saved.get("a", 9), await saved.get("a", 10)) == (b"1", None)
    await saved.aclose()
    saved = SavedReplies(tmp_path / "r.db", most=1)
    await saved.put("b", b"2", 0, 20)
    assert [await saved.get(key, 0) for key in "ab"] == [None, b"2"]
    await saved.aclose()


async def test_a_trace_file_is_refused_for_replies(tmp_path: Path) -> None:
    """The file does not change, and calls continue without a cache."""
    path = tmp_path / "trace.db"
    async with TraceStore(path):
        pass
    before = path.read_bytes()
    saved = SavedReplies(path)
    with pytest.raises(StoreError, match="not a file of saved replies"):
        await saved.get("a", 0)
    async with around(Cache(saved), replies=[Say("Hi")]) as (engine, _):
        assert (await engine.session("s:m").send("x")).text == "Hi"
    assert path.read_bytes() == before
