"""Videos over HTTP: jobs are created, looked at and deleted by single questions, and their files opened."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import TypeVar
from urllib.parse import urljoin, urlsplit

import anyio
import msgspec

from adapters.contract import AdapterConfig, AttemptObserver, CallWarning, RetryPolicy
from adapters.http.attempts import HttpAttempts
from adapters.http.question import AskingAdapter
from adapters.http.retry import backoff_delay
from adapters.http.wire_call import WireCall
from adapters.requests.media import read_data_url
from adapters.transport.transport import HttpReply, HttpRequest, Transport, close_reply, read_error_body
from bus.clock import SYSTEM_CLOCK, Clock
from bus.errors import (
    AdapterError,
    CapabilityError,
    InvalidRequestError,
    NotFoundError,
    OutcomeUnknownError,
    RequestTimeoutError,
    StreamError,
)
from bus.values.warning_codes import WarningCode

from .content import HttpVideoContent, InlineVideoContent
from .contract import (
    UNKNOWN_TERMS,
    VideoCapabilities,
    VideoContent,
    VideoJob,
    VideoRequest,
    VideoTerms,
    VideoVariant,
)
from .wire import VideoWire, check

T = TypeVar("T")

QUESTION_SECONDS = 30.0
"""The longest that a question about a job takes; a connection that says nothing is given up then."""

CLOCKS_APART = 60
"""Seconds by which the provider's clock may be behind ours."""

_LOOKS = 3
"""So often a job is looked for whose creation was never confirmed; before each there is a retry's wait."""

_MOST_REDIRECTS = 5
_REDIRECTS = frozenset({301, 302, 303, 307, 308})


class _Question(msgspec.Struct, frozen=True):
    """The terms of a question that may be asked again: its owner does, when it likes."""

    request_id: str
    max_retries: int | None = 0
    retry: RetryPolicy | None = None
    timeout_seconds: float | None = QUESTION_SECONDS


class MakesVideosOverHttp(AskingAdapter):
    """Base of the adapters that make videos; see `video.contract.VideoAdapter` for what it promises."""

    def __init__(
        self,
        config: AdapterConfig,
        *,
        name: str | None = None,
        transport: Transport | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        super().__init__(config, name=name, transport=transport, clock=clock)
        self._handed_out: set[str] = set()  # the ids of the jobs that were created here

    @property
    @abstractmethod
    def video_wire(self) -> VideoWire:
        """How the provider's requests and jobs look."""

    def get_video_capabilities(self, model: str) -> VideoCapabilities:
        return self.video_wire.capabilities(model.removeprefix(f"{self.name}:"))

    # -- jobs

    async def create_video(self, request: VideoRequest, *, on_attempt: AttemptObserver | None = None) -> VideoJob:
        wire, model = self.video_wire, request.wire_model
        written: WireCall | None = None  # every attempt sends the same
        began = self.clock.now_us() // 1_000_000

        def read(body: bytes, headers: Mapping[str, str]) -> VideoJob:
            return wire.read(body, self.name, model, request.terms)

        async def once(attempts: HttpAttempts) -> VideoJob:
            nonlocal written
            if written is None:
                check(request, wire.capabilities(model))
                written = wire.create(request, self.name)
            try:
                job, answer = await self.ask(attempts, written, request.request_id, read)
            except OutcomeUnknownError as error:
                job = await self._made_all_the_same(attempts, request, began, error)
            else:
                job = msgspec.structs.replace(job, provider_request_id=answer.provider_request_id)
            self._handed_out.add(job.id)
            attempts.first_event()
            return job

        return await self.in_attempts(request, on_attempt, once)

    async def _made_all_the_same(
        self, attempts: HttpAttempts, request: VideoRequest, began: int, error: OutcomeUnknownError
    ) -> VideoJob:
        """The job of a request whose answer was lost, if the provider lists it. Raises `error` if not.

        It was created since, makes the same, and nobody here has it: exactly one job may be that.
        """
        wire, listing = self.video_wire, self.video_wire.latest()
        if listing is None:
            raise error

        def read(body: bytes, headers: Mapping[str, str]) -> list[VideoJob]:
            return list(wire.read_latest(body, self.name, request))

        policy = request.retry or self.config.retry
        for look in range(_LOOKS):
            seconds = backoff_delay(look, policy, self.clock.random())
            await attempts.wait(partial(anyio.sleep, seconds), what="another look")
            try:
                jobs, _ = await self.ask(attempts, listing, request.request_id, read)
            except AdapterError:
                continue
            found = [
                job
                for job in jobs
                if job.id not in self._handed_out and (job.created_at or 0) >= began - CLOCKS_APART
            ]
            if len(found) == 1:
                said = f"the answer to its creation was lost ({error}); it was found among the latest jobs"
                return msgspec.structs.replace(found[0], warnings=(CallWarning(WarningCode.FOUND_AGAIN, said),))
            if found:
                break
        raise error

    async def retrieve_video(self, job_id: str, *, model: str, terms: VideoTerms = UNKNOWN_TERMS) -> VideoJob:
        wire = self.video_wire
        name = model.removeprefix(f"{self.name}:")

        def read(body: bytes, headers: Mapping[str, str]) -> VideoJob:
            return wire.read(body, self.name, name, terms)

        return await self._inquire(wire.retrieve(job_id), read)

    async def delete_video(self, job_id: str, *, model: str) -> bool:
        call = self.video_wire.delete(job_id)
        if call is None:
            raise CapabilityError(f"{self.name} has no way to end a job: {job_id} goes on")
        try:
            await self._inquire(call, lambda body, headers: None)
        except NotFoundError:
            return False
        return True

    async def _inquire(self, call: WireCall, read: Callable[[bytes, Mapping[str, str]], T]) -> T:
        question = _Question(self.clock.new_id("req"))

        async def once(attempts: HttpAttempts) -> T:
            return (await self.ask(attempts, call, question.request_id, read))[0]

        return await self.in_attempts(question, None, once)

    # -- files

    async def open_video(
        self, job: VideoJob, variant: VideoVariant = "video", *, start: int = 0, etag: str = ""
    ) -> VideoContent:
        if job.status != "completed":
            raise InvalidRequestError(f"job {job.id} is {job.status}: there is nothing to download")
        can = self.get_video_capabilities(job.model)
        if variant not in can.variants:
            raise CapabilityError(f"{job.model} has no {variant} to download: it has {', '.join(can.variants)}")
        address = self.video_wire.content(job, variant)
        inline = read_data_url(address)
        if inline is not None:
            return InlineVideoContent(*inline, start=start)
        headers = {"accept-encoding": "identity"}
        if start:
            headers["range"] = f"bytes={start}-"
            if etag and not etag.startswith("W/"):
                headers["if-range"] = etag
        reply = await self._open(urljoin(self.base_url + "/", address), headers)
        content = HttpVideoContent(reply, self.config.stream_read_timeout, self.name)
        if not content.usable(start):
            await close_reply(reply)
            raise StreamError(f"{self.name}: the server sent another part of the file than was asked for")
        return content

    async def _open(self, url: str, headers: Mapping[str, str]) -> HttpReply:
        """The reply of status 2xx, redirects followed.

        The key goes to the provider's own address only, and every other one must be public, or allowed.
        """
        home = _origin(self.base_url)
        for _ in range(_MOST_REDIRECTS + 1):
            at_home = _origin(url) == home
            own = {**self.auth_headers(), **self.config.extra_headers} if at_home else {}
            request = HttpRequest(
                "GET",
                url,
                {"accept": "*/*", "user-agent": "callboard", **own, **headers},
                b"",
                self.config.connect_timeout,
                public_only=not at_home and not self._is_allowed(url),
            )
            reply = await self._within(self._transport.send(request))
            if reply.status < 300:
                return reply
            try:
                target = reply.headers.get("location", "")
                if reply.status in _REDIRECTS and target:
                    url = urljoin(url, target)
                    if urlsplit(url).scheme not in ("http", "https"):
                        raise StreamError(
                            f"{self.name}: a download leads to {urlsplit(url).scheme}", retryable=False
                        )
                    continue
                raise self.error_of(await self._within(read_error_body(reply)), reply, "")
            finally:
                await close_reply(reply)
        raise StreamError(f"{self.name}: a download leads in circles", retryable=False)

    def _is_allowed(self, url: str) -> bool:
        """Whether the configuration names the host of an address that a reply named."""
        hosts = self.config.options.get("download_hosts")
        return isinstance(hosts, list | tuple) and (urlsplit(url).hostname or "") in hosts

    async def _within(self, step: Awaitable[T]) -> T:
        seconds = self.config.first_event_timeout
        try:
            with anyio.fail_after(seconds):
                return await step
        except TimeoutError as error:
            raise RequestTimeoutError(f"{self.name}: no reply within {seconds:g} s") from error


def _origin(url: str) -> tuple[str, str]:
    parts = urlsplit(url)
    return parts.scheme.lower(), parts.netloc.lower()
