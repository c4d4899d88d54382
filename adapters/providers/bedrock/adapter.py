"""Amazon Bedrock's embeddings as an adapter: its addresses, keys and errors."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from callboard.adapters.http.adapter import HttpAdapter
from callboard.adapters.operations.answers import EmbeddingOnlyWire
from callboard.adapters.refusals.classify import ErrorType, build_error, read_error
from callboard.adapters.requests.settings import SharedOptions, read_options
from callboard.adapters.transport.transport import HttpReply, Transport
from callboard.bus.clock import SYSTEM_CLOCK, Clock
from callboard.bus.errors import (
    AccessDeniedError,
    AdapterError,
    AuthError,
    NotFoundError,
    OverloadedError,
    QuotaExceededError,
    RateLimitError,
)

from ...config import AdapterConfig
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
    """`AdapterConfig.options` of type ``bedrock``."""

    region: str = "us-east-1"
    """Where the models are; `base_url` goes before it."""


class BedrockWire(EmbeddingOnlyWire):
    """Bedrock's embedding models. There is no question that costs nothing and that one of its API keys may ask."""

    default_name = "bedrock"
    default_base_url = "https://bedrock-runtime.us-east-1.amazonaws.com"
    error_codes = CODES
    embeddings = BedrockEmbeddings()

    def health_request(self) -> None:
        return None

    def error_of(self, body: bytes, reply: HttpReply) -> AdapterError:
        """The error's name stands in a header, and the body has but a sentence."""
        said = read_error(body)
        name = reply.headers.get("x-amzn-errortype", "").partition(":")[0]
        return build_error(
            msgspec.structs.replace(said, type=name) if name else said,
            status=reply.status,
            headers=reply.headers,
            codes=self.error_codes,
            provider=self.name,
            now_us=self.endpoint.clock.now_us(),
        )


class BedrockAdapter(HttpAdapter):
    """The embedding models of Amazon Bedrock, with one of Bedrock's API keys (a bearer token, not a signature).

    `config.options`: ``region``, ``us-east-1`` if it isn't given. A request's ``provider_options["bedrock"]`` is
    merged into the body. A conversation is refused with CapabilityError. Raises ConfigurationError for options
    that it doesn't understand.
    """

    wire_type = BedrockWire

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
