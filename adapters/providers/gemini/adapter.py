"""The wires and the adapter of the Gemini API."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal
from urllib.parse import quote, urlencode

import msgspec

from callboard.bus.errors import StreamError
from callboard.bus.values.base import Json, JsonObject

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
from ...contract import AdapterCapabilities, CanonicalRequest, WireRequest
from ...embeddings import INPUT_TYPES, EmbeddingCapabilities, EmbeddingRequest
from ...http.adapter import HttpAdapter
from ...http.errors import error_without_status, read_error_value
from ...http.fidelity import client_headers
from ...http.repair import RepairRules
from ...http.wire import ChatWire, Endpoint, OtherWires
from ...operations.wires import EmbeddingReply, from_numbers
from ...replies.assembler import Assembler
from ...replies.server_sent_events import StreamNormaliser
from ...replies.usage import reported_count
from ...requests.content import encode_json
from ...requests.history_target import WireCall, get
from ...requests.settings import SharedOptions, merge_own_options
from .contents import AUDIO_TYPES, DOCUMENT_TYPES, IMAGE_TYPES
from .data import CODES, REPAIRS, find_model
from .interactions_request import build_interaction
from .interactions_response import REVISION, InteractionNormaliser, read_interaction
from .media import GeminiImages, GeminiVideos
from .request import build_request, model_name, path_of
from .response import GeminiNormaliser, read_reply

_STATUSES: dict[str, BatchStatus] = {
    "PENDING": "queued",
    "RUNNING": "in_progress",
    "SUCCEEDED": "completed",
    "FAILED": "failed",
    "CANCELLED": "cancelled",
    "EXPIRED": "expired",
}
_HTTP_STATUS = {
    2: 500,
    3: 400,
    5: 404,
    6: 409,
    7: 403,
    8: 429,
    9: 400,
    10: 409,
    11: 400,
    12: 501,
    13: 500,
    14: 503,
    16: 401,
}
"""google.rpc's error codes with the HTTP statuses of the same errors (github.com/googleapis/googleapis,
google/rpc/code.proto).
"""
_PAGE = 100
_KEY = "key"
"""The field of a request's metadata that contains the request's id."""

_ROOM = 64 * 1024
"""Bytes reserved for the data around the requests."""


class _Stats(msgspec.Struct, gc=False):
    requestCount: Json = None
    successfulRequestCount: Json = None
    failedRequestCount: Json = None


class _Inlined(msgspec.Struct, gc=False):
    response: msgspec.Raw = msgspec.Raw(b"null")
    error: Json = None
    metadata: dict[str, Json] | None = None


class _InlinedList(msgspec.Struct, gc=False):
    inlinedResponses: list[_Inlined] | None = None


class _Output(msgspec.Struct, gc=False):
    inlinedResponses: _InlinedList | None = None
    responsesFile: str | None = None


class _Metadata(msgspec.Struct, gc=False):
    state: str | None = None
    displayName: str | None = None
    createTime: str | None = None
    batchStats: _Stats | None = None
    output: _Output | None = None


class _Operation(msgspec.Struct, gc=False):
    name: str
    metadata: _Metadata = msgspec.field(default_factory=_Metadata)
    done: bool = False
    error: Json = None
    response: _Output | None = None

    @property
    def output(self) -> _Output:
        return self.metadata.output or self.response or _Output()


class _List(msgspec.Struct, gc=False):
    operations: list[_Operation] | None = None
    nextPageToken: str | None = None


class _FileLine(msgspec.Struct, gc=False):
    key: str
    response: msgspec.Raw = msgspec.Raw(b"null")
    error: Json = None


_decode_operation = msgspec.json.Decoder(_Operation).decode
_decode_list = msgspec.json.Decoder(_List).decode
_decode_line = msgspec.json.Decoder(_FileLine).decode


class GeminiBatches(msgspec.Struct, frozen=True):
    version: str
    limits: BatchLimits = BatchLimits(max_requests=50_000, max_bytes=20 * 1000 * 1000 - _ROOM)
    """The provider's limit in bytes. The provider does not limit the number of requests; the number here is never
    reached.
    """
    marks: bool = True
    in_lines: bool = False

    def line(self, item: Written, model: str) -> bytes:
        request: Json = {"model": model_name(model), **fields_of(item.call)}
        return encode_json({"request": request, "metadata": {_KEY: item.id}})

    def upload(self, lines: Sequence[bytes], mark: str) -> WireCall | None:
        return None

    def create(
        self, lines: Sequence[bytes], uploaded: str, items: Sequence[Written], model: str, mark: str
    ) -> WireCall:
        head = b'{"batch":{"displayName":' + encode_json(mark) + b',"inputConfig":{"requests":{"requests":['
        path = path_of(self.version, model_name(model), "batchGenerateContent")
        return WireCall(path, head + b",".join(lines) + b"]}}}}")

    def retrieve(self, job_id: str) -> WireCall:
        return get(path_of(self.version, job_id))

    def read(self, body: bytes, provider: str) -> BatchJob:
        return _job(_decode_operation(body), provider)

    def latest(self, mark: str, since: int) -> WireCall:
        return get(f"/{self.version}/batches?pageSize={_PAGE}")

    def read_latest(self, body: bytes, provider: str) -> ListPage:
        page = _decode_list(body)
        query = urlencode({"pageSize": _PAGE, "pageToken": page.nextPageToken or ""})
        following = get(f"/{self.version}/batches?{query}") if page.nextPageToken else None
        return ListPage([_job(operation, provider) for operation in page.operations or []], following)

    def results(self, job: BatchJob) -> Sequence[WireCall]:
        file_name = job.places.get("file")
        if file_name is not None:
            return [get(f"/download/{self.version}/{quote(file_name)}:download?alt=media")]
        return [self.retrieve(job.id)]

    def read_results(self, text: bytes, provider: str) -> Iterable[BatchLine]:
        try:
            inlined = _decode_operation(text).output.inlinedResponses
        except msgspec.MsgspecError:  # a file of lines
            for line in filter(bytes.strip, text.split(b"\n")):
                reported = _decode_line(line)
                yield _line(reported.key, reported.response, reported.error, provider)
            return
        for item in (inlined.inlinedResponses if inlined is not None else None) or []:
            key = (item.metadata or {}).get(_KEY)
            if isinstance(key, str):
                yield _line(key, item.response, item.error, provider)

    def cancel(self, job_id: str) -> WireCall:
        return WireCall(path_of(self.version, job_id, "cancel"), b"")


def _line(key: str, response: msgspec.Raw, error: Json, provider: str) -> BatchLine:
    match error:
        case None:
            return BatchLine(key, reply=bytes(response))
        case {"code": 1}:  # CANCELLED among google.rpc's codes
            return BatchLine(key, error=cancelled_item(provider))
        case {"code": 4}:  # DEADLINE_EXCEEDED
            return BatchLine(key, error=expired_item(provider))
        case {"code": int(code)}:
            return BatchLine(key, error=error_of_item(error, provider, CODES, _HTTP_STATUS.get(code, code)))
        case _:
            return BatchLine(key, error=error_of_item(error, provider, CODES))


def _job(operation: _Operation, provider: str) -> BatchJob:
    about = operation.metadata
    stats = about.batchStats or _Stats()
    status = _STATUSES.get((about.state or "").removeprefix("BATCH_STATE_").removeprefix("JOB_STATE_"))
    if status is None:
        status = "in_progress" if not operation.done else "failed" if operation.error else "completed"
    error = None
    if status == "failed":
        error = error_without_status(read_error_value(operation.error), CODES, provider)
    file_name = operation.output.responsesFile
    return BatchJob(
        id=operation.name,
        provider=provider,
        status=status,
        total=_number(stats.requestCount),
        succeeded=_number(stats.successfulRequestCount) or 0,
        failed=_number(stats.failedRequestCount) or 0,
        error=error,
        created_at=moment_of(about.createTime),
        mark=about.displayName,
        places={"file": file_name} if file_name else {},
    )


def _number(value: Json) -> int | None:
    return int(value) if isinstance(value, int) or (isinstance(value, str) and value.isdigit()) else None


# Gemini's ``batchEmbedContents``

_TASKS: Mapping[str, str] = {
    "query": "RETRIEVAL_QUERY",
    "document": "RETRIEVAL_DOCUMENT",
    "classification": "CLASSIFICATION",
    "clustering": "CLUSTERING",
    "similarity": "SEMANTIC_SIMILARITY",
    "question_answering": "QUESTION_ANSWERING",
    "fact_verification": "FACT_VERIFICATION",
    "code_query": "CODE_RETRIEVAL_QUERY",
}
_PREFIXES: Mapping[str, str] = {
    "query": "task: search result | query: ",
    "document": "title: none | text: ",
    "classification": "task: classification | query: ",
    "clustering": "task: clustering | query: ",
    "similarity": "task: sentence similarity | query: ",
    "question_answering": "task: question answering | query: ",
    "fact_verification": "task: fact checking | query: ",
    "code_query": "task: code retrieval | query: ",
}
"""Prefixes for the purpose of a text.

Models since gemini-embedding-2 need prefixes, because they have no task types.
"""

_PREFIXED = re.compile(r"gemini-embedding-(?!001|exp)")
_WITHOUT_TASKS = re.compile(r"(?:^|/)embedding-001$")

_COMMON = EmbeddingCapabilities(
    max_inputs=100,
    max_input_tokens=2048,
    dimensions=3072,
    input_types=INPUT_TYPES,
    cuts_silently=True,
)


class _Values(msgspec.Struct, gc=False):
    values: list[float]


class _Usage(msgspec.Struct, gc=False):
    promptTokenCount: float | None = None


class _Reply(msgspec.Struct, gc=False):
    embeddings: list[_Values] | None = None
    embedding: _Values | None = None
    """The vector of one text in a reply of ``embedContent``."""
    usageMetadata: msgspec.Raw = msgspec.Raw(b"null")


_decode = msgspec.json.Decoder(_Reply).decode


class GeminiEmbeddings(msgspec.Struct, frozen=True):
    version: str = "v1beta"
    """The version of the API, part of the path."""

    def capabilities(self, model: str) -> EmbeddingCapabilities:
        if _PREFIXED.search(model):
            return msgspec.structs.replace(_COMMON, max_input_tokens=8192)
        if model.rpartition("/")[2].startswith("text-embedding-"):
            return msgspec.structs.replace(_COMMON, dimensions=768)
        if _WITHOUT_TASKS.search(model):
            return msgspec.structs.replace(_COMMON, dimensions=768, supports_dimensions=False, input_types=())
        return _COMMON

    def write(self, request: EmbeddingRequest, provider: str) -> WireCall:
        name = model_name(request.wire_model)
        shared: JsonObject = {"model": name}
        prefix = ""
        if request.input_type is not None:
            if _PREFIXED.search(name):
                prefix = _PREFIXES[request.input_type]
            else:
                shared["taskType"] = _TASKS[request.input_type]
        if request.dimensions is not None:
            shared["outputDimensionality"] = request.dimensions
        merge_own_options(shared, request, "gemini", provider)
        texts: list[Json] = [{**shared, "content": {"parts": [{"text": prefix + text}]}} for text in request.texts]
        path = path_of(self.version, name, "batchEmbedContents")
        return WireCall(path, encode_json({"requests": texts}))

    def read(self, body: bytes, headers: Mapping[str, str]) -> EmbeddingReply:
        reply = _decode(body)
        found = reply.embeddings if reply.embedding is None else [reply.embedding]
        if found is None:
            raise StreamError("the reply has no embeddings")
        counted = _count(reply.usageMetadata)
        raw = bytes(reply.usageMetadata) if counted is not None else None
        return EmbeddingReply([from_numbers(item.values) for item in found], counted, usage=raw)


def _count(usage: msgspec.Raw) -> int | None:
    try:
        return reported_count(msgspec.json.decode(usage, type=_Usage).promptTokenCount)
    except msgspec.ValidationError:
        return None


VERSION = "v1beta"


class GeminiOptions(SharedOptions, frozen=True, kw_only=True):
    """`AdapterConfig.options` of type ``gemini``."""

    api_version: str | None = None
    """The API version in the address; defaults to ``v1beta``."""
    api: Literal["generate_content", "interactions"] = "generate_content"
    """The API for conversations."""


class GenerateContentWire(ChatWire):
    """The wire of Gemini: generateContent and its stream, or the Interactions API."""

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
        supports_streaming_tool_calls=False,  # the arguments arrive whole
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
        self.client_protocol = "" if self._speaks_interactions else "gemini"
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
        api_version = self.config.options.get("api_version")
        return api_version if isinstance(api_version, str) and api_version else VERSION

    def other_wires(self) -> OtherWires:
        version = self._version
        return OtherWires(
            GeminiEmbeddings(version),
            lambda _: GeminiImages(version),
            GeminiVideos(version),
            GeminiBatches(version),
        )

    def write_request(self, request: CanonicalRequest, *, stream: bool) -> WireCall:
        if self._speaks_interactions:
            built = build_interaction(request, provider=self.name, stream=stream)
            return built.call(f"/{self._version}/interactions", {"api-revision": REVISION})
        return build_request(request, provider=self.name).call(self._path(request.wire_model, stream=stream))

    def _path(self, model: str, *, stream: bool) -> str:
        method = "streamGenerateContent?alt=sse" if stream else "generateContent"
        return path_of(self._version, model_name(model), method)

    def write_as_sent(self, sent: WireRequest, model: str, *, stream: bool) -> WireCall:
        """See `ChatWire.write_as_sent`. The path names the model; in a body it is optional."""
        body = {**sent.body, "model": model_name(model)} if "model" in sent.body else sent.body
        return WireCall(self._path(model, stream=stream), encode_json(body), client_headers(sent))

    def read_reply(self, body: bytes, headers: Mapping[str, str], assembler: Assembler) -> None:
        if self._speaks_interactions:
            read_interaction(body, assembler)
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
