"""The wires and the adapter of the Gemini API."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

from callboard.adapters.http.adapter import HttpAdapter
from callboard.adapters.http.wire import ChatWire, Endpoint, OtherWires
from callboard.adapters.http.wire_call import WireCall, get

from ...contract import AdapterCapabilities, CanonicalRequest
from ...refusals.repair import RepairRules
from ...replies.assembler import Assembler
from ...replies.normaliser import StreamNormaliser
from ...requests.settings import SharedOptions
from ...requests.text import encode_json
from . import interactions_response as response
from .batch import GeminiBatches
from .contents import AUDIO_TYPES, DOCUMENT_TYPES, IMAGE_TYPES
from .data import CODES, REPAIRS, find_model
from .embeddings import GeminiEmbeddings
from .images import GeminiImages
from .interactions_request import build_interaction
from .interactions_response import REVISION
from .interactions_stream import InteractionNormaliser
from .request import build_request, model_name, path_of
from .response import GeminiNormaliser, read_reply
from .videos import GeminiVideos

VERSION = "v1beta"


class GeminiOptions(SharedOptions, frozen=True, kw_only=True):
    """`AdapterConfig.options` of type ``gemini``."""

    api_version: str | None = None
    """The API version in the address; defaults to ``v1beta``."""
    api: Literal["generate_content", "interactions"] = "generate_content"
    """The API for conversations."""


class GenerateContentWire(ChatWire):
    """Gemini's generateContent and its stream, or its Interactions API."""

    default_name = "gemini"
    options_type = GeminiOptions
    default_base_url = "https://generativelanguage.googleapis.com"
    error_codes = CODES
    repair_rules = REPAIRS
    capabilities = AdapterCapabilities(
        supports_images=True,
        supports_audio=True,
        supports_documents=True,
        supports_thinking=True,
        supports_tools=True,
        supports_structured_output=True,
        supports_streaming_tool_calls=False,  # they arrive whole
        supports_parallel_tool_calls=True,
        supports_prompt_caching=True,
        max_context_tokens=1_048_576,
        max_output_tokens=65_536,
        accepted_image_media_types=IMAGE_TYPES,
        accepted_audio_media_types=AUDIO_TYPES,
        accepted_document_media_types=DOCUMENT_TYPES,
    )

    def __init__(self, endpoint: Endpoint) -> None:
        super().__init__(endpoint)
        self._speaks_interactions = self.config.options.get("api") == "interactions"
        if self._speaks_interactions:
            self.repair_rules = RepairRules()  # the rules contain field names of generateContent

    def get_capabilities(self, model: str) -> AdapterCapabilities:
        row = find_model(model.removeprefix(f"{self.name}:"))
        if row is None:
            return self.capabilities
        return msgspec.structs.replace(
            row.within(self.capabilities),
            supports_audio=row.media,
            supports_documents=row.media,
            supports_system_prompt=row.system,
        )

    def auth_headers(self, key: str | None) -> Mapping[str, str]:
        return {"x-goog-api-key": key} if key else {}

    def health_request(self) -> WireCall:
        return get(f"/{self._version}/models?pageSize=1")

    @property
    def _version(self) -> str:
        given = self.config.options.get("api_version")
        return given if isinstance(given, str) and given else VERSION

    def other_wires(self) -> OtherWires:
        version = self._version
        return OtherWires(
            GeminiEmbeddings(version),
            lambda _: GeminiImages(version),
            GeminiVideos(version),
            GeminiBatches(version),
        )

    def write_request(self, request: CanonicalRequest, *, stream: bool) -> WireCall:
        headers: dict[str, str] = {}
        if self._speaks_interactions:
            built = build_interaction(request, provider=self.name, stream=stream)
            path, headers = f"/{self._version}/interactions", {"api-revision": REVISION}
        else:
            built = build_request(request, provider=self.name)
            method = "streamGenerateContent?alt=sse" if stream else "generateContent"
            path = path_of(self._version, model_name(request.wire_model), method)
        history = built.history
        history.log()
        body = encode_json(built.body)
        return WireCall(
            path, body, headers, warnings=built.warnings, losses=history.losses, tool_ids=history.tool_ids
        )

    def read_reply(self, body: bytes, headers: Mapping[str, str], assembler: Assembler) -> None:
        if self._speaks_interactions:
            response.read_reply(body, assembler)
        else:
            read_reply(body, assembler)

    def normaliser(self, assembler: Assembler) -> StreamNormaliser:
        return InteractionNormaliser(assembler) if self._speaks_interactions else GeminiNormaliser(assembler)


class GeminiAdapter(HttpAdapter):
    """Google's Gemini API: generateContent or interactions, batchEmbedContents, and predictLongRunning.

    A model's name may have a folder (``tunedModels/mine``); the default is ``models``. `config.options`: see
    `GeminiOptions`. A request's ``provider_options["gemini"]`` (or under the adapter's own name) is merged into
    the body.
    """

    wire_type = GenerateContentWire
