"""OpenAI's batches (``/v1/files``, ``/v1/batches``), its embeddings (``/v1/embeddings``), and compatible servers.

* Fields of jobs, statuses, 50,000 requests and 200 MB a file, `metadata` of 16 pairs: `openai.types.batch`,
  `batch_create_params` (3.54.0).
* Requests are uploaded as a file, and results are files. A line has ``custom_id`` and ``response``
(``status_code``,
  ``body``) or ``error``, in any order. Unanswered requests are in the error file as ``batch_expired``:
  developers.openai.com/api/docs/guides/batch. Mistral shares these files, see `FileBatches`.
* Groq: the same below ``/openai``, windows of ``24h`` to ``7d``: console.groq.com/docs/batch,
  github.com/groq/groq-api-cookbook (tutorials/batch-processing).
* Embeddings: 8192 tokens a text, 300,000 in a request, and 2048 texts (OpenAI's own package, 3.54.0).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import ClassVar
from urllib.parse import quote, urlencode

import msgspec

from callboard.bus.errors import AdapterError, StreamError, WarningCode
from callboard.bus.values.base import Json, JsonObject
from callboard.bus.values.messages import CallWarning

from ..batches import (
    BatchJob,
    BatchLimits,
    BatchLine,
    BatchStatus,
    ListPage,
    Written,
    error_of_item,
    expired_item,
    fields_of,
    json_lines,
)
from ..embeddings import EmbeddingCapabilities, EmbeddingRequest, Encoding, Vector
from ..http.errors import ErrorType, error_without_status, read_error_value
from ..replies.usage import reported_cost, reported_count
from ..requests.content import encode_json
from ..requests.history_target import WireCall, get
from ..requests.settings import merge_own_options
from ..transport.transport import FormPart, write_form
from .wires import EmbeddingReply, read_vector

PATH = "/v1/embeddings"

_OPENAI = EmbeddingCapabilities(
    max_inputs=2048, max_input_tokens=8192, max_request_tokens=300_000, encodings=("base64", "float")
)
_MODELS: tuple[tuple[str, EmbeddingCapabilities], ...] = (
    (r"text-embedding-3-small", msgspec.structs.replace(_OPENAI, dimensions=1536)),
    (r"text-embedding-3-large", msgspec.structs.replace(_OPENAI, dimensions=3072)),
    (r"text-embedding-ada-002", msgspec.structs.replace(_OPENAI, dimensions=1536, supports_dimensions=False)),
    (
        r"mistral-embed",
        EmbeddingCapabilities(
            max_inputs=512,
            max_input_tokens=8192,
            max_request_tokens=16_384,
            dimensions=1024,
            supports_dimensions=False,
        ),
    ),
)
"""The limits of models. The regular expressions match a model's name on any server."""

UNKNOWN_MAX_INPUTS = 256
"""The largest number of texts for servers without a known limit.

If a server rejects the request because its limit is lower, the request is split in two.
"""


class _Item(msgspec.Struct, gc=False):
    embedding: str | list[float]
    index: int | None = None


class _Usage(msgspec.Struct, gc=False):
    prompt_tokens: float | None = None
    total_tokens: float | None = None
    cost: Json = None
    is_byok: Json = None
    cost_details: Json = None
    cost_in_usd_ticks: Json = None


class _Reply(msgspec.Struct, gc=False):
    data: list[_Item]
    model: str | None = None
    id: str | None = None
    usage: msgspec.Raw = msgspec.Raw(b"null")


_decode_embeddings = msgspec.json.Decoder(_Reply).decode


class OpenAIEmbeddings(msgspec.Struct, frozen=True, kw_only=True):
    """OpenAI's embeddings API, and compatible servers."""

    path: str = PATH
    """The path below the base URL."""
    dimensions_field: str = "dimensions"
    """The name of the request field for the dimensions."""
    base64: bool = True
    """Whether vectors are available in base64."""
    tokens: bool = True
    """Whether inputs can be tokens."""
    protocol: str = "openai"
    """The key of `provider_options` for all servers of this protocol."""

    def capabilities(self, model: str) -> EmbeddingCapabilities:
        encodings: tuple[Encoding, ...] = ("base64", "float") if self.base64 else ("float",)
        for pattern, row in _MODELS:
            if re.search(pattern, model):
                return msgspec.structs.replace(row, encodings=encodings, supports_tokens=self.tokens)
        return EmbeddingCapabilities(
            max_inputs=UNKNOWN_MAX_INPUTS, encodings=encodings, supports_tokens=self.tokens
        )

    def write(self, request: EmbeddingRequest, provider: str) -> WireCall:
        body: JsonObject = {
            "model": request.wire_model,
            "input": [each if isinstance(each, str) else list(each) for each in request.inputs],
        }
        if self.base64 or request.encoding == "base64":
            body["encoding_format"] = request.encoding
        if request.dimensions is not None:
            body[self.dimensions_field] = request.dimensions
        merge_own_options(body, request, self.protocol, provider)
        return WireCall(self.path, encode_json(body))

    def read(self, body: bytes, headers: Mapping[str, str]) -> EmbeddingReply:
        return read_reply(body)


def read_reply(body: bytes) -> EmbeddingReply:
    reply = _decode_embeddings(body)
    try:
        usage = msgspec.json.decode(reply.usage, type=_Usage)
    except msgspec.ValidationError:
        usage = _Usage()
    counted = reported_count(usage.prompt_tokens if usage.prompt_tokens is not None else usage.total_tokens)
    return EmbeddingReply(
        _in_order(reply.data),
        counted,
        reply.model,
        reply.id,
        usage=bytes(reply.usage) if counted is not None else None,
        cost=reported_cost(usage.cost, usage.is_byok, usage.cost_details, usage.cost_in_usd_ticks),
    )


def _in_order(items: Sequence[_Item]) -> list[Vector]:
    """Sort vectors by `index`. They keep their order if all indexes are equal or missing."""
    places = [item.index for item in items]
    if len(set(places)) <= 1:
        return [read_vector(item.embedding) for item in items]
    if sorted(-1 if place is None else place for place in places) != list(range(len(items))):
        what = f"the vectors' indices are {places[:10]}, not each from 0 to {len(items) - 1} once"
        raise StreamError(what, retryable=False)
    vectors: dict[int | None, Vector] = {item.index: read_vector(item.embedding) for item in items}
    return [vectors[place] for place in range(len(items))]


# --- Cohere's models ---

_TYPES: Mapping[str, str] = {
    "query": "search_query",
    "document": "search_document",
    "classification": "classification",
    "clustering": "clustering",
}
_V3 = EmbeddingCapabilities(
    max_inputs=96,
    max_input_tokens=512,
    dimensions=1024,
    supports_dimensions=False,
    input_types=tuple(_TYPES),
    supports_truncation=True,
)
_LIGHT = msgspec.structs.replace(_V3, dimensions=384)
_V4 = msgspec.structs.replace(
    _V3,
    max_input_tokens=128_000,
    dimensions=1536,
    supports_dimensions=True,
    dimension_choices=(256, 512, 1024, 1536),
)


def cohere_capabilities(model: str) -> EmbeddingCapabilities:
    """The capabilities of a Cohere model, by any provider's name."""
    if re.search(r"embed-\w+-light-v3", model):
        return _LIGHT
    return _V3 if re.search(r"embed-\w+-v3", model) else _V4


def cohere_fields(request: EmbeddingRequest) -> tuple[JsonObject, tuple[CallWarning, ...]]:
    """The request fields that all providers of Cohere's models share. The models require an input type. The
    default is ``document``, with a warning.
    """
    warnings: tuple[CallWarning, ...] = ()
    if request.input_type is None:
        what = "Cohere's models require an input_type. The texts were embedded as documents"
        warnings = (CallWarning(WarningCode.INPUT_TYPE_ASSUMED, what),)
    fields: JsonObject = {
        "texts": list(request.texts),
        "input_type": _TYPES[request.input_type or "document"],
        "truncate": "END" if request.truncate else "NONE",
    }
    if request.dimensions is not None:
        fields["output_dimension"] = request.dimensions
    return fields, warnings


class ByType(msgspec.Struct, gc=False):
    """Vectors by type. Only one type is requested."""

    floats: list[list[float]] | None = msgspec.field(default=None, name="float")


MARK = "callboard_batch"
"""The key of the caller's mark in a job's metadata."""

_EXPIRED = "batch_expired"


class _Response(msgspec.Struct, gc=False):
    status_code: int | None = None
    body: msgspec.Raw = msgspec.Raw(b"null")


class _Line(msgspec.Struct, gc=False):
    custom_id: str
    response: _Response | None = None
    error: Json = None


_decode_line = msgspec.json.Decoder(_Line).decode


class FileBatches(msgspec.Struct, frozen=True, kw_only=True):
    """Base of batch wires that upload requests as files: uploads, and requests for one job."""

    JOBS: ClassVar[str]
    """The path of the jobs, below `path`."""

    path: str = "/v1"
    """The path of files and jobs."""
    codes: Mapping[str, ErrorType] = {}
    marks: bool = True
    in_lines: bool = True

    def upload(self, lines: Sequence[bytes], mark: str) -> WireCall | None:
        """The upload of a file with the purpose ``batch``. An upload is free and may be repeated."""
        file = FormPart("file", json_lines(lines), "batch.jsonl", "application/jsonl")
        body, media_type = write_form([FormPart("purpose", b"batch"), file])
        return WireCall(f"{self.path}/files", body, headers={"content-type": media_type})

    def retrieve(self, job_id: str) -> WireCall:
        return get(self._one(job_id))

    def cancel(self, job_id: str) -> WireCall:
        return WireCall(f"{self._one(job_id)}/cancel", b"")

    def results(self, job: BatchJob) -> Sequence[WireCall]:
        return [get(f"{self.path}/files/{quote(file_id, safe='')}/content") for file_id in job.places.values()]

    def read_results(self, text: bytes, provider: str) -> Iterable[BatchLine]:
        return [_read_line(text, provider, self.codes)]

    @property
    def _jobs(self) -> str:
        return f"{self.path}/{self.JOBS}"

    def _one(self, job_id: str) -> str:
        return f"{self._jobs}/{quote(job_id, safe='')}"

    def _failure(self, reported: Json, provider: str) -> AdapterError:
        return error_without_status(read_error_value(reported), self.codes, provider)


def places(output: str | None, error: str | None) -> dict[str, str]:
    """The ids of the files with a job's results."""
    files = {"output": output, "error": error}
    return {name: file_id for name, file_id in files.items() if file_id}


def mark_of(metadata: Mapping[str, Json] | None) -> str | None:
    """The caller's mark of a job; None if it has none."""
    mark = (metadata or {}).get(MARK)
    return mark if isinstance(mark, str) else None


def _read_line(text: bytes, provider: str, codes: Mapping[str, ErrorType]) -> BatchLine:
    """Parse a line of results. Raises msgspec's decoding errors."""
    line = _decode_line(text)
    response = line.response
    if response is not None and (response.status_code or 200) < 300:
        return BatchLine(line.custom_id, reply=bytes(response.body))
    if isinstance(line.error, dict) and line.error.get("code") == _EXPIRED:
        return BatchLine(line.custom_id, error=expired_item(provider))
    if response is not None and line.error is None:
        reported: Json = msgspec.json.decode(response.body)
        return BatchLine(line.custom_id, error=error_of_item(reported, provider, codes, response.status_code))
    status = None if response is None else response.status_code
    return BatchLine(line.custom_id, error=error_of_item(line.error, provider, codes, status))


_STATUSES: dict[str, BatchStatus] = {
    "validating": "queued",
    "in_progress": "in_progress",
    "finalizing": "in_progress",
    "cancelling": "cancelling",
    "completed": "completed",
    "failed": "failed",
    "expired": "expired",
    "cancelled": "cancelled",
}

_PAGE = 100


class _Counts(msgspec.Struct, gc=False):
    total: int | None = None
    completed: int | None = None
    failed: int | None = None


class _Problem(msgspec.Struct, gc=False):
    code: str | None = None
    message: str | None = None
    line: int | None = None


class _Problems(msgspec.Struct, gc=False):
    data: list[_Problem] | None = None


class _Batch(msgspec.Struct, gc=False):
    id: str
    status: str
    output_file_id: str | None = None
    error_file_id: str | None = None
    errors: _Problems | None = None
    request_counts: _Counts | None = None
    created_at: float | None = None
    expires_at: float | None = None
    metadata: dict[str, Json] | None = None


class _List(msgspec.Struct, gc=False):
    data: list[_Batch]
    has_more: bool = False
    last_id: str | None = None


_decode = msgspec.json.Decoder(_Batch).decode

_decode_list = msgspec.json.Decoder(_List).decode


class OpenAIBatches(FileBatches, frozen=True, kw_only=True):
    """OpenAI's batches, and compatible servers."""

    JOBS: ClassVar[str] = "batches"

    endpoint: str
    """The endpoint that every line of a job names."""
    window: str = "24h"
    """The largest duration of a job, in the provider's form."""
    limits: BatchLimits = BatchLimits(max_requests=50_000, max_bytes=200 * 1000 * 1000)

    def line(self, item: Written, model: str) -> bytes:
        body = fields_of(item.call, "stream", "stream_options")
        return encode_json({"custom_id": item.id, "method": "POST", "url": self.endpoint, "body": body})

    def create(
        self, lines: Sequence[bytes], uploaded: str, items: Sequence[Written], model: str, mark: str
    ) -> WireCall:
        body: Json = {
            "input_file_id": uploaded,
            "endpoint": self.endpoint,
            "completion_window": self.window,
            "metadata": {MARK: mark},
        }
        return WireCall(self._jobs, encode_json(body))

    def read(self, body: bytes, provider: str) -> BatchJob:
        return self._job(_decode(body), provider)

    def latest(self, mark: str, since: int) -> WireCall:
        return get(f"{self._jobs}?limit={_PAGE}")

    def read_latest(self, body: bytes, provider: str) -> ListPage:
        page = _decode_list(body)
        last = page.last_id or (page.data[-1].id if page.data else "")
        query = urlencode({"limit": _PAGE, "after": last})
        following = get(f"{self._jobs}?{query}") if page.has_more and last else None
        return ListPage([self._job(batch, provider) for batch in page.data], following)

    def _job(self, batch: _Batch, provider: str) -> BatchJob:
        counts = batch.request_counts or _Counts()
        problems = (batch.errors.data if batch.errors is not None else None) or []
        error = None
        if batch.status == "failed":
            reported: Json = {"code": problems[0].code, "message": problems[0].message} if problems else {}
            error = self._failure(reported, provider)
        return BatchJob(
            id=batch.id,
            provider=provider,
            status=_STATUSES.get(batch.status, "in_progress"),
            total=counts.total,
            succeeded=counts.completed or 0,
            failed=counts.failed or 0,
            error=error,
            created_at=None if batch.created_at is None else int(batch.created_at),
            expires_at=None if batch.expires_at is None else int(batch.expires_at),
            mark=mark_of(batch.metadata),
            places=places(batch.output_file_id, batch.error_file_id),
        )
