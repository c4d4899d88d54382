"""Embeddings over HTTP: one request with its attempts, as the adapters of conversations have theirs.

An adapter of conversations becomes one that embeds as well by saying which wire its embeddings have; key, address,
connections, retries and errors are those that it has already. A provider that only embeds has an adapter without
the other half.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from functools import partial
from typing import NamedTuple

import msgspec

from adapters.assembler import Assembler
from adapters.classify import error_without_status, read_error_value
from adapters.contract import AdapterCapabilities, AttemptObserver, CallWarning, CanonicalRequest
from adapters.estimate import estimate_tokens
from adapters.http_adapter import HttpAdapter, WireCall
from adapters.http_attempts import HttpAttempts
from adapters.normaliser import StreamNormaliser
from adapters.transport import HttpReply, HttpRequest, exchange
from bus.errors import AdapterError, CapabilityError, InvalidRequestError, StreamError
from bus.json_types import Json
from bus.usage import TokenUsage, UsageSource

from .contract import EmbeddingCapabilities, EmbeddingRequest, EmbeddingResponse
from .wire import EmbeddingReply, EmbeddingWire, check_vectors, fit


class _Written(NamedTuple):
    """What is sent. request: as it was fitted to the model."""

    wire: EmbeddingWire
    request: EmbeddingRequest
    http: HttpRequest
    warnings: tuple[CallWarning, ...]


class EmbedsOverHttp(HttpAdapter):
    """Base of the adapters that embed; see `embeddings.contract.EmbeddingAdapter` for what it promises."""

    @property
    @abstractmethod
    def embedding_wire(self) -> EmbeddingWire:
        """How the provider's requests and replies look."""

    def get_embedding_capabilities(self, model: str) -> EmbeddingCapabilities:
        return self.embedding_wire.capabilities(model.removeprefix(f"{self.name}:"))

    def estimate_text_tokens(self, text: str, *, model: str | None = None) -> int:
        return estimate_tokens(text, self._token_rates(model))

    async def embed(
        self, request: EmbeddingRequest, *, on_attempt: AttemptObserver | None = None
    ) -> EmbeddingResponse:
        attempts = HttpAttempts(self, request, on_attempt)
        written: _Written | None = None  # every attempt sends the same
        try:
            while True:
                attempts.begin_attempt()
                try:
                    written = written or self._write(request)
                    return await self._embed_once(attempts, request, written)
                except AdapterError as error:
                    await attempts.back_off_or_raise(error)
        finally:
            attempts.ended = True

    def _write(self, request: EmbeddingRequest) -> _Written:
        wire = self.embedding_wire
        can = wire.capabilities(request.wire_model)
        fitted, warnings = fit(request, can, self.name, partial(self.estimate_text_tokens, model=request.model))
        call = wire.write(fitted, self.name)
        return _Written(
            wire, fitted, self.http_request(call, accept="application/json"), (*call.warnings, *warnings)
        )

    async def _embed_once(
        self, attempts: HttpAttempts, request: EmbeddingRequest, written: _Written
    ) -> EmbeddingResponse:
        reply, body = await attempts.wait(lambda: exchange(self._transport, written.http), what="the reply")
        if reply.status >= 300:
            raise self._error(body, reply, request.request_id)
        found = self._read_vectors(written.wire, body, reply)
        check_vectors(found, written.request)
        attempts.first_event()
        warnings = list(written.warnings)
        if found.input_tokens is None:
            warnings.append(CallWarning("usage_estimated", f"{self.name} reported no usage: it is an estimate"))
        return EmbeddingResponse(
            request_id=request.request_id,
            model=f"{self.name}:{found.model or request.wire_model}",
            provider=self.name,
            vectors=tuple(found.vectors),
            usage=self._usage(found, request),
            latency_ms=attempts.elapsed_ms(),
            response_id=found.response_id,
            warnings=tuple(warnings),
            rate_limit=self.rate_limit(reply.headers),
            provider_request_id=reply.headers.get("request-id") or reply.headers.get("x-request-id"),
        )

    def _read_vectors(self, wire: EmbeddingWire, body: bytes, reply: HttpReply) -> EmbeddingReply:
        try:
            return wire.read(body, reply.headers)
        except StreamError as error:
            raise self._error_inside(body) or StreamError(f"{self.name}: {error}") from error
        except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
            kind = reply.headers.get("content-type", "no content type")
            what = f"{self.name}: the reply is none of its protocol ({kind}): {error}"
            raise self._error_inside(body) or StreamError(what) from error

    def _usage(self, reply: EmbeddingReply, request: EmbeddingRequest) -> TokenUsage:
        if reply.input_tokens is None:
            estimate = sum(self.estimate_text_tokens(text, model=request.model) for text in request.inputs)
            return TokenUsage(estimate, source=UsageSource.ESTIMATED, reported_cost_nano_usd=reply.cost_nano_usd)
        return TokenUsage(
            reply.input_tokens,
            details=reply.details,
            raw=msgspec.Raw(reply.usage) if reply.usage is not None else None,
            reported_cost_nano_usd=reply.cost_nano_usd,
        )

    def _error_inside(self, body: bytes) -> AdapterError | None:
        """The error that a reply of status 200 holds in place of vectors; None if it holds none."""
        try:
            value: Json = msgspec.json.decode(body)
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            return None
        if not isinstance(value, dict) or not value.get("error"):
            return None
        return error_without_status(read_error_value(value), self.error_codes, self.name)


class EmbeddingOnlyAdapter(EmbedsOverHttp):
    """Base of the adapters whose provider holds no conversations: asking for one is a CapabilityError."""

    capabilities = AdapterCapabilities(supports_system_prompt=False, supports_streaming=False)

    def auth_headers(self) -> Mapping[str, str]:
        return {"authorization": f"Bearer {self.config.api_key}"} if self.config.api_key else {}

    def write_request(self, request: CanonicalRequest, *, stream: bool) -> WireCall:
        raise CapabilityError(
            f"{self.name} embeds texts and holds no conversations: use `engine.embed(texts, model=...)`",
            provider=self.name,
            request_id=request.request_id,
        )

    def read_reply(self, body: bytes, assembler: Assembler) -> None:
        raise InvalidRequestError(f"{self.name} holds no conversations")

    def normaliser(self, assembler: Assembler) -> StreamNormaliser:
        raise InvalidRequestError(f"{self.name} holds no conversations")
