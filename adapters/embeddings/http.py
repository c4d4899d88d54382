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

from adapters.contract import AdapterCapabilities, AttemptObserver, CallWarning, CanonicalRequest
from adapters.http.attempts import HttpAttempts
from adapters.http.question import AskingAdapter
from adapters.http.wire_call import WireCall, bearer
from adapters.replies.assembler import Assembler
from adapters.replies.normaliser import StreamNormaliser
from adapters.usage.estimate import estimate_tokens
from bus.errors import AdapterError, CapabilityError, InvalidRequestError
from bus.values.usage import TokenUsage, UsageSource
from bus.values.warning_codes import WarningCode

from .contract import EmbeddingCapabilities, EmbeddingRequest, EmbeddingResponse
from .wire import EmbeddingReply, EmbeddingWire, check_vectors, fit


class _Written(NamedTuple):
    """What is sent. request: as it was fitted to the model."""

    wire: EmbeddingWire
    request: EmbeddingRequest
    call: WireCall
    warnings: tuple[CallWarning, ...]


class EmbedsOverHttp(AskingAdapter):
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
        written: _Written | None = None  # every attempt sends the same

        async def once(attempts: HttpAttempts) -> EmbeddingResponse:
            nonlocal written
            written = written or self._write(request)
            return await self._embed_once(attempts, request, written)

        return await self.in_attempts(request, on_attempt, once, estimate_input=lambda: self._estimate(request))

    def _write(self, request: EmbeddingRequest) -> _Written:
        wire = self.embedding_wire
        can = wire.capabilities(request.wire_model)
        fitted, warnings = fit(request, can, self.name, partial(self.estimate_text_tokens, model=request.model))
        call = wire.write(fitted, self.name)
        return _Written(wire, fitted, call, (*call.warnings, *warnings))

    async def _embed_once(
        self, attempts: HttpAttempts, request: EmbeddingRequest, written: _Written
    ) -> EmbeddingResponse:
        found, answer = await self.ask(attempts, written.call, request.request_id, written.wire.read)
        try:
            check_vectors(found, written.request)
        except AdapterError as error:
            error.usage = self._usage(found, request)  # it was billed all the same
            raise
        attempts.first_event()
        warnings = list(written.warnings)
        if found.input_tokens is None:
            warnings.append(
                CallWarning(WarningCode.USAGE_ESTIMATED, f"{self.name} reported no usage: it is an estimate")
            )
        return EmbeddingResponse(
            request_id=request.request_id,
            model=f"{self.name}:{found.model or request.wire_model}",
            provider=self.name,
            vectors=tuple(found.vectors),
            usage=self._usage(found, request),
            latency_ms=attempts.elapsed_ms(),
            response_id=found.response_id,
            warnings=tuple(warnings),
            rate_limit=self.rate_limit(answer.headers),
            provider_request_id=answer.provider_request_id,
        )

    def _estimate(self, request: EmbeddingRequest) -> int:
        return sum(self.estimate_text_tokens(text, model=request.model) for text in request.inputs)

    def _usage(self, reply: EmbeddingReply, request: EmbeddingRequest) -> TokenUsage:
        if reply.input_tokens is None:
            return TokenUsage(
                self._estimate(request),
                source=UsageSource.ESTIMATED,
                reported_cost_nano_usd=reply.cost.total,
                upstream_cost_nano_usd=reply.cost.upstream,
            )
        return TokenUsage(
            reply.input_tokens,
            details=reply.details,
            raw=msgspec.Raw(reply.usage) if reply.usage is not None else None,
            reported_cost_nano_usd=reply.cost.total,
            upstream_cost_nano_usd=reply.cost.upstream,
        )


class EmbeddingOnlyAdapter(EmbedsOverHttp):
    """Base of the adapters whose provider holds no conversations: asking for one is a CapabilityError, or, past
    that, an InvalidRequestError.
    """

    capabilities = AdapterCapabilities(supports_system_prompt=False, supports_streaming=False)

    def auth_headers(self) -> Mapping[str, str]:
        return bearer(self.config.api_key)

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
