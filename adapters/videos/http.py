"""Videos over HTTP: jobs are created, retrieved and deleted by single requests, and their files opened."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import TypeVar
from urllib.parse import urljoin, urlsplit

import anyio
import msgspec

from callboard.adapters.http.attempts import HttpAttempts
from callboard.adapters.http.client import HttpClient
from callboard.adapters.http.retry import backoff_delay
from callboard.adapters.http.single_reply import fetch
from callboard.adapters.http.wire_call import WireCall
from callboard.adapters.keys.key import Key, KnownKey
from callboard.adapters.requests.media import read_data_url
from callboard.adapters.transport.key_masking import mask_error
from callboard.adapters.transport.transport import HttpReply, HttpRequest, close_reply, read_error_body
from callboard.bus.errors import (
    AdapterError,
    AuthError,
    CapabilityError,
    InvalidRequestError,
    NotFoundError,
    OutcomeUnknownError,
    RequestTimeoutError,
    StreamError,
)
from callboard.bus.values.warning_codes import WarningCode

from ..calls import CallRequest
from ..contract import AttemptObserver, CallWarning
from .content import HttpVideoContent, InlineVideoContent
from .contract import VideoCapabilities, VideoContent, VideoJob, VideoRequest, VideoTerms, VideoVariant
from .wire import VideoWire, check

T = TypeVar("T")

QUESTION_SECONDS = 30.0
"""The longest time of a question about a job, in seconds. Then a silent connection is given up."""

CLOCKS_APART = 60
"""Seconds by which the provider's clock may be behind ours."""

_LOOKS = 3
"""The number of looks for a job whose creation was never confirmed. Before each look there is a retry's wait."""

_MOST_REDIRECTS = 5
_REDIRECTS = frozenset({301, 302, 303, 307, 308})


class _JobQuestion(CallRequest, frozen=True, kw_only=True):
    """A question about a job. It is asked once, and its caller may ask again."""

    max_retries: int | None = 0
    timeout_seconds: float | None = QUESTION_SECONDS


class HttpVideos:
    """A provider's videos, over the client that its conversations use, too."""

    def __init__(self, client: HttpClient, wire: VideoWire) -> None:
        self._client = client
        self.wire = wire
        self._handed_out: set[str] = set()  # the ids of the jobs that were created here
        self._key_of: dict[str, str] = {}  # the names of the jobs' keys, by the jobs' ids

    def capabilities(self, model: str) -> VideoCapabilities:
        """What a model can make, by its name on the wire."""
        return self.wire.capabilities(model)

    # -- jobs

    async def create(self, request: VideoRequest, on_attempt: AttemptObserver | None) -> VideoJob:
        """See `VideoAdapter.create_video`."""
        client, wire, model = self._client, self.wire, request.wire_model
        written: WireCall | None = None  # every attempt sends the same
        began = client.clock.now_us() // 1_000_000

        def read(body: bytes, headers: Mapping[str, str]) -> VideoJob:
            return wire.read(body, client.name, model, request.terms)

        async def attempt() -> VideoJob:
            nonlocal written
            if written is None:
                check(request, wire.capabilities(model))
                written = wire.create(request, client.name)
            try:
                job, reply = await fetch(attempts, written, read)
            except OutcomeUnknownError as error:
                job = await self._created_all_the_same(attempts, request, began, error)
            else:
                job = msgspec.structs.replace(job, provider_request_id=reply.provider_request_id)
            self._handed_out.add(job.id)
            attempts.first_event({})
            return self._with_key(job, attempts.key_name)

        attempts = HttpAttempts(client, request, on_attempt)
        return await attempts.run(attempt)

    async def _created_all_the_same(
        self, attempts: HttpAttempts, request: VideoRequest, began: int, error: OutcomeUnknownError
    ) -> VideoJob:
        """The job of a request whose reply was lost, if the provider lists it. Raises `error` if not.

        The job was created since `began`, makes what the request asks for, and was handed out to nobody here.
        Exactly one job of the list may be such.
        """
        client, wire, listing = self._client, self.wire, self.wire.latest()
        if listing is None:
            raise error

        def read(body: bytes, headers: Mapping[str, str]) -> list[VideoJob]:
            return list(wire.read_latest(body, client.name, request))

        policy = request.retry or client.config.retry
        for look in range(_LOOKS):
            seconds = backoff_delay(look, policy, client.clock.random())
            await attempts.wait(partial(anyio.sleep, seconds), what="another look")
            try:
                jobs, _ = await fetch(attempts, listing, read)
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

    async def retrieve(self, job_id: str, model: str, terms: VideoTerms) -> VideoJob:
        """See `VideoAdapter.retrieve_video`."""
        wire, name = self.wire, self._client.name

        def read(body: bytes, headers: Mapping[str, str]) -> VideoJob:
            return wire.read(body, name, model, terms)

        asked = self._question(model, terms.key)
        return self._with_key(await self._inquire(wire.retrieve(job_id), read, asked), terms.key)

    def _with_key(self, job: VideoJob, key: str | None) -> VideoJob:
        """The job, whose later questions are asked with the key that it was created with."""
        if key is None:
            return job
        self._key_of[job.id] = key
        return msgspec.structs.replace(job, terms=msgspec.structs.replace(job.terms, key=key))

    async def delete(self, job_id: str, model: str) -> bool:
        """See `VideoAdapter.delete_video`."""
        call = self.wire.delete(job_id)
        if call is None:
            raise CapabilityError(f"{self._client.name} has no way to end a job: {job_id} goes on")
        try:
            asked = self._question(model, self._key_of.get(job_id))
            await self._inquire(call, lambda body, headers: None, asked)
        except NotFoundError:
            return False
        return True

    def _question(self, model: str, key: str | None) -> _JobQuestion:
        name = f"{self._client.name}:{model}"
        return _JobQuestion(request_id=self._client.clock.new_id("req"), model=name, key=key)

    async def _inquire(
        self, call: WireCall, read: Callable[[bytes, Mapping[str, str]], T], asked: _JobQuestion
    ) -> T:
        attempts = HttpAttempts(self._client, asked, None)
        found, _ = await attempts.run(lambda: fetch(attempts, call, read))
        return found

    # -- files

    async def open(self, job: VideoJob, variant: VideoVariant, start: int, etag: str) -> VideoContent:
        """See `VideoAdapter.open_video`."""
        if job.status != "completed":
            raise InvalidRequestError(f"job {job.id} is {job.status}: there is nothing to download")
        client = self._client
        can = self.capabilities(job.model.removeprefix(f"{client.name}:"))
        if variant not in can.variants:
            raise CapabilityError(f"{job.model} has no {variant} to download: it has {', '.join(can.variants)}")
        address = self.wire.content(job, variant)
        inline = read_data_url(address)
        if inline is not None:
            return InlineVideoContent(*inline, start=start)
        headers = {"accept-encoding": "identity"}
        if start:
            headers["range"] = f"bytes={start}-"
            if etag and not etag.startswith("W/"):
                headers["if-range"] = etag
        key = client.keys.own if job.terms.key is None else client.keys.named(job.terms.key)
        reply = await self._open_with_key(urljoin(client.wire.base_url + "/", address), headers, key)
        content = HttpVideoContent(reply, client.config.stream_read_timeout, client.name)
        if not content.usable(start):
            await close_reply(reply)
            raise StreamError(f"{client.name}: the server sent another part of the file than was asked for")
        return content

    async def _open_with_key(self, url: str, headers: Mapping[str, str], key: Key) -> HttpReply:
        """The reply to a download, which is asked for once more with a new key if there is one."""
        known = await self._within(key.get())
        try:
            try:
                return await self._open(url, headers, known)
            except AuthError:
                if not await self._within(key.replaced(known)):
                    raise
                return await self._open(url, headers, await key.get())
        except AdapterError as error:
            mask_error(error, self._client.secrets)
            raise

    async def _open(self, url: str, headers: Mapping[str, str], known: KnownKey) -> HttpReply:
        """The reply of status 2xx, redirects followed.

        The key goes to the provider's own address only, and every other one must be public, or allowed.
        """
        client, home = self._client, _origin(self._client.wire.base_url)
        for _ in range(_MOST_REDIRECTS + 1):
            at_home = _origin(url) == home
            own = {**client.wire.auth_headers(known.value), **client.config.extra_headers} if at_home else {}
            request = HttpRequest(
                "GET",
                url,
                {"accept": "*/*", "user-agent": "callboard", **own, **headers},
                b"",
                client.config.connect_timeout,
                public_only=not at_home and not self._is_allowed(url),
            )
            reply = await self._within(client.transport.send(request))
            if reply.status < 300:
                return reply
            try:
                target = reply.headers.get("location", "")
                if reply.status in _REDIRECTS and target:
                    url = urljoin(url, target)
                    if urlsplit(url).scheme not in ("http", "https"):
                        raise StreamError(
                            f"{client.name}: a download leads to {urlsplit(url).scheme}", retryable=False
                        )
                    continue
                raise client.error_of(await self._within(read_error_body(reply)), reply)
            finally:
                await close_reply(reply)
        raise StreamError(f"{client.name}: a download leads in circles", retryable=False)

    def _is_allowed(self, url: str) -> bool:
        """Whether the configuration names the host of an address that a reply named."""
        hosts = self._client.config.options.get("download_hosts")
        return isinstance(hosts, list | tuple) and (urlsplit(url).hostname or "") in hosts

    async def _within(self, step: Awaitable[T]) -> T:
        seconds = self._client.config.first_event_timeout
        try:
            with anyio.fail_after(seconds):
                return await step
        except TimeoutError as error:
            raise RequestTimeoutError(f"{self._client.name}: no reply within {seconds:g} s") from error


def _origin(url: str) -> tuple[str, str]:
    parts = urlsplit(url)
    return parts.scheme.lower(), parts.netloc.lower()
