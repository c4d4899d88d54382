"""An engine in which each step takes an hour, and all ways to wait for it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import anyio

from callboard.adapters import AttemptObserver, AttemptStarted, CanonicalRequest, Message
from callboard.adapters.embeddings import EmbeddingRequest, EmbeddingResponse
from callboard.adapters.images import ImageCapabilities, ImageRequest, ImageResponse
from callboard.adapters.videos import (
    VideoCapabilities,
    VideoContent,
    VideoJob,
    VideoRequest,
    VideoTerms,
    VideoVariant,
)
from callboard.engine import Engine
from tests.support.engines import serving
from tests.support.scripted import Say, ScriptedAdapter, scripted_type


class Slow(ScriptedAdapter):
    """Sends one piece of text, and needs an hour for everything else. Creating a video is quick."""

    def say(self, request: CanonicalRequest) -> Say:
        if type(self).script:
            return super().say(request)
        seconds = iter((0,))

        async def pause() -> None:
            await anyio.sleep(next(seconds, 3600))

        return Say('{"a": ', "1}", pause=pause)

    async def embed(
        self, request: EmbeddingRequest, *, on_attempt: AttemptObserver | None = None
    ) -> EmbeddingResponse:
        return await self._hang(on_attempt)  # type: ignore[no-any-return]

    async def make_images(
        self, request: ImageRequest, *, on_attempt: AttemptObserver | None = None
    ) -> ImageResponse:
        return await self._hang(on_attempt)  # type: ignore[no-any-return]

    def get_image_capabilities(self, model: str) -> ImageCapabilities:
        return ImageCapabilities()

    async def create_video(self, request: VideoRequest, *, on_attempt: AttemptObserver | None = None) -> VideoJob:
        if request.prompt == "slowly":
            await self._hang(on_attempt)
        return self._job("queued")

    async def retrieve_video(self, job_id: str, *, model: str, terms: VideoTerms = VideoTerms()) -> VideoJob:  # noqa: B008
        return self._job("in_progress")

    async def open_video(
        self, job: VideoJob, variant: VideoVariant = "video", *, start: int = 0, etag: str = ""
    ) -> VideoContent:
        return await self._hang(None)  # type: ignore[no-any-return]

    async def delete_video(self, job_id: str, *, model: str) -> bool:
        return await self._hang(None)  # type: ignore[no-any-return]

    def get_video_capabilities(self, model: str) -> VideoCapabilities:
        return VideoCapabilities()

    def _job(self, status: Any) -> VideoJob:
        return VideoJob(id="video_1", model=f"{self.name}:m", provider=self.name, status=status)

    async def _hang(self, on_attempt: AttemptObserver | None) -> Any:
        if on_attempt is not None:
            on_attempt(AttemptStarted(1))
        await anyio.sleep(3600)


def an_engine(*script: Say, base: type[ScriptedAdapter] = Slow, **more: Any) -> Engine:
    return Engine(models=serving(s=scripted_type(*script, base=base)), trace=False, **more)


async def drained(stream: Any) -> None:
    async with stream as entered:
        async for _ in entered:
            pass


async def asked(stream: Any, method: str) -> None:
    async with stream as entered:
        await getattr(entered, method)()


async def with_video(engine: Engine, method: str) -> None:
    handle = await engine.create_video("quickly", model="s:m")
    await getattr(handle, method)()


REQUEST = CanonicalRequest(
    request_id="req_1", messages=(Message.user("Hi"),), model="s:m", max_output_tokens=9, message_id="msg_1"
)
SCHEMA: dict[str, Any] = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}

WAYS: dict[str, Callable[[Engine], Awaitable[object]]] = {
    "send": lambda engine: engine.session("s:m").send("Hi"),
    "session.stream": lambda engine: drained(engine.session("s:m").stream("Hi")),
    "session.stream.message": lambda engine: asked(engine.session("s:m").stream("Hi"), "message"),
    "generate": lambda engine: engine.generate("s:m", "Hi"),
    "stream": lambda engine: drained(engine.stream("s:m", "Hi")),
    "stream.result": lambda engine: asked(engine.stream("s:m", "Hi"), "result"),
    "stream.response": lambda engine: asked(engine.stream("s:m", "Hi"), "response"),
    "generate_object": lambda engine: engine.generate_object("s:m", "Hi", schema=SCHEMA),
    "stream_object": lambda engine: drained(engine.stream_object("s:m", "Hi", schema=SCHEMA)),
    "stream_object.object": lambda engine: asked(engine.stream_object("s:m", "Hi", schema=SCHEMA), "object"),
    "complete": lambda engine: engine.complete(REQUEST),
    "stream of a request": lambda engine: drained(engine.stream(REQUEST)),
    "embed": lambda engine: engine.embed(["a"] * 2000, model="s:m"),
    "generate_image": lambda engine: engine.generate_image("Hi", model="s:m"),
    "edit_image": lambda engine: engine.edit_image("Hi", b"\x89PNG\r\n\x1a\n", model="s:m"),
    "create_video": lambda engine: engine.create_video("slowly", model="s:m"),
    "video.wait": lambda engine: with_video(engine, "wait"),
    "video.cancel": lambda engine: with_video(engine, "cancel"),
}
