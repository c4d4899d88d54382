"""Middleware and calls that are no conversation: they are admitted and counted, and that is all."""

from __future__ import annotations

from array import array
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager

import pytest

from callboard.adapters import AttemptObserver, AttemptStarted, ServerError, TokenUsage
from callboard.adapters.embeddings import EmbeddingCapabilities, EmbeddingRequest, EmbeddingResponse
from callboard.adapters.images import GeneratedImage, ImageCapabilities, ImageRequest, ImageResponse
from callboard.adapters.operations.media_wire import video_usage
from callboard.adapters.videos import VideoCapabilities, VideoJob, VideoRequest, VideoTerms
from callboard.engine import Engine
from callboard.engine.middleware import CallEnd, CallInfo, LogCalls, Middleware
from callboard.tracestore import PriceRow, PriceTable
from tests.support.engines import serving
from tests.support.logs import captured_logs
from tests.support.scripted import Say, ScriptedAdapter, scripted_type

pytestmark = pytest.mark.anyio

PRICES = PriceTable(
    [PriceRow(model="s:m", input=10**9, output=10**9, extra={"video_second": 10**11, "image": 5 * 10**9})]
)


class Maker(ScriptedAdapter):
    """Makes anything: a text or an image costs 1000 tokens, a video takes eight seconds. Fails for "fail"."""

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
        assert on_attempt is not None
        on_attempt(AttemptStarted(1))
        if said == "fail":
            raise ServerError("down", retryable=False)


@asynccontextmanager
async def around(*layers: Middleware) -> AsyncIterator[Engine]:
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


async def test_a_log_line_names_the_operation() -> None:
    """With tokens and cost, or with the error; a conversation has its one line as ever."""
    with captured_logs() as logged:
        async with around(LogCalls()) as engine:
            await engine.embed("private", model="s:m")
            await engine.generate("s:m", "private")
            with pytest.raises(ServerError):
                await engine.generate_image("fail", model="s:m")
    embedded, asked, failed = (line for line in logged if "call_" in line["event"])
    assert (embedded["operation"], embedded["input_tokens"], embedded["cost_usd"]) == (
        "embeddings",
        1000,
        "1.000000000",
    )
    assert "operation" not in asked
    assert (failed["operation"], failed["error"]) == ("image", "ServerError")
    assert "private" not in str(logged)


class Noting(Middleware):
    """Notes what it hears, and fails at it."""

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


async def test_a_layer_that_fails_at_counting_harms_neither_the_call_nor_the_others() -> None:
    """Each layer hears of each end once, with the ids of the call."""
    first, second = Noting(), Noting()
    async with around(first, second) as engine:
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
