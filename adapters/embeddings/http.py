"""Embeddings over HTTP: one request with its attempts, as the adapters of conversations have theirs.

An adapter of conversations becomes one that embeds as well by saying which wire its embeddings have; key, address,
connections, retries and errors are those that it has already. A provider that only embeds has an adapter without
the other half.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping

import msgspec

from adapters.assembler import Assembler
from adapters.classify import error_without_status, read_error_value
from adapters.contract import AdapterCapabilities, AttemptObserver, CallWarning, CanonicalRequest
from adapters.estimate import estimate_tokens
from adapters.http_adapter import HttpAdapter, WireCall
from adapters.http_attempts import HttpAttempts
from adapters.normaliser import StreamNormaliser
from adapters.transport import HttpReply, exchange
from bus.errors import AdapterError, CapabilityError, InvalidRequestError, StreamError
from bus.json_types import Json
from bus.usage import TokenUsage, UsageSource

from .contract import EmbeddingCapabilities, EmbeddingRequest, EmbeddingResponse
from .wire import EmbeddingReply, EmbeddingWire, check_vectors, fit


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
        try:
            while True:
                attempts.begin_attempt()
                try:
                    return await self._embed_once(attempts, request)
                except AdapterError as error:
                    await attempts.back_off_or_raise(error)
        finally:
            attempts.ended = True

    async def _embed_once(self, attempts: HttpAttempts, request: EmbeddingRequest) -> EmbeddingResponse:
        wire = self.embedding_wire
        can = wire.capabilities(request.wire_model)
        estimates = [self.estimate_text_tokens(text, model=request.model) for text in request.inputs]
        fitted, warnings = fit(request, can, self.name, estimates)
        call = wire.write(fitted, self.name)
        http = self.http_request(call, accept="application/json")
        reply, body = await attempts.wait(lambda: exchange(self._transport, http), what="the reply")
        if reply.status >= 300:
            raise self._error(body, reply, request.request_id)
        found = self._read_vectors(wire, body, reply)
        check_vectors(found, fitted)
        attempts.first_event()
        if found.input_tokens is None:
            warnings.append(CallWarning("usage_estimated", f"{self.name} reported no usage: it is an estimate"))
        return EmbeddingResponse(
            request_id=request.request_id,
            model=f"{self.name}:{found.model or request.wire_model}",
            provider=self.name,
            vectors=tuple(found.vectors),
            usage=_usage(found, sum(estimates)),
            latency_ms=attempts.elapsed_ms(),
            response_id=found.response_id,
            warnings=(*call.warnings, *warnings),
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

    def _error_inside(self, body: bytes) -> AdapterError | None:
        """The error that a reply of status 200 holds in place of vectors; None if it holds none."""
        try:
            value: Json = msgspec.json.decode(body)
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            return None
        if not isinstance(value, dict) or not value.get("error"):
            return None
        return error_without_status(read_error_value(value), self.error_codes, self.name)


def _usage(reply: EmbeddingReply, estimate: int) -> TokenUsage:
    if reply.input_tokens is None:
        return TokenUsage(estimate, source=UsageSource.ESTIMATED)
    return TokenUsage(
        reply.input_tokens,
        details=reply.details,
        raw=msgspec.Raw(reply.usage) if reply.usage is not None else None,
    )


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
