"""The repair rules, the wire and the adapter of Chat Completions, and Mistral's batches."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import ClassVar
from urllib.parse import urlencode

import msgspec

from callboard.bus.errors import AdapterError, ContextOverflowError
from callboard.bus.values.base import Json

from ...batches import BatchJob, BatchLimits, BatchStatus, BatchWire, ListPage, Written, fields_of
from ...contract import AdapterCapabilities, CanonicalRequest, RateLimitInfo, WireRequest
from ...http.adapter import HttpAdapter
from ...http.fidelity import client_body, client_headers
from ...http.repair import Refusal, RepairRules
from ...http.retry import read_rate_limit
from ...http.wire import ChatWire, Endpoint, OtherWires
from ...operations.openai_media import OpenAIImages, OpenAIVideos
from ...operations.openai_wires import MARK, FileBatches, OpenAIBatches, OpenAIEmbeddings, mark_of, places
from ...replies.assembler import Assembler
from ...requests.content import encode_json
from ...requests.history_target import WireCall, bearer, get
from ...requests.settings import SharedOptions
from ...requests.strict_schemas import input_cleaner
from ...transport.transport import HttpReply
from .messages import AUDIO_FORMATS, accepts_audio, document_types, encode_body
from .quirks import choose_quirks, endpoint_path
from .request import build_body
from .response import ChatNormaliser, read_whole
from .wire import ERROR_CODES, asks_for_usage, decode_reply, error_in_body, is_usage_alone

REPAIRS = RepairRules(
    # Sources: wire-facts 3.1, 3.2, 3.6, 3.7, and issues of 2024 to 2026 that quote the replies
    signatures=(
        r"(?:messages\.\d+(?:\.content\.\d+)?: )?Invalid `?signature`? in `?thinking`? block\b.*",
        r"(?:messages\.\d+(?:\.content\.\d+)?: )?`thinking` or `redacted_thinking` blocks in the latest assistant "
        r"message cannot be modified\..*",
        # Gemini, at its own endpoint or behind a gateway
        r"(?:Corrupted|Invalid) thought signature\.?",
        r"(?:Unable to submit request because )?[Tt]hought signature is not valid\b.{0,300}",
        # OpenAI, behind a gateway
        r"The encrypted content .{1,200} could not be (?:verified|decrypted)\b.{0,300}",
    ),
    parameter_codes=frozenset({"unsupported_parameter", "unsupported_value", "unknown_parameter"}),
    parameters=(
        # OpenAI, and servers that quote it. In Chat Completions, models that reason by default reject tools with
        # reasoning.
        Refusal(
            r"Function tools with reasoning_effort are not supported for \S{1,100} in \S{1,50}\. .{0,200}",
            "reasoning_effort",
            "none",
        ),
        Refusal(r"Unsupported (?:parameter|value): '(?P<name>[\w.]+)' .{0,300}"),
        Refusal(r"Unknown parameter: '(?P<name>[\w.]+)'\.?.{0,100}"),
        Refusal(r"Unrecognized request arguments? supplied: (?P<name>\w+)"),
        # Groq, Cerebras
        Refusal(r"(?:'\w+' ?: ?)?property '(?P<name>\w+)' is unsupported(?:, did you mean '\w+'\?)?"),
        Refusal(
            r"'messages\.\d+' ?: for 'role:assistant' the following must be satisfied\[\('messages\.\d+' ?: "
            r"property '(?P<name>\w+)' is unsupported(?:, did you mean '\w+'\?)?\)\]"
        ),
        Refusal(r"messages\.\d+\.assistant\.(?P<name>\w+): property '[\w.]+' is unsupported(?:\n.{1,200}){0,99}"),
        Refusal(r"`?(?P<name>[a-z_]+)`? is not supported (?:for|with|by) this model\.?"),
        # xAI
        Refusal(r"Argument not supported on this model: (?P<name>\w+)"),
        Refusal(r"Model \S{1,100} does not support parameter (?P<name>\w+)\.?"),
        # Mistral, vLLM and other servers that check with pydantic; Fireworks
        Refusal(r'(?:\{"detail":)?\[\{"type":"extra_forbidden","loc":\["body","(?P<name>\w+)"\].*'),
        Refusal(r"Extra inputs are not permitted, field: '(?P<name>\w+)'.{0,200}"),
        # Gemini
        Refusal(r"Penalty is not enabled for .{1,150}", "frequency_penalty", also=("presence_penalty",)),
        Refusal(
            r"(?:Unable to submit request because )?[Tt]hinking[_ ]level (?:\w+ )?is not supported "
            r"(?:for|by) this model\..{0,300}",
            "reasoning_effort",
            also=("reasoning",),
        ),
        # Anthropic, behind a gateway
        Refusal(r"`temperature` and `top_p` cannot both be specified for this model\b.{0,100}", "top_p"),
        # Ollama
        Refusal(r'"[^"]{1,100}" does not support thinking', "reasoning_effort"),
    ),
    pairs=(
        r"An assistant message with 'tool_calls' must be followed by tool messages responding to each "
        r"'tool_call_id'\. The following tool_call_ids did not have response messages: (?P<ids>[\w, .:-]+)",
        r"(?:Invalid parameter: )?messages with role 'tool' must be a response to a prece+ding message with "
        r"'tool_calls'\.?",
        r"Function call is missing a thought_signature in functionCall parts\..{0,800}",
        r"Not the same number of function calls and responses",
        r"No tool (?:output|call) found for function call (?:output with call_id )?(?P<ids>[\w.:-]+)",
    ),
    essential=frozenset(
        {
            "model",
            "messages",
            "tools",
            "tool_choice",
            "response_format",
            "stream",
            "store",
            "max_tokens",
            "max_completion_tokens",
            "modalities",
        }
    ),
    whole=frozenset({"thinking", "reasoning", "stream_options"}),
    renames={"max_tokens": "max_completion_tokens", "max_completion_tokens": "max_tokens"},
    anywhere=frozenset({"strict", "reasoning_content", "reasoning_details", "cache_control"}),
)


# --- Batches ---

ENDPOINT = "/v1/chat/completions"
"""The endpoint that each line names, even if the server's own path differs."""

_BATCH_STATUSES: dict[str, BatchStatus] = {
    "QUEUED": "queued",
    "RUNNING": "in_progress",
    "SUCCESS": "completed",
    "FAILED": "failed",
    "TIMEOUT_EXCEEDED": "expired",
    "CANCELLATION_REQUESTED": "cancelling",
    "CANCELLED": "cancelled",
}
_PAGE = 100


class _BatchJob(msgspec.Struct, gc=False):
    id: str
    status: str
    output_file: str | None = None
    error_file: str | None = None
    errors: list[Json] | None = None
    total_requests: int | None = None
    succeeded_requests: int | None = None
    failed_requests: int | None = None
    created_at: float | None = None
    metadata: dict[str, Json] | None = None


class _BatchList(msgspec.Struct, gc=False):
    data: list[_BatchJob] | None = None
    total: int = 0


_decode = msgspec.json.Decoder(_BatchJob).decode
_decode_list = msgspec.json.Decoder(_BatchList).decode


class MistralBatches(FileBatches, frozen=True, kw_only=True):
    JOBS: ClassVar[str] = "batch/jobs"

    limits: BatchLimits = BatchLimits(max_requests=1_000_000, max_bytes=512 * 1000 * 1000)

    def line(self, item: Written, model: str) -> bytes:
        return encode_json({"custom_id": item.id, "body": fields_of(item.call, "stream", "model")})

    def create(
        self, lines: Sequence[bytes], uploaded: str, items: Sequence[Written], model: str, mark: str
    ) -> WireCall:
        body: Json = {
            "input_files": [uploaded],
            "endpoint": ENDPOINT,
            "model": model,
            "metadata": {MARK: mark},
            "timeout_hours": 24,
        }
        return WireCall(self._jobs, encode_json(body))

    def read(self, body: bytes, provider: str) -> BatchJob:
        return self._job(_decode(body), provider)

    def latest(self, mark: str, since: int) -> WireCall:
        moment = datetime.fromtimestamp(since, UTC).isoformat().replace("+00:00", "Z")
        query = urlencode({"page": 0, "page_size": _PAGE, "created_after": moment})
        return get(f"{self._jobs}?{query}")

    def read_latest(self, body: bytes, provider: str) -> ListPage:
        # The filter returns only jobs with nearly the same creation time, so one page of a hundred is enough.
        return ListPage([self._job(job, provider) for job in _decode_list(body).data or []])

    def _job(self, job: _BatchJob, provider: str) -> BatchJob:
        error = None
        if job.status == "FAILED":
            error = self._failure(job.errors[0] if job.errors else {}, provider)
        return BatchJob(
            id=job.id,
            provider=provider,
            status=_BATCH_STATUSES.get(job.status, "in_progress"),
            total=job.total_requests,
            succeeded=job.succeeded_requests or 0,
            failed=job.failed_requests or 0,
            error=error,
            created_at=None if job.created_at is None else int(job.created_at),
            mark=mark_of(job.metadata),
            places=places(job.output_file, job.error_file),
        )


# --- The wire ---


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
    client_protocol = "openai_compatible"
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
        if not accepts_audio(self.quirks, model.partition(":")[2] or model):
            return self.capabilities
        return msgspec.structs.replace(self.capabilities, supports_audio=True)

    # --- Requests and replies ---

    def auth_headers(self, key: str | None) -> Mapping[str, str]:
        return {"api-key": key} if key and self.quirks.auth == "api-key" else bearer(key)

    def write_request(self, request: CanonicalRequest, *, stream: bool) -> WireCall:
        capabilities = request.capabilities or self.get_capabilities(request.model)
        chat = build_body(request, self.quirks, capabilities, self.name, stream=stream)
        return chat.call(self.path, encoded=encode_body(chat.body))

    def write_as_sent(self, sent: WireRequest, model: str, *, stream: bool) -> WireCall:
        """See `ChatWire.write_as_sent`. A stream reports its usage only if the request asks for it."""
        body = client_body(sent, model, stream=stream)
        if stream and self.quirks.stream_usage:
            stream_options = body.get("stream_options")
            body["stream_options"] = {
                **(stream_options if isinstance(stream_options, dict) else {}),
                "include_usage": True,
            }
        elif not stream:
            body.pop("stream_options", None)
        return WireCall(self.path, encode_json(body), client_headers(sent))

    def hides(self, sent: WireRequest, *, stream: bool) -> Callable[[bytes], bool] | None:
        adds_usage = stream and self.quirks.stream_usage and not asks_for_usage(sent.body)
        return is_usage_alone if adds_usage else None

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
        request = assembler.request
        if request is not None and self.quirks.strict and self.client_request(request) is None:
            assembler.clean_input = input_cleaner(request.tools, by_default=True)

    def takes_beginning(self, request: CanonicalRequest) -> bool:
        """See `ChatWire.takes_beginning`. False for reasoning models, because they would reason again."""
        quirks = self.quirks
        if quirks.beginning == "none" or not self.base_url.endswith(quirks.beginning_at):
            return False
        return request.reasoning_effort in (None, "none") and not self.emulates_tools

    def health_request(self) -> WireCall:
        """The list of models, next to the endpoint."""
        return get(self._endpoint("/models"))

    def other_wires(self) -> OtherWires:
        embeddings = OpenAIEmbeddings(
            path=self._endpoint("/embeddings"),
            dimensions_field=self.quirks.dimensions_field,
            base64=self.quirks.base64_vectors,
            tokens=self.quirks.token_inputs,
            protocol=self.default_name,
        )
        path, mark, query = self._endpoint("/images").partition("?")
        images = OpenAIImages(path, mark + query, protocol=self.default_name)
        videos = self._endpoint("/videos").partition("?")[0]
        path_of_files = self._endpoint("").partition("?")[0]
        batches: BatchWire | None = None
        if self.quirks.batches == "openai":
            batches = OpenAIBatches(endpoint=ENDPOINT, path=path_of_files, codes=ERROR_CODES)
        elif self.quirks.batches == "mistral":
            batches = MistralBatches(path=path_of_files, codes=ERROR_CODES)
        return OtherWires(
            embeddings,
            lambda _: images,
            OpenAIVideos(videos, protocol=self.default_name, codes=ERROR_CODES),
            batches,
        )

    def _endpoint(self, endpoint: str) -> str:
        path, mark, query = self.path.partition("?")
        return path.removesuffix("/chat/completions") + endpoint + mark + query

    def rate_limit(self, headers: Mapping[str, str]) -> RateLimitInfo | None:
        return read_rate_limit(headers)

    def error_of(self, body: bytes, reply: HttpReply) -> AdapterError:
        error = super().error_of(body, reply)
        if self.quirks.empty_error_is_overflow and reply.status in (400, 413) and not body.strip():
            return ContextOverflowError(
                f"{self.name} answered {reply.status} without a text, which it does if the prompt is too long",
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
