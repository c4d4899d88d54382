"""The wire and the adapter of Chat Completions."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from callboard.adapters.http.adapter import HttpAdapter
from callboard.adapters.http.wire import ChatWire, Endpoint, OtherWires
from callboard.adapters.http.wire_call import WireCall, bearer, get
from callboard.adapters.protocols.openai_images import OpenAIImages
from callboard.adapters.protocols.openai_videos import OpenAIVideos
from callboard.bus.errors import AdapterError, ContextOverflowError
from callboard.bus.values.base import Json

from ...contract import AdapterCapabilities, CanonicalRequest, RateLimitInfo
from ...protocols.embeddings import OpenAIEmbeddings
from ...refusals.headers import read_rate_limit
from ...replies.assembler import Assembler
from ...requests.settings import SharedOptions
from ...requests.text import encode_json
from ...schemas.tools import input_cleaner
from ...transport.transport import HttpReply
from .batch import batches_of
from .data import ERROR_CODES, REPAIRS, error_in_body
from .messages import AUDIO_FORMATS, document_types, hears
from .quirks import choose_quirks, endpoint_path
from .request import build_body
from .response import ChatNormaliser, read_whole
from .wire import decode_reply


class OpenAICompatibleOptions(SharedOptions, frozen=True, kw_only=True):
    """`AdapterConfig.options` of type ``openai_compatible``."""

    quirks: str | dict[str, Json] | None = None
    """The differences of the server: a name of `quirks.QUIRKS`, or an object of fields; None uses the address."""
    tools: str | None = None
    """``emulate`` for models that can't call tools."""
    path: str | None = None
    """The endpoint's path, if it is unusual."""
    api_version: str | None = None
    """The version of the API in Azure's older addresses."""


class ChatCompletionsWire(ChatWire):
    """OpenAI's Chat Completions, with each server's differences."""

    default_name = "openai_compatible"
    media_fields = frozenset({"image.detail", "document.name"})
    options_type = OpenAICompatibleOptions
    protocol_of_many = True
    default_base_url = "https://api.openai.com"
    error_codes = ERROR_CODES
    repair_rules = REPAIRS

    def __init__(self, endpoint: Endpoint) -> None:
        super().__init__(endpoint)
        options = self.config.options
        self.quirks = choose_quirks(options, self.base_url)
        self.path = endpoint_path(self.quirks, self.config.base_url, self.base_url, options)
        self.emulates_tools = self.quirks.tools == "emulate"
        self.echoes_beginning = self.quirks.echoes_beginning
        native = not self.emulates_tools
        self.capabilities = AdapterCapabilities(
            supports_images=True,
            supports_documents=True,
            accepted_audio_media_types=tuple(AUDIO_FORMATS),
            accepted_document_media_types=document_types(self.quirks),
            supports_thinking=True,
            supports_tools=True,
            supports_structured_output=self.quirks.structured != "none",
            supports_streaming=self.quirks.streams != "never",
            supports_streaming_tool_calls=native and self.quirks.streams == "always",
            supports_parallel_tool_calls=native,
            supports_prompt_caching=True,
        )

    def get_capabilities(self, model: str) -> AdapterCapabilities:
        if not hears(self.quirks, model.partition(":")[2] or model):
            return self.capabilities
        return msgspec.structs.replace(self.capabilities, supports_audio=True)

    # --- Requests and replies ---

    def auth_headers(self, key: str | None) -> Mapping[str, str]:
        return {"api-key": key} if key and self.quirks.auth == "api-key" else bearer(key)

    def write_request(self, request: CanonicalRequest, *, stream: bool) -> WireCall:
        capabilities = request.capabilities or self.get_capabilities(request.model)
        chat = build_body(request, self.quirks, capabilities, self.name, stream=stream)
        chat.history.log()
        body, losses, ids = encode_json(chat.body), chat.history.losses, chat.history.tool_ids
        return WireCall(self.path, body, warnings=chat.warnings, losses=losses, tool_ids=ids)

    def read_reply(self, body: bytes, headers: Mapping[str, str], assembler: Assembler) -> None:
        reply = decode_reply(body)
        if reply.object == "error" and not reply.choices:
            raise error_in_body(body, self.name)
        self._prepare(assembler)
        read_whole(reply, body, assembler, self.quirks)

    def normaliser(self, assembler: Assembler) -> ChatNormaliser:
        self._prepare(assembler)
        return ChatNormaliser(assembler, self.quirks)

    def _prepare(self, assembler: Assembler) -> None:
        assembler.fragments = self.quirks.tool_arguments
        if assembler.request is not None and self.quirks.strict:
            assembler.clean_input = input_cleaner(assembler.request.tools, by_default=True)

    def takes_beginning(self, request: CanonicalRequest) -> bool:
        """See `ChatWire.takes_beginning`. Reasoning models would reason about it again."""
        quirks = self.quirks
        if quirks.beginning == "none" or not self.base_url.endswith(quirks.beginning_at):
            return False
        return request.reasoning_effort in (None, "none") and not self.emulates_tools

    def health_request(self) -> WireCall:
        """The list of models, next to the endpoint."""
        return get(self._beside("/models"))

    def other_wires(self) -> OtherWires:
        embeddings = OpenAIEmbeddings(
            path=self._beside("/embeddings"),
            dimensions_field=self.quirks.dimensions_field,
            base64=self.quirks.base64_vectors,
            protocol=self.default_name,
        )
        path, mark, query = self._beside("/images").partition("?")
        images = OpenAIImages(path, mark + query, protocol=self.default_name)
        videos = self._beside("/videos").partition("?")[0]
        batches = batches_of(self.quirks.batches, self._beside("").partition("?")[0])
        return OtherWires(
            embeddings,
            lambda _: images,
            OpenAIVideos(videos, protocol=self.default_name, codes=ERROR_CODES),
            batches,
        )

    def _beside(self, endpoint: str) -> str:
        path, mark, query = self.path.partition("?")
        return path.removesuffix("/chat/completions") + endpoint + mark + query

    def rate_limit(self, headers: Mapping[str, str]) -> RateLimitInfo | None:
        return read_rate_limit(headers)

    def error_of(self, body: bytes, reply: HttpReply) -> AdapterError:
        error = super().error_of(body, reply)
        if self.quirks.empty_error_is_overflow and reply.status in (400, 413) and not body.strip():
            return ContextOverflowError(
                f"{self.name} answered {reply.status} without a word, as it does when the prompt is too long",
                provider=self.name,
                provider_status=reply.status,
                provider_request_id=error.provider_request_id,
            )
        return error

    def can_stream(self, request: CanonicalRequest) -> bool:
        match self.quirks.streams:
            case "always":
                return True
            case "without tools":
                return not request.tools
            case "never":
                return False


class OpenAICompatibleAdapter(HttpAdapter):
    """OpenAI's Chat Completions, embeddings, images and videos, and every compatible server.

    `config.options`: see `OpenAICompatibleOptions`. Raises ConfigurationError for invalid options, and for a key
    without a `base_url`, unless the key's variable is OpenAI's own.
    """

    wire_type = ChatCompletionsWire
    wire: ChatCompletionsWire
