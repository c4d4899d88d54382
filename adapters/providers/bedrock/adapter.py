"""Amazon Bedrock's embeddings: wire, addresses, keys and errors."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import quote

import msgspec

from callboard.bus.clock import SYSTEM_CLOCK, Clock
from callboard.bus.errors import (
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
from callboard.bus.values.base import JsonObject
from callboard.bus.values.messages import CallWarning

from ...config import AdapterConfig
from ...embeddings import EmbeddingCapabilities, EmbeddingRequest
from ...http.adapter import HttpAdapter
from ...http.errors import ErrorType, build_error, read_error
from ...operations.answers import EmbeddingOnlyWire
from ...operations.openai_wires import ByType, cohere_capabilities, cohere_fields
from ...operations.wires import EmbeddingReply, from_numbers
from ...replies.usage import reported_count
from ...requests.content import encode_json
from ...requests.history_target import WireCall
from ...requests.settings import SharedOptions, merge_own_options, read_options
from ...transport.transport import HttpReply, Transport

# --- InvokeModel for embeddings ---

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


class _Part(msgspec.Struct, gc=False):
    embedding: list[float]


class _Reply(msgspec.Struct, gc=False):
    """The reply of any family. Each family has its own fields."""

    embedding: list[float] | None = None
    """The vector of Titan."""
    embeddings: msgspec.Raw = msgspec.Raw(b"null")
    """The vectors of the other families. Nova sends a list of objects. Cohere sends a list of vectors, or an
    object with such a list for each type.
    """
    inputTextTokenCount: float | None = None
    id: str | None = None


_decode = msgspec.json.Decoder(_Reply).decode


class BedrockEmbeddings(msgspec.Struct, frozen=True):
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
                body = {"inputText": request.texts[0]}
                if request.dimensions is not None:
                    body["dimensions"] = request.dimensions
            case _:
                raise CapabilityError(
                    f"{model!r} is not a known embedding model: the name must contain titan-embed, "
                    f"cohere.embed or nova"
                )
        merge_own_options(body, request, "bedrock", provider)
        return WireCall(f"/model/{quote(model, safe='')}/invoke", encode_json(body), warnings=warnings)

    def read(self, body: bytes, headers: Mapping[str, str]) -> EmbeddingReply:
        reply = _decode(body)
        counted = reported_count(reply.inputTextTokenCount)
        if counted is None:
            header = headers.get(TOKENS_HEADER, "")
            counted = int(header) if header.isdecimal() and len(header) < 19 else None
        usage = msgspec.json.encode({"inputTextTokenCount": counted}) if counted is not None else None
        numbers = [reply.embedding] if reply.embedding is not None else _lists(reply.embeddings)
        return EmbeddingReply([from_numbers(each) for each in numbers], counted, response_id=reply.id, usage=usage)


def _lists(found: msgspec.Raw) -> list[list[float]]:
    match msgspec.json.decode(found, type=list[msgspec.Raw] | ByType | None):
        case None:
            raise StreamError("the reply has no vectors")
        case ByType(floats=numbers):
            if numbers is None:
                raise StreamError("the reply has no vectors of type float")
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
        "value": request.texts[0],
    }
    parameters: JsonObject = {"embeddingPurpose": _PURPOSES[request.input_type or "document"], "text": text}
    if request.dimensions is not None:
        parameters["embeddingDimension"] = request.dimensions
    return {"taskType": "SINGLE_EMBEDDING", "singleEmbeddingParams": parameters}


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
    """The region of the models; `base_url` overrides it."""


class BedrockWire(EmbeddingOnlyWire):
    """Bedrock's embedding models. There is no health check, because no request with its API keys is free."""

    default_name = "bedrock"
    default_base_url = "https://bedrock-runtime.us-east-1.amazonaws.com"
    error_codes = CODES
    embeddings = BedrockEmbeddings()

    def health_request(self) -> None:
        return None

    def error_of(self, body: bytes, reply: HttpReply) -> AdapterError:
        """The error of a reply: its name is in a header, and the body has only a sentence."""
        parsed = read_error(body)
        name = reply.headers.get("x-amzn-errortype", "").partition(":")[0]
        return build_error(
            msgspec.structs.replace(parsed, type=name) if name else parsed,
            status=reply.status,
            headers=reply.headers,
            codes=self.error_codes,
            provider=self.name,
            now_us=self.endpoint.clock.now_us(),
        )


class BedrockAdapter(HttpAdapter):
    """The embedding models of Amazon Bedrock, with one of Bedrock's API keys (a bearer token, not a signature).

    `config.options`: ``region``, defaults to ``us-east-1``. A request's ``provider_options["bedrock"]`` is merged
    into the body. A conversation is refused with CapabilityError. Raises ConfigurationError for invalid options.
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
