"""Gemini's batches: ``batchGenerateContent``, with inline requests.

* A job is an operation ``batches/…``. Fields and states: `google.genai.batches` (3.4.0), `t_job_state`.
* `batchStats` has counts as text; `inlinedResponses` are in the order of the requests; ``:cancel``, and the list
of
  ``batches``: ai.google.dev/api/batch-api.
* Inline requests have 20 MB in all, and a job expires after 48 hours: ai.google.dev/gemini-api/docs/batch-api.
More
  requests are split into several jobs. The results of a job with a file can be read.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from urllib.parse import quote, urlencode

import msgspec

from callboard.adapters.batches import BatchJob, BatchLimits, BatchStatus
from callboard.adapters.http.wire_call import WireCall, get
from callboard.bus.values.base import Json

from ...operations.wires import (
    BatchLine,
    ListPage,
    Written,
    cancelled_item,
    error_of_item,
    expired_item,
    fields_of,
    moment_of,
)
from ...refusals.classify import error_without_status, read_error_value
from ...requests.text import encode_json
from .data import CODES
from .request import model_name, path_of

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
"""google.rpc's codes as the HTTP statuses of the same errors (github.com/googleapis/googleapis,
google/rpc/code.proto).
"""
_PAGE = 100
_KEY = "key"
"""The name of a request's id in its metadata."""

_ROOM = 64 * 1024
"""Bytes left for the data around the requests."""


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


_decode = msgspec.json.Decoder(_Operation).decode
_decode_list = msgspec.json.Decoder(_List).decode
_decode_line = msgspec.json.Decoder(_FileLine).decode


class GeminiBatches(msgspec.Struct, frozen=True):
    version: str
    limits: BatchLimits = BatchLimits(max_requests=50_000, max_bytes=20 * 1000 * 1000 - _ROOM)
    """The provider's limit in bytes, and a number of requests that is never reached."""
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
        return _job(_decode(body), provider)

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
            inlined = _decode(text).output.inlinedResponses
        except msgspec.MsgspecError:  # a file of lines
            for line in filter(bytes.strip, text.split(b"\n")):
                told = _decode_line(line)
                yield _line(told.key, told.response, told.error, provider)
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
        total=_count(stats.requestCount),
        succeeded=_count(stats.successfulRequestCount) or 0,
        failed=_count(stats.failedRequestCount) or 0,
        error=error,
        created_at=moment_of(about.createTime),
        mark=about.displayName,
        places={"file": file_name} if file_name else {},
    )


def _count(value: Json) -> int | None:
    return int(value) if isinstance(value, int) or (isinstance(value, str) and value.isdigit()) else None
