"""The wire and the adapter of Anthropic's Messages API."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal
from urllib.parse import quote, urlencode

import msgspec

from callboard.bus.values.base import Json

from ...batches import (
    BatchJob,
    BatchLimits,
    BatchLine,
    BatchStatus,
    ListPage,
    Written,
    cancelled_item,
    error_of_item,
    expired_item,
    fields_of,
    moment_of,
)
from ...contract import AdapterCapabilities, CanonicalRequest, RateLimitInfo, WireRequest
from ...http.adapter import HttpAdapter
from ...http.fidelity import client_body, client_headers
from ...http.wire import ChatWire, OtherWires
from ...replies.assembler import Assembler
from ...replies.server_sent_events import StreamNormaliser
from ...requests.content import encode_json
from ...requests.history_target import WireCall, get
from ...requests.settings import SharedOptions
from . import response
from .data import ERROR_CODES, REPAIRS, find_model
from .messages import IMAGE_MEDIA_TYPES, PDF, TEXT_MEDIA_TYPES
from .request import beta_names, write_request
from .response import read_reply
from .stream import MessagesNormaliser

# Anthropic's Message Batches, ``/v1/messages/batches``.

PATH = "/v1/messages/batches"
_BETA = "anthropic-beta"
_PAGE = 100


class _Counts(msgspec.Struct, gc=False):
    processing: int = 0
    succeeded: int = 0
    errored: int = 0
    canceled: int = 0
    expired: int = 0

    @property
    def total(self) -> int:
        return self.processing + self.succeeded + self.errored + self.canceled + self.expired


class _Batch(msgspec.Struct, gc=False):
    id: str
    processing_status: str
    request_counts: _Counts = msgspec.field(default_factory=_Counts)
    created_at: str | None = None
    expires_at: str | None = None
    ended_at: str | None = None
    cancel_initiated_at: str | None = None


class _List(msgspec.Struct, gc=False):
    data: list[_Batch]
    has_more: bool = False
    last_id: str | None = None


class _Result(msgspec.Struct, gc=False):
    type: str
    message: msgspec.Raw = response.ABSENT
    error: Json = None


class _Line(msgspec.Struct, gc=False):
    custom_id: str
    result: _Result


_decode = msgspec.json.Decoder(_Batch).decode
_decode_list = msgspec.json.Decoder(_List).decode
_decode_line = msgspec.json.Decoder(_Line).decode


class MessageBatches(msgspec.Struct, frozen=True):
    limits: BatchLimits = BatchLimits(max_requests=100_000, max_bytes=250 * 1024 * 1024)
    """The provider's limits, with room for the data around the requests."""
    marks: bool = False
    in_lines: bool = True

    def line(self, item: Written, model: str) -> bytes:
        return encode_json({"custom_id": item.id, "params": fields_of(item.call, "stream")})

    def upload(self, lines: Sequence[bytes], mark: str) -> WireCall | None:
        return None

    def create(
        self, lines: Sequence[bytes], uploaded: str, items: Sequence[Written], model: str, mark: str
    ) -> WireCall:
        names = [name for item in items for name in item.call.headers.get(_BETA, "").split(",") if name]
        betas = {_BETA: ",".join(dict.fromkeys(names))} if names else {}
        return WireCall(PATH, b'{"requests":[' + b",".join(lines) + b"]}", {**_VERSION, **betas})

    def retrieve(self, job_id: str) -> WireCall:
        return get(_one(job_id), _VERSION)

    def read(self, body: bytes, provider: str) -> BatchJob:
        return _job(_decode(body), provider)

    def latest(self, mark: str, since: int) -> WireCall:
        return get(f"{PATH}?limit={_PAGE}", _VERSION)

    def read_latest(self, body: bytes, provider: str) -> ListPage:
        page = _decode_list(body)
        query = urlencode({"limit": _PAGE, "after_id": page.last_id or ""})
        following = get(f"{PATH}?{query}", _VERSION) if page.has_more and page.last_id else None
        return ListPage([_job(batch, provider) for batch in page.data], following)

    def results(self, job: BatchJob) -> Sequence[WireCall]:
        return [get(f"{_one(job.id)}/results", _VERSION)]

    def read_results(self, text: bytes, provider: str) -> Iterable[BatchLine]:
        line = _decode_line(text)
        match line.result.type:
            case "succeeded":
                yield BatchLine(line.custom_id, reply=bytes(line.result.message))
            case "canceled":
                yield BatchLine(line.custom_id, error=cancelled_item(provider))
            case "expired":
                yield BatchLine(line.custom_id, error=expired_item(provider))
            case _:
                error = error_of_item(line.result.error, provider, ERROR_CODES)
                yield BatchLine(line.custom_id, error=error)

    def cancel(self, job_id: str) -> WireCall:
        return WireCall(f"{_one(job_id)}/cancel", b"", _VERSION)


_VERSION = {"anthropic-version": response.VERSION}


def _one(job_id: str) -> str:
    return f"{PATH}/{quote(job_id, safe='')}"


def _job(batch: _Batch, provider: str) -> BatchJob:
    counts = batch.request_counts
    return BatchJob(
        id=batch.id,
        provider=provider,
        status=_status(batch),
        total=counts.total,
        succeeded=counts.succeeded,
        failed=counts.errored + counts.canceled + counts.expired,
        created_at=moment_of(batch.created_at),
        expires_at=moment_of(batch.expires_at),
    )


def _status(batch: _Batch) -> BatchStatus:
    """The status of a job. The provider reports only that a job has ended. So the counts of requests decide
    whether it completed, failed, expired or was cancelled.
    """
    if batch.processing_status == "canceling":
        return "cancelling"
    if batch.processing_status != "ended":
        return "in_progress"
    if batch.request_counts.canceled or batch.cancel_initiated_at:
        return "cancelled"
    return "expired" if batch.request_counts.expired else "completed"


class AnthropicOptions(SharedOptions, frozen=True, kw_only=True):
    """`AdapterConfig.options` of type ``anthropic``."""

    beta_headers: str | list[str] = ""
    """Names for the `anthropic-beta` header."""
    auto_cache: bool = True
    """Whether Callboard sets breakpoints of the prompt cache."""
    cache_ttl: Literal["5m", "1h"] = "5m"
    """The lifetime of cached prompts."""
    thinking_back: Literal["signed", "unsigned", "with_calls"] | None = None
    """The thinking to send back. ``signed``: only signed thinking. ``unsigned``: unsigned thinking, too.
    ``with_calls``: also a placeholder before calls without thinking.

    With None, the model's name decides. Models other than Claude get unsigned thinking.
    """
    errors_in_words: bool = False
    """Whether a failed tool's result is marked in its text, for servers that ignore `is_error` (llama.cpp, often
    LiteLLM).
    """


class MessagesWire(ChatWire):
    default_name = "anthropic"
    client_protocol = "anthropic"
    media_fields = frozenset({"document.name"})
    options_type = AnthropicOptions
    default_base_url = "https://api.anthropic.com"
    error_codes = ERROR_CODES
    repair_rules = REPAIRS
    capabilities = AdapterCapabilities(
        supports_images=True,
        supports_documents=True,
        supports_thinking=True,
        supports_tools=True,
        supports_structured_output=True,
        supports_streaming_tool_calls=True,
        supports_parallel_tool_calls=True,
        supports_prompt_caching=True,
        max_context_tokens=200_000,
        max_output_tokens=64_000,
        accepted_image_media_types=IMAGE_MEDIA_TYPES,
        accepted_document_media_types=(PDF, *TEXT_MEDIA_TYPES),
    )

    def get_capabilities(self, model: str) -> AdapterCapabilities:
        row = find_model(model)
        if row is None:
            return self.capabilities
        return msgspec.structs.replace(
            row.within(self.capabilities),
            supports_tool_choice=row.forced_tools,
        )

    def write_request(self, request: CanonicalRequest, *, stream: bool) -> WireCall:
        return write_request(request, provider=self.name, options=self.config.options, stream=stream)

    def write_as_sent(self, sent: WireRequest, model: str, *, stream: bool) -> WireCall:
        """See `ChatWire.write_as_sent`. The betas of the client and of the configuration are both sent."""
        headers = client_headers(sent, _VERSION)
        betas = [*beta_names(headers.get(_BETA)), *beta_names(self.config.options.get("beta_headers"))]
        if betas:
            headers[_BETA] = ",".join(dict.fromkeys(betas))
        return WireCall(response.PATH, encode_json(client_body(sent, model, stream=stream)), headers)

    def read_reply(self, body: bytes, headers: Mapping[str, str], assembler: Assembler) -> None:
        read_reply(body, assembler)

    def normaliser(self, assembler: Assembler) -> StreamNormaliser:
        return MessagesNormaliser(assembler)

    def auth_headers(self, key: str | None) -> Mapping[str, str]:
        return {"x-api-key": key} if key else {}

    def takes_beginning(self, request: CanonicalRequest) -> bool:
        """See `ChatWire.takes_beginning`. A thinking model refuses a started reply."""
        row = find_model(request.wire_model)
        if row is None or not row.beginnings or request.reasoning_effort not in (None, "none"):
            return False
        options_of_request = (request.provider_options.get(name) for name in ("anthropic", self.name))
        return not any(isinstance(options, Mapping) and "thinking" in options for options in options_of_request)

    def health_request(self) -> WireCall:
        return get("/v1/models", _VERSION)

    def other_wires(self) -> OtherWires:
        return OtherWires(batches=MessageBatches())

    def rate_limit(self, headers: Mapping[str, str]) -> RateLimitInfo | None:
        """The limits of requests and tokens. `reset_at` is the reset time of the token limit (RFC 3339). If it is
        missing, the reset time of the request limit.
        """
        prefix = "anthropic-ratelimit-"
        if not any(name.startswith(prefix) for name in headers):
            return None
        tokens = "tokens" if f"{prefix}tokens-limit" in headers else "input-tokens"

        def count(name: str) -> int | None:
            text = headers.get(prefix + name, "")
            return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else None

        return RateLimitInfo(
            requests_limit=count("requests-limit"),
            requests_remaining=count("requests-remaining"),
            tokens_limit=count(f"{tokens}-limit"),
            tokens_remaining=count(f"{tokens}-remaining"),
            reset_at=headers.get(f"{prefix}{tokens}-reset") or headers.get(f"{prefix}requests-reset"),
            requests_reset=headers.get(f"{prefix}requests-reset"),
            tokens_reset=headers.get(f"{prefix}{tokens}-reset"),
            counts_output=tokens == "tokens",
        )


class AnthropicAdapter(HttpAdapter):
    """Anthropic's Messages API, and servers that implement it, such as llama.cpp.

    `config.options`: see `AnthropicOptions`. A request's ``provider_options["anthropic"]`` (or under the adapter's
    own name) is merged into the body. Its ``beta_headers`` are added to the header, and its ``auto_cache`` and
    ``cache_ttl`` override those of the configuration.
    """

    wire_type = MessagesWire
