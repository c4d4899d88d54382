"""OpenAI's Responses API, stateless, and servers that speak the same protocol."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from adapters.contract import AdapterCapabilities, AdapterConfig, CanonicalRequest, RateLimitInfo
from adapters.embeddings.http import EmbedsOverHttp
from adapters.http.wire_call import WireCall, bearer
from adapters.images.http import MakesImagesOverHttp
from adapters.protocols.openai_embeddings import OpenAIEmbeddings
from adapters.protocols.openai_images import OpenAIImages, is_image_model
from adapters.protocols.openai_videos import OpenAIVideos
from adapters.refusals.rate_limits import read_rate_limit
from adapters.refusals.repair import Repair
from adapters.replies.assembler import Assembler
from adapters.replies.normaliser import StreamNormaliser
from adapters.requests.encoding import encode_json
from adapters.requests.settings import SharedOptions
from adapters.schemas.strict_mode import input_cleaner
from adapters.transport.transport import Transport
from adapters.videos.http import MakesVideosOverHttp
from bus.clock import SYSTEM_CLOCK, Clock
from bus.errors import AdapterError

from .chat import response
from .chat.request import build_request
from .chat.stream import ResponsesNormaliser
from .data import DOCUMENT_TYPES, ENCRYPTED_REASONING, IMAGE_TYPES, REPAIRS, find_model
from .errors import CODES
from .images import ResponsesImages
from .quirks import choose_quirks


class OpenAIOptions(SharedOptions, frozen=True, kw_only=True):
    """`AdapterConfig.options` of type ``openai``.

    organization, project: become headers. quirks: how a server differs, a name of `quirks.QUIRKS`; None lets the
    address decide.
    """

    organization: str | None = None
    project: str | None = None
    quirks: str | None = None


class OpenAIAdapter(EmbedsOverHttp, MakesImagesOverHttp, MakesVideosOverHttp):
    """Speaks the Responses API, and ``/v1/embeddings``, ``/v1/images`` and ``/v1/videos``.

    `config.options`: see `OpenAIOptions`. A request's ``provider_options["openai"]`` (or
    under the adapter's own name) is merged into the body; ``auto_cache: false`` there sends no key for the prompt
    cache, which otherwise is made from the session's id. Raises ConfigurationError for an unknown name.
    """

    default_name = "openai"
    options_type = OpenAIOptions
    default_base_url = "https://api.openai.com"
    error_codes = CODES
    repair_rules = REPAIRS
    embedding_wire = OpenAIEmbeddings()
    video_wire = OpenAIVideos(codes=CODES)

    def __init__(
        self,
        config: AdapterConfig,
        *,
        name: str | None = None,
        transport: Transport | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        super().__init__(config, name=name, transport=transport, clock=clock)
        self.quirks = choose_quirks(config.options.get("quirks"), self.base_url)
        self._unencrypted: set[str] = set()  # models that have refused to encrypt their reasoning
        self.capabilities = AdapterCapabilities(
            supports_images=self.quirks.images,
            supports_documents=self.quirks.documents,
            supports_thinking=self.quirks.reasoning,
            supports_tools=self.quirks.tools,
            supports_structured_output=self.quirks.structured_output,
            supports_streaming_tool_calls=self.quirks.tools,
            supports_parallel_tool_calls=self.quirks.tools,
            supports_prompt_caching=True,
            accepted_image_media_types=IMAGE_TYPES,
            accepted_document_media_types=DOCUMENT_TYPES,
        )

    def get_capabilities(self, model: str) -> AdapterCapabilities:
        row = find_model(model.removeprefix(f"{self.name}:"))
        return self.capabilities if row is None else row.within(self.capabilities)

    def image_wire(self, model: str) -> OpenAIImages | ResponsesImages:
        """The images API for the models that are its own; for the others the tool of conversations."""
        return OpenAIImages() if is_image_model(model) else ResponsesImages()

    def auth_headers(self) -> Mapping[str, str]:
        headers = bearer(self.config.api_key)
        for option, header in (("organization", "openai-organization"), ("project", "openai-project")):
            value = self.config.options.get(option)
            if isinstance(value, str) and value:
                headers[header] = value
        return headers

    def write_request(self, request: CanonicalRequest, *, stream: bool) -> WireCall:
        built = build_request(
            request,
            provider=self.name,
            quirks=self.quirks,
            stream=stream,
            encrypts=request.wire_model not in self._unencrypted,
        )
        built.history.log()
        body, ids = encode_json(built.body), built.history.tool_ids
        return WireCall("/v1/responses", body, warnings=built.warnings, tool_ids=ids)

    def repair(
        self, request: CanonicalRequest, wire: WireCall, error: AdapterError, done: Collection[str]
    ) -> Repair | None:
        """As of any adapter. That a model encrypts nothing is kept in mind: it is asked for with every call."""
        found = super().repair(request, wire, error, done)
        if found is not None and any(edit.entry == ENCRYPTED_REASONING for edit in found.edits):
            self._unencrypted.add(request.wire_model)
        return found

    def read_reply(self, body: bytes, assembler: Assembler) -> None:
        self._prepare(assembler)
        response.read_reply(body, assembler, self.quirks)

    def normaliser(self, assembler: Assembler) -> StreamNormaliser:
        self._prepare(assembler)
        return ResponsesNormaliser(assembler, self.quirks)

    def _prepare(self, assembler: Assembler) -> None:
        if assembler.request is not None:
            assembler.clean_input = input_cleaner(assembler.request.tools, by_default=self.quirks.strict_tools)

    def rate_limit(self, headers: Mapping[str, str]) -> RateLimitInfo | None:
        return read_rate_limit(headers)
