"""Operations over HTTP: embeddings and images in one reply, and jobs for videos and batches.

A job is created once, found again, and polled:

creating    the request is sent once, and repeated only if the provider certainly did not run it
searching   the answer was lost; the provider's list is searched three times for the one possible job
asking      each request about a job is sent once and ends after 30 seconds; its caller may repeat it
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import cache, partial
from typing import ClassVar, NamedTuple, TypeVar

import anyio
import msgspec

from callboard.bus.errors import (
    AdapterError,
    CapabilityError,
    InvalidRequestError,
    OutcomeUnknownError,
    RequestTimeoutError,
    WarningCode,
)
from callboard.bus.values.messages import CallWarning
from callboard.bus.values.usage import TokenUsage, UsageSource

from ..batches import BatchJob
from ..contract import AdapterCapabilities, AttemptObserver, CallRequest, CanonicalRequest
from ..embeddings import EmbeddingCapabilities, EmbeddingRequest, EmbeddingResponse, count_tokens
from ..http.attempts import HttpAttempts, SingleReply, error_inside, fetch
from ..http.retry import backoff_delay
from ..http.wire import ChatWire, HttpClient, OtherWires
from ..images import ImageCapabilities, ImageReply, ImageRequest, ImageResponse, ImageWire, fit_image, pieces
from ..replies.assembler import Assembler
from ..replies.server_sent_events import StreamNormaliser
from ..requests.estimate import estimate_tokens
from ..requests.history_target import WireCall, bearer
from ..videos import VideoJob
from .wires import EmbeddingReply, EmbeddingWire, check_vectors, fit_texts

T = TypeVar("T")
J = TypeVar("J", VideoJob, BatchJob)
Read = Callable[[bytes, Mapping[str, str]], T]

QUESTION_SECONDS = 30.0
"""The time limit of a request about a job, in seconds."""

CLOCKS_APART = 60
"""Seconds by which the provider's clock may be slow."""

_LOOKS = 3
"""The number of searches for a job whose creation was not confirmed. The waits before the searches are those
before retries.
"""


class HttpJobs:
    """A provider's jobs of one kind. They use the adapter's `HttpClient`."""

    def __init__(self, client: HttpClient) -> None:
        self._client = client
        self._handed_out: set[str] = set()  # the ids of the jobs created or found here

    async def _create_once(
        self,
        attempts: HttpAttempts,
        call: WireCall,
        read: Read[J],
        request: CallRequest,
        search: Callable[[], Awaitable[J | None]] | None,
    ) -> J:
        """Create a job once. If the answer was lost, return the job that the request has created.

        `search` looks for the job once if the answer was lost. It is None for a provider that doesn't list its
        jobs.
        """
        try:
            job, reply = await fetch(attempts, call, read)
        except OutcomeUnknownError as error:
            found = None if search is None else await self._search_again(attempts, request, search)
            if found is None:
                raise
            job = found_again(found, str(error))
        else:
            job = msgspec.structs.replace(job, provider_request_id=reply.provider_request_id)
        self._handed_out.add(job.id)
        attempts.first_event({})
        return job

    async def _search_again(
        self, attempts: HttpAttempts, request: CallRequest, search: Callable[[], Awaitable[J | None]]
    ) -> J | None:
        client = self._client
        policy = request.retry or client.config.retry
        for look in range(_LOOKS):
            seconds = backoff_delay(look, policy, client.clock.random())
            try:
                await attempts.wait(partial(anyio.sleep, seconds), what="another look")
            except RequestTimeoutError:  # the call's time is up; raise the error that the outcome is unknown
                return None
            try:
                found = await search()
            except OutcomeUnknownError:  # several jobs match
                raise
            except AdapterError:
                continue
            if found is not None:
                return found
        return None

    async def _ask(self, call: WireCall, read: Read[T], model: str, key: str | None) -> T:
        """Send a request about a job once, and return the answer."""
        attempts = HttpAttempts(self._client, self._question(model, key), None)
        found, _ = await attempts.run(lambda: fetch(attempts, call, read))
        return found

    def _question(self, model: str, key: str | None) -> CallRequest:
        """A request about a job, with the key that created the job."""
        client = self._client
        return CallRequest(
            request_id=client.clock.new_id("req"),
            model=f"{client.name}:{model}",
            key=key,
            max_retries=0,
            timeout_seconds=QUESTION_SECONDS,
        )


def found_again(job: J, why: str) -> J:
    """Add a warning to a job: the answer to its creation was lost."""
    text = f"the answer to its creation was lost ({why}). The job was found in the provider's list"
    return msgspec.structs.replace(job, warnings=(CallWarning(WarningCode.FOUND_AGAIN, text),))


class _Written(NamedTuple):
    """The texts to send, the same for every attempt."""

    request: EmbeddingRequest
    call: WireCall
    warnings: tuple[CallWarning, ...]


class HttpEmbeddings:
    """A provider's embeddings. They use the adapter's `HttpClient`."""

    def __init__(self, client: HttpClient, wire: EmbeddingWire) -> None:
        self._client = client
        self.wire = wire

    def capabilities(self, model: str) -> EmbeddingCapabilities:
        return self.wire.capabilities(model)

    async def embed(self, request: EmbeddingRequest, on_attempt: AttemptObserver | None) -> EmbeddingResponse:
        written = cache(partial(self._write, request))

        async def attempt() -> EmbeddingResponse:
            return await self._embed_once(attempts, request, written())

        attempts = HttpAttempts(self._client, request, on_attempt, lambda: self._estimate(request))
        return await attempts.run(attempt)

    def _tokens_of(self, model: str) -> Callable[[str], int]:
        rates = self._client.wire.token_rates(model)
        return lambda text: estimate_tokens(text, rates)

    def _write(self, request: EmbeddingRequest) -> _Written:
        can = self.wire.capabilities(request.wire_model)
        fitted, warnings = fit_texts(request, can, self._client.name, self._tokens_of(request.model))
        call = self.wire.write(fitted, self._client.name)
        return _Written(fitted, call, (*call.warnings, *warnings))

    async def _embed_once(
        self, attempts: HttpAttempts, request: EmbeddingRequest, written: _Written
    ) -> EmbeddingResponse:
        name = self._client.name
        found, reply = await fetch(attempts, written.call, self.wire.read)
        usage = self._usage(found, request)
        try:
            check_vectors(found, written.request)
        except AdapterError as error:
            error.usage = usage  # the reply is billed nevertheless
            raise
        attempts.first_event(reply.headers)
        warnings = written.warnings
        if found.input_tokens is None:
            message = f"{name} reported no usage. The usage is an estimate"
            warnings = (*warnings, CallWarning(WarningCode.USAGE_ESTIMATED, message))
        return EmbeddingResponse(
            request_id=request.request_id,
            model=f"{name}:{found.model or request.wire_model}",
            provider=name,
            vectors=tuple(found.vectors),
            usage=usage,
            latency_ms=attempts.elapsed_ms(),
            response_id=found.response_id,
            warnings=warnings,
            rate_limit=attempts.rate_limit,
            provider_request_id=reply.provider_request_id,
        )

    def _estimate(self, request: EmbeddingRequest) -> int:
        estimate = self._tokens_of(request.model)
        return sum(count_tokens(each, estimate) for each in request.inputs)

    def _usage(self, reply: EmbeddingReply, request: EmbeddingRequest) -> TokenUsage:
        if reply.input_tokens is None:
            usage = TokenUsage(self._estimate(request), source=UsageSource.ESTIMATED)
        else:
            raw = msgspec.Raw(reply.usage) if reply.usage is not None else None
            usage = TokenUsage(reply.input_tokens, details=reply.details, raw=raw)
        return msgspec.structs.replace(
            usage, reported_cost_nano_usd=reply.cost.total, upstream_cost_nano_usd=reply.cost.upstream
        )


class EmbeddingOnlyWire(ChatWire):
    """The wire of a provider of embeddings only. It refuses conversations with CapabilityError."""

    capabilities = AdapterCapabilities(supports_system_prompt=False, supports_streaming=False)
    embeddings: ClassVar[EmbeddingWire]

    def other_wires(self) -> OtherWires:
        return OtherWires(embeddings=self.embeddings)

    def auth_headers(self, key: str | None) -> Mapping[str, str]:
        return bearer(key)

    def write_request(self, request: CanonicalRequest, *, stream: bool) -> WireCall:
        raise CapabilityError(
            f"{self.name} embeds texts and has no conversations. Use `engine.embed(texts, model=...)`",
            provider=self.name,
            request_id=request.request_id,
        )

    def read_reply(self, body: bytes, headers: Mapping[str, str], assembler: Assembler) -> None:
        raise InvalidRequestError(f"{self.name} has no conversations")

    def normaliser(self, assembler: Assembler) -> StreamNormaliser:
        raise InvalidRequestError(f"{self.name} has no conversations")


class HttpImages:
    """A provider's images. They use the adapter's `HttpClient`."""

    def __init__(self, client: HttpClient, wire_of: Callable[[str], ImageWire]) -> None:
        self._client = client
        self._wire_of = wire_of

    def capabilities(self, model: str) -> ImageCapabilities:
        return self._wire_of(model).capabilities(model)

    async def make(self, request: ImageRequest, on_attempt: AttemptObserver | None) -> ImageResponse:
        client, wire = self._client, self._wire_of(request.wire_model)

        @cache
        def written() -> WireCall:
            return wire.write(fit_image(request, wire.capabilities(request.wire_model)), client.name)

        def read(body: bytes, headers: Mapping[str, str]) -> ImageReply:
            reply = wire.read(body, request)
            if not reply.images:
                raise error_inside(client, body) or _no_image(reply)
            return reply

        async def attempt() -> ImageResponse:
            made, reply = await fetch(attempts, written(), read)
            attempts.first_event(reply.headers)
            return self._response(request, written().warnings, made, reply, attempts)

        attempts = HttpAttempts(client, request, on_attempt)
        return await attempts.run(attempt)

    def _response(
        self,
        request: ImageRequest,
        warnings: tuple[CallWarning, ...],
        made: ImageReply,
        reply: SingleReply,
        attempts: HttpAttempts,
    ) -> ImageResponse:
        name = self._client.name
        if len(made.images) < request.n:
            message = f"{request.n} images were requested and {len(made.images)} returned"
            warnings = (*warnings, CallWarning(WarningCode.FEWER_IMAGES, message))
        return ImageResponse(
            request_id=request.request_id,
            model=f"{name}:{made.model or request.wire_model}",
            provider=name,
            operation=request.operation,
            images=tuple(made.images),
            usage=pieces(len(made.images)) if made.usage is None else made.usage,
            latency_ms=attempts.elapsed_ms(),
            response_id=made.response_id,
            warnings=warnings,
            rate_limit=attempts.rate_limit,
            provider_request_id=reply.provider_request_id,
        )


def _no_image(reply: ImageReply) -> AdapterError:
    said = f"text was returned instead of an image: {reply.said[:500]}"
    error = InvalidRequestError(said if reply.said else "the reply has no image")
    error.usage = reply.usage  # the reply is billed nevertheless
    return error
