"""The wire and the adapter of OpenAI's Responses API, without stored state."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from urllib.parse import quote

import anyio
import msgspec

from callboard.bus.errors import AdapterError, InvalidRequestError, StreamError
from callboard.bus.streams.events import StreamEvent
from callboard.bus.values.base import Json, JsonObject
from callboard.bus.values.usage import TokenUsage, details_of

from ...contract import AdapterCapabilities, CanonicalRequest, RateLimitInfo, WireRequest
from ...http.adapter import HttpAdapter
from ...http.errors import error_without_status, read_error_value
from ...http.fidelity import client_body, client_headers
from ...http.repair import Repair
from ...http.retry import read_rate_limit
from ...http.wire import ChatWire, Endpoint, OtherWires
from ...images import GeneratedImage, ImageCapabilities, ImageReply, ImageRequest, from_base64, input_bytes
from ...operations.openai_media import OpenAIImages, OpenAIVideos, is_image_model
from ...operations.openai_media import read_usage as read_image_usage
from ...operations.openai_wires import OpenAIBatches, OpenAIEmbeddings
from ...operations.wires import BackgroundStatus
from ...provider import create_adapter
from ...replies.assembler import Assembler
from ...replies.streamed import SseDecoder, StreamNormaliser
from ...requests.content import encode_json, write_data_url
from ...requests.history_target import WireCall, bearer, get
from ...requests.settings import SharedOptions, joined_options, merge_options, own_options
from ...requests.strict_schemas import input_cleaner
from ...transport.transport import exchange
from . import response
from .data import (
    CODES,
    DOCUMENT_TYPES,
    ENCRYPTED_REASONING,
    IMAGE_TYPES,
    OPENAI,
    REPAIRS,
    Quirks,
    choose_quirks,
    find_model,
)
from .request import OPTIONS, build_request
from .response import Reply
from .stream import ResponsesNormaliser
from .wire import Item, Response, drawn_with, read, read_or_default, read_usage

TOOL = "image_generation"
IMAGE_TOOL = "image_tool"
"""The key in ``provider_options`` of the fields that are sent with the image tool."""

_COMMON = msgspec.structs.replace(OpenAIImages().capabilities("gpt-image-"), max_images=1)


class _Item(msgspec.Struct, gc=False):
    type: str | None = None
    result: str | None = None
    output_format: str | None = None
    revised_prompt: str | None = None
    error: Json = None
    content: Json = None


class _Reply(msgspec.Struct, gc=False):
    output: list[_Item] | None = None
    model: str | None = None
    id: str | None = None
    usage: msgspec.Raw = msgspec.Raw(b"null")
    tool_usage: msgspec.Raw = msgspec.Raw(b"null")
    error: Json = None


_decode = msgspec.json.Decoder(_Reply).decode


class ResponsesImages(msgspec.Struct, frozen=True):
    """``/v1/responses`` with only the image tool, and without stored state."""

    path: str = "/v1/responses"

    def capabilities(self, model: str) -> ImageCapabilities:
        return _COMMON

    def write(self, request: ImageRequest, provider: str) -> WireCall:
        tool: JsonObject = {"type": TOOL, "action": "edit" if request.images else "generate"}
        for name in ("size", "quality", "background", "output_format"):
            value: str | None = getattr(request, name)
            if value is not None:
                tool[name] = value
        if request.mask is not None:
            tool["input_image_mask"] = {"image_url": write_data_url(*input_bytes(request.mask))}
        parts: list[Json] = [{"type": "input_text", "text": request.prompt}]
        for block in request.images:
            url = write_data_url(*input_bytes(block))
            parts.append({"type": "input_image", "image_url": url, "detail": block.detail or "auto"})
        body: JsonObject = {
            "model": request.wire_model,
            "input": [{"type": "message", "role": "user", "content": parts}],
            "tools": [tool],
            "tool_choice": {"type": TOOL},
            "store": False,
        }
        for options in own_options(request, "openai", provider):
            more = options.pop(IMAGE_TOOL, {})
            if not isinstance(more, Mapping):
                raise InvalidRequestError(f"provider_options: {IMAGE_TOOL} must be an object")
            tool.update(more)
            merge_options(body, options)
        return WireCall(self.path, encode_json(body), once=True)

    def read(self, body: bytes, request: ImageRequest) -> ImageReply:
        reply = _decode(body)
        if reply.error:
            raise error_without_status(read_error_value({"error": reply.error}), CODES, "")
        images: list[GeneratedImage] = []
        texts: list[str] = []
        for item in reply.output or ():
            if item.type == f"{TOOL}_call" and item.result:
                made = item.output_format or request.output_format or "png"
                images.append(from_base64(item.result, f"image/{made}", item.revised_prompt))
            elif item.error:
                raise error_without_status(read_error_value({"error": item.error}), CODES, "")
            else:
                texts += _texts(item.content)
        usage = _usage(reply, len(images))
        return ImageReply(images, usage, reply.model, reply.id, said="".join(texts))


def _texts(content: Json) -> list[str]:
    parts = content if isinstance(content, list) else []
    texts = [part.get("text") or part.get("refusal") for part in parts if isinstance(part, dict)]
    return [text for text in texts if isinstance(text, str)]


def _usage(reply: _Reply, images: int) -> TokenUsage | None:
    image_usage = read_image_usage(reply.usage)
    details = drawn_with(reply.tool_usage) or details_of(image_tool=images)
    if image_usage is None:
        return TokenUsage(details=details) if details else None
    return msgspec.structs.replace(image_usage, details=details)


_UNDER_WAY = frozenset({"queued", "in_progress"})


class _Head(msgspec.Struct, gc=False):
    sequence_number: int | None = None


_decode_head = msgspec.json.Decoder(_Head).decode


class ResponsesInBackground:
    """The wire of background responses."""

    def __init__(self, provider: str, quirks: Quirks) -> None:
        self._provider = provider
        self._quirks = quirks

    def wanted(self, request: CanonicalRequest) -> bool:
        if request.response_id:
            return True
        if request.wire is not None and request.wire.protocol == ResponsesWire.client_protocol:
            return self._quirks.background and request.wire.body.get("background") is True
        if request.background:
            return self._quirks.background
        if OPTIONS not in request.provider_options and self._provider not in request.provider_options:
            return False
        try:
            return joined_options(request, OPTIONS, self._provider).get("background") is True
        except AdapterError:
            return False  # the same error is raised when the request is written

    def attach(self, response_id: str, after: int | None) -> WireCall:
        behind = "" if after is None else f"&starting_after={after}"
        return get(f"{_path(response_id)}?stream=true{behind}")

    def look(self, response_id: str) -> WireCall:
        return get(_path(response_id))

    def cancel(self, response_id: str) -> WireCall:
        return WireCall(f"{_path(response_id)}/cancel", b"")

    def status(self, body: bytes) -> BackgroundStatus:
        response = read(Response, body)
        return BackgroundStatus(response.id or "", response.status not in _UNDER_WAY)

    def usage(self, body: bytes, assembler: Assembler) -> TokenUsage | None:
        response = read(Response, body)
        fees = Reply(assembler, self._quirks).fees
        for raw in response.output or ():
            item = read_or_default(Item, raw)
            fees.note(item.type or "unknown", item)
        counts = fees.counts(response.tool_usage, response.usage)
        return read_usage(response.usage, response.service_tier, fees=counts, tool_usage=response.tool_usage)

    def normaliser(self, assembler: Assembler) -> NumberedResponses:
        return NumberedResponses(assembler, self._quirks)


class NumberedResponses(ResponsesNormaliser):
    """Reads one reply over any number of connections; see `NumberedNormaliser`."""

    def __init__(self, assembler: Assembler, quirks: Quirks) -> None:
        super().__init__(assembler, quirks)
        self.response_id = ""
        self.number: int | None = None
        self.announced = False

    def is_repeated(self, data: bytes) -> bool:
        number = _number_of(data)
        return number is not None and self.number is not None and number <= self.number

    def on_event(self, name: bytes, data: bytes) -> None:
        number = _number_of(data)
        if number is not None and self.number is not None and number <= self.number:
            return
        try:
            super().on_event(name, data)
        except AdapterError:
            self.announced = True
            raise
        finally:
            self.response_id = self.response_id or self.assembler.response_id or ""
        if number is not None:
            self.number = number

    def close(self) -> list[StreamEvent]:
        if not self.finished and self.error is None:  # an incomplete event is dropped
            self.error = StreamError("the stream ended before the response was complete")
        return self.assembler.take()

    def reopen(self) -> None:
        self._decoder = SseDecoder()
        self.error = None

    def take_whole(self, body: bytes) -> list[StreamEvent]:
        response = read(Response, body)
        if self.assembler.raw is not None:
            self.assembler.raw.body(body)
        self._reply.begin(response)
        for index, raw in enumerate(response.output or ()):
            wire = read_or_default(Item, raw)
            item = self.item_of(wire, index)
            self._release(item.number)
            item.done(wire, raw)
        try:
            self._reply.finish(response)
        except AdapterError:
            self.announced = True
            raise
        self.finished = True
        return self.assembler.take()


def _number_of(data: bytes) -> int | None:
    try:
        return _decode_head(data).sequence_number
    except (msgspec.MsgspecError, UnicodeError):
        return None


def _path(response_id: str) -> str:
    return f"/v1/responses/{quote(response_id, safe='')}"


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

    The engine sets this if the address comes from OPENAI_BASE_URL.
    """


class ResponsesWire(ChatWire):
    """OpenAI's Responses API."""

    default_name = "openai"
    client_protocol = "openai"
    media_fields = frozenset({"image.detail", "document.name"})
    options_type = OpenAIOptions
    default_base_url = "https://api.openai.com"
    error_codes = CODES
    repair_rules = REPAIRS

    def __init__(self, endpoint: Endpoint) -> None:
        super().__init__(endpoint)
        self.quirks = choose_quirks(self.config.options.get("quirks"), self.base_url)
        self._unencrypted: set[str] = set()  # models that refused to encrypt their reasoning
        self._unsummarised: set[str] = set()  # models that refused to summarise their reasoning
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
        is_openai = self.quirks is OPENAI
        return OtherWires(
            OpenAIEmbeddings(base64=is_openai, tokens=is_openai),  # few other servers support these options
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

    def write_as_sent(self, sent: WireRequest, model: str, *, stream: bool) -> WireCall:
        body = encode_json(client_body(sent, model, stream=stream))
        return WireCall("/v1/responses", body, client_headers(sent))

    def repair(
        self, request: CanonicalRequest, call: WireCall, error: AdapterError, done: Collection[str]
    ) -> Repair | None:
        """See `ChatWire.repair`. The wire records refusals about reasoning by model."""
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
        if assembler.request is not None and self.client_request(assembler.request) is None:
            assembler.clean_input = input_cleaner(assembler.request.tools, by_default=self.quirks.strict_tools)

    def rate_limit(self, headers: Mapping[str, str]) -> RateLimitInfo | None:
        return read_rate_limit(headers)


def _image_wire(model: str) -> OpenAIImages | ResponsesImages:
    """The images API for image models. For other models, the image tool of the Responses API."""
    return OpenAIImages() if is_image_model(model) else ResponsesImages()


class OpenAIAdapter(HttpAdapter):
    """The Responses API, and ``/v1/embeddings``, ``/v1/images`` and ``/v1/videos``.

    `config.options`: see `OpenAIOptions`. A request's ``provider_options["openai"]`` (or under the adapter's own
    name) is merged into the body. ``auto_cache: false`` there sends no key for the prompt cache. By default, the
    key is made from the session's id. Raises ConfigurationError for an unknown name.
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
        """Whether the server has a Responses API. True if the server doesn't answer.

        An empty request costs nothing. If the server has the path, it rejects the request with a status other than
        404.
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
