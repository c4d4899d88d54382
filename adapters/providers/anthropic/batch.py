"""Anthropic's Message Batches, ``/v1/messages/batches``.

* Fields of jobs and results, in any order: `anthropic.types.messages` (2.12.0). Counts other than `processing` are
  zero until the end.
* 100,000 requests or 256 MB a job, 24 hours until it expires, results for 29 days, ids of 1 to 64 characters, no
bill
  for failed requests: platform.claude.com/docs/en/build-with-claude/batch-processing.
* A job has no metadata. An unconfirmed one is found by its time and its number of requests.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from urllib.parse import quote, urlencode

import msgspec

from callboard.adapters.batches import BatchJob, BatchLimits, BatchStatus
from callboard.adapters.http.wire_call import WireCall, get
from callboard.bus.values.base import Json

from ...operations.jobs_wire import (
    BatchLine,
    ListPage,
    Written,
    cancelled_item,
    error_of_item,
    expired_item,
    fields_of,
    moment_of,
)
from ...requests.text import encode_json
from . import response
from .data import ERROR_CODES

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
    """The end of a job, from the counts of its requests, because the provider reports one end for all."""
    if batch.processing_status == "canceling":
        return "cancelling"
    if batch.processing_status != "ended":
        return "in_progress"
    if batch.request_counts.canceled or batch.cancel_initiated_at:
        return "cancelled"
    return "expired" if batch.request_counts.expired else "completed"
