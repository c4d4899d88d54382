"""The request, the wire and the adapter of OpenAI's Responses API.

The call is stateless: nothing is stored, and reasoning is encrypted. This module writes the parameters of the
call; `items` writes the history. A tuning setting that the model lacks is dropped with a warning.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

import anyio
import msgspec

from callboard.bus.errors import AdapterError, CapabilityError, InvalidRequestError, WarningCode
from callboard.bus.values.base import Json, JsonObject
from callboard.bus.values.messages import CallWarning, ToolDefinition
from callboard.bus.values.usage import TokenUsage, details_of

from ...contract import AdapterCapabilities, CanonicalRequest, RateLimitInfo, WireRequest
from ...http.adapter import HttpAdapter
from ...http.fidelity import client_body, client_headers
from ...http.repair import Repair
from ...http.retry import read_rate_limit
from ...http.wire import ChatWire, Endpoint, OtherWires
from ...images import GeneratedImage, ImageCapabilities, ImageReply, ImageRequest, from_base64, input_bytes
from ...operations.openai_media import OpenAIImages, OpenAIVideos, is_image_model
from ...operations.openai_media import read_usage as read_image_usage
from ...operations.openai_wires import OpenAIBatches, OpenAIEmbeddings
from ...provider import create_adapter
from ...replies.assembler import Assembler
from ...replies.server_sent_events import StreamNormaliser
from ...requests.content import encode_json, write_data_url
from ...requests.history import fit_history
from ...requests.history_target import BuiltRequest, Target, WireCall, bearer
from ...requests.schemas import encoded_tool, fold_root
from ...requests.settings import (
    CUSTOM,
    SharedOptions,
    check_demands,
    check_tool_choice,
    digest,
    is_free_form,
    joined_options,
    may_omit_limit,
    merge_options,
    nearest_effort,
    own_options,
    short_id,
    tool_options,
    write_settings,
)
from ...requests.strict_schemas import StrictSchema, input_cleaner, strict_reply, strict_tool
from ...transport.transport import exchange
from .data import (
    CODES,
    DOCUMENT_TYPES,
    ENCRYPTED_REASONING,
    IMAGE_TYPES,
    OPENAI,
    OPTIONS,
    REPAIRS,
    TOOL_IDS,
    Model,
    Quirks,
    choose_quirks,
    error_in_reply,
    find_model,
)
from .items import ItemWriter
from .response import IMAGE_CALL, error_of, output_limit, read_reply
from .stream import ResponsesInBackground, ResponsesNormaliser
from .wire import Response, as_object, drawn_with, is_present, read

# --- The request ---

AUTO_CACHE = "auto_cache"
"""In `provider_options`: false sends no key for the prompt cache."""


def build_request(
    request: CanonicalRequest,
    *,
    provider: str,
    quirks: Quirks,
    stream: bool,
    encrypts: bool = True,
    summarises: bool = True,
) -> BuiltRequest:
    return _Builder(request, provider, quirks, encrypts, summarises).build(stream=stream)


class _Builder:
    def __init__(
        self, request: CanonicalRequest, provider: str, quirks: Quirks, encrypts: bool, summarises: bool
    ) -> None:
        self.request = request
        self.provider = provider
        self.quirks = quirks
        self.encrypts = encrypts
        self.summarises = summarises and quirks.summaries
        self.name = request.wire_model
        self.model = find_model(self.name)
        self.warnings: list[CallWarning] = []
        self.options = joined_options(request, OPTIONS, provider)
        self.free_form: set[str] = set()  # names of tools

    def build(self, *, stream: bool) -> BuiltRequest:
        check_demands(self.request, self.request.capabilities, self.provider)
        target = Target(
            provider=self.provider,
            tool_ids=TOOL_IDS,
            model=self.name,
            accepts_images=self.quirks.images,
            accepts_documents=self.quirks.documents,
            image_types=IMAGE_TYPES,
            document_types=DOCUMENT_TYPES,
            results_carry=("image", "document", "opaque"),
            replays_thinking=self._reasons(),
            replays_images=True,
            keeps_developer=self.quirks.keeps_developer,
            takes_opaque=True,
        )
        history = fit_history(self.request, target)
        form = f"responses_json {self.quirks.strict_tools}"
        tools = [encoded_tool(tool, form, self._tool, self.warnings) for tool in self.request.tools]
        writer = ItemWriter(history, self.name, self.free_form)
        items = writer.write()
        history = history.with_losses(writer.losses)
        body: JsonObject = {"model": self.name, "input": items}
        if history.system:
            body["instructions"] = history.system
        unknown = self.model is None and not self.quirks.completed_at_limit
        if not (unknown and may_omit_limit(self.request, AdapterCapabilities())):
            body["max_output_tokens"] = output_limit(self.request, self.quirks)
        if self.request.max_output_tokens < self.quirks.min_output_tokens:
            limit = body["max_output_tokens"]
            self._warn(WarningCode.PARAMETER_CHANGED, f"max_output_tokens is {limit}, the minimum")
        if self.quirks.stateless:
            body["store"] = False
            if self._reasons() and self.encrypts:
                body["include"] = [ENCRYPTED_REASONING]
        self._tools(body, tools)
        self._format(body)
        self._reasoning(body)
        self._settings(body)
        if self.request.stop_sequences:
            self._warn(WarningCode.PARAMETER_DROPPED, "the Responses API has no stop_sequences")
        if stream:
            body["stream"] = True
        auto_cache, can = self.options.pop(AUTO_CACHE, True), self.request.capabilities
        caches = self.quirks.cache_key and (can is None or can.supports_prompt_caching)
        if auto_cache is not False and caches and self.request.session_id:
            body["prompt_cache_key"] = digest(self.request.session_id)
        merge_options(body, self.options)
        if body.get("background") is True and "store" not in self.options:
            body["store"] = True  # a background reply must be stored until it is read
        return BuiltRequest(body, history, (*history.warnings, *self.warnings))

    def _warn(self, code: WarningCode, message: str) -> None:
        self.warnings.append(CallWarning(code, f"{self.provider}: {message}"))

    def _reasons(self) -> bool:
        can = self.request.capabilities
        able = can is None or can.supports_thinking
        return able and self.quirks.reasoning and (self.model is None or bool(self.model.efforts))

    # --- Tools ---

    def _tools(self, body: JsonObject, tools: list[Json]) -> None:
        if tools:
            body["tools"] = tools
            if self.request.parallel_tool_calls is not None:
                body["parallel_tool_calls"] = self.request.parallel_tool_calls
        choice = self.request.tool_choice
        if choice is not None and (self.request.tools or choice.mode != "auto"):
            if choice.mode != "required" or "tools" not in self.options:  # the host's own tool can fulfil it
                check_tool_choice(choice, [tool.name for tool in self.request.tools])
            if choice.mode == "named":
                kind = CUSTOM if choice.tool_name in self.free_form else "function"
                body["tool_choice"] = {"type": kind, "name": choice.tool_name}
            elif self.request.tools or "tools" in self.options:
                body["tool_choice"] = choice.mode

    def _tool(self, tool: ToolDefinition) -> JsonObject:
        written: JsonObject = {"type": "function", "name": tool.name}
        if tool.description:
            written["description"] = tool.description
        options = tool_options(tool, OPTIONS, self.provider) if tool.provider_options else {}
        if options and is_free_form(tool, options):
            self.free_form.add(tool.name)
        else:
            self._schema(tool, written)
        if options:
            merge_options(written, options)
        return written

    def _schema(self, tool: ToolDefinition, written: JsonObject) -> None:
        strict = strict_tool(tool, by_default=self.quirks.strict_tools)
        if isinstance(strict, str):
            self._warn(WarningCode.TOOL_NOT_STRICT, f"tool {tool.name!r} is sent without strict mode: {strict}")
        if isinstance(strict, StrictSchema):
            written["parameters"] = strict.schema
        else:
            folded = fold_root(tool.input_schema)
            if folded.folded:
                self.warnings += folded.warnings(f"tool {tool.name!r}")
            written["parameters"] = folded.schema
        written["strict"] = isinstance(strict, StrictSchema)

    # --- The reply's form ---

    def _format(self, body: JsonObject) -> None:
        schema = self.request.output_schema
        if schema is None:
            return
        if not self.quirks.structured_output:
            raise CapabilityError(f"{self.provider}: this server ignores output schemas on the Responses API")
        if set(schema) <= {"type", "title", "description"} and schema.get("type") == "object":
            body["text"] = {"format": {"type": "json_object"}}
            _mention_json(body)
            return
        folded = fold_root(schema)
        self.warnings += folded.warnings("the reply")
        title = schema.get("title")
        name = re.sub("[^A-Za-z0-9_-]", "_", title)[:64] if isinstance(title, str) and title else "reply"
        written: JsonObject = {"type": "json_schema", "name": name, **strict_reply(folded.schema)}
        if isinstance(described := schema.get("description"), str):
            written["description"] = described
        body["text"] = {"format": written}

    # --- Tuning ---

    def _reasoning(self, body: JsonObject) -> None:
        requested = self.request.reasoning_effort
        if requested is None:
            return
        if not self._reasons():
            if requested != "none":
                self._warn(WarningCode.PARAMETER_DROPPED, f"{self.name} does not support reasoning_effort")
            return
        effort = requested if self.model is None else nearest_effort(requested, self.model.efforts)
        if effort != requested:
            why = f"{self.name} has no effort {requested!r}; {effort!r} is used"
            self._warn(WarningCode.PARAMETER_CHANGED, why)
        body["reasoning"] = {"effort": effort}
        if self.summarises and self.model is not None and effort != "none":
            body["reasoning"] = {"effort": effort, "summary": "auto"}

    def _settings(self, body: JsonObject) -> None:
        model, refused = self.name, {}
        if _refuses_sampling(self.model, body):
            refused = dict.fromkeys(("temperature", "top_p"), f"{model} rejects it while it reasons")
        if self.model is not None and not self.model.verbosity:
            refused["verbosity"] = f"{model} has none"
        if not self.quirks.background:
            refused["background"] = "this server does not support background replies"
        paths = {
            "temperature": "temperature",
            "top_p": "top_p",
            "background": "background",
            "verbosity": "text.verbosity",
            "user": self.quirks.user,
        }
        self.warnings += write_settings(body, self.request, paths, self.provider, refused=refused)
        user = body.get(self.quirks.user)
        if isinstance(user, str):
            body[self.quirks.user] = short_id(user)


def _refuses_sampling(row: Model | None, body: JsonObject) -> bool:
    if row is None or not row.efforts:
        return False
    reasoning = body.get("reasoning")
    effort = reasoning.get("effort") if isinstance(reasoning, dict) else row.default_effort
    return effort != "none"


def _mention_json(body: JsonObject) -> None:
    """Add an input item that mentions JSON, because JSON mode requires one. The instructions don't count."""
    items = body["input"]
    assert isinstance(items, list)
    if b"json" not in msgspec.json.encode(items).lower():
        items.insert(0, {"role": "developer", "content": "Answer with a JSON object."})


# --- Images of chat models ---

TOOL = "image_generation"
IMAGE_TOOL = "image_tool"
"""The key in ``provider_options`` of the fields that are sent with the image tool."""

_COMMON = msgspec.structs.replace(OpenAIImages().capabilities("gpt-image-"), max_images=1)


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
        reply = read(Response, body)
        error = error_of(reply, "")
        if error is not None and is_present(reply.error):
            raise error
        images: list[GeneratedImage] = []
        texts: list[str] = []
        for item in map(as_object, reply.output or ()):
            match item:
                case {"type": str(kind), "result": str(result)} if kind == IMAGE_CALL and result:
                    made = item.get("output_format") or request.output_format or "png"
                    revised = item.get("revised_prompt")
                    prompt = revised if isinstance(revised, str) else None
                    images.append(from_base64(result, f"image/{made}", prompt))
                case {"error": failure} if failure:
                    raise error_in_reply({"error": failure}, "")
                case {"content": list(parts)}:
                    said = [part.get("text") or part.get("refusal") for part in parts if isinstance(part, dict)]
                    texts += [text for text in said if isinstance(text, str)]
                case _:
                    pass
        if error is not None and not images:
            raise error
        usage = _image_usage(reply, len(images))
        return ImageReply(images, usage, reply.model, reply.id, said="".join(texts))


def _image_usage(reply: Response, images: int) -> TokenUsage | None:
    image_usage = read_image_usage(reply.usage or b"null")
    details = drawn_with(reply.tool_usage) or details_of(image_tool=images)
    if image_usage is None:
        return TokenUsage(details=details) if details else None
    return msgspec.structs.replace(image_usage, details=details)


# --- The wire ---

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
    """The differences of the server, a name of `data.QUIRKS`; None uses the address."""
    find_protocol: bool = False
    """Whether to check the server's protocol at the start. Without a Responses API, the adapter uses Chat
    Completions.

    The engine sets this if the address comes from OPENAI_BASE_URL.
    """


class ResponsesWire(ChatWire):
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
        return built.call("/v1/responses")

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
        read_reply(body, assembler, self.quirks)

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
