"""Amazon Bedrock's embeddings as an adapter: its addresses, keys and errors."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from adapters.contract import AdapterConfig
from adapters.embeddings.http import EmbeddingOnlyAdapter
from adapters.health import AdapterHealth
from adapters.refusals.classify import ErrorType, build_error, read_error
from adapters.requests.settings import SharedOptions, read_options
from adapters.transport.transport import HttpReply, Transport
from bus.clock import SYSTEM_CLOCK, Clock
from bus.errors import (
    AccessDeniedError,
    AdapterError,
    AuthError,
    NotFoundError,
    OverloadedError,
    QuotaExceededError,
    RateLimitError,
)

from .embeddings import BedrockEmbeddings

CODES: Mapping[str, ErrorType] = {
    "AccessDeniedException": AccessDeniedError,
    "ExpiredTokenException": AuthError,
    "UnrecognizedClientException": AuthError,
    "ModelNotReadyException": OverloadedError,
    "ResourceNotFoundException": NotFoundError,
    "ServiceQuotaExceededException": QuotaExceededError,
    "ServiceUnavailableException": OverloadedError,
    "ThrottlingException": RateLimitError,
}


class BedrockOptions(SharedOptions, frozen=True, kw_only=True):
    """`AdapterConfig.options` of type ``bedrock``. region: where the models are; `base_url` goes before it."""

    region: str = "us-east-1"


class BedrockAdapter(EmbeddingOnlyAdapter):
    """The embedding models of Amazon Bedrock, with one of Bedrock's API keys (a bearer token, not a signature).

    `config.options`: ``region``, ``us-east-1`` if it isn't given. A request's ``provider_options["bedrock"]`` is
    merged into the body. A conversation is refused with CapabilityError. Raises ConfigurationError for options
    that it doesn't understand.
    """

    default_name = "bedrock"
    default_base_url = "https://bedrock-runtime.us-east-1.amazonaws.com"
    error_codes = CODES
    embedding_wire = BedrockEmbeddings()

    def __init__(
        self,
        config: AdapterConfig,
        *,
        name: str | None = None,
        transport: Transport | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        options = read_options(config.options, BedrockOptions, name=name or "bedrock", type_name="bedrock")
        if config.base_url is None:
            address = f"https://bedrock-runtime.{options.region}.amazonaws.com"
            config = msgspec.structs.replace(config, base_url=address)
        super().__init__(config, name=name, transport=transport, clock=clock)

    async def health_check(self) -> AdapterHealth:
        """Whether there is a key. Bedrock has no question that costs nothing and that such a key may ask."""
        if self.config.api_key:
            return AdapterHealth(True, "not asked: Bedrock has nothing to ask that costs nothing")
        return AdapterHealth(False, "no key", "Set one of Bedrock's API keys.")

    def _error(self, body: bytes, reply: HttpReply, request_id: str) -> AdapterError:
        """Its name stands in a header, and the body has but a sentence."""
        said = read_error(body)
        name = reply.headers.get("x-amzn-errortype", "").partition(":")[0]
        return build_error(
            msgspec.structs.replace(said, type=name) if name else said,
            status=reply.status,
            headers=reply.headers,
            codes=self.error_codes,
            provider=self.name,
            request_id=request_id,
            now_us=self.clock.now_us(),
        )
