"""Embeddings over HTTP: one request with its attempts, as conversations have theirs."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import msgspec

from callboard.adapters.contract import AttemptObserver, CallWarning
from callboard.adapters.http.attempts import HttpAttempts
from callboard.adapters.http.client import HttpClient
from callboard.adapters.http.single_reply import fetch
from callboard.adapters.http.wire_call import WireCall
from callboard.adapters.usage.estimate import estimate_tokens
from callboard.bus.errors import AdapterError
from callboard.bus.values.usage import TokenUsage, UsageSource
from callboard.bus.values.warning_codes import WarningCode

from .contract import EmbeddingCapabilities, EmbeddingRequest, EmbeddingResponse
from .wire import EmbeddingReply, EmbeddingWire, check_vectors, fit


class _Written(NamedTuple):
    """What is sent, the same by every attempt."""

    request: EmbeddingRequest
    """The request, as it was fitted to the model."""
    call: WireCall
    """The request on the wire."""
    warnings: tuple[CallWarning, ...]
    """What was left out of the request."""


class HttpEmbeddings:
    """A provider's embeddings, over the client that its conversations use, too."""

    def __init__(self, client: HttpClient, wire: EmbeddingWire) -> None:
        self._client = client
        self.wire = wire

    def capabilities(self, model: str) -> EmbeddingCapabilities:
        """What a model can do, by its name on the wire."""
        return self.wire.capabilities(model)

    async def embed(self, request: EmbeddingRequest, on_attempt: AttemptObserver | None) -> EmbeddingResponse:
        """See `EmbeddingAdapter.embed`."""
        written: _Written | None = None

        async def attempt() -> EmbeddingResponse:
            nonlocal written
            written = written or self._write(request)
            return await self._embed_once(attempts, request, written)

        attempts = HttpAttempts(self._client, request, on_attempt, lambda: self._estimate(request))
        return await attempts.run(attempt)

    def _tokens_of(self, model: str) -> Callable[[str], int]:
        rates = self._client.wire.token_rates(model)
        return lambda text: estimate_tokens(text, rates)

    def _write(self, request: EmbeddingRequest) -> _Written:
        can = self.wire.capabilities(request.wire_model)
        fitted, warnings = fit(request, can, self._client.name, self._tokens_of(request.model))
        call = self.wire.write(fitted, self._client.name)
        return _Written(fitted, call, (*call.warnings, *warnings))

    async def _embed_once(
        self, attempts: HttpAttempts, request: EmbeddingRequest, written: _Written
    ) -> EmbeddingResponse:
        name = self._client.name
        found, reply = await fetch(attempts, written.call, self.wire.read)
        try:
            check_vectors(found, written.request)
        except AdapterError as error:
            error.usage = self._usage(found, request)  # it was billed all the same
            raise
        attempts.first_event(reply.headers)
        warnings = list(written.warnings)
        if found.input_tokens is None:
            warnings.append(
                CallWarning(WarningCode.USAGE_ESTIMATED, f"{name} reported no usage: it is an estimate")
            )
        return EmbeddingResponse(
            request_id=request.request_id,
            model=f"{name}:{found.model or request.wire_model}",
            provider=name,
            vectors=tuple(found.vectors),
            usage=self._usage(found, request),
            latency_ms=attempts.elapsed_ms(),
            response_id=found.response_id,
            warnings=tuple(warnings),
            rate_limit=attempts.rate_limit,
            provider_request_id=reply.provider_request_id,
        )

    def _estimate(self, request: EmbeddingRequest) -> int:
        return sum(map(self._tokens_of(request.model), request.inputs))

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
