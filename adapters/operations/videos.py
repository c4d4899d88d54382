"""Videos over HTTP: jobs and the download of their files."""

from __future__ import annotations

import re
from base64 import b64decode
from collections.abc import Awaitable, Mapping
from functools import cache
from typing import TypeVar
from urllib.parse import urljoin, urlsplit

import anyio
import msgspec

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

from ..contract import AttemptObserver
from ..http.attempts import HttpAttempts, fetch
from ..http.wire import HttpClient
from ..keys import Key, KnownKey
from ..requests.content import read_data_url
from ..requests.history_target import WireCall
from ..transport.transport import HttpReply, HttpRequest, close_reply, mask_error, read_error_body
from ..videos import VideoCapabilities, VideoContent, VideoJob, VideoRequest, VideoTerms, VideoVariant
from .answers import CLOCKS_APART, HttpJobs
from .wires import VideoWire, check_video

T = TypeVar("T")

_MOST_REDIRECTS = 5

_REDIRECTS = frozenset({301, 302, 303, 307, 308})


class HttpVideos(HttpJobs):
    """A provider's videos. They use the adapter's `HttpClient`."""

    def __init__(self, client: HttpClient, wire: VideoWire) -> None:
        super().__init__(client)
        self.wire = wire
        self._key_of: dict[str, str] = {}  # the names of the jobs' keys, by job id

    def capabilities(self, model: str) -> VideoCapabilities:
        return self.wire.capabilities(model)

    # --- Jobs ---

    async def create(self, request: VideoRequest, on_attempt: AttemptObserver | None) -> VideoJob:
        client, wire, model = self._client, self.wire, request.wire_model
        began = client.clock.now_us() // 1_000_000
        listing = wire.latest()

        @cache
        def written() -> WireCall:
            check_video(request, wire.capabilities(model))
            return wire.create(request, client.name)

        def read(body: bytes, headers: Mapping[str, str]) -> VideoJob:
            return wire.read(body, client.name, model, request.terms)

        async def search() -> VideoJob | None:
            return None if listing is None else await self._listed(attempts, listing, request, began)

        async def attempt() -> VideoJob:
            look = None if listing is None else search
            job = await self._create_once(attempts, written(), read, request, look)
            return self._with_key(job, attempts.key_name)

        attempts = HttpAttempts(client, request, on_attempt)
        return await attempts.run(attempt)

    async def _listed(
        self, attempts: HttpAttempts, listing: WireCall, request: VideoRequest, began: int
    ) -> VideoJob | None:
        """The job in the provider's list that was created after `began`, has the same terms, and was not returned
        before.
        """
        wire, name = self.wire, self._client.name
        jobs, _ = await fetch(attempts, listing, lambda body, headers: wire.read_latest(body, name, request))
        found = [
            job for job in jobs if job.id not in self._handed_out and (job.created_at or 0) >= began - CLOCKS_APART
        ]
        if len(found) > 1:
            raise OutcomeUnknownError(f"{name}: several jobs match the request")
        return found[0] if found else None

    async def retrieve(self, job_id: str, model: str, terms: VideoTerms) -> VideoJob:
        wire, name = self.wire, self._client.name

        def read(body: bytes, headers: Mapping[str, str]) -> VideoJob:
            return wire.read(body, name, model, terms)

        return self._with_key(await self._ask(wire.retrieve(job_id), read, model, terms.key), terms.key)

    def _with_key(self, job: VideoJob, key: str | None) -> VideoJob:
        """Store the key that created a job, because later requests need it."""
        if key is None:
            return job
        self._key_of[job.id] = key
        return msgspec.structs.replace(job, terms=msgspec.structs.replace(job.terms, key=key))

    async def delete(self, job_id: str, model: str) -> bool:
        call = self.wire.delete(job_id)
        if call is None:
            raise CapabilityError(f"{self._client.name} can't cancel a job: {job_id} continues")
        try:
            await self._ask(call, lambda body, headers: None, model, self._key_of.get(job_id))
        except NotFoundError:
            return False
        return True

    # --- Files ---

    async def open(self, job: VideoJob, variant: VideoVariant, start: int, etag: str) -> VideoContent:
        if job.status != "completed":
            raise InvalidRequestError(f"job {job.id} is {job.status}: there is no file to download")
        client = self._client
        can = self.capabilities(job.model.removeprefix(f"{client.name}:"))
        if variant not in can.variants:
            raise CapabilityError(f"{job.model} has no {variant} to download. It has {', '.join(can.variants)}")
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
            raise StreamError(f"{client.name}: the server sent another part of the file than requested")
        return content

    async def _open_with_key(self, url: str, headers: Mapping[str, str], key: Key) -> HttpReply:
        """Start a download, and repeat it once if the key was rejected and there is a new key."""
        current_key = await self._within(key.get())
        try:
            try:
                return await self._open(url, headers, current_key)
            except AuthError:
                if not await self._within(key.replaced(current_key)):
                    raise
                return await self._open(url, headers, await key.get())
        except AdapterError as error:
            mask_error(error, self._client.secrets)
            raise

    async def _open(self, url: str, headers: Mapping[str, str], current_key: KnownKey) -> HttpReply:
        """The reply of status 2xx, after redirects.

        The key is sent only to the provider's own address. Any other address must be public or listed in
        `download_hosts`.
        """
        client, home = self._client, _origin(self._client.wire.base_url)
        for _ in range(_MOST_REDIRECTS + 1):
            at_home = _origin(url) == home
            client_headers = (
                {**client.wire.auth_headers(current_key.value), **client.config.extra_headers} if at_home else {}
            )
            request = HttpRequest(
                "GET",
                url,
                {"accept": "*/*", "user-agent": "callboard", **client_headers, **headers},
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
                            f"{client.name}: a download redirects to {urlsplit(url).scheme}", retryable=False
                        )
                    continue
                raise client.error_of(await self._within(read_error_body(reply)), reply)
            finally:
                await close_reply(reply)
        raise StreamError(f"{client.name}: a download redirects in a loop", retryable=False)

    def _is_allowed(self, url: str) -> bool:
        """Whether the configuration allows the host of an address in a reply."""
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


_RANGE = re.compile(r"bytes (\d+)-\d+/(\d+|\*)")

_GOOGLE_MD5 = re.compile(r"md5=([A-Za-z0-9+/=]+)")

_SHA_256 = re.compile(r"sha-256=:?([A-Za-z0-9+/=]+?):?(?:,|$)")


class HttpVideoContent:
    """A reply to a download; see `VideoContent`."""

    def __init__(self, reply: HttpReply, seconds: float, provider: str) -> None:
        self._reply = reply
        self._seconds = seconds
        self._provider = provider
        headers = reply.headers
        self.media_type = headers.get("content-type", "").partition(";")[0].strip().lower()
        self.etag = headers.get("etag", "")
        self.start = 0
        self.total: int | None = None
        partial = _RANGE.match(headers.get("content-range", "")) if reply.status == 206 else None
        if partial is not None:
            self.start = int(partial[1])
            self.total = int(partial[2]) if partial[2] != "*" else None
        elif reply.status == 200 and headers.get("content-length", "").isdecimal():
            self.total = int(headers["content-length"])
        self.digest = _digest(headers, whole_body=reply.status == 200)

    def usable(self, offset: int) -> bool:
        """Whether the reply starts at the requested byte, or at the start of the file."""
        return self.start in (0, offset) and (self._reply.status == 200 or self._reply.status == 206)

    async def chunk(self) -> bytes | None:
        try:
            with anyio.fail_after(self._seconds):
                return await self._reply.chunk()
        except TimeoutError as error:
            what = f"{self._provider}: the download stalled for {self._seconds:g} s"
            raise RequestTimeoutError(what) from error

    async def aclose(self) -> None:
        await close_reply(self._reply)


class InlineVideoContent:
    """A video whose bytes were part of the job."""

    digest = None
    etag = ""

    def __init__(self, media_type: str, data: bytes, start: int = 0) -> None:
        self.media_type = media_type
        self.start = min(start, len(data))
        self.total: int | None = len(data)
        self._rest: bytes | None = data[self.start :]

    async def chunk(self) -> bytes | None:
        rest, self._rest = self._rest, None
        return rest or None

    async def aclose(self) -> None:
        self._rest = None


def _digest(headers: Mapping[str, str], *, whole_body: bool) -> tuple[str, bytes] | None:
    """The checksum of the whole file, if a header has one."""
    found = _SHA_256.search(headers.get("repr-digest", "")) or _SHA_256.search(headers.get("digest", ""))
    if found:
        return _decoded("sha256", found[1])
    google = _GOOGLE_MD5.search(headers.get("x-goog-hash", ""))
    if google:
        return _decoded("md5", google[1])
    if whole_body and "content-md5" in headers:
        return _decoded("md5", headers["content-md5"])
    return None


def _decoded(algorithm: str, text: str) -> tuple[str, bytes] | None:
    try:
        return algorithm, b64decode(text, validate=True)
    except ValueError:
        return None
