"""The wire and the adapter of OpenAI's Responses API, without stored state."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import anyio
import msgspec

from callboard.adapters.http.adapter import HttpAdapter
from callboard.adapters.http.wire import ChatWire, Endpoint, OtherWires
from callboard.adapters.http.wire_call import WireCall, bearer
from callboard.adapters.protocols.openai_batches import OpenAIBatches
from callboard.bus.errors import AdapterError

from ...contract import AdapterCapabilities, CanonicalRequest, RateLimitInfo
from ...protocols.embeddings import OpenAIEmbeddings
from ...protocols.openai_media import OpenAIImages, OpenAIVideos, is_image_model
from ...refusals.headers import read_rate_limit
from ...refusals.repair import Repair
from ...registry import create_adapter
from ...replies.assembler import Assembler
from ...replies.normaliser import StreamNormaliser
from ...requests.settings import SharedOptions
from ...requests.text import encode_json
from ...schemas.tools import input_cleaner
from ...transport.transport import exchange
from . import response
from .background import ResponsesInBackground
from .data import CODES, DOCUMENT_TYPES, ENCRYPTED_REASONING, IMAGE_TYPES, REPAIRS, find_model
from .images import ResponsesImages
from .quirks import OPENAI, choose_quirks
from .request import build_request
from .stream import ResponsesNormaliser

RESPONSES_BATCHES = OpenAIBatches(endpoint="/v1/responses", codes=CODES)
"""Batches of servers with OpenAI's Responses API. OpenAI's package lists the endpoint (3.54.0,
`openai.types.batch_create_params`).
"""

_PROBE_SECONDS = 5.0
_NO_SUCH_PATH = (404, 405, 501)


class OpenAIOptions(SharedOptions, frozen=True, kw_only=True):
    """`AdapterConfig.options` of type ``openai``."""

    organization: str | None = None
    """The organization, sent as a header."""
    project: str | None = None
    """The project, sent as a header."""
    quirks: str | None = None
    """The differences of the server, a name of `quirks.QUIRKS`; None uses the address."""
    find_protocol: bool = False
    """Whether to check the server's protocol at the start. Without a Responses API, the adapter uses Chat
    Completions.

    Set if the address comes from OPENAI_BASE_URL.
    """


class ResponsesWire(ChatWire):
    """OpenAI's Responses API."""

    default_name = "openai"
    media_fields = frozenset({"image.detail", "document.name"})
    options_type = OpenAIOptions
    default_base_url = "https://api.openai.com"
    error_codes = CODES
    repair_rules = REPAIRS

    def __init__(self, endpoint: Endpoint) -> None:
        super().__init__(endpoint)
        self.quirks = choose_quirks(self.config.options.get("quirks"), self.base_url)
        self._unencrypted: set[str] = set()  # models that refused to encrypt their reasoning
        self._unsummarised: set[str] = set()  # models that refused to summarise it
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

    def other_wires(self) -> OtherWires:
        return OtherWires(
            OpenAIEmbeddings(base64=self.quirks is OPENAI),  # few other servers support it
            _image_wire,
            OpenAIVideos(codes=CODES),
            RESPONSES_BATCHES,
            ResponsesInBackground(self.name, self.quirks),
        )

    def auth_headers(self, key: str | None) -> Mapping[str, str]:
        headers = bearer(key)
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
            summarises=request.wire_model not in self._unsummarised,
        )
        built.history.log()
        body, losses, ids = encode_json(built.body), built.history.losses, built.history.tool_ids
        return WireCall("/v1/responses", body, warnings=built.warnings, losses=losses, tool_ids=ids)

    def repair(
        self, request: CanonicalRequest, call: WireCall, error: AdapterError, done: Collection[str]
    ) -> Repair | None:
        """See `ChatWire.repair`. The wire remembers refusals about reasoning by model."""
        found = super().repair(request, call, error, done)
        for edit in found.edits if found is not None else ():
            if edit.entry == ENCRYPTED_REASONING:
                self._unencrypted.add(request.wire_model)
            if edit.path == ("reasoning", "summary"):
                self._unsummarised.add(request.wire_model)
        return found

    def read_reply(self, body: bytes, headers: Mapping[str, str], assembler: Assembler) -> None:
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


def _image_wire(model: str) -> OpenAIImages | ResponsesImages:
    """The images API for its own models; for others the tool of conversations."""
    return OpenAIImages() if is_image_model(model) else ResponsesImages()


class OpenAIAdapter(HttpAdapter):
    """The Responses API, and ``/v1/embeddings``, ``/v1/images`` and ``/v1/videos``.

    `config.options`: see `OpenAIOptions`. A request's ``provider_options["openai"]`` (or under the adapter's own
    name) is merged into the body; ``auto_cache: false`` there sends no key for the prompt cache, which is
    otherwise made from the session's id. Raises ConfigurationError for an unknown name.
    """

    wire_type = ResponsesWire
    wire: ResponsesWire

    async def initialize(self) -> None:
        """See `OpenAIOptions.find_protocol`."""
        options = dict(self.config.options)
        if options.pop("find_protocol", False) and not await self._has_responses():
            config = msgspec.structs.replace(self.config, options=options)
            transport = self.client.transport
            chat = create_adapter(
                "openai_compatible", config, name=self.name, clock=self.clock, transport=transport
            )
            assert isinstance(chat, HttpAdapter)
            self.speak_as(chat)
        await super().initialize()

    async def _has_responses(self) -> bool:
        """Whether the server has the path, as far as it answers.

        An empty request costs nothing. A server that has the path refuses it with another status.
        """
        with anyio.move_on_after(_PROBE_SECONDS):
            try:
                key = (await self.client.keys.own.get()).value
                request = self.client.request(WireCall("/v1/responses", b"{}"), key)
                reply, _ = await exchange(self.client.transport, request)
            except AdapterError:
                return True
            return reply.status not in _NO_SUCH_PATH
        return True
