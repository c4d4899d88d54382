"""Amazon Bedrock's InvokeModel for embeddings: each family of models has a body of its own.

Titan and Nova take one text a request. The reply of every family is told by its form, so that a name that hides
the family (an inference profile, a provisioned model) is no obstacle to reading it.

Limits are those of Bedrock's user guide (docs.aws.amazon.com, seen on 2026-11-22): Titan V2 reads 8192 tokens and
gives 1024, 512 or 256 dimensions.
"""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import quote

import msgspec

from adapters.contract import AdapterConfig, CallWarning
from adapters.health import AdapterHealth
from adapters.http.wire_call import WireCall
from adapters.refusals.classify import ErrorType, build_error, read_error
from adapters.requests.encoding import encode_json
from adapters.requests.host_options import merge_options
from adapters.requests.settings import SharedOptions, own_options, read_options
from adapters.transport.transport import HttpReply, Transport
from bus.clock import SYSTEM_CLOCK, Clock
from bus.errors import (
    AccessDeniedError,
    AdapterError,
    AuthError,
    CapabilityError,
    NotFoundError,
    OverloadedError,
    QuotaExceededError,
    RateLimitError,
    StreamError,
)
from bus.values.json import JsonObject

from .cohere import ByType, cohere_capabilities, cohere_fields
from .contract import EmbeddingCapabilities, EmbeddingRequest
from .http import EmbeddingOnlyAdapter
from .vectors import from_numbers
from .wire import EmbeddingReply, token_count

TOKENS_HEADER = "x-amzn-bedrock-input-token-count"

_PURPOSES: Mapping[str, str] = {
    "query": "GENERIC_RETRIEVAL",
    "document": "GENERIC_INDEX",
    "classification": "CLASSIFICATION",
    "clustering": "CLUSTERING",
}
_NOVA = EmbeddingCapabilities(
    max_inputs=1,
    max_input_tokens=8192,
    dimensions=3072,
    dimension_choices=(256, 384, 1024, 3072),
    input_types=tuple(_PURPOSES),
    supports_truncation=True,
)
_TITAN_V2 = EmbeddingCapabilities(
    max_inputs=1, max_input_tokens=8192, dimensions=1024, dimension_choices=(256, 512, 1024)
)
_TITAN_V1 = EmbeddingCapabilities(max_inputs=1, max_input_tokens=8192, dimensions=1536, supports_dimensions=False)
_UNKNOWN = EmbeddingCapabilities(max_inputs=1)

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


class _Part(msgspec.Struct, gc=False):
    embedding: list[float]


class _Reply(msgspec.Struct, gc=False):
    """embedding: Titan's. embeddings: Nova's as parts, Cohere's as lists or by type."""

    embedding: list[float] | None = None
    embeddings: msgspec.Raw = msgspec.Raw(b"null")
    inputTextTokenCount: float | None = None
    id: str | None = None


_decode = msgspec.json.Decoder(_Reply).decode


class BedrockEmbeddings(msgspec.Struct, frozen=True):
    """InvokeModel, for the families that embed."""

    def capabilities(self, model: str) -> EmbeddingCapabilities:
        match _family(model):
            case "cohere":
                return cohere_capabilities(model)
            case "nova":
                return _NOVA
            case "titan":
                return _TITAN_V2 if "embed-text-v2" in model else _TITAN_V1
            case _:
                return _UNKNOWN

    def write(self, request: EmbeddingRequest, provider: str) -> WireCall:
        model = request.wire_model
        warnings: tuple[CallWarning, ...] = ()
        match _family(model):
            case "cohere":
                body, warnings = cohere_fields(request)
            case "nova":
                body = _nova(request)
            case "titan":
                body = {"inputText": request.inputs[0]}
                if request.dimensions is not None:
                    body["dimensions"] = request.dimensions
            case _:
                raise CapabilityError(
                    f"{model!r} is of no family of embedding models that is known here: the name of a Bedrock "
                    "model contains titan-embed, cohere.embed or nova"
                )
        for options in own_options(request, "bedrock", provider):
            merge_options(body, options)
        return WireCall(f"/model/{quote(model, safe='')}/invoke", encode_json(body), warnings=warnings)

    def read(self, body: bytes, headers: Mapping[str, str]) -> EmbeddingReply:
        reply = _decode(body)
        counted = token_count(reply.inputTextTokenCount)
        if counted is None:
            header = headers.get(TOKENS_HEADER, "")
            counted = int(header) if header.isdecimal() and len(header) < 19 else None
        usage = msgspec.json.encode({"inputTextTokenCount": counted}) if counted is not None else None
        numbers = [reply.embedding] if reply.embedding is not None else _lists(reply.embeddings)
        return EmbeddingReply([from_numbers(each) for each in numbers], counted, response_id=reply.id, usage=usage)


def _lists(found: msgspec.Raw) -> list[list[float]]:
    match msgspec.json.decode(found, type=list[msgspec.Raw] | ByType | None):
        case None:
            raise StreamError("the reply holds no vectors")
        case ByType(floats=numbers):
            if numbers is None:
                raise StreamError("the reply holds no vectors of type float")
            return numbers
        case items:
            decoded = [msgspec.json.decode(item, type=list[float] | _Part) for item in items]
            return [item.embedding if isinstance(item, _Part) else item for item in decoded]


def _family(model: str) -> str | None:
    if "cohere.embed" in model:
        return "cohere"
    if "titan-embed" in model:
        return "titan"
    return "nova" if "nova" in model and "embed" in model else None


def _nova(request: EmbeddingRequest) -> JsonObject:
    text: JsonObject = {
        "truncationMode": "END" if request.truncate else "NONE",
        "value": request.inputs[0],
    }
    parameters: JsonObject = {"embeddingPurpose": _PURPOSES[request.input_type or "document"], "text": text}
    if request.dimensions is not None:
        parameters["embeddingDimension"] = request.dimensions
    return {"taskType": "SINGLE_EMBEDDING", "singleEmbeddingParams": parameters}


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
